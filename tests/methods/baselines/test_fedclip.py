import pytest
import torch

from fedcore.methods.baselines.fedclip import contrastive
from fedcore.methods.registry import build_config
from fedcore.methods.tensors import linear
from tests.support.against import assert_predictions, build, engine_batches, naive_clip, train_both
from tests.support.oracles import fedavg as oracle

SETTINGS = {"lr": 0.01, "batch_size": 4}


def adapted(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Normalised A(h) * h of one image. Shape: x (d,) -> (d,)."""
    exponents = torch.exp(params["w2"] @ torch.tanh(params["w1"] @ x + params["b1"]) + params["b2"])
    h = exponents / exponents.sum() * x
    return h / h.norm()


def naive_loss(kind: str, images, texts, labels, scale: float) -> torch.Tensor:
    total = 0.0
    for i, (h, y) in enumerate(zip(images, labels.tolist(), strict=True)):
        if kind == "ce":
            total = total + oracle.nll(torch.stack([scale * h @ t for t in texts]), y)
            continue
        to_texts = torch.stack([scale * h @ texts[c] for c in labels.tolist()])
        to_images = torch.stack([scale * g @ texts[y] for g in images])
        total = total + (oracle.nll(to_texts, i) + oracle.nll(to_images, i)) / 2
    return total / len(labels)


@pytest.mark.parametrize("kind", ["contrastive", "ce"])
def test_agrees_with_the_naive_implementation(federation, kind):
    method, clip = build("fedclip", federation, **SETTINGS, loss=kind), naive_clip(federation)
    texts = clip.sentences(federation.problem.template)

    def loss(params, x, y):
        return naive_loss(kind, [adapted(params, h) for h in x], texts, y, clip.scale)

    def adam(values):
        return torch.optim.Adam(values, lr=0.01, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)

    (batches,) = engine_batches(federation, method, 1)
    assert [len(steps[-1]) for steps in batches] == [1, 1, 3], "two clients' last batches hold one sample"
    loop, (naive, *_) = train_both(method, federation, loss, "uniform", adam)
    assert_predictions(loop, clip.scores(texts, [adapted(naive, h) for h in federation.pool.values]))


def test_padding_neither_counts_nor_has_a_gradient():
    scores = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(scores, (0, 2, 0, 2), value=1e6).requires_grad_()
    mask = torch.tensor([[True, True, True, False, False]] * 2)
    loss = contrastive(padded, mask)
    everyone = torch.ones(2, 3, dtype=torch.bool)
    torch.testing.assert_close(loss.detach(), contrastive(scores, everyone), atol=1e-12, rtol=0)
    (gradient,) = torch.autograd.grad(loss.sum(), padded)
    assert gradient.isfinite().all()
    assert gradient[:, 3:].abs().sum() == gradient[:, :, 3:].abs().sum() == 0
    assert gradient[:, :3, :3].abs().amin() > 0


def test_other_methods_keep_adams_usual_figures():
    assert build_config("fedclip", {}).adam == (0.9, 0.98, 1e-6)
    assert build_config("fedclip", {"beta1": 0.5, "beta2": 0.6, "eps": 0.1}).adam == (0.5, 0.6, 0.1)
    assert build_config("fedalign", {}).adam == (0.9, 0.999, 1e-8)


def test_the_gradient_of_a_large_layer_is_in_memory_as_the_layer_is():
    """Whole numbers, whose sums are exact in any order."""
    shapes = (2, 7, 256), (2, 256, 256), (2, 256)
    x, weight, bias = (torch.randint(-4, 5, shape).float() for shape in shapes)
    found = []
    for product in (linear, lambda x, w, b: x @ w.transpose(1, 2) + b[:, None]):
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
        out = product(*leaves)
        found.append([out, *torch.autograd.grad((out * torch.arange(256)).sum(), leaves)])
    assert all(map(torch.equal, *found))
    assert [result[2].is_contiguous() for result in found] == [True, False]
