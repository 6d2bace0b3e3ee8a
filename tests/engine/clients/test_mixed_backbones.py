"""A method that says that its clients may have different backbones is held to it."""

from __future__ import annotations

import pytest
import torch

from fedcore.engine.clients.cohorts import is_mixed, without_samples
from fedcore.engine.loop import Loop
from fedcore.methods.base import FedLensMethodError, State
from fedcore.methods.baselines.prompts.coop import CoOp, CoOpConfig
from fedcore.methods.baselines.prompts.fedotp import FedOTP, FedOTPConfig
from fedcore.methods.baselines.prompts.fedpgp import FedPGP, FedPGPConfig
from fedcore.methods.baselines.prompts.promptfl import PromptFL, PromptFLConfig
from fedcore.methods.baselines.zero_shot import ZeroShot, ZeroShotConfig
from fedcore.methods.sdfed.method import SDFed, SDFedConfig
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import run_rounds, tiny_backbone, tiny_cohorts

SHORT = PromptFLConfig(context_length=2)


@pytest.fixture(scope="module")
def backbones():
    """Two CLIPs of equal sizes and a third with wider embeddings."""
    return tiny_backbone(seed=0), tiny_backbone(seed=5), tiny_backbone(seed=6, embed_dim=24)


class AnyBias(BiasMethod):
    """A linear head on embeddings, which belongs to one CLIP whatever it declares."""

    backbones = "any"


class FromText(PromptFL):
    """Takes over that its clients may differ, but starts from its own CLIP's words."""

    def init(self, generator):
        return State(shared={"context": self.suffix.embeddings[0, :2].clone()})


class Reading(PromptFL):
    """Measures the images of all clients at once."""

    def diagnostics(self, before, trained, uploads, data):
        return {"mean_norm": data.x.norm(dim=-1).mean(-1)}


class Counting(PromptFL):
    """Labels and counts are the same through every backbone."""

    def diagnostics(self, before, trained, uploads, data):
        return {
            "samples": data.class_counts.sum(-1),
            "first_label": data.labels[:, 0],
            "held": data.mask.sum(-1),
        }


def cohorts(cls, config, backbones):
    return tiny_cohorts(cls, config, [(b, 2, {}) for b in backbones], samples=(9, 5, 7, 6))


def loop_of(cls, config, backbones) -> Loop:
    parts = cohorts(cls, config, backbones)
    return Loop(parts[0].method, parts[0].federation, 1, cohorts=parts)


def test_a_state_of_one_backbone_s_size_is_refused(backbones):
    message = (
        r"AnyBias declares backbones = 'any', but its shared 'weight' starts as \(3, 16\) of norm 0 with "
        r"tiny-vit and \(3, 24\) of norm 0 with tiny-vit; declare backbones = 'one'"
    )
    with pytest.raises(FedLensMethodError, match=message):
        loop_of(AnyBias, BiasConfig(), [backbones[0], backbones[2]])


def test_a_state_of_one_backbone_s_values_is_refused(backbones):
    """Sizes are equal: nothing else would tell."""
    with pytest.raises(FedLensMethodError, match=r"FromText declares .*'equal token widths'.*'context'"):
        loop_of(FromText, SHORT, backbones[:2])
    one = cohorts(FromText, SHORT, [backbones[0], backbones[0]])
    assert not is_mixed(one)


def test_a_part_that_one_backbone_alone_makes_is_refused(backbones):
    class Odd(PromptFL):
        def init(self, generator):
            state = super().init(generator)
            more = {"more": torch.ones(1)} if self.problem.backbone is backbones[2] else {}
            return State(shared=state.shared, server=more)

    message = r"server 'more' starts as nothing with tiny-vit and \(1,\) of norm 1"
    with pytest.raises(FedLensMethodError, match=message):
        loop_of(Odd, SHORT, [backbones[0], backbones[2]])


@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (PromptFL, SHORT),
        (CoOp, CoOpConfig(context_length=2)),
        (SDFed, SDFedConfig(global_length=3, local_length="2,5,3,4")),
        (FedPGP, FedPGPConfig(context_length=2, rank=2)),
        (FedOTP, FedOTPConfig(context_length=2)),
        (ZeroShot, ZeroShotConfig()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_built_in_methods_keep_their_word(backbones, cls, config):
    assert is_mixed(cohorts(cls, config, [backbones[0], backbones[2]]))


def test_diagnostics_that_read_samples_are_refused(backbones):
    parts = cohorts(Reading, SHORT, [backbones[0], backbones[2]])
    with pytest.raises(FedLensMethodError, match=r"diagnostics of Reading read samples.*Step\.terms"):
        run_rounds(parts[0].method, parts[0].federation, 1, cohorts=parts)
    alike = cohorts(Reading, SHORT, [backbones[0], backbones[0]])
    last = run_rounds(alike[0].method, alike[0].federation, 1, cohorts=alike).finished[-1]
    assert len([d for d in last.diagnostics if d.name == "mean_norm"]) == 4


def test_the_samples_are_not_there_by_another_way_either(backbones):
    federation = cohorts(PromptFL, SHORT, backbones[:1])[0].federation
    data = without_samples(federation.local_data(torch.arange(4)), PromptFL)
    with pytest.raises(IndexError):
        data.pool.x(data.rows.index)


def test_labels_and_counts_can_be_read(backbones):
    parts = cohorts(Counting, SHORT, [backbones[0], backbones[2]])
    last = run_rounds(parts[0].method, parts[0].federation, 1, cohorts=parts).finished[-1]
    found = {n: [d.value for d in last.diagnostics if d.name == n] for n in ("samples", "held")}
    assert found == {"samples": [9, 5, 7, 6], "held": [9, 5, 7, 6]}
    labels = [d.value for d in last.diagnostics if d.name == "first_label"]
    train = parts[0].federation.train
    assert labels == parts[0].federation.pool.y(train.index[:, 0]).tolist()
