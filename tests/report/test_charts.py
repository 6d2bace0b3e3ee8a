"""What all figures share."""

from __future__ import annotations

import pytest

from fedcore.report.charts import short


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "…"),
        ("数" * 8, "数" * 8),
        ("数" * 9, "数" * 7 + "…"),
        ("a" + "数" * 8, "a" + "数" * 7 + "…"),
        ("<b>", "&lt;b&gt;"),
        ("", ""),
    ],
)
def test_names_on_axes_are_cut_to_one_width(name: str, label: str) -> None:
    assert short(name) == label
