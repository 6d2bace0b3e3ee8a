"""What the form says about bad input: in its own words, beside the field."""

from __future__ import annotations

import re

import pytest

from fedcore.errors import FedLensError
from pages.forms.fields import MAX_SEEDS, seeds_of
from tests.support.web.pages import Opened, button


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


@pytest.mark.parametrize(
    ("label", "value", "beside", "said"),
    [
        ("Seeds", "99999999999999999999", "Seeds", "too large to be stored"),
        ("Seeds", "a", "Seeds", "not a whole number or a range"),
        ("Seeds", "", "Seeds", "at least one seed"),
        ("Seeds", "1, 1", "Seeds", "named twice"),
        ("Name", "", "Name", "blank"),
        ("Name", " \u200b ", "Name", "blank"),
        ("Name", "x" * 600, "Name", "at most 500 characters"),
    ],
)
def test_an_error_of_the_form_names_the_field(
    open_page: Opened, label: str, value: str, beside: str, said: str
) -> None:
    app = open_page("new")
    next(w for w in app.text_input if w.label == label).set_value(value).run()
    assert not app.exception
    (error,) = app.error
    assert said in error.value and not RAW.search(error.value)
    assert len(error.value) < 250
    assert f"Not ready: see {beside}." in [c.value for c in app.caption]
    assert button(app, "Launch").disabled
