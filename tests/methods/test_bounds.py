"""Every field of every method refuses what lies outside its range, by name and with the range."""

from __future__ import annotations

import math
import re
from typing import get_args

import pytest

from fedcore.errors import FedLensError
from fedcore.methods import registry
from tests.support.bounds import SIGNS, choices, inside, is_whole, kinds, limits, outside

METHODS = {n: c for n, c in registry.load_all().items() if c.__module__.startswith("fedcore.methods.")}
FIELDS = {name: c.Config.model_fields.items() for name, c in METHODS.items()}
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


def refusal(name: str, field: str, value: object) -> FedLensError:
    """The error with which a value of a field is refused."""
    try:
        registry.build_config(name, {field: value})
    except FedLensError as error:
        return error
    raise AssertionError(f"{name} takes {value!r} as {field}")


@pytest.mark.parametrize("name", METHODS)
def test_a_number_beyond_its_limit_is_refused_and_the_limit_is_named(name):
    for field, info in FIELDS[name]:
        for sign, limit in limits(info):
            value = outside(sign, limit, is_whole(info))
            error = refusal(name, field, value)
            assert re.search(SIGNS[sign], str(error)), (field, str(error))
            assert error.field.startswith(f"methods.{field}")
            assert f"{limit:g}" in str(error) and str(value) in str(error), (field, str(error))


@pytest.mark.parametrize("name", METHODS)
def test_the_last_number_within_the_limit_is_not_the_fields_fault(name):
    for field, info in FIELDS[name]:
        for sign, limit in limits(info):
            value = inside(sign, limit, is_whole(info))
            if (field, sign) in COMBINED.get(name, ()):
                error = refusal(name, field, value)
                assert field in str(error)
                assert error.field == "methods"  # not the field's alone: two of them do not go together
            else:
                assert getattr(registry.build_config(name, {field: value}), field) == value


@pytest.mark.parametrize("name", METHODS)
def test_a_word_that_is_no_choice_is_refused_and_the_choices_are_named(name):
    for field, info in FIELDS[name]:
        if choices(info):
            error = refusal(name, field, "no such choice")
            assert error.field.startswith(f"methods.{field}")
            if float not in kinds(info):
                assert all(f"'{choice}'" in str(error) for choice in choices(info)), (field, str(error))


@pytest.mark.parametrize("name", METHODS)
def test_no_field_takes_anything(name):
    """Every field has limits, choices, a truth value, or a test word of its own that it refuses."""
    for field, info in FIELDS[name]:
        if (name, field) in WORDS:
            refused = WORDS[name, field]
        elif info.annotation is bool:
            refused = "perhaps"
        else:
            assert limits(info) or choices(info), f"{name}: {field} has no range"
            refused = [1, 2]
        error = refusal(name, field, refused)
        assert error.field.startswith("methods")
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_no_finite_number_is_refused(name):
    for field, info in FIELDS[name]:
        if float in (info.annotation, *get_args(info.annotation)):
            for value in (math.nan, math.inf, -math.inf):
                assert refusal(name, field, value).field.startswith("methods")


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_field_is_refused(name):
    with pytest.raises(FedLensError, match="no such field") as error:
        registry.build_config(name, {"learning_rate": 0.1})
    assert error.value.field == "methods.learning_rate"
