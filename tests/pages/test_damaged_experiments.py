"""An experiment that cannot be read is one line of the page, and can be deleted there."""

from pathlib import Path

import pytest

from fedcore.store import Store
from tests.support import fill
from tests.support.jobs import wait_for
from tests.support.web.live import charts
from tests.support.web.pages import Opened


@pytest.fixture
def damaged(filled: Path) -> Path:
    fill.alter(filled, "UPDATE experiments SET config='{}', name='Odd <b>' WHERE id=1")
    return filled


def test_a_damaged_experiment_is_one_line_and_can_be_deleted(open_page: Opened, damaged: Path) -> None:
    app = open_page()
    (line,) = [e.value for e in app.error]
    assert "experiment 1 cannot be read" in line and "Odd" in line and "<b>" not in line
    assert list(app.dataframe[0].value["Experiment"]) == ["In the middle of things"]
    app = next(b for b in app.button if b.key == "damaged_1").click().run()
    assert [b.key for b in app.button if b.key == "delete_damaged_confirmed"]
    Store(damaged).experiments.delete(1)  # as that button does: a dialog's button cannot be pressed here
    assert not open_page().error


@pytest.mark.parametrize("page", ["compare", "leaderboard", "live", "new", "data"])
def test_the_other_pages_go_on_without_it(open_page: Opened, damaged: Path, page: str) -> None:
    app = open_page(page)
    assert not app.exception and app.title, "the page is drawn as usual"


@pytest.mark.parametrize(
    ("page", "query"), [("compare", {"ids": "1"}), ("live", {"id": "1"}), ("run", {"id": "1"})]
)
def test_a_link_to_it_says_what_is_wrong(
    open_page: Opened, damaged: Path, page: str, query: dict[str, str]
) -> None:
    app = open_page(page, **query)
    shown = [e.value for kind in ("error", "warning", "info") for e in app.get(kind)]
    assert any(any(words in text.lower() for words in ("damaged", "does not exist")) for text in shown), shown


def test_a_run_that_cannot_be_compared_leaves_the_heatmaps_of_live(open_page: Opened, tmp_path: Path) -> None:
    """The outcome in words compares the runs, which needs every config."""
    number = fill.done(
        tmp_path / "runs.db", fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=2)
    )
    fill.alter(tmp_path / "runs.db", "UPDATE runs SET config='{}' WHERE id=1")
    app = open_page("live", id=str(number))
    assert not app.exception
    assert any("run 1" in e.value for e in app.error)
    assert charts(app)


def test_a_changed_number_is_said_above_the_page(open_page: Opened, filled: Path) -> None:
    """One flipped bit changed an accuracy on the pages without a word."""
    assert not open_page().error
    fill.alter(filled, "UPDATE runs SET last_test=last_test/2 WHERE id=1")

    def said() -> list[str]:
        return [e.value for e in open_page().error]

    wait_for(said)
    (line,) = said()
    assert (
        "is damaged" in line and "numbers that are shown may be wrong" in line and "`fedlens doctor`" in line
    )
