"""The fields of an experiment that every method shares: data, partition, backbone, schedule."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.clip import tags
from fedcore.clip.specs import MINI_MODELS, config_files
from fedcore.config import PARTITION_FIELDS, BackboneConfig, DataConfig, Experiment, PartitionConfig
from fedcore.config.field_names import field_phrase, field_title, value_text
from fedcore.data import catalog
from fedcore.data.images import Entry
from fedcore.papers import experiments
from pages.forms import dataset, drafts, inputs
from pages.forms.errors import FOLDER, FieldErrors
from pages.widgets import markup

MAX_SEEDS = 1000
"""Maximum number of seeds in one range."""
_TO = r"-|\u2013|\.\."
"""Between the ends of a range: a hyphen, a dash or two dots."""
MAX_COLUMNS = 4
"""Fields side by side behind the expander; narrower ones would cut off their options."""
SCHEDULE: tuple[inputs.Row, ...] = (
    (("rounds", "seeds", "participation"), 3),
    (("held_out", "time_limit", "keep_checkpoints"), (2, 1, 1)),
    (("test_sample", "held_out_share"), 2),
)
COMMON_BACKBONES = ("ViT-B-32", "ViT-B-16", "ViT-L-14", "RN50", "RN101")
EXAMPLES = {"folder": "/data/my-pictures", "manifest": "/data/my-list.csv", "hf-dataset": "/data/my-dataset"}
"""Example paths of the user's own data, by data set name."""


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
    if entry is not None and dataset.is_own_data(entry) and root:
        return Path(root.strip()).name or root
    return data if entry is None else entry.title


def data_fields(draft: DataConfig, key: str, errors: FieldErrors) -> dict[str, object]:
    """Draw the fields of the data part and return their values."""
    entries = {e.name: e for e in catalog.entries()}
    names = list(entries) if draft.name in entries else [draft.name, *entries]
    left, right = st.columns(2)
    with left:
        name = st.selectbox(
            "Data set",
            names,
            index=names.index(draft.name),
            format_func=lambda n: entries[n].title if n in entries else n,
            key=f"{key}.name",
        )
        errors.place("data.name")
    entry = entries.get(name)
    values: dict[str, object] = {"name": name}
    with right:
        if entry is not None and not entry.embedded:
            values["root"] = (
                st.text_input(
                    FOLDER,
                    value=draft.root or "",
                    key=f"{key}.root",
                    placeholder=EXAMPLES.get(entry.name, f"/data/{entry.name}"),
                    help=entry.how_to_get,
                    on_change=dataset.note_typed,
                    args=(f"{key}.root",),
                ).strip()
                or None
            )
        else:
            start = drafts.form().extra_fields(name).values["split"]
            split = DataConfig.model_fields["split"]
            values["split"] = inputs.field_widget("data.split", split, start, f"{key}.split")
            errors.place("data.split")
    errors.place("data.root")
    row = ("training_classes", "class_order"), 2
    values |= inputs.field_rows("data", [row], dict(draft), key, errors)
    if entry is not None and not dataset.is_own_data(entry):
        about = (text[:1].upper() + text[1:] for text in (entry.source, entry.licence))
        st.caption(markup.md(". ".join(about) + "."))
    return extra_data_fields(values, entry, key, errors)


def further_data_fields(
    draft: Experiment, data: Mapping[str, object], key: str, errors: FieldErrors
) -> list[dict[str, Any]]:
    """Draw the choice of data sets that clients train on beside the first; return their entries.

    Two entries of one name, such as two folders, can be set in files only; the form preserves them.
    """
    before = {other.name: other.model_dump() for other in draft.further_data}
    if data["training_classes"] != "own":
        return []
    if len(before) < len(draft.further_data):
        return [other.model_dump() for other in draft.further_data]
    in_catalog = {e.name: e for e in catalog.entries()}
    options = [name for name in dict.fromkeys([*before, *in_catalog]) if name != data["name"]]
    info = Experiment.model_fields["further_data"]
    chosen = st.multiselect(
        field_phrase("further_data").capitalize(),
        options,
        [name for name in before if name in options],
        format_func=lambda name: in_catalog[name].title if name in in_catalog else name,
        key=f"{key}.further",
        placeholder="none",
        help=info.description,
    )
    entries = []
    for number, name in enumerate(chosen):
        entry = before.get(name, {"name": name})
        if name not in in_catalog or not in_catalog[name].embedded:
            title = in_catalog[name].title if name in in_catalog else name
            typed = st.text_input(
                f"{FOLDER}: {title}", value=entry.get("root") or "", key=f"{key}.further.{name}.root"
            )
            entry = {**entry, "root": typed.strip() or None}
        errors.place(f"further_data.{number}")
        entries.append(entry)
    errors.place("further_data")
    return entries


