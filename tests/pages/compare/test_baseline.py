"""The baseline of the page Compare belongs to its rows and not to their label."""

from __future__ import annotations

from pathlib import Path

from tests.support import fill
from tests.support.web.pages import Opened, widget


def test_the_baseline_stays_pinned_when_its_label_changes(open_page: Opened, tmp_path: Path) -> None:
    """An added experiment has the same method with another value, so that labels name it."""
    db = tmp_path / "runs.db"
    methods = ("fedot", "promptfl")
    fill.done(db, fill.an_experiment("One", methods=methods, seeds=(1,), rounds=2))
    other = fill.an_experiment("Two", methods=("fedot",), seeds=(1,), rounds=2)
    other = other.model_copy(
        update={"methods": (other.methods[0].model_copy(update={"config": {"lr": 0.5}, "label": None}),)}
    )
    fill.done(db, other)
    fill.done(db, fill.an_experiment("Three", methods=("promptfl",), seeds=(2,), rounds=3))
    app = open_page("compare", ids=["1"])
    chosen = widget(app, "Baseline", "selectbox")
    label = next(o for o in chosen.options if "FedOT" in o)
    app = chosen.select(label).run()

    app = widget(app, "Experiments").set_value([1, 2]).run()
    now = widget(app, "Baseline", "selectbox")
    assert now.value is not None and now.value in now.options and now.value.startswith("FedOT ")

    app = widget(app, "Experiments").set_value([3]).run()
    assert widget(app, "Baseline", "selectbox").value is None
    assert any("The baseline FedOT" in c.value and "has no row here" in c.value for c in app.caption)

    app = widget(app, "Experiments").set_value([1]).run()
    assert widget(app, "Baseline", "selectbox").value == label
