import pytest
import torch

from fedcore.base import linalg
from fedcore.base.events import RoundFinished
from fedcore.base.linalg import cayley
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods.fedot import rotate
from tests.support import device
from tests.support.against import (
    NEAR,
    assert_predictions,
    build,
    client_logits,
    diagnostics,
    engine_batches,
    global_logits,
    naive_clip,
    samples,
    train_both,
)
from tests.support.oracles import fedavg
from tests.support.oracles import fedot as oracle
from tests.support.tiny import drawn_backbone, run_rounds, tiny_backbone, tiny_federation

SGD = {"momentum": 0.9, "weight_decay": 5e-4}
FAST = {"lr": 0.05, "batch_size": 4}


def naive(federation, method, rounds, kind, lr_transform=None):
    """Every client's classifier and transform by the oracle, started from the method's own first state.

    ``kind`` is "cayley/4" for P = (X - X^T)/4.
    """
    first, config = method.init(federation.problem.generator), method.config
    names = [*first.shared, *first.local]

    def loss(values, received, x, y):
        params = dict(zip(names, values, strict=True))
        return oracle.loss(kind, params.pop("classifier"), params, x, y, method.tau)

    def optimiser(values):
        rates = [config.lr if name == "classifier" else lr_transform or config.lr for name in names]
        groups = [{"params": [value], "lr": rate} for value, rate in zip(values, rates, strict=True)]
        return torch.optim.SGD(groups, **SGD)

    xs, labels = samples(federation)
    weights = [float(len(y)) if config.weighting == "samples" else 1.0 for y in labels]
    owns = [[value[k] for value in first.local.values()] for k in range(len(xs))]
    batches, start = engine_batches(federation, method, rounds), list(first.shared.values())
    trained = fedavg.run(loss, start, xs, labels, batches, optimiser, weights, owns)
    params = [dict(zip(names, values, strict=True)) for values in trained]
    return [values.pop("classifier") for values in params], params


def whole(kind, blocks):
    """The block-diagonal matrix itself. Shape: (r, n, n) -> (r n, r n)."""
    return torch.block_diag(*(oracle.cayley(b) if kind == "cayley" else b for b in blocks))


def assert_clients(method, state, federation, kind, ws, params):
    """The clients' models are the oracle's, by their parameters and their predictions."""
    models = method.models(state).clients
    for i, found in enumerate(client_logits(method, state, federation)):
        torch.testing.assert_close(models["classifier"][i], ws[i], **NEAR)
        for name, value in params[i].items():
            torch.testing.assert_close(models[name][i], value, **NEAR)
        scores = [oracle.logits(kind, ws[i], params[i], h, method.tau) for h in federation.pool.values]
        torch.testing.assert_close(found, torch.stack(scores), **NEAR)


TRANSFORMS = [("cayley", 1), ("cayley", 4), ("linear", 1), ("linear", 2), ("adapter", 1), ("none", 1)]
SHARES = ("split", "all_global", "all_local")


@pytest.mark.parametrize(
    ("kind", "blocks", "share"),
    [
        # what is shared does not depend on the transform: each with one, and one with each
        pytest.param(*of, share, marks=() if share == "split" or of == ("cayley", 1) else pytest.mark.slow)
        for of in TRANSFORMS
        for share in SHARES
    ],
)
def test_agrees_with_the_naive_implementation(federation, kind, blocks, share):
    weighting = "samples" if blocks == 4 else "uniform"
    method = build(
        "fedot", federation, **FAST, local_transform=kind, blocks=blocks, share=share, weighting=weighting
    )
    ws, params = naive(federation, method, 2, kind)
    state = run_rounds(method, federation, 2).state
    shared = {"split": {"classifier"}, "all_global": {"classifier", *params[0]}, "all_local": set()}[share]
    assert set(state.shared) == shared
    assert_clients(method, state, federation, kind, ws, params)
    if share == "all_local":
        assert method.models(state).global_model is None
        assert (ws[0] - ws[1]).abs().max() > 1e-3
        return
    at_server = params[0] if share == "all_global" else {}
    scores = torch.stack(
        [oracle.logits(kind, ws[0], at_server, h, method.tau) for h in federation.pool.values]
    )
    torch.testing.assert_close(global_logits(method, state, federation), scores, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("cayley/4", {"skew": "quarter"}),
        ("cayley", {"lr_transform": 0.0125}),
        ("linear", {"lr_transform": 0.2}),
    ],
)
def test_matched_steps_agree_with_the_naive_implementation(federation, kind, config):
    name = kind.partition("/")[0]
    method = build("fedot", federation, **FAST, local_transform=name, **config)
    rate = config.get("lr_transform")
    ws, params = naive(federation, method, 2, kind, rate)
    plain, _ = naive(federation, method, 2, name)
    state = run_rounds(method, federation, 2).state
    assert_clients(method, state, federation, kind, ws, params)
    assert (ws[0] - plain[0]).abs().max() > 1e-5  # the field does something


