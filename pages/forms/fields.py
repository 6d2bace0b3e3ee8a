"""The fields of an experiment beside its data and methods: partition, backbone, cohorts, schedule, sweep."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from pydantic.fields import FieldInfo
from streamlit.delta_generator import DeltaGenerator
from streamlit.elements.lib.mutable_expander_container import ExpanderContainer

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS, backbone_spec, known_names
from fedcore.config import (
    PARTITION_FIELDS,
    BackboneConfig,
    CohortConfig,
    DataConfig,
    Experiment,
    PartitionConfig,
    TuningConfig,
)
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.data import catalog
from fedcore.data.images import EMBEDDINGS, GIVEN
from fedcore.data.readers.embeddings import class_file
from fedcore.methods import class_texts, registry
from fedcore.methods.hyperparameters import FROM_TEXTS, LEARNED_PROMPT
from fedcore.papers import experiments
from pages.forms import dataset, drafts, inputs
from pages.forms.inputs import FieldErrors
from pages.widgets import markup

MAX_SEEDS = 1000
"""Maximum number of seeds in one range."""
_TO = r"-|\u2013|\.\."
"""Between the ends of a range: a hyphen, a dash or two dots."""
SCHEDULE: tuple[inputs.Row, ...] = (
    (("held_out", "held_out_share"), (2, 1)),
    (("participation", "order", "test_sample"), 3),
    (("time_limit", "keep_checkpoints"), 3),
)
"""Rows that are behind an expander."""
IN_VIEW = {"dirichlet": 2, "pathological": 2}
"""Kind of partition -> the number of its first fields that are always in view, where it is not one."""
COMMON_BACKBONES = ("ViT-B-32", "ViT-B-16", "ViT-L-14", "RN50")
CohortRow = dict[str, Any]
"""One row of the cohort table: its fields, with its backbone's name as ``backbone``; None where empty."""
NUMBER_COLUMNS = {"clients": 80, "batch_size": 104, "local_epochs": 84, "max_steps": 100}
"""Columns of numbers in the cohort table, with their widths in pixels."""
BACKBONE_COLUMNS = {"backbone": "name", "pretrained": "pretrained", "precision": "precision"}
"""Column of the cohort table -> field of the backbone."""
Sweepable = tuple[str, FieldInfo, Any]
"""Title of a field, its declaration, and its current value in the form."""


def name_field(draft: Experiment, key: str) -> str:
    """Draw the experiment's name; that of a preset follows the data until the user types another one."""
    form, state, title = drafts.form(), st.session_state, f"{key}.title"
    state.setdefault(title, draft.name)
    origin, _, preset = form.origin.partition(":")
    if origin == "preset":
        before = form.given_name or name_for_data(preset, draft.data.name, draft.data.root)
        data = state.get(f"{key}.data.name", draft.data.name)
        root = state.get(f"{key}.data.root", draft.data.root)
        form.given_name = name_for_data(preset, data, root)
        if state[title] == before:
            state[title] = form.given_name
    return st.text_input("Name", key=title)


def name_for_data(preset: str, data: str, root: str | None) -> str:
    """Return the preset's name; with other data, their title in the catalog or the name of the folder."""
    experiment = experiments.preset(preset)
    if data == experiment.data.name:
        return experiment.name
    entry = next((e for e in catalog.entries() if e.name == data), None)
    if entry is not None and entry.is_own and root:
        return Path(root.strip()).name or root
    return data if entry is None else entry.title


