"""open_clip is imported without what the towers do not need, and works as it does whole."""

import json
import subprocess
import sys

import pytest

LIGHT = """
import json, sys
from fedcore.clip.backbone import load
backbone = load("mini-vit")
heavy = ("torch._dynamo", "sympy", "timm", "transformers", "torchvision.models")
loaded = [name for name in heavy if name in sys.modules]
import open_clip
left = [name for name, module in sys.modules.items() if module is None]
made = [backbone.tokenize(["a drawing"])[0, :4].tolist(), backbone.fingerprint]
print(json.dumps([loaded, left, made]))
"""
TORCHVISION = """
from fedcore.clip import light_import
light_import.open_clip()
import torchvision
from torchvision.ops.misc import FrozenBatchNorm2d
print(torchvision.models.resnet18.__name__, torchvision.ops.nms.__name__, FrozenBatchNorm2d.__module__)
"""
TIMM = """
import sys
from fedcore.clip import light_import
from fedcore.clip.backbone import _empty
assert light_import.open_clip().timm_model.timm is None
print(type(_empty("MobileCLIP-S1").visual.trunk).__module__.split(".")[0])
light_import.complete("pretrained")
print(light_import.open_clip().factory.download_pretrained.__globals__["_has_hf_hub"])
"""


def output(code: str) -> str:
    """Return what another Python prints, in which nothing has been imported yet."""
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def test_a_backbone_loads_without_compilers_and_libraries_of_other_models():
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
