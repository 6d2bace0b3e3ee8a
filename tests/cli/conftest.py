"""A database, an experiment file and an engine without torch, for the commands."""

from pathlib import Path

import pytest

from fedcore.jobs import handlers
from tests.support import fake_engine
from tests.support.command_line import TOML


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(TOML.format(rounds=2))
    return path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train without torch; what the command sets for its process is undone."""
    monkeypatch.setattr(handlers, "load_engine", lambda: fake_engine.train)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")
