"""A frozen CLIP: any open_clip model by name, tag or file, and the miniature models, by one path."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore.clip.facts import MINI_MODELS, BackboneFacts, facts, weights_source
from fedcore.clip.prompts import zero_shot
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
    """A frozen CLIP model and what goes with it.

    Attributes:
        fingerprint: changes with the weights, the preprocessing and the precision; the feature cache's key.
        dtype: what methods compute in (the towers' own dtype).
        encode_dtype: precision of the frozen image pass.
    """

    facts: BackboneFacts
    model: torch.nn.Module
    tokenizer: Callable[[list[str]], Tensor]
    preprocess: Callable[[Image.Image], Tensor]
    device: torch.device
    fingerprint: str
    encode_dtype: torch.dtype

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of prompts, LoRA factors and features."""
        return self.model.positional_embedding.dtype

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
        if hasattr(self.tokenizer, "encode"):
            for text in texts:
                need = len(self.tokenizer.encode(text)) + 2
                if need > self.facts.context_length:
                    raise FedLensError(
                        f"'{text[:60]}' needs {need} tokens, {self.facts.name} reads "
                        f"{self.facts.context_length}; shorten the class name or template",
                        "data.template",
                    )
        return self.tokenizer(texts)

    def embed_images(self, pixels: Tensor) -> Tensor:
        """h = I(x), not normalised. Shape: pixels (images, 3, side, side) -> (images, d)."""
        return self.model.encode_image(pixels)

    def zero_shot(self, classes: tuple[str, ...], template: str) -> Tensor:
        """Normalised text features of the class prompts. Shape: -> (classes, d)."""
        return zero_shot(self, classes, template)


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
    """Load a frozen CLIP. A tag is downloaded by open_clip where
    it is not cached: only a user's tag does that.

    Raises:
        FedLensError: for unknown names, missing or unreadable weights.
    """
    import open_clip

    fingerprint = weights_fingerprint(name, pretrained)
    try:
        model = _create(name, pretrained)
    except FedLensError:
        raise
    except (
        Exception
    ) as error:  # open_clip raises anything from KeyError to HTTP errors; the user needs one line
        what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise FedLensError(
            f"cannot load {name} from '{pretrained}' ({what}); check the tag, the file or the network",
            "backbone.pretrained",
        ) from error
    model = model.to(device).eval().requires_grad_(False)
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
    )


def _create(name: str, pretrained: str | None) -> torch.nn.Module:
    import open_clip

    if name in MINI_MODELS:
        from fedcore.clip import mini

        mini.register()
        model = open_clip.create_model(name)
        model.load_state_dict(mini.state_dict(name))
        return model
    assert pretrained is not None, "weights_source refuses a model without weights"
    path = Path(pretrained).expanduser()
    return open_clip.create_model(
        name,
        pretrained=str(path) if path.is_file() else pretrained,
        force_quick_gelu=wants_quick_gelu(name, pretrained),
    )


def wants_quick_gelu(name: str, pretrained: str) -> bool:
    """Whether weights were trained with QuickGELU although the model's plain name builds GELU.

    open_clip only warns of the mismatch, which costs points of accuracy without any error: OpenAI's tags and
    archives, and some others, need it. A plain state dict cannot tell; its user names ``<model>-quickgelu``.
    """
    from open_clip.pretrained import get_pretrained_cfg

    path = Path(pretrained).expanduser()
    if path.is_file():
        return _is_torchscript(path)
    return bool((get_pretrained_cfg(name, pretrained) or {}).get("quick_gelu", False))


def _is_torchscript(path: Path) -> bool:
    """OpenAI's own archives are TorchScript: zip files that hold code."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in entry for entry in archive.namelist())


def _activation(model: torch.nn.Module) -> str:
    """Name of the towers' activation (part of the fingerprint: it changes every feature)."""
    return type(model.transformer.resblocks[0].mlp.gelu).__name__ if hasattr(model, "transformer") else "own"
