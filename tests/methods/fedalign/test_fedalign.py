import pytest
import torch

from fedcore.base.lazy import functional as F
from fedcore.base.seeds import torch_generator
from fedcore.clip.adapters import Lora
from fedcore.clip.prompts import encode_texts
from fedcore.clip.towers import Sequences
from fedcore.methods.base import Batch, Uploads
from fedcore.methods.fedalign import method as fedalign
from fedcore.methods.fedalign.towers import orthogonality, parts_of
from fedcore.methods.tensors import Adam
from tests.support.against import (
    NEAR,
    build,
    client_logits,
    diagnostics,
    engine_batches,
    global_logits,
    naive_clip,
    samples,
)
from tests.support.oracles import fedalign as oracle
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SMALL = {
    "rank": 2,
    "batch_size": 4,
    "server_batch_size": 5,
    "lr": 0.01,
    "server_lr": 0.01,
    "class_text": "template",
}


def federation_of(backbone, trainable="attention", **options):
    reads = "patches" if trainable == "table4" else "layer:1"  # layer 2 of 12 is layer 1 of 4
    return tiny_federation(backbone, reads, **options)


def run_oracle(federation, method, rounds, **values) -> oracle.World:
    config, problem = method.config, federation.problem
    state = method.init(problem.generator)
    image = tuple(v[0] for n, v in state.personal.items() if n.startswith("image_"))
    text = tuple(v for n, v in state.server.items() if n.startswith("text_"))
    kind = config.similarity if config.euclidean == "plain" else f"negated {config.similarity}"
    settings = {
        "start": 1,
        "text_start": 1,
        "gamma": config.gamma,
        "mu": config.orthogonality,
        "boundary": {2: 0, 9: 2, 12: 3}[config.boundary_layer],  # of the three adapted layers of four
        "weighting": config.weighting,
        "scale": method.scale,
        "lr": config.lr,
        "optimiser": config.optimiser,
        "renormalise": config.renormalise,
        "norm": config.orthogonality_norm,
        "server_lr": config.server_lr,
        "server_batch_size": config.server_batch_size,
        "similarity": kind,
        "reduce": config.reduce,
        "average": config.average,
        "ex_query": config.ex_query,
        **values,
    }

    def shuffles(round_: int, pairs: int) -> list[list[int]]:
        draws = [problem.generator("server", round_, "text", epoch) for epoch in range(config.server_epochs)]
        return [torch.randperm(pairs, generator=generator).tolist() for generator in draws]

    xs, labels = samples(federation)
    batches = engine_batches(federation, method, rounds)
    model, ids = problem.backbone.model, naive_clip(federation).ids(problem.template)
    return oracle.run(model, ids, xs, labels, image, text, batches, shuffles, settings)


def products(a, b) -> torch.Tensor:
    return b @ a


def comparable(parts) -> list[torch.Tensor]:
    """Parts of a tower, the low-rank factors as their products: the factors' signs are the SVD's choice."""
    a, b, *rest = parts
    return [products(a, b), *rest]


