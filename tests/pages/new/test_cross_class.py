"""The form of the cross-class protocol: its data sets, and the one partition that it has."""

from __future__ import annotations

from fedcore.papers.experiments import preset
from fedcore.store import Store
from tests.support.web.pages import Opened, button, plan_line


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

    app = open_page("new", preset="cross-class")
    (protocol,) = (s for s in app.selectbox if s.label == "Protocol")
    app = protocol.set_value("base").run()
    assert not any(m.label == "Further data sets" for m in app.multiselect)
    (partition,) = (s for s in app.selectbox if s.label == "Partition")
    assert "blocks" not in partition.options and not app.error
