"""Encoders without towers: timm's models by name, and a Python file of the user's own.

The file is agreed to by its content, like a method's, and defines at its top level

    embed_dim = 768     # d, the width of what encode returns
    image_size = 224    # side of the images, pixels; 224 if it is left out

    def encode(images): ...         # (n, 3, side, side) -> (n, d)
    def encode_text(texts): ...     # optional: n strings -> (n, d), in the space of the images

``images`` is a float32 tensor on the run's device: RGB from 0 to 1, resized (bicubic) so that the shorter
side fits, and cropped in the middle. n is 64; the last batch of a data set is filled up with black images.
What is returned may be any array; cosines with it are multiplied by 100, as in CLIP. ``encode`` is called
without gradients, once per image and data set, and must not draw at random. Load the model in ``encode`` and
keep it (``functools.cache``), since ``--methods`` runs the file too.
"""

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
from fedcore.clip import tags, weights
from fedcore.clip.specs import CALLABLE, BackboneSpec

_FIELD = "backbone.pretrained"
_SCALE = 100.0
"""CLIP's factor of cosines."""


class Encoder(torch.nn.Module):
    """What a ``Backbone`` needs of a model without towers; with neither function, embeddings were given."""

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor] | None = None,
        encode_text: Callable[[list[str]], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.logit_scale = torch.nn.Parameter(torch.tensor(math.log(_SCALE)))
        self.encode, self.encode_text = encode, encode_text

    def encode_image(self, pixels: Tensor, normalize: bool = False) -> Tensor:
        """Return embeddings, not normalised. Shape: (images, 3, side, side) -> (images, d)."""
        assert self.encode is not None, "a data set of embeddings has no images"
        return self.encode(pixels)


def create(
    spec: BackboneSpec, source: tuple[Path, ...] | str, precision: str
) -> tuple[Encoder, Callable[[Any], Tensor], dict[str, Any]]:
    """Return an encoder, its preprocessing of images, and what identifies that."""
    if spec.name != CALLABLE:
        return _of_timm(spec, source)
    if precision != "fp32":
        raise FedLensError("the encoder's file decides its precision; set fp32", "backbone.precision")
    file, content = consent.agreed(source[0], field=_FIELD)
    module = consent.run(file, content, _FIELD)
    text = partial(_checked, module, "encode_text", spec) if spec.class_texts == "encoded" else None
    settings = {"size": spec.image_size, "mean": (0, 0, 0), "std": (1, 1, 1), "interpolation": "bicubic"}
    transform = open_clip().transform
    preprocess = transform.image_transform_v2(transform.PreprocessCfg(**settings), is_train=False)
    return Encoder(partial(_checked, module, "encode", spec), text), preprocess, settings


def _checked(module: ModuleType, name: str, spec: BackboneSpec, given: Tensor | list[str]) -> Tensor:
    """Call a function of the user's file, and refuse what are not finite embeddings of the stated width.

    Shape: -> (n, d) float32.
    """
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


def _of_timm(
    spec: BackboneSpec, source: tuple[Path, ...] | str
) -> tuple[Encoder, Callable[[Any], Tensor], dict[str, Any]]:
    """Return a timm model without its classifier; a tag's weights are downloaded if they are not here."""
    import timm

    name = spec.name.removeprefix("timm:")
    if isinstance(source, str):
        for _ in tags.fetch(spec.name, source):
            pass
        name, path = f"{name}.{source}", tags.cached(spec.name, source)
        assert path is not None, "it was downloaded just now"
    else:
        (path,) = source
    overlay: dict[str, Any] = {"state_dict": weights.read(path)}
    count = {}
    if not isinstance(source, str):  # a file may have a classifier of other classes, or none
        heads = timm.get_pretrained_cfg(name).classifier or ()
        keys = [f"{head}.weight" for head in ((heads,) if isinstance(heads, str) else heads)]
        sizes = [len(overlay["state_dict"][key]) for key in keys if key in overlay["state_dict"]]
        count = {"num_classes": next(iter(sizes), 0)}
        overlay |= {"label_offset": 0, **count}
    try:
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **count)
    except (RuntimeError, KeyError) as error:  # torch's and timm's, for tensors that do not fit
        raise FedLensError(
            f"{path} does not hold the weights of {spec.name}: {' '.join(str(error).split())[:200]}; name "
            "the model that it belongs to",
            _FIELD,
        ) from error
    model.reset_classifier(0)
    model.pretrained_cfg.pop("state_dict")
    settings = timm.data.resolve_model_data_config(model)
    return Encoder(model), timm.data.create_transform(**settings, is_training=False), settings
