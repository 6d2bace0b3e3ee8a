import torch

from tests.support.against import build, client_logits, engine_batches, samples
from tests.support.oracles import fedavg
from tests.support.oracles import promptfl as oracle
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "batch_size": 4}


def test_agrees_with_the_naive_implementation():
    federation = tiny_federation()
    problem, backbone = federation.problem, federation.problem.backbone
    method = build("coop", federation, **SETTINGS)
    first = method.init(problem.generator).local["context"]
    assert torch.equal(first[0], first[1]) and torch.equal(first[0], first[2])

    def text(context):
        return oracle.text_features(backbone.model, backbone.tokenizer, context, problem.classes)

    def loss(values, received, x, y):
        return oracle.mean_loss(text(values[0]), x, y, backbone.logit_scale)

    batches = engine_batches(federation, method, 2)
    expected = fedavg.run(loss, [first[0]], *samples(federation), batches, fedavg.sgd, weights=None)
    state = run_rounds(method, federation, 2).state
    logits = client_logits(method, state, federation)
    for k, (context,) in enumerate(expected):
        torch.testing.assert_close(state.local["context"][k], context, atol=1e-6, rtol=0)
        prompts = text(context)
        scores = [oracle.scores(prompts, h, backbone.logit_scale) for h in federation.pool.values]
        torch.testing.assert_close(logits[k], torch.stack(scores), atol=1e-6, rtol=0)
    assert (expected[0][0] - expected[1][0]).abs().max() > 1e-3  # each went its own way


def test_starts_where_promptfl_starts():
    federation = tiny_federation()
    shared = build("promptfl", federation).init(federation.problem.generator).shared["context"]
    own = build("coop", federation).init(federation.problem.generator).local["context"]
    assert torch.equal(own, shared.expand(3, -1, -1))
