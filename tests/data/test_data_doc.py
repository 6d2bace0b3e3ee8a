"""docs/data.md says what the catalog says, of every data set."""

from __future__ import annotations

import pytest

from fedcore.data import catalog
from fedcore.errors import FedLensError
from tests.support.data.layouts import WRITE
from tools.docs import data as data_doc

PAGE = data_doc.PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert data_doc.render(PAGE) == PAGE, "out of date; run python -m tools.docs"
    assert data_doc.render(PAGE.replace("| `pacs` | 9,991 |", "| `pacs` | 9,990 |")) == PAGE


def test_every_data_set_has_its_section():
    for name in WRITE:
        entry = catalog.entry(name)
        assert f"### {entry.title}\n\n<!-- entry: {name} -->" in PAGE
        for said in (
            entry.citation,
            entry.licence,
            entry.how_to_get,
            entry.official_split,
            *entry.domains[1:],
        ):
            assert said in PAGE, name


def test_a_marker_of_no_data_set_is_noticed():
    with pytest.raises(FedLensError, match="did you mean 'pacs"):
        data_doc.render("<!-- entry: pax -->\n<!-- end -->")
