"""A large folder of one's own on the page New: checked and planned by itself."""

from pathlib import Path

import pytest

from fedcore.base.progress import Progress
from fedcore.data import image_files
from fedcore.store import Store
from tests.support.web.pages import Opened, begin_task, button, own_folder, plan_line, widget, work_off


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The database; sixty files count as many here."""
    monkeypatch.setattr(image_files, "MAX_UNDEFERRED", 50)
    monkeypatch.setenv("FEDLENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "runs.db"


def test_a_typed_folder_is_checked_and_planned_without_a_click(
    open_page: Opened, db: Path, folder: Path
) -> None:
    app = own_folder(open_page("new"), folder)
    assert not app.error
    assert button(app, "Launch").disabled
    (task,) = Store(db).tasks.recent("check")
    assert task.status == "queued"
    claimed = begin_task(db)
    claimed.progress(Progress("reading images", 25, 100))
    app = app.run()
    assert "reading images 25 of 100" in app.get("progress")[0].proto.text
    assert not app.error
    assert not any(b.label.startswith("Check") for b in app.button)
    claimed.finish("stopped")
    app = app.run()
    app = button(app, "Check again").click().run()
    assert work_off(db) == ["done"]
    app = app.run()
    assert not app.error and not app.exception
    assert "runs**" in plan_line(app)
    assert not button(app, "Launch").disabled


def test_what_the_check_finds_is_said_on_new(open_page: Opened, db: Path, folder: Path) -> None:
    for file in folder.rglob("*.png"):
        file.write_bytes(b"no picture")
    app = own_folder(open_page("new"), folder)
    assert work_off(db) == ["done"]
    app = app.run()
    assert not app.exception
    assert app.error
    assert button(app, "Launch").disabled


def test_a_folder_of_a_file_is_checked_on_request_and_a_dismissed_check_is_not_repeated(
    open_page: Opened, db: Path, folder: Path
) -> None:
    app = own_folder(open_page("new"), folder)
    (task,) = Store(db).tasks.recent("check")
    Store(db).tasks.stop(task.id)
    Store(db).tasks.delete(task.id)
    app = app.run()
    (said,) = [i.value for i in app.info]
    assert "60 images in" in said and "by itself" in said
    assert Store(db).tasks.recent("check") == []
    button(app, "Check it now").click().run()
    assert len(Store(db).tasks.recent("check")) == 1


def test_nothing_is_red_before_a_folder_was_typed(open_page: Opened, db: Path) -> None:
    app = open_page("new")
    app = widget(app, "Data set", "selectbox").set_value("folder").run()
    assert not app.error and button(app, "Launch").disabled
    assert "Enter the folder of the data set." in [i.value for i in app.info]
    assert "Not ready: see Folder on this machine." in [c.value for c in app.caption]
    field = widget(app, "Folder on this machine", "text_input")
    assert len(field.set_value("/nowhere").run().error) == 1
