import threading
from dataclasses import replace
from functools import partial

import pytest

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.events import Notice, Started
from fedcore.base.progress import Progress
from fedcore.jobs import handlers, job, process
from fedcore.jobs.job import Heartbeat
from fedcore.store import Store
from fedcore.store.database import run_folder, writing
from fedcore.store.jobs import LostClaim
from fedcore.store.liveness import new_owner
from tests.support import fake_engine
from tests.support.command_line import run
from tests.support.jobs import recorded, row, wait_for


def execute(db, handler=fake_engine.training, **options: object) -> tuple[int, str]:
    claimed = Store(db).jobs.claim(new_owner(), "cpu")
    with Heartbeat(Store(db), beat_seconds=0.05, look_seconds=0.01) as heartbeat:
        return claimed.id, job.execute(claimed, heartbeat, handler=handler, **options)


def test_a_failing_run_says_why_and_keeps_its_rounds(db, queued):
    (run_id,) = queued(rounds=5, fail_at=3)
    assert execute(db) == (run_id, "failed")
    run = row(db, run_id)
    assert run.status_text == "ZeroDivisionError: the fake engine was told to"
    assert "Traceback" in Store(db).runs.error(run_id)
    assert "Traceback" in Store(db).runs.log_path(run_id).read_text()
    assert run.rounds_done == 2 and run.last_test is not None


def test_bad_input_found_late_is_named_by_its_field(db, queued):
    (run_id,) = queued()

    def refuse(job):
        raise FedLensError("no file at x.pt; download it", "backbone.pretrained")
        yield

    assert execute(db, refuse) == (run_id, "failed")
    assert row(db, run_id).status_text == "backbone.pretrained: no file at x.pt; download it"
    assert Store(db).runs.error(run_id) is None, "one line is enough"


def test_a_run_on_the_cpu_says_why_the_gpu_was_not_used(db, queued, monkeypatch):
    (run_id,) = queued(rounds=1)
    monkeypatch.setattr(devices, "refused_gpus", lambda: ["NVIDIA H100 cannot be used (too old)"])
    assert execute(db) == (run_id, "done")
    said = [notice.message for notice in row(db, run_id).notices]
    assert said == ["trains on the CPU: NVIDIA H100 cannot be used (too old)", "a remark"]


def test_an_engine_that_forgets_the_end_is_a_failure(db, queued):
    (run_id,) = queued(forget_the_end=True)
    assert execute(db) == (run_id, "failed")
    assert "before its last round" in row(db, run_id).status_text


def test_a_stop_discards_the_unfinished_round(db, queued):
    (run_id,) = queued(rounds=50, seconds=0.05)

    def stop_at_three(event):
        if getattr(event, "round", 0) == 3:
            Store(db).runs.stop([run_id])

    assert execute(db, listen=stop_at_three) == (run_id, "stopped")
    run = row(db, run_id)
    assert (run.status, run.status_text) == ("stopped", "stopped as asked")
    assert Store(db).rounds.evaluated(run_id) == list(range(run.rounds_done + 1))
    assert 3 <= run.rounds_done < 50


def test_a_stop_before_the_first_step_is_heeded(db, queued):
    (run_id,) = queued(rounds=5)
    claimed = Store(db).jobs.claim(new_owner(), "cpu")
    Store(db).runs.stop([run_id])
    with Heartbeat(Store(db)) as heartbeat:
        assert job.execute(claimed, heartbeat, handler=fake_engine.training) == "stopped"
    assert row(db, run_id).rounds_done == 0


def test_a_process_asked_to_end_leaves_the_run_interrupted(db, queued):
    (run_id,) = queued(rounds=50, seconds=0.02)
    seen = []
    assert execute(db, listen=seen.append, terminated=lambda: len(seen) > 6) == (run_id, "interrupted")
    assert 0 < row(db, run_id).rounds_done < 50


def test_a_run_taken_away_is_not_written_to_again(db, queued):
    """A laptop that slept while another process declared its job dead."""
    (run_id,) = queued(rounds=50, seconds=0.05)
    taken = {}

    def take_away(event):
        if getattr(event, "round", 0) == 2 and not taken:
            with writing(db) as connection:
                connection.execute("UPDATE runs SET owner='other', attempt=attempt+1 WHERE id=?", [run_id])
            taken.update(recorded(db, run_id))

    assert execute(db, listen=take_away) == (run_id, "lost")
    run = row(db, run_id)
    assert (run.status, run.rounds_done) == ("running", 2)
    assert recorded(db, run_id) == taken


def test_the_heart_beats_for_its_runs_and_attempts_alone(db, queued):
    queued(seeds=(1, 2, 3))
    claims = [Store(db).jobs.claim("me", "cpu") for _ in range(2)]
    other = Store(db).jobs.claim("me", "cpu")  # the same owner's, and nobody works on it

    def beats() -> list[float]:
        return [r.heartbeat_at for r in Store(db).runs.get([claimed.id for claimed in claims])]

    first = beats()
    unseen = row(db, other.id).heartbeat_at
    earlier = replace(claims[1], attempt=0)
    with Heartbeat(Store(db), [*claims, earlier], beat_seconds=0.02, look_seconds=0.01) as heartbeat:
        heartbeat.watch(claims[0])
        wait_for(lambda: all(b > a for a, b in zip(first, beats(), strict=True)))
    last = beats()
    claims[0].finish("done")
    with Heartbeat(Store(db), claims, beat_seconds=0.02, look_seconds=0.01):
        wait_for(lambda: beats()[1] > last[1])
    assert Store(db).runs.get([claims[0].id])[0].status == "done"
    assert row(db, other.id).heartbeat_at == unseen


