import pytest
import torch

from tests.support.against import build, client_logits, engine_batches, global_logits, samples
from tests.support.oracles import fedavg
from tests.support.oracles.vision import prompted_embedding, prompted_texts
from tests.support.tiny import run_rounds, tiny_federation

SMALL = {"batch_size": 3, "lr": 0.02, "schedule": "constant"}


@pytest.mark.parametrize(("depth", "layers"), [(1, 1), (9, 2)], ids=["shallow", "deep"])
def test_agrees_with_the_naive_implementation(depth, layers):
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    problem = federation.problem
    method = build("ivlp", federation, **SMALL, depth=depth, visual_length=3)
    first = method.init(problem.generator).shared
    assert first["visual"].shape == (layers, 3, 24)
    model, scale = problem.backbone.model, problem.backbone.logit_scale
    ids = problem.backbone.tokenizer([f"a photo of a {name}." for name in problem.classes])

    def scores(values, images):
        own = dict(zip(first, values, strict=True))
        texts = prompted_texts(model, own, ids)
        embeddings = [prompted_embedding(model, own, tokens) for tokens in images]
        return [torch.stack([scale * (t @ h) / (t.norm() * h.norm()) for t in texts]) for h in embeddings]

    def loss(values, received, x, y):
        pairs = zip(scores(values, x), y, strict=True)
        return sum(fedavg.nll(own, label) for own, label in pairs) / len(y)

    def optimiser(values):
        return torch.optim.SGD(values, lr=0.02, momentum=0.9, weight_decay=5e-4)

    batches, start = engine_batches(federation, method, 2), list(first.values())
    expected = fedavg.run(loss, start, *samples(federation), batches, optimiser, [1.0] * 3)[0]
    loop = run_rounds(method, federation, 2)
    near = {"atol": 1e-6, "rtol": 0}
    for name, value in zip(first, expected, strict=True):
        torch.testing.assert_close(loop.state.shared[name], value, **near)
        assert (value - first[name]).abs().max() > 1e-4, f"{name} did train"
    shown = torch.stack(scores(expected, federation.pool.values[:4]))
    torch.testing.assert_close(global_logits(method, loop.state, federation)[:4], shown, **near)
    for own in client_logits(method, loop.state, federation):
        torch.testing.assert_close(own[:4], shown, **near)
    assert loop.finished[1].scalars_up == 3 * layers * (4 * 16 + 3 * 24)