def partition_fields(
    draft: PartitionConfig, data: Mapping[str, object], key: str, errors: FieldErrors, more: ExpanderContainer
) -> dict[str, object]:
    """Draw the fields of the chosen kind of partition, some behind ``more``, and return their values."""
    kinds: dict[str, str] = {
        "domain": "By domain: each client has one domain",
        "iid": "IID: at random",
        "dirichlet": "Dirichlet: skewed class shares",
        "pathological": "Pathological: disjoint classes",
        "dealt": "Dealt: disjoint classes, the same for every seed",
        "natural": "Natural: clients named by the data set",
    }
    cross_class = data["training_classes"] == "own"
    if cross_class:  # the protocol's only partition
        kinds = {"blocks": "Blocks: classes of one data set each, in label order"}
    current = draft.kind if draft.kind in kinds else next(iter(kinds))
    first, *places = st.columns([2, 1, 1], vertical_alignment="bottom")
    with first:
        widget = f"{key}.kind.own" if cross_class else f"{key}.kind"
        kind = inputs.choose("Partition", kinds, current, widget)
    names = PARTITION_FIELDS[kind]
    start = dict(draft) | {"classes_per_client": draft.classes_per_client or 2}
    if kind != "natural":  # a natural partition begins with all clients of the data set
        start["clients"] = draft.clients or 6
    if kind == "dirichlet":
        start["alpha"] = draft.alpha or 0.3
    empty = {"clients": "all", "alpha": "IID"}
    number, fields, drawn = IN_VIEW.get(kind, 1), PartitionConfig.model_fields, dict[str, Any]()
    for place, name in zip(places, names[:number], strict=False):
        with place:
            widget, info = f"{key}.{kind}.{name}", fields[name]
            path, meaning = f"partition.{name}", empty.get(name)
            drawn[name] = inputs.field_widget(path, info, start[name], widget, empty=meaning)
    with more:
        rest = [(names[number:], 4)]
        drawn |= inputs.field_rows("partition", rest, start | drawn, f"{key}.{kind}", errors, empty=empty)
    errors.place_row(f"partition.{name}" for name in ("kind", *names))
    inputs.say_changes("partition", {name: drawn[name] for name in names[number:] if name in drawn})
    return {"kind": kind} | {name: drawn.get(name, start[name]) for name in names}


def backbone_names() -> list[str]:
    """Return the names of all encoders of images: built-in, common, then all others."""
    return list(dict.fromkeys([*MINI_MODELS, *COMMON_BACKBONES, *known_names()]))


def backbone_fields(
    draft: BackboneConfig, data: Mapping[str, object], key: str, errors: FieldErrors, place: DeltaGenerator
) -> dict[str, object]:
    """Draw the fields of the CLIP model: a built-in miniature, or any model of open_clip."""
    if data["name"] == EMBEDDINGS:
        place.caption("The embeddings are already computed, so there is no backbone to choose.")
        return {"name": GIVEN}
    if draft.name == GIVEN:
        draft = BackboneConfig()
    with place:
        help_ = "mini-vit and mini-rn come with FedLens; models of open_clip and timm need weights"
        titles = {name: name for name in backbone_names()}
        name = inputs.choose("CLIP backbone", titles, draft.name, f"{key}.name", help_)
    values: dict[str, object] = {"name": name}
    if name not in MINI_MODELS:
        fields = BackboneConfig.model_fields
        left, right = st.columns(2)
        with left:
            values["pretrained"] = inputs.field_widget(
                "backbone.pretrained",
                fields["pretrained"],
                draft.pretrained if name == draft.name else suggested_weights(name),
                f"{key}.{name}.pretrained",
                "Weights: tag or file",
                "e.g. openai",
            )
        with right:
            values["precision"] = inputs.field_widget(
                "backbone.precision", fields["precision"], draft.precision, f"{key}.precision"
            )
        chosen = {entry.name for entry in drafts.form().methods}
        if values["precision"] == "fp32" and chosen <= registry.unchanged_by_tf32("precision"):
            what, take = "encode the images of these methods", {f"{key}.precision": "tf32"}
            inputs.offer_tf32(what, f"{key}.encode_tf32", st.session_state.update, take)
    errors.place_row(f"backbone.{name}" for name in BackboneConfig.model_fields)
    return values


