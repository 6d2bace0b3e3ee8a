"""Backbones, the facts of their specs, and the tags of their weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedcore.base import lazy
from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress, result_of
from fedcore.clip import backbone, tags, weights
from fedcore.clip.specs import backbone_spec, config_files, weights_source
from tests.support import command_line
from tests.support.clip import encoded, noise
from tests.support.data import hub

open_clip = lazy.open_clip()


@pytest.fixture
def small_model(models):
    torch.manual_seed(0)
    return open_clip.create_model("small-clip").eval()


@pytest.mark.parametrize(("kind", "save"), [("pt", torch.save), ("safetensors", save_file)])
def test_a_weights_file_gives_its_own_features(small_model, tmp_path, kind, save):
    path = tmp_path / f"weights.{kind}"
    save(small_model.state_dict(), path)
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


def test_the_activation_reaches_the_model_and_the_cache_key(small_model, tmp_path, monkeypatch):
    torch.save(small_model.state_dict(), tmp_path / "w.pt")
    plain = backbone.load("small-clip", str(tmp_path / "w.pt"))
    monkeypatch.setattr(weights, "read", lambda path: small_model.state_dict())
    monkeypatch.setattr(weights, "is_archive", lambda path: True)  # of OpenAI's
    quick = backbone.load("small-clip", str(tmp_path / "w.pt"))
    assert type(quick.model.visual.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    assert plain.fingerprint != quick.fingerprint


def test_an_openai_archive_is_known_by_its_code(small_model, tmp_path):
    scripted = torch.jit.script(torch.nn.Linear(2, 2))
    scripted.save(str(tmp_path / "openai.pt"))
    torch.save(small_model.state_dict(), tmp_path / "plain.pt")
    assert weights.is_archive(tmp_path / "openai.pt") and not weights.is_archive(tmp_path / "plain.pt")


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


def test_facts_are_open_clips_own_numbers():
    found = backbone_spec("ViT-B-32")
    assert (found.embed_dim, found.token_width, found.vision_width) == (512, 512, 768)
    assert (found.vision, found.vision_layers, found.text_layers) == ("vit", 12, 12)
    assert found.image_size == 224 and found.text == "clip"
    assert backbone_spec("RN50").vision == "resnet" and backbone_spec("RN50").vision_layers == 0
    assert backbone_spec("RN50").token_width == 512 and backbone_spec("RN50").embed_dim == 1024


def test_every_known_model_has_facts():
    assert len(config_files()) > 50
    assert all(backbone_spec(name).embed_dim > 0 for name in config_files())


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(FedLensError, match=r"unknown backbone 'ViT-B32'; did you mean 'ViT-B-32") as caught:
        backbone_spec("ViT-B32")
    assert caught.value.field == "backbone.name"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub.HubServer]:
    """A Hub of our own with ViT-B-32's weights in a file of the second name."""
    (repo, names) = tags.repository("ViT-B-32", "openai")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / names[1]).write_bytes(b"0" * 400_000)
    (tmp_path / "files" / "other.bin").write_bytes(b"1" * 90_000)
    with hub.serving() as server:
        hub.use_here(server, tmp_path, monkeypatch)
        server.push(repo, tmp_path / "files", licence="mit")
        yield server


def test_weights_are_fetched_with_progress_and_once(server: hub.HubServer, capsys):
    names = tags.repository("ViT-B-32", "openai")[1]
    assert command_line.run("backbones", "get", "ViT-B-32", "openai") != 0
    asked = capsys.readouterr().err
    assert "licence: mit\nsize: 400 kB\nerror: yes: nothing was downloaded" in asked
    steps: list[Progress] = []
    file = result_of(tags.fetch("ViT-B-32", "openai"), steps.append)
    assert file == tags.cached("ViT-B-32", "openai") and file.name == names[1], "the name that there is"
    assert steps[-1] == Progress("downloading ViT-B-32 openai", 400_000, 400_000, in_bytes=True)
    assert server.sent == 400_000
    server.asked.clear()
    assert command_line.run("backbones", "get", "ViT-B-32", "openai") == 0
    assert 'name = "ViT-B-32", pretrained = "openai"' in capsys.readouterr().out
    assert server.asked == []


def test_an_unknown_tag_is_refused_before_anything_is_asked(server: hub.HubServer):
    for ask in (weights_source, tags.cached, lambda *names: result_of(tags.fetch(*names))):
        with pytest.raises(FedLensError, match="no weights called 'opanai'; did you mean 'openai") as caught:
            ask("ViT-B-32", "opanai")
        assert caught.value.field == "backbone.pretrained"
    with pytest.raises(FedLensError, match="ViT-S-16 has no weights to download"):
        weights_source("ViT-S-16", "openai")
    assert server.asked == []


def test_the_embedded_models_take_the_tokenizer_that_open_clip_has_made_already(monkeypatch):
    open_clip, texts = lazy.open_clip(), ["a photo of a dog.", "Zürich 1000"]
    for name in ("mini-vit", "mini-rn"):
        ours, own = backbone.load(name).tokenizer, open_clip.get_tokenizer(name)
        assert ours is open_clip.tokenizer._tokenizer and ours is not own
        assert torch.equal(ours(texts), own(texts)) and ours.context_length == own.context_length
    monkeypatch.delattr(open_clip.tokenizer, "_tokenizer")
    assert torch.equal(backbone.load("mini-vit").tokenizer(texts), ours(texts)), "of a version without it"
