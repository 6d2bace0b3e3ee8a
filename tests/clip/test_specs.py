import pytest

from fedcore.clip.specs import backbone_spec, config_files
from fedcore.errors import FedLensError


def test_facts_are_open_clips_own_numbers():
    found = backbone_spec("ViT-B-32")
    assert (found.embed_dim, found.token_width, found.vision_width) == (512, 512, 768)
    assert (found.vision, found.vision_layers, found.text_layers) == ("vit", 12, 12)
    assert found.image_size == 224 and found.prompts is None
    assert backbone_spec("RN50").vision == "resnet" and backbone_spec("RN50").vision_layers == 0
    assert backbone_spec("RN50").token_width == 512 and backbone_spec("RN50").embed_dim == 1024


def test_every_known_model_has_facts():
    assert len(config_files()) > 50
    assert all(backbone_spec(name).embed_dim > 0 for name in config_files())


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(FedLensError, match=r"unknown backbone 'ViT-B32'; did you mean 'ViT-B-32") as caught:
        backbone_spec("ViT-B32")
    assert caught.value.field == "backbone.name"
