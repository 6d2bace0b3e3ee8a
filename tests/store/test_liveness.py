"""A job is alive while its own process holds its lock: no fork, copy or container can stand in for it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.base.files import PROJECT, try_lock
from fedcore.store import Store, liveness
from fedcore.store.database import writing
from fedcore.store.liveness import is_held
from tests.support.jobs import wait_for

HOLDER = """
import os, subprocess, sys
from pathlib import Path
from fedcore.store import liveness
assert liveness.hold(Path(sys.argv[1]), sys.argv[2]) is not None
{more}
print("ready", flush=True)
sys.stdin.read()
"""
FORK = """
child = os.fork()
if child == 0:
    os.close(1)
    import signal
    signal.pause()
print(child, flush=True)
"""
PROGRAM = """
print(subprocess.Popen(["sleep", "600"], close_fds=False, stdout=subprocess.DEVNULL).pid, flush=True)
"""


def hold_elsewhere(db: Path, owner: str, more: str = "") -> subprocess.Popen[str]:
    """Start a process that holds a lock; its output is read up to ``ready`` by the caller."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", HOLDER.format(more=more), str(db), owner]
    return subprocess.Popen(command, cwd=PROJECT, **pipes)


@pytest.mark.parametrize("child", [FORK, PROGRAM], ids=["fork", "program"])
def test_what_a_process_starts_does_not_keep_it_alive(db, child):
    owner = liveness.new_owner()
    holder = hold_elsewhere(db, owner, child)
    number = int(holder.stdout.readline())
    try:
        assert holder.stdout.readline() == "ready\n"
        assert is_held(db, owner) is True
        holder.kill()
        wait_for(lambda: is_held(db, owner) is False)
        os.kill(number, 0)  # the child lives on
    finally:
        holder.kill()
        os.kill(number, signal.SIGKILL)
        holder.communicate()


def test_two_who_ask_do_not_take_each_other_for_the_owner(db):
    owner = liveness.new_owner()
    liveness.hold(db, owner)
    assert is_held(db, owner) is True  # also for its own process
    liveness.let_go(db, owner, keep_file=True)
    with liveness.lock_path(db, owner).open("rb") as asking:
        assert try_lock(asking.fileno(), exclusive=False)
        assert is_held(db, owner) is False
    liveness.remove_dead_lock(db, owner)
    assert is_held(db, owner) is None


def test_nobody_works_for_a_copy_of_a_database(db, queued, tmp_path):
    (run_id,) = queued()
    claimed = Store(db).jobs.claim(liveness.new_owner(), "cpu")
    liveness.hold(db, claimed.owner)
    try:
        shutil.copytree(db.parent, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
        assert Store(db).runs.get([run_id])[0].state == "running"
        assert Store(tmp_path / "copy" / db.name).runs.get([run_id])[0].state == "interrupted"
    finally:
        liveness.let_go(db, claimed.owner)


def test_a_process_in_another_container_is_seen(db, queued):
    """Another process namespace, in which the process' id means nothing, on the same folder."""
    enter = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this account cannot make a process namespace")
    (run_id,) = queued()
    claimed = Store(db).jobs.claim(liveness.new_owner(), "cpu")
    liveness.hold(db, claimed.owner)
    with writing(db) as database:
        database.execute("UPDATE runs SET heartbeat_at=0")  # as if its heart had stood still

    def state_over_there() -> str:
        code = "import sys; from fedcore.store import Store; print(Store(sys.argv[1]).runs.get([1])[0].state)"
        command = [*enter, sys.executable, "-c", code, str(db)]
        return subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=120
        ).stdout.strip()

    assert run_id == 1 and state_over_there() == "running"
    liveness.let_go(db, claimed.owner)
    assert state_over_there() == "interrupted"


@pytest.mark.parametrize("owner", ["", "me", "host/../../x", "host/\0", "a" * 300])
def test_strange_owners_are_nobody(db, owner):
    assert is_held(db, owner) is None
