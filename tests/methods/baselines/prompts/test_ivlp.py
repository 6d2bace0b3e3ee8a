import pytest

from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.oracles.fedavg import loss_of
from tests.support.oracles.vision import prompted_embedding, prompted_texts
from tests.support.tiny import tiny_federation

SMALL = {"batch_size": 3, "lr": 0.05, "schedule": "constant"}


@pytest.mark.parametrize(("depth", "layers"), [(1, 1), (9, 2)], ids=["shallow", "deep"])
def test_agrees_with_the_naive_implementation(depth, layers):
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    method, clip = build("ivlp", federation, **SMALL, depth=depth, visual_length=3), naive_clip(federation)
    assert method.init(federation.problem.generator).shared["visual"].shape == (layers, 3, 24)

    def scores(params, images):
        texts = prompted_texts(clip.model, params, clip.ids("a photo of a {}."))
        return clip.scores(texts, [prompted_embedding(clip.model, params, tokens) for tokens in images])

    loop, (naive, *_) = train_both(method, federation, loss_of(scores), "uniform")
    assert_predictions(loop, scores(naive, federation.pool.values[:4]))
    assert loop.finished[1].scalars_up == 3 * layers * (4 * 16 + 3 * 24)
