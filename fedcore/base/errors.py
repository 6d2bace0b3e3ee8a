"""The error that users see, in one line, and a plain sentence for each error of the system or of SQLite."""

import difflib
import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

DAMAGE = (ValueError, RecursionError)
"""Errors that parsers and our checks raise for broken content.

TypeError, AttributeError and LookupError are left out: they come from faults of our own code, which must
surface with a traceback. Code that reads foreign content parses it into types first.
"""


class FedLensError(ValueError):
    """Bad input or a missing resource.

    Attributes:
        field: dotted name of the offending field (``partition.clients``, ``methods.0.blocks``), or None.
            The browser shows the message beside that field, the command line prints it first.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(" ".join(message.splitlines()))  # paths and values that it quotes may have several
        self.field = field

    def line(self) -> str:
        """Return the message with the field in front, as the command line prints it."""
        return f"{self.field}: {self}" if self.field else str(self)


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that is given a second time; None if all names differ."""
    return next((name for i, name in enumerate(names) if name in names[:i]), None)


def did_you_mean(name: str, names: Iterable[str], otherwise: str, number: int = 1) -> str:
    """Return ``did you mean 'x'?`` with the known names that are most like ``name``, else ``otherwise``."""
    lowered = {each.lower(): each for each in names}
    near = [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered, number, 0.5)]
    return f"did you mean {' or '.join(repr(each) for each in near)}?" if near else otherwise


def first_line(error: BaseException) -> str:
    """Return the type and the first line of a library's error, to be quoted in one of ours."""
    details = getattr(error, "errors", None)
    if callable(details):  # pydantic's: its first line only counts the errors
        first = details()[0]
        text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
    else:
        text = str(error)
    return f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"


@contextmanager
def reading_stored(what: str) -> Iterator[None]:
    """Turn the errors of a damaged value (``DAMAGE``) into one line that names what could not be read."""
    try:
        yield
    except FedLensError:
        raise
    except DAMAGE as error:
        raise FedLensError(
            f"{what} cannot be read ({first_line(error)}); `fedlens doctor` says what is damaged"
        ) from error


class SystemFault(FedLensError):
    """The machine failed, not the input; recorded results stay, and the work can be repeated."""


class DiskFull(SystemFault):
    """Nothing more can be written until space is freed."""


class Locked(SystemFault):
    """Another program keeps the database locked."""


class Elsewhere(SystemFault):
    """One machine of several failed; another one can continue the run, which is therefore queued again."""

    @property
    def reason(self) -> str:
        """The message without the advice to resume."""
        return re.split(r"[;,] (?:then )?resume\b", str(self))[0]


class FaultyDevice(Elsewhere):
    """A GPU that does not compute; it rests, and another one can continue the run."""


class Transient(SystemFault):
    """A failure that may pass by itself, so that the work is tried again after a pause.

    Lack of memory is one of them: other programs and runs share it, and may have freed some by then.
    """


class ReadOnlyDatabase(FedLensError):
    """Raised for a database that cannot be written; it may still be readable."""


