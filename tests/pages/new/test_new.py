"""The New page's sweeps, method texts and what a draft keeps."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.base.devices import Device
from fedcore.config import MethodEntry, dumps
from fedcore.methods.fedot import FedOTConfig
from fedcore.papers.experiments import preset
from fedcore.store import Store
from pages.forms import drafts
from pages.forms.inputs import default_of, with_field_titles
from pages.forms.methods import guide
from tests.support import fill
from tests.support.data.archives import pack
from tests.support.data.layouts import WRITE
from tests.support.web.pages import (
    NASTY,
    SWEEP,
    Opened,
    button,
    more_of_the_data,
    open_form,
    open_sweep,
    plan_line,
    widget,
)


def sweep_over(app: AppTest, values: dict[str, str]) -> AppTest:
    """Open the sweep and type values for fields, by the fields' titles."""
    app = open_sweep(app)
    fields = widget(app, SWEEP)
    app = fields.set_value(list(values)).run()
    for title, text in zip(
        [w for w in app.text_input if w.label.endswith(": values")], values.values(), strict=True
    ):
        title.set_value(text)
    return app.run()


def test_a_sweep_is_planned_and_queued(open_page: Opened, tmp_path: Path) -> None:
    app = sweep_over(open_page("new", preset="demo"), {"methods.fedot.blocks": "1, 2, 4", "rounds": "3, 5"})
    assert not app.error
    assert ": 16 runs**, 3 to 5 rounds" in plan_line(app), "(5 methods + 3 x FedOT) x 2"
    button(app, "Launch").click().run()
    (experiment,) = Store(tmp_path / "runs.db").experiments.all()
    assert experiment.config.sweep == {"methods.fedot.blocks": (1, 2, 4), "rounds": (3, 5)}
    configs = Store(tmp_path / "runs.db").runs.configs([r.id for r in experiment.runs if r.method == "fedot"])
    found = {(c.method.config["blocks"], c.rounds) for c in configs.values()}
    assert found == {(b, r) for b in (1, 2, 4) for r in (3, 5)}
    labels = {r.label for r in experiment.runs}
    assert len(labels) == 16


def test_what_is_wrong_with_a_sweep_stands_beside_its_field(open_page: Opened) -> None:
    app = sweep_over(open_page("new", preset="demo"), {"methods.fedot.blocks": "1, 7"})
    (said,) = app.error
    assert "7" in said.value and "blocks 7" in said.value
    assert button(app, "Launch").disabled
    app = sweep_over(open_page("new", preset="demo"), {"rounds": ""})
    assert "The list is empty" in app.error[0].value
    assert any(c.value.startswith("6 clients, 10 classes") for c in app.caption), "the picture still stands"


def test_a_closed_sweep_stays_and_goes_with_its_method(open_page: Opened) -> None:
    app = sweep_over(open_page("new", preset="demo"), {"methods.fedot.blocks": "1, 2"})
    app = open_sweep(app, False)
    assert any(c.value == r"Swept: FedOT\: blocks 1, 2" for c in app.caption)
    assert ", 2 values of" in plan_line(app) and "7 runs" in plan_line(app)
    assert [w.value for w in open_sweep(app).text_input if w.label.endswith(": values")] == ["1, 2"]
    methods = widget(app, "Methods")
    app = methods.set_value(["sdfed", "promptfl"]).run()
    assert not app.error
    assert "2 runs" in plan_line(app)


def test_a_second_click_on_remove_takes_away_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    form = drafts.Form(preset("demo"), "preset:demo", 1, [])
    form.methods = [form.new_method(name, None, {}, None) for name in ("fedot", "promptfl")]
    monkeypatch.setattr(drafts, "form", lambda: form)
    first, second = form.methods
    drafts.remove(first)
    drafts.remove(first)  # the page was not drawn again in between
    assert form.methods == [second]


def test_a_clone_keeps_its_sweep_and_its_published_figures(open_page: Opened, db: Path) -> None:
    demo = preset("demo")
    content = demo.model_dump() | {
        "sweep": {"rounds": [2, 3]},
        "reproduces": [{"paper": "fedot", "table": "1", "dataset": "PACS"}],
    }
    first = Store(db).experiments.create(type(demo).model_validate(content)).experiment_id
    app = open_page("new", clone=str(first))
    assert not app.error
    assert widget(app, "Name", "text_input").value == f"{demo.name} (copy)"
    assert any(c.value.startswith("Swept: Rounds 2, 3") for c in app.caption)
    button(app, "Launch").click().run()
    old, new = (Store(db).experiments.get(i).config for i in (first, first + 1))
    assert (new.sweep, new.reproduces) == (old.sweep, old.reproduces)


