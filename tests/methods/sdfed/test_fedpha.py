import pytest
import torch

from tests.support.against import NEAR, assert_predictions, build, engine_batches, naive_clip, samples
from tests.support.oracles import fedavg
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"lr": 0.05, "batch_size": 4, "global_length": 5, "local_length": "2,6,3"}


def projected(g_c: torch.Tensor, g_s: torch.Tensor, cut: int) -> torch.Tensor:
    """G_c V_2 V_2^T, direction by direction, from the eigenvectors of G_s G_s^T: v = G_s^T u / sigma."""
    values, vectors = torch.linalg.eigh(g_s @ g_s.T)
    strongest_first = values.argsort(descending=True)
    total = torch.zeros_like(g_c)
    for i in strongest_first[cut:]:
        v = g_s.T @ vectors[:, i] / values[i].sqrt()
        total = total + torch.outer(g_c @ v, v)
    return total


@pytest.mark.parametrize("gradient", ["on", "off"])
def test_agrees_with_the_naive_implementation(gradient):
    federation = tiny_federation(samples=(6, 3, 4))
    clip = naive_clip(federation)
    method = build("fedpha", federation, **SETTINGS, projector_gradient=gradient)
    first = method.init(federation.problem.generator)
    start = first.shared["global_prompt"]
    owns = [[p[:n]] for p, n in zip(first.local["local_prompt"], (2, 6, 3), strict=True)]

    def loss(values, received, x, y):
        g_s, g_c = values
        cut = 1  # floor(5 (1 - 0.8))
        within = projected(g_c, g_s if gradient == "on" else g_s.detach(), cut)
        local, common, pulled = (clip.texts(prompt) for prompt in (g_c, g_s, within))
        total = clip.loss(local, x, y) + clip.loss(common, x, y)
        for one, other, target in zip(local, common, pulled, strict=True):
            apart = ((one - other) ** 2).sum().sqrt()
            pull = sum((one[j] - target[j]) ** 2 for j in range(len(one))) / len(one)
            total = total + (pull + torch.clamp(1 - apart, min=0)) / len(local)
        return total

    batches, weights = engine_batches(federation, method, 2), [6.0, 3.0, 4.0]
    trained = fedavg.run(loss, [start], *samples(federation), batches, fedavg.sgd, weights, owns)
    loop, g_s = run_rounds(method, federation, 2), trained[0][0]
    torch.testing.assert_close(loop.state.shared["global_prompt"], g_s, **NEAR)
    assert (g_s - start).abs().max() > 1e-3  # it did train
    for found, (_, params) in zip(loop.state.local["local_prompt"], trained, strict=True):
        torch.testing.assert_close(found[: len(params)], params, **NEAR)
    shown = [
        clip.scores(clip.texts(prompt), federation.pool.values) for prompt in (g_s, *(p for _, p in trained))
    ]
    assert_predictions(loop, shown[0], shown[1:])


def test_it_is_sdfed_with_its_projection_and_its_mean(federation):
    one = build("fedpha", federation, **SETTINGS, kept=0.4, margin=0.8, projector_gradient="off")
    other = build(
        "sdfed",
        federation,
        **SETTINGS,
        truncation=0.6,
        margin=0.8,
        projector="economy",
        stretch_mean="elements",
        refine_every="step",
        refined_gradient=True,
    )
    ours, theirs = (run_rounds(method, federation, 2).state for method in (one, other))
    for part, name in (("shared", "global_prompt"), ("local", "local_prompt")):
        found, expected = getattr(ours, part)[name], getattr(theirs, part)[name]
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_without_margin_and_gradient_through_the_projection_the_shared_prompt_is_promptfl_s(federation):
    alone = build("promptfl", federation, context_length=5, lr=0.05, batch_size=4)
    start = alone.init(federation.problem.generator)
    both = build("fedpha", federation, **SETTINGS, margin=0, projector_gradient="off")
    drawn = both.init(federation.problem.generator)
    both.init = lambda generator: type(drawn)({"global_prompt": start.shared["context"]}, {}, drawn.local)
    ours, theirs = (run_rounds(method, federation, 2).state for method in (both, alone))
    torch.testing.assert_close(ours.shared["global_prompt"], theirs.shared["context"], atol=1e-12, rtol=0)
    assert (ours.local["local_prompt"] - drawn.local["local_prompt"]).abs().max() > 1e-3
