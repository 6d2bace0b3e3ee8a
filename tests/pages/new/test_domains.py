"""Domains, protocols and other data on the page New."""

import shutil
from pathlib import Path

from streamlit.testing.v1 import AppTest

from fedcore.config import Experiment, dumps, loads
from fedcore.engine.plan import plan
from fedcore.papers.experiments import preset
from fedcore.store import Store
from tests.support.web.pages import Opened, button, more_of_the_data, own_folder, plan_line, widget, work_off

DIGITS = ["rot0", "rot15", "rot30", "rot45", "rot60", "rot75"]


def upload(app: AppTest, experiment: Experiment) -> AppTest:
    app.session_state["toml_box"] = True
    app.run()
    return app.file_uploader[0].upload("mine.toml", dumps(experiment).encode()).run()


def demo(**changes: object) -> Experiment:
    content = preset("demo").model_dump(mode="json") | changes
    return Experiment.model_validate(content)


def test_held_out_domains_are_chosen_among_those_of_the_data_set(open_page: Opened) -> None:
    app = open_page("new", preset="demo")
    held = widget(app, "Held-out domains")
    assert held.options == ["each in turn", *DIGITS]
    app = held.set_value(["rot15", "rot60"]).run()
    assert not app.error
    assert "2 held-out domains = 12 runs" in plan_line(app)
    app = widget(more_of_the_data(app), "Domains").set_value(["rot0", "rot15", "rot30"]).run()
    assert widget(app, "Held-out domains").options == ["each in turn", "rot0", "rot15", "rot30", "rot60"]
    (said,) = [e.value.replace("\\", "") for e in app.error]
    assert said == "Held-out domains: no domain 'rot60'; there are: rot0, rot15, rot30"
    app = widget(app, "Held-out domains").set_value(["rot15"]).run()
    assert not app.error
    assert widget(app, "Held-out domains").options == ["each in turn", "rot0", "rot15", "rot30"]


def test_each_is_one_click_and_goes_with_no_other(open_page: Opened, tmp_path: Path) -> None:
    app = widget(open_page("new", preset="demo"), "Held-out domains").set_value(["rot15"]).run()
    app = widget(app, "Held-out domains").set_value(["rot15", "each"]).run()
    assert widget(app, "Held-out domains").value == ["each"]
    assert "6 held-out domains = 36 runs" in plan_line(app)
    assert "Shown for the runs that hold out rot0." in [c.value for c in app.caption]
    app = widget(app, "Held-out domains").set_value(["each", "rot0"]).run()
    assert widget(app, "Held-out domains").value == ["rot0"]
    app = widget(app, "Held-out domains").set_value(["each"]).run()
    app = next(c for c in app.checkbox if "36 runs" in c.label).check().run()
    button(app, "Launch").click().run()
    assert Store(tmp_path / "runs.db").experiments.get(1).config.held_out == ("each",)


def test_each_survives_files_clones_and_other_data_sets(open_page: Opened, db: Path) -> None:
    app = upload(open_page("new", preset="demo"), demo(held_out=["each"]))
    assert widget(app, "Held-out domains").value == ["each"]
    assert loads(app.code[0].value).held_out == ("each",)
    Store(db).experiments.create(demo(held_out=["each"]), plan(demo(held_out=["each"])).runs)
    app = open_page("new", clone="1")
    assert widget(app, "Held-out domains").value == ["each"]
    app = widget(app, "Data set", "selectbox").select("Shapes").run()
    assert not app.error
    assert widget(app, "Held-out domains").value == ["each"]
    assert "8 held-out domains" in plan_line(app)


def test_the_protocol_of_new_classes_is_chosen_by_name_for_a_folder_of_ones_own(
    open_page: Opened, tmp_path: Path, folder: Path
) -> None:
    app = more_of_the_data(own_folder(open_page("new", preset="demo"), folder))
    protocol = widget(app, "Protocol", "selectbox")
    assert protocol.options == ["all classes", "base-to-new classes", "cross-class"]
    app = protocol.select("base-to-new classes").run()
    assert widget(app, "Order of the classes", "selectbox").value == "label"
    assert not app.error and "runs**" in plan_line(app)
    button(app, "Launch").click().run()
    config = Store(tmp_path / "runs.db").experiments.get(1).config
    assert (config.data.name, config.data.training_classes) == ("folder", "base")


def test_other_data_to_test_on_is_chosen_by_name_and_that_of_a_file_stays(
    open_page: Opened, tmp_path: Path
) -> None:
    app = widget(open_page("new", preset="demo"), "Also tested on").set_value(["shapes"]).run()
    assert not app.error and "rotated-digits" not in widget(app, "Also tested on").options
    button(app, "Launch").click().run()
    (other,) = Store(tmp_path / "runs.db").experiments.get(1).config.transfer
    assert (other.name, other.root) == ("shapes", None)
    app = upload(open_page("new", preset="demo"), demo(transfer=[{"name": "shapes", "split": "80/20"}]))
    assert widget(app, "Also tested on").value == ["shapes"]
    assert loads(app.code[0].value).transfer[0].split == "80/20"


def test_a_held_out_domain_can_be_tested_whole(open_page: Opened, tmp_path: Path) -> None:
    app = open_page("new", preset="demo")
    assert "Images of a held-out domain" not in [w.label for w in app.selectbox]
    app = widget(app, "Held-out domains").set_value(["rot15"]).run()
    app = widget(app, "Images of a held-out domain", "selectbox").select("all of them").run()
    assert not app.error
    button(app, "Launch").click().run()
    assert Store(tmp_path / "runs.db").experiments.get(1).config.held_out_share == "all"