def test_the_method_text_of_the_docs_stands_beside_its_form(open_page: Opened) -> None:
    app = open_form(open_page("new", preset="demo"), "FedOT")
    text = guide("fedot")
    assert text not in [m.value for m in app.markdown], "not before it is asked for"
    app.session_state["new1.1.1.guide"] = True  # the popover of the second method, first time open
    assert text in [m.value for m in app.run().markdown]


def test_memory_is_estimated_from_measured_runs(open_page: Opened, db: Path) -> None:
    demo = preset("demo")
    created, writers = fill.start(db, demo)
    for writer in writers:
        fill.train(writer, until=1)
        writer.write_round(fill.a_round(fill.config_of(writer).method.name, 1, 2, 10), 1_234_000_000)
        writer.claim.finish("done")
    assert len(Store(db).runs.peak_memory()) == len(created.run_ids)
    assert "up to 1.2 GB of memory" in plan_line(open_page("new", preset="demo"))


def test_any_name_is_launched_as_it_was_typed(open_page: Opened, tmp_path: Path) -> None:
    name = (NASTY + "😀 n" * 500)[:500]
    app = open_page("new", preset="demo")
    widget(app, "Name", "text_input").set_value(name)
    app = open_form(app.run(), "FedOT")
    widget(app, "Name in tables", "text_input").set_value(name)
    app = button(app.run(), "Launch").click().run()
    assert not app.exception
    (experiment,) = Store(tmp_path / "runs.db").experiments.all()
    assert experiment.name == name
    assert name in {r.label for r in experiment.runs}


def test_the_form_keeps_its_values_when_its_experiment_was_launched(open_page: Opened) -> None:
    app = widget(open_page("new"), "Rounds", "text_input").set_value("3").run()
    checkpoints = widget(app, "Checkpoints kept", "selectbox")
    assert checkpoints.value == "last"
    app = checkpoints.set_value("all").run()
    app = button(app, "Launch").click().run()
    assert app.title[0].value == "Live"
    app = app.run().switch_page("pages/new.py").run()
    assert widget(app, "Rounds", "text_input").value == "3"
    assert app.session_state["form"].typed.keep_checkpoints == "all"


def test_who_gets_what_is_shown_though_a_method_does_not_fit(open_page: Opened) -> None:
    app = open_form(open_page("new", preset="demo"), "FedOT")
    widget(app, "Blocks", "text_input").set_value("7")
    app = app.run()
    assert len(app.error) == 1 and button(app, "Launch").disabled
    assert any("client holds 180 to 181 training samples" in e.proto.body for e in app.get("html"))
    widget(app, "Clients per domain", "text_input").set_value("999")
    app = app.run()
    assert not any("training samples of" in e.proto.body for e in app.get("html"))


def test_a_partition_that_one_method_refuses_is_shown_and_the_method_named(open_page: Opened) -> None:
    app = open_page("new", preset="demo")
    kind = widget(app, "Partition", "selectbox")
    app = kind.set_value("dirichlet").run()
    said = [c.value for c in app.caption]
    assert any(text.startswith("6 clients, 10 classes") for text in said), "the picture still stands"
    assert "Not ready: see FedDEAP, domain ETF columns." in [text.replace("\\", "") for text in said]


def test_an_archive_is_not_unpacked_by_the_page(open_page: Opened, tmp_path: Path) -> None:
    archive = pack(WRITE["pacs"](tmp_path / "w"), tmp_path / "x" / "pacs.zip")
    app = open_page("new", preset="demo")
    app = widget(app, "Data set", "selectbox").select("PACS").run()
    field = widget(app, "Folder on this machine", "text_input")
    app = field.set_value(str(archive)).run()
    assert not app.error
    (said,) = app.info
    assert "has to be unpacked" in said.value and button(app, "Check it now")
    assert list(archive.parent.iterdir()) == [archive] and button(app, "Launch").disabled


