import pytest
import torch

from fedcore.clip import backbone, light_import
from fedcore.clip.specs import backbone_spec
from tests.support.clip import SMALL, encoded, noise

open_clip = light_import.open_clip()


@pytest.fixture
def small_model(monkeypatch, tmp_path):
    """An open_clip model of our own that loads from files as ViT-B-32 does."""
    import json

    config = tmp_path / "small-clip.json"
    config.write_text(json.dumps(SMALL))
    open_clip.add_model_config(config)
    files = {"small-clip": config}
    monkeypatch.setattr("fedcore.clip.specs.config_files", lambda: files)
    backbone_spec.cache_clear()
    torch.manual_seed(0)
    yield open_clip.create_model("small-clip").eval()
    backbone_spec.cache_clear()


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_weights_file_gives_its_own_features(small_model, tmp_path, kind):
    path = tmp_path / f"weights.{kind}"
    if kind == "pt":
        torch.save(small_model.state_dict(), path)
    else:
        from safetensors.torch import save_file

        save_file(small_model.state_dict(), path)
    loaded = backbone.load("small-clip", str(path))
    pixels = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(loaded.embed_images(pixels), small_model.encode_image(pixels))
    assert loaded.logit_scale == pytest.approx(float(small_model.logit_scale.exp()))
    assert not any(p.requires_grad for p in loaded.model.parameters())


def test_a_change_of_a_towers_weights_changes_the_fingerprint(small_model, tmp_path):
    path, fingerprints = tmp_path / "weights.pt", set()
    for tower in ("none", "visual.conv1.weight", "token_embedding.weight"):
        weights = {name: value + (name == tower) * 0.01 for name, value in small_model.state_dict().items()}
        torch.save(weights, path)
        fingerprints.add(backbone.load("small-clip", str(path)).fingerprint)
    assert len(fingerprints) == 3


@pytest.mark.parametrize("name", ["ViT-B-32", "RN50"])
def test_every_tag_gets_the_activation_that_it_was_trained_with(name):
    tags = open_clip.list_pretrained_tags_by_model(name)
    wants = {tag: backbone.wants_quick_gelu(name, tag) for tag in tags}
    assert wants["openai"]
    assert wants == {tag: bool(open_clip.get_pretrained_cfg(name, tag).get("quick_gelu")) for tag in tags}
    assert name != "ViT-B-32" or not wants["laion2b_s34b_b79k"]


def test_the_activation_reaches_the_model_and_the_cache_key(small_model, tmp_path, monkeypatch):
    torch.save(small_model.state_dict(), tmp_path / "w.pt")
    plain = backbone.load("small-clip", str(tmp_path / "w.pt"))
    monkeypatch.setattr(backbone, "wants_quick_gelu", lambda name, pretrained: True)
    quick = backbone.load("small-clip", str(tmp_path / "w.pt"))
    assert type(quick.model.visual.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    assert plain.fingerprint != quick.fingerprint


def test_an_openai_archive_is_known_by_its_code(small_model, tmp_path):
    scripted = torch.jit.script(torch.nn.Linear(2, 2))
    scripted.save(str(tmp_path / "openai.pt"))
    torch.save(small_model.state_dict(), tmp_path / "plain.pt")
    assert backbone.wants_quick_gelu("ViT-B-32", str(tmp_path / "openai.pt"))
    assert not backbone.wants_quick_gelu("ViT-B-32", str(tmp_path / "plain.pt"))


@pytest.mark.parametrize(
    ("precision", "near"), [("bf16", 0.9999), pytest.param("fp16", 0.999, marks=pytest.mark.slow)]
)
def test_lower_precision_stays_near_and_has_a_key_of_its_own(tmp_path, precision, near):
    full, low = backbone.load("mini-vit"), backbone.load("mini-vit", precision=precision)
    assert low.fingerprint != full.fingerprint and low.dtype == torch.float32
    ours, theirs = (encoded(b, noise(5), "embedding", tmp_path) for b in (low, full))
    assert ours.dtype == torch.float32 and not torch.equal(ours, theirs)
    assert torch.nn.functional.cosine_similarity(ours, theirs).min() > near
    assert low.model.visual.conv1.weight.dtype == torch.float32, "methods compute in single precision"
    assert torch.equal(*(encoded(b, noise(3), "pixels", tmp_path) for b in (low, full))), "stored alike"
