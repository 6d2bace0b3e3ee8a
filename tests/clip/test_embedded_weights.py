"""The shipped weights still see what they saw: zero-shot accuracy per domain against stored figures."""

import json

import pytest
import torch

from fedcore import lazy
from fedcore.clip import backbone, weights
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
        ("mini-rn", "shapes"),
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