def test_progress_is_shown_and_cleared(db, queued):
    (run_id,) = queued(rounds=1)
    shown = []

    def look(event):
        if isinstance(event, Progress):
            shown.append(row(db, run_id).status_text)

    execute(db, listen=look)
    assert shown == ["encoding 3/3"]
    assert row(db, run_id).status_text is None


def test_resuming_reuses_the_environment_and_the_newest_checkpoint(db, queued):
    (run_id,) = queued(rounds=6, fail_at=4)
    assert execute(db) == (run_id, "failed")
    Store(db).runs.resume([run_id])
    seen = {}

    def spy(run, **options):
        seen.update(options)
        yield from fake_engine.train(
            run.model_copy(update={"method": run.method.model_copy(update={"config": {}})}), **options
        )

    assert execute(db, partial(handlers.train, engine=spy)) == (run_id, "done")
    assert seen["environment"] == {"threads": 1, "chunk": 32}
    assert seen["resume_from"].endswith("round-3.safetensors")
    assert Store(db).rounds.evaluated(run_id) == list(range(7))


def test_the_next_seed_begins_with_what_fitted_into_the_gpus_memory(db, queued):
    first, second = queued(seeds=(1, 2), rounds=2)
    fitted, seen = {"chunk": 4, "passes_halved": 2}, []

    def engine(run, **options):
        seen.append(options["environment"])
        for event in fake_engine.train(run, **options):
            yield event
            if isinstance(event, Started):
                yield Notice("out of memory: now 4 clients at once", repeats_exactly=False, fitted=fitted)

    for number in (first, second):
        assert execute(db, partial(handlers.train, engine=engine)) == (number, "done")
    assert seen == [None, fitted]
    assert Store(db).runs.environment(first) == {"threads": 1, **fitted}


def test_work_goes_on_with_the_experiment_and_a_failure_stays_alone(db, queued):
    mine = queued(methods=3, rounds=3, fail_at=2)
    others = queued(rounds=2)
    claimed = Store(db).jobs.claim(new_owner(), "cpu")
    done = process.work(claimed, "cpu", handler=fake_engine.training, revive=lambda store: None)
    assert done == "done"
    assert [row(db, i).status for i in mine] == ["failed", "done", "done"]
    assert [row(db, i).status for i in others] == ["queued"]


def test_a_run_that_is_spread_over_devices_is_followed_by_none(db, queued, monkeypatch):
    """The supervisor has to check first that the devices have room for the next run."""
    monkeypatch.setattr(process, "work", partial(process.work, revive=lambda store: None))
    mine = queued(methods=2, rounds=2)
    assert process.run_process(Store(db).jobs.claim(new_owner(), "cpu"), "cpu", fake_engine.training) == 0
    assert sorted(row(db, i).status for i in mine) == ["done", "queued"]


def test_a_worker_that_a_spread_run_replaces_is_started_as_it_was(db, monkeypatch):
    started: list[list[str]] = []

    def work(claim, device, *, revive, **_):
        revive(Store(db))
        return "done"

    monkeypatch.setattr(process, "work", work)
    monkeypatch.setattr(process, "ensure_worker", lambda store, command: started.append(list(command)))
    told = ["--claim", "train", 1, 1, "--owner", "somebody", "--db", db]
    assert run("job", *told, "--over", 2) == run("job", *told) == 0
    assert started == [["fedcore", "worker", "--over", "2", "--db"], ["fedcore", "worker", "--db"]]


def test_a_process_that_can_start_no_thread_leaves_its_run_interrupted(db, queued, monkeypatch):
    (run_id,) = queued()
    claimed = Store(db).jobs.claim(new_owner(), "cpu")

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert process.run_process(claimed, "cpu") == 0
    assert row(db, run_id).status == "interrupted"
    assert "the system refuses another process or thread" in row(db, run_id).status_text


def test_a_claim_that_is_not_ours_trains_nothing(db, queued):
    (run_id,) = queued()
    claimed = Store(db).jobs.claim("somebody", "cpu")
    thief = replace(claimed, owner="thief")
    assert process.work(thief, "cpu", handler=fake_engine.training) == "lost"
    with pytest.raises(LostClaim):
        thief.finish("done")
    assert row(db, run_id).status == "running"


def test_a_checkpoint_of_round_0_without_its_round_is_not_resumed_from(db, queued):
    (run_id,) = queued(rounds=2)
    claimed = Store(db).jobs.claim(new_owner(), "cpu")
    folder = run_folder(db, run_id)
    folder.mkdir(parents=True)
    (folder / "round-0.safetensors").write_text("0 a state nobody recorded")
    assert not Store(claimed.db).runs.checkpoints(claimed.id)
    claimed.finish("interrupted", "its process ended")
    Store(db).runs.resume([run_id])
    assert execute(db) == (run_id, "done")
    assert Store(db).rounds.evaluated(run_id) == [0, 1, 2]


def test_a_recorded_round_0_is_resumed_from(db, queued):
    (run_id,) = queued(rounds=2, fail_at=1)
    assert execute(db) == (run_id, "failed")
    Store(db).runs.resume([run_id])
    found = Store(db).runs.checkpoints(run_id)
    assert [round_ for round_, _ in found] == [0]
