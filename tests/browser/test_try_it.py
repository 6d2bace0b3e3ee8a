"""A newcomer's first minutes: Try it, watch every method train, compare, download; runs outlive the app."""

import csv
import re
import time
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Page, TimeoutError, expect

from fedcore.results.comparison import compare
from fedcore.store import Store
from tests.support.jobs import wait_for
from tests.support.web.browser import Server, Tab, settle, start_server

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
TITLES = "[...document.querySelectorAll('.annotation-text')].map(e => e.textContent)"
RECORD = f"""() => {{
  const note = () => {TITLES}.forEach(title => window.seenTitles.add(title));
  window.seenTitles = new Set();
  new MutationObserver(note).observe(document.body, {{ childList: true, subtree: true }});
  note();
}}"""
"""Remembers every title that is drawn: on a busy machine a look now and then would miss some."""
PANEL = re.compile(r"(.+): round (\d+)/(\d+)$")
DEADLINE = 600


ALL = ("zero-shot", "fedot", "promptfl", "sdfed", "fedalign", "feddeap")
LONG = ("PromptFL", "SDFed", "FedAlign", "FedDEAP")
"""Nine tenths of the demonstration's time are theirs."""


def launch_demo(page: Page, server: Server, rounds: int | None = None, without: tuple[str, ...] = ()) -> int:
    """One click from an empty database, or by way of the settings; returns the experiment."""
    page.goto(server.url)
    page.get_by_role("button", name="Try it").wait_for()
    settle(page)
    if rounds is None:
        page.get_by_role("button", name="Try it").click()
    else:
        page.get_by_role("button", name="Look at the settings first").click()
        for method in without:
            page.get_by_role("button", name=f"Remove {method}").click()
            expect(page.get_by_role("button", name=f"Remove {method}")).to_have_count(0)
            settle(page)
        field = page.get_by_label("Rounds", exact=True)
        field.fill(str(rounds))
        field.press("Tab")
        expect(page.get_by_text(f"{rounds} rounds")).to_be_visible()
        page.get_by_role("button", name="Launch").click()
    page.wait_for_url("**/live?id=*")
    expect(page.get_by_role("heading", name="Live")).to_be_visible()
    return int(page.url.rsplit("=", 1)[1])


def watch(page: Page, server: Server, experiment: int) -> dict[str, set[int]]:
    """Round counts seen on each method's panel before its end: while it ran, or below its last round."""
    seen: dict[str, set[int]] = {}
    end = time.monotonic() + DEADLINE
    page.evaluate(RECORD)
    while time.monotonic() < end:
        runs = {r.label: r for r in Store(server.db).runs.of_experiments([experiment])}
        assert not [r.status_text for r in runs.values() if r.state in ("failed", "interrupted", "stopped")]
        titles = page.evaluate(TITLES)
        shown = ",".join(titles)
        found = [(m[1], int(m[2])) for title in titles if (m := PANEL.match(title))]
        for title in page.evaluate("[...window.seenTitles]"):
            if (m := PANEL.match(title)) and int(m[2]) < int(m[3]):
                seen.setdefault(m[1], set()).add(int(m[2]))
        for label, count in found:  # while a chart is drawn anew, the old one is still there
            if count < runs[label].rounds_total or runs[label].state == "running":
                seen.setdefault(label, set()).add(count)
        if set(found) == {(r.label, r.rounds_total) for r in runs.values()}:
            return seen
        with suppress(TimeoutError):  # to see a run that failed, look without news too
            page.wait_for_function(f"shown => String({TITLES}) !== shown", arg=shown, timeout=2_000)
    pytest.fail(f"not done after {DEADLINE} s: {[(r.label, r.state, r.rounds_done) for r in runs.values()]}")


