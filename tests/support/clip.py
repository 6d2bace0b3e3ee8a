"""Small backbones and noise images for the tests of clip."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedcore.base.progress import result_of
from fedcore.clip import encodings
from fedcore.clip.backbone import Backbone
from fedcore.data.images import ImageSet
from tests.support.tiny import tiny_backbone


def noise(n: int = 70, read: Callable[[int], Image.Image] | None = None, fingerprint: str = "v1") -> ImageSet:
    """Random images of 16 x 16, the same for the same index."""

    def draw(i: int) -> Image.Image:
        return Image.fromarray(np.random.default_rng(i).integers(0, 255, (16, 16, 3), dtype=np.uint8))

    return ImageSet(
        "noise",
        ("a", "b"),
        ("d",),
        "a {}.",
        np.arange(n) % 2,
        np.zeros(n, int),
        tuple(map(str, range(n))),
        fingerprint,
        read or draw,
    )


def pixel_backbone() -> Backbone:
    """A tiny float32 ViT that takes images of 16 x 16 as they are."""

    def pixels(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255

    return replace(tiny_backbone(dtype=torch.float32), preprocess=pixels)


SMALL = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 16, "layers": 2, "width": 16, "head_width": 8, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


def encoded(
    backbone: Backbone, images: ImageSet, reads: str, folder: Path, workers: int | None = None
) -> torch.Tensor:
    """The encoded samples of a data set, made or found in the folder."""
    return encodings.read(result_of(encodings.encode(backbone, images, reads, folder, workers)))
