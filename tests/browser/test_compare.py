"""Compare in one visit: on a telephone, in the dark, under the pointer, sorted by a click, and as a report.

A report opens from disk with the network forbidden, shows its charts without scripts, and prints on A4.
"""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, Route, expect

from fedcore.base.progress import result_of
from fedcore.results.comparison import compare
from fedcore.results.matrices import row_panels
from fedcore.share.checked import ComparisonChoices, checked_comparison
from fedcore.share.content import read_report
from fedcore.share.page import report_html
from fedcore.store import Store
from tests.support import fill
from tests.support.web.browser import NewPage, Server, Tab, settle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
BROUGHT_OUT = """share => {
  const lines = [...document.querySelectorAll('.scatterlayer .trace')]; // each of two rows has a band
  const clear = lines.filter(e => getComputedStyle(e).opacity === '1');
  return lines.length === 4 && clear.length === share * lines.length;
}"""
COVERED = """() => {
  const bar = document.querySelector('.modebar').getBoundingClientRect();
  const plot = document.querySelector('.nsewdrag').getBoundingClientRect();
  return bar.bottom > plot.top + 1;
}"""
HOSTILE = "<img src=x onerror=window.owned=1> & <script>window.owned=1</script>"
A4 = {"width": 688, "height": 1009}  # pixels within the margins of the sheet
TOO_WIDE = """() => Array.from(document.querySelectorAll('body *'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
FIGURES = """() => Array.from(document.querySelectorAll('figure svg'), svg => ({
  title: svg.closest('figure').querySelector('h3').textContent,
  marks: svg.querySelectorAll('rect, path, circle, image').length,
  height: svg.closest('figure').getBoundingClientRect().height,
  outside: Array.from(svg.querySelectorAll('*')).filter(e => {
    const box = e.getBoundingClientRect(), sheet = svg.getBoundingClientRect();
    return box.width && (
      box.right > sheet.right + 1 || box.left < sheet.left - 1 || box.bottom > sheet.bottom + 1);
  }).map(e => e.textContent || e.tagName),
}))"""

PUSHED = """[...document.querySelectorAll('.js-plotly-plot')].flatMap(({ _fullLayout, layout }) =>
  ['l', 'r'].map(side => _fullLayout._size[side] - layout.margin[side]))"""
"""Pixels beside each chart for which plotly has found no room; from 2 on, it has drawn the chart again."""


def test_compare_fits_a_telephone_follows_the_scheme_is_worked_by_pointer_and_makes_a_report(
    filled_server: Server, tab: Tab, new_page: NewPage, tmp_path: Path
) -> None:
    page, store, file = tab.page, Store(filled_server.db), tmp_path / "report.html"
    page.set_viewport_size({"width": 390, "height": 1200})
    page.goto(f"{filled_server.url}/compare?ids=1&tab=Cost")
    page.locator("table.fl-table").first.wait_for()
    ends = page.evaluate(
        "[...document.querySelectorAll('[role=tab]')].map(t => t.getBoundingClientRect().right)"
    )
    assert len(ends) > 1 and max(ends) <= 390, "the tab of the address is in view, and so are all others"
    heights = page.evaluate("[...document.querySelectorAll('th.num')].map(t => t.clientHeight)")
    assert max(heights) < 45, "one line"

    page.set_viewport_size({"width": 1440, "height": 1200})
    for scheme, letters in (("light", "rgb(28, 39, 51)"), ("dark", "rgb(232, 237, 242)")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        expect(page.locator(".js-plotly-plot .xtick text").first).to_have_css("fill", letters)

    page.get_by_role("tab", name="Heatmaps").click()
    page.locator(".js-plotly-plot .cbaxis").first.wait_for()
    settle(page)
    assert max(page.evaluate(PUSHED)) <= 1, "there is room beside heatmaps: plotly draws each of them once"

    page.get_by_role("tab", name="Curves").click()
    page.locator(".legend .legendtoggle").first.hover()
    page.wait_for_function(BROUGHT_OUT, arg=0.5)
    assert not page.evaluate(COVERED), "the toolbar covers no line"
    page.get_by_role("heading", name="Compare").hover()
    page.wait_for_function(BROUGHT_OUT, arg=1)
    printed = re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))
    assert len(printed) == 1, "the chart is smaller on paper than in the window, and no empty sheet follows"

    page.get_by_role("tab", name="Summary").click()
    headings_sort(page, {g.label: g.stats["worst"].mean for g in compare(store, [1]).rows})
    tabs = page.get_by_role("tablist").bounding_box()
    controls = page.get_by_role("combobox", name="Experiments").bounding_box()
    assert tabs is not None and controls is not None
    assert tabs["y"] - controls["y"] <= 250, "two rows of controls and the finding, with their gaps"

    make_report(page, file)
    page.goto("about:blank")
    opens_from_disk_and_asks_for_nothing(file, store, new_page)


def headings_sort(page: Page, means: dict[str, float]) -> None:
    """A click on a heading sorts the rows, best first; another one turns them round."""
    settle(page)
    table = page.get_by_role("table", name=re.compile("Summary of"))
    heading = table.get_by_role("button", name="Worst client, %")
    expect(page.locator(".st-key-summary_headings_place i[data-listening]")).to_be_attached()
    for sort, state, falling in (("-worst", "descending", True), ("worst", "ascending", False)):
        heading.click()
        page.wait_for_url(lambda address, sort=sort: f"sort={sort}" in address)
        expect(table.locator(f"th[aria-sort={state}]")).to_have_count(1)
        first = sorted(means, key=means.__getitem__, reverse=falling)[0]
        expect(table.locator("tbody tr").first).to_contain_text(first)


def make_report(page: Page, file: Path) -> None:
    page.get_by_role("button", name="Report", exact=True).click()
    page.get_by_label("Title").fill(HOSTILE)
    page.get_by_label("Notes").fill("Measured on a rainy day.")
    page.get_by_role("button", name="Make report").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save report").click()
    download.value.save_as(file)


def opens_from_disk_and_asks_for_nothing(file: Path, store: Store, new_page: NewPage) -> None:
    """With the network forbidden, it has the numbers of the database and runs nothing of its users."""
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

    expect(page.locator(".notes")).to_have_text("Measured on a rainy day.")
    compared = compare(store, [1])
    groups = {g.label: g for g in compared.rows}
    row = page.get_by_role("table", name="Summary of").get_by_role("row").filter(has_text="FedOT")
    expect(row).to_contain_text(groups["FedOT"].stats["personal"].text(2))

    figure = page.locator("figure").filter(
        has=page.get_by_role("heading", name="Model by test set", exact=True)
    )
    figure.scroll_into_view_if_needed()
    panels = row_panels(store, compared, next(iter(compared.settings)))
    first = panels[groups["FedOT"].key]
    figure.locator("rect[fill]:not([fill='#d4d7db'])").first.hover()
    tip = f"{first.rows[0]} on {first.columns[0]}\n{first.values[0, 0]:.1f} %"
    expect(page.locator("#tip")).to_contain_text(tip)
    figure.get_by_text("Numbers").click()
    cell = figure.get_by_role("table", name="FedOT").get_by_role("row").nth(1).get_by_role("cell").nth(1)
    expect(cell).to_have_text(f"{first.values[0, 0]:.1f}")

    assert page.evaluate("window.owned") is None, "a name of the database was run"
    assert asked == [file.as_uri()], "the report asked for something"
    assert complaints == [], "a script failed, or the policy had something to forbid"


def test_the_address_of_a_view_is_copied_by_a_click(filled_server: Server, tab: Tab) -> None:
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.page.goto(f"{filled_server.url}/compare?ids=1&tab=Cost")
    tab.page.get_by_role("button", name="Share").click()
    expect(tab.page.get_by_role("button", name="Copied")).to_be_visible()
    assert tab.page.evaluate("navigator.clipboard.readText()") == tab.page.url
    assert "tab=Cost" in tab.page.url


@pytest.mark.slow
@pytest.mark.parametrize("clients", [6, 45])
def test_a_report_prints_on_a4_and_needs_no_script(new_page: NewPage, tmp_path: Path, clients: int) -> None:
    """Nothing is cut off: neither at the right of the sheet, nor a chart that is taller than it."""
    names = [f"client {i}" for i in range(clients)]
    db = tmp_path / "runs.db"
    made, writers = fill.start(
        db, fill.an_experiment("Printed", ("fedot", "promptfl", "sdfed", "fedalign"), (1, 2, 3), 4)
    )
    for writer in writers:
        fill.train(writer, clients=names)
    fill.let_go(db, writers[0].claim.owner)
    with checked_comparison(
        Store(db), [made.experiment_id], ComparisonChoices(baseline="PromptFL")
    ) as checked:
        text = result_of(report_html(result_of(read_report(checked))))
    assert len(text.encode()) < 2_000_000, "twelve runs"
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")

    page = new_page(viewport=A4, offline=True, java_script_enabled=False)
    page.goto(file.as_uri())
    pdf = page.pdf(prefer_css_page_size=True)
    sheets = re.findall(rb"/MediaBox\s*\[\s*0\s+0\s+([\d.]+)\s+([\d.]+)", pdf)
    assert 5 <= len(sheets) <= 30
    assert {(round(float(w)), round(float(h))) for w, h in sheets} <= {(595, 842), (596, 842), (595, 841)}
    page.emulate_media(media="print")
    assert page.evaluate(TOO_WIDE) == []
    figures = page.evaluate(FIGURES)
    assert len(figures) >= 8
    for figure in figures:
        assert figure["marks"] > 2 and figure["height"] < A4["height"] and not figure["outside"], figure
    expect(page.get_by_text("Accuracy in %").first).to_be_visible()  # of the colour bar
    assert clients > 10 or page.get_by_text("own test images").first.is_visible(), "the legend"