def tower(params: dict, kind: str, client: int | None = None) -> list[torch.Tensor]:
    parts = [v if client is None else v[client] for n, v in params.items() if n.startswith(f"{kind}_")]
    return comparable(parts)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {
                "average": "product",
                "orthogonality_norm": "mean_squares",
                "weighting": "uniform",
                "boundary_layer": 12,
            },
            marks=pytest.mark.slow,
        ),
        {"optimiser": "sgd", "average": "factors", "local_epochs": 2, "lr": 0.1},
        {
            "similarity": "euclidean",
            "euclidean": "negated",
            "reduce": "mean",
            "renormalise": False,
            "scale": "clip",
            "boundary_layer": 2,
        },
        pytest.param(
            {"similarity": "euclidean", "server_epochs": 2, "orthogonality_norm": "spectral"},
            marks=pytest.mark.slow,
        ),
        {"similarity": "dot", "ex_query": False, "boundary_layer": 9, "gamma": 1.0},
        pytest.param({"trainable": "table4"}, marks=pytest.mark.slow),
        {"trainable": "table4", "average": "factors", "local_epochs": 2, "lr": 0.003},
    ],
    ids=[
        "paper",
        "cut-mean-of-squares-mean",
        "sgd-factors",
        "euclidean-all-attention",
        "plain-euclidean-spectral",
        "dot",
        "table4",
        "table4-factors",
    ],
)
def test_agrees_with_the_naive_implementation(options):
    table4 = options.get("trainable") == "table4"
    federation = federation_of(drawn_backbone(), options.get("trainable", "attention"), samples=(6, 3, 4))
    method = build("fedalign", federation, **{**SMALL, **options})
    first = method.init(federation.problem.generator)
    world = run_oracle(federation, method, 2)
    loop = run_rounds(method, federation, 2)
    state = loop.state

    torch.testing.assert_close(state.shared["text"], world.features, **NEAR)
    assert (state.shared["text"] - first.shared["text"]).abs().max() > 1e-3  # the server did train
    torch.testing.assert_close(tower(state.server, "global"), comparable(world.common), **NEAR)
    for now, before in zip(comparable(world.common), tower(first.server, "global"), strict=True):
        assert (now - before).abs().max() > 1e-3  # and so did the clients, every part of theirs
    assert len(world.common) == (5 if table4 else 2)
    for name, value in zip([n for n in state.server if n.startswith("text_")], world.text, strict=True):
        torch.testing.assert_close(state.server[name], value, **NEAR)
        assert (value - first.server[name]).abs().max() > 1e-3
    for k in range(3):
        torch.testing.assert_close(tower(state.personal, "image", k), comparable(world.personal[k]), **NEAR)
        torch.testing.assert_close(tower(state.server, "serving", k), comparable(world.serving[k]), **NEAR)
    torch.testing.assert_close(
        torch.tensor(diagnostics(loop.finished[-1], "attention")).view(3, 3).double(),
        torch.tensor(world.attention, dtype=torch.float64),
        **NEAR,
    )
    assert diagnostics(loop.finished[-1], "uploaded_features") == world.pairs

    naive = oracle.WholeImageTower if table4 else oracle.ImageTail
    tail = naive(federation.problem.backbone.model.visual, 1)

    def predictions(factors) -> torch.Tensor:
        images = [
            oracle.image_feature(tail, factors, method.config.gamma, x) for x in federation.pool.values[::5]
        ]
        return torch.stack([oracle.scores(world.features, f, method.scale) for f in images])

    common = global_logits(method, state, federation)[::5]
    torch.testing.assert_close(common, predictions(world.common), **NEAR)
    for got, factors in zip(client_logits(method, state, federation), world.serving, strict=True):
        torch.testing.assert_close(got[::5], predictions(factors), **NEAR)


@pytest.mark.parametrize("trainable", ["attention", "table4"])
def test_one_client_has_equal_personal_and_global_updates(trainable):
    federation = federation_of(drawn_backbone(), trainable, samples=(9,))
    method = build("fedalign", federation, **SMALL, ex_query=False, trainable=trainable)
    state = run_rounds(method, federation, 2).state
    common = tower(state.server, "global")
    assert common[0].abs().max() > 1e-3
    torch.testing.assert_close(tower(state.personal, "image", 0), common)
    torch.testing.assert_close(tower(state.server, "serving", 0), common)


def test_personal_updates_differ_from_the_global_one_above_the_boundary_alone():
    """Different prototypes make different alpha: between clients, and from the mean by sample counts."""
    federation = federation_of(drawn_backbone())
    method = build("fedalign", federation, **SMALL, average="product")
    state = run_rounds(method, federation, 2).state
    common = products(state.server["global_a"], state.server["global_b"])
    for params, kind in ((state.personal, "image"), (state.server, "serving")):
        local = products(params[f"{kind}_a"], params[f"{kind}_b"])
        apart = (local - common).flatten(2).norm(dim=2) / common.flatten(1).norm(dim=1)
        assert apart[:, : method.low].max() < 1e-9, "below boundary_layer it is the mean"
        assert apart[:, method.low :].min() > 1e-3, kind
        assert (local[0] - local[1]).abs().max() > 1e-4, "nor are two clients' the same"
    scores = client_logits(method, state, federation)
    assert (scores - global_logits(method, state, federation)).abs().amax((1, 2)).min() > 1e-5


