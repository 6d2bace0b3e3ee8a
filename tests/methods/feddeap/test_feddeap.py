import math
from dataclasses import replace

import pytest
import torch

from fedcore.base.seeds import torch_generator
from fedcore.clip.prompts import class_suffix
from fedcore.methods.base import Batch
from fedcore.methods.feddeap import LAYERS, FedDEAP, FedDEAPConfig, PromptedTexts, simplex_etf
from fedcore.methods.federation import LocalData
from tests.support.against import (
    NEAR,
    build,
    client_logits,
    counts,
    diagnostics,
    engine_batches,
    global_logits,
    samples,
)
from tests.support.oracles import feddeap as oracle
from tests.support.tiny import CLASSES, drawn_backbone, run_rounds, tiny_federation

SMALL = {"prompt_length": 2, "batch_size": 4, "lr": 0.02}


def phi(state, net: str) -> list[torch.Tensor]:
    return [state.shared[f"{net}_{part}"] for part in LAYERS]


def basis(federation, net: str, columns: int) -> torch.Tensor:
    d = federation.problem.backbone.spec.embed_dim
    drawn = torch.randn(d, columns, generator=federation.problem.generator("etf", net), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0]


def run_oracle(federation, method, rounds, domains) -> oracle.World:
    problem, config = federation.problem, method.config
    state = method.init(problem.generator)
    first = oracle.World(
        state.shared["p_s"], list(state.local["p_d"]), phi(state, "phi_s"), phi(state, "phi_d")
    )
    frames = [
        oracle.etf(basis(federation, "phi_s", len(problem.classes))),
        oracle.etf(basis(federation, "phi_d", max(domains) + 1)),
    ]
    backbone = problem.backbone
    settings = {
        "lr": config.lr,
        "momentum": config.momentum,
        "weight_decay": config.weight_decay,
        "scale": backbone.logit_scale,
        "normalise": config.phi_input == "normalised",
        "etf_scale": backbone.logit_scale if config.etf_temperature == "1/s" else 1.0,
        "lambda": config.semantic_weight,
        "eta": config.domain_weight,
    }
    batches = engine_batches(federation, method, rounds)
    model, tokenizer = backbone.model, backbone.tokenizer
    xs, labels = samples(federation)
    return oracle.run(
        model, tokenizer, problem.classes, xs, labels, first, batches, frames, domains, settings
    )


@pytest.mark.parametrize(
    ("options", "domains"),
    [
        ({}, [0, 1, 0]),
        (
            {"domain_etf": "client", "etf_temperature": "1", "phi_input": "normalised", "local_epochs": 2},
            [0, 1, 2],
        ),
        (
            {
                "semantic_weight": 0.3,
                "domain_weight": 2.0,
                "unseen": "mean_image",
                "image_context": "batch",
                "prompt_length": 1,
                "personal_length": 4,
            },
            [0, 1, 0],
        ),
        ({"prompt_length": 3, "personal_length": 1}, [0, 1, 0]),
    ],
    ids=["paper", "client-etf", "weights-longer-domain-prompt", "shorter-domain-prompt"],
)
def test_agrees_with_the_naive_implementation(options, domains):
    federation = tiny_federation(samples=(6, 3, 4))
    problem = federation.problem
    method = build("feddeap", federation, **{**SMALL, **options})
    first = method.init(problem.generator)
    world = run_oracle(federation, method, 2, domains)
    state = run_rounds(method, federation, 2).state

    torch.testing.assert_close(state.shared["p_s"], world.p_s, **NEAR)
    torch.testing.assert_close(state.local["p_d"], torch.stack(world.p_d), **NEAR)
    for net, expected in (("phi_s", world.phi_s), ("phi_d", world.phi_d)):
        for got, value in zip(phi(state, net), expected, strict=True):
            torch.testing.assert_close(got, value, **NEAR)
    for name in ("p_s", "phi_s_w1", "phi_d_w2"):
        assert (state.shared[name] - first.shared[name]).abs().max() > 1e-3  # they did train
    assert (state.local["p_d"] - first.local["p_d"]).abs().max() > 1e-3

    model, tokenizer, scale = problem.backbone.model, problem.backbone.tokenizer, problem.backbone.logit_scale
    pool = federation.pool.values
    personal_length = method.lengths["personal_length"]

    def predictions(p_d, mean) -> torch.Tensor:
        text = oracle.texts(model, tokenizer, problem.classes, world.p_s, p_d, mean, personal_length)
        return torch.stack([oracle.scores(text, h, scale) for h in pool])

    def per_batch(p_d) -> torch.Tensor:
        """Every four samples share the mean of their own embeddings."""
        parts = []
        for i in range(0, len(pool), 4):
            mean = pool[i : i + 4].mean(0)
            text = oracle.texts(model, tokenizer, problem.classes, world.p_s, p_d, mean, personal_length)
            parts += [oracle.scores(text, h, scale) for h in pool[i : i + 4]]
        return torch.stack(parts)

    by_batch = method.config.image_context == "batch"
    xs, _ = samples(federation)
    for k, got in enumerate(client_logits(method, state, federation)):
        expected = per_batch(world.p_d[k]) if by_batch else predictions(world.p_d[k], xs[k].mean(0))
        torch.testing.assert_close(got, expected, **NEAR)
    expected = per_batch(None) if method.config.unseen == "mean_image" else predictions(None, None)
    torch.testing.assert_close(global_logits(method, state, federation), expected, **NEAR)


