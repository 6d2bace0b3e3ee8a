"""A browser shows a number as the table beside it does, which Python has rounded: 31.25 as 31.2."""

from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest

from fedcore.base.presentation import FieldChart
from fedcore.results.analyses import Confusion, FieldRow
from fedcore.results.charts import analyses
from fedcore.results.charts.lines import line_chart
from fedcore.results.charts.ranks import SourceValue, strip
from fedcore.results.charts.sweep import DrawPoint, search_chart
from fedcore.results.charts.theme import Chart, Theme, rounds_as_python
from fedcore.results.curves import Series
from fedcore.results.statistics import Stat
from pages.widgets import markup


def in_javascript(value: float, digits: int) -> str:
    """Number.toFixed: of two numbers equally near, the larger one in size."""
    return str(Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_every_share_is_rounded_alike(digits: int) -> None:
    shares = np.unique([100 * k / n for n in (7, 16, 24, 32, 64, 80, 800) for k in range(n + 1)])
    values = np.concatenate([shares, -shares])
    shown = rounds_as_python(values, digits)
    assert [in_javascript(v, digits) for v in shown] == [f"{v:.{digits}f}" for v in values]
    assert any(in_javascript(v, digits) != f"{v:.{digits}f}" for v in values), "or nothing was tested"
    assert np.allclose(shown, values, rtol=1e-15, atol=0)
    assert markup.rounded_alike(31.25, 1) < 31.25 and markup.rounded_alike(None, 1) is None


FIVE_OF_SIXTEEN = Confusion(("a", "b"), np.array([[5, 11], [0, 4]]))  # 31.25 % of class a
FIELD = FieldChart("Size", "size", "rank", "r")
CHARTS = [
    (analyses.confusion_chart(FIVE_OF_SIXTEEN, Theme()), "z", 1),
    (analyses.class_chart(FIVE_OF_SIXTEEN, Theme(), "fedot"), "x", 1),
    (analyses.field_chart([FieldRow(1, 2, Stat(31.125, None, 1), {})], FIELD, Theme(), "fedot"), "y", 2),
    (line_chart([Series("a", "fedot", (1,), (31.125,), (None,), 1)], Theme(), "Round", ""), "y", 2),
    (search_chart([DrawPoint("a", "fedot", 0.1, 31.25, "draw 1", False)], Theme(), "lr"), "y", 1),
    (strip([SourceValue("a", "b", 31.125, "c")], "%", Theme(), ""), "x", 2),
]


@pytest.mark.parametrize(("chart", "axis", "digits"), CHARTS)
def test_charts_show_the_number_of_their_table(chart: Chart, axis: str, digits: int) -> None:
    values = [v for t in chart.figure.data if axis in t.to_plotly_json() for v in np.ravel(t[axis])]
    drawn = [float(value) for value in values if 31 < float(value) < 32]
    assert {in_javascript(value, digits) for value in drawn} == {"31.2" if digits == 1 else "31.12"}