@pytest.mark.parametrize("trainable", ["attention", "table4"])
def test_a_client_that_sat_out_keeps_what_it_last_received(trainable):
    federation = federation_of(drawn_backbone(), trainable, samples=(6, 5, 5, 4))
    method = build("fedalign", federation, **SMALL, trainable=trainable)
    first = method.init(federation.problem.generator)
    loop = run_rounds(method, federation, 1, participation=0.5)
    went = loop.state.rounds_trained.bool()
    assert went.sum() == 2
    for name, value in loop.state.personal.items():
        moved = (value - first.personal[name]).flatten(1).abs().sum(1) > 0
        assert torch.equal(moved, went)


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_upload_ratio_bounds_the_pairs_but_not_the_prototypes(ratio):
    federation = federation_of(drawn_backbone())
    full = run_rounds(build("fedalign", federation, **SMALL), federation, 1).finished[-1]
    some = run_rounds(build("fedalign", federation, **SMALL, upload_ratio=ratio), federation, 1).finished[-1]
    assert diagnostics(some, "prototypes") == diagnostics(full, "prototypes")
    expected = [-(-n * ratio // 1) for n in diagnostics(full, "uploaded_features")]
    assert diagnostics(some, "uploaded_features") == expected


def test_no_correct_prediction_falls_back_to_the_global_mean():
    federation = federation_of(drawn_backbone())
    method = build("fedalign", federation, **SMALL, average="product")
    data = federation.local_data(torch.arange(3))
    state = method.init(federation.problem.generator)
    params = {n: v + torch.rand_like(v) for n, v in state.personal.items()}
    longest = data.labels.shape[1]
    correct = torch.ones(3, longest, dtype=torch.bool)
    correct[1] = False
    record = {"feature": torch.randn(3, longest, 16, dtype=torch.float64), "correct": correct}
    uploads = Uploads(method.upload(params, record, data), torch.arange(3), data.rows.counts)
    after = method.aggregate(state, uploads, federation.problem.generator)
    found = method.diagnostics(state, params, uploads, data)
    assert found["global_fallback"].tolist() == [False, True, False]
    assert method.round_log(uploads) == [
        "client 'client-b' predicted nothing correctly and takes the global mean"
    ]
    assert found["prototypes"][1] == 0
    assert found["uploaded_features"][1] == 0
    common = products(after.server["global_a"], after.server["global_b"])
    local = products(after.personal["image_a"], after.personal["image_b"])
    torch.testing.assert_close(local[1], common)
    assert (local[0] - common).abs().max() > 1e-3
    assert found["attention"][0, 1] == 0  # nobody listens to a client without prototypes


def test_the_exact_mean_is_evaluated_and_the_cut_one_is_what_the_next_round_starts_from():
    """Clients train alike under both readings in round 1; what predicts after it differs."""
    federation = federation_of(drawn_backbone())
    states = {
        average: run_rounds(build("fedalign", federation, **SMALL, average=average), federation, 1).state
        for average in ("exact", "product")
    }
    exact, cut = states["exact"], states["product"]
    for name, value in exact.personal.items():
        assert torch.equal(value, cut.personal[name])
    assert exact.server["global_a"].shape[-2] == 3 * SMALL["rank"]
    full, best = (products(s.server["global_a"], s.server["global_b"]) for s in (exact, cut))
    assert 0.01 < (full - best).norm() / full.norm() < 0.9
    served, served_cut = (products(s.server["serving_a"], s.server["serving_b"]) for s in (exact, cut))
    assert (served - served_cut).norm() / served.norm() > 0.01


def test_personal_models_are_cut_where_exact_ones_would_be_large(monkeypatch):
    """Three clients of rank 2, with a limit below rank 6; the global model stays exact."""
    monkeypatch.setattr(fedalign, "LARGEST_SERVED_RANK", 5)
    federation = federation_of(drawn_backbone())
    server = build("fedalign", federation, **SMALL).init(federation.problem.generator).server
    assert server["serving_a"].shape[-2] == 2 and server["global_a"].shape[-2] == 6


def test_gradients_are_finite_for_one_class_batches():
    for classes in (("cat",), ("cat", "snow owl", "fire engine")):
        federation = federation_of(drawn_backbone(), classes=classes)
        method = build("fedalign", federation, **SMALL)
        state = method.init(federation.problem.generator)
        x = federation.pool.values[:4].expand(3, -1, -1, -1)
        labels = torch.zeros(3, 4, dtype=torch.int64)
        mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
        params = {"text": state.shared["text"].expand(3, -1, -1), **state.personal}
        params = {n: v.clone().requires_grad_() for n, v in params.items()}
        places = torch.arange(4).expand(3, 4)
        step = method.phases[0](params, {}, Batch(x, labels, mask, torch.arange(3), places))
        ((names, loss),) = step.losses.items()
        for gradient in torch.autograd.grad(loss.sum(), [params[n] for n in names]):
            assert gradient.isfinite().all()
        assert torch.equal(step.terms["orthogonality"], torch.zeros(3, dtype=torch.float64))


def test_orthogonality_by_hand():
    features = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [9.0, 9.0]]], dtype=torch.float64)
    labels, mask = torch.tensor([[0, 2, 2, 1]]), torch.tensor([[True, True, True, False]])
    plain = orthogonality(features, labels, mask, 3, renormalise=False)
    x, y = 0.3, 0.9  # mean of class 2; class 1 is padding only, so absent
    assert plain.item() == pytest.approx((2 * x**2 + (x**2 + y**2 - 1) ** 2) ** 0.5)
    unit = orthogonality(features, labels, mask, 3, renormalise=True)
    assert unit.item() == pytest.approx((2 * (x / (x**2 + y**2) ** 0.5) ** 2) ** 0.5)
    distinct = orthogonality(features[:, :2], labels[:, :2], mask[:, :2], 3, renormalise=True)
    assert distinct.item() == 0.0


