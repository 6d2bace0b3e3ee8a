import pytest
import torch

from tests.support.against import assert_predictions, build, global_logits, naive_clip, train_both
from tests.support.tiny import drawn_backbone, tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4, "schedule": "constant"}
STILL = ("k_b",)
"""A softmax over names does not hear what is added to all of them."""


def norm(values, name, x):
    centred = x - x.mean()
    unit = centred / torch.sqrt((centred**2).mean() + 1e-5)
    return unit * values[f"{name}_w"] + values[f"{name}_b"]


def layer(values, name, x):
    return values[f"{name}_w"] @ x + values[f"{name}_b"]


def attended(values: dict[str, torch.Tensor], query, asked, given) -> torch.Tensor:
    """What one query reads, one head at a time, behind the feed-forward layer. Shape: query (m,) -> (m,)."""
    q, heads = layer(values, "q", norm(values, "norm_query", query)), []
    keys, given = [layer(values, "k", e) for e in asked], [layer(values, "v", e) for e in given]
    width = len(q) // 4
    for part in (slice(i * width, (i + 1) * width) for i in range(4)):
        share = torch.softmax(torch.stack([q[part] @ k[part] for k in keys]) / width**0.5, 0)
        heads.append(sum(p * v[part] for p, v in zip(share, given, strict=True)))
    a = layer(values, "out", torch.cat(heads))
    plain, gate = layer(values, "up", norm(values, "norm_feed", a)).chunk(2)
    return a + layer(values, "down", plain * 0.5 * gate * (1 + torch.erf(gate / 2**0.5)))


def context_of(values: dict[str, torch.Tensor], names: torch.Tensor) -> torch.Tensor:
    """P, one query at a time. Shape: names (K, d) -> (M, m)."""
    read = [norm(values, "norm_names", e) for e in names]
    return torch.stack([attended(values, query, read, read) for query in values["queries"]])


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


@pytest.mark.parametrize("token_width", [16, 24])
def test_the_attention_starts_as_torchs_own(token_width):
    """It draws q, k and v as one matrix where their inputs are equally wide, and apart elsewhere."""
    m, d = token_width, 16
    federation = tiny_federation(drawn_backbone(token_width=m, vision_layers=3, text_layers=2))
    ours = build("fedtpg", federation, **SETTINGS).init(federation.problem.generator).shared
    theirs = torch.nn.MultiheadAttention(m, 4, kdim=d, vdim=d)
    whole = theirs.in_proj_weight
    apart = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
    for name, value in zip("qkv", apart if whole is None else whole.chunk(3), strict=True):
        assert ours[f"{name}_w"].shape == value.shape
        assert ours[f"{name}_w"].abs().max().item() == pytest.approx(value.abs().max().item(), rel=0.1)
        assert not ours[f"{name}_b"].any()
    assert not ours["out_b"].any() and ours["up_b"].all()
    linear = build("fedtpg", federation, **SETTINGS, attention_init="linear")
    plain = linear.init(federation.problem.generator).shared
    assert torch.equal(plain["out_w"], ours["out_w"]) and plain["k_w"].abs().max() <= d**-0.5
    assert all(plain[f"{name}_b"].all() for name in ("q", "k", "v", "out"))
