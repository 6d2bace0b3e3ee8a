"""A node executes a request and the supervisor gets the result, without Ray, which only transports both."""

import errno
import pickle
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fedlens_ray import node, on_node, stream
from fedlens_ray.reservations import Request, Reservation

from fedcore.base import consent
from fedcore.base.errors import Elsewhere, FedLensError, SystemFault, Transient
from fedcore.base.events import Finished, RoundFinished, Started
from fedcore.base.files import PROJECT
from fedcore.config import RunConfig, parse
from fedcore.engine.environment import MIXED_CODE, code
from fedcore.engine.plan import plan
from fedcore.methods import FedLensMethodError, registry
from tests.support.cluster import OWN_METHOD, SMALL
from tests.support.encoded import DIGITS

RESERVED = Reservation(Request(1), group=None, node_ids=(SMALL.node.id,))


@pytest.fixture(autouse=True)
def as_on_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded_digits: Callable[[Path], Path]
) -> None:
    encoded_digits(tmp_path.parent / "artifacts-of-nodes")
    monkeypatch.chdir(tmp_path)
    for name in ("FEDLENS_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")  # so that they are restored


def order(run: RunConfig, tmp_path: Path, content: bytes | None = None) -> on_node.RunRequest:
    return on_node.RunRequest(
        config=run,
        key="run-1-1",
        environment={},
        method_file=content,
        device="cpu",
        threads=1,
        artifacts=str(tmp_path.parent / "artifacts-of-nodes"),
        working_folder=str(tmp_path),
    )


def planned(**values: object) -> RunConfig:
    return plan(parse({"rounds": 2, "methods": [{"name": "fedot"}], "data": DIGITS, **values})).runs[0]


def rounds(items: Iterator[on_node.Sent | Exception]) -> list[RoundFinished]:
    sent = list(items)
    assert all(isinstance(item, on_node.Sent) for item in sent), sent[-1]
    assert isinstance(sent[-1].event, Finished)
    return [item.event for item in sent if isinstance(item.event, RoundFinished)]


def test_a_node_sends_every_round_with_its_checkpoint_and_resumes_from_it(tmp_path):
    sent = list(on_node.train(order(planned(), tmp_path)))
    contents = [i.checkpoint for i in sent if isinstance(i.event, RoundFinished)]
    assert len(contents) == 3 and all(content is not None and content.nbytes for content in contents)
    whole = rounds(iter(sent))
    again = rounds(on_node.train(order(planned(), tmp_path), [("round-1.safetensors", contents[1])]))
    assert [event.round for event in again] == [2]
    assert (again[0].cells, again[0].train_loss) == (whole[2].cells, whole[2].train_loss)


def test_a_checkpoint_that_arrives_is_written_where_a_local_process_writes_it(tmp_path):
    first = next(i for i in on_node.train(order(planned(), tmp_path)) if isinstance(i.event, RoundFinished))
    event = stream._arrived(first, tmp_path / "run-1")
    assert event.checkpoint == str(tmp_path / "run-1" / "round-0.safetensors")

    damaged = first.checkpoint.copy()
    damaged[-1] ^= 1
    with pytest.raises(stream.NodeFault, match="arrived damaged"):
        stream._arrived(replace(first, checkpoint=damaged), tmp_path / "run-2")
    assert list((tmp_path / "run-2").iterdir()) == []


def test_a_checkpoint_can_arrive_through_a_folder_that_both_see(tmp_path):
    with node.run_folder("run-1-1", tmp_path) as shared:
        asked = replace(order(planned(), tmp_path), shared=str(shared))
        finished = (i for i in on_node.train(asked) if isinstance(i.event, RoundFinished))
        first, second = next(finished), next(finished)
        finished.close()
        assert Path(first.checkpoint).parent == Path(second.checkpoint).parent == shared
        event = stream._arrived(first, tmp_path / "run-1")
        assert event.checkpoint == str(tmp_path / "run-1" / "round-0.safetensors")
        assert not Path(first.checkpoint).exists(), "it was moved"

        content = bytearray(Path(second.checkpoint).read_bytes())
        content[-1] ^= 1
        Path(second.checkpoint).write_bytes(content)
        with pytest.raises(stream.NodeFault, match="arrived damaged"):
            stream._arrived(second, tmp_path / "run-2")
        assert list((tmp_path / "run-2").iterdir()) == []
    assert not shared.exists()


