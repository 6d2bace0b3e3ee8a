"""Every field of an experiment refuses what it cannot be, by name; so does what does not go together."""

from typing import Any, get_args, get_origin

import pytest

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.config.models import TABLES
from fedcore.engine.plan import plan

LISTED = ("cohorts", "transfer", "further_data", "methods", "reproduces")
FIELDS = [
    (f"{part}.0" if part in LISTED else part, name, info)
    for part, model in TABLES.items()
    for name, info in model.model_fields.items()
]
REST = {
    "partition": {"kind": "dirichlet", "clients": 4, "alpha": 0.5},
    "cohorts.0": {"clients": 1},
    "methods.0": {"name": "fedot"},
    "reproduces.0": {"paper": "fedot", "table": "1"},
    "transfer.0": {"name": "shapes"},
    "further_data.0": {"name": "shapes"},
}
"""What a part needs besides the field in question."""


def path(part: str, name: str) -> str:
    return f"{part}.{name}" if part else name


def with_value(part: str, name: str, value: object) -> dict[str, Any]:
    """An experiment, right but for one field."""
    content: dict[str, Any] = {"methods": [{"name": "fedot"}]}
    if not part:
        return content | {name: value}
    table = {**REST.get(part, {}), name: value}
    key, _, listed = part.partition(".")
    return content | {key: [table] if listed else table}


def refused(content: dict[str, Any]) -> FedLensError:
    with pytest.raises(FedLensError) as caught:
        config.parse(content)
    assert "\n" not in caught.value.line()
    return caught.value


def test_every_number_has_a_limit():
    for part, name, info in FIELDS:
        numbers = {int, float} & {info.annotation, *get_args(info.annotation)}
        limits = [m for m in info.metadata if any(hasattr(m, sign) for sign in ("ge", "gt", "le", "lt"))]
        assert not numbers or limits or get_origin(info.annotation) is tuple, path(part, name)


def test_no_field_takes_a_value_of_another_type():
    for part, name, info in FIELDS:
        takes_tables = str(info.annotation).startswith("dict")
        error = refused(with_value(part, name, 3 if takes_tables else {"a": object()}))
        assert error.field is not None and error.field.startswith(path(part, name)), error.field


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[methods]]\nname = "fedot"\nconfig = { lr = inf }', "lr: inf is not a number"),
        ('[[methods]]\nname = "fedot"\n[sweep]\n"methods.fedot.lr" = [nan]', "methods.fedot.lr: nan is not"),
    ],
)
def test_an_infinite_number_in_a_table_is_refused_with_its_key(text, said):
    with pytest.raises(FedLensError, match=said):
        config.loads(text)


COMBINATIONS = [
    # what is given, at which field, in which words
    ('[data]\nname = "no-such"', "data.name", "unknown data set"),
    ('[data]\nname = "shapes"\ndomains = []', "data.domains", "no domain"),
    ('[data]\nname = "shapes"\ndomains = ["photo", "mars"]', "data.domains", "mars"),
    ('[data]\nname = "shapes"\ndomains = ["photo", "photo"]', "data.domains", "twice"),
    ('[data]\nname = "shapes"\nsplit = "official"', "data.split", "official"),
    ('[data]\nname = "folder"', "data.root", "folder"),
    ('held_out = ["photo", "photo"]\n[data]\nname = "shapes"', "held_out", "twice"),
    ('held_out = ["each", "photo"]\n[data]\nname = "shapes"', "held_out", "each"),
    ('held_out = ["photo"]\n[data]\nname = "shapes"\ndomains = ["photo"]', "held_out", "only domain"),
    ('[partition]\nkind = "natural"', "partition.kind", "does not name clients"),
    ("[partition]\nclients = 5", "partition.clients", "leave clients empty"),
    ("[partition]\nclients_per_domain = 1000", "partition.clients_per_domain", "too few for 1,000 clients"),
    (
        '[partition]\nkind = "pathological"\nclients = 5\nclasses_per_client = 3',
        "partition.classes_per_client",
        "need 15 classes",
    ),
    ('[partition]\nkind = "iid"\nclients = 4\nmin_samples = 500', "partition.min_samples", "too few"),
    ("[data]\nshots = 1\n[partition]\nmin_samples = 11", "partition.min_samples", "fewer than 11"),
    ('[backbone]\nname = "ViT-B-32"\npretrained = "openia"', "backbone.pretrained", "openai"),
]


@pytest.mark.parametrize(("text", "field", "message"), COMBINATIONS, ids=lambda v: str(v)[:40])
def test_what_does_not_go_together_is_refused_before_anything_runs(text, field, message):
    with pytest.raises(FedLensError) as caught:
        plan(config.loads(f'{text}\n[[methods]]\nname = "fedot"\n'))
    assert caught.value.field == field, (caught.value.field, str(caught.value))
    assert message in str(caught.value) and "\n" not in caught.value.line()


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            '[partition]\nkind = "iid"\nclients = 3\nalpha = 0.1',
            "partition.alpha = 0.1 is not used by kind 'iid'",
        ),
        (
            "[partition]\nclasses_per_client = 2",
            "partition.classes_per_client = 2 is not used by kind 'domain'",
        ),
        (
            '[partition]\nkind = "dirichlet"\nclients = 3\nalpha = 1\nclients_per_domain = 4',
            "partition.clients_per_domain = 4 is not used by kind 'dirichlet'",
        ),
        (
            '[partition]\nkind = "iid"\nclients = 3\nleftover = "spread"',
            "partition.leftover = spread is not used by kind 'iid'",
        ),
        ('[backbone]\npretrained = "openai"', "mini-vit brings its own weights; pretrained is not used"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_is_set_but_not_read_is_said(text, warning):
    found = plan(config.loads(f'{text}\n[[methods]]\nname = "fedot"\n')).warnings
    assert warning in found


def test_a_plain_experiment_has_nothing_to_be_warned_of():
    methods = [{"name": "clip-fc"}]
    assert plan(config.parse({"methods": methods})).warnings == ()
    swept = {"partition.kind": ["iid", "dirichlet"]}
    content = {"kind": "iid", "clients": 3, "alpha": 0.5}
    assert plan(config.parse({"methods": methods, "partition": content, "sweep": swept})).warnings == ()
