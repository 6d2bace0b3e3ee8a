"""Encoders without towers: timm's models by name, and a Python file of the user's own.

docs/backbones.md says what such a file defines and what its functions are given.
"""

import importlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import open_clip
from fedcore.base.progress import result_of
from fedcore.clip import tags, weights
from fedcore.clip.specs import BackboneSpec

_FIELD = "backbone.pretrained"
Made = tuple["Encoder", Callable[[Any], Tensor], dict[str, Any]]
"""An encoder, its preprocessing of images, and what identifies that."""


class Encoder(torch.nn.Module):
    """What a ``Backbone`` needs of a model without towers: CLIP's factor of cosines, 100, and functions."""

    def __init__(self, encode: Any = None, encode_text: Any = None) -> None:
        super().__init__()
        self.logit_scale = torch.nn.Parameter(torch.tensor(math.log(100)))
        self.encode, self.encode_text = encode, encode_text

    def encode_image(self, pixels: Tensor, normalize: bool = False) -> Tensor:
        """Return embeddings, not normalised. Shape: (images, 3, side, side) -> (images, d)."""
        return self.encode(pixels)


def of_file(spec: BackboneSpec, path: Path, precision: str) -> Made:
    """Run an encoder's file, to which the user has agreed; an error of the file names its line."""
    if precision != "fp32":
        raise FedLensError("the encoder's file decides its precision; set fp32", "backbone.precision")
    module = consent.run(*consent.agreed(path, field=_FIELD), _FIELD)
    text = partial(_checked, module, "encode_text", spec) if spec.class_texts == "encoded" else None
    settings = {"size": spec.image_size, "mean": (0, 0, 0), "std": (1, 1, 1), "interpolation": "bicubic"}
    transform = open_clip().transform
    preprocess = transform.image_transform_v2(transform.PreprocessCfg(**settings), is_train=False)
    return Encoder(partial(_checked, module, "encode", spec), text), preprocess, settings


def _checked(module: ModuleType, name: str, spec: BackboneSpec, given: Tensor | list[str]) -> Tensor:
    """Call a function of an encoder's file, and check what it returns. Shape: -> (n, d) float32."""
    file = Path(str(module.__file__))
    with consent.faults_named(file, f"{name} raised", _FIELD):
        found = torch.as_tensor(getattr(module, name)(given)).float()
    expected = (len(given), spec.embed_dim)
    if found.shape != expected or not found.isfinite().all():
        raise FedLensError(
            f"{file}: {name} returned {tuple(found.shape)} for {len(given)} inputs, and must return finite "
            f"numbers of the shape (inputs, embed_dim) = {expected}; correct it, or embed_dim",
            _FIELD,
        )
    return found


def of_timm(spec: BackboneSpec, source: tuple[Path, ...] | str) -> Made:
    """Load a timm model without its classifier; a tag's weights are downloaded if they are not here."""
    name, overlay = spec.name.removeprefix("timm:"), dict[str, Any]()
    if isinstance(source, str):
        name, path = f"{name}.{source}", result_of(tags.fetch(spec.name, source))
    else:
        (path,), overlay = source, {"num_classes": 0, "label_offset": 0}  # so that every tensor must fit
    timm: Any = importlib.import_module("timm")
    heads = timm.get_pretrained_cfg(name).classifier or ()
    heads = (heads,) if isinstance(heads, str) else heads
    overlay["state_dict"] = {k: v for k, v in weights.read(path).items() if k.rpartition(".")[0] not in heads}
    try:
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=0)
    except (RuntimeError, KeyError) as error:  # torch's and timm's, for tensors that do not fit
        raise FedLensError(
            f"{path} does not hold the weights of {spec.name}: {' '.join(str(error).split())[:200]}; name "
            "the model that it belongs to",
            _FIELD,
        ) from error
    del model.pretrained_cfg["state_dict"]
    settings = timm.data.resolve_model_data_config(model)
    return Encoder(model), timm.data.create_transform(**settings, is_training=False), settings
