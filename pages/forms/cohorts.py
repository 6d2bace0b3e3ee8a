"""The editor of cohorts on the New page: clients that differ in backbone or training budget."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from fedcore.clip.specs import MINI_MODELS
from fedcore.config import BackboneConfig, CohortConfig
from fedcore.config.field_names import field_title
from pages.forms import drafts, fields, inputs
from pages.forms.errors import FieldErrors

CohortRow = dict[str, Any]
"""One row of the editor: the cohort's fields, with its backbone's name as ``backbone``; None where empty."""

NUMBER_COLUMNS = ("clients", "batch_size", "local_epochs", "max_steps")
BACKBONE_COLUMNS = {"backbone": "name", "pretrained": "pretrained", "precision": "precision"}
"""Column of the editor -> field of the backbone."""


def cohort_fields(backbone: Mapping[str, Any], key: str, errors: FieldErrors) -> list[dict[str, Any]]:
    """Draw the editor of cohorts and return its content; empty if all clients are alike."""
    draft, initial = drafts.form().cohorts, drafts.form().experiment.cohorts
    differ = st.toggle(
        "Clients differ in backbone or budget",
        value=bool(initial),
        key=f"{key}.cohorts",
        help="Divide the clients, in their order, into cohorts with their own CLIP model and training budget",
    )
    if not draft.set_open(differ):
        errors.place("cohorts")
        return []
    all_clients = {"clients": st.session_state.get("planned_clients", 1)}
    rows = draft.start.get("rows") or rows_of(initial) or [all_clients]
    draft.start = {"rows": rows}  # Streamlit discards the edits when an editor's first table changes
    edited = st.data_editor(
        _table(rows),
        num_rows="dynamic",
        hide_index=False,
        column_config=_columns([str(row.get("backbone") or "") for row in rows]),
        key=f"{key}.cohorts.{draft.version}",
        placeholder="-",
        alt="Cohorts of clients",
    )
    st.caption("One cohort per row. The numbers of clients must add up to that of the partition.")
    errors.place("cohorts")
    typed = [{str(name): _cell_value(v) for name, v in row.items()} for row in edited.to_dict("records")]
    draft.values = {"rows": typed}
    return [cohort_content(row, backbone) for row in typed]


def rows_of(cohorts: tuple[CohortConfig, ...]) -> list[CohortRow]:
    """Return the rows of the editor for an experiment's cohorts."""
    rows = []
    for cohort in cohorts:
        row: CohortRow = {name: getattr(cohort, name) for name in NUMBER_COLUMNS}
        if cohort.backbone is not None:
            row |= {column: getattr(cohort.backbone, name) for column, name in BACKBONE_COLUMNS.items()}
        rows.append(row)
    return rows


def _table(rows: list[CohortRow]) -> pd.DataFrame:
    """Return the editor's table, with typed columns and rows counted from 1 as in error messages."""
    index = pd.RangeIndex(1, len(rows) + 1)
    kinds = (
        {"clients": "Int64"}
        | dict.fromkeys(BACKBONE_COLUMNS, "string")
        | dict.fromkeys(NUMBER_COLUMNS, "Int64")
    )
    return pd.DataFrame(
        {name: pd.Series([row.get(name) for row in rows], index, dtype=kind) for name, kind in kinds.items()}
    )


def _columns(backbones: list[str]) -> dict[str, Any]:
    """Return how each column is edited; ``backbones`` are the names in use, which may be unknown ones."""
    budget, about = CohortConfig.model_fields, BackboneConfig.model_fields
    columns: dict[str, Any] = {"_index": st.column_config.Column("", width=30)}
    for name, width in zip(NUMBER_COLUMNS, (80, 104, 84, 100), strict=True):
        columns[name] = st.column_config.NumberColumn(
            {"local_epochs": "Epochs"}.get(name) or field_title(name),
            help=budget[name].description,
            step=1,
            width=width,
            default=1 if name == "clients" else None,
        )
    names = fields.backbone_names()
    columns["backbone"] = st.column_config.SelectboxColumn(
        "CLIP",
        help=CohortConfig.model_fields["backbone"].description,
        options=[*names, *dict.fromkeys(n for n in backbones if n and n not in names)],
        width=96,
    )
    columns["pretrained"] = st.column_config.TextColumn(
        "Weights", help=about["pretrained"].description, width=88
    )
    columns["precision"] = st.column_config.SelectboxColumn(
        "Precision",
        help=about["precision"].description,
        options=list(inputs.options_of(about["precision"])),
        width=94,
    )
    return columns


def _cell_value(value: Any) -> Any:
    if value is None or value is pd.NA or pd.isna(value) or not str(value).strip():
        return None
    return value.strip() if isinstance(value, str) else int(value)


def cohort_content(row: CohortRow, default: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as an experiment holds it, with a backbone only if the row sets one of its fields."""
    content = {name: row[name] for name in NUMBER_COLUMNS if row[name] is not None}
    given = {field: row[column] for column, field in BACKBONE_COLUMNS.items() if row[column] is not None}
    if given:
        name = given.get("name", default["name"])
        inherited = {} if name in MINI_MODELS else {"pretrained": default.get("pretrained")}
        backbone = {"precision": default.get("precision"), **inherited, **given, "name": name}
        content["backbone"] = {field: value for field, value in backbone.items() if value is not None}
    return content
