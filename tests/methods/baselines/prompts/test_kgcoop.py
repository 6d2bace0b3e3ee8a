import pytest
import torch

from fedcore.errors import FedLensError
from tests.support.against import build, engine_batches, global_logits, samples
from tests.support.oracles import fedavg as oracle
from tests.support.oracles.promptfl import mean_loss, scores, text_features
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "init": "random", "lr": 0.05, "batch_size": 4, "schedule": "constant"}


@pytest.mark.parametrize("distance", ["cosine", "squared"])
def test_agrees_with_the_naive_implementation(distance):
    federation = tiny_federation()
    problem, backbone = federation.problem, federation.problem.backbone
    model, tokenizer, scale = backbone.model, backbone.tokenizer, backbone.logit_scale
    method = build("kgcoop", federation, **SETTINGS, distance=distance)
    first = method.init(problem.generator).shared["context"]
    prompts = [model.encode_text(tokenizer([problem.template.format(n)]))[0] for n in problem.classes]

    def loss(values, received, x, y):
        text = text_features(model, tokenizer, values[0], problem.classes)
        total = mean_loss(text, x, y, scale)
        for t, z in zip(text, prompts, strict=True):
            z = z / z.norm()
            apart = 1 - t @ z if distance == "cosine" else ((t - z) ** 2).sum()
            total = total + 8 / len(text) * apart
        return total

    xs, labels = samples(federation)
    batches, weights = engine_batches(federation, method, 2), [float(len(y)) for y in labels]
    expected = oracle.run(loss, [first], xs, labels, batches, oracle.sgd, weights)[0][0]
    state = run_rounds(method, federation, 2).state
    torch.testing.assert_close(state.shared["context"], expected, atol=1e-6, rtol=0)
    assert (expected - first).abs().max() > 1e-3  # it did train
    text = text_features(model, tokenizer, expected, problem.classes)
    found = torch.stack([scores(text, h, scale) for h in federation.pool.values])
    torch.testing.assert_close(global_logits(method, state, federation), found, atol=1e-6, rtol=0)


def test_a_large_weight_brings_the_class_features_to_those_of_the_prompts():
    federation = tiny_federation()

    def apart(weight: float) -> float:
        method = build("kgcoop", federation, **SETTINGS, knowledge_weight=weight)
        text = method.head({"context": run_rounds(method, federation, 2).state.shared["context"][None]}, None)
        unit = torch.nn.functional.normalize(text["text"][0], dim=-1)
        return float((1 - (unit * federation.problem.class_features).sum(-1)).mean())

    assert apart(50) < apart(0)


def test_words_start_it_and_a_length_that_they_do_not_have_is_refused():
    federation = tiny_federation()
    method = build("kgcoop", federation)
    backbone = federation.problem.backbone
    words = backbone.model.token_embedding(backbone.tokenizer(["a photo of a"])[0, 1:5])
    assert torch.equal(method.init(federation.problem.generator).shared["context"], words)
    with pytest.raises(
        FedLensError, match="has 4 tokens, not 16; choose context_length = 4, or init = random"
    ):
        build("kgcoop", federation, context_length=16)
