"""The search of the New page: draws of each method before the experiment's runs."""

from __future__ import annotations

from typing import Any

import streamlit as st

from fedcore.config import Experiment, TuningConfig
from pages.forms import inputs
from pages.forms.errors import FieldErrors

FIELDS = ("draws", "sampler", "seed")


def tuning_fields(draft: Experiment, key: str, errors: FieldErrors) -> dict[str, Any] | None:
    """Draw the switch of the search and its fields, and return its table; None without a search.

    Ranges are set in files only: the form preserves them, and the plan names them.
    """
    on = st.toggle(
        "Tune first",
        value=draft.tuning is not None,
        key=f"{key}.tuning",
        help="Before the runs, several values of each method's hyper-parameters are tried, the same number "
        "for each method. Those with the highest validation accuracy are run with the seeds above.",
    )
    errors.place("tuning")
    if not on:
        return None
    start = draft.tuning or TuningConfig()
    values: dict[str, Any] = {}
    for column, name in zip(st.columns(3), FIELDS, strict=True):
        with column:
            info = TuningConfig.model_fields[name]
            values[name] = inputs.field_widget(
                f"tuning.{name}", info, getattr(start, name), f"{key}.tuning.{name}"
            )
    errors.place_row(f"tuning.{name}" for name in FIELDS)
    ranges = start.model_dump(mode="json", exclude_defaults=True).get("space", {})
    for who, fields in ranges.items():
        for name in fields:
            errors.place(f"tuning.space.{who}.{name}")
    return {**values, "space": ranges}
