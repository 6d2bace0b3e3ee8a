"""Fixtures for all tests: one thread, so that figures do not depend on the machine's load."""

from __future__ import annotations

import os

import pytest
import torch

pytest_plugins = ["tests.support.jobs", "tests.support.results", "tests.support.small_disk"]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Verdicts on files and the token are kept away from the user's."""
    os.environ.setdefault("FEDLENS_CACHE", str(tmp_path_factory.mktemp("cache")))
    os.environ.setdefault("FEDLENS_STATE", str(tmp_path_factory.mktemp("state")))
