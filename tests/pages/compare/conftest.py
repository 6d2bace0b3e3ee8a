"""An experiment of several methods and seeds for the page Compare."""

import shutil
from pathlib import Path

import pytest

from tests.support import fill


@pytest.fixture(scope="package")
def seeds_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    db = tmp_path_factory.mktemp("seeds") / "runs.db"
    fill.done(db, fill.an_experiment(methods=("fedot", "promptfl", "sdfed"), seeds=(1, 2, 3, 4), rounds=2))
    return db.parent


@pytest.fixture
def seeds(seeds_once: Path, tmp_path: Path) -> Path:
    """Three methods, four seeds."""
    shutil.copytree(seeds_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "runs.db"
