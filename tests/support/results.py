from pathlib import Path

import pytest

from tests.support import fill


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished experiment (1: five methods, three seeds) and one in the middle of things (2)."""
    db = tmp_path_factory.mktemp("report") / "runs.db"
    assert fill.done(db) == 1
    assert fill.mixed(db) == 2
    return db