def note_what_cannot_run(data: Mapping[str, Any], backbone: Mapping[str, Any]) -> None:
    """Keep the options of hyper-parameters that need a text tower, or class vectors, which are not here."""
    lacking: set[str] = set()
    with suppress(FedLensError):  # which the plan reports
        spec, root = backbone_spec(backbone["name"], backbone.get("pretrained")), data.get("root")
        given = root is not None and class_file(user_path(root, "data.root").resolve()).is_file()
        if spec.is_black_box:
            lacking.add(LEARNED_PROMPT)
        if spec.class_texts == "none" and not (spec.name == GIVEN and given):
            lacking.add(FROM_TEXTS)
    drafts.form().cannot_run = lacking


def suggested_weights(name: str) -> str | None:
    """Return the weights to offer for a model: some on this machine, else OpenAI's, else the first."""
    available = tags.tags(name)
    downloaded = [tag for tag in available if tags.cached(name, tag) is not None]
    return next(iter([*downloaded, *(tag for tag in available if tag == "openai"), *available]), None)


def schedule_fields(
    draft: Experiment,
    data: Mapping[str, object],
    key: str,
    errors: FieldErrors,
    place: DeltaGenerator,
    more: ExpanderContainer,
) -> dict[str, object]:
    """Draw rounds and seeds in their place, the rest of the schedule behind ``more``; return their values."""

    def seeds() -> str:  # ``seeds_of`` reads it when the experiment is planned
        return st.text_input(
            "Seeds",
            value=", ".join(map(str, draft.seeds)),
            key=f"{key}.seeds",
            help="Whole numbers and ranges, separated by commas or spaces: 1, 2, 3 or 1-5",
        )

    own = {"seeds": seeds, "held_out": lambda: held_out_field(draft, data, f"{key}.held_out")}
    start = dict(draft)
    with place:
        values = inputs.field_rows("", [(("rounds", "seeds"), 2)], start, key, errors, own)
    with more:
        drawn = inputs.field_rows("", SCHEDULE, start, key, errors, own)
    errors.place_row(drawn)
    inputs.say_changes("", drawn)
    kept = {name: start[name] for name in ("held_out_share", "evaluate_every")}  # if not drawn
    return kept | values | drawn


def seeds_of(text: str) -> list[int]:
    """Return the seeds of a text such as ``1, 2 5-8``."""
    seeds: list[int] = []
    for part in re.split(r"[,;\s]+", re.sub(rf"\s*({_TO})\s*(?=\d)", "-", text.strip())):
        match = re.fullmatch(r"(\d{1,30})(?:-(\d{1,30}))?", part)
        if match is None and part:
            raise FedLensError(
                f"'{part[:30]}' is not a whole number or a range; write seeds like 1, 2, 3 or 1-5", "seeds"
            )
        if match is not None:
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise FedLensError(f"the range {part} ends before it begins; write {last}-{first}", "seeds")
            if last - first >= MAX_SEEDS:
                raise FedLensError(f"the range {part} has more than {MAX_SEEDS} seeds; name fewer", "seeds")
            seeds += range(first, last + 1)
    if not seeds:
        raise FedLensError("name at least one seed, for example 1", "seeds")
    return seeds


def held_out_field(draft: Experiment, data: Mapping[str, Any], key: str) -> list[str]:
    """Draw the held-out domains: a choice if the data set's domains are known, else a text field.

    A change of the data set clears them, except for domains that the new one has too.
    """
    name, domains = data["name"], tuple(data.get("domains") or dataset.known_domains(data))
    before, last = st.session_state.get(key, (draft.data.name, list(draft.held_out)))
    start = [d for d in last if before == name or d == dataset.EACH or d in domains]
    help_ = "Leave-one-domain-out: one run for each domain named here, in which its clients do not train"
    if domains:
        single = len(domains) == 1 and not start
        held_out = dataset.domain_picker(
            "Held-out domains",
            domains,
            start,
            f"{key}.choice",
            each=True,
            help=help_,
            disabled=single,
            placeholder="only one domain" if single else "none",
        )
    else:
        text = st.text_input(
            "Held-out domains",
            value=", ".join(start),
            key=f"{key}.{name}",
            placeholder="none",
            help=f"{help_}. Separate names with commas, or write each for all of them in turn",
        )
        held_out = [part.strip() for part in text.split(",") if part.strip()]
    st.session_state[key] = name, held_out
    return held_out