SENTENCES: dict[str, tuple[type[FedLensError], str]] = {
    kind: (type_, sentence)
    for type_, sentences in {
        DiskFull: {
            "full": "the disk that holds {} is full; free some space, then resume: recorded rounds are kept",
            "quota": "your quota on the disk that holds {} is used up; free some space, then resume: "
            "recorded rounds are kept",
            "too large": "{} would exceed the largest file that this account may write; raise the limit "
            "(ulimit -f), then resume: recorded rounds are kept",
        },
        Transient: {
            "disk": "the disk that holds {} reports an input/output error; check it (cable, dmesg), then "
            "resume: recorded rounds are kept",
            "files": "too many files are open to use {}; raise the limit (ulimit -n) or run fewer at once, "
            "then resume",
            "processes": "the system refuses another process or thread for {}; end some, or raise the limit "
            "(ulimit -u), then resume",
            "memory": "the memory of this machine is used up at {}; end other programs or run fewer at once, "
            "then resume",
            "GPU memory": "the memory of the GPU is used up at {}; end other programs on it or run fewer at "
            "once, then resume",
            "network": "the connection broke off at {}; check the network, then start it again",
        },
        FaultyDevice: {
            "driver": "the GPU or its driver does not answer at {} ({}); check it (nvidia-smi, dmesg), then "
            "resume",
            "old driver": "the driver of the GPU does not fit the installed torch at {} ({}); install a "
            "newer driver, or a torch for the CUDA version that nvidia-smi shows, then resume",
            "other GPU": "the installed torch has no code for the GPU at {} ({}); install a torch that is "
            "built for it, or choose another device (--device), then resume",
            "hardware": "the hardware of the GPU reports a fault at {} ({}); look for Xid in dmesg, and "
            "reset the GPU (nvidia-smi --gpu-reset) or restart the machine, then resume",
            "taken": "other programs have the GPU for themselves at {} ({}); end them, or let several use it "
            "(nvidia-smi -c 0), then resume",
            "crash": "a computation crashed on the GPU at {} ({}); look for Xid in dmesg, and if it crashes "
            "again, update the driver or choose another device (--device), then resume",
        },
        SystemFault: {
            "display": "the GPU broke off a long computation at {}, since it also draws a display ({}); "
            "choose another device (--device) or a smaller batch_size, then resume",
            "NCCL": "the GPUs could not exchange data at {} ({}); set NCCL_DEBUG=INFO to read why in the "
            "log, then resume",
            "GPU": "a library of the GPU refused a computation at {} ({}); update the driver and torch, or "
            "choose a smaller batch_size or another device (--device), then resume",
        },
        Locked: {
            "locked": "{} stays locked by another program; close it (a database browser?) and try again"
        },
        ReadOnlyDatabase: {
            "read-only": "{} cannot be written; check the permissions of the file and its folder, or choose "
            "another place with --db or FEDLENS_DB"
        },
        FedLensError: {
            "damaged": "{} is damaged or not an SQLite file; restore it or choose another",
            "changed": "{} lacks a column: it is damaged, or another program changed it; restore a backup",
            "empty": "{} holds no tables of FedLens; start the app or run an experiment first",
            "index": "a computation on the GPU at {} read outside of a tensor ({}); train it with --device "
            "cpu, where the error names the line",
        },
    }.items()
    for kind, sentence in sentences.items()
}
"""Kind of failure -> the type of its error and the sentence; {} is the place, then what a library said."""
_BY_ERRNO = {
    errno.ENOSPC: "full", errno.EDQUOT: "quota", errno.EFBIG: "too large", errno.EIO: "disk",
    errno.EMFILE: "files", errno.ENFILE: "files", errno.EAGAIN: "processes", errno.ENOMEM: "memory",
    errno.ECONNRESET: "network", errno.ECONNABORTED: "network", errno.ETIMEDOUT: "network",
}  # fmt: skip
_BY_SQLITE_CODE = {
    sqlite3.SQLITE_FULL: "full", sqlite3.SQLITE_IOERR: "disk", sqlite3.SQLITE_NOMEM: "memory",
    sqlite3.SQLITE_BUSY: "locked", sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_READONLY: "read-only", sqlite3.SQLITE_CANTOPEN: "read-only",
    sqlite3.SQLITE_PERM: "read-only", sqlite3.SQLITE_CORRUPT: "damaged", sqlite3.SQLITE_NOTADB: "damaged",
}  # fmt: skip
_BY_SQLITE_TEXT = {
    "no such table": "empty",
    "no such column": "changed",
    "Could not decode to UTF-8": "damaged",
}
_QUOTED_NUMBER = re.compile(r"(?:\bos error |\[Errno )(\d+)")
_QUOTED_TEXTS = {
    "can't start new thread": "processes",
    "can't allocate memory": "memory",
    "std::bad_alloc": "memory",
    "failed to map segment": "memory",  # the dynamic loader, where a library is imported
    **{os.strerror(n): _BY_ERRNO[n] for n in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM)},
}
"""An error of the operating system as libraries in other languages (safetensors, torch) quote it."""
_OF_A_GPU = re.compile(
    r"\b(?:CUDA|cuDNN|cuSOLVER|cuSPARSE|cuFFT|cuRAND|NCCL|nvrtc)\b[^\n]{0,12} error\b|nvrtc: error|"
    r"CU[A-Z]+_STATUS_|NVIDIA driver|CUDA driver|CUDA GPUs|CUDA-capable|cudaGetDeviceCount|GPU is lost|"
    r"CUDA unknown error|CUDA out of memory",
    re.IGNORECASE,
)
_GPU_ERRORS = "OutOfMemoryError", "AcceleratorError"
_BY_GPU_TEXT = {
    kind: re.compile(words, re.IGNORECASE)
    for kind, words in {
        "NCCL": r"NCCL",
        "GPU memory": r"out of memory|ALLOC(ATION)?_FAILED|CUBLAS_STATUS_NOT_INITIALIZED",
        "old driver": r"driver version is insufficient|driver on your system is too old|installed CUDA "
        r"driver|unsupported display driver|forward compatibility|stub library|incompatible.(CUDA.)?driver|"
        r"unsupported toolchain",
        "other GPU": r"no kernel image|kernel image is invalid|invalid device function|PTX|nvrtc|"
        r"ARCH_MISMATCH|VERSION_MISMATCH|SUBLIBRARY|INCOMPATIBLE_CUDART|Dynamic Parallelism",
        "hardware": r"ECC|nvlink|hardware (error|stack)|GPU is lost|integrity checks",
        "taken": r"busy or unavailable|already in use|\bMPS\b|resources required to",
        "display": r"launch timed out",
        "index": r"device-side assert",
        "crash": r"illegal|misaligned|launch failure|program counter|address space|context is destroyed|"
        r"invalid device context|EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|shutting down|"
        r"tensor memory|external entity|CUFFT_EXEC",
        "driver": r"driver|NVIDIA|CUDA GPUs|CUDA-capable|cudaGetDeviceCount|device ordinal|initiali|startup|"
        r"licen[sc]e|unknown error|not ready|OS call failed|not permitted$|wait operation",
        "GPU": r"",
    }.items()
}
"""Kind of a GPU's failure -> words in the first line of what torch says of it; the first kind counts.

CUBLAS_STATUS_NOT_INITIALIZED is lack of memory: torch makes the handle of cuBLAS when it is first used."""
RESERVE = 64 * 2**20
"""Bytes that a run leaves free on the disk, so that the database can still record how it ended."""
SOME_MEMORY = 64 * 2**20
"""Bytes; if this process cannot get them, an error without a reason is taken for a lack of memory."""
TINY = 2**20
"""Bytes of free space below which an error without a reason is taken for a full disk."""


