"""The journey of a researcher with data of their own, which recovers from the loss of that data.

*Try*, *watch* and *download* are in ``test_try_it``, *compare* in ``test_access``.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from fedcore.base.files import PROJECT
from fedcore.store import Store
from tests.support.jobs import wait_for
from tests.support.web.browser import Server, Tab

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
    expect(page.get_by_text("48 images, 3 classes", exact=False).first).to_be_visible()
    expect(page.get_by_text("1 left out")).to_be_visible()
    page.get_by_role("button", name="New experiment with this data").click()
    page.wait_for_url("**/new*")
    choose(page, "CLIP backbone", "mini-vit")  # for photographs of one's own the form proposes a larger one
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


OWN_METHOD = """
from fedcore.methods import About, method
from fedcore.methods.baselines.prompts.promptfl import PromptFL

@method
class Mine(PromptFL):
    name = "mine"
    about = About(title="Mine", source="a test", summary="Prompts that are learned with a slip.")

    def after_training(self, trained, received, data, round_):
        assert round_ < 2, "a slip"
        return trained
"""
OWN_EXPERIMENT = """
name = "A slip in round 2"
rounds = 2
seeds = [1]

[data]
name = "rotated-digits"
domains = ["rot0", "rot75"]
shots = 2

[[methods]]
name = "mine"
"""


@pytest.mark.slow
def test_the_corrected_file_of_a_method_runs_after_one_button(
    server: Server, tab: Tab, tmp_path: Path
) -> None:
    page, file, toml = tab.page, tmp_path / "mine.py", tmp_path / "mine.toml"
    file.write_text(OWN_METHOD)
    toml.write_text(OWN_EXPERIMENT)
    command = ["run", str(toml), "--methods", str(file), "--db", str(server.db)]
    assert subprocess.run([sys.executable, "-m", "fedcore", *command], cwd=PROJECT, check=False).returncode
    failed = next(r for e in Store(server.db).experiments.all() for r in e.runs if r.method == "mine")
    assert (failed.state, failed.rounds_done) == ("failed", 1)
    page.goto(f"{server.url}/run?id={failed.id}")
    expect(page.get_by_text("Resume continues after round 1", exact=False)).to_be_visible()
    file.write_text(OWN_METHOD.replace("round_ < 2", "round_ < 3"))
    page.reload()
    page.get_by_role("button", name="Restart").click()
    expect(page.get_by_text("The records of 1 round are deleted", exact=False)).to_be_visible()
    page.get_by_role("button", name="I have read it: run it").click()
    wait_for(lambda: Store(server.db).runs.get([failed.id])[0].state == "done", seconds=240)


@pytest.mark.slow
def test_base_and_new_classes_of_a_folder_grow_on_live(server: Server, tab: Tab, tmp_path: Path) -> None:
    """New, the protocol by its name, a folder, Launch: Live has curves of both halves, Compare has means."""
    page, folder = tab.page, pictures(tmp_path / "three kinds")
    page.goto(f"{server.url}/new")
    choose(page, "Data set", "A folder of your own")
    type_into(page, "Folder on this machine", str(folder))
    choose(page, "CLIP backbone", "mini-vit")
    page.get_by_text("More: domains").click()
    choose(page, "Protocol", "base-to-new classes")
    expect(page.get_by_label("Order of the classes", exact=True)).to_be_visible()
    type_into(page, "Rounds", "3")
    launch = page.get_by_role("button", name="Launch")
    expect(page.get_by_text(", 3 rounds", exact=False)).to_be_visible()
    expect(launch).to_be_enabled()
    launch.click()
    page.wait_for_url("**/live?id=*")
    number = int(page.url.rsplit("=", 1)[1])
    store = Store(server.db)
    assert store.experiments.get(number).config.data.training_classes == "base"
    wait_for(lambda: any(r.rounds_done >= 2 for r in store.runs.of_experiments([number])), seconds=240)
    for half in ("Base classes", "New classes"):
        expect(page.get_by_text(half, exact=True).first).to_be_visible()
    wait_for(lambda: all(r.ended for r in store.runs.of_experiments([number])), seconds=400)
    assert {r.state for r in store.runs.of_experiments([number])} == {"done"}
    page.goto(f"{server.url}/compare?ids={number}")
    expect(page.get_by_role("columnheader", name="HM", exact=False).first).to_be_visible()


def choose(page: Page, label: str, option: str) -> None:
    """Choose an option of a select box by its text."""
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=option, exact=True).click()
