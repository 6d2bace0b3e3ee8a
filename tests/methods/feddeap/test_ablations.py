"""FedDEAP's ablations (Table 3) against the method with a weight of zero."""

from functools import cache

import pytest
import torch

from fedcore.engine.server import Server
from tests.support.against import build, client_logits, global_logits
from tests.support.tiny import run_rounds, tiny_federation

SMALL = {"prompt_length": 2, "batch_size": 4, "lr": 0.02}
PARTS = ("w1", "b1", "w2", "b2")
NEAR = {"atol": 1e-9, "rtol": 0}


@cache
def trained(**options: object) -> Server:
    federation = tiny_federation(samples=(6, 3, 4))
    return run_rounds(build("feddeap", federation, **SMALL, **options), federation, 2)


WITHIN = ("class_distance", "class_distance_bound", "text_entropy", "text_entropy_bound")
"""What Section 2.8 is about, recorded where Phi_s trains."""


@pytest.mark.parametrize(
    ("alignments", "left", "terms"),
    [
        (("semantic",), ("phi_d",), {"image_domain", "text_domain"}),
        (("domain",), ("phi_s",), {"image_semantic", "text_semantic", *WITHIN}),
        (("semantic", "domain"), (), set()),
    ],
    ids=["semantic", "domain", "both"],
)
def test_without_an_alignment_is_with_its_weight_zero_and_neither_trains_nor_sends_it(
    alignments, left, terms
):
    """The weighted form agrees with the oracle; both prompts and the other network go the same way.

    Without a personal prompt, too, it is PromptFL (test_promptfl).
    """
    off = {f"{name}_alignment": False for name in alignments}
    zero = {f"{name}_weight": 0.0 for name in alignments}
    runs = trained(**off), trained(**zero), trained()
    one, other, full = (run.state for run in runs)
    shared = ["p_s", *(f"{net}_{part}" for net in left for part in PARTS)]
    assert set(one.shared) == set(shared) and set(one.local) == {"p_d"}
    recorded = {d.name for d in runs[0].finished[-1].diagnostics}
    assert {n for n in recorded if "etf" not in n and "accuracy" not in n} == {"contrastive", *terms}
    for name in shared:
        torch.testing.assert_close(one.shared[name], other.shared[name], **NEAR)
    torch.testing.assert_close(one.local["p_d"], other.local["p_d"], **NEAR)
    for predicted in (client_logits, global_logits):
        ours, theirs = (predicted(run.method, run.state, run.federation) for run in runs[:2])
        torch.testing.assert_close(ours, theirs, **NEAR)
    moved = (one.shared["p_s"] - full.shared["p_s"]).abs().max(), one.local["p_d"] - full.local["p_d"]
    assert moved[0] > 1e-5 and moved[1].abs().max() > 1e-5, "the term does something"
