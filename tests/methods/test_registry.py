"""Method files written for an earlier release: members that were renamed still have their effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.config import loads
from fedcore.engine.plan import plan
from fedcore.methods import registry

FILE = """
from fedcore.methods.baselines.zero_shot import ZeroShot
from fedcore.methods.registry import method

@method
class Older(ZeroShot):
    name = "older"

    @classmethod
    def notes(cls, config, setting):
        return [f"{len(setting.classes)} classes are few"]
"""


def test_an_old_name_of_a_member_works_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "older.py"
    file.write_text(FILE)
    try:
        found = plan(loads(f'[[methods]]\nname = "older"\nfile = "{file}"'))
    finally:
        registry._METHODS.pop("older", None)
        registry._FILES.pop("older", None)
    assert "10 classes are few" in found.warnings
    assert "notes() is called plan_warnings() now" in caplog.text
