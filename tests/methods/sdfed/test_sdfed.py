import pytest
import torch

from fedcore.base.events import AFTER_AGGREGATION, BEFORE_AGGREGATION
from fedcore.methods.base import State
from fedcore.methods.sdfed.method import SDFedConfig, separate, stretch
from fedcore.methods.sdfed.two_prompts import projectors, removed_directions, subspace_overlap
from tests.support.against import (
    build,
    client_logits,
    counts,
    diagnostics,
    engine_batches,
    global_logits,
    naive_clip,
    samples,
)
from tests.support.oracles import sdfed as oracle
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

SGD = {"momentum": 0.9, "weight_decay": 5e-4}
FAST = {"lr": 0.05, "batch_size": 4, "global_length": 3, "local_length": "2,5,3"}


def naive(federation, method, rounds):
    """The oracle's prompts, started from the method's own first state."""
    problem, config = federation.problem, method.config
    first = method.init(problem.generator)
    prompts = [prompt[:n] for prompt, n in zip(first.local["local_prompt"], method.lengths, strict=True)]
    clients = len(problem.clients)
    return oracle.run(
        [problem.backbone.model] * clients,
        problem.backbone.tokenizer,
        problem.classes,
        *samples(federation),
        first.shared["global_prompt"],
        prompts,
        engine_batches(federation, method, rounds),
        [problem.backbone.logit_scale] * clients,
        {**config.model_dump(), **SGD, "noise": method.noise},
    )


def naive_scores(federation, prompt):
    clip = naive_clip(federation)
    return clip.scores(clip.texts(prompt), federation.pool.values)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"projector": "random"},
        {"projector": "rank", "refine_every": "step", "components": "pfhf+srlp"},
        {"refine_every": "step", "refined_gradient": True, "weighting": "uniform"},
        {"components": "pfhf"},
        {"components": "pfhf+irdc", "margin": 1.5},
        *(
            pytest.param(config, marks=pytest.mark.slow)  # each value is in one of those above
            for config in (
                {"refine_every": "step"},
                {"projector": "rank"},
                {"refined_gradient": True},
                {"components": "pfhf+srlp"},
                {"components": "pfhf+srlp", "refine_every": "step"},
            )
        ),
    ],
    ids=lambda config: "-".join(map(str, config.values())) or "paper",
)
def test_agrees_with_the_naive_implementation(config):
    federation = tiny_federation(samples=(6, 3, 4))
    method = build("sdfed", federation, **FAST, **config)
    g_s, prompts = naive(federation, method, 2)
    first = method.init(federation.problem.generator)
    state = run_rounds(method, federation, 2).state
    torch.testing.assert_close(state.shared["global_prompt"], g_s, atol=1e-6, rtol=0)
    assert (g_s - first.shared["global_prompt"]).abs().max() > 1e-3  # it did train
    torch.testing.assert_close(
        global_logits(method, state, federation), naive_scores(federation, g_s), atol=1e-6, rtol=0
    )
    for i, length in enumerate((2, 5, 3)):
        local = state.local["local_prompt"][i]
        torch.testing.assert_close(local[:length], prompts[i], atol=1e-6, rtol=0)
        assert local[length:].abs().sum() == 0  # padding: no gradient, nothing to decay
        if method.config.components == "pfhf+srlp":
            r = oracle.projector(g_s, method.config.truncation, method.config.projector, method.noise)
            local = local @ r
        scores = naive_scores(federation, local[:length])
        torch.testing.assert_close(client_logits(method, state, federation)[i], scores, atol=1e-6, rtol=0)


def test_without_components_it_is_promptfl(federation):
    method = build("sdfed", federation, **FAST, components="none")
    first = method.init(federation.problem.generator)
    assert first.local == {}
    plain = build("promptfl", federation, context_length=3, lr=FAST["lr"], batch_size=FAST["batch_size"])
    plain.init = lambda generator: State(shared={"context": first.shared["global_prompt"]})
    ours, theirs = (run_rounds(m, federation, 2) for m in (method, plain))
    context = theirs.state.shared["context"]
    torch.testing.assert_close(ours.state.shared["global_prompt"], context, atol=1e-9, rtol=0)
    assert counts(ours.finished[-1]) == counts(theirs.finished[-1])


