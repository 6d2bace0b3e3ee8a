"""Encoders without towers, through the command line: a file of the user's own, and timm's models."""

import io
import sys
from pathlib import Path

import pytest
import timm
import torch

from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.clip import encodings, tags
from fedcore.clip.backbone import load
from fedcore.clip.specs import backbone_spec, weights_source
from fedcore.results.comparison import compare
from fedcore.results.sharing import bibtex
from fedcore.share.archive import open_bundle
from fedcore.store import Store
from tests.support.clip import noise
from tests.support.command_line import run

ENCODER = """
embed_dim = 12
image_size = 32

def encode(images):
    return images.unflatten(3, (2, 16)).unflatten(2, (2, 16)).mean((3, 5)).flatten(1) - 0.5
"""
EXPERIMENT = """
name = "Any encoder"
rounds = 1
[data]
name = "rotated-digits"
domains = ["rot0"]
shots = 2
[partition]
clients_per_domain = 2
[backbone]
name = "{}"
pretrained = "{}"
[[methods]]
name = "fedot"
config = {{ init = "class_means", lr = 0.01 }}
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(consent, "_THIS_PROCESS", set())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "encoder.py"
    path.write_text(ENCODER)
    return path


def experiment(tmp_path: Path, name: str, weights: Path) -> Path:
    path = tmp_path / "any.toml"
    path.write_text(EXPERIMENT.format(name, weights))
    return path


def agree(file: Path) -> None:
    consent.agree(file, consent.digest(file.read_bytes()))


def test_fedot_runs_with_a_file_after_the_user_has_read_it(file, tmp_path, capsys, monkeypatch):
    toml, db = experiment(tmp_path, "callable", file), tmp_path / "runs.db"
    assert run("run", toml, "--db", db) == 2 and "not agreed to run as it is now" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    sys.stdin.isatty = lambda: True
    assert run("run", toml, "--db", db) == 0
    (row,) = Store(db).experiments.all()
    assert [r.state for r in row.runs] == ["done"]
    assert run("run", toml, "--db", db) == 0, "it is not asked again"
    sys.stdin.isatty = lambda: False
    file.write_text(ENCODER + "\n")
    assert run("run", toml, "--db", db) == 2, "another content is another program"
    assert run("run", toml, "--db", db, "--methods", file) == 0, "a file that the user names is agreed to"
    assert len(compare(Store(db), [1, 2]).rows) == 1, "they are repeats"
    assert len({r.setting for r in compare(Store(db), [1, 3]).rows}) == 2, (
        "another content is another encoder"
    )


def test_a_bundle_carries_the_file_which_runs_again_after_consent(file, tmp_path, capsys, monkeypatch):
    toml, bundle, there = experiment(tmp_path, "callable", file), tmp_path / "all.zip", tmp_path / "there"
    assert run("run", toml, "--db", tmp_path / "runs.db", "--methods", file) == 0
    assert run("bundle", 1, "-o", bundle, "--db", tmp_path / "runs.db") == 0
    files = open_bundle(bundle).files
    assert files["methods/encoder.py"] == file.read_bytes()
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    file.unlink()
    monkeypatch.setattr(consent, "_THIS_PROCESS", set())
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "another"))
    assert run("rerun", bundle, "--db", there / "runs.db") == 2
    assert "agreed to run as it is now" in capsys.readouterr().err
    agree(there / "methods" / file.name)
    assert run("rerun", bundle, "--db", there / "runs.db") == 0
    assert "1 run repeated to the last bit" in capsys.readouterr().out
    (there / "methods" / file.name).write_text(ENCODER + "\n")
    assert run("bundle", 1, "-o", bundle, "--db", there / "runs.db") == 0
    assert run("rerun", bundle, "--db", tmp_path / "third.db") == 2
    assert "the file encoder.py is not part of it" in capsys.readouterr().err


def test_an_encoding_is_named_by_the_content_of_the_file(file, tmp_path):
    images, paths = noise(5), []
    for content in (ENCODER, ENCODER + "\n", ENCODER):
        file.write_text(content)
        agree(file)
        backbone = load("callable", str(file))
        (*_, path) = (
            [*encodings.encode(backbone, images, "embedding", tmp_path)],
            encodings.cache_path(tmp_path, backbone, images, "embedding"),
        )
        assert encodings.read(path).shape == (5, 12)
        paths.append(path)
    assert paths[0] == paths[2] != paths[1]


def test_images_are_rgb_from_0_to_1_and_texts_are_encoded_in_place_of_class_prompts(file):
    file.write_text(ENCODER + "\ndef encode_text(texts):\n    return [[len(t)] + [0] * 11 for t in texts]\n")
    agree(file)
    backbone = load("callable", str(file))
    pixels = backbone.preprocess(noise(1).read(0))
    assert pixels.shape == (3, 32, 32) and pixels.dtype == torch.float32
    assert 0 <= pixels.min() < pixels.max() <= 1
    from fedcore.clip.prompts import class_features

    assert class_features(backbone, ("a", "b"), "a {}.").tolist() == [[1] + [0] * 11] * 2
    assert backbone.spec.class_texts == "encoded" and backbone.logit_scale == pytest.approx(100)


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        (
            "- 0.5",
            "- images.nothing",
            r"encoder.py:6, in encode: encode raised AttributeError: 'Tensor' object",
        ),
        (".flatten(1)", ".flatten(0)", r"encode returned \(768,\) for 64 inputs.*\(64, 12\); correct it"),
        ("- 0.5", "/ 0", r"must return finite numbers"),
        (
            "embed_dim = 12",
            "embed_dim = 12\n1 / 0",
            r"encoder.py:3, in <module>: does not import: ZeroDivision",
        ),
    ],
)
def test_a_fault_of_the_file_names_its_line(file, tmp_path, written, instead, said):
    file.write_text(ENCODER.replace(written, instead))
    agree(file)
    with pytest.raises(FedLensError, match=said) as caught:
        [*encodings.encode(load("callable", str(file)), noise(3), "embedding", tmp_path)]
    assert caught.value.field == "backbone.pretrained"


@pytest.mark.parametrize("content", ["", "embed_dim = 3.5\ndef encode(x): pass", "def encode(x): pass"])
def test_what_a_file_must_say_is_known_before_it_runs(file, content):
    file.write_text("embed_dim: int = 7\ndef encode(x): pass")
    assert backbone_spec("callable", str(file)).embed_dim == 7, "a number may have its type"
    file.write_text(content)
    with pytest.raises(FedLensError, match="is not an encoder: write def encode.images."):
        backbone_spec("callable", str(file))
    file.write_text("def encode(images:\n")
    with pytest.raises(FedLensError, match="cannot be read: SyntaxError: .* line 1"):
        backbone_spec("callable", str(file))


def test_fedot_runs_with_a_timm_model_and_a_method_that_needs_texts_is_refused(tmp_path, capsys):
    weights, db = tmp_path / "w.pt", tmp_path / "runs.db"
    torch.manual_seed(0)
    torch.save(timm.create_model("test_vit", num_classes=7).state_dict(), weights)
    toml = experiment(tmp_path, "timm:test_vit", weights)
    assert run("run", toml, "--db", db) == 0
    assert "radford2021clip" not in bibtex(compare(Store(db), [1]).rows), "it is not CLIP"
    toml.write_text(toml.read_text().replace('"fedot"', '"fedclip"').replace("config", "# config"))
    assert run("run", toml, "--db", db) == 2
    assert "these can: FedOT (init = class_means), CLIP-FC" in capsys.readouterr().err


def test_a_timm_model_is_its_own_with_its_own_preprocessing(tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=0).eval()
    torch.save(model.state_dict(), tmp_path / "w.pt")
    backbone = load("timm:test_vit", str(tmp_path / "w.pt"))
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    pixels = backbone.preprocess(noise(1).read(0))
    assert torch.equal(pixels, transform(noise(1).read(0)))
    with torch.no_grad():
        assert torch.equal(backbone.embed_images(pixels[None]), model(pixels[None]))
    torch.save(timm.create_model("test_vit2", num_classes=0).state_dict(), tmp_path / "other.pt")
    with pytest.raises(FedLensError, match="other.pt does not hold the weights of timm:test_vit: .*Missing"):
        load("timm:test_vit", str(tmp_path / "other.pt"))


def test_the_table_of_timm_models_is_that_of_the_library():
    """The table is written by a tool; a few models of each kind are built again."""
    assert len(tags.timm_models()) > 1000
    for name in ("test_vit", "test_convnext", "resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224"):
        spec, cfg = backbone_spec(f"timm:{name}"), timm.get_pretrained_cfg(name)
        model = timm.create_model(name, num_classes=0).eval()
        with torch.no_grad():
            assert model(torch.zeros(1, 3, spec.image_size, spec.image_size)).shape == (1, spec.embed_dim)
        assert weights_source(f"timm:{name}", None) == cfg.tag
        assert tags.repository(f"timm:{name}", cfg.tag)[0] == cfg.hf_hub_id


def test_missing_weights_of_timm_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    note = tags.download_note("timm:vit_base_patch14_dinov2", "lvd142m")
    assert "from huggingface.co/timm/vit_base_patch14_dinov2.lvd142m before the first round" in str(note)
    with pytest.raises(FedLensError, match="hf download timm/test_vit.r160_in1k model.safetensors"):
        load("timm:test_vit")
