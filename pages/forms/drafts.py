"""What the form is filled from: a preset, a clone, a file, and the methods that the user adds and removes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from fedcore.config import Experiment, parse
from fedcore.data import catalog
from fedcore.engine.plan import Plan
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.methods.base import Method
from fedcore.papers import experiments
from fedcore.results import forecast
from pages.forms import planning
from pages.widgets import common

MORE = ("columns", "domains", "template", "shots", "split", "decode")
"""Fields of the data part that are drawn only on request."""
ABOUT_DEMO = "2 minutes on two CPU cores, embedded data and model: nothing to download."


@dataclass
class Entry:
    """One method of the form.

    Attributes:
        uid: stays, while the position may change.
        config: hyper-parameters that differ from the paper's, as last typed.
        title: what the form is called, as long as it lives.
        start, start_label: what the open form's widgets began with.
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

    def opened(self) -> None:
        """The form is open: its widgets begin with what was typed before it was closed."""
        if not self.is_open:
            self.is_open, self.version = True, self.version + 1
            self.start, self.start_label = dict(self.config), self.label

    def reset(self) -> None:
        """As in the paper."""
        self.config, self.start, self.version = {}, {}, self.version + 1

    def content(self) -> dict[str, Any]:
        """As an experiment writes it."""
        return {"name": self.name, "label": self.label, "config": self.config, "file": self.file}


