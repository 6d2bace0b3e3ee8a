"""From the disk to the row of the feature, through a reader, the encoder and its cache."""

from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedcore.data.images import ImageSet
from tests.support.clip import encoded
from tests.support.data.layouts import WRITE, colour
from tests.support.data.loading import loaded
from tests.support.tiny import tiny_backbone


def on_disk(name: str, root: Path, images: ImageSet, row: int) -> Image.Image:
    """The image that stands at a row, found without the reader: by its key, or drawn by its class."""
    if name == "ddr":
        return Image.open(root / "DR_grading" / images.keys[row]).convert("RGB")
    if name == "femnist":
        place = int(images.keys[row].rpartition("/")[2])
        saved = datasets.load_from_disk(str(root))["train"][place]
        assert saved["character"] == images.labels[row]
        return saved["image"].convert("RGB")
    return Image.new("RGB", (8, 8), colour(int(images.labels[row]), int(images.domain[row])))


def small(image: Image.Image) -> torch.Tensor:
    pixels = np.asarray(image.resize((16, 16), Image.Resampling.NEAREST), dtype=np.float32)
    return torch.from_numpy(pixels / 128 - 1).permute(2, 0, 1)


@pytest.mark.parametrize("name", ["pacs", "ddr", "femnist", "cifar10"])
def test_an_image_on_disk_is_the_feature_of_its_row(name: str, tmp_path: Path):
    """Nearest to the feature of a row is that of its own image, among all the images looked at."""
    backbone = replace(tiny_backbone(dtype=torch.float32), preprocess=small)
    root = WRITE[name](tmp_path / "set")
    images = loaded(name, str(root))
    values = encoded(backbone, images, "embedding", tmp_path / "cache")
    rows = np.linspace(0, len(images) - 1, min(12, len(images))).astype(int)
    with torch.no_grad():
        by_hand = torch.stack([small(on_disk(name, root, images, int(row))) for row in rows])
        nearest = torch.cdist(values[rows], backbone.embed_images(by_hand)).argmin(1).tolist()
    shown = [(images.labels[row], images.domain[row]) for row in rows]
    assert [shown[i] for i in nearest] == shown
    assert len({tuple(x.tolist()) for x in values[rows]}) >= len(set(shown))
