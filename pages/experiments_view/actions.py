"""What can be done with experiments, in the menu of a row or below the table, and the import of new ones."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.base.progress import counted, first_few
from fedcore.results.progress import ExperimentSummary
from fedcore.store import RunRow
from fedcore.store.experiments import UnreadableExperiment
from pages.widgets import background, markup, session

Items = Sequence[ExperimentSummary]
MAX_NAMES = 12
"""Maximum number of runs that a dialog names per experiment; the others are counted."""
IMPORT: Final = "import_file"


@dataclass(frozen=True)
class Action:
    """One action on experiments.

    Attributes:
        applies: true, or runs that it would change, if the action makes sense for these experiments.
        writes: whether it changes the database, which may be read-only.
    """

    label: str
    icon: str
    applies: Callable[[Items], bool | list[int]]
    do: Callable[[Items], None]
    writes: bool = True

    @property
    def text(self) -> str:
        """The action as a menu shows it."""
        return f":material/{self.icon}: {self.label}"

    def possible(self, items: Items) -> bool:
        return bool(items and self.applies(items)) and (session.writable() or not self.writes)


def run_ids(items: Items, condition: Callable[[RunRow], bool]) -> list[int]:
    """Return the runs that meet a condition."""
    return [r.id for i in items for r in i.row.runs if condition(r)]


def single(items: Items) -> bool:
    """Return whether there is exactly one experiment."""
    return len(items) == 1


def _open(items: Items, page: str, parameter: str) -> None:
    st.switch_page(f"pages/{page}.py", query_params={parameter: [str(i.row.id) for i in items]})


def _has_failed(run: RunRow) -> bool:
    return run.state == "failed" and background.can_resume(run)


def _archive(items: Items) -> None:
    def put(archived: bool) -> None:
        for i in items:
            session.store().experiments.edit(i.row.id, archived=archived)

    are_archived = all(i.row.archived for i in items)
    put(not are_archived)
    done = f"{first_few([i.row.name for i in items], 2)}: {'unarchived' if are_archived else 'archived'}"
    markup.offer_undo(done, partial(put, are_archived))
    st.rerun()


def _resume(items: Items) -> None:
    changed = session.store().runs.resume(run_ids(items, background.can_resume))
    text = f"{counted(len(changed), 'run')} queued to continue after the last finished round"
    markup.offer_undo(text, partial(session.store().runs.stop, changed))
    st.rerun()


def _run_next(items: Items) -> None:
    moved = session.store().queue.move([i.row.id for i in items], by="experiment_id")
    st.toast(f"{counted(len(moved), 'run')} will start next.")
    st.rerun()


@markup.dialog("Stop these runs?")
def confirm_stop(items: Items) -> None:
    """Ask before stopping runs, naming them."""
    about = "Their finished rounds are kept and they can be resumed; the current round is discarded."
    if ids := _confirmed_runs(items, background.can_stop, about, "Stop"):
        session.store().runs.stop(ids)
        st.rerun()


@markup.dialog("Restart the failed runs?")
def confirm_retry(items: Items) -> None:
    """Ask before deleting the records of failed runs, naming the runs."""
    about = (
        "Their records are deleted, and they start again from round 0. To continue after the last finished "
        "round, use *Resume* instead."
    )
    if ids := _confirmed_runs(items, _has_failed, about, "Restart"):
        session.store().runs.resume(ids, restart=True)
        st.rerun()


def _confirmed_runs(items: Items, condition: Callable[[RunRow], bool], about: str, action: str) -> list[int]:
    """Name the runs that meet a condition, and return them once the action on them is confirmed."""
    ids = run_ids(items, condition)
    for item in items:
        names = [f"{r.label} (seed {r.seed})" for r in item.row.runs if r.id in ids]
        if names:
            st.markdown(f"**{markup.md(item.row.name)}**: {markup.md(first_few(names, MAX_NAMES))}")
    st.caption(about)
    return ids if markup.confirmed(action, action.lower()) else []


@markup.dialog("Edit experiment")
def edit(items: Items) -> None:
    """Edit name, tags and notes; results cannot be edited."""
    row = items[0].row
    name = st.text_input("Name", value=row.name, max_chars=500, key=f"edit_name_{row.id}")
    given = markup.tags_and_notes(row, "edit")
    if st.button("Save", type="primary", key="edit_saved"):
        session.store().experiments.edit(row.id, name=name, **given)
        st.rerun()


def changed_tags(tags: Sequence[str], shared: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Return an experiment's tags after the choice for several; those that not all of them share stay."""
    remaining = [name for name in tags if name in chosen or name not in shared]
    return list(dict.fromkeys([*remaining, *chosen]))


@markup.dialog("Tags")
def tag(items: Items) -> None:
    """Give several experiments tags, and take tags away, which group the list."""
    every = session.store().experiments.tags()
    shared = [name for name in every if all(name in i.row.tags for i in items)]
    chosen = st.multiselect(
        f"Tags that {'this experiment has' if single(items) else 'all of them have'}",
        every,
        default=shared,
        accept_new_options=True,
        key="tags_chosen",
        placeholder="choose, or type a new one",
    )
    st.caption("Tags serve as folders: choose one beside the search to list its experiments only.")
    if st.button("Save", type="primary", key="tags_saved"):
        for i in items:
            session.store().experiments.edit(i.row.id, tags=changed_tags(i.row.tags, shared, chosen))
        st.rerun()


