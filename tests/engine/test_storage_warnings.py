import importlib.util
from pathlib import Path

import pytest

from fedcore.clip import encodings, tags
from fedcore.config import BackboneConfig, Experiment, MethodEntry, expand
from fedcore.engine.plan import plan, storage_warnings
from fedcore.errors import FedLensError
from fedcore.papers.experiments import preset


def runs(method: str, **backbone: str) -> list:
    return expand(Experiment(methods=(MethodEntry(name=method),), backbone=BackboneConfig(**backbone)))


def test_a_download_is_announced_once_and_only_where_it_happens(monkeypatch):
    asked = runs("zero-shot", name="ViT-B-32", pretrained="openai") * 3
    monkeypatch.setattr(tags, "cached", lambda name, tag: None)
    (note,) = storage_warnings(asked, 100)
    assert note.startswith("the weights 'openai' of ViT-B-32 will be downloaded from huggingface.co/timm/")
    monkeypatch.setattr(tags, "cached", lambda name, tag: Path("/here"))
    assert storage_warnings(asked, 100) == []


def test_large_encodings_are_announced_with_their_size(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"w")
    asked = runs("fedavg-lora", name="ViT-B-32", pretrained=str(tmp_path / "w.pt"))
    (note,) = storage_warnings(asked, 40_000)
    assert "encoding 40,000 images with ViT-B-32 ('layer:" in note and "writes 3.1 GB" in note
    assert storage_warnings(asked, 1_000) == []


def test_an_encoding_over_the_limit_stops_the_plan(monkeypatch):
    monkeypatch.setenv(encodings.LIMIT, "0.00001")
    with pytest.raises(FedLensError, match=f"the limit is 1e-05 GB.*set {encodings.LIMIT} higher") as caught:
        plan(Experiment(methods=(MethodEntry(name="zero-shot"),)))
    assert caught.value.field == "backbone.name"


def test_the_demo_needs_nothing_from_elsewhere():
    demo = preset("demo")
    assert not [w for w in plan(demo).warnings if "download" in w or "GB" in w]


@pytest.mark.parametrize(
    ("method", "title", "backbone", "why"),
    [
        ("promptfl", "PromptFL", "coca_ViT-B-32", "its text tower pools at a class token"),
        ("sdfed", "SDFed", "coca_ViT-B-32", "takes no learned prompts"),
        ("fedalign", "FedAlign", "convnext_base", "open_clip's ViT, which convnext_base is not"),
        ("feddeap", "FedDEAP", "coca_ViT-B-32", "takes no learned prompts"),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused_by_name_of_method_and_model(
    tmp_path, method, title, backbone, why
):
    (tmp_path / "w.pt").write_bytes(b"w")
    given = BackboneConfig(name=backbone, pretrained=str(tmp_path / "w.pt"))
    with pytest.raises(FedLensError, match=why) as caught:
        plan(Experiment(methods=(MethodEntry(name="zero-shot"), MethodEntry(name=method)), backbone=given))
    assert title in str(caught.value) and backbone in str(caught.value)


def test_a_model_that_needs_a_library_says_which(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "transformers" else real(name)
    )
    asked = BackboneConfig(name="ViT-B-16-SigLIP", pretrained="webli")
    with pytest.raises(FedLensError, match="Hugging Face tokenizer .*pip install transformers") as caught:
        plan(Experiment(methods=(MethodEntry(name="zero-shot"),), backbone=asked))
    assert caught.value.field == "backbone.name"