@pytest.mark.parametrize(("divisor", "times"), [(2, 4), (4, 1)])
def test_a_first_step_moves_the_rotation_so_many_times_as_far_as_any_matrix(divisor, times):
    """At X = I: dQ = -4 eta skew(dL/dQ) in the paper, and -eta skew(dL/dQ) with a quarter."""
    x = torch.eye(6, dtype=torch.float64).requires_grad_()
    gradient = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (moved,) = torch.autograd.grad((cayley(x, divisor) * gradient).sum(), x)
    eta = 1e-6
    step = cayley((x - eta * moved).detach(), divisor) - torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(step / eta, -times * (gradient - gradient.T) / 2, atol=1e-4, rtol=0)


def test_rotation_is_orthogonal_and_the_identity_at_first():
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    q = cayley(x)
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(q @ q.transpose(-1, -2), eye.expand_as(q), atol=1e-12, rtol=0)
    torch.testing.assert_close(q[1, 2], oracle.cayley(x[1, 2]), atol=1e-10, rtol=0)
    assert torch.equal(cayley(eye), eye)
    h = torch.randn(2, 5, 18, dtype=torch.float64)
    turned = torch.cat(
        [torch.einsum("cij,cbj->cbi", q[:, k], h[..., 6 * k : 6 * k + 6]) for k in range(3)], -1
    )
    torch.testing.assert_close(rotate(x, h), turned, atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [1.0, 10.0, 100.0])
def test_orthogonal_in_single_precision_for_large_matrices(size):
    x = torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(0))
    x = x * size / torch.linalg.matrix_norm((x - x.transpose(1, 2)) / 2, ord=2)[:, None, None]
    q = cayley(x)
    error = (q.transpose(1, 2) @ q - torch.eye(64)).abs().max()
    assert error < 1e-5


def test_stays_orthogonal_after_every_step():
    federation = tiny_federation(drawn_backbone(torch.float32))
    method = build("fedot", federation, lr=1.0, batch_size=100)  # one step per round
    loop = run_rounds(method, federation, 6)
    x = loop.state.local["matrix"]
    assert torch.linalg.matrix_norm((x - x.transpose(-1, -2)) / 2, ord=2).min() > 0.1  # far from the identity
    for event in loop.finished[1:]:
        assert [row.steps for row in event.clients] == [1, 1, 1]
        assert max(diagnostics(event, "orthogonality_error")) < 1e-5
        assert [f"{kappa:.2f}" for kappa in diagnostics(event, "condition_number")] == ["1.00"] * 3


def test_blocks_of_one_are_no_transform():
    federation = tiny_federation(drawn_backbone(torch.float32))
    blocks = run_rounds(build("fedot", federation, **FAST, blocks=16), federation, 3)
    none = run_rounds(build("fedot", federation, **FAST, local_transform="none"), federation, 3)
    assert torch.equal(blocks.state.shared["classifier"], none.state.shared["classifier"])
    for one, other in zip(blocks.finished, none.finished, strict=True):
        hits = [
            {(c.split, c.stage, c.model, c.test_set): (c.correct, c.total) for c in e.cells}
            for e in (one, other)
        ]
        assert hits[0] == hits[1]


def test_one_client_is_centralised_training():
    federation = tiny_federation(samples=(11,))
    method = build("fedot", federation, **FAST)
    state = run_rounds(method, federation, 3).state
    first = method.init(federation.problem.generator)
    w = first.shared["classifier"].clone().requires_grad_()
    x = first.local["matrix"][0, 0].clone().requires_grad_()
    images, labels = (values[0] for values in samples(federation))
    for epoch in engine_batches(federation, method, 3):
        optimiser = torch.optim.SGD([w, x], lr=FAST["lr"], **SGD)
        for chosen in epoch[0]:
            h = images[chosen] @ oracle.cayley(x).T
            logits = method.tau * torch.nn.functional.normalize(h) @ w.T
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(logits, labels[chosen]).backward()
            optimiser.step()
    torch.testing.assert_close(state.shared["classifier"], w.detach(), atol=1e-9, rtol=0)
    torch.testing.assert_close(state.local["matrix"][0, 0], x.detach(), atol=1e-9, rtol=0)