@markup.dialog("Delete this experiment?")
def confirm_delete(items: Items) -> None:
    """Ask for the name before deleting an experiment, and offer to archive it instead."""
    row = items[0].row
    number = counted(len(row.runs), "run")
    st.write(f"This deletes {number} with all rounds, logs and checkpoints, and cannot be undone.")
    st.markdown(f"**{markup.md(row.name)}**")
    if not row.archived:
        st.caption("Archiving only hides the experiment from the list.")
    typed = st.text_input("Type the name of the experiment to delete it", key=f"delete_name_{row.id}")
    confirmed = " ".join(typed.split()) == " ".join(row.name.split())
    with st.container(horizontal=True):
        if not row.archived and st.button("Archive instead", type="primary", icon=":material/archive:"):
            _archive(items)
        sure = st.button("Delete", icon=":material/delete:", disabled=not confirmed, key="delete_confirmed")
    if sure:
        session.store().experiments.delete(row.id)
        st.rerun()


@markup.dialog("Delete this damaged experiment?")
def confirm_delete_damaged(item: UnreadableExperiment) -> None:
    """Ask before deleting an experiment that cannot be read."""
    st.write("This deletes its runs with all rounds, logs and checkpoints, and cannot be undone.")
    st.caption("A backup may still hold it: see `fedlens restore` on the command line.")
    if st.button("Delete", icon=":material/delete:", key="delete_damaged_confirmed"):
        session.store().experiments.delete(item.id)
        st.rerun()


ACTIONS = (
    Action("Live", "monitoring", single, partial(_open, page="live", parameter="id"), writes=False),
    Action("Compare", "compare", bool, partial(_open, page="compare", parameter="ids"), writes=False),
    Action("Clone", "content_copy", single, partial(_open, page="new", parameter="clone")),
    Action("Edit", "edit", single, edit),
    Action("Tag", "sell", bool, tag),
    Action("Stop", "stop_circle", lambda items: run_ids(items, background.can_stop), confirm_stop),
    Action(
        "Run next", "low_priority", lambda items: run_ids(items, lambda run: run.state == "queued"), _run_next
    ),
    Action("Resume", "resume", lambda items: run_ids(items, background.can_resume), _resume),
    Action("Retry failed", "restart_alt", lambda items: run_ids(items, _has_failed), confirm_retry),
    Action("Archive", "archive", lambda items: not all(i.row.archived for i in items), _archive),
    Action("Unarchive", "unarchive", lambda items: all(i.row.archived for i in items), _archive),
    Action("Delete", "delete", single, confirm_delete),
)


def bar(items: Items) -> None:
    """Draw a button for every action that is possible for the selection."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{len(items):,} selected**", width="content")
        for action in ACTIONS:
            if action.possible(items) and st.button(action.label, icon=f":material/{action.icon}:"):
                action.do(items)


def show_imports() -> None:
    """Show running imports, and the result of each finished one once."""
    store = session.store()
    for task in store.tasks.recent(IMPORT):
        if task.status != "done":
            background.show_task(task, f"Import of {task.args['name']}")
        elif task.result is not None and session.writable():
            try:
                store.tasks.delete(task.id)
            except FedLensError:
                continue  # another open page has shown and deleted it
            st.toast(markup.md(f"{task.args['name']}: {task.result['says']}"))


@markup.dialog("Import results")
def import_results() -> None:
    """Ask for an exported experiment (JSON) or a table of the user's own results (CSV)."""
    st.write(
        "Choose the JSON file of an experiment (exported on *Compare*), or a CSV file with the columns "
        "`method, seed, round, model, test_set, correct, total`."
    )
    upload = st.file_uploader("File", type=["json", "csv"], key="import_file")
    typed = st.text_input(
        "Or a path on this machine",
        key="import_path",
        placeholder="/data/results.csv",
        help="For files of any size; the file is read in place",
        disabled=upload is not None,
    ).strip()
    chosen = upload.name if upload is not None else typed
    name = dataset = ""
    if is_csv(chosen):
        hint = "an existing experiment to add to, or a new name"
        name = st.text_input("Experiment", key="import_name", placeholder=hint).strip()
        dataset = st.text_input("Data set of these results", value="own data", key="import_data").strip()
    ready = bool(chosen) and (not is_csv(chosen) or bool(name))
    if st.button("Import", type="primary", disabled=not ready, key="import_confirmed"):
        submit_import(chosen, None if upload is None else upload.getvalue(), name, dataset)
        st.rerun()


def is_csv(file: str) -> bool:
    """Return whether a file's name ends in .csv."""
    return file.lower().endswith(".csv")


def submit_import(name: str, upload: bytes | None, experiment: str = "", dataset: str = "") -> None:
    """Import a file in the background, a CSV file under the names of an experiment and a data set.

    Args:
        name: of the upload, which is copied to the folder of the task; without one, a path on this machine.
    """
    told = {"name": name, "experiment": experiment, "dataset": dataset}
    key = f"{'' if upload is None else hashlib.sha256(upload).hexdigest()} {json.dumps(told)}"
    if upload is None:
        file = user_path(name, "file")
        if not file.is_file():
            raise FedLensError(f"no file {name}; give the full path of a file on this machine", "file")
        if file.suffix.lower() not in (".json", ".csv"):
            raise FedLensError(f"{name} is neither .json nor .csv; give it the ending of its format", "file")
    else:
        file = session.store().tasks.folder(IMPORT, key) / f"upload.{'csv' if is_csv(name) else 'json'}"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(upload)
        except OSError as error:
            raise FedLensError(
                f"cannot store {name} in {file.parent}: {error.strerror}; free some space there"
            ) from error
    background.submit(IMPORT, key, {"file": str(file.resolve()), **told})
