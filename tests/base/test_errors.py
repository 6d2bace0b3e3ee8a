"""Failures of the machine are told in one sentence."""

import ctypes
import errno
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from safetensors import SafetensorError

from fedcore.base import errors
from fedcore.base.errors import (
    DiskFull,
    FedLensError,
    Locked,
    ReadOnlyDatabase,
    Transient,
    check_room,
    explain,
    plain_errors,
)
from fedcore.base.files import PROJECT
from fedcore.config import load
from fedcore.store import Store
from fedcore.store.database import writing

THIS_FILE = Path(__file__)


def of_sqlite(code: int, text: str = "disk I/O error") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull, "is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DiskFull, "quota"),
        (OSError(errno.EFBIG, "File too large"), DiskFull, "ulimit -f"),
        (OSError(errno.EIO, "Input/output error"), Transient, "input/output error"),
        (OSError(errno.EMFILE, "Too many open files"), Transient, "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), Transient, "too many files"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), Transient, "ulimit -u"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Transient, "memory"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), Transient, "connection"),
        (TimeoutError("timed out"), Transient, "connection"),
        (of_sqlite(sqlite3.SQLITE_FULL), DiskFull, "is full"),
        (of_sqlite(sqlite3.SQLITE_IOERR_WRITE), Transient, "input/output error"),
        (of_sqlite(sqlite3.SQLITE_BUSY), Locked, "stays locked by another program"),
        (of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT), Locked, "stays locked by another program"),
        (of_sqlite(sqlite3.SQLITE_READONLY_DBMOVED), ReadOnlyDatabase, "cannot be written"),
        (of_sqlite(sqlite3.SQLITE_CANTOPEN), ReadOnlyDatabase, "cannot be written"),
        (of_sqlite(sqlite3.SQLITE_CORRUPT), FedLensError, "is damaged"),
        (of_sqlite(sqlite3.SQLITE_NOTADB), FedLensError, "not an SQLite file"),
        (of_sqlite(sqlite3.SQLITE_ERROR, "no such table: runs"), FedLensError, "no tables of FedLens"),
        (of_sqlite(sqlite3.SQLITE_ERROR, "no such column: r.seed"), FedLensError, "lacks a column"),
        (sqlite3.OperationalError("Could not decode to UTF-8 column 'config'"), FedLensError, "is damaged"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), DiskFull, "is full"),
        (MemoryError(), Transient, "memory of this machine"),
        (RuntimeError("can't start new thread"), Transient, "another process or thread"),
        (RuntimeError("std::bad_alloc"), Transient, "memory of this machine"),
        (ImportError("libtorch.so: failed to map segment from shared object"), Transient, "memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), Transient, "memory of the GPU"),
        (RuntimeError("PytorchStreamWriter failed: No space left on device"), DiskFull, "is full"),
    ],
    ids=str,
)
def test_a_failure_is_told_in_one_sentence(error, kind, words):
    plain = explain(error, THIS_FILE)
    assert type(plain) is kind
    assert words in str(plain) and str(THIS_FILE) in str(plain) and "\n" not in str(plain)


IN_TORCH = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
OF_A_GPU = {
    "driver": ["no CUDA-capable device is detected", "initialization error", "unknown error"],
    "old driver": ["CUDA driver version is insufficient for CUDA runtime version"],
    "other GPU": ["no kernel image is available for execution on the device", "invalid device function"],
    "hardware": ["uncorrectable ECC error encountered", "hardware stack error"],
    "taken": ["CUDA-capable device(s) is/are busy or unavailable"],
    "crash": [
        "an illegal memory access was encountered",
        "unspecified launch failure",
        "CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`",
    ],
    "display": ["the launch timed out and was terminated"],
    "index": ["device-side assert triggered"],
    "GPU": ["invalid argument", "CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(handle)`"],
    "GPU memory": ["out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"],
}
"""Kind of failure -> how torch words it after "CUDA error: "."""
OF_ITS_LIBRARIES = {
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED": "crash",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": "GPU memory",
    "cuDNN version incompatibility: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH": "other GPU",
    "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`": "crash",
    "cuFFT error: CUFFT_EXEC_FAILED": "crash",
    "CUDA driver error: invalid device context": "crash",
    "NCCL error in: NCCLUtils.hpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details)": "NCCL",
    "nvrtc: error: invalid value for --gpu-architecture (-arch)": "other GPU",
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU": "driver",
    "The NVIDIA driver on your system is too old (found version 11040).": "old driver",
    "Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non "
    "supported HW": "old driver",
    "No CUDA GPUs are available": "driver",
}


def test_a_failure_of_a_gpu_is_told_with_the_remedy_of_its_kind():
    worded = {f"CUDA error: {text}": kind for kind, texts in OF_A_GPU.items() for text in texts}
    for text, kind in (worded | OF_ITS_LIBRARIES).items():
        type_, sentence = errors.SENTENCES[kind]
        plain = explain(RuntimeError(text + IN_TORCH), "here")
        assert type(plain) is type_ and str(plain) == sentence.format("here", text), text
    for text in ("Expected all tensors to be on the same device, but found cuda:0 and cpu!", "CUDA is nice"):
        assert explain(RuntimeError(text), "here") is None


