"""Slow work: put off where a page asks, else done once and with progress; and the words for its speed."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedcore.base import progress
from fedcore.base.progress import (
    NotPrepared,
    Pace,
    Progress,
    about,
    counted,
    defer_slow_work,
    duration,
    prepare_then,
    result_of,
)
from fedcore.config import Experiment, expand, parse
from fedcore.data import catalog, image_files, integrity
from fedcore.data.check import check_dataset
from fedcore.data.readers import archives, ddr
from fedcore.engine.plan import plan
from fedcore.engine.train import set_up
from fedcore.store import Store
from tests.support.data.archives import pack
from tests.support.data.layouts import WRITE
from tests.support.data.loading import loaded
from tests.support.work import collect


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLENS_CACHE", str(tmp_path / "cache"))


def packed(folder: Path) -> Path:
    return pack(WRITE["pacs"](folder / "w"), folder / "my own" / "pacs.zip")


SLOW = {
    "pacs": (packed, "has to be unpacked into", "unpacking pacs.zip", 56),
    "ddr": (lambda f: WRITE["ddr"](f / "set"), "photographs in", "measuring photographs", 20),
}
"""Name -> writer, what is said, a step, images (at least)."""


def experiment(root: str) -> Experiment:
    return parse({"data": {"name": "pacs", "root": root}, "methods": [{"name": "zero-shot"}], "seeds": [1]})


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_what_work_has_open_is_closed_when_its_reader_ends():
    closed = []

    def work():
        try:
            yield Progress("writing", 0, 1)
        finally:
            closed.append("file")

    def leave(step: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as left:
        result_of(work(), leave)
    assert closed == ["file"] and left.tb, "although the frames are still held"


@pytest.mark.parametrize("name", SLOW)
def test_nothing_slow_is_begun_where_it_is_put_off(name: str, tmp_path: Path):
    write, said, _, _ = SLOW[name]
    root = write(tmp_path)
    before = tree(tmp_path)
    with defer_slow_work(), pytest.raises(NotPrepared) as caught:
        loaded(name, str(root))
    line = str(caught.value)
    assert said in line and caught.value.field == "data.root" and tree(tmp_path) == before
    written = f"'{root}'" if " " in str(root) else str(root)
    assert f"`fedlens data check {name} --root {written}`" in line


@pytest.mark.parametrize("name", SLOW)
def test_it_is_done_once_with_progress_and_is_no_trouble_afterwards(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write, _, step, images = SLOW[name]
    root = str(write(tmp_path))
    steps, images_read = collect(prepare_then(lambda: loaded(name, root)))
    assert step in {s.message.removesuffix(" into").split(" into ")[0] for s in steps}
    assert len(images_read) >= images
    for module, does in ((archives, "unpack"), (ddr, "measure")):
        monkeypatch.setattr(module, does, lambda *_: pytest.fail("done again"))
    with defer_slow_work():
        again = loaded(name, root)
        assert catalog.class_names(name, root) == again.classes
    assert again.keys == images_read.keys and again.fingerprint == images_read.fingerprint
    assert list(prepare_then(lambda: loaded(name, root))) == []


def test_an_unreadable_photograph_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = WRITE["ddr"](tmp_path / "set")
    bad = next((root / "DR_grading" / "test").glob("*.jpg"))
    bad.write_bytes(b"no picture")
    first = loaded("ddr", str(root))
    monkeypatch.setattr(ddr, "measure", lambda _: pytest.fail("measured again"))
    with defer_slow_work():
        assert loaded("ddr", str(root)).keys == first.keys


def test_measuring_that_is_stopped_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = WRITE["ddr"](tmp_path / "set")
    monkeypatch.setattr(ddr, "_EVERY", 1)
    steps = prepare_then(lambda: loaded("ddr", str(root)))
    for _ in range(6):
        next(steps)
    steps.close()
    with defer_slow_work(), pytest.raises(NotPrepared) as caught:
        loaded("ddr", str(root))
    whole = len(loaded("ddr", str(root)))
    assert str(caught.value).startswith(f"{whole - 5} photographs")


def test_a_check_and_a_run_say_how_far_they_are(tmp_path: Path):
    (tmp_path / "a").mkdir()
    steps, report = collect(check_dataset("pacs", str(packed(tmp_path / "a"))))
    assert report.images == 56
    assert [s.done for s in steps if s.message == "unpacking pacs.zip"][-1] > 0
    root = str(packed(tmp_path / "b"))
    wanted = experiment(root)
    with defer_slow_work(), pytest.raises(NotPrepared):
        plan(wanted)
    run = expand(wanted)[0]
    for event in set_up(run, tmp_path, "cpu"):
        assert isinstance(event, Progress) and event.message.startswith("unpacking")
        if event.done and event.done == event.total:
            break


def test_the_form_does_not_unpack_and_looks_again_later(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    from fedcore.engine import plan as planner
    from pages.forms import plan

    monkeypatch.setattr(plan, "WAIT_SECONDS", 60)
    monkeypatch.setattr(planner, "ERROR_SECONDS", 0.0)  # "later" is at once
    db = tmp_path_factory.mktemp("database") / "runs.db"
    monkeypatch.setenv("FEDLENS_DB", str(db))
    Store(db).prepare()
    root = str(packed(tmp_path))
    values = {**experiment(root).model_dump(), "seeds": "1"}
    before = tree(tmp_path)
    _, planned, error = plan.plan_form(values)
    assert planned is None and "check the data set first" in str(error) and tree(tmp_path) == before
    assert plan.preview_partition(values, error) is None
    collect(check_dataset("pacs", root))
    assert len(plan.plan_form(values)[1].clients) == 4


def test_what_is_made_of_a_folder_that_cannot_be_written_is_kept_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = SLOW["ddr"][0](tmp_path)
    before, real = tree(root), os.access
    monkeypatch.setattr(
        os, "access", lambda place, mode: root not in (place, *Path(place).parents) and real(place, mode)
    )
    with defer_slow_work(), pytest.raises(NotPrepared):
        loaded("ddr", str(root))
    steps, images = collect(prepare_then(lambda: loaded("ddr", str(root))))
    assert steps
    monkeypatch.setattr(ddr, "measure", lambda *_: pytest.fail("done again"))
    with defer_slow_work():
        assert loaded("ddr", str(root)).fingerprint == images.fingerprint
    assert tree(root) == before


def test_many_images_that_nobody_has_looked_at_are_put_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(image_files, "MAX_UNDEFERRED", 50)
    root = str(WRITE["pacs"](tmp_path / "my own"))
    with defer_slow_work(), pytest.raises(NotPrepared) as caught:
        loaded("folder", root)
    assert "56 images in" in str(caught.value) and f"data check '{root}'`" in str(caught.value)
    steps, images = collect(prepare_then(lambda: loaded("folder", root)))
    assert [s.message for s in steps] == ["checking images"]
    monkeypatch.setattr(image_files, "unusable_reasons", lambda _: pytest.fail("looked at again"))
    with defer_slow_work():
        assert len(loaded("folder", root)) == len(images) == 56


def test_a_result_that_is_not_as_it_was_written_is_made_again(tmp_path):
    path, content = tmp_path / "result.json", {"a": [1, 0.25], "b": None}
    assert integrity.read_result(path) is None
    integrity.write_result(path, content)
    assert content.items() <= integrity.read_result(path).items()
    written = path.read_bytes()
    for place, byte in enumerate(written):
        path.write_bytes(written[:place] + bytes([byte ^ 1 << place % 8]) + written[place + 1 :])
        assert integrity.read_result(path) is None
    other = tmp_path / "other.json"
    other.write_bytes(written)
    assert integrity.read_result(other) is None, "the result of other work"


# What is said of it.


def test_speed_and_time_left_count_from_the_first_look(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=iter([0.0, 2.0, 4.0]).__next__))
    pace = Pace()
    assert pace.text(640, 1000) == ""  # rows of an interrupted attempt
    assert pace.text(700, 1000) == "30 images/s, 10 s left"
    assert pace.text(656, 1000) == "4.0 images/s, 1 min 26 s left"


def test_spans_are_said_in_two_units():
    assert [duration(s) for s in (0, 59, 60, 3599, 7500)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "59 min 59 s",
        "2 h 05 min",
    ]


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "run", "1 run"), (0, "run", "0 runs"), (1200, "image", "1,200 images"), (2, "class", "2 classes")],
)
def test_a_number_has_its_noun_in_the_right_form(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "5 s"),
        (42, "40 s"),
        (58, "1 min"),
        (660, "11 min"),
        (5399, "90 min"),
        (7200, "2 h"),
        (9000, "2.5 h"),
    ],
)
def test_an_estimate_is_not_written_to_the_second(seconds: float, text: str) -> None:
    assert about(seconds) == f"about {text}"
