"""The fields of an experiment that every method shares: data, partition, backbone, schedule."""

from __future__ import annotations

from typing import get_args

import streamlit as st

from fedcore.clip.facts import MINI_MODELS, config_files
from fedcore.config import BackboneConfig, DataConfig, Experiment, PartitionConfig
from fedcore.data import catalog
from fedcore.errors import FedLensError
from fedcore.report.names import field_title
from pages.parts import common, forms

COMMON_BACKBONES = ("ViT-B-32", "ViT-B-16", "ViT-L-14", "RN50", "RN101")
EXAMPLES = {"folder": "/data/my-pictures", "manifest": "/data/my-list.csv", "hf-dataset": "/data/my-dataset"}
"""Paths as they may look, for data of one's own."""


class Slots:
    """A place under every field for what is wrong with it."""

    def __init__(self) -> None:
        self._places: dict[str, st.delta_generator.DeltaGenerator] = {}

    def place(self, field: str) -> None:
        """Keep room for complaints about a field, here."""
        self._places[field] = st.empty()

    def show(self, error: FedLensError) -> None:
        """Show an error beside its field; the nearest enclosing one that has a place."""
        field = error.field or ""
        while field and field not in self._places:
            field = field.rpartition(".")[0]
        place = self._places.get(field) or self._places[""]
        if field == "cohorts" and error.field != field:  # a line of the table cannot be marked
            error = FedLensError(f"{field_title(error.field or '')}: {error}", error.field)
        common.show_error(error, place)


def data_fields(draft: DataConfig, key: str, slots: Slots) -> dict[str, object]:
    """Data set, folder, domains, split."""
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
        slots.place("data.name")
    entry = entries.get(name)
    values: dict[str, object] = {"name": name}
    with right:
        if entry is not None and not entry.embedded:
            values["root"] = (
                st.text_input(
                    "Folder on this machine",
                    value=draft.root or "",
                    key=f"{key}.root",
                    placeholder=EXAMPLES.get(entry.name, f"/data/{entry.name}"),
                    help=entry.how,
                ).strip()
                or None
            )
        else:
            splits = list(get_args(DataConfig.model_fields["split"].annotation))
            values["split"] = st.selectbox(
                "Train / validation / test", splits, index=splits.index(draft.split), key=f"{key}.split"
            )
            slots.place("data.split")
    slots.place("data.root")
    if entry is not None:
        about = (text[:1].upper() + text[1:] for text in (entry.source, entry.licence))
        st.caption(common.md(". ".join(about) + "."))
    with st.expander("More about the data: domains, prompt, few-shot"):
        known = list(entry.domains) if entry else []
        if known:
            kept = [d for d in draft.domains or () if d in known]
            chosen = st.multiselect(
                "Domains", known, default=kept, placeholder=f"all {len(known)}", key=f"{key}.domains.{name}"
            )
            values["domains"] = chosen or None
        elif draft.domains:
            values["domains"] = list(draft.domains)
        slots.place("data.domains")
        fields = DataConfig.model_fields
        rest = [field for field in ("template", "shots", "split", "decode") if field not in values]
        own = {"template": entry.template} if entry is not None and entry.template else {}
        for column, field in zip(st.columns(len(rest)), rest, strict=True):
            with column:
                values[field] = forms.field_widget(
                    f"data.{field}",
                    fields[field],
                    getattr(draft, field),
                    f"{key}.{field}",
                    None,
                    own.get(field),
                )
                slots.place(f"data.{field}")
        if entry is not None and entry.loader in ("manifest", "hf"):
            values["columns"] = columns_field(draft, f"{key}.columns")
            slots.place("data.columns")
    return values


def columns_field(draft: DataConfig, key: str) -> dict[str, str]:
    """Names of columns, as ``label = species, client = writer``."""
    text = st.text_input(
        "Names of columns",
        value=", ".join(f"{what} = {name}" for what, name in draft.columns.items()),
        key=key,
        placeholder="as they are: path or image, label, domain, client, split",
        help="Where the data set calls them otherwise: label = species, client = writer",
    )
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {what.strip(): name.strip() for what, _, name in pairs}