@pytest.mark.parametrize("basis", ["svd", "seeded"])
@pytest.mark.parametrize(
    ("rows", "width", "truncation"), [(8, 64, 0.6), (8, 16, 0.3), (4, 10, 0.7), (8, 512, 0.6)]
)
def test_projector_is_one_and_has_the_rank_of_definition_1(basis, rows, width, truncation):
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(2, rows, width, generator=generator, dtype=torch.float64)
    removed = removed_directions(truncation, width)
    noise = (
        torch.randn(width, removed, generator=generator, dtype=torch.float64) if basis == "seeded" else None
    )
    r = projectors(g, removed, noise)
    torch.testing.assert_close(r @ r, r, atol=1e-10, rtol=0)
    torch.testing.assert_close(r, r.transpose(1, 2), atol=1e-12, rtol=0)
    assert torch.linalg.matrix_rank(r).tolist() == [width - removed] * 2
    if removed >= rows:  # every direction of the prompt is filtered out of it
        assert (g @ r).abs().max() < 1e-10
    else:
        left = torch.linalg.svdvals(g @ r)[:, : rows - removed]
        torch.testing.assert_close(left, torch.linalg.svdvals(g)[:, removed:])


def test_a_projector_of_rank_removes_the_prompt_alone_and_a_random_one_ignores_it():
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(2, 8, 64, generator=generator, dtype=torch.float64)
    noise = torch.randn(64, 38, generator=generator, dtype=torch.float64)
    found = projectors(g, 38, kind="rank")
    assert (g @ found).abs().max() < 1e-10
    assert torch.linalg.matrix_rank(found).tolist() == [64 - 8] * 2, "nothing beyond the prompt's own is lost"
    blind = projectors(g, 38, noise, "random")
    assert torch.equal(blind[0], blind[1])
    assert torch.linalg.matrix_rank(blind).tolist() == [64 - 38] * 2
    assert (g @ blind).abs().max() > 0.1


def test_removed_directions_follow_definition_1():
    assert removed_directions(0.6, 512) == 307  # 205 are kept; Eq. 9 would keep 204
    assert removed_directions(0.29, 100) == 29  # 0.29 * 100 is 28.999999999999996


def test_only_a_seeded_basis_is_continuous_so_the_svds_field_says_that_last_bits_matter():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(16, 9, generator=generator, dtype=torch.float64)
    prompt = torch.randn(3, 16, generator=generator, dtype=torch.float64)
    below, above = prompt.clone(), prompt.clone()
    below[0, 0], above[0, 0] = -1e-9, 1e-9
    change = {
        basis: (projectors(below[None], 9, given) - projectors(above[None], 9, given)).norm()
        for basis, given in (("svd", None), ("seeded", noise))
    }
    assert change["svd"] > 0.1, "the SVD's basis jumps where an entry crosses zero"
    assert change["seeded"] < 1e-7
    assert "--over" in SDFedConfig.model_fields["null_basis"].description


def test_seeded_basis_ignores_the_order_of_rows_and_survives_zero():
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(1, 5, 40, generator=generator, dtype=torch.float64)
    noise = torch.randn(40, 24, generator=generator, dtype=torch.float64)
    one = projectors(g, 24, noise)
    other = projectors(g[:, [3, 1, 4, 0, 2]], 24, noise)
    torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    nothing = projectors(torch.zeros_like(g), 24, noise)
    assert torch.linalg.matrix_rank(nothing).item() == 16
    assert (nothing @ noise).abs().max() < 1e-10  # a prompt without directions removes the fixed basis only


def test_overlap_is_the_mean_squared_cosine_of_the_principal_angles():
    x, y, z = torch.eye(3, dtype=torch.float64)
    slanted = x * 0.6 + z * 0.8  # its angle with the x-y plane has cosine 0.6
    plane = torch.stack([x, y])
    cases = [
        (plane, torch.stack([2 * slanted, 0 * x]), 0.36),  # a row of padding, and lengths, do not count
        (plane, torch.stack([5 * y, slanted]), (1 + 0.36) / 2),
        (plane, torch.stack([x + y, 3 * x]), 1),  # the same plane in other vectors
        (torch.stack([x, 2 * x]), plane, 1),  # a line within the plane
        (torch.stack([z, z]), plane, 0),
    ]
    one, other, expected = zip(*cases, strict=True)
    for cast in (torch.float64, torch.float32):
        found = subspace_overlap(torch.stack(one).to(cast), torch.stack(other).to(cast))
        assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert subspace_overlap(plane[None], torch.zeros(1, 4, 3)).isnan().all()


