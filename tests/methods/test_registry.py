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
        ("ZeroShot", "def notes(self): ...", r"notes is now plan_warnings .*see examples/text_shift.py"),
        ("Method", "title = 'Older'", r"title is now part of about = About\("),
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


FIRST_RELEASE = """
from fedcore.lazy import torch
from fedcore.methods import DiagnosticChart, Method, MethodConfig, method
from fedcore.methods.base import Models, Setting, State, Step, cosine_logits, cross_entropy
from fedcore.methods.zero_shot import ZeroShot

class ShiftConfig(MethodConfig):
    source: str = "no member of a method"

@method
class Shift(Method):
    name = "shift-of-the-first-release"
    title = "Shift"
    source = "a paper"
    about = "what it does"
    Config = ShiftConfig
    charts = (DiagnosticChart("Shift", {"shift": ""}, unasked=True),)

    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.text = problem.backbone.zero_shot(problem.classes, problem.template)

    def models(self, state):
        return Models(common=state.shared, clients=self.spread(state.shared))

    def prepare(self, params, data):
        return {}

    @property
    def predicts_in_batches(self):
        return True
"""


def test_the_error_about_a_file_of_the_first_release_lists_every_name_to_change(tmp_path: Path) -> None:
    file = tmp_path / "shift.py"
    file.write_text(FIRST_RELEASE)
    with pytest.raises(FedLensError) as caught:
        registry.load_file(file)
    message = str(caught.value)
    about = "is now part of about = About(title=..., source=..., summary=...)"
    base = "from fedcore.methods.base import"
    for change in (
        "does not import: ImportError",
        f"line 4: {base} Setting is now from fedcore.methods import RunContext",
        f"line 4: {base} cosine_logits is now from fedcore.methods import cosine_logits",
        f"line 4: {base} cross_entropy is now from fedcore.methods import cross_entropy",
        "line 5: fedcore.methods.zero_shot is now fedcore.methods.baselines.zero_shot",
        f"line 13: title {about}",
        f"line 14: source {about}",
        "line 15: about = '...' is now about = About(title=..., source=..., summary='...')",
        f"line 17: charts {about}",
        "line 17: unasked= is now default_visible=",
        "line 21: backbone.zero_shot(classes, template) is now problem.class_features",
        "line 24: common= is now global_model=",
        "line 24: .spread is now .repeat",
        "line 26: prepare is now round_constants",
        "line 30: the property predicts_in_batches is now the method predicts_in_batches()",
    ):
        assert change in message
    assert "line 8" not in message


def test_a_file_that_fails_for_another_reason_is_not_called_an_old_one(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("from fedcore.methods import Method\nraise ValueError('no such table')\n")
    with pytest.raises(FedLensError, match=r"does not import: ValueError: no such table$"):
        registry.load_file(file)
