"""What is typed wrong on the page New is named beside its field and beside Launch."""

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from fedcore.base.errors import FedLensError
from pages.forms.fields import MAX_SEEDS, seeds_of
from tests.support.web.pages import SWEEP, Opened, button, more_of_the_data, open_form, open_sweep, widget


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("1", [1]),
        ("1, 2, 3", [1, 2, 3]),
        ("1 2 3", [1, 2, 3]),
        ("1;2", [1, 2]),
        ("1-5", [1, 2, 3, 4, 5]),
        (" 1 - 3 , 7", [1, 2, 3, 7]),
        ("1..3", [1, 2, 3]),
        ("0\u20132 5", [0, 1, 2, 5]),
        ("1,,2,", [1, 2]),
        ("4-4", [4]),
    ],
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize(
    "text", ["", " ", ",", "a", "1.5", "-1", "3-1", f"0-{MAX_SEEDS}", "1-", "1-2-3", "1e3", "9" * 31]
)
def test_other_seeds_are_refused_by_name(text: str) -> None:
    with pytest.raises(FedLensError) as caught:
        seeds_of(text)
    assert caught.value.field == "seeds" and len(str(caught.value)) < 120


RAW = re.compile(
    r"Input should|Tuple|String should|pydantic|validation|unable to parse|\btype=|Traceback", re.I
)


def test_an_error_of_the_form_names_the_field(open_page: Opened) -> None:
    app = open_page("new")
    for label, value, said in (
        ("Seeds", "99999999999999999999", "too large to be stored"),
        ("Seeds", "1, 1", "named twice"),
        ("Name", " \u200b ", "blank"),
        ("Name", "x" * 600, "at most 500 characters"),
    ):
        before = widget(app, label, "text_input").value
        app = widget(app, label, "text_input").set_value(value).run()
        (error,) = app.error
        assert said in error.value and not RAW.search(error.value)
        assert len(error.value) < 250
        assert not_ready(app) == label
        app = widget(app, label, "text_input").set_value(before).run()
        assert not_ready(app) == ""


def not_ready(app: AppTest) -> str:
    """Return what the page says beside Launch, which is not ready; empty where it is."""
    said = [c.value.replace("\\", "") for c in app.caption if c.value.startswith("Not ready: see ")]
    assert not app.exception
    assert button(app, "Launch").disabled == bool(said) == bool(app.error)
    return said[0].removeprefix("Not ready: see ").removesuffix(".") if said else ""


WRONG = {
    "Rounds": ("-1", "", "1.7", "ten", "99999999999999999999", "nan"),
    "Seeds": ("1-",),
    "Time limit": ("-1", "soon"),
    "Clients per domain": ("0", "1e999"),
    "Minimum samples": ("", "-1", "0x3"),
    "Dirichlet alpha": ("0", "a"),
    "Shots per class": ("0", "few"),
    "Prompt": ("no place for the class",),
    "Blocks": ("7", "", "2.5"),
    "Learning rate": ("-1", "fast", "0,1"),
}
"""Labels of fields, and what cannot be their value; Participation is tried in Chromium."""
OF_FEDOT = {"Blocks": "FedOT, blocks", "Learning rate": "FedOT, learning rate"}


@pytest.mark.parametrize("number", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 6))])
def test_what_is_typed_and_wrong_is_named_beside_launch(open_page: Opened, number: int) -> None:
    """Each field has its first wrong value, and for ``make slow`` all others."""
    app = open_form(more_of_the_data(open_page("new", preset="demo")), "FedOT")
    assert not app.number_input, "Streamlit keeps a number outside its range from the page's program"
    assert not_ready(app) == ""
    for label, value in [(label, wrong[number]) for label, wrong in WRONG.items() if number < len(wrong)]:
        field = next(w for w in app.text_input if w.label.startswith(label))
        before = field.value
        app = field.set_value(value).run()
        assert not_ready(app).startswith(OF_FEDOT.get(label, label)), (label, value)
        next(w for w in app.text_input if w.label.startswith(label)).set_value(before)
    assert not_ready(app.run()) == ""


def test_a_swept_value_that_is_wrong_is_named(open_page: Opened) -> None:
    app = open_sweep(open_page("new", preset="demo"))
    app = widget(app, SWEEP).set_value(["rounds"]).run()
    for value in ("-1, 1", "few", "1, 1", ""):
        app = widget(app, "Rounds: values", "text_input").set_value(value).run()
        assert not_ready(app), value


def test_column_names_that_are_wrong_are_named(open_page: Opened, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,label\n")
    app = more_of_the_data(open_page("new", preset="demo"))
    app = widget(app, "Data set", "selectbox").select("A CSV list of your own").run()
    app = widget(app, "Folder on this machine", "text_input").set_value(str(tmp_path / "list.csv")).run()
    app = more_of_the_data(app)
    for value in ("label species", "colour = x"):
        app = widget(app, "Column names", "text_input").set_value(value).run()
        assert not_ready(app) == "Column names", value


def test_a_file_that_cannot_be_used_is_not_ready_with_the_form_before_it(open_page: Opened) -> None:
    app = open_page("new", preset="demo")
    app.session_state["toml_box"] = True
    app.run()
    for content in (b"rounds = 0", b"\xff\xfe", b"not toml"):
        app = app.file_uploader[0].set_value(("mine.toml", content, "application/toml")).run()
        assert not_ready(app) == "TOML file"
    app = app.file_uploader[0].set_value(None).run()
    assert not_ready(app) == ""
