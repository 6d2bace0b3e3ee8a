import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedcore.base import devices
from fedcore.base.errors import FedLensError
from fedcore.base.progress import result_of
from fedcore.cli import main as cli
from fedcore.jobs import launcher
from fedcore.jobs import supervisor as worker
from fedcore.jobs.handlers import encode_data, load_handler
from fedcore.jobs.launcher import PROCESS_LOG, ThisMachine
from fedcore.store import Store, TaskRow
from fedcore.store.database import reading, writing
from fedcore.store.jobs import ARRAYS_NAME, TASKS, Jobs, LostClaim
from fedcore.store.liveness import new_owner
from tests.support import fake_engine, fill
from tests.support.jobs import execute_next, wait_for


def do(db: Path, task_id: int) -> str:
    """Execute a queued task in this process."""
    return execute_next(db, TASKS, number=task_id, handler=fake_engine.handle)


def status(db: Path, task_id: int) -> str:
    return Store(db).tasks.get(task_id).status


def pid(db: Path, task_id: int) -> int:
    with reading(db) as connection:
        return connection.execute("SELECT pid FROM tasks WHERE id=?", [task_id]).fetchone()[0]


def test_a_task_is_done_once_and_its_result_stays(db):
    assert Store(db).tasks.find("check", "a") is None
    number = Store(db).tasks.submit("check", "a", {"result": 5, "steps": 3, "arrays": 4})
    assert Store(db).tasks.find("check", "a").status == "queued"
    assert do(db, number) == "done"
    task = Store(db).tasks.find("check", "a")
    assert (task.status, task.result, task.error, task.done, task.total) == ("done", {"sum": 5}, None, 3, 3)
    assert task.ended and task.finished_at >= task.started_at >= task.created_at
    assert task.arrays()["squares"].tolist() == [0, 1, 4, 9]
    assert Store(db).tasks.submit("check", "a", {"result": 6}) == number
    assert Store(db).tasks.find("check", "a").result == {"sum": 5}


def test_the_same_question_is_asked_once_others_are_others(db):
    first = Store(db).tasks.submit("check", "a", {})
    assert Store(db).tasks.submit("check", "a", {}) == first
    assert (
        len({first, Store(db).tasks.submit("check", "b", {}), Store(db).tasks.submit("download", "a", {})})
        == 3
    )
    assert [t.key for t in Store(db).tasks.recent("check")] == ["b", "a"]
    assert len(Store(db).tasks.recent()) == 3
    with pytest.raises(FedLensError, match="unknown kind of task 'chekc'; choose one of check, download"):
        Store(db).tasks.submit("chekc", "a", {})


def test_a_task_of_an_earlier_version_fails_with_what_to_do_instead():
    for kind, remedy in (("encode", "use `fedlens data encode NAME`"), ("map", "delete the task")):
        with pytest.raises(FedLensError, match=f"no jobs of the kind '{kind}'; {remedy}"):
            load_handler(kind)


@pytest.mark.parametrize("value", [Path("x"), {1, 2}, float("nan")])
def test_arguments_that_are_not_json_are_refused(db, value):
    with pytest.raises((TypeError, ValueError), match="JSON"):
        Store(db).tasks.submit("check", "a", {"root": value})
    assert Store(db).tasks.recent() == []


@pytest.mark.parametrize("stored", ["{", "7", "[1]"])
def test_a_task_whose_stored_arguments_are_damaged_fails_in_one_line(db, stored):
    number = Store(db).tasks.submit("check", "a", {})
    fill.alter(db, f"UPDATE tasks SET args='{stored}'")
    assert do(db, number) == "failed"
    with reading(db) as connection:
        (error,) = connection.execute("SELECT error FROM tasks").fetchone()
    assert error.startswith(f"what task {number} was asked for cannot be read") and "\n" not in error


def test_a_done_one_is_done_again_only_if_asked(db):
    number = Store(db).tasks.submit("check", "a", {"result": 1, "arrays": 2})
    do(db, number)
    assert Store(db).tasks.submit("check", "a", {"result": 2}, again=True) == number
    task = Store(db).tasks.find("check", "a")
    assert (task.status, task.result, task.done, task.started_at) == ("queued", None, 0, None)
    do(db, number)
    task = Store(db).tasks.find("check", "a")
    assert task.result == {"sum": 2}
    assert task.arrays() == {}  # the first answer's file is not the second's


