"""From a printed table to one's own: a data set is got, and the runs that lacked it fill the table."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from fedcore.data import catalog
from fedcore.store import Store
from tests.browser.conftest import serving
from tests.support.data import hub
from tests.support.web.browser import ROOT, Server, Tab, settle

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]
PAPER = """
title = "Small photographs"
citation = "Nobody, 2026"
licence = "made up"
kind = "paper"
"""
RUNS = """
[data]
PACS = "pacs"

[domains]
PACS = { A = "art_painting", C = "cartoon", P = "photo", S = "sketch" }

[[methods]]
method = ["CLIP"]
name = "zero-shot"

[[methods]]
method = ["PromptFL"]
name = "promptfl"

[presets.table1]
name = "Small photographs, Table 1"
data = { name = "pacs", split = "80/20" }
backbone = { name = "mini-vit" }
methods = [{ name = "zero-shot", label = "CLIP" }, { name = "promptfl", label = "PromptFL" }]
rounds = 1
seeds = [1]
reproduces = [{ table = "1", dataset = "PACS" }]
"""
METHODS, DOMAINS = ("CLIP", "PromptFL"), "ACPS"


@pytest.fixture
def without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The app with a paper whose runs need PACS, on an account that has no data, and a Hub that has PACS."""
    paper = tmp_path / "small_photographs"
    paper.mkdir()
    (paper / "paper.toml").write_text(PAPER)
    (paper / "runs.toml").write_text(RUNS)
    lines = [
        f"1,PACS,,mini-vit,{method},{domain},accuracy,14.29," for method in METHODS for domain in DOMAINS
    ]
    head = "table,dataset,setting,backbone,method,target,metric,value,std"
    (paper / "values.csv").write_text("\n".join([head, *lines, ""]))
    db = tmp_path / "app" / "runs.db"
    db.parent.mkdir()
    command = [sys.executable, "-m", "fedcore", "papers", "add", str(paper), "--db", str(db)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    pacs = catalog.entry("pacs")
    assert pacs.hub is not None
    with hub.serving() as server:
        server.push(pacs.hub.repo, hub.write_pacs(tmp_path / "pacs", pacs.counts), commit=pacs.hub.revision)
        places = {
            name: str(tmp_path / name.lower()) for name in ("HF_HOME", "FEDLENS_STATE", "FEDLENS_CACHE")
        }
        for name, value in {**places, "HF_ENDPOINT": server.address}.items():
            monkeypatch.setenv(name, value)
        with serving(db.parent) as running:
            yield running


def test_five_clicks_lead_from_no_data_to_a_filled_table(without_data: Server, tab: Tab) -> None:
    page = tab.page
    page.goto(without_data.url)
    page.get_by_role("heading", level=1).wait_for()
    settle(page)
    page.get_by_role("link", name="Papers").click()
    page.get_by_role("combobox", name="Paper").click()
    page.keyboard.type("Small photographs")
    page.get_by_role("option", name="Small photographs").click()
    expect(page.get_by_text("0 of 8 measured: 8 need data.")).to_be_visible()
    page.get_by_role("button", name="Fill the table").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("191 MB to download from huggingface.co/datasets/flwrlabs/pacs")
    expect(dialog).to_contain_text("No licence stated by its authors")
    dialog.get_by_role("button", name="Get 1 data set (191 MB) and queue 2 runs").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_text("8 of 8 measured")).to_be_visible(timeout=600_000)
    expect(page.locator("td .ours")).to_have_count(8)
    (experiment,) = Store(without_data.db).experiments.all()
    assert experiment.config.data.root is None and [run.state for run in experiment.runs] == ["done", "done"]
    page.goto(f"{without_data.url}/data")
    card = page.locator(".card", has=page.get_by_role("button", name="PACS", exact=True))
    expect(card).to_contain_text("✓ here")
    expect(card.locator("img")).to_be_visible()