@dataclass
class Folded:
    """Values behind an expander: their widgets are drawn only while it is open, the values stay.

    Attributes:
        values: as last typed.
        start: what the open form's widgets began with.
        version: counts the times the form was opened: part of its widgets' keys.
    """

    values: dict[str, Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    is_open: bool = False
    version: int = 0

    def turned(self, is_open: bool | None) -> bool:
        """Take note of whether the form is open now, and say so."""
        if is_open and not self.is_open:
            self.start, self.version = dict(self.values), self.version + 1
        self.is_open = bool(is_open)
        return self.is_open


def about_demo() -> tuple[str, str]:
    """Name of the demonstration, and its size in one sentence and its cost in another."""
    demo = experiments.preset(experiments.DEMO)
    size = f"{len(demo.methods)} methods on {demo.data.name}, {demo.rounds} rounds."
    return demo.name, f"{size} {ABOUT_DEMO}"


def paper_presets() -> dict[str, str]:
    """The papers' presets: name -> title."""
    return {name: experiments.title(name) for name in experiments.published()}


def current() -> Experiment:
    """What the form starts from; first of all *Try it*."""
    if "draft" not in st.session_state:
        use(experiments.preset(experiments.DEMO), "preset:demo")
    return st.session_state["draft"]


def version() -> int:
    """Counts the times that the form was filled anew: part of all widgets' keys."""
    return st.session_state.get("draft_version", 0)


def source() -> str:
    """Where the draft came from: ``preset:demo``, ``clone:3``, ``file``."""
    return st.session_state.get("draft_source", "")


def use(experiment: Experiment, origin: str) -> None:
    """Fill the form from an experiment."""
    st.session_state["draft"] = experiment
    st.session_state["draft_source"] = origin
    st.session_state["draft_version"] = version() + 1
    st.session_state.pop("draft_typed", None)
    st.session_state["draft_entries"] = [
        Entry(i, m.name, m.label, dict(m.config), m.file, m.label) for i, m in enumerate(experiment.methods)
    ]
    st.session_state["draft_sweep"] = Folded({path: list(v) for path, v in experiment.sweep.items()})
    st.session_state["draft_cohorts"] = Folded(is_open=bool(experiment.cohorts))
    st.session_state["draft_more"] = Folded({n: getattr(experiment.data, n) for n in MORE})
    st.session_state["draft_more_of"] = experiment.data.name


def keep(typed: Experiment) -> None:
    """Remember what the form holds: its widgets forget it when another page is opened."""
    st.session_state["draft_typed"] = typed


def come_back(first: str) -> None:
    """Fill the form as it was left, where its first widget (of this key) has been forgotten meanwhile."""
    typed = st.session_state.get("draft_typed")
    if typed is not None and first not in st.session_state:
        use(typed, source())


def from_url() -> FedLensError | None:
    """Fill the form as the URL says (``?preset=demo``, ``?clone=3``), once; the error where that fails."""
    preset, clone = st.query_params.get("preset"), st.query_params.get("clone")
    wanted = f"clone:{clone}" if clone else f"preset:{preset}" if preset else ""
    if not wanted or wanted == source():
        return None
    try:
        if clone:
            row = common.store().experiments.get(int(clone) if clone.isdecimal() else -1)
            use(row.config.model_copy(update={"name": f"{row.name} (copy)"}), wanted)
        else:
            use(experiments.preset(str(preset)), wanted)
    except FedLensError as error:
        return error
    return None


def methods() -> dict[str, type[Method]]:
    """All methods by name, those of FEDLENS_METHODS too."""
    try:
        return registry.load_all()
    except FedLensError as error:
        common.show_error(error)
        return {}


def entries() -> list[Entry]:
    """The methods of the form."""
    current()
    return st.session_state["draft_entries"]


def sweep() -> Folded:
    """The fields of the form that take several values: path -> values."""
    current()
    return st.session_state["draft_sweep"]


def cohorts() -> Folded:
    """The lines of the table of cohorts, under ``rows``; nothing before they are first edited."""
    current()
    return st.session_state["draft_cohorts"]


def more(data: str) -> Folded:
    """What is seldom set of the data part. data: the data set's name; another one has other domains."""
    current()
    folded: Folded = st.session_state["draft_more"]
    if st.session_state["draft_more_of"] != data:
        st.session_state["draft_more_of"] = data
        folded.values["domains"] = folded.start["domains"] = None
    return folded


def sync_methods(key: str) -> None:
    """Callback: after the choice of methods has changed, the entries follow."""
    chosen = st.session_state[key]
    kept = [e for e in entries() if e.name in chosen]
    for name in chosen:
        if name not in {e.name for e in kept}:
            kept.append(Entry(_next_uid(), name))
    st.session_state["draft_entries"] = kept


def _next_uid() -> int:
    st.session_state["draft_uid"] = max(st.session_state.get("draft_uid", 99), 99) + 1
    return st.session_state["draft_uid"]


def reset(uid: int) -> None:
    """Callback: a method's hyper-parameters as in its paper."""
    for entry in entries():
        if entry.uid == uid:
            entry.reset()


def add_variant(uid: int) -> None:
    """Callback: the same method once more, below."""
    found = []
    for entry in entries():
        found.append(entry)
        if entry.uid == uid:
            label = f"{entry.label or methods()[entry.name].title} (variant)"
            found.append(Entry(_next_uid(), entry.name, label, dict(entry.config), entry.file, label))
    st.session_state["draft_entries"] = found


def remove(uid: int) -> None:
    """Callback: leave a method out."""
    kept = [e for e in entries() if e.uid != uid]
    st.session_state["draft_entries"] = kept
    key = f"new{version()}.choice"
    if key in st.session_state:
        st.session_state[key] = list(dict.fromkeys(e.name for e in kept))


def checked(values: dict[str, object]) -> tuple[Experiment | None, Plan | None, FedLensError | None]:
    """The experiment and its plan, or what is wrong with it; neither while the plan is being made."""
    content = {**values, "methods": [_without_none(m) for m in values["methods"]]}  # type: ignore[attr-defined]
    for part in ("data", "partition", "backbone"):
        content[part] = _without_none(values[part])
    try:
        experiment = parse(content)
    except FedLensError as error:
        return None, None, error
    planned = planning.made(experiment, _texts_of(experiment))
    if isinstance(planned, FedLensError):
        return experiment, None, planned
    return experiment, planned, None


def preview(values: dict[str, object], error: FedLensError) -> Plan | None:
    """Who gets what, where anything else stands in the way of the whole plan; None where data does.

    Args:
        error: what stands in its way.
    """
    if (error.field or "").partition(".")[0] == "data":
        return None
    shared = {part: _without_none(values[part]) for part in ("data", "partition", "backbone")}
    shared["methods"] = [{"name": "zero-shot"}]
    for more in (("seeds", "held_out"), ()):
        try:
            alone = parse(shared | {name: values[name] for name in more})
        except FedLensError:
            continue
        planned = planning.made(alone, _texts_of(alone))
        if not isinstance(planned, FedLensError):
            return planned
    return None


def _texts_of(experiment: Experiment) -> str:
    """A plan holds the class descriptions: it is made anew when their file has changed."""
    try:
        return catalog.descriptions_version(experiment.data.name, experiment.data.root)
    except FedLensError:  # an unknown data set, which the plan says
        return ""


def _without_none(values: object) -> dict[str, Any]:
    return {k: v for k, v in dict(values).items() if v is not None}  # type: ignore[call-overload]


@st.cache_data(show_spinner=False, ttl=20)
def _precedents(path: str) -> forecast.Precedents:
    return forecast.precedents(path)


def estimate(planned: Plan) -> float | None:
    """Seconds that a plan will take, by what this machine has recorded."""
    return forecast.seconds(_precedents(str(common.database())), planned.runs)


def memory(planned: Plan) -> int | None:
    """Bytes that the largest of its runs will take, by what this machine has measured."""
    return forecast.memory(_precedents(str(common.database())), planned.runs)


def disk(planned: Plan) -> forecast.Disk:
    """Bytes that its runs will write, by what there is and what runs of their kind have written."""
    return forecast.disk(common.database(), _precedents(str(common.database())), planned)