def cohort_fields(backbone: Mapping[str, Any], key: str, errors: FieldErrors) -> list[dict[str, Any]]:
    """Draw the editor of cohorts and return its content; empty if all clients are alike."""
    form = drafts.form()
    differ = st.toggle(
        "Clients differ in backbone or budget",
        value=bool(form.experiment.cohorts),
        key=f"{key}.cohorts",
        help="Divide the clients, in their order, into cohorts with their own CLIP model and training budget",
    )
    if not differ:
        errors.place("cohorts")
        return []
    all_clients = {"clients": st.session_state.get("planned_clients", 1)}
    written: list[CohortRow] = [
        {name: getattr(cohort, name) for name in NUMBER_COLUMNS}
        | {column: getattr(cohort.backbone, name, None) for column, name in BACKBONE_COLUMNS.items()}
        for cohort in form.experiment.cohorts
    ]
    table, state = f"{key}.cohorts.table", st.session_state
    if table not in state:  # the edits of an editor that was not drawn are forgotten
        state[f"{table}.first"] = state.get(f"{table}.last") or written or [all_clients]
    rows = state[f"{table}.first"]  # Streamlit discards the edits when an editor's first table changes
    numbers, texts = dict.fromkeys(NUMBER_COLUMNS, "Int64"), dict.fromkeys(BACKBONE_COLUMNS, "string")
    kinds = {"clients": "Int64"} | texts | numbers
    numbered = pd.RangeIndex(1, len(rows) + 1)  # as in error messages
    edited = st.data_editor(
        pd.DataFrame(rows, numbered, list(kinds)).astype(kinds),
        num_rows="dynamic",
        hide_index=False,
        column_config=_cohort_columns([str(row.get("backbone") or "") for row in rows]),
        key=table,
        placeholder="-",
        alt="Cohorts of clients",
    )
    st.caption("One cohort per row. The numbers of clients must add up to that of the partition.")
    errors.place("cohorts")
    state[f"{table}.last"] = typed = [
        {str(name): _cell_value(v) for name, v in row.items()} for row in edited.to_dict("records")
    ]
    return [cohort_content(row, backbone) for row in typed]


def _cohort_columns(backbones: list[str]) -> dict[str, Any]:
    """Return how each column is edited; ``backbones`` are the names in use, which may be unknown ones."""
    budget, about = CohortConfig.model_fields, BackboneConfig.model_fields
    columns: dict[str, Any] = {"_index": st.column_config.Column("", width=30)}
    for name, width in NUMBER_COLUMNS.items():
        columns[name] = st.column_config.NumberColumn(
            {"local_epochs": "Epochs"}.get(name) or field_title(name),
            help=budget[name].description,
            step=1,
            width=width,
            default=1 if name == "clients" else None,
        )
    names = list(dict.fromkeys([*backbone_names(), *filter(None, backbones)]))
    helps = {field: about[field].description for field in ("pretrained", "precision")}
    precisions, choice = list(inputs.options_of(about["precision"])), st.column_config.SelectboxColumn
    return columns | {
        "backbone": choice("CLIP", help=budget["backbone"].description, options=names, width=96),
        "pretrained": st.column_config.TextColumn("Weights", help=helps["pretrained"], width=88),
        "precision": choice("Precision", help=helps["precision"], options=precisions, width=94),
    }


def _cell_value(value: Any) -> Any:
    if pd.isna(value) or not str(value).strip():
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


