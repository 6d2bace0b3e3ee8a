"""From a cell of the difference heatmap to the test images that only one of two methods gets right."""

import re

import pytest
from playwright.sync_api import expect

from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.jobs import analysis, job
from fedcore.jobs.job import Heartbeat
from fedcore.results.analyses import count_disagreement
from fedcore.store import Store
from fedcore.store.liveness import new_owner
from tests.support.web.browser import Server, Tab, settle

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]
EXPERIMENT = {
    "name": "To look behind",
    "methods": [{"name": "promptfl", "config": {"context_length": 2}}, {"name": "zero-shot"}],
    "data": {"name": "rotated-digits", "domains": ["rot0", "rot75"], "shots": 2},
    "rounds": 2,
}


@pytest.fixture
def trained(server: Server) -> tuple[int, int, int]:
    """An experiment of two trained runs, with its id and theirs."""
    store, experiment = Store(server.db), parse(EXPERIMENT)
    store.prepare()
    owner = new_owner()
    created = store.experiments.create(experiment, plan(experiment).runs, claimer=(owner, "cpu"))
    with Heartbeat(store) as heartbeat:
        assert [job.execute(claim, heartbeat) for claim in created.claims] == ["done", "done"]
    first, second = created.run_ids
    return created.experiment_id, first, second


def test_a_click_on_a_difference_shows_its_pictures(
    server: Server, tab: Tab, trained: tuple[int, int, int]
) -> None:
    page, (experiment, first, second) = tab.page, trained
    page.goto(f"{server.url}/compare?ids={experiment}&baseline=Zero-shot CLIP&tab=Heatmaps")
    chart = page.locator(".st-key-compare_gap_models_0 .js-plotly-plot")
    chart.scroll_into_view_if_needed()
    settle(page)
    box = chart.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    x, y = box["x"] + 0.9 * box["width"], box["y"] + 0.9 * box["height"]
    page.mouse.move(x - 20, y - 10)
    page.mouse.move(x, y)
    page.mouse.click(x, y)  # the last client's model on the last client's samples
    expect(page.get_by_text("Looking for the images")).to_be_visible()
    place = "document.querySelector('.st-key-compare_gap_models_0 .js-plotly-plot').layout.shapes.at(-1)"
    page.wait_for_function(f"{place}.x0 === 0.5 && {place}.y0 === 1.5")  # the cell is marked
    expect(page.get_by_text(re.compile("McNemar's p"))).to_be_visible()

    task = analysis.find(Store(server.db), first, analysis.Against(second), 2, 2)
    assert task is not None, "the cell that was clicked is the one that is answered"
    found = count_disagreement(task.arrays())
    said = f"Of {found.total} test images, {found.only_first} are right with PromptFL only"
    expect(page.get_by_text(said)).to_be_visible()
    shown = len(task.arrays()["shown"])
    assert shown > 0
    for name in ("test image, class", "Grad-CAM of PromptFL", "Grad-CAM of Zero-shot CLIP"):
        expect(page.get_by_role("img", name=name)).to_have_count(shown)


def test_two_runs_show_their_predictions_beside_each_other(
    server: Server, tab: Tab, trained: tuple[int, int, int]
) -> None:
    page, (experiment, first, second) = tab.page, trained
    page.goto(f"{server.url}/compare?ids={experiment}&tab=Two runs")
    page.get_by_role("button", name="Compute predictions").click()
    counts = page.get_by_role("table", name="Test images by correct run")
    expect(counts).to_be_visible()
    shown = [int(text) for text in counts.get_by_role("cell").all_inner_texts() if text.isdigit()]
    both, only_first, only_second, _ = shown
    for run, only in ((first, only_first), (second, only_second)):
        cells = [c for c in Store(server.db).cells.own_accuracy(run) if c.round == EXPERIMENT["rounds"]]
        assert both + only == sum(cell.correct for cell in cells)
        assert sum(shown) == sum(cell.total for cell in cells)