def test_losses_equal_their_definitions_and_are_smooth_at_zero():
    a = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([[[1.0, 0.0], [0.6, 0.8]]], dtype=torch.float64)
    both, first = torch.tensor([[True, True]]), torch.tensor([[True, False]])
    distance = (0.36 + 0.04) ** 0.5
    assert stretch(a, b, both).tolist() == pytest.approx([0.4 / 2])
    assert stretch(a, b, first).tolist() == [0]
    assert separate(a, b, both, 0.8).tolist() == pytest.approx([(0.8 + 0.8 - distance) / 2])
    assert separate(a, b, both, 0.1).tolist() == pytest.approx([0.05])
    gradient = torch.autograd.grad(separate(a, b, both, 0.8).sum(), a)[0]
    assert gradient[0, 0].tolist() == [0, 0]  # equal features: no direction to part in, and no NaN
    torch.testing.assert_close(gradient[0, 1], (b - a).detach()[0, 1] / distance / 2)


def test_traffic_is_the_shared_prompt_whatever_the_local_lengths():
    federation = tiny_federation(drawn_backbone(torch.float32), samples=(3, 2, 2))
    loop = run_rounds(build("sdfed", federation, local_length="4,64,17"), federation, 1)
    assert [row.bytes_up for row in loop.finished[-1].clients] == [8 * 16 * 4] * 3  # S_s m 4 bytes
    assert [row.bytes_down for row in loop.finished[-1].clients] == [8 * 16 * 4] * 3


