"""The data set of the form: its check, its known domains, its fields, and a look at its images."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st
from PIL import Image
from streamlit.elements.lib.mutable_expander_container import ExpanderContainer

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.base.progress import NotPrepared
from fedcore.config import DataConfig, Experiment
from fedcore.config.field_names import field_phrase, field_title, size_text
from fedcore.data import catalog, copies, getting
from fedcore.data.check import CheckReport, contact_sheet
from fedcore.data.copies import HUB
from fedcore.data.getting import Item
from fedcore.data.images import EMBEDDINGS, Entry
from fedcore.data.readers import archives
from fedcore.store import TaskRow
from pages.forms import drafts, inputs
from pages.forms.inputs import FOLDER, FieldErrors
from pages.widgets import background, markup, session

OWN_DATA = "own"
"""Stands for the user's own data, whose format the check finds out."""
EACH = "each"
"""Value of ``held_out`` in files that holds out every domain in turn."""
EXAMPLES = {
    "folder": "/data/my-pictures",
    "manifest": "/data/my-list.csv",
    "hf-dataset": "/data/my-dataset",
    "embeddings": "/data/my-embeddings.npz",
}
"""Example paths of the user's own data, by data set name."""
MAX_COLUMNS = 4
"""Fields side by side behind the expander; narrower ones would cut off their options."""
MORE_FIELDS = (
    "columns", "domains", "classes", "training_classes", "class_order", "template", "shots", "shots_scope",
    "split", "split_rounding", "decode",
)  # fmt: skip
"""Fields that are behind an expander."""
_PLANNED, _TYPED = "planned_domains", "typed_folder"


class FolderCheck(NamedTuple):
    """The check of a folder: of a data set of the catalog by its name, or of the user's own data (None)."""

    name: str | None
    root: str
    columns: Mapping[str, str]
    domains: Sequence[str] = ()

    @classmethod
    def of_form(cls, data: Mapping[str, Any], whole: bool = False) -> "FolderCheck":
        """Return the check of the form's data part; ``whole`` ignores its choice of domains."""
        entry = catalog.entry(data["name"])
        domains = () if whole else data.get("domains") or ()
        name = None if entry.is_own else entry.name
        return cls(name, str(data["root"]), data.get("columns") or {}, domains)

    @property
    def key(self) -> str:
        """One per folder, data set, column names and choice of domains."""
        options: list[object] = [dict(self.columns)] if self.columns else []
        options += [list(self.domains)] if self.domains else []
        suffix = "".join(f" {json.dumps(option, sort_keys=True)}" for option in options)
        return f"{self.name or OWN_DATA} {user_path(self.root, 'data.root')}{suffix}"

    @property
    def task(self) -> TaskRow | None:
        return session.store().tasks.find("check", self.key)

    def submit(self) -> None:
        """Queue the check."""
        args = {"name": self.name, "root": str(user_path(self.root, "data.root")), "columns": self.columns}
        background.submit("check", self.key, args | ({"domains": self.domains} if self.domains else {}))

    def started(self) -> TaskRow | None:
        """Return the task, which starts by itself if the folder was just typed; None without one.

        A folder from a link or a file is checked on request only, and so is an archive, which would be
        unpacked. One whose check was dismissed is not checked again.
        """
        task, typed = self.task, st.session_state.get(_TYPED)
        if task is not None or typed != self.root or self.name is not None or not session.writable():
            return task
        try:
            path = user_path(self.root, "data.root")
            packed = archives.is_archive(path) or (path.is_dir() and bool(archives.archives_in(path)))
            if packed or not path.exists():
                return None
        except (FedLensError, OSError):  # which the check or the plan reports
            return None
        del st.session_state[_TYPED]
        self.submit()
        return self.task


def note_typed(key: str) -> None:
    """Callback: remember what was typed into the folder field ``key``, so that its check starts by itself."""
    st.session_state[_TYPED] = str(st.session_state[key]).strip()


def offer_check(data: Mapping[str, Any], error: NotPrepared) -> None:
    """Show the check that a data set of the form needs first, or offer it where it has not begun."""
    check = FolderCheck.of_form(data)
    task = check.started()
    if task is not None and task.status == "done":  # the data set is still not ready: its report says why
        report = CheckReport.model_validate((task.result or {})["report"])
        markup.show_error(FedLensError(report.error, "data.root") if report.error else error)
    elif task is not None:
        background.show_task(task, f"Checking {check.root}")
    else:
        said = f"{error.task} once. The check takes a while; the plan then appears here by itself."
        st.info(markup.md(said), icon=":material/fact_check:")
    running = task is not None and not task.ended
    label = "Check it now" if task is None else "Check again"
    if not running and markup.write_button(label, "fact_check", "check_here", type="primary"):
        check.submit()
        st.rerun()


