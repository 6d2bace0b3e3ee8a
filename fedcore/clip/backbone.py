"""A frozen CLIP: any open_clip model by name, tag or file, and the miniature models, by one path."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.clip import tags
from fedcore.clip.facts import MINI_MODELS, BackboneFacts, facts, weights_source
from fedcore.clip.towers import ImageTower, TextTower
from fedcore.errors import FedLensError
from fedcore.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image
    from torch import Tensor

_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Backbone:
    """A frozen CLIP model with its tokenizer and preprocessing.

    Attributes:
        fingerprint: changes with the weights (of a tag: with its name), the preprocessing and the precision.
        dtype: what methods compute in (the towers' own dtype).
        encode_dtype: precision of the frozen image pass.
        tag_content: content of the file that a tag stood for; empty for other weights, whose content is in
            the fingerprint. Part of the feature cache's key only: runs keep to a tag by its name.
    """

    facts: BackboneFacts
    model: Any  # open_clip has no types
    tokenizer: Any
    preprocess: Callable[[Image.Image], Tensor]
    device: torch.device
    fingerprint: str
    encode_dtype: torch.dtype
    tag_content: str = ""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of prompts, LoRA factors and features."""
        return self.model.logit_scale.dtype

    @cached_property
    def logit_scale(self) -> float:
        """s, by which CLIP multiplies its cosines (100 for OpenAI's weights)."""
        return float(self.model.logit_scale.detach().exp())

    @cached_property
    def text(self) -> TextTower:
        """The text tower on token embeddings."""
        return TextTower(self.model)

    @cached_property
    def image(self) -> ImageTower:
        """The upper layers of a ViT.

        Raises:
            FedLensError: for a ResNet.
        """
        return ImageTower(self.model.visual)

    def tokenize(self, texts: list[str]) -> Tensor:
        """CLIP token ids, [SOS] ... [EOT] 0 .... Shape: -> (texts, context_length).

        Raises:
            FedLensError: for a text that CLIP would cut off.
        """
        for too_long in filter(None, map(self.too_long, texts)):
            raise FedLensError(f"{too_long}; shorten the class name or template", "data.template")
        return self.tokenizer(texts)

    def too_long(self, text: str) -> str:
        """The reason why CLIP would cut a text off; empty where it reads all of it or counts no tokens."""
        if not hasattr(self.tokenizer, "encode"):
            return ""
        need = len(self.tokenizer.encode(text)) + 2
        if need <= self.facts.context_length:
            return ""
        return f"'{text[:60]}' needs {need} tokens, {self.facts.name} reads {self.facts.context_length}"

    def word(self, token: int) -> str:
        """A token of the vocabulary as it is written; ``~`` marks one that goes on in the next token."""
        text = self.tokenizer.decode([token])
        return text.removesuffix(" ") if text.endswith(" ") else f"{text}~"

    def embed_images(self, pixels: Tensor) -> Tensor:
        """h = I(x), not normalised. Shape: pixels (images, 3, side, side) -> (images, d)."""
        return self.model.encode_image(pixels, normalize=False)  # CoCa would by default


def weights_fingerprint(name: str, pretrained: str | None) -> str:
    """Identity of a backbone's weights without loading them: file contents, or the name of a tag.

    Raises:
        FedLensError: as ``weights_source``.
    """
    source = weights_source(name, pretrained)
    if isinstance(source, str):
        return f"{name}:{source}"
    digest = hashlib.sha256()
    for path in source:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{name}:{digest.hexdigest()[:16]}"


def load(name: str, pretrained: str | None = None, device: str = "cpu", precision: str = "fp32") -> Backbone:
    """Load a frozen CLIP.

    Weights of a tag come from this machine's Hugging Face cache, or are downloaded into it.

    Raises:
        FedLensError: for unknown names, missing, unreadable or unfitting weights.
    """
    import open_clip

    fingerprint = weights_fingerprint(name, pretrained)
    source = weights_source(name, pretrained)
    model = _create(name, pretrained).to(device).eval().requires_grad_(False)
    settings = model.visual.preprocess_cfg
    return Backbone(
        facts=facts(name),
        model=model,
        tokenizer=open_clip.get_tokenizer(name),
        preprocess=open_clip.transform.image_transform_v2(
            open_clip.transform.PreprocessCfg(**settings), is_train=False
        ),
        device=torch.device(device),
        fingerprint=f"{fingerprint}:{_activation(model)}:{precision}:{json.dumps(settings, sort_keys=True)}",
        encode_dtype=getattr(torch, _PRECISIONS[precision]),
        tag_content=tags.content(name, source) if isinstance(source, str) else "",
    )


def _create(name: str, pretrained: str | None) -> Any:
    import open_clip

    from fedcore.clip import weights

    if name in MINI_MODELS:
        from fedcore.clip import mini

        mini.register()
        model = _empty(name)
        model.load_state_dict(mini.state_dict(name))
        return model
    assert pretrained is not None, "weights_source refuses a model without weights"
    path = Path(pretrained).expanduser()
    if path.is_file():
        state = weights.read(path)
        model = _empty(name, force_quick_gelu=wants_quick_gelu(name, pretrained))
        weights.fit(model, state, name, path)
        return model
    cfg = tags.config(name, pretrained)
    weights_file = tags.cached(name, pretrained) or _download(name, pretrained)
    settings = {key: cfg[key] for key in ("mean", "std", "interpolation", "resize_mode")}
    model = _empty(name, force_quick_gelu=wants_quick_gelu(name, pretrained), force_preprocess_cfg=settings)
    try:
        open_clip.load_checkpoint(model, str(weights_file), weights_only=True)
    except Exception as error:  # a damaged download shows itself as anything from EOFError to KeyError
        raise FedLensError(
            f"the weights '{pretrained}' of {name} cannot be read from {weights_file} "
            f"({_first_line(error)}); delete the file, it is downloaded again",
            "backbone.pretrained",
        ) from error
    return model


def _empty(name: str, **options: object) -> Any:
    """The model without weights yet; open_clip's warning that it is random is kept out of the log."""
    import open_clip

    def other(record: logging.LogRecord) -> bool:
        return "No pretrained weights loaded" not in record.getMessage()

    logging.getLogger().addFilter(other)
    try:
        return open_clip.create_model(name, load_weights=False, pretrained_text=False, **options)
    finally:
        logging.getLogger().removeFilter(other)


def _download(name: str, tag: str) -> Path:
    """The weights of a tag from the Hugging Face hub.

    Raises:
        FedLensError: saying how to bring the file here without a network.
    """
    import open_clip

    try:
        return Path(open_clip.download_pretrained(tags.config(name, tag)))
    except Exception as error:  # the hub's client raises its own, the network library's and OSError
        repo, files = tags.repository(name, tag)
        raise FedLensError(
            f"the weights '{tag}' of {name} are not on this machine and cannot be downloaded "
            f"({_first_line(error)}); where there is a network, `hf download {repo} {files[0]}` fetches "
            "them: copy them into this machine's Hugging Face cache, or give the file's path as weights",
            "backbone.pretrained",
        ) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def wants_quick_gelu(name: str, pretrained: str) -> bool:
    """Whether weights were trained with QuickGELU although the model's plain name builds GELU.

    open_clip only warns of the mismatch, which costs points of accuracy without any error: OpenAI's tags and
    archives, and some others, need it. A plain state dict cannot tell; its user names ``<model>-quickgelu``.
    """
    from fedcore.clip import weights

    path = Path(pretrained).expanduser()
    if path.is_file():
        return weights.is_archive(path)
    return bool(tags.config(name, pretrained).get("quick_gelu", False))


def _activation(model: Any) -> str:
    """Name of the towers' activation (part of the fingerprint: it changes every feature)."""
    return type(model.transformer.resblocks[0].mlp.gelu).__name__ if hasattr(model, "transformer") else "own"
