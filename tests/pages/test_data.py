"""The Data & models page: a folder of one's own, encodings, weights."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress, result_of
from fedcore.config import DataConfig
from fedcore.data import getting
from fedcore.jobs.handlers import Job, encode_data
from fedcore.store import Store
from fedcore.store.jobs import TASKS
from pages.forms import library
from pages.forms.dataset import FolderCheck
from tests.support.jobs import execute_next
from tests.support.web.pages import Opened, begin_task, button, keep_checkpoint, own_folder, widget, work_off

NAME = "<script>x</script> :red[b]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two domains, two classes; one file is no image, names are nasty."""
    root = tmp_path / f"pictures {NAME.replace('/', '')}"
    for domain in ("photo", "sketch"):
        for label in ("cat", "dog"):
            (root / domain / label).mkdir(parents=True)
            for i in range(4):
                image = Image.new("RGB", (8, 8), (60 * i, 90 if label == "cat" else 10, len(domain)))
                image.save(root / domain / label / f"{domain}{i}.png")
    (root / "photo" / "cat" / "<i>*no*.png").write_bytes(b"")
    return root


def cards(app: AppTest) -> list[str]:
    """The HTML of the user's own cards, if there are any, and of all others."""
    found = [element.proto for element in app.get("bidi_component")]
    return [json.loads(proto.json)["html"] for proto in found if proto.component_name.endswith("grid")]


def texts(app: AppTest) -> str:
    return "\n".join(e.value for e in [*app.markdown, *app.caption, *app.error, *app.info, *app.success])


def test_an_own_folder_from_path_to_launch(
    open_page: Opened, db: Path, folder: Path, shown_as_text: Callable[[AppTest], None]
) -> None:
    app = open_page("data", folder=str(folder))
    assert Store(db).tasks.recent() == []  # a link alone reads nothing
    app = button(app, "Check").click().run()
    assert app.get("progress")[0].proto.text.endswith("waiting for its turn")
    shown_as_text(app)
    assert work_off(db) == ["done"]
    app = open_page("data", folder=str(folder))  # as after a reload
    shown_as_text(app)
    assert "**16 images**, 2 classes, 2 domains: photo, sketch; 1 left out" in texts(app)
    findings, counts = app.dataframe[0].value, app.dataframe[1].value
    assert list(findings["Files"]) == ["photo/cat/<i>*no*.png"]
    assert counts.to_dict("list") == {"domain": ["photo", "sketch"], "cat": [4, 4], "dog": [4, 4]}
    assert len(app.image) == 1
    assert f">{folder.name}".replace("<", "&lt;") not in cards(app)[1]
    mine = cards(app)[0]
    assert "16 images, 2 classes" in mine and "✓ yours" in mine and "data:image/webp" in mine
    app = button(app, "New experiment with this data").click().run()
    assert app.title[0].value == "New experiment"
    assert widget(app, "Folder on this machine", "text_input").value == str(folder)
    app = app.switch_page("pages/new.py").run()  # AppTest forgets the page that a script switched to
    assert not button(app, "Launch").disabled, [e.value for e in app.error]
    button(app, "Launch").click().run()
    (experiment,) = Store(db).experiments.all()
    assert (experiment.config.data.name, experiment.config.data.root) == ("folder", str(folder))
    assert experiment.config.backbone.name == "ViT-B-32", "the miniature model knows no photographs"
    assert not any(entry.config.get("lr") for entry in experiment.config.methods), "rates of the miniature"


