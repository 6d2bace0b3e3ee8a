"""The example method is what the README says: one small file that trains in the same loop as the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedcore import config
from fedcore.config.grouping import group_hash
from fedcore.engine.plan import plan
from fedcore.methods import registry
from tests.support.tiny import run_rounds, tiny_backbone, tiny_federation

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture
def text_shift():
    assert registry.load_file(EXAMPLES / "text_shift.py") == ["text-shift"]
    yield registry.get("text-shift")
    del registry._METHODS["text-shift"], registry._FILES["text-shift"]


def test_the_example_is_short():
    assert len([line for line in (EXAMPLES / "text_shift.py").read_text().splitlines() if line]) <= 40


def test_it_starts_as_zero_shot_and_learns(text_shift):
    backbone = tiny_backbone()
    federation = tiny_federation(backbone)
    method = text_shift(registry.build_config("text-shift", {"lr": 0.05}), federation.problem)
    x = federation.pool.x(federation.train.index)
    text = federation.problem.class_features
    start = method.models(method.init(federation.problem.generator)).global_model
    expected = backbone.logit_scale * torch.nn.functional.normalize(x, dim=-1) @ text.T
    torch.testing.assert_close(method.logits(start, {}, x), expected)
    loop = run_rounds(method, federation, rounds=5)
    assert loop.finished[-1].train_loss < loop.finished[1].train_loss


def test_its_experiment_file_is_valid(text_shift):
    experiment = config.load(EXAMPLES / "text_shift.toml")
    for entry in experiment.methods:
        registry.build_config(entry.name, entry.config)
    assert "text-shift" in [entry.name for entry in experiment.methods]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("ablations/*.toml")), ids=lambda path: path.stem)
def test_the_ablations_plan_their_runs(path: Path) -> None:
    experiment = config.load(path)
    found = plan(experiment)
    assert len(experiment.seeds) >= 5
    assert len({group_hash(run) for run in found.runs}) == len(experiment.methods)
    each = len(experiment.seeds) * max(1, len(experiment.held_out))
    assert len(found.runs) == each * len(experiment.methods)
