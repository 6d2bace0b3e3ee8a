"""Plans that take longer than a page waits."""

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.config import DataConfig
from fedcore.data.images import ImageSet
from fedcore.engine import environment
from fedcore.engine import plan as planner
from fedcore.engine.prepare import read_images
from fedcore.papers.experiments import preset
from fedcore.store import Store
from pages.forms import plan
from tests.support import fill
from tests.support.web.pages import Opened, button, own_folder, plan_line, widget


class Disk:
    """``read_images`` that waits until it is let go, and counts."""

    def __init__(self) -> None:
        self.go, self.reads = threading.Event(), 0

    def __call__(self, data: DataConfig, side: int) -> tuple[ImageSet, list[str]]:
        self.reads += 1
        if data.name == "folder":
            assert self.go.wait(60)
        return read_images(data, side)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    slow = Disk()
    monkeypatch.setattr(planner, "read_images", slow)
    yield slow
    slow.go.set()


def said(app: AppTest) -> list[str]:
    return [i.value for i in app.info if i.value.startswith("Reading the data")]


def test_the_page_does_not_wait_for_a_large_folder(
    open_page: Opened, folder: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page("new", preset="demo")
    monkeypatch.setattr(plan, "WAIT_SECONDS", 0.05)
    app = own_folder(app, folder)
    assert said(app) and not app.error
    assert button(app, "Launch").disabled
    disk.go.set()
    monkeypatch.setattr(plan, "WAIT_SECONDS", 60)
    app = app.run()
    assert not said(app)
    assert "6 methods x 1 seed = 6 runs" in plan_line(app)


def test_what_goes_wrong_unforeseen_in_a_slow_plan_is_shown(
    open_page: Opened, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not planned again and again: the reader would wait for ever, and the disk be read for ever."""
    reads: list[int] = []
    go = threading.Event()

    def broken(data: DataConfig, side: int) -> tuple[ImageSet, list[str]]:
        if data.root != str(folder):  # the page may have asked for a folder before it had a name
            return read_images(data, side)
        reads.append(side)
        assert go.wait(60)
        raise PermissionError("a disk of its own mind")

    monkeypatch.setattr(planner, "read_images", broken)
    app = open_page("new", preset="demo")
    monkeypatch.setattr(plan, "WAIT_SECONDS", 0.05)
    app = own_folder(app, folder)
    assert said(app)
    asked = app.session_state[plan._REQUEST]
    go.set()
    wait([asked], 60)
    app = app.run()
    assert app.exception and not said(app)
    assert len(reads) == 1


def test_the_last_picture_stays_while_the_next_plan_is_made(
    open_page: Opened, folder: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Data whose reading took long is kept for the next plan, which would then be made at once.
    monkeypatch.setattr(planner, "SLOW_SECONDS", float("inf"))
    disk.go.set()
    app = own_folder(open_page("new", preset="demo"), folder)
    shown = [c.value for c in app.caption if c.value.startswith("3 clients")]
    disk.go.clear()
    monkeypatch.setattr(plan, "WAIT_SECONDS", 0.05)
    app = widget(app, "Rounds", "text_input").set_value("4").run()
    assert said(app)
    assert shown == [c.value for c in app.caption if c.value.startswith("3 clients")] != []
    assert not [m for m in app.markdown if "= 6 runs" in m.value]


def test_a_large_folder_is_read_once_for_all_plans_and_anew_after_an_error(
    open_page: Opened, folder: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.go.set()
    monkeypatch.setattr(planner, "SLOW_SECONDS", 0.0)
    app = own_folder(open_page("new", preset="demo"), folder)
    before = disk.reads
    for rounds in (3, 4):
        app = widget(app, "Rounds", "text_input").set_value(str(rounds)).run()
    assert f"{rounds} rounds" in plan_line(app)
    assert disk.reads == before
    monkeypatch.setattr(planner, "ERROR_SECONDS", 0.0)
    app = widget(app, "Minimum samples", "text_input").set_value("10000").run()
    assert app.error
    before = disk.reads
    app.run()
    assert disk.reads > before, "the error may be about what was read, and mended since"


def test_what_is_mended_on_the_disk_is_soon_seen(
    open_page: Opened, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = folder.with_name("away")
    shutil.move(folder, away)
    app = own_folder(open_page("new", preset="demo"), folder)
    assert "No folder" in app.error[0].value
    shutil.move(away, folder)
    assert app.run().error, "not looked at again at once"
    monkeypatch.setattr(planner, "ERROR_SECONDS", 0.0)
    assert not app.run().error


def test_runs_that_exist_are_taken_over_and_not_trained_again(open_page: Opened, db: Path) -> None:
    demo = preset("demo")
    _, writers = fill.start(db, demo)
    for writer in writers[:4]:
        fill.train(writer, environment={"code": environment.code()})
    writers[4].claim.finish("failed", "no reason")
    app = open_page("new", clone="1")
    box = next(c for c in app.checkbox if c.label.startswith("Take over"))
    assert (box.label, box.value) == ("Take over 4 runs that exist already", True)
    button(app, "Launch").click().run()
    states = [r.state for r in Store(db).experiments.get(2).runs]
    assert states == ["done"] * 4 + ["queued"] * 2
    app = open_page("new", clone="1")
    app = next(c for c in app.checkbox if c.label.startswith("Take over")).uncheck().run()
    button(app, "Launch").click().run()
    assert {r.state for r in Store(db).experiments.get(3).runs} == {"queued"}
