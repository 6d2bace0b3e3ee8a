"""Every field of every method has a range, and what lies outside it is refused by name.

pydantic checks the ranges; here stands what is ours: that no field lacks one, and the words of the refusal.
"""

import math
from dataclasses import replace
from typing import Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from fedcore.base.errors import FedLensError
from fedcore.clip.specs import backbone_spec
from fedcore.engine.prepare import check_method
from fedcore.methods import registry
from fedcore.methods.base import RunContext
from tests.support.method_cases import BUILT_IN

WORDS = {
    ("sdfed", "local_length"): "eight",
    ("fedpha", "local_length"): "eight",
    ("fedalign", "scale"): "own",
    ("fedalign", "descriptions"): {"dog": "no list"},
    ("zero-shot", "descriptions"): {"dog": ["", "a dog"]},
    ("fedmvp", "descriptions"): {"dog": "no list"},
}
"""Fields whose range is in a validator -> a value that it must refuse."""


def has_range(info: FieldInfo) -> bool:
    """Whether a field has limits, choices, or is a truth value."""
    kinds = {info.annotation, *get_args(info.annotation)}
    signs = {sign for m in info.metadata for sign in ("ge", "gt", "le", "lt") if hasattr(m, sign)}
    return (
        bool in kinds
        or get_origin(info.annotation) is Literal
        or any(get_origin(kind) is Literal for kind in kinds)
        or bool(signs)
    )


def test_every_field_has_a_range():
    fields = [(n, f, i) for n in BUILT_IN for f, i in registry.get(n).Config.model_fields.items()]
    for name, field, info in fields:
        if (name, field) not in WORDS:
            assert has_range(info), f"{name}: {field} takes any {info.annotation}"
            continue
        with pytest.raises(FedLensError) as refused:
            registry.build_config(name, {field: WORDS[name, field]})
        assert refused.value.field.startswith("methods") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("local_epochs", 0, "must be greater than or equal to 1 (got 0)"),
        ("lr", math.nextafter(100, 101), "must be less than or equal to 100 (got 100.00000000000001)"),
        ("momentum", 1, "must be less than 1 (got 1)"),
        ("lr", math.nan, "must be less than or equal to 100 (got nan)"),
        ("lr", "fast", "must be a number (got 'fast')"),
        ("batch_size", 2.5, "must be a whole number (got 2.5)"),
        ("optimiser", "lion", "must be 'sgd', 'adam' or 'adamw' (got 'lion')"),
        ("optimiser", [1, 2], "must be 'sgd', 'adam' or 'adamw'"),
        ("learning_rate", 0.1, "no such field"),
    ],
)
def test_a_refusal_names_the_field_what_is_allowed_and_the_value(field, value, said):
    with pytest.raises(FedLensError) as refused:
        registry.build_config("fedot", {field: value})
    assert refused.value.field == f"methods.{field}" and said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "values", "field", "said"),
    [
        ("zero-shot", {"lr": 0.1}, ".lr", "no such field"),
        ("fedot", {"lr": 0.0, "lr_transform": 0.1}, "", "lr_transform is applied as a multiple of lr, which"),
        ("sdfed", {"local_length": "random:64-4"}, ".local_length", "shorter length first"),
        ("sdfed", {"local_length": "fixed:0"}, ".local_length", "1 to 75 tokens"),
        ("sdfed", {"local_length": "4,80"}, ".local_length", "1 to 75 tokens"),
        ("fedalign", {"boundary_layer": 1}, "", "boundary_layer 1 is below start_layer; use 2 or more"),
        ("fedalign", {"scale": 0}, "", "scale is a number above 0 up to 1000, or 'clip'"),
        ("feddeap", {"personal_prompt": False}, "", "domain_alignment moves the domain prompt"),
        (
            "feddeap",
            {"personal_length": 4, "personal_prompt": False, "domain_alignment": False},
            "",
            "personal_length is that of the domain prompt, which personal_prompt = false removes; leave it",
        ),
        ("cocoop", {"context_length": 5}, "", "has 4 tokens, not 5; choose context_length = 4, or init = ra"),
        ("fedclip", {"batch_size": 1}, "", "without negatives; use 2 or more, or loss = ce"),
    ],
)
def test_values_that_a_method_cannot_use_are_refused(name, values, field, said):
    with pytest.raises(FedLensError) as refused:
        registry.build_config(name, values)
    assert refused.value.field == f"methods{field}" and said in str(refused.value)


def context(name: str = "ViT-B-32", clients: int = 3, **changes: object) -> RunContext:
    """Two classes and two domains on a backbone; ``changes`` are of the context or the spec."""
    spec = backbone_spec(name)
    of_spec = {field: changes.pop(field) for field in list(changes) if hasattr(spec, field)}
    return replace(RunContext(replace(spec, **of_spec), ("a", "b"), clients, ("x", "y"), "a {}"), **changes)


