"""Every field of every method has a range, and what lies outside it is refused by name.

pydantic checks the ranges; here stands what is ours: that no field lacks one, and the words of the refusal.
"""

from __future__ import annotations

import math
from typing import Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from fedcore.errors import FedLensError
from fedcore.methods import registry

METHODS = {n: c for n, c in registry.load_all().items() if c.__module__.startswith("fedcore.methods.")}
WORDS = {
    ("sdfed", "local_length"): "eight",
    ("fedalign", "scale"): "own",
    ("fedalign", "descriptions"): {"dog": "no list"},
    ("zero-shot", "descriptions"): {"dog": ["", "a dog"]},
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
    fields = [(n, f, i) for n, cls in METHODS.items() for f, i in cls.Config.model_fields.items()]
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


def test_numbers_of_a_config_are_finite():
    for name, cls in METHODS.items():
        for field, info in cls.Config.model_fields.items():
            if float in (info.annotation, *get_args(info.annotation)):
                with pytest.raises(FedLensError):
                    registry.build_config(name, {field: math.nan})