def test_a_folder_that_cannot_be_used_says_why_and_offers_no_launch(
    open_page: Opened, db: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    app = button(open_page("data", folder=str(tmp_path / "empty")), "Check").click().run()
    assert work_off(db) == ["done"]
    app = app.run()
    assert "This data set cannot be used as it is" in app.error[0].value
    assert all(b.label != "New experiment with this data" for b in app.button)
    assert not button(app, "Check again").disabled


def test_a_folder_that_is_not_there_is_named_at_once(open_page: Opened, db: Path, tmp_path: Path) -> None:
    app = open_page("data", folder=str(tmp_path / "nowhere"))
    said = app.error[0].value.replace("\\", "")
    assert said == f"No folder {tmp_path / 'nowhere'}; give the folder or file of the data set"
    assert button(app, "Check").disabled and Store(db).tasks.recent() == []


def test_the_report_of_a_folder_that_has_gone_since_is_not_shown(
    open_page: Opened, db: Path, folder: Path
) -> None:
    app = button(open_page("data", folder=str(folder)), "Check").click().run()
    assert work_off(db) == ["done"]
    assert button(app.run(), "New experiment with this data")
    moved = folder.rename(folder.with_name("moved"))
    app = app.run()
    assert app.error[0].value.replace("\\", "").startswith(f"No folder {folder}; ")
    assert all(b.label != "New experiment with this data" for b in app.button)
    moved.rename(folder)
    assert button(app.run(), "New experiment with this data") and not app.error


def test_a_check_in_work_shows_how_far_it_is_and_can_be_stopped(
    open_page: Opened, db: Path, folder: Path
) -> None:
    app = button(open_page("data", folder=str(folder)), "Check").click().run()
    claimed = begin_task(db)
    claimed.progress(Progress("reading images", 0, 100))
    claimed.progress(Progress("reading images", 25, 100))
    app = app.run()
    bar = app.get("progress")[0].proto
    assert bar.value == 25
    assert "reading images 25 of 100, about" in bar.text
    assert button(app, "Check").disabled
    button(app, "Stop").click().run()
    assert Store(db).tasks.get(claimed.id).status == "stopping"
    claimed.finish("stopped")
    assert "stopped" in app.run().info[0].value


def test_each_reading_of_a_folder_is_a_check_of_its_own() -> None:
    keys = {FolderCheck(name, root, {}).key for name, root in ((None, "/a"), ("pacs", "/a"), (None, "/b"))}
    assert len(keys) == 3
    assert FolderCheck(None, "~/a", {}).key == FolderCheck(None, str(Path.home() / "a"), {}).key


@pytest.fixture
def manifest(folder: Path) -> Path:
    """Every readable picture of the folder, in columns of its own names."""
    rows = [
        f"{p.relative_to(folder)},{p.parent.name},{p.parent.parent.name}" for p in folder.rglob("*/*/*0.png")
    ]
    path = folder / "table.csv"
    path.write_text("\n".join(["path,species,place", *rows]) + "\n")
    return path


def test_a_manifest_is_checked_encoded_and_launched_with_its_own_columns(
    open_page: Opened, db: Path, manifest: Path
) -> None:
    app = button(open_page("data", folder=str(manifest)), "Check").click().run()
    assert work_off(db) == ["done"]
    assert 'name it in "Column names"' in app.run().error[0].value
    field = widget(app, "Column names", "text_input")
    field.set_value("label = species, domain = place").run()
    app = button(app, "Check").click().run()
    assert work_off(db) == ["done"]
    assert "**4 images**, 2 classes, 2 domains: photo, sketch" in texts(app.run())
    new = button(app, "New experiment with this data").click().run()
    assert not new.exception
    draft = new.session_state["form"].experiment
    assert draft.data.columns == {"label": "species", "domain": "place"}

    again = open_page("data", folder=str(manifest))  # another day: the last check's columns stand there
    assert widget(again, "Column names", "text_input").value.startswith("label = species")
    assert button(again, "Check again")


def test_only_what_has_columns_asks_for_their_names(open_page: Opened, db: Path, folder: Path) -> None:
    for query in ({}, {"folder": str(folder)}, {"folder": "x" * 5000}):
        app = open_page("data", **query)
        assert not [w for w in app.text_input if w.label == "Column names"]


@pytest.mark.slow
def test_encodings_that_look_alike_say_how_they_differ(open_page: Opened, db: Path) -> None:
    for precision in ("fp32", "bf16"):
        data = DataConfig(name="rotated-digits", domains=("rot0",))
        result_of(encode_data(Store(db), data, ("mini-vit", None, "cpu", precision), "embedding", print))
    table = open_page("data", section="Encodings").dataframe[0].value
    assert sorted(table["Difference"]) == ["precision bf16", "precision fp32"]


def test_cached_encodings_are_listed_and_deleting_asks_first(open_page: Opened, db: Path) -> None:
    encodings = db.parent / "artifacts" / "encodings"
    encodings.mkdir(parents=True)
    (encodings / "shapes-abc.npy").write_bytes(b"0" * 2_000_000)
    app = open_page("data", section="Encodings")
    assert list(app.dataframe[0].value["Size (MB)"]) == [2.0]
    assert button(app, "Delete").disabled
    app.session_state["encodings_table"] = {"selection": {"rows": [0], "columns": [], "cells": []}}
    app = app.run()
    button(app, "Delete").click().run()
    assert (encodings / "shapes-abc.npy").is_file()  # nothing goes before the dialog's own button


def test_weights_and_data_are_fetched_on_a_click_alone(open_page: Opened, db: Path) -> None:
    app = open_page("data", section="Backbones")
    each = cards(app)[0].split('<div class="card">')[1:]
    assert len(each) > 2
    for card in each:
        assert ("data-choice" not in card) == ("trained on drawings" in card), "no button without an action"
    assert Store(db).tasks.recent() == []
    button(app, "Get").click().run()
    assert [t.args for t in Store(db).tasks.recent("weights")] == [{"name": "ViT-B-32", "tag": "openai"}]
    app = open_page("data")
    app.session_state[library.OPEN] = "pacs"
    app = app.run()
    terms = "191 MB to download from huggingface.co/datasets/flwrlabs/pacs, revision 9c6f80e. No licence"
    assert any(terms in m.value.replace("\\", "").replace("\u2060", "") for m in app.markdown)
    assert Store(db).tasks.recent("download") == []
    app = button(app, "Get 191 MB").click().run()
    assert [t.args for t in Store(db).tasks.recent("download")] == [{"name": "pacs"}]
    assert "PACS" in app.get("progress")[0].proto.text
    assert "on its way" in cards(app)[0] and "Get 191 MB" not in cards(app)[0]


def test_a_download_counts_bytes(open_page: Opened, db: Path) -> None:
    Store(db).tasks.submit("download", "pacs", {"name": "pacs"})
    begin_task(db).progress(Progress("downloading PACS", 34_000_000, 191_000_000, in_bytes=True))
    assert "downloading PACS 34 MB of 191 MB" in open_page("data").get("progress")[0].proto.text


def test_the_cards_can_be_those_of_a_paper_or_a_place(open_page: Opened) -> None:
    everything = cards(open_page("data"))[0]
    assert everything.count('class="card"') == len(getting.shelf())
    of_paper = cards(open_page("data", used_by="FedDEAP"))[0]
    assert 0 < of_paper.count('class="card"') < 10 and "PACS" in of_paper and "CIFAR-10" not in of_paper
    here = cards(open_page("data", at="On this machine"))[0]
    assert here.count('class="card"') == here.count("✓ included") == here.count("data:image/webp") == 5
    assert any(
        "No data set is both" in c.value
        for c in open_page("data", used_by="FedDEAP", at="On this machine").caption
    )


def test_a_name_of_the_hub_can_be_got_where_a_folder_stands(open_page: Opened, db: Path) -> None:
    button(open_page("data", folder="hf:owner/cats"), "Get").click().run()
    assert [t.args for t in Store(db).tasks.recent("download")] == [{"name": "hf:owner/cats"}]
    assert "names no data set of the Hub" in open_page("data", folder="hf:cats").error[0].value


def test_a_task_that_failed_keeps_its_reason(open_page: Opened, db: Path) -> None:
    def fails(job: Job) -> object:
        raise FedLensError("no network <b>; try later")
        yield

    Store(db).tasks.submit("weights", "RN50 openai", {"name": "RN50", "tag": "openai"})
    execute_next(db, TASKS, handler=fails)
    app = open_page("data", section="Backbones")
    assert app.error[0].value == "Weights openai of RN50\\: no network \\<b\\>; try later"
    app = button(app, "Dismiss").click().run()
    assert not app.error
    assert Store(db).tasks.recent() == []


def test_checkpoints_of_finished_runs_are_listed_and_deleted_after_a_question(
    open_page: Opened, filled: Path
) -> None:
    store = Store(filled)
    run = next(r for r in store.experiments.get(1).runs if r.state == "done")
    for round_ in (1, run.rounds_done):
        keep_checkpoint(filled, run.id, round_)
    app = open_page("data", section="Checkpoints")
    assert app.dataframe[0].value["Rounds"].tolist() == [f"1, {run.rounds_done}"]
    assert button(app, "Delete").disabled, "nothing is chosen to go"
    app.segmented_control(key="checkpoints_keep").set_value("last").run()
    assert app.dataframe[0].value["Rounds"].tolist() == ["1"]
    button(app, "Delete").click().run()
    assert "cannot be analysed unless it is trained again" in app.caption[-1].value
    assert len(store.runs.checkpoints(run.id)) == 2, "nothing goes before the dialog's own button"


def test_a_folder_typed_on_new_leads_to_a_model_that_knows_photographs(
    open_page: Opened, db: Path, folder: Path
) -> None:
    app = own_folder(open_page("new"), folder)
    work_off(db)
    app = app.run()
    assert any("No evidence about CLIP: mini" in w.value.replace("\\", "") for w in app.warning)
    app = button(app, "Use ViT-B-32 with the papers' settings").click().run()
    draft = app.session_state["form"].experiment
    assert (draft.backbone.name, draft.backbone.pretrained) == ("ViT-B-32", "openai")
    assert not any(entry.config for entry in draft.methods) and draft.data.root == str(folder)
    button(app, "Get the weights of ViT-B-32").click().run()
    assert [t.args for t in Store(db).tasks.recent("weights")] == [{"name": "ViT-B-32", "tag": "openai"}]
