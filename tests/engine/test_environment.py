"""A resume keeps the conditions of its run, says what differs, and refuses other weights or images."""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore import config
from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.base.events import Notice, RoundFinished, Started
from fedcore.clip import backbone, specs
from fedcore.clip.specs import WeightsFiles
from fedcore.config import RunConfig
from fedcore.engine import environment
from fedcore.engine.environment import check_content, environment_differences, processor
from fedcore.engine.train import train
from tests.support.tiny import finished

TOML = """
[data]
name = "rotated-digits"
domains = ["rot0", "rot75"]
shots = 2
[[methods]]
name = "fedot"
config = { local_epochs = 1 }
"""


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setenv(environment.THREADS, "2")


def texts(earlier: dict | None, now: dict) -> list[str]:
    return [n.message for n in environment_differences(earlier, CONDITIONS | now, 3)]


CONDITIONS = {
    "threads": 2,
    "device_name": "Xeon",
    "processor_features": "AVX512",
    "platform": "x",
    "tf32": False,
    "precision": "fp32",
    "code": "0123",
    "fedlens": "1",
} | dict.fromkeys(environment._PACKAGES, "2.14")


def test_a_resume_says_what_differs_from_what_was_recorded(two_threads):
    assert texts(None, {}) == texts({}, {}) == texts({"threads": 2, "torch": "2.14"}, {}) == []
    assert texts(CONDITIONS, {"torch": "2.15"}) == [
        "resumed after round 3 with another torch: 2.14 before, 2.15 now"
    ]
    assert texts(CONDITIONS, {"pillow": "13"}) == [
        "resumed after round 3 with another pillow: 2.14 before, 13 now"
    ]
    assert texts(CONDITIONS, {"device_name": "EPYC", "processor_features": "AVX2"}) == [
        "resumed after round 3 with another device name: Xeon before, EPYC now",
        "resumed after round 3 with another processor features: AVX512 before, AVX2 now",
    ]


def test_a_resume_ignores_what_only_an_earlier_version_recorded():
    (run,) = config.expand(config.loads(TOML))
    earlier = {"threads": 1, "chunk": 2, "products": "packed"}
    now = environment.resolve_environment(run, "cpu", earlier)
    assert (now["threads"], now["chunk"], "products" in now) == (1, 2, False)
    assert list(environment_differences(earlier, now, 3)) == []


def test_torch_and_numpy_are_recorded_by_their_own_versions():
    """Otherwise every resumed run would be said to go on with another torch."""
    (run,) = config.expand(config.loads(TOML))
    recorded = environment.resolve_environment(run, "cpu", None)
    assert (recorded["torch"], recorded["numpy"]) == (str(torch.__version__), np.__version__)


def test_other_code_has_another_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ASSETS", tmp_path / "assets")
    digest = environment.code.__wrapped__
    files = ["engine/round.py", "assets/catalog.toml", "assets/descriptions/digits.json"]
    for name in (*files, "assets/published/paper.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    digests = [digest()]
    for name in files:
        (tmp_path / name).write_text("after")
        digests.append(digest())
    (tmp_path / "engine/round.py").rename(tmp_path / "engine/other.py")
    digests.append(digest())
    assert len(set(digests)) == 5
    (tmp_path / "assets/published/paper.toml").write_text("a table of a paper, which no run reads")
    assert digest() == digests[-1]


def test_threads_that_were_given_and_are_not_used_are_said(monkeypatch):
    monkeypatch.setenv("FEDLENS_THREADS", "8")
    (said,) = texts(CONDITIONS, {})
    assert "with its 2 CPU threads" in said and "instead of the 8" in said
    monkeypatch.setenv("FEDLENS_THREADS", "2")
    assert texts(CONDITIONS, {}) == []


@pytest.mark.parametrize("given", ["0", "1.5", "9" * 5000, "²"])
def test_threads_that_are_no_number_are_refused_in_one_line(monkeypatch, given):
    monkeypatch.setenv("FEDLENS_THREADS", given)
    with pytest.raises(FedLensError, match="give a number of CPU threads"):
        environment.resolve_environment(config.expand(config.loads(TOML))[0], "cpu", None)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="needs Linux")
def test_the_processor_has_a_name_where_python_knows_none(monkeypatch):
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert processor() not in ("", "cpu")


def test_other_weights_or_images_are_refused_by_name():
    for part, name in environment._CONTENT.items():
        with pytest.raises(FedLensError, match=name.partition(" (")[0]):
            check_content({part: "a"}, {part: "b"})
        for earlier in ({part: "a"}, {}, None):
            check_content(earlier, {part: "a"})


def three_rounds() -> RunConfig:
    return config.expand(config.loads(TOML))[0].model_copy(update={"rounds": 3})


@pytest.fixture(scope="module")
def trained(tmp_path_factory, encoded_digits) -> list[object]:
    """The events of an undisturbed run."""
    folder = encoded_digits(tmp_path_factory.mktemp("trained"))
    return list(train(three_rounds(), artifacts=folder, folder=folder / "run"))


@pytest.fixture
def places(encoded_digits, tmp_path) -> dict[str, Path]:
    """Folders of another run, whose images are encoded already."""
    return {"artifacts": encoded_digits(tmp_path), "folder": tmp_path / "run"}


@pytest.fixture
def weights(tmp_path, monkeypatch) -> Path:
    """A copy of the weights of mini-vit, whose content the runs of a test watch."""
    source = specs.weights_source("mini-vit", None)
    copy = Path(shutil.copy(source[1], tmp_path / "weights.safetensors"))
    monkeypatch.setattr(specs, "weights_source", lambda name, pretrained: (source[0], copy))
    monkeypatch.setattr(backbone, "_LOADED", {})
    return copy


