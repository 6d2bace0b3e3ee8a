"""The domains of the form's data set, as far as they are known before the experiment is planned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from fedcore.data import catalog
from fedcore.data.entry import Entry
from fedcore.paths import user_path
from pages.widgets import session

OWN_DATA = "own"
"""Stands for the user's own data, whose format the check finds out."""
_PLANNED = "planned_domains"
EACH = "each"
"""Value of ``held_out`` in files that holds out every domain in turn."""


def is_own_data(entry: Entry) -> bool:
    """Return whether an entry stands for the user's own data, whose classes the catalog does not know."""
    return not (entry.embedded or entry.domains or entry.classes or entry.class_count)


def check_key(
    name: str | None,
    root: str,
    columns: Mapping[str, str] | None = None,
    domains: Sequence[str] | None = None,
) -> str:
    """Return the key of a check: one per folder, data set, column names and choice of domains.

    Args:
        name: None for the user's own data.
    """
    chosen = [dict(columns)] if columns else []
    named = "".join(
        f" {json.dumps(c, sort_keys=True)}" for c in (*chosen, *([list(domains)] if domains else []))
    )
    return f"{name or OWN_DATA} {user_path(root, 'data.root')}{named}"


def known_domains(name: str, root: str | None, columns: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return all domains of a data set: the catalog's, or of own data those that a plan or check found.

    Returns: an empty tuple where neither has read the data yet.
    """
    entry = next((e for e in catalog.entries() if e.name == name), None)
    if entry is None or entry.domains or not root:
        return () if entry is None else entry.domains
    if seen := _planned().get(_key(name, root, columns)):
        return seen
    task = session.store().tasks.find("check", check_key(None, root, columns)) if is_own_data(entry) else None
    if task is not None and task.status == "done" and task.result and task.result["name"] == name:
        return tuple(task.result["report"]["domains"])  # none where it cannot be used
    return ()


def selected_domains(data: Mapping[str, object]) -> tuple[str, ...]:
    """Return the domains that the form's runs will use; ``data`` is the form's data part."""
    picked = data.get("domains")
    return tuple(picked) if picked else known_domains(*_source(data))  # type: ignore[arg-type]


def remember_planned(data: Mapping[str, object], planned: Sequence[str]) -> bool:
    """Remember the domains that a plan found in a folder without a check.

    Returns: whether they are new, so that the page must be drawn again.
    """
    if data.get("domains") or known_domains(*_source(data)) == tuple(planned):
        return False
    key, domains = _key(*_source(data)), tuple(planned)
    is_new = _planned().get(key) != domains
    _planned()[key] = domains
    return is_new


def domain_picker(
    label: str, known: Sequence[str], start: Sequence[str], key: str, *, each: bool = False, **more: Any
) -> list[str]:
    """Draw a choice among the known domains, and keep unknown ones of ``start`` until the user removes them.

    Args:
        each: also offer ``EACH``, which holds out every domain in turn.
    """
    first = [EACH] if each else []
    kept = [d for d in st.session_state.get(key, start) if d in start]
    return st.multiselect(
        label,
        list(dict.fromkeys([*first, *known, *kept])),
        default=list(dict.fromkeys(kept)),
        format_func=lambda d: "each in turn" if each and d == EACH else d,
        key=key,
        on_change=_resolve_each if each else "rerun",
        args=(key,) if each else None,
        select_all=not each,
        wrap=True,
        **more,
    )


def _resolve_each(key: str) -> None:
    """Callback: resolve a choice of both ``EACH`` and single domains in favour of the last click."""
    value = st.session_state[key]
    if EACH in value and len(value) > 1:
        st.session_state[key] = [EACH] if value[-1] == EACH else [d for d in value if d != EACH]


def _source(data: Mapping[str, object]) -> tuple[str, str | None, Mapping[str, str] | None]:
    return str(data["name"]), data.get("root"), data.get("columns")  # type: ignore[return-value]


def _key(name: str, root: str | None, columns: Mapping[str, str] | None) -> str:
    return json.dumps([name, root, dict(columns or {})], sort_keys=True)


def _planned() -> dict[str, tuple[str, ...]]:
    domains: dict[str, tuple[str, ...]] = st.session_state.setdefault(_PLANNED, {})
    return domains