@pytest.mark.parametrize(
    ("rounds", "without", "methods"),
    [
        pytest.param(8, LONG, ALL[:2], id="the quick methods"),
        pytest.param(None, (), ALL, marks=pytest.mark.slow, id="as it is"),
    ],
)
def test_try_it(
    empty_server: Server, tab: Tab, tmp_path: Path, rounds: int | None, without: list[str], methods: list[str]
) -> None:
    page = tab.page
    experiment = launch_demo(page, empty_server, rounds, without)
    seen = watch(page, empty_server, experiment)
    runs = Store(empty_server.db).runs.of_experiments([experiment])
    assert {r.method for r in runs} == set(methods)
    few = {r.label for r in runs if len(seen.get(r.label, ())) < 3}
    assert not few, f"round counts seen: {seen}"
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare?ids=*")
    groups = compare(Store(empty_server.db), [experiment], "last").rows
    table = page.get_by_role("table", name=re.compile("Summary of"))
    for group in groups:
        row = table.get_by_role("row").filter(has_text=group.label)
        expect(row).to_contain_text(group.stats["personal"].text())
    check_downloads(page, empty_server, experiment, tmp_path)


def check_downloads(page: Page, server: Server, experiment: int, folder: Path) -> None:
    """Both CSV files, against the rows of the database."""
    settle(page)
    summary = read(page, "Download CSV", folder / "summary.csv")
    runs = {r.label: r for r in Store(server.db).runs.of_experiments([experiment])}
    personal = {r["label"]: r for r in summary if r["metric"] == "personal"}
    assert personal.keys() == runs.keys()
    for label, run in runs.items():
        accuracies = [o for o in Store(server.db).cells.own_accuracy(run.id) if o.round == run.rounds_total]
        mean = sum(100 * o.correct / o.total for o in accuracies) / len(accuracies)
        assert float(personal[label]["mean"]) == pytest.approx(mean, abs=0.005)
        assert personal[label]["n"] == "1"
        assert personal[label]["std"] == ""
    page.get_by_role("tab", name="Export").click()
    page.get_by_text("More tables").click()
    rounds = read(page, "Rounds CSV", folder / "rounds.csv")
    recorded = {
        (c.run_id, c.round, c.model, c.test_set, c.test_set_kind): (c.correct, c.total)
        for c in Store(server.db).cells.at_rounds({r.id: range(r.rounds_total + 1) for r in runs.values()})
    }
    exported = {
        (int(r["run"]), int(r["round"]), r["model"], r["test_set"], r["test_set_kind"]): (
            int(r["correct"]),
            int(r["total"]),
        )
        for r in rounds
        if (r["split"], r["stage"]) == ("test", "after_aggregation")
    }
    assert exported == recorded
    assert len(recorded) > 40 * len(runs)


def read(page: Page, button: str, path: Path) -> list[dict[str, str]]:
    """Click a download button and read the file."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    download.value.save_as(path)
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rounds_done(server: Server, experiment: int) -> int:
    return sum(r.rounds_done for r in Store(server.db).runs.of_experiments([experiment]))


def wait_for_rounds(server: Server, experiment: int, more_than: int) -> int:
    wait_for(lambda: rounds_done(server, experiment) > more_than, seconds=240)
    return rounds_done(server, experiment)


@pytest.mark.slow
def test_rounds_go_on_without_tab_and_server(empty_server: Server, tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    experiment = launch_demo(page, empty_server, rounds=200)
    wait_for_rounds(empty_server, experiment, 0)
    page.close()
    after_tab = wait_for_rounds(empty_server, experiment, rounds_done(empty_server, experiment))
    empty_server.stop()
    assert empty_server.process.poll() is not None
    done = wait_for_rounds(empty_server, experiment, after_tab)
    again = start_server(empty_server.db, tmp_path / "again.log")
    try:
        page = tab.page.context.new_page()
        page.goto(
            f"{again.url}/live?id={experiment}"
        )  # a link to a page, as the first visit of a fresh server
        expect(page.get_by_role("heading", name="Live")).to_be_visible()
        expect(page.get_by_role("link", name="Compare")).to_be_visible()
        assert rounds_done(again, experiment) >= done
        page.get_by_role("button", name="Stop").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name=re.compile(r"Stop \d run")).click()
        wait_for(lambda: all(r.ended for r in Store(again.db).runs.of_experiments([experiment])), seconds=240)
        states = {r.state for r in Store(again.db).runs.of_experiments([experiment])}
        assert states <= {"stopped", "done"}
        assert "stopped" in states
    finally:
        again.stop()
