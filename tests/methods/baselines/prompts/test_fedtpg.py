import torch

from tests.support.against import assert_predictions, build, global_logits, naive_clip, train_both
from tests.support.tiny import tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4, "schedule": "constant"}
STILL = ("k_b",)
"""A softmax over names does not hear what is added to all of them."""


def layer_norm(x, weight, bias):
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + 1e-5) * weight + bias


def context_of(values: dict[str, torch.Tensor], names: torch.Tensor) -> torch.Tensor:
    """P, one query and one head at a time. Shape: names (K, d) -> (M, m)."""

    def norm(name, x):
        return layer_norm(x, values[f"{name}_w"], values[f"{name}_b"])

    def layer(name, x):
        return values[f"{name}_w"] @ x + values[f"{name}_b"]

    read = [norm("norm_names", e) for e in names]
    rows = []
    for query in values["queries"]:
        q = layer("q", norm("norm_query", query))
        keys, given = [layer("k", e) for e in read], [layer("v", e) for e in read]
        width = len(q) // 4
        heads = []
        for part in (slice(i * width, (i + 1) * width) for i in range(4)):
            share = torch.softmax(torch.stack([q[part] @ k[part] for k in keys]) / width**0.5, 0)
            heads.append(sum(p * v[part] for p, v in zip(share, given, strict=True)))
        a = layer("out", torch.cat(heads))
        hidden = layer("up", norm("norm_feed", a))
        half = len(hidden) // 2
        gated = hidden[half:]
        gated = gated * 0.5 * (1 + torch.erf(gated / 2**0.5))
        rows.append(a + layer("down", hidden[:half] * gated))
    return torch.stack(rows)


def test_agrees_with_the_naive_implementation(federation):
    clip = naive_clip(federation)
    method = build("fedtpg", federation, **SETTINGS)
    bare = clip.model.encode_text(clip.tokenizer(list(clip.classes)))
    bare = torch.stack([e / e.norm() for e in bare])

    def loss(params, x, y):
        return clip.loss(clip.texts(context_of(params, bare)), x, y)

    def optimiser(values):
        return torch.optim.SGD(values, lr=0.05, momentum=0.9, weight_decay=1e-5)

    loop, (naive, *_) = train_both(method, federation, loss, "uniform", optimiser, STILL)
    assert_predictions(loop, clip.scores(clip.texts(context_of(naive, bare)), federation.pool.values))
    m = d = 16
    attention, feed = 4 * (m * d + m), 8 * m * m + 8 * m + 4 * m * m + m
    assert loop.finished[1].scalars_up == 3 * (3 * m + attention + feed + 2 * (m + d + m))


def test_a_single_class_name_is_enough():
    federation = tiny_federation(classes=("snow owl",))
    method = build("fedtpg", federation, **SETTINGS)
    state = method.init(federation.problem.generator)
    assert global_logits(method, state, federation).isfinite().all()
