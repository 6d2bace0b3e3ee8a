from __future__ import annotations

from pathlib import Path

from fedcore.config import parse
from fedcore.plots.search import DrawPoint, search_chart, search_table
from fedcore.plots.theme import Theme
from fedcore.results.search import methods_of
from fedcore.store import Store
from tests.support import fill


def test_a_search_names_the_best_draw_so_far_with_its_values(tmp_path: Path) -> None:
    tuning = {"draws": 3, "space": {"fedot": {"blocks": {"choices": [2, 4]}}}}
    methods = [{"name": "fedot"}, {"name": "promptfl"}, {"name": "zero-shot"}]
    db = tmp_path / "runs.db"
    created, writers = fill.start(db, parse({"name": "x", "methods": methods, "rounds": 1, "tuning": tuning}))
    for i in (0, 1):
        fill.train(writers[i])
    for writer in writers[3:6]:
        writer.claim.finish("failed", "it diverged")
    store = Store(db)
    fedot, promptfl, zero_shot = methods_of(store, store.experiments.get(created.experiment_id))
    assert (fedot.done, fedot.failed, fedot.budget, fedot.fields) == (2, 0, 3, ("lr", "blocks"))
    assert fedot.text.startswith("draw 1 of 3, learning rate 5e-05, blocks 1, ")
    assert promptfl.text == "all 3 draws failed" and zero_shot.text == "nothing to search"


def test_the_chart_of_draws_marks_the_best_and_has_a_logarithmic_axis_for_wide_ranges() -> None:
    points = [
        DrawPoint("FedOT", "fedot", value, accuracy, f"draw {i}", accuracy == 90)
        for i, (value, accuracy) in enumerate([(0.001, 80), (0.1, 90), (0.01, 70)], 1)
    ]
    chart = search_chart(points, Theme(), "methods.fedot.lr")
    assert chart.figure.layout.xaxis.type == "log"
    (trace,) = chart.figure.data
    assert trace.marker.size[1] > trace.marker.size[0] == trace.marker.size[2]
    assert chart.alt.endswith("best: FedOT 90.0 % at 0.1.")
    assert search_table(points, "methods.fedot.lr")["best"] == ["", "yes", ""]
    words = [p._replace(value=text) for p, text in zip(points, ("text", "random", "text"), strict=True)]
    assert search_chart(words, Theme(), "methods.fedot.init").figure.layout.xaxis.type == "category"
