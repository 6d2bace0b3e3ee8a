import pytest
import torch

from fedcore.clip.prompts import class_suffix
from tests.support.against import assert_predictions, build, naive_clip, train_both
from tests.support.oracles.fedavg import loss_of
from tests.support.oracles.vision import embedding, text_feature
from tests.support.tiny import drawn_backbone, tiny_federation

SMALL = {"batch_size": 3, "lr": 0.05}


@pytest.mark.parametrize(("depth", "layers"), [(1, 1), (9, 2)], ids=["shallow", "deep"])
def test_agrees_with_the_naive_implementation(depth, layers):
    federation = tiny_federation(reads="layer:0", samples=(4, 3, 2))
    method, clip = build("fedmaple", federation, **SMALL, depth=depth), naive_clip(federation)
    assert method.layers == layers  # 9 of 12 layers are 2 of the text tower's 3
    model, ids = clip.model, clip.ids("a photo of a {}.")

    def scores(params, images):
        contexts = [params["context"], *params.get("deep", ())]
        maps = zip(params["w"], params["b"], contexts, strict=True)
        visual = [torch.stack([w @ v + b for v in context]) for w, b, context in maps]
        visual[0] = model.visual.ln_pre(visual[0])
        texts = torch.stack([text_feature(model, one, contexts) for one in ids])
        return clip.scores(texts, [embedding(model.visual, tokens, visual) for tokens in images])

    loop, (naive, *_) = train_both(method, federation, loss_of(scores), "uniform")
    assert_predictions(loop, scores(naive, federation.pool.values[:4]))


def test_the_context_takes_the_place_of_the_first_words():
    backbone = drawn_backbone()
    federation = tiny_federation(backbone, "layer:0")
    first = build("fedmaple", federation).init(federation.problem.generator).shared
    ids = backbone.tokenizer.encode("a photo")
    assert torch.equal(first["context"], backbone.model.token_embedding.weight[ids])
    for length, behind in ((1, "photo of a {}."), (2, "of a {}."), (4, "{}."), (5, "{}.")):
        suffix = build("fedmaple", federation, context_length=length).suffix
        expected = class_suffix(backbone, federation.problem.classes, behind)
        assert torch.equal(suffix.embeddings, expected.embeddings)
    drawn = build("fedmaple", federation, context_length=6).init(federation.problem.generator).shared
    assert drawn["context"].shape == (6, 16) and drawn["deep"].shape == (1, 6, 16)


def test_the_maps_of_deeper_layers_start_as_copies_of_one():
    federation = tiny_federation(drawn_backbone(text_layers=4), "layer:0")
    w = build("fedmaple", federation, depth=12).init(federation.problem.generator).shared["w"]
    assert w.shape == (4, 24, 16)
    assert torch.equal(w[1], w[2]) and torch.equal(w[1], w[3]) and not torch.equal(w[0], w[1])
