"""The Live page with several seeds and held-out domains at once."""

from pathlib import Path

import pytest

from fedcore.store import Store
from pages.live_view.controls import variant_offers
from tests.support import fill
from tests.support.web.live import charts, widget
from tests.support.web.pages import Opened, html


@pytest.fixture
def unequal(db: Path) -> Path:
    """FedOT: the first seed has done three rounds, the second only the first one, the third waits."""
    _, writers = fill.start(db, fill.an_experiment("Seeds", ("fedot",), (1, 2, 3), 3))
    fill.train(writers[0])
    fill.train(writers[1], until=1)
    return db


def test_all_seeds_are_one_line_with_a_band(open_page: Opened, unequal: Path) -> None:
    app = open_page("live", id="1", live_variant_1="all seeds")
    grid, accuracy, *_ = charts(app)
    first, second, _ = Store(unequal).runs.of_experiments([1])
    per_run: dict[int, dict[int, float]] = {first.id: {}, second.id: {}}
    for row in Store(unequal).rounds.mean_accuracy([first.id, second.id]):
        assert row.personal_mean is not None
        per_run[row.run_id][row.round] = 100 * row.personal_mean
    (band,) = (t for t in accuracy["figure"]["data"] if t.get("fill"))
    (line,) = (t for t in accuracy["figure"]["data"] if not t.get("fill"))
    expected = [
        (per_run[first.id][r] + per_run[second.id].get(r, per_run[first.id][r])) / 2 for r in range(4)
    ]
    assert line["y"] == pytest.approx(expected)
    assert line["name"] == "FedOT (n = 2)"
    half = abs(per_run[first.id][1] - per_run[second.id][1]) / 2**0.5
    assert band["y"][1] == pytest.approx(expected[1] + half), "one sample standard deviation of two values"
    assert [text.endswith("(n = 1 of 2)") for text in line["customdata"]] == [False, False, True, True]
    assert any("FedOT: 2 seeds, round 1 to 3" in a["text"] for a in grid["figure"]["layout"]["annotations"])
    assert any("that have reached a round" in c.value for c in app.caption)
    assert "FedOT, seed 3" in html(app)


def test_a_single_seed_is_shown_unless_all_are_chosen(open_page: Opened, unequal: Path) -> None:
    app = open_page("live", id="1")
    choice = widget(app.selectbox, "live_variant_1")
    assert choice.options == ["all seeds", "seed 1", "seed 2", "seed 3"]
    assert choice.value == "seed 2", "the one that trains"
    assert not any(t.get("fill") for t in charts(app)[1]["figure"]["data"])


def test_all_held_out_domains_are_shown_at_once(open_page: Opened, db: Path) -> None:
    fill.done(db, fill.an_experiment("held", ("fedot",), (1, 2), 1, held_out=fill.CLIENTS[:2]))
    app = open_page("live", id="1", live_variant_1="all seeds, all held-out domains")
    grid, accuracy, *_ = charts(app)
    (heat,) = (t for t in grid["figure"]["data"] if t["type"] == "heatmap")
    assert heat["z"]["shape"] == "2, 6", "a row per held-out domain"
    names = [t["name"] for t in accuracy["figure"]["data"] if not t.get("fill")]
    assert names == ["FedOT, without 0° (n = 2)", "FedOT, without 15° (n = 2)"]
    runs = Store(db).runs.of_experiments([1])
    offers = variant_offers(runs)
    assert {name: len(shown) for name, shown in offers.items()} == {
        "all seeds, all held-out domains": 4,
        "seed 1, all held-out domains": 2,
        "seed 2, all held-out domains": 2,
        "all seeds, without 0°": 2,
        "all seeds, without 15°": 2,
        "seed 1, without 0°": 1,
        "seed 1, without 15°": 1,
        "seed 2, without 0°": 1,
        "seed 2, without 15°": 1,
    }
    app = open_page(
        "live", id="1", live_variant_1="seed 1, all held-out domains", live_view="Client by round"
    )
    titles = [a["text"] for a in charts(app)[0]["figure"]["layout"]["annotations"]]
    assert any("FedOT, without 15°: round 1/1" in title for title in titles)


def test_many_runs_scroll_with_those_that_train_first(open_page: Opened, db: Path) -> None:
    _, writers = fill.start(db, fill.an_experiment("many", ("fedot",), tuple(range(1, 17)), 1))
    for writer in writers[:-1]:
        writer.claim.finish("stopped")
    table = html(open_page("live", id="1", live_variant_1="all seeds"))
    assert "16 runs, running ones first" in table
    assert table.index("FedOT, seed 16") < table.index("FedOT, seed 1<")