def test_a_node_says_whether_it_sees_the_shared_folder(tmp_path):
    with node.marked(tmp_path) as marker:
        assert node.Reporter().report(marker=marker).problem is None
        other = tmp_path / "other" / Path(marker).name
        assert f"does not see the folder {other.parent}," in (
            node.Reporter().report(marker=str(other)).problem or ""
        )
    assert node.Reporter().report(marker=marker).problem is not None
    assert list(tmp_path.iterdir()) == []
    for wrong in (Path("relative"), tmp_path / "missing"):
        with (
            pytest.raises(FedLensError, match="not an absolute path|cannot be written"),
            node.marked(wrong),
        ):
            pass


def test_a_method_file_travels_by_its_content_and_needs_the_users_consent(tmp_path, monkeypatch):
    file = tmp_path / "own.py"
    file.write_text(OWN_METHOD)
    registry.load_file(file)
    run = planned(methods=[{"name": "sent-bias", "file": str(file)}])
    content = on_node.method_file(run)
    assert content == OWN_METHOD.encode()
    file.unlink()  # the node has no such file
    assert len(rounds(on_node.train(order(run, tmp_path, content)))) == 3

    monkeypatch.setattr(consent, "RECEIVED", {})
    monkeypatch.setattr(consent, "is_agreed", lambda file, sha256: False)
    file.write_text(OWN_METHOD)
    with pytest.raises(consent.NotAgreed):
        on_node.method_file(run)


def test_the_consent_to_an_encoder_travels_with_the_run(tmp_path, monkeypatch):
    file = tmp_path / "encoder.py"
    file.write_text("embed_dim = 3\ndef encode(images):\n    return images.mean((2, 3))\n")
    consent.agree(file, consent.digest(file.read_bytes()))
    backbone = {"name": "callable", "pretrained": "encoder.py"}
    means = {"name": "fedot", "config": {"init": "class_means"}}
    run = planned(rounds=1, backbone=backbone, methods=[means])
    sent = replace(order(run, tmp_path), encoders=on_node.encoders(run))
    agreed = set()  # on the node
    monkeypatch.setattr(consent, "_THIS_PROCESS", agreed)
    monkeypatch.setattr(consent, "is_agreed", lambda file, sha256: (str(file), sha256) in agreed)
    assert "not agreed to run" in str([*on_node.train(order(run, tmp_path))][-1])
    assert len(rounds(on_node.train(sent))) == 2


def test_a_process_may_train_another_method_of_the_same_name_after_the_first(tmp_path):
    trained = []
    for stem in ("first", "second"):
        file = tmp_path / f"{stem}.py"
        content = OWN_METHOD.replace("sent-bias", "of-one-name").encode()
        run = planned(rounds=1)
        entry = run.method.model_copy(update={"name": "of-one-name", "file": str(file), "config": {}})
        trained.append(
            rounds(on_node.train(order(run.model_copy(update={"method": entry}), tmp_path, content)))
        )
    assert [len(events) for events in trained] == [2, 2]
    on_node.prepare(order(planned(), tmp_path))
    assert "of-one-name" not in registry.registered()


def test_a_process_trains_nothing_after_fedlens_was_replaced_under_it(tmp_path, monkeypatch):
    monkeypatch.setattr(on_node, "code_on_disk", lambda: "the next release")
    (failed,) = on_node.train(order(planned(), tmp_path))
    assert isinstance(failed, Elsewhere) and "FedLens was replaced there" in str(failed)


