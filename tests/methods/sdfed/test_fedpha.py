import pytest
import torch

from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles.promptfl import mean_loss, scores, sgd, text_features, weighted
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
    problem, backbone = federation.problem, federation.problem.backbone
    model, tokenizer, scale = backbone.model, backbone.tokenizer, backbone.logit_scale
    method = build("fedpha", federation, **SETTINGS, projector_gradient=gradient)
    first = method.init(problem.generator)
    g_s = first.shared["global_prompt"]
    owns = [p[:n] for p, n in zip(first.local["local_prompt"], (2, 6, 3), strict=True)]

    def loss(g_s, g_c, x, y):
        cut = 1  # floor(5 (1 - 0.8))
        within = projected(g_c, g_s if gradient == "on" else g_s.detach(), cut)
        local, common, pulled = (
            text_features(model, tokenizer, prompt, problem.classes) for prompt in (g_c, g_s, within)
        )
        total = mean_loss(local, x, y, scale) + mean_loss(common, x, y, scale)
        for one, other, target in zip(local, common, pulled, strict=True):
            apart = ((one - other) ** 2).sum().sqrt()
            pull = sum((one[j] - target[j]) ** 2 for j in range(len(one))) / len(one)
            total = total + (pull + torch.clamp(1 - apart, min=0)) / len(local)
        return total

    xs, labels = samples(federation)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    for steps_of in engine_batches(federation, method, 2):
        sent = []
        for client, steps in enumerate(steps_of):
            values = [v.clone().requires_grad_() for v in (g_s, owns[client])]
            momenta: list[torch.Tensor | None] = [None, None]
            for chosen in steps:
                found = loss(*values, xs[client][chosen], labels[client][chosen])
                values = sgd(values, list(torch.autograd.grad(found, values)), momenta, config)
            sent.append(values[0])
            owns[client] = values[1].detach()
        g_s = weighted(sent, [float(len(y)) for y in labels])

    state = run_rounds(method, federation, 2).state
    near = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(state.shared["global_prompt"], g_s, **near)
    assert (g_s - first.shared["global_prompt"]).abs().max() > 1e-3  # it did train
    shown = federation.pool.values
    for i, own in enumerate(owns):
        torch.testing.assert_close(state.local["local_prompt"][i, : len(own)], own, **near)
        text = text_features(model, tokenizer, own, problem.classes)
        expected = torch.stack([scores(text, h, scale) for h in shown])
        torch.testing.assert_close(client_logits(method, state, federation)[i], expected, **near)
    text = text_features(model, tokenizer, g_s, problem.classes)
    expected = torch.stack([scores(text, h, scale) for h in shown])
    torch.testing.assert_close(global_logits(method, state, federation), expected, **near)


def test_it_is_sdfed_with_its_projection_and_its_mean():
    federation = tiny_federation()
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


def test_without_margin_and_gradient_through_the_projection_the_shared_prompt_is_promptfl_s():
    federation = tiny_federation()
    alone = build("promptfl", federation, context_length=5, lr=0.05, batch_size=4)
    start = alone.init(federation.problem.generator)
    both = build("fedpha", federation, **SETTINGS, margin=0, projector_gradient="off")
    drawn = both.init(federation.problem.generator)
    both.init = lambda generator: type(drawn)({"global_prompt": start.shared["context"]}, {}, drawn.local)
    ours, theirs = (run_rounds(method, federation, 2).state for method in (both, alone))
    torch.testing.assert_close(ours.shared["global_prompt"], theirs.shared["context"], atol=1e-12, rtol=0)
    assert (ours.local["local_prompt"] - drawn.local["local_prompt"]).abs().max() > 1e-3
