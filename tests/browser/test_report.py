"""A report that was made with one click opens from disk: without server, and with the network forbidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Request, Route, expect

from fedcore.results.comparison import compare
from fedcore.results.panels.matrices import row_panels
from fedcore.store import Store
from tests.support import fill
from tests.support.web.browser import NewPage, Server, Tab

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
HOSTILE = "<img src=x onerror=window.owned=1> & <script>window.owned=1</script>"
CELLS = "chart => Array.from(chart.calcdata[0][0].z, row => Array.from(row))"  # what plotly draws


def test_a_report_opens_from_disk_and_asks_for_nothing(
    server: Server, tab: Tab, new_page: NewPage, tmp_path: Path
) -> None:
    number = fill.done(server.db, fill.an_experiment(HOSTILE, ("fedot", "promptfl"), (1, 2, 3), 3))
    tab.page.goto(f"{server.url}/compare?ids={number}")
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="Report", exact=True).click()
    file = tmp_path / "report.html"
    download.value.save_as(file)
    tab.page.goto("about:blank")

    page = new_page(viewport={"width": 1200, "height": 900}, offline=True)
    asked: list[str] = []
    complaints: list[str] = []

    def forbid(route: Route, request: Request) -> None:
        asked.append(request.url)
        if request.url == file.as_uri():
            route.continue_()
        else:
            route.abort()

    page.route("**/*", forbid)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)

    compared = compare(Store(server.db), [number])
    groups = {g.label: g for g in compared.rows}
    row = page.get_by_role("table", name="Summary of").get_by_role("row").filter(has_text="FedOT")
    expect(row).to_contain_text(groups["FedOT"].stats["personal"].text(2))

    figure = page.locator("figure").filter(
        has=page.get_by_role("heading", name="Model by test set", exact=True)
    )
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".heatmaplayer image").first).to_be_visible()
    panels = row_panels(Store(server.db), compared, next(iter(compared.settings)))
    shown = figure.locator(".chart").evaluate(CELLS)
    assert shown == [pytest.approx(list(values), abs=1e-4) for values in panels[groups["FedOT"].key].values]
    figure.get_by_text("Numbers").click()
    first = panels[groups["FedOT"].key]
    cell = figure.get_by_role("table", name="FedOT").get_by_role("row").nth(1).get_by_role("cell").nth(1)
    expect(cell).to_have_text(f"{first.values[0, 0]:.1f}")

    assert page.evaluate("window.owned") is None, "a name of the database was run"
    assert asked == [file.as_uri()], "the report asked for something"
    assert complaints == [], "a script failed, or the policy had something to forbid"
