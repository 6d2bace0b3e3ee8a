"""The tutorial does what it says: its files are valid, and its commands run in its order."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedcore.config import experiment
from fedcore.store import Recorder
from tools.docs import examples

ROOT = Path(__file__).resolve().parents[1]
PAGE = examples.TUTORIAL.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|toml|bash)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ELSEWHERE = ("pacs", "results.csv", "other.db", "fedlens app")
"""What commands of the README need that is not here, or that does not end."""


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def commands(texts: list[str]) -> list[list[str]]:
    """The commands of some blocks that can run here, without comments."""
    lines = [line for text in texts for line in text.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if not any(e in line for e in ELSEWHERE)]
    return [found for found in words if found and found[0] == "fedlens"]


def run(words: list[str], folder: Path, database: Path) -> None:
    """Run a command of a page as a reader does who works in this folder."""
    shell = os.environ | {"FEDLENS_DB": str(database), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "fedcore", *words[1:]], cwd=folder, env=shell, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def write_files(folder: Path) -> None:
    """Save the page's files under the names that it gives them, and pictures in its layout."""
    (folder / "my_method.py").write_text(blocks("python")[0], encoding="utf-8")
    for name, text in zip(("compare.toml", "photos.toml"), blocks("toml"), strict=True):
        assert f"`{name}`" in PAGE
        (folder / name).write_text(text, encoding="utf-8")
    pixels = np.random.default_rng(1)
    for camera in ("camera-a", "camera-b"):
        for animal in ("cat", "dog"):
            (folder / "photos" / camera / animal).mkdir(parents=True)
            for number in range(10):
                picture = Image.fromarray(pixels.integers(0, 256, (32, 32, 3), dtype=np.uint8))
                picture.save(folder / "photos" / camera / animal / f"{number:04d}.jpg")


def test_its_method_is_the_example_and_its_experiments_are_valid():
    assert examples.render(PAGE) == PAGE, "out of date; run python -m tools.docs"
    compare, photos = map(experiment.loads, blocks("toml"))
    assert [entry.name for entry in compare.methods] == ["zero-shot", "promptfl", "fedot", "fedper"]
    assert compare.seeds == photos.seeds == (1, 2, 3)
    assert len(commands(blocks("bash"))) == 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_tutorial_runs_in_its_order(tmp_path):
    write_files(tmp_path)
    with Recorder(tmp_path / "runs.db", method="mine", seed=1, dataset="pacs", experiment="Try it") as tried:
        tried.round(
            1, accuracy={("global", "client"): (1, 2)}
        )  # as a reader has who pressed the button first
    for words in commands(blocks("bash")):
        run(words, tmp_path, tmp_path / "runs.db")
    table = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert "FedPer" in table and "PromptFL" in table and "\\toprule" in table
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert (tmp_path / "paper" / "summary.tex").is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("page", "count"), [("docs/own-method.md", 2), ("README.md", 5)])
def test_every_command_of_the_guide_to_methods_and_of_the_readme_runs(tmp_path, page, count):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert examples.render(text) == text, "out of date; run python -m tools.docs"
    found = commands(re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(found) == count
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for words in found:
        run(words, tmp_path, tmp_path / "runs.db")
