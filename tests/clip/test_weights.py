"""Weights files: plain, wrapped, OpenAI's archives, of another model, dangerous, in the hub's cache."""

import hashlib
import io
import pickle
import socket
import zipfile
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from fedcore.base import lazy
from fedcore.base.errors import FedLensError
from fedcore.clip import backbone, encodings, tags, weights
from fedcore.clip.prompts import class_features
from fedcore.clip.specs import weights_source
from tests.support.data.loading import loaded

open_clip = lazy.open_clip()
CLASSES, TEMPLATE = ("cat", "snow owl"), "a photo of a {}."


def random_model(name: str) -> torch.nn.Module:
    """Random weights that half precision can hold, so that both formats mean the same model."""
    torch.manual_seed(0)
    model = open_clip.create_model(name).eval().requires_grad_(False)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.half().float())
    return model


def save_as_openai(model: torch.nn.Module, path: Path) -> None:
    """A traced, half-precision archive with the three sizes among its tensors, as OpenAI ships them."""
    side, length, vocabulary = model.visual.image_size[0], model.context_length, model.vocab_size
    for name, value in (("input_resolution", side), ("context_length", length), ("vocab_size", vocabulary)):
        if hasattr(model, name):
            delattr(model, name)
        model.register_buffer(name, torch.tensor(value))
    open_clip.model.convert_weights_to_fp16(model)
    image, text = torch.zeros(1, 3, side, side, dtype=torch.half), torch.zeros(1, length, dtype=torch.long)
    with torch.no_grad():
        traced = torch.jit.trace_module(
            model, {"encode_image": image, "encode_text": text}, check_trace=False, strict=False
        )
    traced.save(str(path))


def encoded_by_both(name: str, tmp_path: Path) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the two formats of one model, loaded by path, make of the same input."""
    model = random_model(f"{name}-quickgelu")
    plain, archive = tmp_path / "open_clip.pt", tmp_path / "openai.pt"
    torch.save(model.state_dict(), plain)
    save_as_openai(model, archive)
    names = set(torch.jit.load(str(archive)).state_dict())
    assert names >= {"input_resolution", "context_length", "vocab_size", "visual.conv1.weight"}
    ours, theirs = backbone.load(f"{name}-quickgelu", str(plain)), backbone.load(name, str(archive))
    pixels = torch.rand(2, 3, ours.spec.image_size, ours.spec.image_size)
    assert ours.logit_scale == theirs.logit_scale
    assert ours.preprocess.transforms[-1].mean == theirs.preprocess.transforms[-1].mean
    first, second = ([b.embed_images(pixels), class_features(b, CLASSES, TEMPLATE)] for b in (ours, theirs))
    return first, second


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_an_openai_archive_and_a_plain_file_of_one_model_give_equal_features(models, tmp_path):
    ours, theirs = encoded_by_both("small-clip", tmp_path)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize(
    ("wrapper", "prefix"), [("state_dict", "module."), ("model_state_dict", "_orig_mod."), ("model", "")]
)
def test_a_training_checkpoint_is_unwrapped(tmp_path, wrapper, prefix):
    state = {"visual.proj": torch.rand(2, 3), "transformer.resblocks.0.attn_mask": torch.zeros(1)}
    wrapped = {prefix + name: value for name, value in state.items()}
    torch.save({"epoch": 3, wrapper: wrapped, "optimizer": {"lr": 0.1}}, tmp_path / "w.pt")
    found = weights.read(tmp_path / "w.pt")
    assert list(found) == ["visual.proj"] and torch.equal(found["visual.proj"], state["visual.proj"])


def without(state: dict, name: str) -> dict:
    return {key: value for key, value in state.items() if key != name}


UNFITTING = {
    "another width": (
        lambda state: random_model("wide-clip").state_dict(),
        r"'visual.class_embedding' is 24 in the file, 16 in the model",
    ),
    "a lacking tensor": (lambda state: without(state, "ln_final.bias"), r"the file has no 'ln_final.bias'"),
    "a tensor too many": (lambda state: state | {"head": torch.zeros(1)}, r"the model has no 'head'"),
}


@pytest.mark.parametrize("kind", UNFITTING)
def test_weights_of_another_model_name_the_first_tensor_that_does_not_fit(models, tmp_path, kind):
    change, message = UNFITTING[kind]
    torch.save(change(random_model("small-clip").state_dict()), tmp_path / "w.pt")
    with pytest.raises(
        FedLensError, match=rf"w\.pt does not hold the weights of small-clip: {message}"
    ) as caught:
        backbone.load("small-clip", str(tmp_path / "w.pt"))
    assert caught.value.field == "backbone.pretrained"


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.write_text, (self.path, "executed"))


def evil_archive(evil: Evil) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(evil))
        archive.writestr("a/code/__torch__.py", "")
        archive.writestr("a/constants.pkl", pickle.dumps(()))
    return content.getvalue()


def evil_checkpoint(evil: Evil) -> bytes:
    content = io.BytesIO()
    torch.save({"state_dict": {"a": torch.zeros(1)}, "extra": evil}, content)
    return content.getvalue()


@pytest.mark.parametrize("make", [pickle.dumps, evil_checkpoint, evil_archive])
def test_a_file_with_code_in_it_is_refused_and_not_executed(tmp_path, make):
    (tmp_path / "w.pt").write_bytes(make(Evil(tmp_path / "proof")))
    with pytest.raises(FedLensError, match=r"w\.pt is not a plain weights file.*could run code") as caught:
        weights.read(tmp_path / "w.pt")
    assert not (tmp_path / "proof").exists() and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.safetensors", b"not weights", "cannot read the weights file"),
        ("w.pt", b"", "cannot read the weights file"),
        ("w.pt", b"not weights", "not a plain weights file"),
    ],
)
def test_a_damaged_file_gets_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FedLensError, match=message) as caught:
        weights.read(tmp_path / name)
    assert caught.value.field == "backbone.pretrained" and "\n" not in str(caught.value)


def test_a_file_without_tensors_is_refused(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(FedLensError, match="holds no state dict"):
        weights.read(tmp_path / "w.pt")


@pytest.fixture
def hub(models, monkeypatch, tmp_path):
    """An empty Hugging Face cache, a tag of small-clip in the hub, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    lazy.complete_open_clip("pretrained")  # a tag added before would be lost to it
    entry = {"laion": tags.config("ViT-B-32", "openai") | {"hf_hub": "someone/small/", "quick_gelu": True}}
    for table in {id(t): t for t in (tags._table(), open_clip.pretrained)}.values():
        monkeypatch.setitem(table._PRETRAINED, "small-clip", entry)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tmp_path / "hub"


