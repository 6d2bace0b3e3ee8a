"""The button of the page Run that queues a run again, from its last round or from the beginning."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from fedcore import jobs
from fedcore.base.errors import FedLensError
from fedcore.base.progress import counted
from fedcore.config import MethodEntry
from fedcore.methods import consent, registry
from fedcore.store import RunRow
from pages.forms import methods
from pages.widgets import background, markup, session


class ChangedFile(NamedTuple):
    """The file of a run's method, with another content than the one that the run was planned with."""

    path: Path
    content: bytes

    @property
    def agreed(self) -> bool:
        """Whether the user has agreed to run this content."""
        return consent.is_agreed(self.path, consent.digest(self.content))


class Again(NamedTuple):
    """What queueing a run again does.

    Attributes:
        restarts: whether its recorded rounds are deleted, because it cannot continue after them.
        changed: the file of its method, if that has changed.
        effect: a sentence without its full stop.
        of_own_file: whether its method comes from a file of the user's own.
    """

    restarts: bool
    changed: ChangedFile | None
    effect: str
    of_own_file: bool


def offer(run: RunRow) -> Again | None:
    """Return what queueing a run again would do; None for a run that has not ended early."""
    if not background.can_resume(run):
        return None
    method = None
    with suppress(FedLensError):  # the page shows what it can of a run whose config is damaged
        method = session.store().runs.config(run.id).method
    own_file = method is not None and method.file is not None
    changed = None if method is None else _changed_file(method)
    checkpoint = session.store().runs.newest_checkpoint(run.id)
    start = "*Restart* trains it again from the beginning"
    if not run.rounds_done:
        return Again(False, changed, "*Resume* starts from the beginning", own_file)
    if changed is not None:
        return Again(True, changed, f"{start}, with the file of its method as it is now", own_file)
    if checkpoint is None:
        return Again(True, None, f"{start}, because its checkpoints are gone", own_file)
    return Again(False, None, f"*Resume* continues after round {checkpoint[0]}", own_file)


def _changed_file(method: MethodEntry) -> ChangedFile | None:
    if method.file is not None:
        with suppress(FedLensError):  # the run itself reports a missing file
            changed = ChangedFile(*registry.read(method.file))
            return changed if consent.digest(changed.content) != method.sha256 else None
    return None


def draw_button(run: RunRow, again: Again) -> None:
    """Draw the button, which asks first if rounds would be deleted or a new file would run."""
    label, icon = ("Restart", "restart_alt") if again.restarts else ("Resume", "resume")
    if st.button(label, icon=f":material/{icon}:", disabled=not session.writable(), key="run_again"):
        if again.restarts or (again.changed and not again.changed.agreed):
            _confirm(run, again)
        else:
            _queue(run, again)


@markup.dialog("Start this run again?")
def _confirm(run: RunRow, again: Again) -> None:
    unread = again.changed if again.changed and not again.changed.agreed else None
    if unread is not None:
        methods.show_file(unread.path, unread.content, "This run would use the changed method file")
    if again.restarts:
        st.caption(
            f"The records of {counted(run.rounds_done, 'round')} are deleted, and the run starts again from "
            "round 0. To keep them, *Clone* the run instead."
        )
    if markup.confirmed("Restart" if unread is None else "I have read it: run it", "run_again"):
        if unread is not None:
            consent.agree(unread.path, consent.digest(unread.content))
        _queue(run, again)


def _queue(run: RunRow, again: Again) -> None:
    store = session.store()
    if again.restarts:
        store.runs.retry([run.id])
    else:
        store.runs.resume([run.id])
    jobs.ensure_worker(store)
    st.rerun()