def extra_data_fields(
    values: dict[str, object], entry: Entry | None, key: str, errors: FieldErrors
) -> dict[str, object]:
    """Draw the less common data fields while their expander is open, and return the whole data part.

    Args:
        values: the values of the fields above, which may include the split.
    """
    folded = drafts.form().extra_fields(str(values["name"]))
    folded.values |= {name: v for name, v in values.items() if name in drafts.EXTRA_FIELDS}
    box = st.expander("More data settings: domains, prompt, few-shot", key=f"{key}.more", on_change="rerun")
    if folded.set_open(box.open):
        split = {"split": folded.values["split"]}
        with box:
            folded.values |= _open_extra_fields(
                values, folded.start | split, entry, f"{key}.{folded.version}", errors
            )
    if entry is None or not has_columns(entry):
        folded.values["columns"] = {}
    if not folded.is_open and (changes := changed_text(folded.values, values)):
        st.caption(f"Changed from the defaults: {markup.md(changes)}")
    return values | folded.values | {"domains": folded.values["domains"] or None}


def changed_text(now: Mapping[str, Any], shown: Collection[str]) -> str:
    """Describe the data values that differ from the defaults, except those ``shown`` by other widgets."""
    defaults = inputs.default_values(DataConfig)
    changes = []
    for name, value in now.items():
        if name not in shown and (value or None) != (defaults[name] or None):
            text = columns_text(value) if name == "columns" else value_text(f"data.{name}", value)
            changes.append(f"{field_phrase(f'data.{name}')} {text}")
    return "; ".join(changes)


def _open_extra_fields(
    shown: Mapping[str, Any], start: Mapping[str, Any], entry: Entry | None, key: str, errors: FieldErrors
) -> dict[str, object]:
    """Draw the open expander; ``shown`` holds the values of the fields above, ``start`` the initial ones."""
    values: dict[str, Any] = {}
    if entry is not None and has_columns(entry):
        values["columns"] = columns_field(start["columns"], f"{key}.columns")
        errors.place("data.columns")
    domains = dataset.known_domains(shown["name"], shown.get("root"), values.get("columns"))
    if start["domains"] or len(domains) > 1:
        values["domains"] = dataset.domain_picker(
            "Domains", domains, start["domains"] or (), f"{key}.domains", placeholder=f"all {len(domains)}"
        )
    errors.place("data.domains")
    rest = [
        name
        for name in drafts.EXTRA_FIELDS
        if name not in ("columns", "domains", *shown)
        and (name != "classes" or (entry is not None and entry.classes_coop))
    ]
    rows = [(rest[first : first + MAX_COLUMNS], MAX_COLUMNS) for first in range(0, len(rest), MAX_COLUMNS)]
    empty = {"template": entry.template} if entry is not None and entry.template else {}
    return values | inputs.field_rows("data", rows, start, key, errors, empty=empty)


def has_columns(entry: Entry) -> bool:
    """Return whether a data set is a table, whose columns can have other names."""
    return entry.loader in ("manifest", "hf")


def columns_field(start: Mapping[str, str], key: str) -> dict[str, str]:
    """Draw the field of column names, typed as ``label = species, client = writer``."""
    text = st.text_input(
        "Column names",
        value=columns_text(start),
        key=key,
        placeholder="e.g. path = file, label = species, client = writer",
        help="Needed only if the columns are not called path (image in a Hugging Face data set), label, "
        "domain, client and split. Example: label = species, client = writer",
    )
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {field.strip(): column.strip() for field, _, column in pairs}


def columns_text(columns: Mapping[str, str]) -> str:
    """Write column names as ``columns_field`` reads them."""
    return ", ".join(f"{field} = {column}" for field, column in columns.items())


