"""The Sweep of the New page: fields that take several values in one experiment."""

from __future__ import annotations

from typing import Any

import streamlit as st
from pydantic.fields import FieldInfo

from fedcore.config import BackboneConfig, DataConfig, Experiment, PartitionConfig
from fedcore.report.sweeps import short_name, shown
from pages.parts import common, drafts, forms
from pages.parts.fields import Slots

Offer = tuple[str, FieldInfo, Any]
"""What a field is called, its description, and the value that the form has now."""


def offered(values: dict[str, Any]) -> dict[str, Offer]:
    """Path -> what can be swept, given what the form holds: its partition's fields, its methods' fields."""
    top = Experiment.model_fields
    found: dict[str, Offer] = {n: (n.capitalize(), top[n], values[n]) for n in ("rounds", "participation")}
    found["data.shots"] = ("Shots", DataConfig.model_fields["shots"], values["data"].get("shots"))
    for name, value in values["partition"].items():
        if name != "kind":
            title = f"Partition: {_words(name)}"
            found[f"partition.{name}"] = (title, PartitionConfig.model_fields[name], value)
    found["backbone.name"] = (
        "CLIP backbone",
        BackboneConfig.model_fields["name"],
        values["backbone"]["name"],
    )
    return found | _of_methods()


def _of_methods() -> dict[str, Offer]:
    known, entries = drafts.methods(), drafts.entries()
    found: dict[str, Offer] = {}
    every: dict[str, list[tuple[FieldInfo, Any]]] = {}
    for entry in (e for e in entries if e.name in known):
        alone = sum(e.name == entry.name for e in entries) == 1
        who = entry.name if alone else entry.label
        defaults = forms.paper_values(known[entry.name].Config)
        for name, info in known[entry.name].Config.model_fields.items():
            value = entry.config.get(name, defaults[name])
            every.setdefault(name, []).append((info, value))
            if who:
                title = entry.label or known[entry.name].title
                found[f"methods.{who}.{name}"] = (f"{title}: {_words(name)}", info, value)
    for name, (first, *more) in every.items():
        if more:
            found[f"methods.*.{name}"] = (f"All methods: {_words(name)}", *first)
    return found


def _words(name: str) -> str:
    return name.replace("_", " ")


def sweep_fields(values: dict[str, Any], key: str, slots: Slots) -> dict[str, list[Any]]:
    """Which fields take several values, and which; drawn only while it is open."""
    draft, offers = drafts.sweep(), offered(values)
    gone = [p for p in draft.values if p.startswith("methods.") and p not in offers]
    for path in gone:  # its method was taken out of the experiment
        draft.values.pop(path)
        draft.start.pop(path, None)
    box = st.expander(
        "Sweep: several values of a field", icon=":material/grid_on:", key=f"{key}.sweep", on_change="rerun"
    )
    if draft.turned(box.open):
        with box:
            draft.values = _open(draft, offers, f"{key}.sweep.{draft.version}", slots)
    elif draft.values:
        said = ", ".join(
            f"{offers[p][0] if p in offers else p} {_listed(v)}" for p, v in draft.values.items()
        )
        st.caption(f"Swept: {common.md(said)}")
    slots.place("sweep")
    return draft.values


def _open(draft: drafts.Folded, offers: dict[str, Offer], key: str, slots: Slots) -> dict[str, list[Any]]:
    st.caption("Every combination is run, with every seed. Results appear on Compare, tab Sweep.")
    paths = [*offers, *(p for p in draft.start if p not in offers)]
    chosen = st.multiselect(
        "Fields",
        paths,
        default=list(draft.start),
        format_func=lambda p: offers[p][0] if p in offers else p,
        placeholder="choose a field",
        key=f"{key}.fields",
    )
    found = {}
    for path in chosen:
        title, info, now = offers.get(path, (path, None, None))
        text = st.text_input(
            f"{title}: values",
            value=_listed(draft.start[path]) if path in draft.start else _listed([now]),
            key=f"{key}.{path}",
            placeholder=_example(info),
            help=_help(path, info),
        )
        found[path] = [_scalar(part) for part in text.split(",") if part.strip()]
        slots.place(f"sweep.{path}")
    return found


def _listed(values: list[Any]) -> str:
    return ", ".join(shown(v) for v in values if v is not None)


def _scalar(text: str) -> Any:
    return {"true": True, "false": False}.get(text.strip().lower(), forms.scalar(text))


def _example(info: FieldInfo | None) -> str:
    return "values with commas" if info is None else f"values with commas; default {_default(info)}"


def _help(path: str, info: FieldInfo | None) -> str:
    if info is None:
        return f"Values with commas for {common.md(short_name(path))}"
    words = forms.bounds(info)[2]
    parts = [info.description or "", f"Range: {words}." if words else "", "Write the values with commas."]
    return common.md(" ".join(p for p in parts if p))


def _default(info: FieldInfo) -> str:
    return forms.shown(forms.plain_value(info.get_default(call_default_factory=True)))