def swap(path: Path) -> None:
    """Other bytes under the same name, as a download of another release gives."""
    path.write_bytes(path.read_bytes()[::-1])


def test_files_are_changed_when_their_bytes_are(weights):
    files = WeightsFiles.of("mini-vit", None)
    assert not files.changed()
    weights.touch()
    assert not files.changed(), "another time, the same bytes"
    swap(weights)
    assert files.changed()
    weights.unlink()
    assert files.changed()


def test_weights_swapped_while_a_run_trains_are_noticed_at_once_and_at_its_resume(weights, places):
    run, said, rounds, recorded = three_rounds(), [], [], {}
    for event in train(run, **places):
        if isinstance(event, Started):
            recorded = event.environment
        if isinstance(event, Notice):
            said.append(event.message)
        if isinstance(event, RoundFinished):
            rounds.append(event)
            if event.round == 1:
                swap(weights)
    assert recorded["weights_digest"] and len(rounds) == 4
    assert sum("changed on the disk while the run was training" in m for m in said) == 1
    with pytest.raises(FedLensError, match="the bytes of the weights' files have changed since"):
        list(train(run, resume_from=rounds[1].checkpoint, environment=recorded, **places))
    swap(weights)
    (last,) = finished(train(run, resume_from=rounds[2].checkpoint, environment=recorded, **places))
    assert last.cells == rounds[3].cells


def test_data_that_changed_since_a_run_began_are_refused_before_they_are_encoded(trained, tmp_path):
    recorded = next(e.environment for e in trained if isinstance(e, Started)) | {"pixels": "others"}
    folders = {"artifacts": tmp_path, "folder": tmp_path / "run"}
    checkpoint = finished(trained)[0].checkpoint
    with pytest.raises(FedLensError, match="the image files .* have changed since"):
        list(train(three_rounds(), resume_from=checkpoint, environment=recorded, **folders))
    assert not (tmp_path / "encodings").exists()


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)[0]
        file.seek(5000)
        file.write(bytes([byte ^ 4]))


def rewrite(path: Path) -> None:
    """As another process does that found it damaged."""
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (flip, "its bytes are not those that were written"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((rewrite, "replaced"), (Path.unlink, "deleted"))
        ),
    ],
)
def test_an_encoding_that_changes_while_a_run_trains_gives_no_round(trained, places, happens, said):
    run, rounds = three_rounds(), []

    def until_it_stops() -> None:
        for event in train(run, **places):
            if isinstance(event, RoundFinished):
                rounds.append(event)
                if event.round == 1:
                    happens(next((places["artifacts"] / "encodings").glob("*.npy")))

    with pytest.raises(FedLensError, match=f"changed while the run was reading it: .*{said}"):
        until_it_stops()
    assert [e.round for e in rounds] == [0, 1]
    rest = finished(train(run, resume_from=rounds[1].checkpoint, environment={}, **places))
    assert [e.cells for e in rest] == [e.cells for e in finished(trained)[2:]]


def test_an_encoding_that_was_only_touched_is_no_reason_to_stop(places):
    rounds = []
    for event in train(three_rounds(), **places):
        if isinstance(event, RoundFinished):
            rounds.append(event.round)
            next((places["artifacts"] / "encodings").glob("*.npy")).touch()
    assert rounds == [0, 1, 2, 3]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Runs git in a folder that is in no repository yet."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def git(*arguments: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *names, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    return git


def committed(git: Callable[..., str]) -> str:
    """The first commit of a new repository, of all files that lie there."""
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return git("rev-parse", "--short", "HEAD")


def test_the_commits_of_fedlens_and_of_the_users_checkouts_are_recorded(repository, tmp_path, monkeypatch):
    git, file, new = repository, tmp_path / "mine.py", tmp_path / "new.py"

    def commits(method_file: Path | None = None) -> dict[str, str]:
        environment.commit_of.cache_clear()
        return environment.commits(method_file and str(method_file))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "IN_CHECKOUT", False)
    file.write_text("a")
    assert commits() == {}, "no repository"
    head = committed(git)
    new.write_text("not tracked")
    assert commits(file) == {"checkout": head, "method_checkout": head}
    file.write_text("b")
    changed = f"{head} with changes"
    assert commits(new) == {"checkout": changed, "method_checkout": f"{changed} without new.py"}
    monkeypatch.setattr(environment, "PROJECT", tmp_path)
    monkeypatch.setattr(environment, "IN_CHECKOUT", True)
    assert commits() == {"commit": changed}, "FedLens' own is recorded once"


def test_git_asks_the_folders_own_repository_and_runs_none_of_its_programs(repository, tmp_path, monkeypatch):
    git, file, ran = repository, tmp_path / "data.bin", tmp_path / "ran"
    (tmp_path / ".gitattributes").write_text("*.bin filter=mine")
    file.write_text("a")
    head = committed(git)
    git("config", "filter.mine.clean", f"touch '{ran}'; cat")
    git("config", "filter.mine.required", "true")
    file.write_text("b")
    os.utime(file, (1, 1))  # of equal size and another time: git has to compare contents
    for name in ("GIT_DIR", "GIT_WORK_TREE"):  # as in a hook of another repository
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    environment.commit_of.cache_clear()
    assert environment.commit_of(tmp_path) == f"{head} with changes"
    assert not ran.exists()


def test_the_commit_of_another_file_than_the_one_that_runs_is_not_recorded(repository, tmp_path, monkeypatch):
    git, file = repository, tmp_path / "mine.py"
    file.write_text("a")
    committed(git)
    environment.commit_of.cache_clear()
    assert "method_checkout" in environment.commits(str(file))
    monkeypatch.setattr(consent, "RECEIVED", {file.resolve(): b"came with a run"})
    assert "method_checkout" not in environment.commits(str(file))
