"""The actions on experiments, for the menu of a row and the buttons below the table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import streamlit as st

from fedcore.base.progress import counted, first_few
from fedcore.results.progress import ExperimentSummary
from fedcore.store import RunRow
from fedcore.store.experiments import UnreadableExperiment
from pages.widgets import background, markup, session

Items = Sequence[ExperimentSummary]
MAX_NAMES = 12
"""Maximum number of runs that a dialog names per experiment; the others are counted."""


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

    def possible(self, items: Items) -> bool:
        return bool(items and self.applies(items)) and (session.writable() or not self.writes)


def run_ids(items: Items, condition: Callable[[RunRow], bool]) -> list[int]:
    """Return the runs that meet a condition."""
    return [r.id for i in items for r in i.row.runs if condition(r)]


def single(items: Items) -> bool:
    """Return whether there is exactly one experiment."""
    return len(items) == 1


def _ids(items: Items) -> list[str]:
    return [str(i.row.id) for i in items]


def _has_failed(run: RunRow) -> bool:
    return run.state == "failed" and background.can_resume(run)


def _archive(items: Items) -> None:
    are_archived = all(i.row.archived for i in items)
    for i in items:
        session.store().experiments.edit(i.row.id, archived=not are_archived)
    st.rerun()


def _resume(items: Items) -> None:
    changed = session.store().runs.resume(run_ids(items, background.can_resume))
    st.toast(f"{counted(len(changed), 'run')} queued to continue after the last finished round.")
    st.rerun()


def _run_next(items: Items) -> None:
    moved = session.store().queue.move_experiments([i.row.id for i in items])
    st.toast(f"{counted(len(moved), 'run')} will start next.")
    st.rerun()


@markup.dialog("Stop these runs?")
def confirm_stop(items: Items) -> None:
    """Ask before stopping runs, naming them."""
    ids = run_ids(items, background.can_stop)
    _name_runs(items, ids)
    st.caption("Their finished rounds are kept and they can be resumed; the current round is discarded.")
    if markup.confirmed("Stop", "stop"):
        session.store().runs.stop(ids)
        st.rerun()


@markup.dialog("Restart the failed runs?")
def confirm_retry(items: Items) -> None:
    """Ask before deleting the records of failed runs, naming the runs."""
    ids = run_ids(items, _has_failed)
    _name_runs(items, ids)
    st.caption(
        "Their records are deleted, and they start again from round 0. To continue after the last finished "
        "round, use *Resume* instead."
    )
    if markup.confirmed("Restart", "retry"):
        session.store().runs.retry(ids)
        st.rerun()


def _name_runs(items: Items, ids: Sequence[int]) -> None:
    for item in items:
        names = [f"{r.label} (seed {r.seed})" for r in item.row.runs if r.id in ids]
        if names:
            st.markdown(f"**{markup.md(item.row.name)}**: {markup.md(first_few(names, MAX_NAMES))}")


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
    every = sorted({name for e in session.store().experiments.all(include_archived=True) for name in e.tags})
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
    Action(
        "Live",
        "monitoring",
        single,
        lambda items: st.switch_page("pages/live.py", query_params={"id": _ids(items)[0]}),
        writes=False,
    ),
    Action(
        "Compare",
        "compare",
        bool,
        lambda items: st.switch_page("pages/compare.py", query_params={"ids": _ids(items)}),
        writes=False,
    ),
    Action(
        "Clone",
        "content_copy",
        single,
        lambda items: st.switch_page("pages/new.py", query_params={"clone": _ids(items)[0]}),
    ),
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
OPEN = ":material/monitoring: Live"
"""Label of the action that a click on an experiment's name runs."""


def menu(item: ExperimentSummary) -> list[str]:
    """Return the labels of a row's menu."""
    return [f":material/{a.icon}: {a.label}" for a in ACTIONS if a.possible([item])]


def chosen(label: str) -> Action:
    """Return the action that a label of ``menu`` names."""
    return next(a for a in ACTIONS if label == f":material/{a.icon}: {a.label}")


def bar(items: Items) -> None:
    """Draw a button for every action that is possible for the selection."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{len(items):,} selected**", width="content")
        for action in ACTIONS:
            if action.possible(items) and st.button(action.label, icon=f":material/{action.icon}:"):
                action.do(items)