RESNET = context("RN50")
FOREIGN = context(text="hugging_face")
LONG_NAME = context(classes=("a", "x" * 80))
DOMAINS = context(client_domain=(0, 1, 0))
REFUSED = [
    ("fedot", {"blocks": 3}, DOMAINS, "blocks", "do not divide ViT-B-32's embedding width 512; use 2 or 4"),
    ("fedot", {"blocks": 600}, DOMAINS, "blocks", "embedding width 512; use 512"),
    ("fedot", {"blocks": 1000}, RESNET, "blocks", "embedding width 1024; use 512 or 1024"),
    ("fedalign", {}, RESNET, "backbone.name", "RN50 has no ViT tokens to encode; choose a ViT"),
    ("fedalign", {}, FOREIGN, "backbone.name", "no learned prompts or adapters: its text tower is a Hugging"),
    ("fedmvp", {}, DOMAINS, "descriptions", "every class, and class 'a' has none"),
    ("fedmvp", {"class_text": "template"}, RESNET, "backbone.name", "RN50 has no ViT tokens to encode"),
    ("fedalign", {"rank": 128}, context(token_width=100), "rank", "rank 128 is more than the width of"),
    ("feddeap", {}, context("RN50", client_domain=(0, 1, 0)), "personal_prompt", "(width 1024) with prompt"),
    ("feddeap", {}, replace(DOMAINS, classes=("a",)), "semantic_alignment", "two or more classes, not 1;"),
    ("feddeap", {}, context(client_domain=(1, 1)), "domain_etf", "not 1; choose domain_etf = client"),
    ("feddeap", {"domain_etf": "client"}, context(clients=1, client_domain=(0,)), "domain_etf", "clients to"),
    ("feddeap", {}, context(client_domain=(0, -1, 1)), "domain_etf", "client number 2 mixes domains"),
    (
        "feddeap",
        {},
        replace(DOMAINS, classes=tuple(map(str, range(513)))),
        "semantic_alignment",
        "takes at most 512 classes, not 513",
    ),
    ("feddeap", {"prompt_length": 35}, DOMAINS, "prompt_length", "a context of 70 leaves no room for class"),
    ("feddeap", {"prompt_length": 12, "personal_length": 58}, DOMAINS, "personal_length", "a context of 70"),
    ("feddeap", {}, FOREIGN, "backbone.name", "ViT-B-32 takes no learned prompts"),
    ("sdfed", {"local_length": "4, 8"}, DOMAINS, "local_length", "2 lengths for 3 clients; give one per cl"),
    ("sdfed", {"global_length": 74}, DOMAINS, "global_length", "leaves no room for class"),
    ("sdfed", {"local_length": "random:74-75"}, DOMAINS, "local_length", "leaves no room for class"),
    ("promptfl", {}, FOREIGN, "backbone.name", "ViT-B-32 takes no learned prompts"),
    ("promptfl", {"context_length": 74}, LONG_NAME, "context_length", "no room for class"),
    ("fedapt", {"context_length": 74}, LONG_NAME, "context_length", "no room for class"),
    ("fedmaple", {"context_length": 74}, LONG_NAME, "context_length", "no room for class"),
    ("fedmaple", {}, RESNET, "backbone.name", "has no ViT tokens"),
    ("fedotp", {}, context("ViT-B-16-SigLIP"), "backbone.name", "gives no embeddings of image regions"),
    ("vpt", {}, RESNET, "backbone.name", "has no ViT tokens"),
    ("fedavg-lora", {}, RESNET, "backbone.name", "has no ViT tokens"),
    ("fedprox-lora", {"rank": 128}, context(vision_width=100), "rank", "image tower; use at most 100"),
    ("facmic", {"target": "held_out"}, DOMAINS, "target", "and none is held out"),
    (
        "facmic",
        {"target": "held_out"},
        context(client_domain=(0, 0), whole_domain=True),
        "target",
        "none is left to align with",
    ),
    (
        "fedavg-vision",
        {"network": "vit_b_16", "weights": "pretrained"},
        context("mini-vit"),
        "backbone.name",
        "for images of 224 pixels",
    ),
    (
        "fedavg-vision",
        {"network": "resnet18", "weights": "pretrained"},
        RESNET,
        "network",
        "has no ImageNet weights",
    ),
    (
        "fedavg-vision",
        {"network": "vit_tiny"},
        context(image_size=378),
        "backbone.name",
        "reads patches of 16",
    ),
    (
        "fedavg-vision",
        {"network": "resnet18"},
        context(image_size=32),
        "backbone.name",
        "a batch of one image",
    ),
]


@pytest.mark.parametrize(("name", "config", "setting", "field", "message"), REFUSED)
def test_a_setting_that_a_method_cannot_run_in_is_refused(name, config, setting, field, message):
    with pytest.raises(FedLensError) as refused:
        check_method(registry.get(name), registry.build_config(name, config), setting)
    assert refused.value.field == field and message in str(refused.value)


OFF = {"personal_prompt": False, "semantic_alignment": False, "domain_alignment": False}


@pytest.mark.parametrize(
    ("name", "config", "setting"),
    [
        ("feddeap", {**OFF, "prompt_length": 69}, context("RN50", classes=("a",), client_domain=(-1,))),
        ("feddeap", {"prompt_length": 9, "personal_length": 60}, DOMAINS),
        ("feddeap", {"domain_etf": "client"}, context(client_domain=(0, -1, 1))),
        ("sdfed", {"local_length": "4, 8, 12"}, DOMAINS),
        ("facmic", {"target": "held_out"}, context(client_domain=(0, 0, 0))),
    ],
)
def test_a_setting_at_the_limit_is_accepted(name, config, setting):
    check_method(registry.get(name), registry.build_config(name, config), setting)


def test_numbers_of_a_config_are_finite():
    for name in BUILT_IN:
        for field, info in registry.get(name).Config.model_fields.items():
            if float in (info.annotation, *get_args(info.annotation)):
                with pytest.raises(FedLensError):
                    registry.build_config(name, {field: math.nan})
