import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.methods import registry
from fedcore.methods.base import State
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
from tests.support.oracles.fedavg import nll
from tests.support.oracles.promptfl import sgd
from tests.support.oracles.vision import prompted_embedding, prompted_texts
from tests.support.tiny import run_rounds, tiny_federation

SMALL = {"batch_size": 3, "lr": 0.05, "groups": 3, "local_epochs": 1}


def test_agrees_with_the_naive_implementation():
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    problem = federation.problem
    method = build("fedmgp", federation, **SMALL, diversity_weight=3, temperature=0.2)
    first = method.init(problem.generator)
    start = {k: [*first.shared[k], *first.local[f"own_{k}"][0]] for k in ("text", "visual")}
    model, scale = problem.backbone.model, problem.backbone.logit_scale
    ids = naive_clip(federation).ids("a photo of a {}.")

    def features(groups, images):
        found = []
        for context, tokens in zip(groups["text"], groups["visual"], strict=True):
            texts = prompted_texts(model, {"context": context}, ids)
            embeddings = [prompted_embedding(model, {"visual": tokens[None]}, x) for x in images]
            found.append([torch.stack([v / v.norm() for v in part]) for part in (embeddings, texts)])
        return found

    def scores(groups, images):
        each = [scale * h @ texts.T for h, texts in features(groups, images)]
        return sum(each) / len(each)

    def apart(parts):
        pairs = [(a, b) for i, a in enumerate(parts) for b in parts[i + 1 :]]
        return sum((a - b).abs().mean() for a, b in pairs) / len(pairs)

    def loss(groups, images, labels):
        found = features(groups, images)
        fits = [nll(scale * texts @ one, y) for h, texts in found for one, y in zip(h, labels, strict=True)]
        distance = (apart([h for h, _ in found]) + apart([texts for _, texts in found])) / 2
        return sum(fits) / len(fits) - 3 * distance

    def draw(kind, local, common, round_, name):
        uniform = torch.rand(
            3, generator=problem.generator("fedmgp", "draw", kind, round_, name), dtype=torch.float64
        )
        keys = []
        for group, u in zip(local, uniform, strict=True):
            near = [(group * c).sum() / (group.norm() * c.norm()) for c in common]
            keys.append((max(near) / 0.2 if round_ > 1 else 0) - torch.log(-torch.log(u)))
        return sorted(range(3), key=lambda g: -float(keys[g]))

    xs, labels = samples(federation)
    config = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    clients = [{k: list(v) for k, v in start.items()} for _ in xs]
    common = {k: v[:2] for k, v in start.items()}
    # A group stays where it is; ``held`` is the order of places of which the noise of a draw is taken.
    held = [{k: [0, 1, 2] for k in start} for _ in xs]
    for round_, steps_of in enumerate(engine_batches(federation, method, 3), 1):
        sent = {"text": [], "visual": []}
        for i, steps in enumerate(steps_of):
            values = [v.clone().requires_grad_() for k in sent for v in clients[i][k]]
            momenta = [None] * 6
            for chosen in steps:
                groups = {"text": values[:3], "visual": values[3:]}
                gradient = torch.autograd.grad(loss(groups, xs[i][chosen], labels[i][chosen]), values)
                values = sgd(values, list(gradient), momenta, config)
            clients[i] = {
                "text": [v.detach() for v in values[:3]],
                "visual": [v.detach() for v in values[3:]],
            }
            name = problem.clients[i]
            for k, given in sent.items():
                in_order = [clients[i][k][place] for place in held[i][k]]
                held[i][k] = [held[i][k][g] for g in draw(k, in_order, common[k], round_, name)]
                given.append([clients[i][k][place] for place in held[i][k][:2]])
        common = {k: [sum(of_rank) / 3 for of_rank in zip(*given, strict=True)] for k, given in sent.items()}
        for client, drawn in zip(clients, held, strict=True):
            for k, (one, two, _) in drawn.items():
                client[k][one], client[k][two] = common[k]

    loop = run_rounds(method, federation, 3)
    state = loop.state
    for kind, groups in common.items():
        torch.testing.assert_close(state.shared[kind], torch.stack(groups), **NEAR)
        assert (state.shared[kind] - first.shared[kind]).abs().max() > 1e-3  # it did train
        for i, client in enumerate(clients):
            local = client[kind][held[i][kind][2]]
            torch.testing.assert_close(state.local[f"own_{kind}"][i, 0], local, **NEAR)
    shown = federation.pool.values[:3]
    for client, found in zip(clients, client_logits(method, state, federation), strict=True):
        torch.testing.assert_close(found[:3], scores(client, shown), **NEAR)
    expected = scores(common, shown)
    torch.testing.assert_close(global_logits(method, state, federation)[:3], expected, **NEAR)
    assert loop.finished[1].scalars_up == 3 * 2 * (2 * 16 + 2 * 24)


def test_groups_move_apart_in_the_paper_and_together_in_the_published_code():
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    distances = {}
    for diversity in ("paper", "published-code"):
        method = build("fedmgp", federation, **SMALL, diversity=diversity, diversity_weight=100)
        loop = run_rounds(method, federation, 3)
        distances[diversity] = [
            sum(diagnostics(event, "group_distance")) for event in (loop.finished[1], loop.finished[3])
        ]
        caveat = type(method).result_caveat(method.config, True)
        assert ("published code" in caveat) == (diversity == "published-code")
    assert distances["paper"][0] < distances["paper"][1]
    assert distances["published-code"][0] > distances["published-code"][1]


def test_one_group_is_shallow_ivlp_bit_for_bit():
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    common = {"batch_size": 3, "lr": 0.05, "context_length": 2, "visual_length": 2}
    alone = build("fedmgp", federation, **common, local_epochs=1, groups=1, shared_groups=1)
    shallow = build("ivlp", federation, **common, depth=1, schedule="constant")
    first = shallow.init(federation.problem.generator).shared
    alone.init = lambda generator: State(shared={"text": first["context"][None], "visual": first["visual"]})
    ours, theirs = (run_rounds(m, federation, 3).state.shared for m in (alone, shallow))
    assert torch.equal(ours["text"][0], theirs["context"]) and torch.equal(ours["visual"], theirs["visual"])


def test_groups_are_drawn_one_after_the_other_with_the_softmax_of_their_similarity():
    federation = tiny_federation(reads="layer:0", samples=(4,))
    method, data = build("fedmgp", federation, **SMALL), federation.local_data(torch.tensor([0]))
    groups = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]]).view(1, 3, 1, 2)
    common = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).view(1, 2, 1, 2)
    count, drawn = 1500, torch.zeros(3, 3)
    for round_ in range(2, count + 2):
        one, two, _ = method._draw_groups("text", groups, common, data, round_)[0].tolist()
        drawn[one, two] += 1
    p = torch.tensor([1.0, 0.6, -1.0]).softmax(0)
    expected = p[:, None] * p[None] / (1 - p)[:, None] * (1 - torch.eye(3))
    error = (expected * (1 - expected) / count).sqrt()
    assert ((drawn / count - expected).abs() <= 4 * error).all()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"groups": 2, "shared_groups": 3}, "cannot send 3"),
        ({"optimiser_state": "kept"}, "choose optimiser_state = fresh"),
    ],
)
def test_settings_that_cannot_be_are_refused(values, said):
    with pytest.raises(FedLensError, match=said):
        registry.build_config("fedmgp", values)
