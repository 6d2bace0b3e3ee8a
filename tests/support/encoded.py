"""Images that are encoded once for all tests of a process: that takes longer than most runs on them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.data.loading import loaded

DIGITS = {"name": "rotated-digits", "domains": ["rot0", "rot75"], "shots": 2}
"""The data of runs that a test trains with the real engine."""


@pytest.fixture(scope="session")
def encoded_digits(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Puts the encodings of these digits by mini-vit into a folder of artifacts, and returns that folder."""
    from fedcore.clip.backbone import load_backbones
    from tests.support.clip import encoded

    made = tmp_path_factory.mktemp("encoded")
    images = loaded(DIGITS["name"], domains=DIGITS["domains"])
    encoded(*load_backbones([("mini-vit", None, "cpu", "fp32")]), images, "embedding", made)

    def put(artifacts: Path) -> Path:
        shutil.copytree(made, artifacts / "encodings", dirs_exist_ok=True)
        return artifacts

    return put