def explain(error: BaseException, place: object) -> FedLensError | None:
    """Return the error that says what to do about a failure of the machine; None for any other error.

    The causes of the error count too: a library may raise its own error from that of the system.

    Args:
        place: what could not be used, for the sentence; a path if there is one.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SystemFault):
            return cause
        kind = _kind(cause, place)
        if kind is not None:
            type_, sentence = SENTENCES[kind]
            where = getattr(cause, "filename", None) or place
            said = (str(cause).splitlines() or [""])[0][:200]
            return type_(sentence.format(where, said), "db" if isinstance(cause, sqlite3.Error) else None)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def is_gpu_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory of a GPU is used up."""
    return _kind(error, None) == "GPU memory"


def explain_file(error: OSError, place: object) -> FedLensError:
    """Return the error of a file or folder that cannot be used, for any reason."""
    return explain(error, place) or SystemFault(
        f"{error.filename or place} cannot be used ({error.strerror or error})"
    )


def _kind(error: BaseException, place: object) -> str | None:
    if isinstance(error, sqlite3.Error):
        kind = _BY_SQLITE_CODE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if kind == "disk" and _is_full(place):
            return "full"
        if kind == "read-only" and _no_more_files():
            return "files"
        return next((kind for words, kind in _BY_SQLITE_TEXT.items() if words in str(error)), kind)
    if isinstance(error, OSError) and error.errno is not None:
        return _BY_ERRNO.get(error.errno)
    if isinstance(error, (ConnectionError, TimeoutError)):
        return "network"
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, FedLensError):
        return None  # its own cause says more than words that it quotes
    text = str(error)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""  # from a run on the CPU, whose method asked for one
    if not hidden and (_OF_A_GPU.search(text) or type(error).__name__ in _GPU_ERRORS):
        return next(kind for kind, words in _BY_GPU_TEXT.items() if words.search(text.partition("\n")[0]))
    quoted = _QUOTED_NUMBER.search(text)
    if quoted is not None:
        return _BY_ERRNO.get(int(quoted[1]))
    kind = next((kind for words, kind in _QUOTED_TEXTS.items() if words in text), None)
    if "could not create a primitive" in text and _no_more_memory():  # oneDNN gives no reason
        return "memory"
    return "full" if kind is None and isinstance(error, (OSError, RuntimeError)) and _is_full(place) else kind


def _is_full(place: object) -> bool:
    """Return whether a disk is full; an error may not say so (NumPy: "9 requested and 8 written")."""
    return isinstance(place, Path) and disk_usage(place)[1] < TINY


def _no_more_files() -> bool:
    """Return whether this process can open no more files, which SQLite reports as a missing file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _no_more_memory() -> bool:
    """Return whether this process, or its machine, is short of memory."""
    try:
        bytearray(SOME_MEMORY)
    except MemoryError:
        return True
    return psutil.virtual_memory().available < SOME_MEMORY


@contextmanager
def plain_errors(place: Path) -> Iterator[None]:
    """Turn failures of the machine within the block into errors that say what to do."""
    try:
        yield
    except (sqlite3.Error, OSError, MemoryError) as error:
        plain = explain(error, place)
        if plain is None:
            raise
        raise plain from error
    except UnicodeDecodeError as error:  # sqlite3 cannot decode its own message about a damaged schema
        type_, sentence = SENTENCES["damaged"]
        raise type_(sentence.format(place), "db") from error


def disk_usage(place: Path) -> tuple[int, int]:
    """Return the total and the free bytes of the disk that holds a path, which may not exist yet."""
    usage = shutil.disk_usage(next(p for p in (place, *place.absolute().parents) if p.exists()))
    return usage.total, usage.free


def lacks_room(folder: Path, needed: int = 0) -> bool:
    """Return whether writing some bytes would leave less free space than the database needs.

    64 MiB stay free, or 2 % of a smaller disk.
    """
    total, free = disk_usage(folder)
    return free - needed < min(RESERVE, total // 50)


def check_room(folder: Path, needed: int = 0) -> None:
    """Refuse to write to a disk that is almost full, while the database can still record the reason.

    Args:
        needed: bytes that are about to be written.

    Raises:
        DiskFull: with the free space.
    """
    if lacks_room(folder, needed):
        free = disk_usage(folder)[1]
        raise DiskFull(
            f"the disk that holds {folder} is almost full ({free / 1e6:.0f} MB left); free some space, then "
            "resume: recorded rounds are kept"
        )
