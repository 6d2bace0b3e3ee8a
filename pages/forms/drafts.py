"""The draft behind the form: filled from a preset, a clone or a file, then edited by the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import streamlit as st

from fedcore.config import Experiment
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.methods.base import Method
from fedcore.papers import experiments
from pages.widgets import markup, session

EXTRA_FIELDS = ("columns", "domains", "template", "shots", "split", "decode")
"""Fields of the data part behind an expander."""
ABOUT_DEMO = "It takes about 2 minutes on two CPU cores. Data and model are built in: nothing to download."


@dataclass
class MethodDraft:
    """One method of the form, with the hyper-parameters typed so far.

    Attributes:
        uid: identity, which stays the same when the position changes.
        config: hyper-parameters that differ from the paper's, as last typed.
        title: the form's heading, which stays while the label is edited.
        start, start_label: the values that the open form's widgets began with.
        version: counts the times the form was opened or reset: part of its widgets' keys.
    """

    uid: int
    name: str
    label: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    title: str | None = None
    start: dict[str, Any] = field(default_factory=dict)
    start_label: str | None = None
    is_open: bool = False
    version: int = 0

    def open(self) -> None:
        """Open the form; its widgets begin with what was typed before it was closed."""
        if not self.is_open:
            self.is_open, self.version = True, self.version + 1
            self.start, self.start_label = dict(self.config), self.label

    def reset(self) -> None:
        """Return to the paper's hyper-parameters."""
        self.config, self.start, self.version = {}, {}, self.version + 1

    def content(self) -> dict[str, Any]:
        """Return the entry as an experiment holds it."""
        return {"name": self.name, "label": self.label, "config": self.config, "file": self.file}