def test_every_error_that_torch_names_has_a_sentence_with_a_remedy():
    """The names are those that torch translates for other GPUs, and of its CUDA libraries if it has them."""
    import torch
    from torch.utils.hipify import cuda_to_hip_mappings

    source = Path(cuda_to_hip_mappings.__file__).read_text()
    names = set(re.findall(r'"(cudaError[A-Z]\w+|CU[A-Z]+_(?:ERROR|STATUS)_\w+)"', source))
    said = {f"CUDA error: {name}" for name in names}
    root = Path(torch.__file__).parents[1] / "nvidia"
    for library in root.glob("*/lib/libcudart.so.*"):
        cuda = ctypes.CDLL(str(library))
        cuda.cudaGetErrorString.restype = ctypes.c_char_p
        said |= {f"CUDA error: {cuda.cudaGetErrorString(code).decode()}" for code in range(1, 1000)}
    for header in ("cublas_api", "cusolver_common", "cudnn_graph"):
        for file in root.glob(f"*/include/{header}.h"):
            found = re.findall(r"\bCU[A-Z]+_STATUS_\w+", file.read_text(errors="replace"))
            said |= {f"cuDNN error: {name}" for name in found}
    assert len(said) > 150
    for text in said:
        plain = explain(RuntimeError(text + IN_TORCH), "here")
        assert re.search(r"here.*; .*(then resume|names the line)$", str(plain)), text


def test_sqlite_without_memory_is_told_in_one_sentence():
    """Python's module raises MemoryError, which left the process of a run as a traceback."""
    with pytest.raises(Transient, match="memory of this machine is used up"), plain_errors(THIS_FILE):
        raise MemoryError


def test_what_is_no_failure_of_the_machine_is_left_alone():
    for error in (ValueError("x"), FileNotFoundError(errno.ENOENT, "no file"), sqlite3.IntegrityError("x")):
        assert explain(error, THIS_FILE) is None


def test_an_error_raised_from_another_is_known_by_it():
    def wrapped() -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "/some/file")
        except OSError as error:
            raise FedLensError("cannot write an encoding; make room") from error

    with pytest.raises(FedLensError) as caught:
        wrapped()
    assert "/some/file" in str(explain(caught.value, THIS_FILE))
    assert isinstance(explain(caught.value, THIS_FILE), DiskFull)


def test_libraries_that_do_not_say_what_failed_are_understood(small_disk):
    import torch
    from safetensors.torch import save_file

    data = torch.zeros(2 * small_disk.size // 4)
    for write in (
        lambda path: save_file({"a": data}, path),
        lambda path: torch.save(data, path),
        data.numpy().tofile,
    ):
        path = small_disk.path / "file"
        path.write_bytes(b"")
        small_disk.fill()
        with pytest.raises((RuntimeError, OSError, SafetensorError)) as caught:
            write(path)
        assert isinstance(explain(caught.value, path), DiskFull), caught.value
        small_disk.empty()


def test_an_unspecific_error_on_a_full_disk_is_a_full_disk(monkeypatch):
    monkeypatch.setattr(errors, "disk_usage", lambda place: (10**9, 4096))
    for error in (of_sqlite(sqlite3.SQLITE_IOERR_SHMSIZE), OSError("9 requested and 8 written")):
        assert isinstance(explain(error, THIS_FILE), DiskFull)


def test_a_disk_that_is_almost_full_is_refused_before_it_is(monkeypatch):
    check_room(THIS_FILE)
    monkeypatch.setattr(errors, "disk_usage", lambda place: (10**12, 60 * 2**20))
    with pytest.raises(DiskFull, match="almost full \\(63 MB left\\)"):
        check_room(THIS_FILE)
    monkeypatch.setattr(errors, "disk_usage", lambda place: (20 * 2**20, 2**20))
    check_room(THIS_FILE)  # a small disk
    with pytest.raises(DiskFull):
        check_room(THIS_FILE, needed=2**20)


NO_MORE_FILES = """
import resource, sys
from fedcore.store import Store
store = Store(sys.argv[1])
store.experiments.all()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError:
    pass
from fedcore.base.errors import FedLensError
for act in (store.experiments.all, lambda: store.tasks.submit("check", "a", {})):
    try:
        act()
    except FedLensError as error:
        print(type(error).__name__, error)
"""


def test_a_process_with_too_many_open_files_says_so(db):
    with writing(db):
        pass
    done = subprocess.run(
        [sys.executable, "-c", NO_MORE_FILES, str(db)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert all(line.startswith("Transient too many files are open") for line in lines)


def test_a_damaged_schema_that_sqlite_quotes_is_damage(db):
    """SQLite's sentence holds the damaged bytes, and Python could not decode it."""
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = db.read_bytes()
    place = content.index(b"CREATE TABLE experiments")
    db.write_bytes(content[:place] + b"CRE\xd4TE" + content[place + 6 :])
    with pytest.raises(FedLensError, match="is damaged"):
        Store(db).experiments.all()


def test_a_path_with_line_breaks_is_told_in_one_line() -> None:
    with pytest.raises(FedLensError, match=r"^cannot read no such file .toml") as caught:
        load("no such\r\nfile\u2028.toml")
    assert len(caught.value.line().splitlines()) == 1