def sweepable_fields(values: dict[str, Any]) -> dict[str, Sweepable]:
    """Return the fields that can be swept, by path, given the form's partition and methods."""
    top = Experiment.model_fields
    fields = {name: (top[name], values[name]) for name in ("rounds", "participation")}
    fields["data.shots"] = (DataConfig.model_fields["shots"], values["data"].get("shots"))
    for name, value in values["partition"].items():
        if name != "kind":
            fields[f"partition.{name}"] = (PartitionConfig.model_fields[name], value)
    fields["backbone.name"] = (BackboneConfig.model_fields["name"], values["backbone"]["name"])
    sweepable: dict[str, Sweepable] = {p: (field_title(p), *field) for p, field in fields.items()}
    # the fields of single methods, then those that several methods have, to be swept together
    methods, entries = drafts.available_methods(), drafts.form().methods
    by_field: dict[str, list[Sweepable]] = {}
    names = [entry.name for entry in entries]
    for entry in (e for e in entries if e.name in methods):
        method = methods[entry.name]
        variant = entry.name if names.count(entry.name) == 1 else entry.label
        defaults = inputs.default_values(method.Config)
        texts = class_texts.fields(method.Config)  # too long for a line of values
        for name, info in method.Config.model_fields.items():
            if name in texts:
                continue
            value = entry.config.get(name, defaults[name])
            phrase = field_phrase(f"methods.{entry.name}.{name}")
            by_field.setdefault(name, []).append((phrase, info, value))
            if variant:
                title = entry.label or method.about.title
                sweepable[f"methods.{variant}.{name}"] = (f"{title}: {phrase}", info, value)
    for name, [(phrase, info, value), *others] in by_field.items():
        if others:
            sweepable[f"methods.*.{name}"] = (f"All methods: {phrase}", info, value)
    return sweepable


def sweep_fields(
    values: dict[str, Any], key: str, errors: FieldErrors, box: ExpanderContainer
) -> dict[str, list[Any]]:
    """Draw the sweep while its expander is open, and return the values of each swept field."""
    form, fields_by_path = drafts.form(), sweepable_fields(values)
    last = form.values.get("sweep", form.experiment.sweep)  # perhaps of a method that was removed
    swept = {p: list(v) for p, v in last.items() if p in fields_by_path or not p.startswith("methods.")}
    titles = {path: title for path, (title, _, _) in fields_by_path.items()}
    titles |= {path: field_title(path) for path in swept if path not in titles}
    if box.open:
        with box:
            chosen = st.multiselect(
                "Sweep: several values of one or more fields",
                list(titles),
                default=list(swept),
                format_func=lambda path: titles.get(path, field_title(path)),
                placeholder="Choose a field",
                key=f"{key}.sweep.fields",
                help="Every combination is run, with every seed. Results appear on Compare, tab Sweep.",
            )
            before, swept = swept, {}
            for path in chosen:
                _, info, value = fields_by_path.get(path, ("", None, None))
                start = before.get(path, [] if value is None else [value])
                swept[path] = _values(path, f"{titles[path]}: values", info, start, f"{key}.sweep.{path}")
                errors.place(f"sweep.{path}")
    elif swept:
        said = ", ".join(f"{titles[p]} {value_text(p, v)}" for p, v in swept.items())
        st.caption(f"Swept: {markup.md(said)}")
    errors.place("sweep")
    return swept


def _values(path: str, label: str, info: FieldInfo | None, start: list[Any], key: str) -> list[Any]:
    """Draw the values of one field: a choice among its options, or a text separated by commas."""
    help_ = "" if info is None else inputs.help_text(path, info)
    options = () if info is None else inputs.options_of(info)
    if options:
        chosen, texts = [v for v in start if v in options], {v: value_text(path, v) for v in options}
        return st.multiselect(
            label, options, chosen, texts.__getitem__, key=key, help=help_, placeholder="Choose values"
        )
    default = "" if info is None else f"; default {value_text(path, inputs.default_of(info))}"
    text = st.text_input(
        label,
        value=", ".join(map(str, start)),
        key=key,
        placeholder=f"values, separated by commas{default}",
        help=f"{help_} Separate values with commas.".strip(),
    )
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