def test_the_servers_adam_takes_the_steps_of_torch():
    start, ours = torch.randn(2, 3, generator=torch_generator(1, "x")), torch.empty(2, 3)
    theirs = ours.copy_(start).clone().requires_grad_()
    adam, reference = Adam([ours], lr=0.1), torch.optim.Adam([theirs], lr=0.1)
    for seed in range(3):
        theirs.grad = torch.randn(2, 3, generator=torch_generator(seed, "gradient"))
        adam.step([theirs.grad])
        reference.step()
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, start)


def test_the_text_tower_is_computed_once_below_its_first_adapted_layer(monkeypatch):
    federation = federation_of(drawn_backbone())
    method, text = build("fedalign", federation, **SMALL), federation.problem.backbone.text
    parts = parts_of("text", method.init(federation.problem.generator).server)
    parts["b"] = torch.randn(parts["b"].shape, dtype=torch.float64, generator=torch_generator(0, "b"))
    factors = [parts[name].requires_grad_() for name in ("a", "b")]
    lora = Lora(*(factor[None] for factor in factors), method.config.gamma, 1)
    whole = F.normalize(encode_texts(federation.problem.backbone, method.texts, lora), dim=-1)
    seen, layer = [], text._layer

    def counted(index: int, x: Sequences, *given: object) -> Sequences:
        seen.append((index, x.prefix.shape[2]))
        return layer(index, x, *given)

    monkeypatch.setattr(text, "_layer", counted)
    ours = method.towers.text(parts, method.texts)
    assert seen == [(1, 5), (2, 5)], "[SOS] a photo of a, with which all texts begin, is read once"
    torch.testing.assert_close(ours, whole, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(out.pow(3).sum(), factors) for out in (ours, whole)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    assert all(gradient.abs().max() > 0 for gradient in gradients[0])