def test_random_classifiers_have_unit_rows_and_follow_the_seed():
    backbone = drawn_backbone()
    drawn = []
    for seed in (1, 2):
        federation = tiny_federation(backbone, seed=seed)
        drawn.append(
            build("fedot", federation, init="random").init(federation.problem.generator).shared["classifier"]
        )
    for rows in drawn:
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(3, dtype=torch.float64))
    assert not torch.equal(*drawn)


def test_a_linear_layer_s_classifier_is_drawn_as_torch_draws_it(federation):
    method = build("fedot", federation, init="linear")
    rows = method.init(federation.problem.generator).shared["classifier"]
    bound = rows.shape[1] ** -0.5
    assert torch.nn.Linear(rows.shape[1], 500, bias=False).weight.abs().max() <= bound
    assert 0.8 * bound < rows.abs().max() <= bound and not torch.equal(rows[0], rows[1])


def test_tau_is_clips_scale_unless_given(federation):
    assert build("fedot", federation).tau == pytest.approx(torch.tensor(2.0).exp().item())
    assert build("fedot", federation, tau=1.5).tau == 1.5


@pytest.mark.parametrize("kind", ["cayley", "linear"])
def test_diagnostics_equal_their_definitions(federation, kind):
    method = build("fedot", federation, lr=0.3, batch_size=4, local_transform=kind, blocks=2)
    before = run_rounds(method, federation, 1).state
    loop = run_rounds(method, federation, 2)
    event = loop.finished[-1]
    ws, params = naive(federation, method, 1, kind)
    torch.testing.assert_close(before.shared["classifier"], ws[0], atol=1e-9, rtol=0)

    xs, labels = samples(federation)
    gradients = []
    for i in range(3):
        w = ws[0].clone().requires_grad_()
        gradients.append(
            torch.autograd.grad(oracle.loss(kind, w, params[i], xs[i], labels[i], method.tau), w)[0]
        )
    gaps = {(i, j): (gradients[i] - gradients[j]).norm() for i in range(3) for j in range(i)}
    i, j = max(gaps, key=gaps.get)
    assert diagnostics(event, "gradient_difference") == pytest.approx([gaps[i, j].item()], abs=1e-9)

    kappa = [torch.linalg.cond(whole(kind, params[i]["matrix"])).item() for i in range(3)]
    assert (max(kappa) > 1.0001) == (kind == "linear")
    assert diagnostics(event, "gradient_bound") == pytest.approx([2 * method.tau * (kappa[i] + kappa[j])])
    assert diagnostics(event, "gradient_difference")[0] <= diagnostics(event, "gradient_bound")[0]
    assert diagnostics(event, "degrees_of_freedom") == [16 * 7 / 2 if kind == "cayley" else 16 * 8]

    q = [whole(kind, blocks) for blocks in loop.state.local["matrix"]]
    assert diagnostics(event, "condition_number") == pytest.approx([torch.linalg.cond(m).item() for m in q])
    errors = [(m.T @ m - torch.eye(16, dtype=m.dtype)).abs().max().item() for m in q]
    assert diagnostics(event, "orthogonality_error") == pytest.approx(errors, abs=1e-12)


@pytest.mark.parametrize("kind", ["cayley", "linear"])
def test_the_error_of_large_transforms_is_the_largest_entry_anywhere(monkeypatch, kind):
    """Rotations near the identity are measured without the product; for any matrix it has to be made."""
    products, small_gram = [], linalg._small_gram
    monkeypatch.setattr(linalg, "_small_gram", lambda q: products.append(len(q)) or small_gram(q))
    federation = tiny_federation(drawn_backbone(torch.float32, embed_dim=256))
    method = build("fedot", federation, lr=1e-4, batch_size=4, local_transform=kind)
    loop = run_rounds(method, federation, 2)
    q = method._transform(loop.state.local["matrix"])[:, 0].double()
    gram = q.mT @ q - torch.eye(256)
    errors = gram.abs().amax((1, 2)).tolist()
    assert diagnostics(loop.finished[-1], "orthogonality_error") == pytest.approx(errors, rel=1e-3)
    assert (sum(products) == 0) == (kind == "cayley")
    on_diagonal = gram.diagonal(dim1=1, dim2=2).abs().amax(1).tolist()
    assert (on_diagonal == errors) == (kind == "cayley")


