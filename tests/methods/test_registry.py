"""Method files are held to the contract when they are loaded, not when a run has begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.errors import FedLensError
from fedcore.methods import registry

FILE = """
from fedcore.methods import About, Method, method
from fedcore.methods.baselines.zero_shot import ZeroShot

@method
class Older({base}):
    name = "older"
    {member}
"""


@pytest.mark.parametrize(
    ("base", "member", "message"),
    [
        ("ZeroShot", "def notes(self): ...", r"notes is plan_warnings now .*see examples/text_shift.py"),
        ("Method", "title = 'Older'", r"title is part of about = About\(\.\.\.\) now"),
        ("Method", "about = 'what it does'", r"about = About\(title=.*\) is missing"),
    ],
)
def test_a_file_of_an_earlier_release_says_what_to_rename(
    tmp_path: Path, base: str, member: str, message: str
) -> None:
    file = tmp_path / "older.py"
    file.write_text(FILE.format(base=base, member=member))
    with pytest.raises(FedLensError, match=message) as caught:
        registry.load_file(file)
    assert caught.value.field == "methods" and "older" not in registry.known()
