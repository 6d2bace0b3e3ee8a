import pytest
import torch

from fedcore.base.events import AFTER_AGGREGATION, BEFORE_AGGREGATION
from fedcore.methods.baselines.fedakt import ADAPTER, HEADER
from tests.support.against import NEAR, build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import headers as oracle
from tests.support.tiny import run_rounds

SETTINGS = {"lr": 0.02, "batch_size": 4}


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_agrees_with_the_naive_implementation(federation, beta):
    method = build("fedakt", federation, **SETTINGS, hidden=5, distillation_weight=beta)
    first = method.init(federation.problem.generator)
    xs, labels = samples(federation)
    config = {"lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4, "beta": beta}
    headers = list(zip(*(first.local[name] for name in HEADER), strict=True))
    adapter, headers = oracle.fedakt(
        xs,
        labels,
        [first.shared[name] for name in ADAPTER],
        headers,
        engine_batches(federation, method, 2),
        config,
    )

    state = run_rounds(method, federation, 2).state
    for name, value in zip(ADAPTER, adapter, strict=True):
        torch.testing.assert_close(state.shared[name], value, **NEAR)
    for i, name in enumerate(HEADER):
        torch.testing.assert_close(state.local[name], torch.stack([h[i] for h in headers]), **NEAR)
    assert (adapter[0] - first.shared["down_w"]).abs().max() > 1e-3
    pool = federation.pool.values
    down_w, down_b, up_w, up_b = adapter
    adapted = torch.relu(pool @ down_w.T + down_b) @ up_w.T + up_b
    untrained = adapted @ first.server["head_w"].T + first.server["head_b"]
    torch.testing.assert_close(global_logits(method, state, federation), untrained, **NEAR)
    for (weight, bias), found in zip(headers, client_logits(method, state, federation), strict=True):
        torch.testing.assert_close(found, pool @ weight.T + bias, **NEAR)


def test_a_client_predicts_with_its_header_before_and_after_aggregation(federation):
    """Its model is CLIP with that header: what the server makes of the adapter does not change it."""
    last = run_rounds(build("fedakt", federation, **SETTINGS), federation, 2).finished[-1]
    scores = {
        stage: {
            (c.model, c.correct)
            for c in last.cells
            if c.stage == stage and c.split == 2 and c.model == c.test_set
        }
        for stage in (BEFORE_AGGREGATION, AFTER_AGGREGATION)
    }
    assert scores[BEFORE_AGGREGATION] == scores[AFTER_AGGREGATION] and len(scores[BEFORE_AGGREGATION]) == 3
