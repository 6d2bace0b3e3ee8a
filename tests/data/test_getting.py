"""Getting data sets from a Hub of our own with the Hub's real library, and reading what it has brought."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from fedcore.base import hub as base_hub
from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress, result_of
from fedcore.cli import main as cli
from fedcore.config import DataConfig
from fedcore.config.experiment import expand
from fedcore.data import catalog, copies, getting
from fedcore.engine.prepare import read_images
from fedcore.jobs.handlers import Job, load_handler
from fedcore.papers.cells import find_available
from fedcore.papers.experiments import preset
from fedcore.store import Store
from tests.support.data import hub
from tests.support.data.loading import loaded

PACS = "flwrlabs/pacs"
MINE = f"hf:{PACS}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hub.write_pacs(tmp_path_factory.mktemp("pacs"))


@pytest.fixture
def server(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub.HubServer]:
    with hub.serving() as server:
        hub.use_here(server, tmp_path / "home", monkeypatch)
        server.push(PACS, files, commit=catalog.entry("pacs").hub.revision)
        yield server


@pytest.fixture
def small_pacs(monkeypatch: pytest.MonkeyPatch) -> None:
    """PACS as this Hub has it: 100 photographs of each domain."""
    entry = catalog.entry("pacs")
    counts = dict.fromkeys(entry.domains, 100)
    monkeypatch.setitem(catalog._ENTRIES, "pacs", replace(entry, counts=counts))


def got(name: str, steps: list[Progress] | None = None, **options) -> copies.Copy:
    report = (lambda step: None) if steps is None else steps.append
    return result_of(getting.get(getting.ask(name), **options), report)


def test_what_is_offered_is_known_before_the_first_byte(server: hub.HubServer):
    offer = getting.ask("pacs")
    assert offer.size == sum(
        file.stat().st_size for file in hub._files(server.repos[PACS][offer.upstream.revision])
    )
    assert offer.address == "huggingface.co/datasets/flwrlabs/pacs"
    assert offer.licence == f"{catalog.entry('pacs').licence}; its card says unknown"
    assert offer.upstream.revision == catalog.entry("pacs").hub.revision and not offer.remark
    assert server.sent == 0


def test_a_run_reads_what_was_got_without_a_folder(server: hub.HubServer, small_pacs: None, tmp_path: Path):
    assert getting.item("pacs").state == "get"
    steps: list[Progress] = []
    copy = got("pacs", steps)
    assert copy.images == 400 and copy.revision == catalog.entry("pacs").hub.revision
    assert (copy.domains, copy.classes) == (catalog.entry("pacs").domains, catalog.entry("pacs").classes)
    loading = [step for step in steps if step.in_bytes]
    assert loading and {step.total for step in loading} == {copy.size} and loading[-1].done <= copy.size
    assert getting.item("pacs").state == "here"

    images, warnings = read_images(DataConfig(name="pacs", domains=("photo", "sketch")), 48)
    assert warnings == [] and images.domains == ("photo", "sketch") and len(images) == 200
    assert images.keys[0] == "photo/dog/pic_0000.jpg", "as in the folders of the authors"
    assert images.split is None, "its only part is no official split"
    assert np.bincount(images.labels).min() > 0
    assert images.read(0).size == (48, 48)
    shutil.rmtree(tmp_path / "home" / "datasets")  # what datasets keeps can be written again
    assert read_images(DataConfig(name="pacs"), 48)[0].fingerprint == loaded("pacs").fingerprint


def test_the_same_images_have_the_same_keys_as_in_folders(server: hub.HubServer, small_pacs, tmp_path: Path):
    got("pacs")
    from_hub = loaded("pacs")
    for row, key in enumerate(from_hub.keys):
        file = tmp_path / "folders" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        from_hub.read(row).save(file)
    from_folders = loaded("pacs", str(tmp_path / "folders"))
    assert sorted(from_folders.keys) == sorted(from_hub.keys)
    assert from_folders.classes == from_hub.classes and from_folders.domains == from_hub.domains


def test_other_counts_than_the_catalogs_are_not_registered(server: hub.HubServer):
    with pytest.raises(
        FedLensError, match=r"9,991 images expected, 400 found .*\"hf:flwrlabs/pacs\""
    ) as caught:
        got("pacs")
    assert caught.value.field == "data.root" and copies.registered("pacs") is None
    assert got(MINE).images == 400, "under its own name it can be used, from the same files"
    assert getting.item("pacs").state == "get" and getting.shelf()[0].entry.name == MINE


def test_a_broken_connection_is_one_sentence_and_the_next_try_goes_on(server: hub.HubServer, small_pacs):
    whole = getting.ask("pacs").size
    server.cut_after = 60_000
    copy = got("pacs")  # the library itself goes on where the connection ended
    assert copy.images == 400 and whole <= server.sent <= whole + 60_000
    before = server.sent
    assert "nothing is downloaded" in getting.ask("pacs").remark
    got("pacs")
    assert server.sent == before


def test_without_a_network_what_is_here_is_used(server: hub.HubServer, small_pacs, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FedLensError, match="HF_HUB_OFFLINE is set; unset it"):
        getting.ask("pacs")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    result_of(base_hub.download(getting.ask("pacs").upstream, "PACS"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert got("pacs").images == 400


def test_a_cache_of_another_machine_is_used(tmp_path: Path, files: Path, server: hub.HubServer, monkeypatch):
    hub.in_cache(files, "me/photos", tmp_path / "home")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    copy = got("hf:me/photos")
    assert copy.revision == hub.commit_of(files) and copy.images == 400
    assert loaded("hf:me/photos").domains == catalog.entry("pacs").domains


FAULTS = {
    "no such repository": ("hf:no/where", r"no/where does not exist, or only for others; check the name"),
    "not a name": ("hf:nowhere", r"'hf:nowhere' names no data set of the Hub; write it as hf:owner/name"),
    "no download": ("vlcs", r"VLCS has no automatic download\. DomainBed's"),
    "embedded": ("shapes", r"Shapes comes with FedLens; there is nothing to download"),
}


@pytest.mark.parametrize(("name", "text"), FAULTS.values(), ids=FAULTS.keys())
def test_what_cannot_be_got_says_why(server: hub.HubServer, name: str, text: str):
    with pytest.raises(FedLensError, match=text):
        getting.ask(name)


def test_terms_that_have_to_be_accepted(server: hub.HubServer):
    server.gated.add(PACS)
    offer = getting.ask("pacs")
    assert "must have been accepted on huggingface.co/datasets/flwrlabs/pacs" in offer.remark
    with pytest.raises(FedLensError, match=r"asks for its terms to be accepted first: .*`hf auth login`"):
        result_of(getting.get(offer))
    assert not list(copies.every())


def test_a_repository_that_has_changed_keeps_its_revision(server: hub.HubServer, files: Path, tmp_path: Path):
    first = server.push("me/photos", files)
    assert got("hf:me/photos").revision == first
    second = server.push("me/photos", hub.write_pacs(tmp_path / "new", {"photo": 20, "sketch": 20}))
    offer = getting.ask("hf:me/photos")
    assert offer.upstream.revision == first and f"this is its revision {first[:7]}, as before" in offer.remark
    newest = getting.ask("hf:me/photos", "main")
    assert newest.upstream.revision == second and result_of(getting.get(newest)).images == 40
    assert getting.ask("hf:me/photos").upstream.revision == second
    server.repos["me/photos"].pop(first)
    shutil.rmtree(tmp_path / "home" / "hub")
    with pytest.raises(FedLensError, match=f"no longer has the revision {first}; `--revision main`"):
        getting.ask("hf:me/photos", first)


def test_a_disk_without_room_is_found_before_the_download(server: hub.HubServer, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(FedLensError, match=r"flwrlabs/pacs has 0\.0 GB, and the disk of .* set HF_HOME"):
        got("pacs")
    assert server.sent == 0


def test_a_disk_that_becomes_full_registers_nothing(server: hub.HubServer, monkeypatch):
    from fedcore.data.readers import hf

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf, "_builder", lambda folder: type("B", (), {"download_and_prepare": full})())
    with pytest.raises(FedLensError, match="if the disk is full, free space and try again"):
        got(MINE)
    assert not list(copies.every())


def test_columns_are_found_by_type_or_named(server: hub.HubServer, tmp_path: Path):
    rows = [(hub.photograph(i), {"kind": i % 2, "colour": i % 3, "hospital": f"h{i % 4}"}) for i in range(24)]
    kinds = {"kind": ("cat", "dog"), "colour": ("red", "green", "blue")}
    server.push("me/pets", hub.write_table(tmp_path / "pets", {"train": rows[:16], "test": rows[16:]}, kinds))
    with pytest.raises(FedLensError, match=r"2 columns of type ClassLabel .*columns = \{ label = "):
        got("hf:me/pets")
    assert copies.registered("hf:me/pets") is None
    copy = got("hf:me/pets", columns={"label": "kind", "client": "hospital"})
    assert copy.classes == ("cat", "dog") and copy.columns == {"label": "kind", "client": "hospital"}
    images, _ = read_images(DataConfig(name="hf:me/pets"), 48)  # the columns are remembered
    assert set(images.owner) == {"h0", "h1", "h2", "h3"}
    assert np.bincount(images.split).tolist() == [16, 0, 8]
    other, _ = read_images(DataConfig(name="hf:me/pets", columns={"label": "colour"}), 48)
    assert other.classes == ("red", "green", "blue") and other.fingerprint != images.fingerprint


def test_class_folders_of_the_hub(server: hub.HubServer, tmp_path: Path):
    folder = tmp_path / "flat"
    for i in range(12):
        file = folder / "train" / ("cat" if i % 2 else "dog") / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(hub.photograph(i))
    server.push("me/flat", folder)
    assert got("hf:me/flat").classes == ("cat", "dog")
    assert loaded("hf:me/flat").read(3).size == (48, 48)


def test_femnist_as_flower_has_it(server: hub.HubServer, tmp_path: Path):
    names = [f"c{i}" for i in range(62)]
    rows = [
        (hub.photograph(i), {"writer_id": f"f{i % 5:04d}_01", "hsf_id": 1, "character": i % 62})
        for i in range(124)
    ]
    server.push("flwrlabs/femnist", hub.write_table(tmp_path / "f", {"train": rows}, {"character": names}))
    assert got("femnist").images == 124
    digits = got("femnist-digits")
    assert digits.images == 20 and digits.classes == tuple("0123456789")
    images = loaded("femnist", domains=["0", "f0003_01"])
    assert images.domains == ("0", "f0003_01") and len(images) == 50


def test_an_authors_archive_on_the_hub(server: hub.HubServer, tmp_path: Path, monkeypatch):
    from tests.support.data.layouts import WRITE

    entry = catalog.entry("imagenet-r")
    written = WRITE["imagenet-r"](tmp_path / "written" / "imagenet-r")
    repo = tmp_path / "repo"
    repo.mkdir()
    shutil.make_archive(str(repo / "imagenet-r"), "tar", written.parent)
    (repo / "other.bin").write_bytes(bytes(50_000))
    server.push(entry.hub.repo, repo, commit=entry.hub.revision)
    alone = loaded("imagenet-r", str(written))
    monkeypatch.setitem(
        catalog._ENTRIES, "imagenet-r", replace(entry, counts={"all": len(alone)}, class_count=None)
    )
    assert got("imagenet-r").images == len(alone)
    assert loaded("imagenet-r").keys == alone.keys
    assert not [path for path in server.asked if path.endswith("other.bin")]


def test_the_command_shows_what_it_will_download_and_asks(server: hub.HubServer, small_pacs, capsys):
    assert cli.main(["data", "get", "pacs"]) != 0
    error = capsys.readouterr().err
    assert "PACS from huggingface.co/datasets/flwrlabs/pacs\nlicence: no licence stated" in error
    assert re.search(r"size: \d+ kB\nerror: yes: nothing was downloaded; confirm it, or", error)
    assert cli.main(["data", "get", "pacs", "--root", "/data", "--yes"]) != 0
    assert "error: root: it goes into the Hub's cache; set HF_HOME to move it" in capsys.readouterr().err
    assert server.sent == 0
    assert cli.main(["data", "get", "pacs", "--yes"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("400 images of PACS (revision 9c6f80e of flwrlabs/pacs); in an experiment: name = ")
    assert cli.main(["data", "list"]) == 0
    listed = capsys.readouterr().out
    assert "\npacs,PACS,on this machine\n" in listed and "office-home" in listed
    assert cli.main(["data", "check", "pacs"]) == 0
    assert capsys.readouterr().out.startswith("400 images, 7 classes")


def test_a_damaged_registration_is_none(server: hub.HubServer, small_pacs, caplog):
    got("pacs")
    file = copies._file("pacs")
    file.write_text(file.read_text().replace("400", "401").replace("photo", "phone"))
    assert copies.registered("pacs") is None and not list(copies.every())
    with pytest.raises(
        FedLensError, match="PACS is not on this machine. `fedlens data get pacs` downloads it"
    ):
        loaded("pacs")


def test_a_task_gets_what_a_table_of_a_paper_lacks(server: hub.HubServer, small_pacs, tmp_path: Path):
    store = Store(tmp_path / "runs.db")
    assert store.prepare() == ""
    config = expand(preset("fedot/table1-pacs"))[0]
    assert [lack.kind for lack in find_available(store).lacks(config)][:1] == ["data"]
    args = {"name": "pacs"}
    task = store.tasks.get(store.tasks.submit("download", "pacs", args))
    job = Job(store.tasks.claim(task.id), args, tmp_path / "job")
    result = result_of(load_handler("download")(job))
    assert result["revision"] == catalog.entry("pacs").hub.revision and json.dumps(result)
    assert "data" not in [lack.kind for lack in find_available(store).lacks(config)]
