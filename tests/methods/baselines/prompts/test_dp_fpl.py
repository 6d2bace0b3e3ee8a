import pytest
import torch

from fedcore.methods.base import State
from fedcore.methods.baselines.prompts.dp_fpl import DPFPL
from tests.support.against import NEAR, assert_predictions, build, engine_batches, naive_clip, samples
from tests.support.oracles.promptfl import sgd, weighted
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4}


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """Gram-Schmidt, one column after the other."""
    done: list[torch.Tensor] = []
    for column in columns.T:
        for other in done:
            column = column - (other @ column) * other
        done.append(column / column.norm())
    return torch.stack(done, 1)


@pytest.mark.parametrize(
    ("rank", "gradient"), [(2, "projected"), (2, "published-code"), (3, "projected")], ids=str
)
def test_agrees_with_the_naive_implementation(rank, gradient):
    """U, V and R as they are written; with rank M the gradient is that of an own prompt without factors."""
    federation = tiny_federation(samples=(5, 4, 6))
    problem, clip = federation.problem, naive_clip(federation)
    method = build("dp-fpl", federation, **SETTINGS, rank=rank, gradient=gradient)
    first = method.init(problem.generator)

    common, owns = first.shared["context"], list(first.local["own"])
    done = [0] * 3
    xs, labels = samples(federation)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    for steps_of in engine_batches(federation, method, 2):
        sent = []
        for k, steps in enumerate(steps_of):
            values, momenta = [common, owns[k]], [None, None]
            normal = problem.generator("dp-fpl", "probe", problem.clients[k], done[k])
            done[k] += len(steps)
            for chosen in steps:
                shared, local = (v.detach() for v in values)
                u = orthonormal(local @ torch.randn(16, rank, generator=normal, dtype=torch.float64))
                v = orthonormal(local.T @ u).T
                rest = local - u @ v
                leaves = [t.clone().requires_grad_() for t in (shared, u, v, rest)]
                p_g, left, right, r = leaves
                loss = clip.loss(clip.texts(p_g + left @ right + r), xs[k][chosen], labels[k][chosen])
                of_shared, of_u, of_v, of_own = torch.autograd.grad(loss, leaves)
                if rank < 3:
                    last = u @ u.T @ of_u @ v
                    of_own = (
                        of_u @ v + u @ of_v - last
                        if gradient == "projected"
                        else (of_u @ v + u @ of_v + last) / 10
                    )
                values = sgd(list(values), [of_shared, of_own], momenta, config)
            sent.append(values[0].detach())
            owns[k] = values[1].detach()
        common = weighted(sent, [5.0, 4.0, 6.0])
    loop = run_rounds(method, federation, 2)
    state = loop.state
    torch.testing.assert_close(state.shared["context"], common, **NEAR)
    torch.testing.assert_close(state.local["own"], torch.stack(owns), **NEAR)
    assert state.local["steps"].tolist() == done and len(set(done)) > 1
    assert (state.local["own"] - first.local["own"]).abs().max() > 1e-3  # it did train
    shown = [
        clip.scores(clip.texts(prompt), federation.pool.values[:6])
        for prompt in (common, *(common + local for local in owns))
    ]
    assert_predictions(loop, shown[0], shown[1:])


class Without(DPFPL):
    """Own prompts that are zero and stay so."""

    def init(self, generator):
        state = super().init(generator)
        return State(state.shared, local=state.local | {"own": torch.zeros_like(state.local["own"])})

    def lr_factors(self):
        return {"own": 0.0}


def test_without_own_prompts_it_is_promptfl_bit_for_bit(federation):
    method = build("dp-fpl", federation, **SETTINGS, rank=2)
    ours = run_rounds(Without(method.config, federation.problem), federation, 3).state
    theirs = run_rounds(build("promptfl", federation, **SETTINGS), federation, 3).state
    assert not ours.local["own"].any()
    assert torch.equal(ours.shared["context"], theirs.shared["context"])


def test_factors_are_decomposed_in_single_precision_in_bf16_too(monkeypatch):
    """A CPU widens them by itself; on a GPU the decomposition of bf16 is an error."""
    federation = tiny_federation(drawn_backbone(torch.float32))
    given, qr = [], torch.linalg.qr
    monkeypatch.setattr(torch.linalg, "qr", lambda matrix: given.append(matrix.dtype) or qr(matrix))
    run_rounds(build("dp-fpl", federation, **SETTINGS, rank=2, arithmetic="bf16"), federation, 1)
    assert set(given) == {torch.float32}


def test_no_privacy_is_claimed():
    method = build("dp-fpl", tiny_federation(), **SETTINGS)
    assert "no epsilon" in method.result_caveat(method.config, True)
    assert "claims no privacy" in method.about.summary and "no privacy" in method.about.title
