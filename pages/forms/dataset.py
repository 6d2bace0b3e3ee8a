"""The form's data set before the experiment is planned: its check, its known domains and its images."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.base.progress import NotPrepared
from fedcore.data import catalog
from fedcore.data.check import CheckReport, contact_sheet
from fedcore.data.images import Entry
from fedcore.data.readers import archives
from fedcore.results.run_files import DataCounts, count_images
from fedcore.store import TaskRow
from pages.widgets import background, markup, session

OWN_DATA = "own"
"""Stands for the user's own data, whose format the check finds out."""
EACH = "each"
"""Value of ``held_out`` in files that holds out every domain in turn."""
_PLANNED, _TYPED = "planned_domains", "typed_folder"


def is_own_data(entry: Entry) -> bool:
    """Return whether an entry stands for the user's own data, whose classes the catalog does not know."""
    return not (entry.embedded or entry.domains or entry.classes or entry.class_count)


def check_key(
    name: str | None,
    root: str,
    columns: Mapping[str, str] | None = None,
    domains: Sequence[str] | None = None,
) -> str:
    """Return the key of a check: one per folder, data set (or none), column names and choice of domains."""
    options: list[object] = [dict(columns)] if columns else []
    options += [list(domains)] if domains else []
    suffix = "".join(f" {json.dumps(option, sort_keys=True)}" for option in options)
    return f"{name or OWN_DATA} {user_path(root, 'data.root')}{suffix}"


def note_typed(key: str) -> None:
    """Callback: remember what was typed into the folder field ``key``, so that its check starts by itself."""
    st.session_state[_TYPED] = str(st.session_state[key]).strip()


def submit_check(name: str | None, root: str, key: str, options: Mapping[str, Any]) -> None:
    """Queue the check of a folder."""
    background.submit("check", key, {"name": name, "root": str(user_path(root, "data.root")), **options})


def check_of(name: str | None, root: str, key: str, options: Mapping[str, Any]) -> TaskRow | None:
    """Return the check of a folder, which starts by itself if the folder was just typed; None without one.

    A folder from a link or a file is checked on request only, and so is an archive, which would be unpacked.
    One whose check was dismissed is not checked again.
    """
    tasks = session.store().tasks
    task = tasks.find("check", key)
    if task is not None or st.session_state.get(_TYPED) != root or name is not None or not session.writable():
        return task
    try:
        path = user_path(root, "data.root")
        valid = path.exists() and not archives.is_archive(path)
        valid = valid and not (path.is_dir() and archives.archives_in(path))
    except (FedLensError, OSError):  # which the check or the plan reports
        return None
    if not valid:
        return None
    del st.session_state[_TYPED]
    submit_check(name, root, key, options)
    return tasks.find("check", key)


def offer_check(data: Mapping[str, Any], error: NotPrepared) -> None:
    """Show the check that a data set of the form needs first, or offer it where it has not begun."""
    entry = next(e for e in catalog.entries() if e.name == data["name"])
    name, root = None if is_own_data(entry) else entry.name, str(data["root"])
    columns, domains = data.get("columns") or {}, data.get("domains")
    key = check_key(name, root, columns, domains)
    options = {"columns": columns} | ({"domains": domains} if domains else {})
    task = check_of(name, root, key, options)
    if task is not None and task.status == "done":  # the data set is still not ready: its report says why
        report = CheckReport.model_validate((task.result or {})["report"])
        markup.show_error(FedLensError(report.error, "data.root") if report.error else error)
    elif task is not None:
        background.show_task(task, f"Checking {root}")
    else:
        st.info(
            markup.md(f"{error.task} once. The check takes a while; the plan then appears here by itself."),
            icon=":material/fact_check:",
        )
    running = task is not None and not task.ended
    if not running and st.button(
        "Check it now" if task is None else "Check again",
        type="primary",
        icon=":material/fact_check:",
        key="check_here",
        disabled=not session.writable(),
    ):
        submit_check(name, root, key, options)
        st.rerun()


def check_state(data: Mapping[str, Any]) -> str:
    """Return a text that changes when a check of the form's data set begins or ends."""
    if not data.get("root"):
        return ""
    try:
        root = str(user_path(data["root"], "data.root"))
    except FedLensError:  # not a path, which the plan reports
        return ""
    checks = [task for task in session.store().tasks.recent("check") if task.args.get("root") == root]
    return " ".join(f"{task.id} {task.status}" for task in checks)


