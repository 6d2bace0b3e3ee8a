"""Eight sessions of the app ask at once while a job writes: nobody meets a locked database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from fedcore import store
from fedcore.jobs import slots, tasks
from fedcore.results import overview, progress
from fedcore.store import liveness, queries
from tests.support.jobs import wait_for

SESSIONS, SECONDS = 8, 2.0


def poll(db: Path, run_ids: list[int], number: int) -> None:
    """What the pages ask and do at one poll, writes of theirs included."""
    overview.experiment_summaries(db)
    progress.run_progress(db, queries.runs(db, run_ids))
    queries.round_tokens(db, run_ids)
    queries.waiting(db)
    slots.slots(db)
    for run in run_ids:
        queries.heatmap(db, run)
    queries.curves(db, run_ids)
    liveness.reconcile(db)
    tasks.submit(db, "check", f"session {number}", {})
    tasks.recent(db)
    store.edit(db, 1, notes=f"session {number}")


def test_eight_sessions_poll_while_a_job_writes(
    db: Path, queued: Callable[..., list[int]], supervise: Callable
) -> None:
    ids = queued(rounds=2000, seconds=0.005)
    supervise()
    wait_for(lambda: queries.runs(db, ids)[0].rounds_done >= 1)
    before = queries.runs(db, ids)[0].rounds_done
    end, errors, polls = time.monotonic() + SECONDS, [], [0] * SESSIONS

    def session(number: int) -> None:
        try:
            while time.monotonic() < end:
                poll(db, ids, number)
                polls[number] += 1
        except Exception as error:  # noqa: BLE001 - a thread's exception is the test's to report
            errors.append(error)

    threads = [threading.Thread(target=session, args=(i,)) for i in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert min(polls) >= 2
    run = queries.runs(db, ids)[0]
    assert run.state == "running" and run.rounds_done > before  # the job wrote on meanwhile
    store.stop(db, ids)