def test_domains_of_another_data_set_are_forgotten(open_page: Opened) -> None:
    app = more_of_the_data(open_page("new", preset="demo"))
    widget(app, "Held-out domains").set_value(["rot15"])
    app = widget(app, "Domains").set_value(["rot0", "rot15"]).run()
    app = widget(app, "Data set", "selectbox").select("Shapes").run()
    assert not app.error
    assert (widget(app, "Held-out domains").value, widget(app, "Domains").value) == ([], [])
    assert "6 methods x 1 seed = 6 runs" in plan_line(app)
    app = widget(app, "Domains").set_value(["photo", "sketch", "night"]).run()
    app = more_of_the_data(app, False)
    app = widget(app, "Data set", "selectbox").select("Rotated digits").run()
    assert not app.error
    assert loads(toml(app)).data.domains is None
    app = widget(app, "Data set", "selectbox").select("CIFAR-10").run()
    held = widget(app, "Held-out domains")
    assert (held.placeholder, held.disabled) == ("only one domain", True)


def test_a_name_that_a_file_has_wrong_is_told_and_can_be_taken_out(open_page: Opened) -> None:
    app = upload(open_page("new", preset="demo"), demo(held_out=["rot15", "rot17"]))
    assert "no domain 'rot17'" in app.error[0].value
    app = widget(app, "Held-out domains").set_value(["rot15"]).run()
    assert not app.error
    wrong = demo(data={"name": "rotated-digits", "domains": ["rot0", "rot17"]})
    app = upload(open_page("new", preset="demo"), wrong)
    assert "no domain 'rot17'" in app.error[0].value
    assert widget(more_of_the_data(app), "Domains").value == ["rot0", "rot17"]


def test_a_folders_domains_are_offered_once_a_plan_has_found_them(open_page: Opened, folder: Path) -> None:
    app = widget(open_page("new", preset="demo"), "Held-out domains").set_value(["rot15"]).run()
    app = widget(app, "Data set", "selectbox").select("A folder of your own").run()
    typed = widget(app, "Held-out domains", "text_input")
    assert typed.value == ""
    typed.set_value("photo, phto").run()
    app = widget(app, "Folder on this machine", "text_input").set_value(str(folder)).run()
    assert [e.value.replace("\\", "") for e in app.error] == [
        "Held-out domains: no domain 'phto'; there are: a, b, each day, photo"
    ]
    held = widget(app, "Held-out domains")
    assert held.options == ["each in turn", "a, b", "each day", "photo", "phto"]
    app = held.set_value(["a, b"]).run()
    assert not app.error
    assert "1 held-out domain =" in plan_line(app)
    assert widget(more_of_the_data(app), "Domains").options == ["a, b", "each day", "photo"]


def test_a_folders_domains_are_those_of_its_check(
    open_page: Opened, db: Path, tmp_path: Path, folder: Path
) -> None:
    button(open_page("data", folder=str(folder)), "Check").click().run()
    assert work_off(db) == ["done"]
    shutil.move(folder, tmp_path / "away")  # no plan can find them
    app = own_folder(open_page("new", preset="demo"), folder)
    assert len(app.error) == 1
    assert widget(app, "Held-out domains").options == ["each in turn", "a, b", "each day", "photo"]


def test_what_is_seldom_set_is_kept_while_its_form_is_closed(open_page: Opened, tmp_path: Path) -> None:
    app = open_page("new", preset="demo")
    assert not [w for w in app.text_input if w.label == "Prompt"], "a closed form is not drawn"
    app = more_of_the_data(app)
    widget(app, "Prompt", "text_input").set_value("the number {}")
    widget(app, "Shots per class", "text_input").set_value("3")
    widget(app, "Domains").set_value(["rot0", "rot45"])
    app = more_of_the_data(app.run(), False)
    said = [c.value.replace("\\", "") for c in app.caption if c.value.startswith("Changed from the defaults")]
    assert said == ["Changed from the defaults: domains rot0, rot45; prompt the number {}; shots per class 3"]
    app = more_of_the_data(more_of_the_data(app), False)
    assert loads(toml(app)).data.shots == 3
    button(app, "Launch").click().run()
    data = Store(tmp_path / "runs.db").experiments.get(1).config.data
    assert (data.template, data.shots, data.domains) == ("the number {}", 3, ("rot0", "rot45"))


def toml(app: AppTest) -> str:
    app.session_state["toml_box"] = True
    return app.run().code[0].value


def test_the_preset_fills_the_form_and_another_protocol_hides_its_fields(open_page: Opened, tmp_path) -> None:
    app = open_page("new", preset="cross-class")
    assert not app.error
    (further,) = (m for m in app.multiselect if m.label == "Further data sets")
    assert further.value == ["rotated-digits"]
    (partition,) = (s for s in app.selectbox if s.label == "Partition")
    assert partition.value == "blocks" and len(partition.options) == 1
    assert "15 runs" in plan_line(app)
    button(app, "Launch").click().run()
    (experiment,) = Store(tmp_path / "runs.db").experiments.all()
    wanted = preset("cross-class")
    for part in ("data", "further_data", "partition", "methods"):
        assert getattr(experiment.config, part) == getattr(wanted, part), part

    app = more_of_the_data(open_page("new", preset="cross-class"))
    (protocol,) = (s for s in app.selectbox if s.label == "Protocol")
    app = protocol.set_value("base").run()
    assert not any(m.label == "Further data sets" for m in app.multiselect)
    (partition,) = (s for s in app.selectbox if s.label == "Partition")
    assert "blocks" not in partition.options and not app.error
