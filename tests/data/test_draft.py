"""JPEG files decoded at a fraction: other pixels under another key, and only where the user asks for it."""

import numpy as np
import pytest
from PIL import Image

from fedcore.config import DataConfig, Experiment, expand
from fedcore.config.grouping import group_hash
from fedcore.data import catalog
from fedcore.data.image_files import decode
from fedcore.data.images import with_draft_decoding
from fedcore.engine.prepare import load_images
from tests.support.data.layouts import read_folder


@pytest.fixture
def root(tmp_path):
    """A photo domain with a large and a small JPEG and a PNG, for each of two classes."""
    for name in ("cat", "dog"):
        folder = tmp_path / "set" / "photo" / name
        folder.mkdir(parents=True)
        noise = np.random.default_rng(len(name)).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        picture = Image.fromarray(noise).resize((800, 600))
        picture.save(folder / "large.jpg")
        picture.resize((80, 60)).save(folder / "small.jpg")
        picture.save(folder / "whole.png")
    return tmp_path / "set"


def test_large_jpegs_shrink_no_further_than_asked(root):
    folder = root / "photo" / "cat"
    assert decode(folder / "large.jpg").size == (800, 600)
    assert decode(folder / "large.jpg", 224).size == (400, 300)  # 1/4 would be 150 high
    assert decode(folder / "large.jpg", 64).size == (100, 75)
    assert decode(folder / "small.jpg", 224).size == (80, 60)
    assert decode(folder / "whole.png", 64).size == (800, 600)


def test_drafts_have_a_key_of_their_own(root):
    images, _ = read_folder(root)
    quick = with_draft_decoding(images, 224)
    assert images.read(0).size == (800, 600) and quick.read(0).size == (400, 300)
    assert len({images.fingerprint, quick.fingerprint, with_draft_decoding(images, 64).fingerprint}) == 3
    assert quick.keys == images.keys and quick.labels.tolist() == images.labels.tolist()


def test_what_has_no_files_stays_as_it_is():
    images = catalog.load("shapes")
    assert with_draft_decoding(images, 224) is images


def test_the_config_chooses_and_the_backbone_sets_the_size(root):
    experiment = Experiment(methods=[{"name": "zero-shot"}], data=DataConfig(name="folder", root=str(root)))
    run = expand(experiment)[0]
    quick = run.model_copy(update={"data": run.data.model_copy(update={"decode": "draft"})})
    assert load_images(run)[0].read(0).size == (800, 600)
    assert load_images(quick)[0].read(0).size == (100, 75)  # mini-vit reads 64 pixels or fewer
    assert group_hash(quick) != group_hash(run)
