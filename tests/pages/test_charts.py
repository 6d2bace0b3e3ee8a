"""What the browser gets of a chart."""

import json

import plotly.graph_objects as go

from fedcore.results.charts.theme import Chart
from pages.widgets.charts import TEMPLATE, payload


def test_a_chart_is_sent_with_its_own_template_alone():
    """Streamlit makes a template of 6 KB the default, whose colours only its own component replaces."""
    figure = go.Figure({"data": [{"type": "scatter", "y": [1, 2]}], "layout": {"title": {"text": "<A>"}}})
    sent = json.loads(payload(Chart(figure, "two points"), "1"))
    assert sent["alt"] == "two points"
    assert sent["figure"] == {
        "data": [{"type": "scatter", "y": [1, 2]}],
        "layout": {"title": {"text": "<A>"}, "template": TEMPLATE, "uirevision": "1"},
    }