@pytest.mark.parametrize("place", ["row", ARRAYS_NAME])
def test_a_damaged_result_is_a_failed_task_that_is_done_again(db, place):
    """Most flipped bits ended in a raw error of zipfile or a KeyError on a page, some in another number."""
    number = Store(db).tasks.submit("check", "a", {"result": 1, "arrays": 40})
    do(db, number)
    task = Store(db).tasks.get(number)

    def write(content: bytes) -> TaskRow:
        if place == "row":
            with writing(db) as database:
                database.execute("UPDATE tasks SET result=CAST(? AS TEXT)", [content])
        else:
            (task.folder / place).write_bytes(content)
        return Store(db).tasks.find("check", "a")

    with reading(db) as connection:
        (row,) = connection.execute("SELECT CAST(result AS BLOB) FROM tasks").fetchone()
    whole = row if place == "row" else (task.folder / place).read_bytes()
    draw = random.Random(7)
    flipped = [bytearray(whole) for _ in range(60)]
    for content in flipped:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    for content in (*flipped, whole[: len(whole) // 2], bytes(len(whole))):
        found = write(bytes(content))
        assert (found.status, found.result) == ("failed", None), content
        assert found.error.startswith("its result was changed on the disk")
    assert Store(db).tasks.submit("check", "a", {"result": 3}) == number
    assert do(db, number) == "done" and Store(db).tasks.get(number).result == {"sum": 3}


def test_a_failure_is_one_line_the_traceback_is_in_the_log(db):
    number = Store(db).tasks.submit("check", "a", {"fail": True})
    assert do(db, number) == "failed"
    assert Store(db).tasks.find("check", "a").error == "ZeroDivisionError: the fake task was told to"
    assert "Traceback" in Store(db).tasks.find("check", "a").log.read_text()
    assert Store(db).tasks.submit("check", "a", {"result": 3}) == number  # failed ones are queued anew
    assert do(db, number) == "done"
    assert Store(db).tasks.find("check", "a").error is None


@pytest.mark.parametrize("last", [None, {"loss": float("nan")}])
def test_what_is_no_result_fails(db, last):
    def handler(job):
        yield from ()
        return last

    number = Store(db).tasks.submit("check", "a", {})
    assert execute_next(db, TASKS, handler=handler) == "failed"
    assert status(db, number) == "failed"


def test_the_one_that_waits_longest_is_claimed_first_and_by_one_only(db):
    first, second = Store(db).tasks.submit("check", "a", {}), Store(db).tasks.submit("check", "b", {})
    claims = [Store(db).jobs.claim(new_owner(), "tasks", TASKS) for _ in range(3)]
    assert [c and c.id for c in claims] == [first, second, None]


def test_who_lost_a_task_cannot_write_to_it(db):
    number = Store(db).tasks.submit("check", "a", {})
    lost = Store(db).jobs.claim(new_owner(), "tasks", TASKS)
    assert Store(db).jobs.reconcile(stale=0, table=TASKS) == [number]
    Store(db).tasks.submit("check", "a", {})
    second = Store(db).jobs.claim(new_owner(), "tasks", TASKS)
    assert second.attempt == 2
    with pytest.raises(LostClaim, match=f"task {number}, attempt 1, is no longer"):
        lost.finish("done", result={"sum": 1})
    second.finish("done", result={"sum": 2})
    assert Store(db).tasks.get(number).result == {"sum": 2}


def test_forgetting_removes_row_and_files_but_nothing_that_runs(db):
    number = Store(db).tasks.submit("check", "a", {"arrays": 2})
    do(db, number)
    folder = Store(db).tasks.get(number).folder
    assert folder.is_dir()
    Store(db).tasks.delete(number)
    assert not folder.exists()
    with pytest.raises(FedLensError, match=f"no task {number}"):
        Store(db).tasks.delete(number)
    number = Store(db).tasks.submit("check", "a", {})
    claimed = Store(db).jobs.claim(new_owner(), "tasks", TASKS)
    claimed.begin()
    with pytest.raises(FedLensError, match="is running; stop it first"):
        Store(db).tasks.delete(number)


def test_tasks_go_with_their_run(db, queued):
    (run_id,) = queued()
    number = Store(db).tasks.submit("analyse", f"confusion:{run_id}", {"arrays": 2}, run_id)
    do(db, number)
    folder = Store(db).tasks.get(number).folder
    assert f"run-{run_id}-" in str(folder) and folder.is_dir()
    Store(db).runs.stop([run_id])
    Store(db).runs.resume([run_id], restart=True)
    assert Store(db).tasks.recent() == []
    assert not folder.exists()
    Store(db).tasks.submit("analyse", "again", {}, run_id)
    Store(db).experiments.delete(1)
    assert Store(db).tasks.recent() == []


def test_progress_and_time_left(db):
    number = Store(db).tasks.submit("check", "a", {})
    claimed = Store(db).jobs.claim(new_owner(), "tasks", TASKS)
    claimed.begin()
    assert Store(db).tasks.get(number).seconds_left is None
    claimed.progress(fake_engine.Progress("reading", 0, 100))
    began = Store(db).tasks.get(number).started_at
    claimed.progress(fake_engine.Progress("reading", 25, 100))
    task = Store(db).tasks.get(number)
    assert (task.status_text, task.share, task.status) == ("reading", 0.25, "running")
    assert 0 <= task.seconds_left < 5
    assert task.started_at == began
    claimed.progress(fake_engine.Progress("comparing", 1, 10))  # another part has another pace
    assert Store(db).tasks.get(number).started_at > began


def test_the_supervisor_does_tasks_beside_training(db, queued, step_until):
    (run_id,) = queued(rounds=200, seconds=0.05)
    step_until()
    numbers = [Store(db).tasks.submit("check", key, {"result": i, "steps": 2}) for i, key in enumerate("ab")]
    step_until(lambda: {status(db, n) for n in numbers} == {"done"})
    assert [Store(db).tasks.get(n).result["sum"] for n in numbers] == [0, 1]
    assert Store(db).runs.stop([run_id]) == [
        run_id
    ]  # the training, which takes the only slot, went on meanwhile


@pytest.mark.slow
def test_stop_is_heard_between_steps(db, step_until):
    number = Store(db).tasks.submit("check", "a", {"steps": 1000, "seconds": 0.02})
    step_until()
    wait_for(lambda: Store(db).tasks.get(number).done >= 1)
    assert Store(db).tasks.stop(number)
    assert status(db, number) == "stopping"
    wait_for(lambda: status(db, number) == "stopped")
    assert Store(db).tasks.get(number).result is None


def test_killed_is_interrupted_at_once_and_may_be_asked_again(db, step_until):
    number = Store(db).tasks.submit("check", "a", {"steps": 1000, "seconds": 0.5})
    step_until()
    wait_for(lambda: Store(db).tasks.get(number).done >= 1)
    os.kill(pid(db, number), signal.SIGKILL)
    wait_for(lambda: status(db, number) == "interrupted")
    step_until(lambda: "signal 9" in (Store(db).tasks.get(number).error or ""))
    assert Store(db).tasks.submit("check", "a", {"result": 7}) == number
    assert do(db, number) == "done"


def test_how_a_process_ended_is_known_even_if_it_ends_while_rows_are_looked_at(db, monkeypatch):
    def spawn(claimed, pool):
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    number = Store(db).tasks.submit("check", "a", {})
    supervisor = worker.Supervisor(Store(db), ThisMachine(["cpu"], spawn))
    supervisor.step()
    (child,) = supervisor._children.values()
    reconcile = Jobs.reconcile

    def then_killed(*args):
        found = reconcile(*args)
        child.job.process.kill()
        child.job.process.wait(10)
        return found

    monkeypatch.setattr(Jobs, "reconcile", then_killed)
    supervisor.step()
    monkeypatch.setattr(Jobs, "reconcile", reconcile)
    supervisor.step()
    child.job.process.communicate()
    assert "signal 9" in Store(db).tasks.get(number).error


@pytest.mark.slow
def test_the_next_supervisor_adopts_a_task(db, supervise):
    number = Store(db).tasks.submit("check", "a", {"steps": 60, "seconds": 0.02, "result": 4})
    first = supervise()
    wait_for(lambda: Store(db).tasks.get(number).done >= 1)
    worked_by = pid(db, number)
    first.kill()
    first.wait(5)
    supervise()
    assert pid(db, number) == worked_by
    wait_for(lambda: status(db, number) == "done")
    with reading(db) as connection:
        assert connection.execute("SELECT attempt FROM tasks").fetchone()[0] == 1


@pytest.mark.slow
def test_sigterm_to_the_supervisor_ends_its_tasks(db, supervise):
    number = Store(db).tasks.submit("check", "a", {"steps": 1000, "seconds": 0.02})
    handle = supervise()
    wait_for(lambda: Store(db).tasks.get(number).done >= 1)
    handle.terminate()
    assert handle.wait(10) == 0
    assert status(db, number) == "interrupted"


def test_two_supervisors_never_do_one_task_twice(db):
    """Two supervisors that each believe to be the only one: the claim decides."""
    spawned = []

    def spawn(claimed, pool):
        spawned.append(claimed.id)
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    supervisors = [worker.Supervisor(Store(db), ThisMachine(["cpu"], spawn)) for _ in range(2)]
    numbers = [Store(db).tasks.submit("check", key, {}) for key in "abcde"]
    try:
        for supervisor in supervisors:
            assert supervisor.step()
        assert spawned == numbers[: launcher.TASK_SLOTS]  # the second one counts the first one's processes
    finally:
        for supervisor in supervisors:
            for child in supervisor._children.values():
                if child.job.process is not None:
                    child.job.process.communicate()


def two_images(folder: Path) -> Path:
    """A list of two images, an owl and a dog."""
    from PIL import Image

    for i in range(2):
        Image.new("RGB", (96, 96), (90 * i, 9, 9)).save(folder / f"{i}.jpg")
    path = folder / "list.csv"
    path.write_text("path,what\n0.jpg,owl\n1.jpg,dog\n")
    return path


def test_columns_and_decoding_reach_a_check_and_an_encoding(db, tmp_path):
    """What is encoded ahead is what a run with the same ``[data]`` looks for."""
    from fedcore.clip import encodings
    from fedcore.clip.backbone import load_backbones
    from fedcore.config import DataConfig
    from fedcore.engine.prepare import read_images

    path = two_images(tmp_path)
    data = {"name": "manifest", "root": str(path), "columns": {"label": "what"}}
    number = Store(db).tasks.submit("check", "own", data)
    assert execute_next(db, TASKS) == "done"
    task = Store(db).tasks.get(number)
    assert task.done == task.total == 2
    assert Store(db).tasks.find("check", "own").result["report"]["classes"] == ["dog", "owl"]
    (backbone,) = load_backbones([("mini-vit", None, "cpu", "fp32")])
    config, model = DataConfig(**data, decode="draft"), ("mini-vit", None, "cpu", "fp32")
    images, _ = read_images(config, backbone.spec.image_size)
    made, file = result_of(encode_data(Store(db), config, model, "embedding", print))
    assert file.name == encodings.cache_path(tmp_path, backbone, images, "embedding").name
    assert len(made) == 2 and file.is_file()


def test_the_supervisor_starts_the_real_command(db, tmp_path, monkeypatch):
    """With the claim, the device and the log of the task on its command line; a check needs no torch."""
    data = {"name": "manifest", "root": str(two_images(tmp_path)), "columns": {"label": "what"}}
    number = Store(db).tasks.submit("check", "own", data)
    supervisor = worker.Supervisor(Store(db), ThisMachine(["cpu"]))
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(devices, "_next_sample", 0.0)
    assert supervisor.step()
    assert devices.recorded_loads(), "of the machine while it works"
    wait_for(lambda: Store(db).tasks.get(number).ended)
    wait_for(lambda: not supervisor.step())  # the process has ended: it prints its last line after the state
    task = Store(db).tasks.get(number)
    assert task.status == "done", task.log.read_text()
    assert task.result["report"]["images"] == 2
    assert task.arrays()["sheet"].ndim == 3
    (line,) = (task.folder / PROCESS_LOG).read_text().splitlines()
    assert line.endswith(f"task {number}: done")
    assert task.log.read_text().endswith(" done\n")


def test_the_commands_list_stop_and_delete(db, capsys, monkeypatch):
    monkeypatch.setattr(psutil.Process, "nice", lambda self, value: None)  # this very process does the task
    first, second = (
        Store(db).tasks.submit("check", "a", {"fail": True}),
        Store(db).tasks.submit("check", "b", {}),
    )
    do(db, first)
    capsys.readouterr()
    assert cli.main(["task", str(first), "--db", str(db)]) == 2
    assert f"task {first} is failed; only a queued one can be done" in capsys.readouterr().err
    broken = Store(db).tasks.submit("weights", "none", {"name": "no-model", "tag": "none"})
    assert cli.main(["task", str(broken), "--db", str(db)]) == 1
    out, err = capsys.readouterr()
    assert out == f"task {broken}: failed\n" and f"error: task {broken}: " in err
    Store(db).tasks.delete(broken)
    assert cli.main(["tasks", "--cancel", str(second), "--db", str(db)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "id,kind,key,status,done,total,error",
        f"{second},check,b,stopped,0,,",
        f"{first},check,a,failed,1,1,ZeroDivisionError: the fake task was told to",
    ]
    assert cli.main(["tasks", "--cancel", str(second), "--db", str(db)]) == 2
    assert cli.main(["tasks", "--delete", str(second), "--db", str(db)]) == 0
    assert [t.id for t in Store(db).tasks.recent()] == [first]
