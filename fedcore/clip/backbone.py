"""A frozen encoder: an open_clip model by name, tag or file, a miniature model, or one without towers."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.base import lazy
from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import user_path
from fedcore.base.lazy import Tensor, torch
from fedcore.base.progress import result_of
from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS, BackboneSpec, WeightsFiles, backbone_spec, weights_source
from fedcore.clip.towers import ImageTower, TextTower, resnet_map, resnet_regions

_TYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Precision -> torch's type of the numbers that the frozen image pass multiplies."""


@dataclass(frozen=True)
class Backbone:
    """A frozen CLIP model with its tokenizer and preprocessing.

    Attributes:
        fingerprint: changes with the weights (of a tag: with its name), the preprocessing and the precision.
        precision: of the frozen image pass, as the config names it.
        tag_content: hash of the file that a tag stood for; empty for other weights, whose hash is in the
            fingerprint. It is part of the key of encodings only: a run identifies a tag by its name.
        files: the files that the weights were read from.
        class_vectors: the vector of each class that is known, where sentences cannot be encoded; None where
            they can. Shape: (d,) each.
    """

    spec: BackboneSpec
    model: Any  # open_clip has no types; of an encoder without towers it need only have logit_scale
    tokenizer: Any
    preprocess: Any  # (image) -> pixels; None without images
    device: "torch.device"
    fingerprint: str
    precision: str
    tag_content: str = ""
    files: WeightsFiles = field(default_factory=WeightsFiles)
    class_vectors: Mapping[str, Tensor] | None = None

    @property
    def encode_dtype(self) -> "torch.dtype":
        return getattr(torch, _TYPES[self.precision])

    @property
    def dtype(self) -> "torch.dtype":
        """Dtype of prompts, LoRA factors and features, which is the towers' own."""
        return self.model.logit_scale.dtype

    @cached_property
    def logit_scale(self) -> float:
        """The factor s by which CLIP multiplies its cosines (100 for OpenAI's weights)."""
        return float(self.model.logit_scale.detach().exp())

    @cached_property
    def text(self) -> TextTower:
        return TextTower(self.model)

    @cached_property
    def image(self) -> ImageTower:
        return ImageTower(self.model.visual)

    def tokenize(self, texts: list[str]) -> Tensor:
        """Return token ids, [SOS] ... [EOT] and padding; refuse a text that would be truncated.

        SigLIP's and other tokenizers of sentence pieces have no [SOS].

        Shape: -> (texts, context_length).
        """
        return self._tokenized(tuple(texts)).clone()

    @cached_property
    def start_id(self) -> Tensor:
        """The id of [SOS], if there is one, on the device, where every step needs it. Shape: (1 or 0,)."""
        blank, letter = self.tokenizer(["", "a"])
        return blank[: int(blank[0] == letter[0])].to(self.device)

    @cached_property
    def end_id(self) -> int:
        """The id of [EOT], in some tokenizers that of the padding; refuse one that pads in front."""
        end, *padding = self.tokenizer([""])[0, len(self.start_id) :].tolist()
        if len(set(padding)) > 1:
            raise FedLensError(
                f"the tokenizer of {self.spec.name} does not write [EOT] and the padding behind a text; "
                "try another version of transformers",
                "backbone.name",
            )
        return int(end)

    def after_start(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Return token ids after [SOS] and the index of [EOT] among them. Shape: (texts, S), (texts,)."""
        end, ids = self.end_id, self.tokenize(texts)[:, len(self.start_id) :]
        return ids, (ids == end).int().argmax(-1)

    @cached_property
    def _tokenized(self) -> Callable[[tuple[str, ...]], Tensor]:
        """The tokenizer with a cache, since methods tokenize the same texts in every step."""

        def tokenized(texts: tuple[str, ...]) -> Tensor:
            for too_long in filter(None, map(self.too_long, texts)):
                raise FedLensError(f"{too_long}; shorten the class name or template", "data.template")
            return self.tokenizer(list(texts))

        return lru_cache(maxsize=64)(tokenized)

    def too_long(self, text: str) -> str:
        """Return why a text would be truncated; empty if it fits."""
        limit, needed = self.spec.context_length, ""
        if hasattr(self.tokenizer, "encode"):
            tokens = len(self.tokenizer.encode(text)) + 2
            needed = str(tokens) if tokens > limit else ""
        elif self.tokenizer and not self.tokenizer([text], limit).equal(
            self.tokenizer([text], limit + 1)[:, :limit]
        ):
            needed = f"more than {limit}"  # with more room it goes on in another way
        return needed and f"'{text[:60]}' needs {needed} tokens, {self.spec.name} reads {limit}"

    def word(self, token: int) -> str:
        """Return the text of a token; in CLIP's tokenizer ``~`` at its end marks a word that goes on."""
        if hasattr(self.tokenizer, "tokenizer"):  # Hugging Face's mark the beginning of a word instead
            return str(self.tokenizer.tokenizer.decode([token]))
        text = self.tokenizer.decode([token])
        return text.removesuffix(" ") if text.endswith(" ") else f"{text}~"

    def embed_images(self, pixels: Tensor) -> Tensor:
        """Return h = I(x), not normalised. Shape: pixels (images, 3, side, side) -> (images, d)."""
        return self.model.encode_image(pixels, normalize=False)  # CoCa would by default

    def embed_regions(self, pixels: Tensor) -> Tensor:
        """Return an unnormalised embedding of each region: a ViT's patches, or a ResNet's positions.

        Shape: pixels (images, 3, side, side) -> (images, regions, d).
        """
        if self.spec.vision == "resnet":
            return resnet_regions(self.model.visual, resnet_map(self.model.visual, pixels))
        return self.image.regions(self.image.activations(pixels, 0), 0)


def load(name: str, pretrained: str | None = None, device: str = "cpu", precision: str = "fp32") -> Backbone:
    """Load a frozen encoder; a tag's weights are downloaded unless the Hugging Face cache has them."""
    open_clip = lazy.open_clip()
    source, files = weights_source(name, pretrained), WeightsFiles.of(name, pretrained)
    # Weights are identified by the name of a tag, or by the content of files.
    identity = source if isinstance(source, str) else _content(source)
    spec = backbone_spec(name, pretrained)
    if spec.is_black_box:
        from fedcore.clip import encoders

        if name in tags.timm_models():
            model, preprocess, settings = encoders.of_timm(spec, source)
        else:
            model, preprocess, settings = encoders.of_file(spec, files.paths[0], precision)
        tokenizer, activation = None, "own"
    else:
        model = _create(name, pretrained)
        settings = model.visual.preprocess_cfg
        transform = open_clip.transform
        preprocess = transform.image_transform_v2(transform.PreprocessCfg(**settings), is_train=False)
        # open_clip makes CLIP's own tokenizer when it is imported; a version that does not costs time alone
        tokenizer = getattr(open_clip.tokenizer, "_tokenizer", None) if name in MINI_MODELS else None
        tokenizer = open_clip.get_tokenizer(name) if tokenizer is None else tokenizer
        activation = "own"  # of models whose text tower is a separate module
        if hasattr(model, "transformer"):
            activation = type(model.transformer.resblocks[0].mlp.gelu).__name__
    model = model.to(device).eval().requires_grad_(False)
    if not files.paths:
        files = WeightsFiles.of(name, pretrained)  # downloaded just now
    elif files.changed():
        raise FedLensError(
            f"{files.paths[0]} changed while it was read; start the run again", "backbone.pretrained"
        )
    return Backbone(
        spec=spec,
        model=model,
        tokenizer=tokenizer,
        preprocess=preprocess,
        device=torch.device(device),
        fingerprint=f"{name}:{identity}:{activation}:{precision}:{json.dumps(settings, sort_keys=True)}",
        precision=precision,
        tag_content=tags.content(name, source) if isinstance(source, str) else "",
        files=files,
    )


def given(spec: BackboneSpec, class_vectors: Mapping[str, np.ndarray], device: str) -> Backbone:
    """Return the encoder of a data set of embeddings: CLIP's scale of cosines, 100, and class vectors.

    Shape: class_vectors (d,) each.
    """
    from fedcore.clip.encoders import Encoder

    return Backbone(
        spec,
        Encoder().to(device),
        tokenizer=None,
        preprocess=None,
        device=torch.device(device),
        fingerprint=f"{spec.name}:{spec.embed_dim}",
        precision="fp32",
        class_vectors={n: torch.from_numpy(v.copy()).to(device) for n, v in class_vectors.items()},
    )


def _content(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


Wanted = tuple[str, str | None, str, str]
"""Name, pretrained, device and precision of a backbone, as ``load`` takes them."""
_LOADED: dict[Wanted, Backbone] = {}


def load_backbones(wanted: Sequence[Wanted]) -> list[Backbone]:
    """Load the backbones of a run; they stay in memory for the next run of the process, others are freed."""
    for key in set(_LOADED) - set(wanted):
        del _LOADED[key]  # an unused ViT-L would only take memory
    for key in wanted:
        if key not in _LOADED or _LOADED[key].files.changed():
            _LOADED[key] = load(*key)
    return [_LOADED[key] for key in wanted]


def _create(name: str, pretrained: str | None) -> Any:
    from fedcore.clip import weights

    if name in MINI_MODELS:
        weights.register_embedded()
        model = _empty(name)
        model.load_state_dict(weights.embedded_state_dict(name))
        return model
    assert pretrained is not None, "weights_source refuses a model without weights"
    # OpenAI's archives and tags, and some others, were trained with QuickGELU, although a model's plain name
    # builds GELU. open_clip only warns of the mismatch, which lowers the accuracy without an error. A plain
    # state dict does not record it: ``<model>-quickgelu`` is for these.
    path = user_path(pretrained, "backbone.pretrained")
    if path.is_file():
        state = weights.read(path)
        model = _empty(name, force_quick_gelu=weights.is_archive(path))
        weights.fit(model, state, name, path)
        return model
    cfg = tags.config(name, pretrained)
    weights_file = result_of(tags.fetch(name, pretrained))
    settings = {key: cfg[key] for key in ("mean", "std", "interpolation", "resize_mode")}
    quick = bool(cfg.get("quick_gelu", False))
    model = _empty(name, force_quick_gelu=quick, force_preprocess_cfg=settings)
    try:
        lazy.open_clip().load_checkpoint(model, str(weights_file), weights_only=True)
    except Exception as error:  # a damaged download raises anything from EOFError to KeyError
        raise FedLensError(
            f"the weights '{pretrained}' of {name} cannot be read from {weights_file} "
            f"({first_line(error)}); delete the file, and it will be downloaded again",
            "backbone.pretrained",
        ) from error
    return model


def _empty(name: str, **options: object) -> Any:
    """Return the model; its weights are uninitialised, and the caller loads all of them.

    open_clip's warning that no weights are loaded is not logged.
    """
    from fedcore.clip.weights import Uninitialised

    open_clip = lazy.open_clip()
    config = open_clip.get_model_config(name) or {}
    if "timm_model_name" in config.get("vision_cfg", {}):
        lazy.complete_open_clip("timm_model")
    if "hf_model_name" in config.get("text_cfg", {}):
        lazy.complete_open_clip("hf_model")

    def is_other_message(record: logging.LogRecord) -> bool:
        return "No pretrained weights loaded" not in record.getMessage()

    logging.getLogger().addFilter(is_other_message)
    try:
        with Uninitialised():
            return open_clip.create_model(name, load_weights=False, pretrained_text=False, **options)
    finally:
        logging.getLogger().removeFilter(is_other_message)
