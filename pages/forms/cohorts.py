"""The editor of cohorts on the New page: clients that differ in backbone or training budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from fedcore.clip.facts import MINI_MODELS
from fedcore.config import BackboneConfig, CohortConfig
from fedcore.config.field_names import field_title
from pages.forms import drafts, fields
from pages.forms import widgets as forms
from pages.forms.fields import Slots

Row = dict[str, Any]
"""One line of the editor: the cohort's fields, its backbone's name as ``backbone``; none where empty."""

NUMBERS = ("clients", "batch_size", "local_epochs", "max_steps")
OF_BACKBONE = {"backbone": "name", "pretrained": "pretrained", "precision": "precision"}
"""Column -> the field of the backbone that it holds."""


def cohort_fields(backbone: Mapping[str, Any], key: str, slots: Slots) -> list[dict[str, Any]]:
    """The cohorts as an experiment writes them; none where all clients are alike.

    Args:
        backbone: the experiment's own, as the form has it.
    """
    draft, given = drafts.cohorts(), drafts.draft().cohorts
    differ = st.toggle(
        "Clients differ in backbone or budget",
        value=bool(given),
        key=f"{key}.cohorts",
        help="Divide the clients, in their order, into cohorts with their own CLIP model and training budget",
    )
    if not draft.set_open(differ):
        slots.place("cohorts")
        return []
    everybody = {"clients": st.session_state.get("planned_clients", 1)}
    rows = draft.start.get("rows") or rows_of(given) or [everybody]
    draft.start = {"rows": rows}  # the editor's first table must stay as it is while it is edited
    edited = st.data_editor(
        _table(rows),
        num_rows="dynamic",
        hide_index=False,
        column_config=_columns([str(row.get("backbone") or "") for row in rows]),
        key=f"{key}.cohorts.{draft.version}",
        placeholder="-",
        alt="Cohorts of clients",
    )
    st.caption(
        "Each row is one cohort; the numbers of clients must add up to those of the partition. Empty "
        "cells mean: the CLIP model above, the method's own batch size and epochs, no step limit."
    )
    slots.place("cohorts")
    kept = [{name: _plain(v) for name, v in row.items()} for row in edited.to_dict("records")]
    draft.values = {"rows": kept}
    return [as_written(row, backbone) for row in kept]


def rows_of(cohorts: tuple[CohortConfig, ...]) -> list[Row]:
    """The lines of an experiment's cohorts."""
    found = []
    for cohort in cohorts:
        row: Row = {name: getattr(cohort, name) for name in NUMBERS}
        if cohort.backbone is not None:
            row |= {column: getattr(cohort.backbone, name) for column, name in OF_BACKBONE.items()}
        found.append(row)
    return found


def _table(rows: list[Row]) -> pd.DataFrame:
    """Columns keep their type where all of their cells are empty. Lines count from 1, as errors name them."""
    index = pd.RangeIndex(1, len(rows) + 1)
    kinds = {"clients": "Int64"} | dict.fromkeys(OF_BACKBONE, "string") | dict.fromkeys(NUMBERS, "Int64")
    return pd.DataFrame(
        {name: pd.array([row.get(name) for row in rows], dtype=kind) for name, kind in kinds.items()}, index
    )


def _columns(there: list[str]) -> dict[str, Any]:
    """How the columns are edited. there: names of backbones, which may be none that is known."""
    budget, about = CohortConfig.model_fields, BackboneConfig.model_fields
    found: dict[str, Any] = {"_index": st.column_config.Column("", width=30)}
    for name, width in zip(NUMBERS, (80, 104, 84, 100), strict=True):
        low, high, _ = forms.bounds(budget[name])
        found[name] = st.column_config.NumberColumn(
            {"local_epochs": "Epochs"}.get(name) or field_title(name),
            help=budget[name].description, min_value=low, max_value=high, step=1, width=width,
            required=name == "clients", default=1 if name == "clients" else None,
        )  # fmt: skip
    names = fields.backbone_names()
    found["backbone"] = st.column_config.SelectboxColumn(
        "CLIP", options=[*names, *dict.fromkeys(n for n in there if n and n not in names)], width=96
    )
    found["pretrained"] = st.column_config.TextColumn(
        "Weights", help=about["pretrained"].description, width=88
    )
    found["precision"] = st.column_config.SelectboxColumn(
        "Precision",
        help=about["precision"].description,
        options=list(forms.options_of(about["precision"])),
        width=94,
    )
    return found


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or pd.isna(value) or not str(value).strip():
        return None
    return value.strip() if isinstance(value, str) else int(value)


def as_written(row: Row, own: Mapping[str, Any]) -> dict[str, Any]:
    """A line as an experiment writes it: a backbone only where the line names something of one."""
    found = {name: row[name] for name in NUMBERS if row[name] is not None}
    given = {field: row[column] for column, field in OF_BACKBONE.items() if row[column] is not None}
    if given:
        name = given.get("name", own["name"])
        inherited = {} if name in MINI_MODELS else {"pretrained": own.get("pretrained")}
        whole = {"precision": own.get("precision"), **inherited, **given, "name": name}
        found["backbone"] = {field: value for field, value in whole.items() if value is not None}
    return found