def check_state(data: Mapping[str, Any]) -> str:
    """Return a text that changes when the form's data set is got, or a check of it begins or ends."""
    if not data.get("root"):
        copy = copies.registered(data["name"])
        return "" if copy is None else f"{copy.root} {copy.revision}"
    try:
        root = str(user_path(data["root"], "data.root"))
    except FedLensError:  # not a path, which the plan reports
        return ""
    checks = [task for task in session.store().tasks.recent("check") if task.args.get("root") == root]
    return " ".join(f"{task.id} {task.status}" for task in checks)


def offered() -> list[Entry]:
    """Return the data sets to choose among: the catalog, and those of the Hub that were got by their name."""
    return [*catalog.entries(), *(copy.entry for copy in getting.shelf() if copy.entry.name.startswith(HUB))]


def known_domains(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return all domains of a data set: the catalog's, or of own data those that a plan or check found.

    Returns: an empty tuple if neither has read the data yet.
    """
    entry = next((e for e in offered() if e.name == data["name"]), None)
    if entry is None or entry.domains or not data.get("root"):
        copy = copies.registered(data["name"])
        return copy.domains if copy is not None else () if entry is None else entry.domains
    planned: dict[str, tuple[str, ...]] = st.session_state.get(_PLANNED, {})
    if found := planned.get(_folder(data)):
        return found
    task = FolderCheck.of_form(data, whole=True).task if entry.is_own else None
    if task is not None and task.status == "done" and task.result and task.result["name"] == entry.name:
        return tuple(task.result["report"]["domains"])  # none if the data cannot be used
    return ()


def remember_planned(data: Mapping[str, Any], planned: Sequence[str]) -> bool:
    """Remember the domains that a plan found in a folder without a check.

    Returns: whether they are new, so that the page must be drawn again.
    """
    domains, folder = tuple(planned), _folder(data)
    if data.get("domains") or known_domains(data) == domains:
        return False
    remembered: dict[str, tuple[str, ...]] = st.session_state.setdefault(_PLANNED, {})
    is_new = remembered.get(folder) != domains
    remembered[folder] = domains
    return is_new


def _folder(data: Mapping[str, Any]) -> str:
    """Return what identifies the images of a data part."""
    return json.dumps([data["name"], data.get("root"), dict(data.get("columns") or {})], sort_keys=True)


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


@st.cache_data(show_spinner="Reading the data set…", max_entries=8, ttl=600)
def counts_and_samples(name: str) -> tuple[CheckReport, Image.Image]:
    """Return the image counts and the sample pictures of a built-in data set, which needs no check."""
    images, _ = catalog.load(name)
    report = CheckReport(
        name=name,
        root="",
        images=len(images.labels),
        domains=images.domains,
        classes=images.classes,
        counts=tuple(map(tuple, images.class_counts().tolist())),
    )
    return report, contact_sheet(images)


def terms(offer: Item) -> str:
    """Return size, address and licence of a download as Markdown."""
    size = "size unknown" if offer.size is None else f"{size_text(offer.size)} to download"
    commit = offer.entry.hub.revision[:7] if offer.entry.hub is not None else ""
    where = f"{offer.address}, revision {commit}" if commit else offer.address
    return markup.md(f"{offer.entry.title}: {size} from {where}. {markup.sentence(offer.licence)}.")


def get_button(offer: Item, key: str) -> bool:
    """Draw the terms of a download and the button that starts it; return whether it was pressed."""
    st.markdown(terms(offer))
    size = "" if offer.size is None else f" {size_text(offer.size)}"
    pressed = markup.write_button(f"Get{size}", "download", key, type="primary")
    if pressed:
        background.submit("download", offer.entry.name, {"name": offer.entry.name})
    return pressed


def show_downloads(name: str | None = None) -> None:
    """Draw the downloads of one data set, or the newest ones, that run or have failed."""
    for task in session.store().tasks.recent("download", 3):
        if name in (None, task.args["name"]):
            background.show_task(task, catalog.entry(task.args["name"]).title)


def data_fields(draft: DataConfig, key: str, errors: FieldErrors, more: ExpanderContainer) -> dict[str, Any]:
    """Draw the fields of the data part, those behind ``more`` while it is open, and return their values."""
    entries = {e.name: e for e in offered()}
    left, right = st.columns(2)
    with left:
        titles = {e.name: e.title for e in entries.values()}
        name = inputs.choose("Data set", titles, draft.name, f"{key}.name")
        errors.place("data.name")
    start = dict(draft) | drafts.form().values.get("data", {})
    if name != start["name"]:
        start |= {"domains": None, "classes": "all"}
    entry = entries.get(name)
    shown: dict[str, Any] = {"name": name}
    with right:
        if entry is not None and not entry.embedded:
            shown["root"] = (
                st.text_input(
                    FOLDER,
                    value=draft.root or "",
                    key=f"{key}.root",
                    placeholder=EXAMPLES.get(entry.name, f"/data/{entry.name}"),
                    help=entry.how_to_get,
                    on_change=note_typed,
                    args=(f"{key}.root",),
                ).strip()
                or None
            )
        else:
            split = DataConfig.model_fields["split"]
            shown["split"] = inputs.field_widget("data.split", split, start["split"], f"{key}.split")
            errors.place("data.split")
    errors.place("data.root")
    if entry is not None and not shown.get("root"):  # in its place: the copy that was got, or the offer
        item = getting.item(name)
        if item.copy is not None:
            source = f"{item.copy.repo} {item.copy.revision[:7]}".strip() or "the authors' archive"
            st.caption(f"✓ on this machine, from {markup.md(source)}: no folder is needed.")
        elif item.address:
            show_downloads(name)
            if get_button(item, "get_here"):
                st.rerun()
    if entry is not None and not entry.is_own:
        about = (text[:1].upper() + text[1:] for text in (entry.source, entry.licence))
        more.caption(markup.md(". ".join(about) + "."))
    extra = {field: start[field] for field in MORE_FIELDS} | shown
    is_table = entry is not None and entry.loader in ("manifest", "hf", "embeddings")  # with named columns
    if not is_table:
        extra["columns"] = {}
    if more.open:
        place = f"{key}.more"
        with more:
            if is_table:
                extra["columns"] = columns_field(start["columns"], f"{place}.columns")
                errors.place("data.columns")
            domains = known_domains(extra)
            if start["domains"] or len(domains) > 1:
                chosen, everything = start["domains"] or (), f"all {len(domains)}"
                extra["domains"] = domain_picker(
                    "Domains", domains, chosen, f"{place}.domains", placeholder=everything
                )
            errors.place("data.domains")
            rest = [f for f in MORE_FIELDS if f not in ("columns", "domains", *shown)]
            if entry is None or not entry.classes_coop:
                rest.remove("classes")
            empty = {"template": entry.template} if entry is not None and entry.template else {}
            rows = [(rest[i : i + MAX_COLUMNS], MAX_COLUMNS) for i in range(0, len(rest), MAX_COLUMNS)]
            extra |= inputs.field_rows("data", rows, start, place, errors, empty=empty)
    else:
        hidden = {field: value for field, value in extra.items() if field not in shown}
        inputs.say_changes("data", hidden, {"columns": columns_text(extra["columns"])})
    return extra | {"domains": extra["domains"] or None}


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
    others = () if data["name"] == EMBEDDINGS else (name for name in in_catalog if name != EMBEDDINGS)
    options = [name for name in dict.fromkeys([*before, *others]) if name != data["name"]]
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


def transfer_field(draft: Experiment, data: Mapping[str, object], key: str) -> list[dict[str, object]]:
    """Draw the choice of data sets that the trained models are only tested on.

    Embedded data is offered, except beside embeddings, whose encoder is not here; data with a folder comes
    from a file and stays until it is removed.
    """
    place = f"{key}.transfer"
    chosen_before = st.session_state.get(place, ())
    embedded: dict[str, dict[str, object]] = {
        e.name: {"name": e.name}
        for e in catalog.entries()
        if e.embedded and data["name"] != EMBEDDINGS and (e.name != data["name"] or e.name in chosen_before)
    }
    written = {
        f"{other.name}{f' ({Path(other.root).name})' if other.root else ''}": other.model_dump()
        for other in draft.transfer
    }
    offered = embedded | written
    if not offered:
        return []
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
