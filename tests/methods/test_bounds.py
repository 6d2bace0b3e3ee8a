"""Every field of every method refuses what lies outside its range, by name and with the range."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from fedcore.errors import FedLensError
from fedcore.methods import registry
from tests.support.bounds import SIGNS, choices, inside, is_whole, kinds, limits, outside

METHODS = {n: c for n, c in registry.load_all().items() if c.__module__.startswith("fedcore.methods.")}
FIELDS = [(name, field, info) for name, c in METHODS.items() for field, info in c.Config.model_fields.items()]
WORDS = {
    ("sdfed", "local_length"): "eight",
    ("fedalign", "scale"): "own",
    ("fedalign", "descriptions"): {"dog": "no list"},
    ("zero-shot", "descriptions"): {"dog": ["", "a dog"]},
}
"""Fields that are neither numbers with limits nor choices, and what they must refuse."""

COMBINED = {
    "cocoop": {
        ("context_length", "ge"),
        ("context_length", "le"),
    },  # the words "a photo of a" are four tokens
    "fedalign": {("start_layer", "le"), ("boundary_layer", "ge")},  # boundary_layer below start_layer
    "fedclip": {("batch_size", "ge")},  # one sample has no negatives
    "facmic": {("batch_size", "ge")},
}
"""Limits that are allowed, but not beside the defaults of the other fields."""


LIMITS = [(name, field, info, *limit) for name, field, info in FIELDS for limit in limits(info)]


@pytest.mark.parametrize(("name", "field", "info", "sign", "limit"), LIMITS, ids=lambda v: str(v)[:24])
def test_a_number_beyond_its_limit_is_refused_and_the_limit_is_named(name, field, info, sign, limit):
    value = outside(sign, limit, is_whole(info))
    with pytest.raises(FedLensError, match=SIGNS[sign]) as error:
        registry.build_config(name, {field: value})
    assert error.value.field.startswith(f"methods.{field}")
    assert f"{limit:g}" in str(error.value) and str(value) in str(error.value)


@pytest.mark.parametrize(("name", "field", "info", "sign", "limit"), LIMITS, ids=lambda v: str(v)[:24])
def test_the_last_number_within_the_limit_is_not_the_fields_fault(name, field, info, sign, limit):
    value = inside(sign, limit, is_whole(info))
    if (field, sign) in COMBINED.get(name, ()):
        with pytest.raises(FedLensError, match=field) as error:
            registry.build_config(name, {field: value})
        assert error.value.field == "methods"  # not the field's alone: two of them do not go together
    else:
        assert getattr(registry.build_config(name, {field: value}), field) == value


@pytest.mark.parametrize(
    ("name", "field", "info"), [f for f in FIELDS if choices(f[2])], ids=lambda v: str(v)[:24]
)
def test_a_word_that_is_no_choice_is_refused_and_the_choices_are_named(name, field, info):
    with pytest.raises(FedLensError) as error:
        registry.build_config(name, {field: "no such choice"})
    assert error.value.field.startswith(f"methods.{field}")
    if float not in kinds(info):
        assert all(f"'{choice}'" in str(error.value) for choice in choices(info))


@pytest.mark.parametrize(("name", "field", "info"), FIELDS, ids=lambda v: str(v)[:24])
def test_no_field_takes_anything(name, field, info):
    """Every field has limits, choices, a truth value, or a test word of its own that it refuses."""
    if (name, field) in WORDS:
        refused = WORDS[name, field]
    elif info.annotation is bool:
        refused = "perhaps"
    else:
        assert limits(info) or choices(info), f"{name}: {field} has no range"
        refused = [1, 2]
    with pytest.raises(FedLensError) as error:
        registry.build_config(name, {field: refused})
    assert error.value.field.startswith("methods")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("name", "field", "info"),
    [f for f in FIELDS if float in (f[2].annotation, *get_args(f[2].annotation))],
    ids=lambda v: str(v)[:24],
)
def test_what_is_no_finite_number_is_refused(name, field, info, value):
    with pytest.raises(FedLensError) as error:
        registry.build_config(name, {field: value})
    assert error.value.field.startswith("methods")


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_field_is_refused(name):
    with pytest.raises(FedLensError, match="no such field") as error:
        registry.build_config(name, {"learning_rate": 0.1})
    assert error.value.field == "methods.learning_rate"
