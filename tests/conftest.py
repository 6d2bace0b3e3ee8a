"""Fixtures for all tests: one thread, so that figures do not depend on the machine's load."""

from __future__ import annotations

import pytest
import torch

from tests import tiny


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tiny_backbone():
    return tiny.tiny_backbone


@pytest.fixture
def tiny_federation():
    return tiny.tiny_federation


@pytest.fixture
def run_rounds():
    return tiny.run_rounds
