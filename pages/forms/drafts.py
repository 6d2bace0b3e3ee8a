"""The content of the New page's form: filled from a preset, a clone or a file, then edited by the user."""

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.config import Experiment, Tuned
from fedcore.methods import registry
from fedcore.methods.base import Method
from fedcore.papers import experiments
from pages.widgets import markup, session

DRAFT = "draft"
"""Parameter of the address under which the form is found again after a reload."""
MAX_REMEMBERED = 200
_REMEMBERED: OrderedDict[str, tuple[Experiment, str]] = OrderedDict()
"""Contents of forms that a reload may ask for, with their origins, the oldest first."""
_LOCK = Lock()


@dataclass
class MethodDraft:
    """One method of the form.

    Attributes:
        uid: identity, which stays the same when the position changes.
        config: hyper-parameters that differ from the paper's, as last typed.
        opened: whether its hyper-parameters are drawn.
        version: counts the resets; part of the keys of the method's widgets.
        tuned: the search that selected ``tuned_config``; with other hyper-parameters it says nothing.
    """

    uid: int
    name: str
    label: str | None
    config: dict[str, Any]
    file: str | None
    opened: bool = False
    version: int = 1
    tuned: Tuned | None = None
    tuned_config: dict[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        content = {"name": self.name, "label": self.label, "config": self.config, "file": self.file}
        if self.tuned is not None and self.config == self.tuned_config:
            content["tuned"] = self.tuned.model_dump()
        return content


@dataclass
class Form:
    """The content of the form.

    Attributes:
        experiment: the one that the form was filled from.
        origin: where that came from: ``preset:demo``, ``clone:3``, ``run:7``, ``file``, ``folder``.
        version: how often the form was filled; part of all widgets' keys.
        methods: the methods in their order.
        values: the experiment as last typed, since widgets in a closed expander forget what was typed.
        typed: the latest valid content, since widgets forget theirs when another page is opened.
        given_name: the experiment's name until the user types another one.
        cannot_run: options of hyper-parameters that need more of the encoder than it gives.
    """

    experiment: Experiment
    origin: str
    version: int
    methods: list[MethodDraft]
    values: dict[str, Any] = field(default_factory=dict)
    typed: Experiment | None = None
    given_name: str | None = None
    cannot_run: set[str] = field(default_factory=set)
    _last_uid: int = -1

    def new_method(
        self, name: str, label: str | None, config: Mapping[str, Any], file: str | None
    ) -> MethodDraft:
        """Return a method with an identity that no other one of this form has had."""
        self._last_uid += 1
        return MethodDraft(self._last_uid, name, label, dict(config), file)


def form() -> Form:
    """Return the form's content; at first that of *Try it*."""
    if "form" not in st.session_state:
        fill(experiments.preset(experiments.DEMO), "preset:demo")
    content: Form = st.session_state["form"]
    return content


def fill(experiment: Experiment, origin: str) -> None:
    """Fill the form from an experiment."""
    before: Form | None = st.session_state.get("form")
    content = Form(experiment, origin, version=before.version + 1 if before else 1, methods=[])
    st.session_state["form"] = content
    for m in experiment.methods:
        draft = content.new_method(m.name, m.label, m.config, m.file)
        draft.tuned, draft.tuned_config = m.tuned, dict(m.config)
        content.methods.append(draft)


def remember(typed: Experiment) -> None:
    """Remember the valid content, also for a reload of the page, whose address then names it."""
    content = form()
    content.typed = typed
    key = st.query_params.get(DRAFT)
    if typed == content.experiment and key is None:
        return  # nothing was changed yet
    key = key or secrets.token_urlsafe(6)
    with _LOCK:
        _REMEMBERED[key] = typed, content.origin
        _REMEMBERED.move_to_end(key)
        while len(_REMEMBERED) > MAX_REMEMBERED:
            _REMEMBERED.popitem(last=False)
    if st.query_params.get(DRAFT) != key:
        st.query_params[DRAFT] = key


def restore() -> None:
    """Fill the form as it was left, if its widgets have been forgotten meanwhile or the page was reloaded."""
    key = st.query_params.get(DRAFT)
    if key is not None and "form" not in st.session_state and key in _REMEMBERED:
        fill(*_REMEMBERED[key])
        return
    typed = form().typed
    if typed is not None and f"new{form().version}.title" not in st.session_state:
        fill(typed, form().origin)


def from_url() -> None:
    """Fill the form once as the URL says (``?preset=demo``, ``?clone=3``)."""
    preset, clone = st.query_params.get("preset"), st.query_params.get("clone")
    wanted = f"clone:{clone}" if clone else f"preset:{preset}" if preset else ""
    if not wanted or wanted == form().origin:
        return
    if clone:
        row = session.store().experiments.get(int(clone) if clone.isdecimal() else -1)
        name = row.name if row.config.tuning is None else row.config.name  # without "Search: "
        fill(row.config.model_copy(update={"name": f"{name} (copy)"}), wanted)
    else:
        fill(experiments.preset(str(preset)), wanted)


def available_methods() -> dict[str, type[Method]]:
    """Return all methods by name, those of FEDLENS_METHODS included."""
    try:
        return registry.load_all()
    except FedLensError as error:
        markup.show_error(error)
        return {}


def sync_methods(key: str) -> None:
    """Callback: add and remove methods after a changed choice."""
    content, chosen = form(), st.session_state[key]
    content.methods = [e for e in content.methods if e.name in chosen]
    add([name for name in chosen if name not in {e.name for e in content.methods}])


def add(names: Iterable[str], file: str | None = None) -> None:
    """Callback: add methods, perhaps those of the user's own file."""
    content = form()
    _choose([*content.methods, *(content.new_method(name, None, {}, file) for name in names)])


def _choose(methods: list[MethodDraft]) -> None:
    """Replace the methods of the form, and what the widget shows that chooses them."""
    content = form()
    content.methods = methods
    st.session_state[f"new{content.version}.choice"] = list(dict.fromkeys(e.name for e in methods))


def toggle(entry: MethodDraft) -> None:
    """Callback: open or close the hyper-parameters of a method."""
    entry.opened = not entry.opened


def reset(entry: MethodDraft) -> None:
    """Callback: return to the hyper-parameters of a method's paper."""
    entry.config, entry.version = {}, entry.version + 1


def train_in_tf32(entries: Iterable[MethodDraft]) -> None:
    """Callback: compute the local training of some methods in TF32."""
    for entry in entries:
        entry.config, entry.version = {**entry.config, "arithmetic": "tf32"}, entry.version + 1


def add_variant(entry: MethodDraft) -> None:
    """Callback: add a variant of a method below it."""
    content = form()
    label = f"{entry.label or registry.title(entry.name)} (variant)"
    variant = content.new_method(entry.name, label, entry.config, entry.file)
    content.methods.insert(content.methods.index(entry) + 1, variant)


def remove(entry: MethodDraft) -> None:
    """Callback: remove a method from the form; a second click before the page is drawn again does nothing."""
    _choose([e for e in form().methods if e is not entry])


def only(entry: MethodDraft) -> None:
    """Callback: remove all methods but one."""
    _choose([entry])
