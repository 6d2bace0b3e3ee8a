"""Fields of the New page that take several values: the sweep, and the search for hyper-parameters."""

from typing import Any

import streamlit as st
from pydantic.fields import FieldInfo

from fedcore.config import BackboneConfig, DataConfig, Experiment, PartitionConfig, TuningConfig
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.methods import class_texts
from pages.forms import drafts, inputs
from pages.forms.errors import FieldErrors
from pages.widgets import markup

Sweepable = tuple[str, FieldInfo, Any]
"""Title of a field, its declaration, and its current value in the form."""


def sweepable_fields(values: dict[str, Any]) -> dict[str, Sweepable]:
    """Return the fields that can be swept, by path, given the form's partition and methods."""
    top = Experiment.model_fields
    fields = {name: (top[name], values[name]) for name in ("rounds", "participation")}
    fields["data.shots"] = (DataConfig.model_fields["shots"], values["data"].get("shots"))
    for name, value in values["partition"].items():
        if name != "kind":
            fields[f"partition.{name}"] = (PartitionConfig.model_fields[name], value)
    fields["backbone.name"] = (BackboneConfig.model_fields["name"], values["backbone"]["name"])
    return {path: (field_title(path), *field) for path, field in fields.items()} | _method_fields()


def _method_fields() -> dict[str, Sweepable]:
    """Return the fields of single methods, then those that several methods have, to be swept together."""
    methods, entries = drafts.available_methods(), drafts.form().methods
    sweepable: dict[str, Sweepable] = {}
    by_field: dict[str, list[Sweepable]] = {}
    for entry in (e for e in entries if e.name in methods):
        method = methods[entry.name]
        unique = sum(e.name == entry.name for e in entries) == 1
        variant = entry.name if unique else entry.label
        defaults = inputs.default_values(method.Config)
        texts = class_texts.fields(method.Config)  # too long for a line of values
        for name, info in method.Config.model_fields.items():
            if name in texts:
                continue
            value = entry.config.values.get(name, defaults[name])
            phrase = field_phrase(f"methods.{entry.name}.{name}")
            by_field.setdefault(name, []).append((phrase, info, value))
            if variant:
                title = entry.label or method.about.title
                sweepable[f"methods.{variant}.{name}"] = (f"{title}: {phrase}", info, value)
    for name, [(phrase, info, value), *others] in by_field.items():
        if others:
            sweepable[f"methods.*.{name}"] = (f"All methods: {phrase}", info, value)
    return sweepable


def sweep_fields(values: dict[str, Any], key: str, errors: FieldErrors) -> dict[str, list[Any]]:
    """Draw the sweep while its expander is open, and return the values of each swept field."""
    draft, fields_by_path = drafts.form().sweep, sweepable_fields(values)
    removed = [p for p in draft.values if p.startswith("methods.") and p not in fields_by_path]
    for path in removed:  # with its method
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
            draft.values = _open_form(draft, fields_by_path, f"{key}.sweep.{draft.version}", errors)
    elif draft.values:
        swept = ", ".join(f"{_title(p, fields_by_path)} {value_text(p, v)}" for p, v in draft.values.items())
        st.caption(f"Swept: {markup.md(swept)}")
    errors.place("sweep")
    return draft.values


def _open_form(
    draft: drafts.Expander, fields_by_path: dict[str, Sweepable], key: str, errors: FieldErrors
) -> dict[str, list[Any]]:
    st.caption("Every combination is run, with every seed. Results appear on Compare, tab Sweep.")
    paths = [*fields_by_path, *(p for p in draft.start if p not in fields_by_path)]
    chosen = st.multiselect(
        "Fields",
        paths,
        default=list(draft.start),
        format_func=lambda p: _title(p, fields_by_path),
        placeholder="Choose a field",
        key=f"{key}.fields",
    )
    swept = {}
    for path in chosen:
        _, info, value = fields_by_path.get(path, ("", None, None))
        start = draft.start.get(path, [] if value is None else [value])
        swept[path] = _values(path, f"{_title(path, fields_by_path)}: values", info, start, f"{key}.{path}")
        errors.place(f"sweep.{path}")
    return swept


def _title(path: str, fields_by_path: dict[str, Sweepable]) -> str:
    return fields_by_path[path][0] if path in fields_by_path else field_title(path)


def _values(path: str, label: str, info: FieldInfo | None, start: list[Any], key: str) -> list[Any]:
    """Draw the values of one field: a choice among its options, or a text separated by commas."""
    help_ = "" if info is None else inputs.help_text(path, info)
    options = () if info is None else inputs.options_of(info)
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
        "" if info is None else f"; default {value_text(path, inputs.default_of(info))}"
    )
    help_ = f"{help_} Separate values with commas.".strip()
    text = st.text_input(label, value=typed, key=key, placeholder=placeholder, help=help_)
    words = {"true": True, "false": False}
    parts = [part for part in text.split(",") if part.strip()]
    return [words.get(part.strip().lower(), inputs.scalar(part)) for part in parts]


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
    row = ("draws", "sampler", "seed"), 3
    values = inputs.field_rows("tuning", [row], dict(start), f"{key}.tuning", errors)
    ranges = start.model_dump(mode="json", exclude_defaults=True).get("space", {})
    for who, fields in ranges.items():
        for name in fields:
            errors.place(f"tuning.space.{who}.{name}")
    return {**values, "space": ranges}
