"""What a page reads does not grow with the number of experiments."""

from collections import Counter
from pathlib import Path

import pytest

from fedcore.store import Store, experiments, runs
from tests.support.many import copies
from tests.support.web.pages import Opened, html, widget

MANY = 3_000


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the experiments and runs whose rows are turned into objects."""
    counts: Counter[str] = Counter()
    for module, name in ((experiments.Experiments, "_row"), (experiments, "run_row"), (runs, "run_row")):
        original = getattr(module, name)

        def counted(*args: object, original=original, kind=name, **more: object) -> object:
            counts[kind] += 1
            return original(*args, **more)

        monkeypatch.setattr(module, name, counted)
    return counts


@pytest.mark.parametrize(
    ("page", "query", "most"),
    [
        ("experiments", {}, 100),
        ("leaderboard", {}, 1),
        ("compare", {"ids": "1"}, 3),
        ("compare", {}, 10),
        ("live", {"id": "1"}, 6),
        ("live", {}, 15),
        ("new", {"preset": "demo"}, 0),
        ("papers", {"table": "fedot-1"}, 0),
        ("run", {"id": "1"}, 4),
    ],
)
def test_a_page_reads_few_experiments(
    open_page: Opened, db: Path, read: Counter[str], page: str, query: dict[str, str], most: int
) -> None:
    copies(db, MANY)
    app = open_page(page, **query)
    assert not app.exception and app.title
    assert read["_row"] <= most
    assert read["run_row"] <= 2 * most + 12


def test_the_list_ends_after_the_newest_and_goes_on_when_asked(open_page: Opened, db: Path) -> None:
    copies(db, 120)
    app = open_page()
    names = list(app.dataframe[0].value["Experiment"])
    assert len(names) == 100 and names[0] == "Copy 120"
    (said,) = [c.value for c in app.caption if "newest" in c.value]
    assert said == "The newest 100 of 122 experiments; a search finds the others too."
    assert "<b>242</b>" in html(app), "the stopped runs of all experiments are counted"
    app = widget(app, "List all 122", "toggle").set_value(True).run()
    assert len(app.dataframe[0].value["Experiment"]) == 122
    assert not any("The newest" in c.value for c in app.caption)


@pytest.mark.parametrize("query", [{"find": "The first"}, {"status": "done"}])
def test_a_search_finds_an_old_experiment(open_page: Opened, db: Path, query: dict[str, str]) -> None:
    copies(db, 120)
    assert list(open_page(**query).dataframe[0].value["Experiment"]) == ["The first"]


def test_a_link_to_an_old_selection_selects_it(open_page: Opened, db: Path) -> None:
    first = copies(db, 120)
    app = open_page(chosen=str(first))
    assert app.query_params["chosen"] == str(first)
    assert any(m.value == "**Runs of The first**" for m in app.markdown)


def test_menus_offer_every_experiment(open_page: Opened, db: Path) -> None:
    copies(db, 120)
    assert len(widget(open_page("live"), "Experiment", "selectbox").options) == 122
    assert len(widget(open_page("compare"), "Experiments").options) == 122
    assert len(Store(db).experiments.titles()) == 122