def test_later_rounds_are_measured_in_part_and_few_operations_on_a_device():
    backbone = tiny_backbone(torch.float32, embed_dim=160)
    here, there, spent = tiny_federation(backbone), [], []
    with device.CountingDevice() as counting:
        moved = device.move_samples(here, device.move(backbone))
        for event in all_rounds(Server(build("fedot", moved, lr=1e-3, batch_size=8), moved, 26)):
            if isinstance(event, RoundFinished):
                there.append(event)
                reads = sum(n for what, n in counting.noted.items() if what.startswith("read"))
                spent.append((counting.launches, reads))
                counting.noted.clear()
                counting.launches = 0
    every, some = {"degrees_of_freedom", "gradient_conflict"}, {"condition_number", "gradient_bound"}
    some |= {"orthogonality_error", "gradient_difference"}
    for event, (launches, reads) in zip(there[1:], spent[1:], strict=True):
        is_measured = event.round in {*range(1, 21), 25, 26}
        assert {d.name for d in event.diagnostics} == (every | some if is_measured else every)
        assert launches <= (400 if is_measured else 300) and reads <= 2, event.round
    on_cpu = run_rounds(build("fedot", here, lr=1e-3, batch_size=8), here, 2).finished
    for ours, theirs in zip(on_cpu, there[:3], strict=True):
        kappas, bounds = (diagnostics(event, "condition_number") for event in (ours, theirs))
        assert all(-1e-7 <= b - kappa < 1e-5 for kappa, b in zip(kappas, bounds, strict=True))
        for name in ("gradient_difference", "gradient_bound"):
            assert diagnostics(theirs, name) == pytest.approx(diagnostics(ours, name), rel=1e-5)


def test_a_rotation_is_made_once_while_its_matrix_stays_with_equal_rows():
    federation = tiny_federation(drawn_backbone(embed_dim=80))  # smaller rotations are not worth remembering

    def rows(method):
        finished = run_rounds(method, federation, 3).finished
        return [(event.cells, event.diagnostics, event.train_loss) for event in finished]

    once, always, made = build("fedot", federation, **FAST), build("fedot", federation, **FAST), []
    make = once._cayley.function
    once._cayley.function = lambda matrix: made.append(len(matrix)) or make(matrix)
    always._cayley = make
    assert rows(once) == rows(always)
    assert sum(made) == 1 + 3 * 3  # the identity of the start, and three clients in three rounds


def test_gradient_conflict_is_the_mean_cosine_of_the_updates(federation):
    method = build("fedot", federation, **FAST)
    event = run_rounds(method, federation, 1).finished[-1]
    alone = build(
        "fedot", federation, **FAST, share="all_local"
    )  # one round of it: the classifiers before averaging
    first = method.init(federation.problem.generator).shared["classifier"]
    sent = run_rounds(alone, federation, 1).state.local["classifier"]
    cosines = [
        torch.nn.functional.cosine_similarity((first - sent[i]).flatten(), (first - sent[j]).flatten(), dim=0)
        for i in range(3)
        for j in range(i)
    ]
    assert diagnostics(event, "gradient_conflict") == pytest.approx([(sum(cosines) / 3).item()], abs=1e-9)


@pytest.mark.parametrize("kind", ["cayley", "adapter"])
def test_a_prompt_behind_a_rotation_trains_as_appendix_e_3_has_it(federation, kind):
    """The oracle's logits with the unit class features of a prompt, which open_clip's text tower reads."""
    method = build("fedot", federation, **FAST, local_transform=kind, classifier="prompt")
    clip = naive_clip(federation)

    def loss(params, x, y):
        w = clip.texts(params["prompt"])
        return oracle.loss(kind, w, {n: v for n, v in params.items() if n != "prompt"}, x, y, method.tau)

    loop, trained = train_both(method, federation, loss, "uniform")
    pool = federation.pool.values
    owns = []
    for params in trained:
        w = clip.texts(params.pop("prompt"))
        owns.append(torch.stack([oracle.logits(kind, w, params, h, method.tau) for h in pool]))
    w = clip.texts(loop.state.shared["prompt"])
    common = torch.stack([oracle.logits("none", w, {}, h, method.tau) for h in pool])
    assert_predictions(loop, common, owns)
    assert diagnostics(loop.finished[-1], "gradient_conflict")
    assert not diagnostics(loop.finished[-1], "gradient_difference")
    assert loop.finished[-1].scalars_up == 3 * loop.state.shared["prompt"].numel()