def known_domains(name: str, root: str | None, columns: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return all domains of a data set: the catalog's, or of own data those that a plan or check found.

    Returns: an empty tuple if neither has read the data yet.
    """
    entry = next((e for e in catalog.entries() if e.name == name), None)
    if entry is None or entry.domains or not root:
        return () if entry is None else entry.domains
    if found := _planned().get(_key(name, root, columns)):
        return found
    task = session.store().tasks.find("check", check_key(None, root, columns)) if is_own_data(entry) else None
    if task is not None and task.status == "done" and task.result and task.result["name"] == name:
        return tuple(task.result["report"]["domains"])  # none if the data cannot be used
    return ()


def selected_domains(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the domains that the form's runs will use; ``data`` is the form's data part."""
    chosen = data.get("domains")
    return tuple(chosen) if chosen else known_domains(*_source(data))


def remember_planned(data: Mapping[str, Any], planned: Sequence[str]) -> bool:
    """Remember the domains that a plan found in a folder without a check.

    Returns: whether they are new, so that the page must be drawn again.
    """
    domains = tuple(planned)
    if data.get("domains") or known_domains(*_source(data)) == domains:
        return False
    key = _key(*_source(data))
    is_new = _planned().get(key) != domains
    _planned()[key] = domains
    return is_new


def domain_picker(
    label: str, offered: Sequence[str], start: Sequence[str], key: str, *, each: bool = False, **more: Any
) -> list[str]:
    """Draw a choice among the offered domains, and keep others of ``start`` until the user removes them.

    ``each`` also offers ``EACH``, which holds out every domain in turn.
    """
    still_chosen = [d for d in st.session_state.get(key, start) if d in start]
    return st.multiselect(
        label,
        list(dict.fromkeys([*([EACH] if each else []), *offered, *still_chosen])),
        default=list(dict.fromkeys(still_chosen)),
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


def _source(data: Mapping[str, Any]) -> tuple[str, str | None, Mapping[str, str] | None]:
    return str(data["name"]), data.get("root"), data.get("columns")


def _key(name: str, root: str | None, columns: Mapping[str, str] | None) -> str:
    return json.dumps([name, root, dict(columns or {})], sort_keys=True)


def _planned() -> dict[str, tuple[str, ...]]:
    domains: dict[str, tuple[str, ...]] = st.session_state.setdefault(_PLANNED, {})
    return domains


@st.cache_data(show_spinner="Reading the data set…", max_entries=8, ttl=600)
def counts_and_samples(name: str) -> tuple[DataCounts, Image.Image]:
    """Return the image counts and the sample pictures of a built-in data set."""
    images, _ = catalog.load_checked(name)
    return count_images(images), contact_sheet(images)


def sample_images(data: Mapping[str, Any]) -> None:
    """Draw an expander with an image of each domain and class of the form's data set.

    Opening it starts the check of a folder that was not checked yet, since a page reads no large folder.
    """
    box = st.expander(
        "Sample images", icon=":material/photo_library:", key="partition_samples", on_change="rerun"
    )
    if not box.open:
        return
    entry = next(e for e in catalog.entries() if e.name == data["name"])
    with box:
        if entry.embedded:
            _draw(counts_and_samples(entry.name)[1])
            return
        name, root = None if is_own_data(entry) else entry.name, str(data["root"])
        columns = data.get("columns") or {}
        key = check_key(name, root, columns)
        task = session.store().tasks.find("check", key)
        if task is None and session.writable():
            submit_check(name, root, key, {"columns": columns})
            task = session.store().tasks.find("check", key)
        sheet = task.arrays().get("sheet") if task is not None and task.status == "done" else None
        if sheet is not None:
            _draw(sheet)
        elif task is None or task.status == "done":
            markup.show_error(FedLensError("there are no sample images; see the report on Data & models"))
        else:
            background.show_task(task, f"Checking {root}")


def _draw(sheet: Any) -> None:
    st.image(
        sheet, caption="A row for each domain, a column for each class", alt="Sample images", width="stretch"
    )
