"""Every family of open_clip models: what the specs promise holds, and each method says yes or why not."""

import json
from functools import cache

import pytest
import torch
from torch.nn import functional as F

from fedcore.base import lazy
from fedcore.base.errors import FedLensError
from fedcore.clip import backbone, encodings, prompts, specs
from fedcore.clip.specs import backbone_spec, config_files
from fedcore.engine.prepare import check_method
from fedcore.methods import registry
from fedcore.methods.base import RunContext

open_clip = lazy.open_clip()
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
VIT = {"image_size": 32, "layers": 2, "width": 16, "head_width": 8, "patch_size": 8}
TIMM = {
    "timm_model_name": "test_vit",
    "timm_model_pretrained": False,
    "image_size": 160,
    "timm_proj": "linear",
}
COCA = {"context_length": 76, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
CONVNEXT = {"timm_model_name": "test_convnext", "timm_pool": ""}
FAMILIES = {
    "clip": {"vision_cfg": VIT, "text_cfg": TEXT},
    "own-text-module": {"vision_cfg": VIT, "text_cfg": TEXT, "custom_text": True},
    "layer-scale": {"vision_cfg": VIT | {"ls_init_value": 0.1}, "text_cfg": TEXT},
    "mean-pooled": {"vision_cfg": VIT | {"pool_type": "avg", "no_ln_pre": True}, "text_cfg": TEXT},
    "attention-pooled": {
        "vision_cfg": VIT | {"attentional_pool": True, "attn_pooler_heads": 2},
        "text_cfg": TEXT | {"no_causal_mask": True, "pool_type": "last", "proj_bias": True},
        "custom_text": True,
        "init_logit_bias": -10,
    },
    "timm": {"vision_cfg": TIMM | {"timm_pool": "token"}, "text_cfg": TEXT, "custom_text": True},
    "convnext": {"vision_cfg": TIMM | CONVNEXT, "text_cfg": TEXT},
    "coca": {
        "vision_cfg": VIT | {"output_tokens": True},
        "text_cfg": COCA | {"embed_cls": True, "output_tokens": True},
        "multimodal_cfg": COCA | {"attn_pooler_heads": 2},
        "custom_text": True,
    },
}  # fmt: skip
TOKENS = {"clip", "own-text-module", "layer-scale", "coca"}
PROMPTS = set(FAMILIES) - {"attention-pooled", "coca"}
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in ("timm", "convnext") else n for n in FAMILIES]
"""Importing timm takes seconds."""
CLASSES = ("cat", "snow owl", "fire engine")


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Return a function from a family to a small random model, loaded from a file as a user's would be."""
    folder = tmp_path_factory.mktemp("families")
    files = dict(config_files())

    @cache
    def load(name: str) -> backbone.Backbone:
        if "timm_model_name" in FAMILIES[name]["vision_cfg"]:
            lazy.complete_open_clip("timm_model")
        files[f"family-{name}"] = folder / f"family-{name}.json"
        files[f"family-{name}"].write_text(json.dumps({"embed_dim": 16} | FAMILIES[name]))
        open_clip.add_model_config(files[f"family-{name}"])
        torch.manual_seed(0)
        torch.save(open_clip.create_model(f"family-{name}").state_dict(), folder / "w.pt")
        return backbone.load(f"family-{name}", str(folder / "w.pt"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedcore.clip.specs.config_files", lambda: files)
        yield load
    specs._clip_spec.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_every_tower_embeds_images_and_sentences(family, name):
    model = family(name)
    pixels = torch.rand(2, 3, model.spec.image_size, model.spec.image_size)
    assert model.embed_images(pixels).shape == (2, *encodings.row_shape(model.spec, "embedding"))
    text = prompts.class_features(model, CLASSES, "a photo of a {}.")
    tokens = model.tokenize([f"a photo of a {c}." for c in CLASSES])
    with torch.no_grad():
        torch.testing.assert_close(text, F.normalize(model.model.encode_text(tokens), dim=-1))


@pytest.mark.parametrize("name", NAMES)
def test_image_towers_can_be_taken_apart_where_the_facts_say_so(family, name):
    model = family(name)
    assert (model.spec.vision == "vit") == (name in TOKENS)
    if name not in TOKENS:
        with pytest.raises(FedLensError, match=r"has no ViT tokens to encode"):
            encodings.row_shape(model.spec, "layer:1")
        return
    pixels = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        hidden = model.image.activations(pixels, 1)
        assert hidden.shape[1:] == encodings.row_shape(model.spec, "layer:1")
        assert model.image.patches(pixels).shape[1:] == encodings.row_shape(model.spec, "patches")
        torch.testing.assert_close(model.image.tail(hidden[None], 1)[0], model.embed_images(pixels))


@pytest.mark.parametrize("name", NAMES)
def test_prompts_can_be_learned_where_the_facts_say_so(family, name):
    model = family(name)
    assert (model.spec.prompts is None) == (name in PROMPTS)
    if name in PROMPTS:
        suffix = prompts.class_suffix(model, CLASSES)
        context = model.text.embed(model.tokenize(["a photo of a"])[:, 1:5])
        found = prompts.encode_context(model, context, suffix)[0]
        plain = prompts.encode_texts(model, [f"a photo of a {c}." for c in CLASSES])
        torch.testing.assert_close(found, plain)
    else:
        with pytest.raises(FedLensError, match="takes no learned prompts"):
            prompts.class_suffix(model, CLASSES)


@pytest.mark.parametrize("method", registry.load_all())
def test_a_method_accepts_a_model_or_says_why_not(method):
    """Over all models of open_clip, with the method's default hyper-parameters; nothing is loaded."""
    cls = registry.get(method)
    config = registry.build_config(method, {})
    accepted, refused = set(), {}
    for name in config_files():
        spec = backbone_spec(name)
        run_context = RunContext(spec, CLASSES, 4, ("photo", "sketch"), "a {}.", (0, 1, 0, 1))
        try:
            check_method(cls, config, run_context)
        except FedLensError as error:
            refused[name] = str(error)
        else:
            row = encodings.row_shape(spec, cls.reads(config, spec))  # what it reads, this tower gives
            assert all(size > 0 for size in row), name
            accepted.add(name)
    assert accepted >= {"ViT-B-16", "ViT-B-32"}
    needs_tokens = cls.reads(config, backbone_spec("ViT-B-32")) not in ("embedding", "regions", "pixels")
    assert ("RN50" in refused) == needs_tokens or method == "feddeap"
    if method in ("zero-shot", "clip-fc", "fedclip", "fedot"):  # image embeddings and class sentences will do
        assert not refused
    for name, message in refused.items():
        spec = backbone_spec(name)
        odd = spec.vision != "vit" or spec.prompts or spec.embed_dim != spec.token_width
        assert odd or spec.context_length < 77, f"{name}: {message}"
        assert name in message or any(word in message for word in ("width", "tokens")), f"{name}: {message}"
