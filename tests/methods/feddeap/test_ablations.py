"""FedDEAP's ablations (Table 3) against the method with a weight of zero."""

from functools import cache

import pytest
import torch

from fedcore.engine.loop import Loop
from tests.support.against import build, client_logits, global_logits
from tests.support.tiny import run_rounds, tiny_federation

SMALL = {"prompt_length": 2, "batch_size": 4, "lr": 0.02}
PARTS = ("w1", "b1", "w2", "b2")
NEAR = {"atol": 1e-9, "rtol": 0}


@cache
def trained(**options: object) -> Loop:
    federation = tiny_federation(samples=(6, 3, 4))
    return run_rounds(build("feddeap", federation, **SMALL, **options), federation, 2)


@pytest.mark.parametrize(
    ("alignments", "left"),
    [(("semantic",), ("phi_d",)), (("domain",), ("phi_s",)), (("semantic", "domain"), ())],
    ids=["semantic", "domain", "both"],
)
def test_without_an_alignment_is_with_its_weight_zero(alignments, left):
    """The weighted form agrees with the oracle; both prompts and the other network go the same way.

    Without a personal prompt, too, it is PromptFL (test_promptfl).
    """
    off = {f"{name}_alignment": False for name in alignments}
    zero = {f"{name}_weight": 0.0 for name in alignments}
    runs = trained(**off), trained(**zero), trained()
    one, other, full = (run.state for run in runs)
    for name in ("p_s", *(f"{net}_{part}" for net in left for part in PARTS)):
        torch.testing.assert_close(one.shared[name], other.shared[name], **NEAR)
    torch.testing.assert_close(one.local["p_d"], other.local["p_d"], **NEAR)
    for predicted in (client_logits, global_logits):
        ours, theirs = (predicted(run.method, run.state, run.federation) for run in runs[:2])
        torch.testing.assert_close(ours, theirs, **NEAR)
    moved = (one.shared["p_s"] - full.shared["p_s"]).abs().max(), one.local["p_d"] - full.local["p_d"]
    assert moved[0] > 1e-5 and moved[1].abs().max() > 1e-5, "the term does something"


@pytest.mark.parametrize(
    ("off", "trained", "terms"),
    [
        (("semantic_alignment",), {"p_s", "phi_d"}, {"contrastive", "image_domain", "text_domain"}),
        (("domain_alignment",), {"p_s", "phi_s"}, {"contrastive", "image_semantic", "text_semantic"}),
        (("semantic_alignment", "domain_alignment"), {"p_s"}, {"contrastive"}),
    ],
)
def test_ablations_neither_train_nor_send_what_they_leave_out(off, trained, terms):
    federation = tiny_federation(samples=(6, 3, 4))
    loop = run_rounds(build("feddeap", federation, **SMALL, **dict.fromkeys(off, False)), federation, 1)
    assert {name.rsplit("_", 1)[0] if name != "p_s" else name for name in loop.state.shared} == trained
    assert set(loop.state.local) == {"p_d"}
    names = {d.name for d in loop.finished[-1].diagnostics}
    assert {n for n in names if "etf" not in n and "accuracy" not in n} == terms
