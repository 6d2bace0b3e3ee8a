import math
from dataclasses import replace

import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.methods import registry
from fedcore.methods.federation import Rows
from tests.methods.test_privacy import leaks
from tests.support.against import build, client_logits, engine_batches, naive_clip, samples
from tests.support.oracles.fedavg import nll
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SETTINGS = {"lr": 0.02, "batch_size": 4}


def scores(texts, scale, keys, labels, h, alpha, beta) -> torch.Tensor:
    """Of one image: one key after the other votes for its class."""
    h = h / h.norm()
    found = [scale * h @ t for t in texts]
    for key, label in zip(keys, labels.tolist(), strict=True):
        found[label] = found[label] + alpha * torch.exp(-beta * (1 - h @ key))
    return torch.stack(found)


def searched(texts, scale, keys, labels, images, truth) -> tuple[float, float]:
    """alpha and beta that are right on most images; the given pair comes first."""

    def right(alpha, beta):
        found = [scores(texts, scale, keys, labels, h, alpha, beta).argmax() for h in images]
        return sum(int(f == y) for f, y in zip(found, truth, strict=True))

    best, most = (1.17, 1.0), right(1.17, 1.0)
    for i in range(0, 200, 100):
        for j in range(0, 20, 7):
            pair = (0.1 + j * 4.9 / 20, 0.1 + i * 11.9 / 200)
            if (count := right(*pair)) > most:
                best, most = pair, count
    return best


def coarse(monkeypatch) -> None:
    """Two betas and three alphas only: the naive search of all 4,000 pairs takes a minute."""
    from fedcore.methods.baselines import tip_adapter

    whole = tip_adapter._steps
    monkeypatch.setattr(tip_adapter, "_steps", lambda n, end: whole(n, end)[:: 100 if n == 200 else 7])


@pytest.mark.parametrize("name", ["tip-adapter", "tip-adapter-f"])
def test_agrees_with_the_naive_implementation(name, monkeypatch):
    coarse(monkeypatch)
    federation = tiny_federation(drawn_backbone())
    clip, scale = naive_clip(federation), federation.problem.backbone.logit_scale
    method = build(name, federation, **(SETTINGS if name == "tip-adapter-f" else {}))
    texts, (xs, labels) = clip.sentences(federation.problem.template), samples(federation)
    caches = [torch.stack([h / h.norm() for h in x]) for x in xs]
    if name == "tip-adapter-f":
        caches = [c.requires_grad_() for c in caches]
        moves = [torch.optim.AdamW([c], lr=0.02, eps=1e-4, weight_decay=0) for c in caches]
        for round_, steps_of in enumerate(engine_batches(federation, method, 3)):
            for k, steps in enumerate(steps_of):
                moves[k].param_groups[0]["lr"] = 0.02 * (1 + math.cos(math.pi * round_ / 3)) / 2
                for chosen in steps:
                    found = [scores(texts, scale, caches[k], labels[k], xs[k][i], 1.17, 1.0) for i in chosen]
                    loss = sum(nll(s, labels[k][i]) for s, i in zip(found, chosen, strict=True)) / len(chosen)
                    moves[k].zero_grad()
                    loss.backward()
                    moves[k].step()
        assert (caches[0] - torch.nn.functional.normalize(xs[0], dim=-1)).abs().max() > 1e-2  # it did train
    state, pairs = run_rounds(method, federation, 3).state, set()
    with torch.no_grad():
        ours = client_logits(method, state, federation)
        for k, keys in enumerate(caches):
            rows = federation.validation.held_by(k)
            pair = searched(
                texts, scale, keys, labels[k], federation.pool.values[rows], federation.pool.labels[rows]
            )
            pairs.add(pair)
            expected = [scores(texts, scale, keys, labels[k], h, *pair) for h in federation.pool.values]
            torch.testing.assert_close(ours[k], torch.stack(expected), atol=1e-6, rtol=0)
    assert len(pairs) > 1, "the search decides something"


def test_without_training_it_is_tip_adapter(federation):
    trained = build("tip-adapter-f", federation, lr=0, batch_size=4)
    ours = client_logits(trained, run_rounds(trained, federation, 2).state, federation)
    free = build("tip-adapter", federation)
    assert torch.equal(ours, client_logits(free, free.init(None), federation))


def test_only_validation_samples_decide_alpha_and_beta(federation):
    """Without any the given values stay; other test samples change nothing, others to validate on do."""
    method = build("tip-adapter", federation)

    def pairs(held):
        head = method.head(method.models(method.init(None)).clients, held.local_data(torch.arange(3)))
        return torch.cat([head["alpha"].flatten(), head["beta"].flatten()])

    usual = pairs(federation)
    none = replace(federation, validation=Rows.of([federation.validation.flat[:0].numpy()] * 3))
    assert pairs(none).tolist() == [1.17] * 3 + [1.0] * 3
    assert torch.equal(pairs(replace(federation, test=federation.train)), usual)
    assert not torch.equal(pairs(replace(federation, validation=federation.test)), usual)


def test_a_class_without_an_image_in_the_cache_is_scored_as_zero_shot_clip_does(federation):
    method = build("tip-adapter-f", federation, **SETTINGS)
    state = run_rounds(method, federation, 2).state
    names = ("green lamp", federation.problem.classes[0], "dog")
    other = replace(federation.problem, classes=names)
    with torch.no_grad():
        moved = type(method)(method.config, other)
        x = federation.pool.values.expand(3, -1, -1)
        data = federation.local_data(torch.arange(3))
        params = moved.models(method.retarget(state, moved)).clients
        ours = moved.logits(params, moved.head(params, data), x)
        plain = registry.get("zero-shot")(registry.build_config("zero-shot", {}), other)
        zero = plain.logits({}, plain.head({}, data), x)
    torch.testing.assert_close(ours[..., [0, 2]], zero[..., [0, 2]], atol=1e-12, rtol=0)
    torch.testing.assert_close(ours[..., 1], client_logits(method, state, federation)[..., 0])
    assert (ours[..., 1] - zero[..., 1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["tip-adapter", "tip-adapter-f"])
def test_no_key_leaves_its_client_and_a_shared_cache_is_refused(federation, name):
    with pytest.raises(FedLensError, match='features of the clients\' training images.*share = "local"'):
        registry.build_config(name, {"share": "all"})
    method = build(name, federation, **(SETTINGS if name == "tip-adapter-f" else {}))
    found, road = leaks(method, federation)
    assert found == [] and all(not sent for sent in (*road.sent, *road.received)), "nothing crosses at all"
    sends = type("Sends", (type(method),), {"upload": lambda self, params, record, data: {"keys": data.x}})
    caught, _ = leaks(sends(method.config, federation.problem), federation)
    assert any("samples went up as keys" in line for line in caught), "this test can fail"