def partition_fields(draft: PartitionConfig, key: str, slots: Slots) -> dict[str, object]:
    """Only the fields that the kind of partition has."""
    kinds = {
        "domain": "By domain: clients of one domain each",
        "iid": "IID: at random",
        "dirichlet": "Dirichlet: skewed class shares",
        "pathological": "Pathological: disjoint classes",
        "natural": "Natural: the clients that the data set names",
    }
    kind = st.selectbox(
        "Who holds what",
        list(kinds),
        index=list(kinds).index(draft.kind),
        format_func=kinds.get,
        key=f"{key}.kind",
    )
    slots.place("partition.kind")
    names = {
        "domain": ("clients_per_domain", "alpha", "dirichlet_form", "min_samples"),
        "iid": ("clients", "min_samples"),
        "dirichlet": ("clients", "alpha", "dirichlet_form", "min_samples"),
        "pathological": ("clients", "classes_per_client", "leftover", "min_samples"),
        "natural": ("clients", "min_samples"),
    }[kind]
    start = {"classes_per_client": draft.classes_per_client or 2}
    if kind != "natural":  # empty there: all of them
        start["clients"] = draft.clients or 6
    if kind == "dirichlet":
        start["alpha"] = draft.alpha or 0.3
    empty = {"clients": "all", "alpha": "IID"}  # all that the data set names; within a domain at random
    values: dict[str, object] = {"kind": kind}
    for column, name in zip(st.columns(len(names)), names, strict=True):
        with column:
            info = PartitionConfig.model_fields[name]
            values[name] = forms.field_widget(
                f"partition.{name}",
                info,
                start.get(name, getattr(draft, name)),
                f"{key}.{kind}.{name}",
                None,
                empty.get(name),
            )
            slots.place(f"partition.{name}")
    return values


def backbone_names() -> list[str]:
    """All CLIPs: those that come along, the common ones, then the others."""
    files = config_files()
    ordered = [*MINI_MODELS, *(n for n in COMMON_BACKBONES if n in files)]
    return [*ordered, *(n for n in files if n not in ordered)]


def backbone_fields(draft: BackboneConfig, key: str, slots: Slots) -> dict[str, object]:
    """CLIP: a miniature one that comes along, or any of open_clip's."""
    names = backbone_names()
    names = names if draft.name in names else [draft.name, *names]
    left, middle, right = st.columns([2, 2, 1])
    with left:
        name = st.selectbox(
            "CLIP backbone",
            names,
            index=names.index(draft.name),
            key=f"{key}.name",
            help="mini-vit and mini-rn come with FedLens; the others are open_clip's and need their weights",
        )
        slots.place("backbone.name")
    values: dict[str, object] = {"name": name}
    if name not in MINI_MODELS:
        fields = BackboneConfig.model_fields
        with middle:
            values["pretrained"] = forms.field_widget(
                "backbone.pretrained",
                fields["pretrained"],
                draft.pretrained,
                f"{key}.pretrained",
                "Weights: tag or file",
                "e.g. openai",
            )
            slots.place("backbone.pretrained")
        with right:
            values["precision"] = forms.field_widget(
                "backbone.precision", fields["precision"], draft.precision, f"{key}.precision"
            )
            slots.place("backbone.precision")
    return values


def schedule_fields(draft: Experiment, key: str, slots: Slots) -> dict[str, object]:
    """Rounds, seeds, participation, held-out domains."""
    fields = Experiment.model_fields
    values: dict[str, object] = {}
    columns = st.columns(4)
    with columns[0]:
        values["rounds"] = forms.field_widget("rounds", fields["rounds"], draft.rounds, f"{key}.rounds")
        slots.place("rounds")
    with columns[1]:
        text = st.text_input(
            "Seeds",
            value=", ".join(map(str, draft.seeds)),
            key=f"{key}.seeds",
            help="Whole numbers with commas: 1, 2, 3",
        )
        values["seeds"] = forms.from_text(text, [tuple], False)
        slots.place("seeds")
    with columns[2]:
        values["participation"] = forms.field_widget(
            "participation", fields["participation"], draft.participation, f"{key}.participation"
        )
        slots.place("participation")
    with columns[3]:
        text = st.text_input(
            "Held-out domains", value=", ".join(draft.held_out), key=f"{key}.held_out", placeholder="none",
            help="Leave-one-domain-out: one run per domain named here; write each for all",
        )  # fmt: skip
        values["held_out"] = [part.strip() for part in text.split(",") if part.strip()]
        slots.place("held_out")
    values["evaluate_every"] = draft.evaluate_every
    return values