def test_a_fault_of_the_method_is_known_as_one_here_too(tmp_path):
    """Its other seeds are then not sent; the line is that of the user's own file."""
    file, content = (
        tmp_path / "faulty.py",
        OWN_METHOD.replace('("weight", "bias"): loss', '("weight",): loss'),
    )
    run = planned(rounds=1)
    entry = run.method.model_copy(update={"name": "sent-bias", "file": str(file), "config": {}})
    *_, failed = on_node.train(order(run.model_copy(update={"method": entry}), tmp_path, content.encode()))
    with pytest.raises(FedLensMethodError, match=r"faulty\.py:\d+, in train_step: no loss moves 'bias'"):
        raise failed


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_folder_of_a_killed_run_is_removed_by_the_next_start(tmp_path, monkeypatch, is_shared):
    """Only of this machine: on a network file system, a lock of another machine may look free."""
    if not is_shared:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parent = tmp_path if is_shared else None
    killed, elsewhere, unknown = (tmp_path / f"fedlens-run-{i}-1-abc" for i in range(3))
    for folder in (killed, elsewhere, unknown):
        folder.mkdir()
        (folder / "round-1.safetensors").touch()
    (killed / ".owner").write_text(platform.node())
    (elsewhere / ".owner").write_text("another machine")
    with node.run_folder("run-3-1", parent) as living, node.run_folder("run-4-1", parent) as other:
        assert set(tmp_path.iterdir()) == {elsewhere, unknown, living, other}
    assert set(tmp_path.iterdir()) == {elsewhere, unknown}


KILLED_WORKER = """
import os, signal, sys
from pathlib import Path
from fedlens_ray import node
shared = Path(sys.argv[1])
with node.marked(shared), node.run_folder("run-1-1", shared) as folder:
    (folder / "round-1.safetensors").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_next_worker_removes_what_a_killed_one_left_in_the_shared_folder(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED_WORKER, str(tmp_path)], cwd=PROJECT, check=False)
    assert {path.name[: len("fedlens-run-1")] for path in tmp_path.iterdir()} == {
        "fedlens-run-1",
        "fedlens-run-m",
    }
    with node.marked(tmp_path) as first, node.marked(tmp_path) as second:
        assert {str(path) for path in tmp_path.iterdir()} == {first, second}
    assert list(tmp_path.iterdir()) == []


PEAK = """
from fedcore.base import devices
spare = bytearray(b"x") * 400_000_000
del spare
before = devices.peak_memory("cpu")
devices.reset_peak_memory("cpu")
print(before, devices.peak_memory("cpu"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a process' peak")
def test_a_run_does_not_inherit_the_peak_memory_of_the_one_before_it():
    done = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, cwd=PROJECT
    )
    before, after = map(int, done.stdout.split())
    assert before > 400_000_000 and after < 200_000_000


def test_a_node_without_the_folder_of_the_data_says_so(tmp_path):
    run = planned()
    run = run.model_copy(update={"data": run.data.model_copy(update={"root": "/nowhere"})})
    (failed,) = on_node.train(order(run, tmp_path))
    assert isinstance(failed, Elsewhere), "another node may have it"
    assert str(failed) == (
        f"on the node {platform.node()}: the folder /nowhere cannot be read; copy or mount that there, "
        "then resume"
    )
    report = node.Reporter().report(("/nowhere", "."))
    assert report.readable == (".",)


def test_a_node_says_which_folders_and_weights_it_has(tmp_path, monkeypatch):
    (tmp_path / "own.pt").touch()
    monkeypatch.setattr(node.tags, "cached", lambda name, tag: tmp_path if tag == "openai" else None)
    has = ("weights:ViT-B-32 openai", "weights:ViT-B-32 own.pt")
    lacks = ("weights:ViT-B-32 laion2b", "weights:ViT-B-32 other.pt", "data")
    report = node.Reporter().report((*has, *lacks), str(tmp_path))
    assert report.readable == has


def test_a_node_that_cannot_train_says_why(monkeypatch):
    assert node.Reporter().report().problem is None
    assert "Ray gives 2 GPUs there, and its driver shows 0" in (node.Reporter().report(gpus=2).problem or "")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        assert node.Reporter().report(trial=True).problem == "its device cpu cannot compute (exit status 1)"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**10, free=10**6))
    assert "is almost full (1 MB left); free some space" in (node.Reporter().report().problem or "")


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        (tempfile, OSError(errno.ENOSPC, "no space"), "the disk that holds {} is full"),
        (tempfile, OSError(errno.EROFS, "Read-only file system"), "cannot be used (Read-only file system)"),
        (
            on_node.devices,
            RuntimeError("CUDA driver initialization failed"),
            "or its driver does not answer at",
        ),
    ],
)
def test_a_fault_of_the_node_before_its_run_begins_is_told_in_our_words(
    tmp_path, monkeypatch, place, error, said
):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(place, "mkdtemp" if place is tempfile else "reset_peak_memory", fail)
    (failed,) = on_node.train(order(planned(), tmp_path))
    assert isinstance(failed, Elsewhere) and "resume" not in failed.reason
    assert said.format(tempfile.gettempdir()) in str(failed)


