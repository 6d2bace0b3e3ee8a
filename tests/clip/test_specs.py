"""Tokens counted without torch."""

import json
from dataclasses import replace

import pytest

from fedcore.base.errors import FedLensError
from fedcore.clip import specs
from fedcore.clip.specs import backbone_spec
from fedcore.config import Experiment, MethodEntry
from fedcore.data import catalog
from fedcore.data.images import CLASSES
from fedcore.engine.plan import plan

TEXTS = [
    "",
    "cat.",
    "a photo of a 2007 Cadillac Escalade EXT Crew Cab.",
    "don't they're we'll!!! ... 12345 x2",
    "café Größe 東京 😀 &amp; &lt;b&gt; ﬁre",
    "Donaudampfschifffahrtsgesellschaftskapitaenswitwe.",
    "pneumonoultramicroscopicsilicovolcanoconiosis_antidisestablishmentarianism" * 3,
]


def test_counts_are_open_clips() -> None:
    from open_clip.tokenizer import SimpleTokenizer

    theirs = SimpleTokenizer()
    names = [name for classes in json.loads(CLASSES.read_text()).values() for name in classes]
    for text in [*TEXTS, *names[::7]]:
        assert specs.count_tokens(text) == len(theirs.encode(text)), text


def test_short_names_need_no_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "count_tokens", lambda text: pytest.fail("counted"))
    specs.check_room(backbone_spec("ViT-B-16"), ["cat", "a fire engine"], 40, "context_length")
    assert specs.template_note(backbone_spec("ViT-B-16"), ["cat"], "a photo of a {}.") == []


def test_a_context_that_leaves_no_room_names_the_class() -> None:
    long = "very " * 20 + "long"
    with pytest.raises(
        FedLensError, match=r"class 'very .*very long' \(64 \+ 24 tokens > 77\); use at most 53"
    ):
        specs.check_room(backbone_spec("ViT-B-16"), ["cat", long], 64, "context_length")
    specs.check_room(backbone_spec("ViT-B-16"), ["cat", long], 53, "context_length")
    with pytest.raises(FedLensError) as caught:
        specs.check_room(backbone_spec("ViT-B-16"), ["cat", long], 54, "context_length")
    assert caught.value.field == "context_length"


@pytest.mark.parametrize(
    ("method", "config", "field"),
    [
        ("promptfl", {"context_length": 16}, "methods.0.config.context_length"),
        ("coop", {"context_length": 16}, "methods.0.config.context_length"),
        ("sdfed", {"global_length": 30, "local_length": "fixed:4"}, "methods.0.config.global_length"),
        ("sdfed", {"global_length": 4, "local_length": "fixed:30"}, "methods.0.config.local_length"),
        ("feddeap", {}, "methods.0.config."),
    ],
)
def test_a_plan_refuses_it(method: str, config: dict, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rename(monkeypatch)
    with pytest.raises(FedLensError, match="leaves no room for class 'word word") as caught:
        plan(Experiment(methods=(MethodEntry(name=method, config=config),)))
    assert (caught.value.field or "").startswith(field)


def test_a_prompt_of_the_data_set_that_is_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rename(monkeypatch, 80)
    planned = plan(Experiment(methods=(MethodEntry(name="zero-shot"),)))
    assert any("needs" in text and "methods that use this prompt" in text for text in planned.warnings)


def rename(monkeypatch: pytest.MonkeyPatch, words: int = 60) -> None:
    """Give the embedded digits a class whose name is a long sentence."""
    load = catalog.load

    def renamed(*args: object, **options: object) -> object:
        images, left_out = load(*args, **options)
        name = "word " * words + "end"
        return replace(images, classes=(*images.classes[:-1], name)), left_out

    monkeypatch.setattr(catalog, "load", renamed)