def partition_fields(
    draft: PartitionConfig, data: Mapping[str, object], key: str, errors: FieldErrors
) -> dict[str, object]:
    """Draw the fields of the chosen kind of partition and return their values; ``data`` is the data part."""
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
    kind = st.selectbox(
        "Partition",
        tuple(kinds),
        index=tuple(kinds).index(draft.kind) if draft.kind in kinds else 0,
        format_func=lambda k: kinds[k],
        key=f"{key}.kind.own" if cross_class else f"{key}.kind",
    )
    errors.place("partition.kind")
    names = PARTITION_FIELDS[kind]
    start = dict(draft) | {"classes_per_client": draft.classes_per_client or 2}
    if kind != "natural":  # a natural partition begins with all clients of the data set
        start["clients"] = draft.clients or 6
    if kind == "dirichlet":
        start["alpha"] = draft.alpha or 0.3
    empty = {"clients": "all", "alpha": "IID"}
    row = names, len(names)
    drawn = inputs.field_rows("partition", [row], start, f"{key}.{kind}", errors, empty=empty)
    return {"kind": kind} | {name: drawn.get(name, start[name]) for name in names}


def transfer_field(draft: Experiment, data: Mapping[str, object], key: str) -> list[dict[str, object]]:
    """Draw the choice of data sets that the trained models are only tested on.

    Embedded data is offered; data with a folder comes from a file and stays until it is removed.
    """
    place = f"{key}.transfer"
    chosen_before = st.session_state.get(place, ())
    embedded: dict[str, dict[str, object]] = {
        e.name: {"name": e.name}
        for e in catalog.entries()
        if e.embedded and (e.name != data["name"] or e.name in chosen_before)
    }
    written = {
        f"{other.name}{f' ({Path(other.root).name})' if other.root else ''}": other.model_dump()
        for other in draft.transfer
    }
    offered = embedded | written
    chosen = st.multiselect(
        field_title("transfer"),
        list(offered),
        default=list(written),
        key=place,
        placeholder="no other data",
        help="Other data sets, on which no client trains. The trained models are tested on each among its "
        "own names. For data in a folder write a table [[transfer]] into the experiment's file.",
    )
    return [offered[name] for name in chosen]


def backbone_names() -> list[str]:
    """Return the names of all CLIP models: built-in, common, then all others."""
    files = config_files()
    ordered = [*MINI_MODELS, *(n for n in COMMON_BACKBONES if n in files)]
    return [*ordered, *(n for n in files if n not in ordered)]


def backbone_fields(draft: BackboneConfig, key: str, errors: FieldErrors) -> dict[str, object]:
    """Draw the fields of the CLIP model: a built-in miniature, or any model of open_clip."""
    names = backbone_names()
    names = names if draft.name in names else [draft.name, *names]
    left, middle, right = st.columns([2, 2, 1])
    with left:
        name = st.selectbox(
            "CLIP backbone",
            names,
            index=names.index(draft.name),
            key=f"{key}.name",
            help="mini-vit and mini-rn come with FedLens; the others are open_clip models, which need "
            "weights",
        )
    values: dict[str, object] = {"name": name}
    if name not in MINI_MODELS:
        fields = BackboneConfig.model_fields
        with middle:
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
    errors.place_row(f"backbone.{name}" for name in BackboneConfig.model_fields)
    return values


def suggested_weights(name: str) -> str | None:
    """Return the weights to offer for a model: some on this machine, else OpenAI's, else the first."""
    available = tags.tags(name)
    downloaded = [tag for tag in available if tags.cached(name, tag) is not None]
    return next(iter([*downloaded, *(tag for tag in available if tag == "openai"), *available]), None)


def schedule_fields(
    draft: Experiment, data: Mapping[str, object], key: str, errors: FieldErrors
) -> dict[str, object]:
    """Draw the fields of the training's schedule; ``data`` is the form's data part."""

    def seeds() -> str:  # ``seeds_of`` reads it when the experiment is planned
        return st.text_input(
            "Seeds",
            value=", ".join(map(str, draft.seeds)),
            key=f"{key}.seeds",
            help="Whole numbers and ranges, separated by commas or spaces: 1, 2, 3 or 1-5",
        )

    own = {"seeds": seeds, "held_out": lambda: held_out_field(draft, data, f"{key}.held_out")}
    kept = {name: getattr(draft, name) for name in ("held_out_share", "evaluate_every")}  # if not drawn
    return kept | inputs.field_rows("", SCHEDULE, dict(draft), key, errors, own)


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


def held_out_field(draft: Experiment, data: Mapping[str, object], key: str) -> list[str]:
    """Draw the held-out domains: a choice if the data set's domains are known, else a text field.

    A change of the data set clears them, except for domains that the new one has too.
    """
    name, domains = data["name"], dataset.selected_domains(data)
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
