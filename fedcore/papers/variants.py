"""The variants of an experiment (a method with swept values), and how runs are matched with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedcore.config import Experiment, RunConfig, expand, sweeps
from fedcore.methods import class_texts, registry
from fedcore.papers.equivalents import Equivalent
from fedcore.results.settings import unused_fields


def variants(experiment: Experiment) -> list[RunConfig]:
    """Return one run per method and combination of swept values, with the first seed and nothing held out."""
    return expand(experiment.model_copy(update={"held_out": (), "seeds": experiment.seeds[:1]}))


def contents(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the ``content`` of each of the experiment's variants, in the order of ``variants``.

    Raises:
        FedLensError: for a method or hyper-parameter that FedLens does not have.
    """
    pairs = zip(sweeps.variants(experiment), variants(experiment), strict=True)
    return [content(run, f"methods.{variant.index}") for variant, run in pairs]


def content(config: RunConfig, field: str = "methods") -> dict[str, Any]:
    """Return the fields that are equal in all runs of one variant, with the defaults of its method resolved.

    Runs of one variant may differ in seed, held-out domain, data folder, time limit, kept checkpoints and
    class descriptions. They may also differ in fields that their kind of partition does not use, because a
    sweep over kinds sets the fields of all of them.

    Raises:
        FedLensError: with a field below ``field``, for an unknown method or hyper-parameter.
    """
    may_differ: dict[str, Any] = {
        "seed": True,
        "held_out": True,
        "time_limit": True,
        "keep_checkpoints": True,
        "data": {"root"},
        "partition": unused_fields(config.partition),
    }
    content = config.model_dump(mode="json", exclude=may_differ)
    method = config.method
    full = registry.build_config(method.name, method.config, f"{field}.config")
    descriptions = {*class_texts.fields(type(full))}
    content["method"] = {"name": method.name, "config": full.model_dump(mode="json", exclude=descriptions)}
    return content


def find_variant(contents: Sequence[dict[str, Any]], method: Equivalent) -> int | None:
    """Return the position of the first variant with a printed method's name and fields.

    If other fields are swept, that is the printed variant, because printed values come first in a sweep.
    """
    for i, content in enumerate(contents):
        config = content["method"]["config"]
        if content["method"]["name"] == method.name and all(
            config[name] == value for name, value in method.config.items()
        ):
            return i
    return None
