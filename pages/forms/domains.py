"""Which domains the form's data set has, as far as that is known before anything is planned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from fedcore.data import catalog
from fedcore.data.entry import Entry
from pages.widgets import common

OWN = "own"
"""Not one of the catalog: what it is shows when it is looked at."""
_SEEN = "domains_seen"
EACH = "each"
"""As files write it: every domain is held out, one after another."""


def is_own(entry: Entry) -> bool:
    """Whether it is a form of one's own data, of which the catalog knows nothing."""
    return not (entry.embedded or entry.domains or entry.classes or entry.class_count)


def check_key(name: str | None, root: str, columns: Mapping[str, str] | None = None) -> str:
    """One check for each reading of a folder. name: of the catalog; None for one's own data."""
    named = f" {json.dumps(dict(columns), sort_keys=True)}" if columns else ""
    return f"{name or OWN} {Path(root).expanduser()}{named}"


def of(name: str, root: str | None, columns: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """All domains of a data set: the catalog's; of one's own those that a plan has found, or a check.

    Returns: none where nobody has looked yet.
    """
    entry = next((e for e in catalog.entries() if e.name == name), None)
    if entry is None or entry.domains or not root:
        return () if entry is None else entry.domains
    if seen := _seen().get(_key(name, root, columns)):
        return seen
    task = common.store().tasks.find("check", check_key(None, root, columns)) if is_own(entry) else None
    if task is not None and task.status == "done" and task.result and task.result["name"] == name:
        return tuple(task.result["report"]["domains"])  # none where it cannot be used
    return ()


def chosen(data: Mapping[str, object]) -> tuple[str, ...]:
    """The domains that the form's runs will have. data: as the form has it."""
    picked = data.get("domains")
    return tuple(picked) if picked else of(*_which(data))  # type: ignore[arg-type]


def learn(data: Mapping[str, object], found: Sequence[str]) -> bool:
    """Keep the domains that a plan has found in a folder that nobody has checked.

    Returns: whether they were not known, so that fields are to be drawn anew.
    """
    if data.get("domains") or of(*_which(data)) == tuple(found):
        return False
    key, found = _key(*_which(data)), tuple(found)
    is_new = _seen().get(key) != found
    _seen()[key] = found
    return is_new


def picker(
    label: str, known: Sequence[str], start: Sequence[str], key: str, *, each: bool = False, **more: Any
) -> list[str]:
    """A choice among the known domains. What it starts with stays until it is taken out: an error names it.

    Args:
        each: offer all of them, one after another, with one click.
    """
    first = [EACH] if each else []
    kept = [d for d in st.session_state.get(key, start) if d in start]
    return st.multiselect(
        label,
        list(dict.fromkeys([*first, *known, *kept])),
        default=list(dict.fromkeys(kept)),
        format_func=lambda d: "each in turn" if each and d == EACH else d,
        key=key,
        on_change=_alone if each else "rerun",
        args=(key,) if each else None,
        select_all=not each,
        wrap=True,
        **more,
    )


def _alone(key: str) -> None:
    """Callback: each of them and one of them exclude each other; the last click counts."""
    value = st.session_state[key]
    if EACH in value and len(value) > 1:
        st.session_state[key] = [EACH] if value[-1] == EACH else [d for d in value if d != EACH]


def _which(data: Mapping[str, object]) -> tuple[str, str | None, Mapping[str, str] | None]:
    return str(data["name"]), data.get("root"), data.get("columns")  # type: ignore[return-value]


def _key(name: str, root: str | None, columns: Mapping[str, str] | None) -> str:
    return json.dumps([name, root, dict(columns or {})], sort_keys=True)


def _seen() -> dict[str, tuple[str, ...]]:
    return st.session_state.setdefault(_SEEN, {})