def fill_hub(hub: Path, state: dict[str, torch.Tensor]) -> None:
    """A repository in the layout of the Hugging Face cache."""
    repository = hub / "models--someone--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    (repository / "snapshots" / "abc123").mkdir(parents=True)
    (repository / "blobs").mkdir()
    save_file(state, repository / "blobs" / "f00d")
    (repository / "snapshots" / "abc123" / "open_clip_model.safetensors").symlink_to(
        repository / "blobs" / "f00d"
    )


def test_a_tag_in_the_cache_loads_without_network(hub):
    model = random_model("small-clip-quickgelu")
    fill_hub(hub, model.state_dict())
    assert (
        weights_source("small-clip", "laion") == "laion" and tags.download_note("small-clip", "laion") is None
    )
    loaded = backbone.load("small-clip", "laion")
    pixels = torch.rand(1, 3, 16, 16)
    assert torch.equal(loaded.embed_images(pixels), model.encode_image(pixels))
    assert tuple(loaded.preprocess.transforms[-1].mean) == open_clip.OPENAI_DATASET_MEAN


def test_other_content_under_one_tag_is_another_encoding_but_the_same_run(hub):
    images = loaded("shapes")

    def key(loaded: backbone.Backbone) -> Path:
        return encodings.cache_path(hub, loaded, images, "embedding")

    state = random_model("small-clip-quickgelu").state_dict()
    fill_hub(hub, state)
    link = hub / "models--someone--small" / "snapshots" / "abc123" / "open_clip_model.safetensors"
    first = backbone.load("small-clip", "laion")
    assert first.tag_content == "f00d" and key(backbone.load("small-clip", "laion")) == key(first)
    newer = hub / "models--someone--small" / "blobs" / "beef"
    save_file({n: v + 1 if v.is_floating_point() else v for n, v in state.items()}, newer)
    link.unlink()
    link.symlink_to(newer)
    second = backbone.load("small-clip", "laion")
    assert key(second) != key(first)
    assert second.fingerprint == first.fingerprint  # in checkpoints: those of older versions still resume
    link.unlink()
    link.write_bytes(newer.read_bytes())  # a cache that was copied without its links
    copied = backbone.load("small-clip", "laion")
    assert copied.tag_content == hashlib.sha256(newer.read_bytes()).hexdigest()
    file = newer.with_suffix(".safetensors")
    file.write_bytes(newer.read_bytes())
    assert backbone.load("small-clip-quickgelu", str(file)).tag_content == ""


def test_a_tag_that_is_not_here_says_how_to_get_it(hub, monkeypatch):
    note = tags.download_note("small-clip", "laion")
    assert note is not None and note.endswith("`fedlens backbones get small-clip laion` does so now")
    assert "'laion' of small-clip are downloaded from huggingface.co/someone/small before" in note
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    remedies = r"HF_HUB_OFFLINE is set; unset it .*`hf download someone/small open_clip_model\.safetensors`"
    with pytest.raises(FedLensError, match=remedies) as caught:
        backbone.load("small-clip", "laion")
    assert caught.value.field == "backbone.pretrained" and "\n" not in str(caught.value)


def test_a_damaged_file_in_the_cache_is_named(hub):
    fill_hub(hub, {"a": torch.zeros(1)})
    with pytest.raises(FedLensError, match=r"'laion' of small-clip cannot be read from .*open_clip_model"):
        backbone.load("small-clip", "laion")


def test_a_hub_file_of_its_own_name_is_looked_for_as_safetensors_first():
    repo, files = tags.repository("ViTamin-S", "datacomp1b")
    assert repo == "jienengchen/ViTamin-S" and files == ("pytorch_model.safetensors", "pytorch_model.bin")


def test_first_weights_are_not_drawn_where_a_file_replaces_them(models, tmp_path):
    """No tensor keeps what stood in memory: all are the file's."""
    before = torch.random.get_rng_state()
    with weights.Uninitialised():
        torch.nn.Linear(3, 2)
        torch.nn.MultiheadAttention(4, 2)
    assert torch.equal(before, torch.random.get_rng_state())
    saved = random_model("small-clip").state_dict()
    path = tmp_path / "weights.pt"
    torch.save(saved, path)
    loaded = backbone.load("small-clip", str(path)).model.state_dict()
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