def test_an_uploaded_file_fills_the_form_whatever_the_address_says(open_page: Opened) -> None:
    app = open_page("new", preset="demo")
    app.session_state["toml_box"] = True
    app.run()
    text = dumps(preset("sdfed/table4-dtd")).encode()
    app = app.file_uploader[0].upload("mine.toml", text).run()
    assert widget(app, "Name", "text_input").value == "SDFed, DTD, mixed backbones"
    assert "preset" not in app.query_params
    assert app.dataframe[0].value["clients"].tolist() == [2, 3, 5]


def test_fields_are_named_for_people(open_page: Opened) -> None:
    app = open_form(open_sweep(open_page("new", preset="demo")), "FedDEAP")
    widgets = [*app.text_input, *app.selectbox, *app.checkbox, *app.multiselect]
    assert {"Dirichlet alpha", "Learning rate", "Local epochs"} <= {w.label for w in widgets}
    assert not [w.label for w in widgets if "_" in w.label]
    shown = [option for w in [*app.selectbox, *app.multiselect] for option in w.options]
    assert not [text for text in shown if "per_" in text or "train_" in text]
    assert "Dirichlet shares" not in {s.label for s in app.selectbox}, "nothing is drawn with an empty alpha"
    widget(app, "Dirichlet alpha", "text_input").set_value("0.3")
    shares = widget(app.run(), "Dirichlet shares", "selectbox")
    assert shares.options == ["per class", "per client"]
    assert "`dirichlet_form`" in shares.help and "per_class" not in shares.help


def test_an_empty_field_says_what_it_stands_for(open_page: Opened) -> None:
    app = more_of_the_data(open_page("new", preset="demo"))
    empty = {w.label: w.placeholder for w in app.text_input}
    assert (empty["Shots per class"], empty["Dirichlet alpha"]) == ("all", "IID")
    assert empty["Prompt"] == "a picture of the number: {}."
    assert widget(app, "Domains").placeholder == "all 6"
    app = open_form(app, "FedOT")
    assert widget(app, "Logit temperature", "text_input").placeholder == "CLIP's own"


def test_fields_on_offer_are_those_of_the_form_and_options_are_swept_by_choosing_them(
    open_page: Opened,
) -> None:
    app = open_page("new", preset="demo")
    assert "at least 36 MB on disk" in plan_line(app)
    app = open_sweep(app)
    fields = widget(app, SWEEP)
    offered = {"Rounds", "CLIP backbone", "Clients per domain", "FedOT: blocks", "All methods: learning rate"}
    assert offered <= set(fields.options)
    assert not {"Classes per client", "PromptFL: blocks"} & set(fields.options)
    app = fields.set_value(["methods.fedot.init"]).run()
    values = widget(app, "FedOT: initial classifier: values")
    assert values.value == ["text"]
    app = values.set_value(["text", "random"]).run()
    assert ": 7 runs" in plan_line(app)


def test_one_value_is_called_so(open_page: Opened) -> None:
    app = sweep_over(open_page("new", preset="demo"), {"rounds": "1"})
    assert "6 methods x 1 seed x 1 value of rounds = 6 runs**, 1 round," in plan_line(app)


def test_boxes_to_tick_come_after_the_other_fields() -> None:
    script = """
from fedcore.methods import registry
from pages.forms import inputs
inputs.config_form(registry.get("feddeap").Config, {}, "k", lambda texts, key: texts, "methods.feddeap")
"""
    app = AppTest.from_string(script).run()
    columns = [column.children[0].type if column.children else "" for column in app.columns]
    kinds = [kind for kind in columns if kind]
    assert kinds.index("checkbox") == len(kinds) - len(app.checkbox) > 0
    assert columns.index("checkbox") % 3 == 0, "a row of their own"


def test_errors_call_fields_as_the_form_does(open_page: Opened) -> None:
    app = open_page("new", preset="demo")
    widget(app, "Minimum samples", "text_input").set_value("99999")
    (said,) = [e.value.replace("\\", "") for e in app.run().error]
    assert said.startswith("Minimum samples: domain"), "below its row, an error names its field"
    assert 'lower "Minimum samples" to' in said and "min_samples" not in said
    path = "no folder '/data/min_samples', `python -m x min_samples`, x/data.columns: name it in data.columns"
    assert with_field_titles(path) == path.removesuffix("data.columns") + '"Column names"'


