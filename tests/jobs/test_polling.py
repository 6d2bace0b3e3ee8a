"""Eight sessions of the app read and write while a job records, and none meets a locked database."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedcore.results import progress
from fedcore.store import Store
from tests.support.jobs import wait_for

SESSIONS, SECONDS = 8, 2.0


def poll(db: Path, run_ids: list[int], number: int) -> None:
    """Read and write as the pages do at one poll."""
    progress.summaries_of(Store(db), Store(db).experiments.all())
    progress.run_progress(Store(db), Store(db).runs.get(run_ids))
    Store(db).runs.versions(run_ids)
    Store(db).queue.runs()
    Store(db).queue.slots()
    for run in run_ids:
        Store(db).cells.coded({run: [1]})
    Store(db).rounds.mean_accuracy(run_ids)
    Store(db).jobs.reconcile()
    Store(db).tasks.submit("check", f"session {number}", {})
    Store(db).tasks.recent()
    Store(db).experiments.edit(1, notes=f"session {number}")


@pytest.mark.slow
def test_eight_sessions_poll_while_a_job_writes(
    db: Path, queued: Callable[..., list[int]], supervise: Callable
) -> None:
    ids = queued(rounds=2000, seconds=0.005)
    supervise()
    wait_for(lambda: Store(db).runs.get(ids)[0].rounds_done >= 1)
    before = Store(db).runs.get(ids)[0].rounds_done
    end, errors, polls = time.monotonic() + SECONDS, [], [0] * SESSIONS

    def session(number: int) -> None:
        try:
            while time.monotonic() < end or polls[number] < 2:  # a busy machine takes longer
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
    run = Store(db).runs.get(ids)[0]
    assert run.state == "running" and run.rounds_done > before  # the job wrote on meanwhile
    Store(db).runs.stop(ids)
