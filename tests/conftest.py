"""What all tests share: one thread, so that figures do not depend on the load, and folders in memory."""

import gc
import os
import tempfile
from pathlib import Path

import pytest

gc.disable()  # what collection makes lives to the end
pytest_plugins = [
    "tests.support.encoded",
    "tests.support.jobs",
    "tests.support.results",
    "tests.support.small_disk",
]
MEMORY = Path("/dev/shm")
NEEDED_BYTES = 4 * 2**30


def have_room_in_memory() -> bool:
    """Return whether files, programs among them, can lie in memory."""
    if not MEMORY.is_dir():
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize > NEEDED_BYTES and not found.f_flag & os.ST_NOEXEC


# SQLite waits for the disk thousands of times, which takes longer than the tests themselves. Set before any
# folder is made, and for the processes that tests start.
if "TMPDIR" not in os.environ and have_room_in_memory():
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None


def pytest_collection_finish() -> None:
    """The garbage collector need not look through what collection made, neither now nor later."""
    gc.freeze()
    gc.set_threshold(5000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    import torch  # which the process that hands out the tests does not need

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def gpus_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the test process hides GPUs from it; the next test does not find them hidden."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Verdicts on files and the token are kept away from the user's."""
    os.environ.setdefault("FEDLENS_CACHE", str(tmp_path_factory.mktemp("cache")))
    os.environ.setdefault("FEDLENS_STATE", str(tmp_path_factory.mktemp("state")))
