"""The Sweep of the New page: fields that take several values in one experiment."""

from __future__ import annotations

from typing import Any

import streamlit as st
from pydantic.fields import FieldInfo

from fedcore.config import BackboneConfig, DataConfig, Experiment, PartitionConfig
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.methods import class_texts
from pages.forms import drafts
from pages.forms import widgets as forms
from pages.forms.fields import Slots
from pages.widgets import common

Offer = tuple[str, FieldInfo, Any]
"""What a field is called, its description, and the value that the form has now."""


def offered(values: dict[str, Any]) -> dict[str, Offer]:
    """Path -> what can be swept, given what the form holds: its partition's fields, its methods' fields."""
    top = Experiment.model_fields
    fields = {name: (top[name], values[name]) for name in ("rounds", "participation")}
    fields["data.shots"] = (DataConfig.model_fields["shots"], values["data"].get("shots"))
    for name, value in values["partition"].items():
        if name != "kind":
            fields[f"partition.{name}"] = (PartitionConfig.model_fields[name], value)
    fields["backbone.name"] = (BackboneConfig.model_fields["name"], values["backbone"]["name"])
    return {path: (field_title(path), *offer) for path, offer in fields.items()} | _of_methods()


def _of_methods() -> dict[str, Offer]:
    known, entries = drafts.methods(), drafts.entries()
    found: dict[str, Offer] = {}
    every: dict[str, list[Offer]] = {}
    for entry in (e for e in entries if e.name in known):
        alone = sum(e.name == entry.name for e in entries) == 1
        who = entry.name if alone else entry.label
        defaults = forms.paper_values(known[entry.name].Config)
        texts = class_texts.fields(known[entry.name].Config)  # no value that fits on a line
        for name, info in known[entry.name].Config.model_fields.items():
            if name in texts:
                continue
            value = entry.config.get(name, defaults[name])
            words = field_phrase(f"methods.{entry.name}.{name}")
            every.setdefault(name, []).append((words, info, value))
            if who:
                title = entry.label or known[entry.name].about.title
                found[f"methods.{who}.{name}"] = (f"{title}: {words}", info, value)
    for name, ((words, *first), *more) in every.items():
        if more:
            found[f"methods.*.{name}"] = (f"All methods: {words}", *first)
    return found


def sweep_fields(values: dict[str, Any], key: str, slots: Slots) -> dict[str, list[Any]]:
    """Which fields take several values, and which; drawn only while it is open."""
    draft, offers = drafts.sweep(), offered(values)
    gone = [p for p in draft.values if p.startswith("methods.") and p not in offers]
    for path in gone:  # its method was taken out of the experiment
        draft.values.pop(path)
        draft.start.pop(path, None)
    box = st.expander(
        "Sweep: several values of one or more fields",
        icon=":material/grid_on:",
        key=f"{key}.sweep",
        on_change="rerun",
    )
    if draft.set_open(box.open):
        with box:
            draft.values = _open(draft, offers, f"{key}.sweep.{draft.version}", slots)
    elif draft.values:
        said = ", ".join(f"{_title(p, offers)} {value_text(p, v)}" for p, v in draft.values.items())
        st.caption(f"Swept: {common.md(said)}")
    slots.place("sweep")
    return draft.values


def _open(draft: drafts.Expander, offers: dict[str, Offer], key: str, slots: Slots) -> dict[str, list[Any]]:
    st.caption("Every combination is run, with every seed. Results appear on Compare, tab Sweep.")
    paths = [*offers, *(p for p in draft.start if p not in offers)]
    chosen = st.multiselect(
        "Fields",
        paths,
        default=list(draft.start),
        format_func=lambda p: _title(p, offers),
        placeholder="Choose a field",
        key=f"{key}.fields",
    )
    found = {}
    for path in chosen:
        _, info, now = offers.get(path, ("", None, None))
        start = draft.start.get(path, [] if now is None else [now])
        found[path] = _values(path, f"{_title(path, offers)}: values", info, start, f"{key}.{path}")
        slots.place(f"sweep.{path}")
    return found


def _title(path: str, offers: dict[str, Offer]) -> str:
    return offers[path][0] if path in offers else field_title(path)


def _values(path: str, label: str, info: FieldInfo | None, start: list[Any], key: str) -> list[Any]:
    """The values of one field: chosen among its options, or typed with commas."""
    help_ = "" if info is None else forms.explained(path, info)
    options = () if info is None else forms.options_of(info)
    if options:
        given = [v for v in start if v in options]
        return st.multiselect(
            label,
            options,
            given,
            lambda v: value_text(path, v),
            key=key,
            help=help_,
            placeholder="Choose values",
        )
    typed = ", ".join(str(v) for v in start)
    placeholder = "values, separated by commas" + (
        "" if info is None else f"; default {_default(path, info)}"
    )
    help_ = f"{help_} Separate values with commas.".strip()
    text = st.text_input(label, value=typed, key=key, placeholder=placeholder, help=help_)
    return [_scalar(part) for part in text.split(",") if part.strip()]


def _scalar(text: str) -> Any:
    return {"true": True, "false": False}.get(text.strip().lower(), forms.scalar(text))


def _default(path: str, info: FieldInfo) -> str:
    return value_text(path, forms.plain_value(info.get_default(call_default_factory=True)))
