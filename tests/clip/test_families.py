"""Every family of open_clip models: what the specs promise holds, and each method says yes or why not."""

import copy
import json
import re
import sys
from dataclasses import replace
from functools import cache
from importlib.machinery import ModuleSpec
from itertools import count, filterfalse, islice
from types import ModuleType, SimpleNamespace
from typing import Self

import pytest
import torch
from torch.nn import functional as F

from fedcore.base import lazy
from fedcore.base.errors import FedLensError
from fedcore.clip import backbone, encodings, prompts, specs
from fedcore.clip.adapters import Adapters
from fedcore.clip.specs import backbone_spec, config_files
from fedcore.engine.prepare import check_method
from fedcore.methods import registry
from fedcore.methods.base import RunContext
from fedcore.methods.feddeap import PromptedTexts
from tests.support.tiny import run_rounds, tiny_federation

open_clip = lazy.open_clip()
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
VIT = {"image_size": 32, "layers": 2, "width": 16, "head_width": 8, "patch_size": 8}
TIMM = {
    "timm_model_name": "test_vit",
    "timm_model_pretrained": False,
    "image_size": 160,
    "timm_proj": "linear",
}
COCA = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
SHORT = {"context_length": 16, "vocab_size": 99, "width": 16, "heads": 2, "layers": 2}
WHOLE = SHORT | {"no_causal_mask": True, "pool_type": "last"}
SIGLIP = WHOLE | {
    "norm_kwargs": {"eps": 1e-6},
    "tokenizer_kwargs": {"clean": "canonicalize"},
    "hf_tokenizer_name": "t5",
}
CONVNEXT = {"timm_model_name": "test_convnext", "timm_pool": ""}
FAMILIES = {
    "clip": {"vision_cfg": VIT, "text_cfg": TEXT},
    "own-text-module": {"vision_cfg": VIT, "text_cfg": TEXT, "custom_text": True},
    "layer-scale": {"vision_cfg": VIT | {"ls_init_value": 0.1}, "text_cfg": TEXT},
    "mean-pooled": {"vision_cfg": VIT | {"pool_type": "avg", "no_ln_pre": True}, "text_cfg": TEXT},
    "siglip": {
        "vision_cfg": VIT | {"attentional_pool": True, "attn_pooler_heads": 2},
        "text_cfg": SIGLIP | {"proj_bias": True},
        "custom_text": True,
        "init_logit_bias": -10,
    },
    "siglip2": {
        "vision_cfg": VIT,
        "text_cfg": SIGLIP | {"proj_type": "none", "act_kwargs": {"approximate": "tanh"}},
        "custom_text": True,
        "init_logit_bias": -10,
    },
    "clipa": {
        "vision_cfg": VIT | {"pool_type": "avg", "no_ln_pre": True},
        "text_cfg": WHOLE | {"tokenizer_kwargs": {"strip_sep_token": True}, "hf_tokenizer_name": "bert"},
    },
    "mobileclip2": {
        "vision_cfg": VIT,
        "text_cfg": TEXT | {"no_causal_mask": True, "context_length": 20},
        "custom_text": True,
    },
    "worldwide": {
        "vision_cfg": VIT,
        "text_cfg": SHORT | {"pool_type": "eos", "eos_id": 2, "hf_tokenizer_name": "xlm"},
    },
    "worldwide-mt5": {
        "vision_cfg": VIT,
        "text_cfg": SHORT | {"pool_type": "eos", "eos_id": 1, "hf_tokenizer_name": "gemma"},
        "quick_gelu": True,
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
TOKENS = {
    "clip",
    "own-text-module",
    "layer-scale",
    "siglip2",
    "mobileclip2",
    "worldwide",
    "worldwide-mt5",
    "coca",
}
OTHER_TEXT = ("siglip", "siglip2", "clipa", "mobileclip2", "worldwide", "worldwide-mt5", "coca")
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in ("timm", "convnext") else n for n in FAMILIES]
"""Importing timm takes seconds."""
CLASSES = ("cat", "snow owl", "fire engine")
DESCRIBED = {name: [f"one {name}."] for name in CLASSES}


class SmallTokenizer:
    """A tokenizer of words with the interface of Hugging Face's, as open_clip calls it."""

    special = {  # id of [SOS], of [EOT] and of the padding
        "t5": (None, 1, 1),  # SigLIP
        "gemma": (None, 1, 0),  # SigLIP 2, MetaCLIP 2's mT5
        "xlm": (0, 2, 1),
        "bert": (3, 4, 0),
        "left": (None, 1, 0),
    }
    sep_token_id = 4

    def __init__(self, name: str) -> None:
        self.start, self.end, self.pad = self.special[name]
        self.left = name == "left"

    @classmethod
    def from_pretrained(cls, name: str, cache_dir: str | None) -> Self:
        return cls(name)

    def decode(self, ids: list[int]) -> str:
        return f"word {ids[0]}"

    def __call__(self, texts, return_tensors, max_length, padding, truncation) -> SimpleNamespace:
        rows = []
        for text in texts:
            words = [5 + sum(map(ord, word)) % 90 for word in re.findall(r"\w+|\W", text) if word != " "]
            ids = [] if self.start is None else [self.start]
            ids = [*ids, *words[: max_length - 1 - len(ids)], self.end]
            pad = [self.pad] * (max_length - len(ids))
            rows.append(pad + ids if self.left else ids + pad)
        return SimpleNamespace(input_ids=torch.tensor(rows))


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

    library = ModuleType("transformers")
    library.__spec__, library.AutoTokenizer = ModuleSpec("transformers", None), SmallTokenizer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedcore.clip.specs.config_files", lambda: files)
        patch.setitem(sys.modules, "transformers", library)
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
    assert (model.spec.text == "clip") == (name not in OTHER_TEXT)
    suffix = prompts.class_suffix(model, CLASSES)
    context = prompts.word_context(model, "a photo of a")
    assert context.shape == (4, 16)
    found = prompts.encode_context(model, context[None], suffix)[0]
    plain = prompts.encode_texts(model, [f"a photo of a {c}." for c in CLASSES])
    torch.testing.assert_close(found, plain)


class Injected:
    """open_clip's own ``encode_text`` of ids among which vectors stand, in float64."""

    def __init__(self, model: backbone.Backbone) -> None:
        self.model, self.clip = model, copy.deepcopy(model.model)
        self.table = self.text.token_embedding.weight.data

    @property
    def text(self):
        return getattr(self.clip, "text", self.clip)

    def __call__(self, name: str, vectors: torch.Tensor, before: int | None = None, words: int = 0):
        """Encode vectors[:before], the first ``words`` tokens of the name, the other vectors and the rest."""
        ids = self.model.tokenize([name])[0]
        first = len(self.model.start_id)
        free = list(islice(filterfalse(set(ids.tolist()).__contains__, count()), len(vectors)))
        clean = self.table[free]
        self.table[free] = vectors
        own, before = torch.tensor(free), len(vectors) if before is None else before
        start, inner, rest = ids.tensor_split([first, first + words])
        sequence = torch.cat([start, own[:before], inner, own[before:], rest])[: len(ids)]
        features = self.clip.encode_text(sequence[None], normalize=False)[0]
        self.table[free] = clean
        return features


def in_float64(model: backbone.Backbone) -> backbone.Backbone:
    """Return a copy whose weights are large enough for features to depend on every token."""
    clip, draws = copy.deepcopy(model.model).double(), torch.Generator().manual_seed(0)
    for parameter in clip.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
    return replace(model, model=clip)


@pytest.mark.parametrize("name", OTHER_TEXT)
def test_prompts_in_other_text_towers_are_open_clips_texts_with_vectors_for_tokens(family, name):
    """Contexts of several lengths, of each class, around the name, deep ones, and sentences half encoded."""
    model = in_float64(family(name))
    truth, draws = Injected(model), torch.Generator().manual_seed(1)
    suffix, names = prompts.class_suffix(model, CLASSES), prompts.name_tokens(model, CLASSES)
    room = model.spec.context_length - suffix.longest[1]  # the longest one leaves no padding
    one = torch.randn(2, room, 16, generator=draws, dtype=torch.float64)
    each = torch.randn(2, 3, 4, 16, generator=draws, dtype=torch.float64)
    lengths = torch.tensor([room, 2])

    def expected(*options: tuple) -> torch.Tensor:
        return torch.stack([truth(f"{c}.", *given) for c, given in zip(CLASSES, options, strict=True)])

    shared = prompts.encode_context(model, one, suffix)
    ragged = prompts.encode_context(model, one, suffix, lengths)
    own = prompts.encode_class_context(model, each, suffix)
    split = [sum(part, ()) for part in zip([(2,)] * 3, [(n,) for n in names.tolist()], strict=True)]
    around = prompts.encode_around(model, one[:, :4], suffix, names, 2)
    exact = {"rtol": 0, "atol": 1e-12}
    for c in range(2):
        torch.testing.assert_close(shared[c], expected(*[(one[c],)] * 3), **exact)
        torch.testing.assert_close(ragged[c], expected(*[(one[c, : lengths[c]],)] * 3), **exact)
        torch.testing.assert_close(own[c], expected(*((vectors,) for vectors in each[c])), **exact)
        torch.testing.assert_close(around[c], expected(*((one[c, :4], *s) for s in split)), **exact)
    assert not torch.allclose(shared[0], shared[1], atol=1e-3)
    dual = PromptedTexts(model, suffix).encode(each[:, :, :1], each[:, :, 1:])
    torch.testing.assert_close(dual, own, **exact)

    first = len(model.start_id)
    block = truth.text.transformer.resblocks[1]

    def deeper(_: object, given: tuple) -> tuple:
        return (torch.cat([given[0][:, :first], one[:1, :4], given[0][:, first + 4 :]], 1), *given[1:])

    deep = prompts.encode_context(model, each[:1, 0], suffix, deep=one[:1, None, :4])[0]
    with_hook = block.register_forward_pre_hook(deeper)
    torch.testing.assert_close(deep, expected(*[(each[0, 0],)] * 3), **exact)
    with_hook.remove()

    texts = ["a photo of a cat.", "a photo of a very snow owl."]
    still = Adapters(*((torch.zeros(1, 1, *size, dtype=torch.float64), torch.zeros(1, 1, size[0])) for size in
                       ((2, 16), (2, 2), (16, 2))), 1.0, 1)  # fmt: skip
    half = prompts.encode_entered(model, prompts.enter_texts(model, texts, 1), still)[0]
    torch.testing.assert_close(half, truth.clip.encode_text(model.tokenize(texts), normalize=False), **exact)


def test_a_prompt_has_the_gradients_of_open_clips_text(family):
    """With SigLIP's layout, and with CoCa's, by finite differences of open_clip's own features."""
    for name in ("siglip", "coca"):
        model = in_float64(family(name))
        truth, suffix = Injected(model), prompts.class_suffix(model, CLASSES)
        one = torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        leaf = one.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(prompts.encode_context(model, leaf, suffix).sum(), leaf)
        step = torch.zeros_like(one)
        step[0, 1, 5] = 1e-5
        sums = [sum(truth(f"{c}.", moved[0]).sum() for c in CLASSES) for moved in (one + step, one - step)]
        torch.testing.assert_close(gradient[0, 1, 5], (sums[0] - sums[1]) / 2e-5, rtol=1e-6, atol=1e-6)


def test_a_text_that_another_tokenizer_would_cut_is_refused(family):
    model = family("siglip")
    assert model.word(7) == "word 7"
    assert not model.too_long("word " * 15)
    assert "needs more than 16 tokens" in model.too_long("word " * 16)
    with pytest.raises(FedLensError, match=r"class 'snow owl' \(14 \+ 3 tokens > 16\); use at most 13"):
        prompts.encode_context(model, torch.zeros(1, 14, 16), prompts.class_suffix(model, CLASSES))


def test_a_tokenizer_that_pads_in_front_is_refused(family):
    left = replace(family("siglip2"), tokenizer=copy.copy(family("siglip2").tokenizer))
    left.tokenizer.tokenizer = SmallTokenizer("left")
    with pytest.raises(FedLensError, match="does not write .EOT. and the padding behind a text"):
        prompts.class_suffix(left, CLASSES)


def test_only_a_hugging_face_text_tower_takes_no_prompts():
    refused = {name for name in config_files() if backbone_spec(name).text == "hugging_face"}
    assert {"roberta-ViT-B-32", "nllb-clip-base-siglip", "coca_roberta-ViT-B-32"} <= refused
    assert not any("SigLIP2" in n or "Mobile" in n or "worldwide" in n or "CLIPA" in n for n in refused)
    with pytest.raises(
        FedLensError, match="takes no learned prompts or adapters: its text tower is a Hugging"
    ):
        prompts.check_prompts(backbone_spec("roberta-ViT-B-32"))


@pytest.mark.parametrize("method", registry.load_all())
def test_a_method_accepts_a_model_or_says_why_not(method):
    """Over all models of open_clip, with the method's default hyper-parameters; nothing is loaded."""
    cls = registry.get(method)
    config = registry.build_config(method, {})
    accepted, refused = set(), {}
    for name in config_files():
        spec = backbone_spec(name)
        run_context = RunContext(
            spec, CLASSES, 4, ("photo", "sketch"), "a {}.", (0, 1, 0, 1), descriptions=DESCRIBED
        )
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
        odd = spec.vision != "vit" or spec.text == "hugging_face" or spec.embed_dim != spec.token_width
        assert odd or spec.context_length < 77, f"{name}: {message}"
        assert name in message or any(word in message for word in ("width", "tokens")), f"{name}: {message}"


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("sdfed", {"global_length": 3, "local_length": "random:2-6"}),
        ("feddeap", {"prompt_length": 2}),
        ("cocoop", {"context_length": 4}),
    ],
)
def test_methods_with_prompts_of_several_lengths_or_of_each_image_train_in_another_tower(
    family, method, config
):
    model, cls = family("siglip2"), registry.get(method)
    settings = registry.build_config(method, config | {"batch_size": 4, "local_epochs": 1, "lr": 0.5})
    federation = tiny_federation(model, reads=cls.reads(settings, model.spec))
    trained = cls(settings, federation.problem)
    before = trained.init(federation.problem.generator).shared
    after = run_rounds(trained, federation, 1).state.shared
    assert any(not torch.equal(before[name], after[name]) for name in before)