def test_a_link_to_clone_a_number_that_is_none_says_so(open_page: Opened) -> None:
    app = open_page("new", clone="9" * 30)
    assert any("No experiment" in e.value for e in app.error)


def test_one_table_has_the_hyper_parameters_of_all_methods_and_marks_what_differs(
    open_page: Opened, filled: Path
) -> None:
    entries = (MethodEntry(name="fedot", config={"lr": 0.25}), MethodEntry(name="zero-shot"))
    changed = fill.an_experiment().model_copy(update={"methods": entries})
    number = Store(filled).experiments.create(changed).experiment_id
    app = open_page("new", clone=str(number))
    drawn = "".join(e.proto.body for e in app.get("html") if "fl-hyper" in e.proto.body)
    assert drawn.count("<div") == 3
    paper = default_of(FedOTConfig.model_fields["lr"])
    assert f'title="paper: {paper}">0.25 *</b>' in drawn
    assert drawn.count(" *</b>") == 1, "nothing else was changed"


def test_the_name_follows_the_data_until_one_is_typed(open_page: Opened) -> None:
    app = open_page("new")

    def name() -> str:
        return str(widget(app, "Name", "text_input").value)

    def choose(data: str) -> None:
        widget(app, "Data set", "selectbox").set_value(data).run()

    assert name() == preset("demo").name
    choose("pacs")
    assert name() == "PACS"
    choose("folder")
    widget(app, "Folder on this machine", "text_input").set_value("/data/my birds/").run()
    assert name() == "my birds"
    app.switch_page("pages/data.py").run()
    app.switch_page("pages/new.py").run()
    assert name() == "my birds"
    choose("rotated-digits")
    assert name() == preset("demo").name
    widget(app, "Name", "text_input").set_value("Mine").run()
    choose("shapes")
    assert name() == "Mine"
    assert not app.exception and not app.warning


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A GPU of the compute capability that a test names, beside the processor."""
    found = [
        Device("GPU-1", "NVIDIA A100", 2**36, 0, 0.0, request.param),
        Device("cpu", "a CPU", 2**34, 0, None),
    ]
    monkeypatch.setattr("fedcore.base.devices.list_devices", lambda: found)


def offers_of_tf32(app: AppTest) -> list[str]:
    return [c.value for c in app.caption if " in TF32" in c.value]


@pytest.mark.parametrize("gpu", [(8, 0)], indirect=True)
def test_tf32_is_proposed_for_the_methods_whose_counts_it_leaves(
    open_page: Opened, tmp_path: Path, gpu: None
) -> None:
    app = open_page("new", preset="demo")
    (offer,) = offers_of_tf32(app)
    assert offer.startswith(r"NVIDIA A100 can train FedOT, FedAlign in TF32\: faster"), "the others differ"
    app = button(app, "Use TF32").click().run()
    assert not app.exception and not app.error and not offers_of_tf32(app)
    button(app, "Launch").click().run()
    (experiment,) = Store(tmp_path / "runs.db").experiments.all()
    taken = {m.name for m in experiment.config.methods if m.config.get("arithmetic") == "tf32"}
    assert taken == {"fedot", "fedalign"}


@pytest.mark.parametrize("gpu", [(8, 0)], indirect=True)
def test_tf32_is_proposed_for_an_encoder_unless_it_changes_a_count_of_some_method(
    open_page: Opened, gpu: None
) -> None:
    app = widget(open_page("new", preset="demo"), "CLIP backbone", "selectbox").set_value("ViT-B-32").run()
    assert not [c for c in offers_of_tf32(app) if "encode" in c], "of PromptFL and others"
    app = widget(app, "Methods").set_value(["fedot", "fedclip"]).run()
    assert any("can encode the images" in c for c in offers_of_tf32(app))
    app = next(b for b in app.button if (b.key or "").endswith("encode_tf32")).click().run()
    assert widget(app, "Precision", "selectbox").value == "tf32"
    assert not [c for c in offers_of_tf32(app) if "encode" in c]


@pytest.mark.parametrize("gpu", [(7, 5)], indirect=True)
def test_a_gpu_without_tf32_offers_nothing(open_page: Opened, gpu: None) -> None:
    assert not offers_of_tf32(open_page("new", preset="demo"))
