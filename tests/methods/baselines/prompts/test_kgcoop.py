import pytest
import torch

from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.tiny import run_rounds

SETTINGS = {"context_length": 3, "init": "random", "lr": 0.05, "batch_size": 4, "schedule": "constant"}


@pytest.mark.parametrize("distance", ["cosine", "squared"])
def test_agrees_with_the_naive_implementation(federation, distance):
    clip = naive_clip(federation)
    method = build("kgcoop", federation, **SETTINGS, distance=distance)
    prompts = clip.sentences(federation.problem.template)

    def loss(params, x, y):
        text = clip.texts(params["context"])
        total = clip.loss(text, x, y)
        for t, z in zip(text, prompts, strict=True):
            apart = 1 - t @ z if distance == "cosine" else ((t - z) ** 2).sum()
            total = total + 8 / len(text) * apart
        return total

    loop, (naive, *_) = train_both(method, federation, loss, "samples")
    assert_predictions(loop, clip.scores(clip.texts(naive["context"]), federation.pool.values))


def test_a_large_weight_brings_the_class_features_to_those_of_the_prompts(federation):
    def apart(weight: float) -> float:
        method = build("kgcoop", federation, **SETTINGS, knowledge_weight=weight)
        text = method.head({"context": run_rounds(method, federation, 2).state.shared["context"][None]}, None)
        unit = torch.nn.functional.normalize(text["text"][0], dim=-1)
        return float((1 - (unit * federation.problem.class_features).sum(-1)).mean())

    assert apart(50) < apart(0)
