"""Analyses as tables and figures: counts, shares and pictures by hand."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from fedcore.base.presentation import FieldChart
from fedcore.results.analyses import Confusion, FieldRow, confusion, field_table, space_table
from fedcore.results.charts import analyses
from fedcore.results.charts.theme import Theme
from fedcore.results.statistics import Stat

CLASSES = ("cat", "<b>owl</b>", "engine")


def arrays() -> dict[str, np.ndarray]:
    """Two clients with three samples each, and a global model with two."""
    return {
        "model": np.array([1, 1, 1, 2, 2, 2, 0, 0]),
        "test_set": np.array([1, 1, 1, 2, 2, 2, 3, 3]),
        "label": np.array([0, 0, 1, 1, 1, 1, 2, 0]),
        "predicted": np.array([0, 1, 1, 1, 0, 0, 2, 2]),
        "sample": np.arange(8),
    }


def test_the_clients_together_leave_the_global_model_out():
    found = confusion(arrays(), CLASSES, None)
    assert found.counts.tolist() == [[1, 1, 0], [2, 2, 0], [0, 0, 0]]
    assert found.accuracy == pytest.approx(50.0)
    assert found.recall[:2].tolist() == [50.0, 50.0]
    assert np.isnan(found.recall[2])
    assert found.precision[0] == pytest.approx(100 / 3)
    assert found.worst == ("<b>owl</b>", "cat", 2)


def test_one_model_alone():
    assert confusion(arrays(), CLASSES, 2).counts.tolist() == [[0, 0, 0], [2, 1, 0], [0, 0, 0]]
    assert confusion(arrays(), CLASSES, 0).counts.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert confusion(arrays(), CLASSES, 9).accuracy is None


def test_tables_of_classes_say_what_is_absent_and_count_each_pair():
    found = confusion(arrays(), CLASSES, None)
    table = found.table()
    assert table["test samples"] == [2, 4, 0]
    assert table["accuracy, %"] == [50.0, 50.0, None]
    assert table["precision, %"] == [33.3, 66.7, None]
    assert list(found.matrix_table().values()) == [list(CLASSES), [1, 2, 0], [1, 2, 0], [0, 0, 0]]


def test_confusion_figure_prints_counts_and_escapes_names():
    chart = analyses.confusion_chart(confusion(arrays(), CLASSES, None), Theme())
    assert chart.figure.layout.xaxis.automargin is None, (
        "plotly turns names, and makes room for what it turned"
    )
    heat = chart.figure.data[0]
    assert np.nan_to_num(np.array(heat.z, dtype=float), nan=-1).tolist() == [
        [50, 50, 0],
        [50, 50, 0],
        [-1, -1, -1],
    ]
    counts = chart.figure.data[1]
    assert list(zip(counts.x, counts.y, counts.text, strict=True)) == [
        (0, 0, "1"),
        (1, 0, "1"),
        (0, 1, "2"),
        (1, 1, "2"),
    ]
    assert set(counts.textfont.color) == {"#000000"}, "at 50 % Cividis is light"
    assert heat.customdata[1][0][0] == "&lt;b&gt;owl&lt;/b&gt; predicted as cat"
    assert "50.0 % correct" in chart.alt
    assert "<b>owl</b> predicted as cat (2)" in chart.alt


def test_classes_are_listed_from_the_worst():
    found = Confusion(("a", "b", "c"), np.array([[3, 1, 0], [0, 5, 0], [1, 0, 1]]))
    figure = analyses.class_chart(found, Theme(), "fedot").figure
    axis, bars = figure.layout.xaxis, figure.data[0]
    assert (axis.range, axis.ticklabeloverflow) == ((0, 100), "allow"), "the label of 100 % is there"
    assert figure.layout.margin.r >= 24, "and has room"
    assert list(bars.x) == [50.0, 75.0, 100.0]
    assert [row[0] for row in bars.customdata] == ["c", "a", "b"]


def test_feature_space_has_a_trace_for_each_kind_and_class():
    points = {
        "xy": np.array([[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]], dtype=np.float32),
        "kind": np.array([0, 0, 1, 1, 2]),
        "label": np.array([0, 0, 0, 1, 0]),
        "predicted": np.array([0, 1, -1, -1, -1]),
    }
    chart = analyses.space_chart(points, CLASSES, Theme(dark=True))
    long = analyses.space_chart(points, ("c" * 500, "d"), Theme()).figure
    assert max(len(t.name) for t in long.data) <= 16, "a name of the legend never squeezes the plot"
    drawn = [t for t in chart.figure.data if t.x[0] is not None]
    assert sorted(trace.marker.symbol for trace in drawn) == ["circle", "star", "star", "x"]
    explained = {t.name: t.marker.symbol for t in chart.figure.data if t.x[0] is None}
    assert explained == {"image": "circle", "centroid": "x", "class feature": "star"}, (
        "the legend names marks"
    )
    assert "50.0 % of these images" in chart.alt
    table = space_table(points, CLASSES)
    assert table["point"] == ["image", "image", "class feature", "class feature", "centroid"]
    assert table["predicted"] == ["cat", "<b>owl</b>", None, None, None]


def test_ticks_of_a_chart_over_a_field_say_where_they_stand():
    """One decimal would call 86.25 % 86.2 %, and 1,000 degrees "1k"."""
    chart = FieldChart("Degrees of freedom", "degrees_of_freedom", "blocks", "r")
    rows = [FieldRow(b, 2016 // b, Stat(86.0 + b / 10, 0.1, 2), {}) for b in (1, 2, 4)]
    drawn = analyses.field_chart(rows, chart, Theme(), "fedot")
    layout = drawn.figure.layout
    assert layout.yaxis.tickformat is None and layout.yaxis2.tickformat == ","
    assert layout.yaxis.tickmode == "auto", "an overlaying axis would have its ticks where the other's are"
    assert list(drawn.figure.data[0].y) == [2016, 1008, 504]
    assert "r = 4: 86.4 ± 0.1 % with 504" in drawn.alt


def test_evidence_is_warm_where_the_map_is_high():
    heat = np.zeros((1, 8, 8), dtype=np.float16)
    heat[0, :4] = 1
    pictures = analyses.overlays({"pixels": np.full((1, 8, 8, 3), 100, np.uint8), "map/prediction": heat}, 8)
    assert list(pictures) == ["image", "prediction"]
    assert np.array(Image.open(BytesIO(pictures["image"][0]))).tolist() == np.full((8, 8, 3), 100).tolist()
    laid_over = np.array(Image.open(BytesIO(pictures["prediction"][0]))).astype(int)
    assert laid_over[1, 1, 0] > laid_over[6, 6, 0] + 60  # Inferno is bright yellow at 1, black at 0


def test_the_change_over_a_field_is_paired_by_seed():
    """Where one value lacks a seed, a difference of the means may have another sign."""
    chart = FieldChart("Degrees of freedom", "degrees_of_freedom", "blocks", "r")
    first, fewer, none = ({1: 80.0, 2: 60.0, 3: 40.0}, {1: 79.0, 2: 59.0}, {4: 90.0})
    rows = [
        FieldRow(i, 1, Stat(float(np.mean(list(seeds.values()))), 1.0, len(seeds)), seeds)
        for i, seeds in enumerate((first, fewer, none))
    ]
    table = field_table(rows, chart)
    assert table["personal accuracy, %"] == [60, 69, 90]
    assert table["change against the first, points"] == [0, -1, None]