def test_random_lengths_are_drawn_by_seed_within_their_bounds():
    backbone = drawn_backbone()
    drawn = []
    for seed in (1, 1, 2):
        federation = tiny_federation(backbone, seed=seed, samples=(2,) * 10)
        drawn.append(build("sdfed", federation, local_length="random:4-64").lengths.tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(4 <= n <= 64 for n in drawn[0]) and len(set(drawn[0])) > 3


def test_the_overlap_stored_is_that_of_what_each_client_trained():
    """One client, so that the aggregated prompt is the one that it trained."""
    federation = tiny_federation(samples=(9,))
    loop = run_rounds(build("sdfed", federation, **{**FAST, "local_length": "fixed:5"}), federation, 2)
    shared = torch.linalg.qr(loop.state.shared["global_prompt"].T).Q
    basis = torch.linalg.qr(loop.state.local["local_prompt"][0].T).Q
    angles = torch.linalg.svdvals(shared.T @ basis)  # cosines of the three principal angles
    (stored,) = diagnostics(loop.finished[-1], "subspace_overlap")
    assert stored == pytest.approx(float(angles.square().mean()), abs=1e-12)
    assert 0.05 < stored < 1


@pytest.mark.parametrize("refine_every", ["round", "step"])
def test_before_aggregation_a_client_refines_as_it_trained(refine_every):
    """With R made once per round the models before aggregation use the R of the prompt that was sent out."""
    federation = tiny_federation(samples=(9,))
    config = {**FAST, "local_length": "fixed:5", "lr": 0.5, "components": "pfhf+srlp"}
    method = build("sdfed", federation, **config, refine_every=refine_every)
    sent = method.init(federation.problem.generator).shared["global_prompt"]
    loop = run_rounds(method, federation, 1)
    trained = loop.state.shared["global_prompt"]  # of one client: what it trained is what is averaged
    rows = federation.test.held_by(0)
    losses = []
    for g_s in (sent, trained):
        prompt = loop.state.local["local_prompt"][0] @ oracle.projector(g_s, method.config.truncation)
        scores = naive_scores(federation, prompt)[rows]
        losses.append(float(torch.nn.functional.cross_entropy(scores, federation.pool.labels[rows])))
    stored = {c.stage: c.loss for c in loop.finished[-1].cells if (c.split, c.model, c.test_set) == (2, 1, 1)}
    assert abs(losses[0] - losses[1]) > 1e-4
    assert stored[BEFORE_AGGREGATION] == pytest.approx(losses[0 if refine_every == "round" else 1], abs=1e-9)
    assert stored[AFTER_AGGREGATION] == pytest.approx(losses[1], abs=1e-9)


@pytest.mark.parametrize("untrained", ["global", "local"])
def test_clients_that_never_took_part(federation, untrained):
    method = build("sdfed", federation, **FAST, untrained=untrained)
    first = method.init(federation.problem.generator)
    state = State(shared=first.shared, local=first.local, rounds_trained=torch.tensor([1, 0, 2]))
    scores = client_logits(method, state, federation)
    common = global_logits(method, state, federation)
    local = naive_scores(federation, first.local["local_prompt"][1, :5])
    torch.testing.assert_close(scores[1], common if untrained == "global" else local, atol=1e-9, rtol=0)
    assert (scores[0] - common).abs().max() > 1e-3 and (scores[2] - common).abs().max() > 1e-3


def test_timed_adds_two_times_and_changes_nothing_else():
    federation = tiny_federation()
    plain, timed = (
        run_rounds(build("sdfed", federation, **FAST, timed=on), federation, 1) for on in (False, True)
    )
    for name in ("decomposition_ms", "projection_ms"):
        (ms,) = diagnostics(timed.finished[-1], name)
        assert 0 < ms < 60_000 and not diagnostics(plain.finished[-1], name)
    for name, value in plain.state.shared.items():
        assert torch.equal(value, timed.state.shared[name])


@pytest.mark.parametrize(
    "config", [{}, {"components": "pfhf+srlp", "refine_every": "step"}, {"components": "pfhf+irdc"}], ids=str
)
def test_theorems_1_and_2_are_measured_at_the_start_of_each_round(config):
    """Against sums over clients, classes and coordinates of what the oracle has at the start of round 2."""
    federation = tiny_federation(samples=(6, 3, 4))
    method = build("sdfed", federation, **FAST, **config)
    clip, options = naive_clip(federation), method.config.model_dump()
    events = run_rounds(method, federation, 2).finished
    first = method.init(federation.problem.generator)
    at_first = (
        first.shared["global_prompt"],
        [prompt[:n] for prompt, n in zip(first.local["local_prompt"], method.lengths, strict=True)],
    )

    def objective(g_s, locals_):
        r = oracle.projector(g_s, method.config.truncation)
        total = 0.0
        for g_c, x, y, count in zip(locals_, *samples(federation), (6, 3, 4), strict=True):
            refined, given = clip.texts((g_c @ r).detach()), (clip.model, clip.tokenizer, clip.classes)
            loss = oracle.client_loss(*given, g_s, g_c, refined, r, x, y, clip.scale, options)
            total = total + count / 13 * loss
        return total

    f_0 = float(objective(*at_first))
    steps = (6 * 2 + 3 * 1 + 4 * 1) / 13
    for round_, (g_s, locals_) in enumerate((at_first, naive(federation, method, 1)), 1):
        leaf = g_s.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(leaf, locals_), leaf)
        expected = sum(float(v) ** 2 for v in gradient.flatten())
        assert diagnostics(events[round_], "squared_gradient") == [pytest.approx(expected, rel=1e-6)]
        bound = 2 * f_0 / (0.05 * round_ * steps)
        assert diagnostics(events[round_], "descent_bound") == [pytest.approx(bound, rel=1e-6)]
        r, kept = oracle.projector(g_s, method.config.truncation), []
        for g_c in locals_:
            within = sum(float(row @ column) ** 2 for row in g_c for column in r.T)
            kept.append(within / sum(float(v) ** 2 for v in g_c.flatten()))
        shown = diagnostics(events[round_], "energy_kept")
        assert shown == ([] if config.get("components") == "pfhf+irdc" else pytest.approx(kept, rel=1e-6))


def test_theorem_2_needs_all_clients_and_a_step_of_sgd():
    federation = tiny_federation()
    adam = run_rounds(build("sdfed", federation, **FAST, optimiser="adam"), federation, 1).finished[-1]
    assert diagnostics(adam, "squared_gradient") and not diagnostics(adam, "descent_bound")
    few = run_rounds(build("sdfed", federation, **FAST), federation, 1, participation=0.5).finished[-1]
    assert diagnostics(few, "energy_kept") and not diagnostics(few, "squared_gradient")
