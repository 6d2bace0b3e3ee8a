"""The journeys of a researcher beyond the first minutes: own data, comparing, exporting, recovering.

*Try* and *watch* are in ``test_try_it``.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from fedcore.results.comparison import compare
from fedcore.store import Store
from tests.support import fill
from tests.support.jobs import wait_for
from tests.support.web.browser import Server, Tab, settle

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
CLASSES = ("circle", "cross", "square")
DOMAINS = ("bright", "dim")


def pictures(folder: Path) -> Path:
    """Coloured noise in domain/class/image, 8 of each, and one file that is no image."""
    rng = np.random.default_rng(0)
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            where = folder / domain / name
            where.mkdir(parents=True)
            for i in range(8):
                pixels = rng.integers(0, 60, (40, 40, 3), dtype=np.uint8)
                pixels[..., c] += np.uint8(60 + 90 * (1 - d))
                Image.fromarray(pixels).save(where / f"{i}.png")
    (folder / "dim" / "cross" / "broken.png").write_bytes(b"not a picture")
    return folder


def type_into(page: Page, label: str, text: str) -> None:
    field = page.get_by_label(label, exact=True)
    field.fill(text)
    field.press("Enter")


@pytest.mark.slow
def test_own_data_is_checked_launched_and_recovers_from_its_loss(
    server: Server, tab: Tab, tmp_path: Path
) -> None:
    page, folder = tab.page, pictures(tmp_path / "my shapes & more")
    page.goto(f"{server.url}/data")
    type_into(page, "Folder on this machine", str(folder))
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("48 images")).to_be_visible()
    expect(page.get_by_text("1 left out")).to_be_visible()
    page.get_by_role("button", name="New experiment with this data").click()
    page.wait_for_url("**/new*")
    type_into(page, "Rounds", "1")
    expect(page.get_by_text("1 round", exact=False).first).to_be_visible()
    launch = page.get_by_role("button", name="Launch")
    expect(launch).to_be_enabled()
    moved = folder.with_name("moved away")
    shutil.move(folder, moved)  # the disk is gone between the form and the run
    launch.click()
    page.wait_for_url("**/live?id=*")
    experiment = Store(server.db).experiments.get(int(page.url.rsplit("=", 1)[1]))
    assert experiment.config.data.root == str(folder)
    wait_for(lambda: all(r.ended for r in Store(server.db).runs.of_experiments([experiment.id])), seconds=240)
    failed = Store(server.db).runs.of_experiments([experiment.id])
    assert {r.state for r in failed} == {"failed"}
    assert str(folder) in (failed[0].status_text or "")

    page.goto(f"{server.url}/run?id={failed[0].id}")
    expect(page.get_by_role("alert").filter(has_text="my shapes")).to_be_visible()
    expect(page.get_by_role("button", name="Clone")).to_be_enabled()
    shutil.move(moved, folder)
    page.get_by_role("button", name="Resume").click()
    wait_for(lambda: Store(server.db).runs.get([failed[0].id])[0].state == "done", seconds=240)
    page.goto(f"{server.url}/run?id={failed[0].id}")
    expect(page.get_by_text("✓ done")).to_be_visible()


@pytest.fixture(scope="module")
def made_up(shared_server: Server) -> int:
    return fill.done(
        shared_server.db,
        fill.an_experiment("A <b>comparison</b>", ("fedot", "promptfl", "zero-shot"), (1, 2, 3), 12),
    )


def test_a_comparison_has_a_baseline_and_a_link(server: Server, tab: Tab, made_up: int) -> None:
    page = tab.page
    page.goto(f"{server.url}/compare?ids={made_up}")
    table = page.get_by_role("table", name=re.compile("Summary of"))
    expect(table).to_be_visible()
    settle(page)
    page.get_by_role("combobox", name="Baseline").click()
    page.get_by_role("option", name="PromptFL").click()
    groups = {g.label: g for g in compare(Store(server.db), [made_up], "last").rows}
    gain = groups["FedOT"].stats["personal"].mean - groups["PromptFL"].stats["personal"].mean
    row = table.get_by_role("row").filter(has_text="FedOT")
    expect(row).to_contain_text(f"{gain:+.1f}")
    address = page.url
    assert "baseline=" in address
    other = page.context.new_page()
    other.goto(address)
    again = (
        other.get_by_role("table", name=re.compile("Summary of")).get_by_role("row").filter(has_text="FedOT")
    )
    expect(again).to_contain_text(f"{gain:+.1f}")
    other.close()


def test_files_hold_the_numbers_of_the_screen(server: Server, tab: Tab, made_up: int, tmp_path: Path) -> None:
    page = tab.page
    page.goto(f"{server.url}/compare?ids={made_up}")
    shown = (
        page.get_by_role("table", name=re.compile("Summary of")).get_by_role("row").filter(has_text="FedOT")
    )
    expect(shown).to_be_visible()
    group = next(g for g in compare(Store(server.db), [made_up], "last").rows if g.label == "FedOT")
    expect(shown).to_contain_text(group.stats["personal"].text())
    settle(page)
    page.get_by_role("tab", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Summary CSV").click()
    download.value.save_as(tmp_path / "summary.csv")
    with (tmp_path / "summary.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    mine = next(r for r in rows if r["label"] == "FedOT" and r["metric"] == "personal")
    assert f"{float(mine['mean']):.1f}" == f"{group.stats['personal'].mean:.1f}"
    with page.expect_download() as download:
        page.get_by_role("button", name="Whole experiment JSON").click()
    download.value.save_as(tmp_path / "experiment.json")
    assert "comparison" in json.dumps(json.loads((tmp_path / "experiment.json").read_text("utf-8")))
    settle(page)
    page.get_by_role("tab", name="Heatmaps").click()
    page.locator(".js-plotly-plot").first.hover()
    with page.expect_download() as download:
        page.locator("[data-title*='Download plot'], [data-title*='PNG'], [data-title*='png']").first.click()
    assert download.value.suggested_filename.endswith((".png", ".svg"))
