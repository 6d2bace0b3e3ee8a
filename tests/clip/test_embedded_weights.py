"""The embedded models: their compact files, what they see, and how little is imported for them."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from fedcore.base import lazy
from fedcore.base.errors import FedLensError
from fedcore.clip import backbone, specs, weights
from fedcore.data.drawn import digits, shapes

open_clip = lazy.open_clip()

STORED = json.loads((weights.ASSETS / "mini-zero-shot.json").read_text())
DATA = {
    "rotated-digits": digits.load().restrict(("rot0", "rot75")),
    "shapes": shapes.load(domains=("photo", "mosaic-30")),
}


def zero_shot(name, data):
    model = backbone.load(name).model
    preprocess = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg), is_train=False
    )
    tokens = open_clip.get_tokenizer(name)([data.template.format(c) for c in data.classes])
    with torch.no_grad():
        text = model.encode_text(tokens, normalize=True)
        images = torch.stack([preprocess(data.read(i)) for i in range(len(data))])
        predicted = torch.cat([model.encode_image(x) @ text.T for x in images.split(256)]).argmax(1).numpy()
    return 100 * (predicted == data.labels).mean()


@pytest.mark.parametrize("domain", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("mini-vit", "rotated-digits"),
        pytest.param("mini-rn", "shapes", marks=pytest.mark.slow),
        pytest.param("mini-vit", "shapes", marks=pytest.mark.slow),
        pytest.param("mini-rn", "rotated-digits", marks=pytest.mark.slow),
    ],
)
def test_zero_shot_is_as_stored(name, data, domain):
    domain = DATA[data].domains[domain]
    assert zero_shot(name, DATA[data].restrict((domain,))) == pytest.approx(
        STORED[name][data][domain], abs=1.0
    )


def test_every_backbone_has_stored_figures():
    assert set(weights.MINI_MODELS) == STORED.keys() == {"mini-vit", "mini-rn"}


def test_weights_fit_in_the_repository():
    files = [weights.ASSETS / f"{n}.safetensors" for n in (*weights.MINI_MODELS, "mini-text")]
    assert sum(f.stat().st_size for f in files) <= 12e6


@pytest.fixture(scope="module", params=weights.MINI_MODELS)
def name(request):
    weights.register_embedded()
    return request.param


def test_the_token_table_has_the_stored_rows_and_draws_the_others_alike_each_time(name):
    stored = load_file(weights.ASSETS / "mini-text.safetensors")
    table = weights.embedded_state_dict(name)["token_embedding.weight"]
    assert table.shape == (49_408, stored["token_rows"].shape[1])
    assert torch.equal(table[stored["token_ids"].long()], stored["token_rows"].float())
    assert torch.equal(table, weights.embedded_state_dict(name)["token_embedding.weight"])


def test_every_word_of_the_prompts_was_seen(name):
    stored = set(load_file(weights.ASSETS / "mini-text.safetensors")["token_ids"].tolist())
    tokenize = lazy.open_clip().get_tokenizer(name)
    for data in (digits, shapes):
        used = {int(i) for c in data.CLASSES for i in tokenize([data.TEMPLATE.format(c)])[0]} - {0}
        assert used <= stored


def test_widths_agree_across_towers():
    """SDFed shares prompts across towers (token width), FedDEAP features (embedding width)."""
    states = [weights.embedded_state_dict(n) for n in weights.MINI_MODELS]
    assert {s["token_embedding.weight"].shape[1] for s in states} == {192}
    assert {s["text_projection"].shape for s in states} == {(192, 192)}
    assert torch.equal(states[0]["text_projection"], states[1]["text_projection"])


def test_missing_file_says_how_to_make_it(tmp_path, monkeypatch):
    monkeypatch.setattr(specs, "ASSETS", tmp_path)
    with pytest.raises(FedLensError, match="make embedded"):
        backbone.load("mini-vit")


def test_save_and_load_round_trip(tmp_path, monkeypatch, name):
    from tools.pretraining.model import save_embedded  # it loads the whole of open_clip

    state = weights.embedded_state_dict(name)
    ids = load_file(weights.ASSETS / "mini-text.safetensors")["token_ids"].long()
    rows = state.pop("token_embedding.weight")[ids]
    save_embedded(name, state, ids, rows, tmp_path)
    monkeypatch.setattr(weights, "ASSETS", tmp_path)
    again = weights.embedded_state_dict(name)
    assert all(torch.equal(again[k], v) for k, v in state.items())


LIGHT = """
import json, sys
from fedcore.clip.backbone import load
backbone = load("mini-vit")
import torch
from fedcore.methods.tensors import Adam
Adam([torch.zeros(1)], lr=1.0).step([torch.ones(1)])
heavy = ("torch._dynamo", "sympy", "timm", "transformers", "torchvision.models")
loaded = [name for name in heavy if name in sys.modules]
import open_clip
left = [name for name, module in sys.modules.items() if module is None]
made = [backbone.tokenize(["a drawing"])[0, :4].tolist(), backbone.fingerprint]
print(json.dumps([loaded, left, made]))
"""
TORCHVISION = """
from fedcore.base import lazy
lazy.open_clip()
import torchvision
from torchvision.ops.misc import FrozenBatchNorm2d
print(torchvision.models.resnet18.__name__, torchvision.ops.nms.__name__, FrozenBatchNorm2d.__module__)
"""
TIMM = """
import sys
from fedcore.base import lazy
from fedcore.clip.backbone import _empty
assert lazy.open_clip().timm_model.timm is None
print(type(_empty("MobileCLIP-S1").visual.trunk).__module__.split(".")[0])
lazy.complete_open_clip("pretrained")
print(lazy.open_clip().factory.download_pretrained.__globals__["_has_hf_hub"])
"""


def output(code: str) -> str:
    """Return what another Python prints, in which nothing has been imported yet."""
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def test_a_backbone_and_a_server_s_optimiser_load_without_compilers_and_libraries_of_other_models():
    loaded, left, _ = json.loads(output(LIGHT))
    assert loaded == []
    assert left == []  # nothing stays marked as missing


@pytest.mark.slow
def test_a_backbone_is_the_one_that_the_whole_package_makes():
    light, whole = (json.loads(output(code)) for code in (LIGHT, "import open_clip" + LIGHT))
    assert whole[0] != [], "the whole package loads what the light import leaves out"
    assert light[2] == whole[2]


@pytest.mark.slow
def test_models_and_downloads_that_need_more_get_it():
    assert output(TIMM).split() == ["timm", "True"]
    assert output(TORCHVISION).split() == ["resnet18", "nms", "torchvision.ops.misc"]