class Lost:
    """A stand-in for Ray that loses a run's process: at once, or once it has begun."""

    class exceptions:
        RayError = OSError

    def __init__(self, state: str) -> None:
        self.util = SimpleNamespace(placement_group_table=lambda group: {"state": state})

    def wait(self, *_: object, **__: object) -> tuple[list[int], list[int]]:
        return [1], []

    def get(self, item: on_node.Sent) -> on_node.Sent:
        return item


def test_a_run_that_never_began_is_tried_elsewhere_and_one_that_died_is_not(tmp_path, monkeypatch):
    started = on_node.Sent(Started(entities=(), rounds_total=1, environment={"code": code()}), None, 0)
    for before, state, expected in (
        ((), "CREATED", Elsewhere),
        ((started,), "CREATED", stream.NodeFault),
        ((started,), "REMOVED", stream.Withdrawn),  # Ray kills the processes of a reservation that is removed
    ):

        def items(*_: object, before: tuple[on_node.Sent, ...] = before) -> Iterator[on_node.Sent]:
            yield from before
            raise OSError("its process was killed")

        told: list[Elsewhere] = []
        engine = stream.RemoteEngine(Lost(state), RESERVED, SMALL.node, "run-1-1", failed=told.append)
        monkeypatch.setattr(engine, "_submit", items)
        with pytest.raises(expected) as raised:
            list(engine(planned(), artifacts=tmp_path, folder=tmp_path))
        assert type(raised.value) is expected
        assert told == ([raised.value] if expected is Elsewhere else [])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FedLensError("a wrong value", "rounds"), FedLensError),
        (ConnectionResetError(104, "gone"), Transient),
        (ZeroDivisionError("no"), on_node.NodeError),
    ],
)
def test_an_error_on_a_node_is_the_error_of_a_local_process(tmp_path, error, expected):
    try:
        raise error
    except type(error) as caught:
        raised = pickle.loads(pickle.dumps(on_node.told(caught, tmp_path)))  # as Ray does
    assert type(raised) is expected
    assert "Traceback" in raised.__notes__[0]
    if expected is FedLensError:
        assert raised.field == "rounds"


def test_other_code_trains_only_with_the_users_word_and_marks_the_run(tmp_path, monkeypatch):
    started = Started(entities=(), rounds_total=1, environment={"code": "0123"})
    engine = stream.RemoteEngine(None, RESERVED, SMALL.node, "run-1-1")
    monkeypatch.setattr(
        engine, "_stream", lambda *_: (on_node.Sent(e, None, 0) for e in (started, Finished(1)))
    )
    with pytest.raises(SystemFault, match=r"^the node small has other code of FedLens \(0123 instead of"):
        list(engine(planned(), artifacts=tmp_path, folder=tmp_path))
    monkeypatch.setenv(MIXED_CODE, "1")
    begun, notice, _ = engine(planned(), artifacts=tmp_path, folder=tmp_path)
    assert begun.environment["code"] == "0123" and not notice.repeats_exactly
    assert notice.message.endswith(f"(0123 instead of {code()}), so its numbers can differ")


def test_versions_that_differ_are_named():
    ours = {"fedlens": "1", "torch": "2.8.0", "numpy": "2.0"}
    assert node.differences(ours, {**ours, "torch": "2.9.0"}) == ["torch 2.9.0 instead of 2.8.0"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("NodeDiedError", "the node far is gone"),
        ("WorkerCrashedError", "the run's process on the node far was killed"),
        ("ObjectReconstructionFailedError", "the connection to the node far was lost, and with it what"),
        ("OwnerDiedError", "the connection to the node far was lost, and with it what"),
    ],
)
def test_an_error_of_ray_is_told_in_our_words(kind: str, words: str) -> None:
    from ray import exceptions  # not above: other tests would be collected with Ray in the process

    error = getattr(exceptions, kind)
    is_gone, said = stream._lost(error.__new__(error), "far")
    assert is_gone is (kind != "WorkerCrashedError")
    assert said.startswith(words) and said.endswith("; resume continues after the last round")
    assert "Error" not in said
