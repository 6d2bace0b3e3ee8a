"""Another account can neither take nor keep a lock of ours: whoever can open a file can lock it.

Two that write one file at once do not disturb each other.
"""

import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedcore.base.files import write_whole
from fedcore.data import arrays
from fedcore.jobs.supervisor import NEXT, SupervisorLock
from fedcore.store.liveness import hold, let_go, lock_folder, lock_path
from tests.support.web.accounts import needs_root, start_as_nobody

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has access control lists")

OPEN = """
for name in {names}:
    try:
        os.open(name, os.O_RDONLY)
    except PermissionError:
        continue
    print("can be locked:", name)
print("all tried")
"""


@contextmanager
def every_lock(folder: Path) -> Iterator[list[Path]]:
    """Yield the files that a supervisor, a job and an encoding lock, each of them made."""
    db, array = folder / "runs.db", folder / "array.npy"
    with ExitStack() as ends:
        for suffix in (".lock", NEXT):
            lock = SupervisorLock(db, suffix)
            assert lock.acquire()
            ends.callback(lock.release)
        hold(db, "us/1")
        ends.callback(let_go, db, "us/1")
        with arrays.write_lock(array):
            writer = arrays.ArrayWriter(array, 1, (1,), np.dtype(np.float32), {})
            writer.write(np.zeros((1, 1), np.float32))
            writer.close()
        mapped = arrays.open_mapped(array)
        yield [
            db.with_name("runs.db.lock"),
            db.with_name(f"runs.db{NEXT}"),
            lock_path(db, "us/1"),
            array.with_suffix(".lock"),
            array,
        ]
        del mapped


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_that_two_write_at_once_is_that_of_the_last(tmp_path: Path) -> None:
    """They shared a temporary file, and the second to end found none."""
    path = tmp_path / "cluster.json"

    def parts() -> Iterator[bytes]:
        yield b"fir"
        other = threading.Thread(target=write_whole, args=(path, b"second"))
        other.start()
        other.join()
        assert path.read_bytes() == b"second"
        yield b"st"

    write_whole(path, parts())
    assert path.read_bytes() == b"first" and list(tmp_path.iterdir()) == [path]


def test_locks_are_made_for_their_account_only(tmp_path: Path) -> None:
    with every_lock(tmp_path) as locks:
        assert {path.name: oct(rights(path)) for path in locks} == {path.name: "0o600" for path in locks}
        assert rights(lock_folder(tmp_path / "runs.db")) == 0o700


def test_locks_that_others_could_open_are_closed_to_them(tmp_path: Path) -> None:
    with every_lock(tmp_path) as locks:
        beside = [path for path in locks if path.parent == tmp_path]
    for path in beside:
        path.chmod(0o666)
    with every_lock(tmp_path):
        assert {path.name: oct(rights(path)) for path in beside} == {path.name: "0o600" for path in beside}


@needs_root
def test_another_account_cannot_lock_what_is_ours() -> None:
    """It held ``runs.db.lock``, and the queue stood still."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with every_lock(folder) as locks:
            program = OPEN.format(names=list(map(str, locks)))
            assert start_as_nobody(program).communicate(timeout=20)[0] == "all tried\n"