@pytest.mark.parametrize("columns", [2, 3, 7, 16])
def test_etf_vectors_are_unit_and_equiangular(columns):
    frame = simplex_etf(columns, 16, torch_generator(0, "etf"))
    expected = torch.full((columns, columns), -1 / (columns - 1), dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(frame @ frame.T, expected, atol=1e-12, rtol=0)


def before_a_step(method, federation) -> tuple[dict[str, torch.Tensor], LocalData]:
    """The clients' first parameters, with gradients, and their data."""
    state = method.init(federation.problem.generator)
    params = {n: v.expand(3, *v.shape) for n, v in state.shared.items()} | state.local
    return {n: v.clone().requires_grad_() for n, v in params.items()}, federation.local_data(torch.arange(3))


def prompt_gradients(**options) -> dict[str, torch.Tensor]:
    """Gradients that the prompt phase takes in its first step."""
    federation = tiny_federation()
    method = build("feddeap", federation, **SMALL, **options)
    params, data = before_a_step(method, federation)
    step = method.phases[1](params, {}, Batch.whole(data))
    assert set(step.losses) == {("p_s",), ("p_d",)}  # the networks are frozen
    found = {}
    for (name,), loss in step.losses.items():
        (found[name],) = torch.autograd.grad(loss.sum(), params[name], retain_graph=True)
    return found


def test_each_prompt_hears_its_own_alignment_only():
    plain = prompt_gradients()
    eta = prompt_gradients(domain_weight=50.0)
    lambda_ = prompt_gradients(semantic_weight=50.0)
    assert torch.equal(plain["p_s"], eta["p_s"])
    assert torch.equal(plain["p_d"], lambda_["p_d"])
    assert (plain["p_d"] - eta["p_d"]).abs().max() > 1e-3
    assert (plain["p_s"] - lambda_["p_s"]).abs().max() > 1e-3


def test_gradients_are_finite_for_one_class_and_one_sample():
    federation = tiny_federation(classes=("cat",))
    method = build("feddeap", federation, **SMALL, semantic_alignment=False)
    params, data = before_a_step(method, federation)
    mask = data.mask & (torch.arange(data.mask.shape[1]) < 1)
    for phase in method.phases:
        step = phase(params, {}, replace(Batch.whole(data), mask=mask))
        for names, loss in step.losses.items():
            for gradient in torch.autograd.grad(loss.sum(), [params[n] for n in names], retain_graph=True):
                assert gradient.isfinite().all()


def test_prompts_of_one_domain_meet_the_images_of_another():
    """Figure 3: p_s with client i's p_d and training mean, on the test images of domain j."""
    federation = tiny_federation(samples=(9, 5))
    method = build("feddeap", federation, **SMALL)
    loop = run_rounds(method, federation, 1)
    found = counts(loop.finished[-1])
    for i in range(2):
        mean = federation.pool.values[federation.train.held_by(i)].mean(0)
        p_s, p_d = loop.state.shared["p_s"], loop.state.local["p_d"][i]
        model, tokenizer = federation.problem.backbone.model, federation.problem.backbone.tokenizer
        text = oracle.texts(model, tokenizer, federation.problem.classes, p_s, p_d, mean)
        for j in range(2):
            rows = federation.test.held_by(2 + j)
            images = torch.nn.functional.normalize(federation.pool.values[rows], dim=-1)
            hits = ((images @ text.T).argmax(1) == federation.pool.labels[rows]).sum()
            assert found[i + 1, 3 + j] == (int(hits), len(rows))
    assert len(found) == 3 * 4


def test_domain_prompts_start_alike_and_networks_as_torch_draws_them(federation):
    one = build("feddeap", federation, **SMALL).init(federation.problem.generator)
    assert torch.equal(one.local["p_d"][0], one.local["p_d"][2])
    assert not torch.equal(one.local["p_d"][0], one.shared["p_s"])
    assert one.shared["phi_s_w1"].abs().max() <= 16**-0.5
    assert one.shared["phi_s_w2"].abs().max() > 16**-0.5  # hidden width 8: a wider range


def test_alignment_and_accuracy_are_those_of_single_images():
    """Trained networks on their clients' images one by one, and the averaged ones on the same."""
    federation = tiny_federation(samples=(9, 5, 6))
    domains, trained_params = [0, 1, 0], {}

    class Keeping(FedDEAP):
        def upload(self, params, record, data):
            trained_params.update(params)
            return super().upload(params, record, data)

    method = Keeping(FedDEAPConfig(**SMALL), federation.problem)
    loop = run_rounds(method, federation, 2)
    xs, labels = samples(federation)
    for net, name in (("phi_s", "semantic"), ("phi_d", "domain")):
        for client in range(3):
            trained = [trained_params[f"{net}_{part}"][client] for part in LAYERS]
            targets = labels[client].tolist() if net == "phi_s" else [domains[client]] * len(xs[client])
            cosines, hits, shared_hits = [], [], []
            for x, target in zip(xs[client], targets, strict=True):
                local, shared = (
                    torch.nn.functional.cosine_similarity(
                        oracle.transformed(oracle.network(weights), x, False)[None], method.etf[net]
                    )
                    for weights in (trained, phi(loop.state, net))
                )
                cosines.append(float(local[target].detach()))
                hits.append(int(local.argmax()) == target)
                shared_hits.append(int(shared.argmax()) == target)
            last = loop.finished[-1]
            for figure, values in (
                ("etf_cosine", cosines),
                ("network_accuracy", hits),
                ("shared_accuracy", shared_hits),
            ):
                found = diagnostics(last, f"{name}_{figure}")[client]
                assert found == pytest.approx(sum(values) / len(values), abs=1e-9), (name, figure)


def test_loss_terms_are_their_equations(federation):
    """Without a step (lr 0) and with one batch, the stored terms are the losses of the first parameters."""
    method = build("feddeap", federation, **{**SMALL, "lr": 0.0, "batch_size": 64})
    loop = run_rounds(method, federation, 1)
    problem, state = federation.problem, loop.state
    xs, labels = samples(federation)
    scale = problem.backbone.logit_scale
    config = {"normalise": False, "etf_scale": scale}
    frames = {net: list(method.etf[net]) for net in ("phi_s", "phi_d")}
    nets = {net: oracle.network(phi(state, net)) for net in ("phi_s", "phi_d")}
    for client, domain in enumerate([0, 1, 0]):
        x, y = xs[client], labels[client]
        where = (problem.backbone.model, problem.backbone.tokenizer, problem.classes)
        prompts = (state.shared["p_s"], state.local["p_d"][client], x.mean(0))
        raw = oracle.raw_texts(*where, *prompts)
        expected = {
            "contrastive": oracle.mean_loss(oracle.texts(*where, *prompts), x, y, scale),
            "image_semantic": oracle.etf_loss(nets["phi_s"], x, y.tolist(), frames["phi_s"], config),
            "image_domain": oracle.etf_loss(nets["phi_d"], x, [domain] * len(x), frames["phi_d"], config),
            "text_semantic": oracle.etf_loss(nets["phi_s"], raw, [0, 1, 2], frames["phi_s"], config),
            "text_domain": oracle.etf_loss(nets["phi_d"], raw, [domain] * 3, frames["phi_d"], config),
        }
        for name, value in (expected | within_classes(nets["phi_s"], raw, x, y, frames["phi_s"])).items():
            found = diagnostics(loop.finished[-1], name)[client]
            assert found == pytest.approx(float(value), abs=1e-8), name
    # Appendix B with K = 3 by hand: the cosines of a class's vector with the three are 1, -1/2 and -1/2
    p = [math.exp(v) / (math.e + 2 * math.exp(-0.5)) for v in (1, -0.5, -0.5)]
    lowest = -sum(q * math.log(q) for q in p)
    assert diagnostics(loop.finished[-1], "text_entropy_bound") == [pytest.approx(lowest, abs=1e-6)]
    # Appendix A: half of the 120 degrees between two vectors are 60, at which unit vectors are 1 apart
    assert diagnostics(loop.finished[-1], "class_distance_bound") == [pytest.approx(1.0, abs=1e-6)]


def within_classes(net, raw, x, y, frame) -> dict[str, float]:
    """Section 2.8 image by image and class by class: distances, the share within 1, and the entropy."""

    def unit(values):
        length = math.sqrt(sum(float(v) ** 2 for v in values))
        return [float(v) / length for v in values]

    texts = [unit(net(text)) for text in raw]
    distances = [math.dist(unit(net(h)), texts[k]) for h, k in zip(x, y.tolist(), strict=True)]
    entropies = []
    for text in texts:
        e = [math.exp(sum(a * float(b) for a, b in zip(text, v, strict=True))) for v in frame]
        entropies.append(-sum(v / sum(e) * math.log(v / sum(e)) for v in e))
    return {
        "class_distance": sum(distances) / len(distances),
        "text_entropy": sum(entropies) / len(entropies),
    }


def test_a_shared_prompt_is_read_once_for_all_clients_that_predict_with_it(monkeypatch):
    backbone, generator = drawn_backbone(), torch_generator(0, "prompts")
    texts = PromptedTexts(backbone, class_suffix(backbone, CLASSES, "a photo of a {}."))
    one, private = (torch.randn(n, 3, 2, 16, dtype=torch.float64, generator=generator) for n in (1, 4))
    shared, seen, encode = one.repeat(4, 1, 1, 1), [], backbone.text.encode
    monkeypatch.setattr(
        backbone.text, "encode", lambda prefix, *given: seen.append(len(prefix)) or encode(prefix, *given)
    )
    each = texts.encode(shared, private)
    assert sum(seen) == 4 * 3, "with a gradient, which each client has of its own"
    seen.clear()
    with torch.no_grad():
        torch.testing.assert_close(texts.encode(shared, private), each, rtol=0, atol=1e-12)
        assert sum(seen) == 3
        shared[3, 2, 1, 0] += 1
        changed = texts.encode(shared, private)
    assert sum(seen) == 3 + 4 * 3
    assert torch.equal(changed[:3], each[:3])
    assert (changed[3, 2] - each[3, 2]).abs().max() > 1e-3