@dataclass
class Expander:
    """Values behind an expander, kept while it is closed and its widgets are not drawn.

    Attributes:
        values: as last typed.
        start: the values that the open form's widgets began with.
        version: counts the times the form was opened: part of its widgets' keys.
    """

    values: dict[str, Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    is_open: bool = False
    version: int = 0

    def set_open(self, is_open: bool | None) -> bool:
        """Record whether the form is open now, and return it."""
        if is_open and not self.is_open:
            self.start, self.version = dict(self.values), self.version + 1
        self.is_open = bool(is_open)
        return self.is_open


def about_demo() -> tuple[str, str]:
    """Return the name of the demonstration, and two sentences on its size and its cost."""
    demo = experiments.preset(experiments.DEMO)
    size = f"{len(demo.methods)} methods, {demo.rounds} rounds."
    return demo.name, f"{size} {ABOUT_DEMO}"


def paper_presets() -> dict[str, str]:
    """Return the papers' presets: name -> title."""
    return {name: experiments.title(name) for name in experiments.published()}


def draft() -> Experiment:
    """Return the experiment that the form was filled from; at first that of *Try it*."""
    if "draft" not in st.session_state:
        fill(experiments.preset(experiments.DEMO), "preset:demo")
    return cast(Experiment, st.session_state["draft"])


def version() -> int:
    """Return how often the form was filled; the number is part of all widgets' keys."""
    return int(st.session_state.get("draft_version", 0))


def source() -> str:
    """Return the origin of the draft: ``preset:demo``, ``clone:3``, ``file``."""
    return str(st.session_state.get("draft_source", ""))


def fill(experiment: Experiment, origin: str) -> None:
    """Fill the form from an experiment."""
    st.session_state["draft"] = experiment
    st.session_state["draft_source"] = origin
    st.session_state["draft_version"] = version() + 1
    st.session_state.pop("draft_typed", None)
    st.session_state["draft_entries"] = [
        MethodDraft(i, m.name, m.label, dict(m.config), m.file, m.label)
        for i, m in enumerate(experiment.methods)
    ]
    st.session_state["draft_sweep"] = Expander({path: list(v) for path, v in experiment.sweep.items()})
    st.session_state["draft_cohorts"] = Expander(is_open=bool(experiment.cohorts))
    st.session_state["draft_more"] = Expander({n: getattr(experiment.data, n) for n in EXTRA_FIELDS})
    st.session_state["draft_more_of"] = experiment.data.name


def remember(typed: Experiment) -> None:
    """Remember what the user typed; widgets forget it when another page is opened."""
    st.session_state["draft_typed"] = typed


def restore(first: str) -> None:
    """Fill the form as it was left, if its first widget (of this key) has been forgotten meanwhile."""
    typed = st.session_state.get("draft_typed")
    if typed is not None and first not in st.session_state:
        fill(typed, source())


def from_url() -> FedLensError | None:
    """Fill the form once as the URL says (``?preset=demo``, ``?clone=3``), or return the error."""
    preset, clone = st.query_params.get("preset"), st.query_params.get("clone")
    wanted = f"clone:{clone}" if clone else f"preset:{preset}" if preset else ""
    if not wanted or wanted == source():
        return None
    try:
        if clone:
            row = session.store().experiments.get(int(clone) if clone.isdecimal() else -1)
            fill(row.config.model_copy(update={"name": f"{row.name} (copy)"}), wanted)
        else:
            fill(experiments.preset(str(preset)), wanted)
    except FedLensError as error:
        return error
    return None


def methods() -> dict[str, type[Method]]:
    """Return all methods by name, those of FEDLENS_METHODS included."""
    try:
        return registry.load_all()
    except FedLensError as error:
        markup.show_error(error)
        return {}


def method_drafts() -> list[MethodDraft]:
    """Return the methods of the form."""
    draft()
    return cast(list[MethodDraft], st.session_state["draft_entries"])


def sweep() -> Expander:
    """Return the swept fields of the form: path -> values."""
    draft()
    return cast(Expander, st.session_state["draft_sweep"])


def cohorts() -> Expander:
    """Return the rows of the cohort table under ``rows``; empty before they are first edited."""
    draft()
    return cast(Expander, st.session_state["draft_cohorts"])


def extra_fields(data: str) -> Expander:
    """Return the fields of the data part that are behind an expander.

    Args:
        data: the data set's name; a change of it clears the chosen domains.
    """
    draft()
    expander: Expander = st.session_state["draft_more"]
    if st.session_state["draft_more_of"] != data:
        st.session_state["draft_more_of"] = data
        expander.values["domains"] = expander.start["domains"] = None
    return expander


def sync_methods(key: str) -> None:
    """Callback: add and remove method forms after a changed choice of methods."""
    chosen = st.session_state[key]
    kept = [e for e in method_drafts() if e.name in chosen]
    for name in chosen:
        if name not in {e.name for e in kept}:
            kept.append(MethodDraft(_next_uid(), name))
    st.session_state["draft_entries"] = kept


def _next_uid() -> int:
    uid = max(int(st.session_state.get("draft_uid", 99)), 99) + 1
    st.session_state["draft_uid"] = uid
    return uid


def reset(uid: int) -> None:
    """Callback: return to the hyper-parameters of a method's paper."""
    for entry in method_drafts():
        if entry.uid == uid:
            entry.reset()


def add_variant(uid: int) -> None:
    """Callback: add a variant of a method below it."""
    with_variant = []
    for entry in method_drafts():
        with_variant.append(entry)
        if entry.uid == uid:
            label = f"{entry.label or methods()[entry.name].about.title} (variant)"
            with_variant.append(
                MethodDraft(_next_uid(), entry.name, label, dict(entry.config), entry.file, label)
            )
    st.session_state["draft_entries"] = with_variant


def remove(uid: int) -> None:
    """Callback: remove a method from the form."""
    kept = [e for e in method_drafts() if e.uid != uid]
    st.session_state["draft_entries"] = kept
    key = f"new{version()}.choice"
    if key in st.session_state:
        st.session_state[key] = list(dict.fromkeys(e.name for e in kept))
