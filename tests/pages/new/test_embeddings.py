"""A file of embeddings on the pages: chosen on New, checked on Data & models, without pictures anywhere."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

from fedcore.store import Store
from tests.support.data.embedding_file import embedding_file
from tests.support.web.pages import Opened, button, open_form, plan_line, widget, work_off


def choose(app: AppTest, path: Path) -> AppTest:
    widget(app, "Data set", "selectbox").select("Embeddings of your own")
    return widget(app.run(), "Folder on this machine", "text_input").set_value(str(path)).run()


def test_embeddings_bring_their_backbone_and_refuse_what_needs_towers(
    open_page: Opened, db: Path, tmp_path: Path
) -> None:
    app = choose(open_page("new", preset="demo"), embedding_file(tmp_path))
    assert not [w for w in app.selectbox if w.label == "CLIP backbone"]
    (said,) = [error.value.replace("\\", "") for error in app.error]
    assert (
        "PromptFL cannot run with the backbone 'given'" in said
        and "these can: " in said
        and "FedOT, " in said
    )
    assert not [w for w in app.multiselect if w.label == "Also tested on"]
    app = widget(app, "Methods").set_value(["fedot", "taskres"]).run()
    assert not app.error and "2 methods" in plan_line(app)
    button(app, "Launch").click().run()
    stored = Store(db).experiments.get(1).config
    assert stored.backbone.name == "given" and stored.data.name == "embeddings"
    app = (
        widget(choose(open_page("new"), tmp_path / "set.npz"), "Data set", "selectbox").select("Shapes").run()
    )
    assert widget(app, "CLIP backbone", "selectbox").value == "mini-vit"


def test_only_starts_of_a_classifier_that_can_run_are_offered(open_page: Opened, tmp_path: Path) -> None:
    """Class prompts need a text encoder, or class vectors with the data."""
    path = embedding_file(tmp_path, class_vectors=False)
    app = widget(choose(open_page("new", preset="demo"), path), "Methods").set_value(["fedot"]).run()
    assert any("FedOT (init = class_means)" in error.value.replace("\\", "") for error in app.error)
    app = open_form(app, "FedOT")
    start = widget(app, "Initial classifier", "selectbox")
    assert start.options == ["random unit rows", "as a linear layer's", "class means"]
    assert widget(app, "Learned classifier", "selectbox").options == ["its weights"]
    app = start.select("class_means").run()
    assert not app.error and "1 method" in plan_line(app)
    embedding_file(tmp_path)
    app.run()
    assert "class prompts" in widget(app, "Initial classifier", "selectbox").options


def test_the_check_of_embeddings_has_no_pictures(open_page: Opened, db: Path, tmp_path: Path) -> None:
    app = button(open_page("data", folder=str(embedding_file(tmp_path))), "Check").click().run()
    assert work_off(db) == ["done"]
    app = app.run()
    assert not app.exception and not app.error
    assert any("180 images" in text.value for text in app.markdown)
    assert any("There are no images to show" in text.value for text in app.caption)
