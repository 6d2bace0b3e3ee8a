"""Files: the folders of FedLens, paths that a user names, locks, and files that survive a power failure."""

import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import xxhash

from fedcore.base.errors import FedLensError, first_line

_PACKAGE = Path(__file__).resolve().parents[1]
ASSETS = _PACKAGE / "assets"
_BESIDE = _PACKAGE.parent
IN_CHECKOUT = (_BESIDE / "pyproject.toml").is_file()
"""True if the package runs from a checkout; otherwise it was installed."""
PROJECT = _BESIDE if IN_CHECKOUT else _BESIDE / "fedlens_app"
"""The folder with ``app.py``, ``pages/`` and ``docs/``: the checkout, or the installed ``fedlens_app``."""


def new_digest(content: bytes | memoryview = b"") -> xxhash.xxh3_128:
    """Start a digest.

    XXH3 notices damage and reads 1 GB in 0.1 s (SHA-256: 0.7 s). It does not protect against an attacker,
    nor would a stronger hash, which is stored beside the array as well.
    """
    return xxhash.xxh3_128(content)


def user_path(path: str | Path, field: str | None = None) -> Path:
    """Return the path that a user names, with ``~`` as the home folder."""
    try:
        named = Path(path).expanduser()
        place = named.absolute()
        with suppress(FileNotFoundError, NotADirectoryError):
            place.stat()  # the system looks links up in one call; Path.resolve() asks it for each folder
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        text = str(path)
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        raise FedLensError(f"{shown!r} cannot be a path: {reason[:200]}; give another", field) from error
    return named


def read_text(path: str | Path, what: str, field: str | None = "file") -> str:
    """Read a UTF-8 text file; a byte order mark at its start is left out.

    Args:
        what: kind of file for the message, as in "give the path of {what}".
    """
    named = user_path(path, field)
    try:
        if named.exists() and not named.is_file():
            raise FedLensError(f"{path} is not a file; give the path of {what}", field)
        return named.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FedLensError(f"{path} is not UTF-8 text ({error}); give the path of {what}", field) from error
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise FedLensError(f"cannot read {path}: {reason}; give the path of {what}", field) from error


def read_texts(path: Path) -> dict[str, str]:
    """Return the texts by name that a JSON file holds; none if it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    texts = content.items() if isinstance(content, dict) else ()
    return {key: value for key, value in texts if isinstance(value, str)}


def write_texts(path: Path, texts: Mapping[str, str]) -> None:
    """Write a file for ``read_texts``, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(texts).encode())


def state_folder() -> Path:
    """Return the folder in which FedLens stores consents and the like for this account; it may not exist yet.

    It is FEDLENS_STATE, or ``fedlens`` in the user's state folder.
    """
    named = os.environ.get("FEDLENS_STATE")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(named) if named else Path(state) / "fedlens"


def cache_folder() -> Path:
    """Return the folder FEDLENS_CACHE, or ``fedlens`` in the user's cache folder; it may not exist yet."""
    folder = os.environ.get("FEDLENS_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlens"


def results_folder(folder: Path) -> Path | None:
    """Return the folder for results of slow work: that of the data set, or else one in the cache.

    It is None if neither can be written: the work is then repeated each time and cannot be deferred.
    """
    if os.access(folder, os.W_OK):
        return folder
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return make_writable(cache_folder() / "prepared" / name)


def make_writable(folder: Path) -> Path | None:
    """Create a folder if necessary and return it; None if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def open_lock(path: Path) -> int:
    """Open a lock file that no other account can open, and create it if it is missing."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    keep_private(file)
    return file


def keep_private(file: int) -> None:
    """Take the rights of other accounts from an open file of this account (mode 0600)."""
    # An account that may open a file, even only for reading, may lock it, and could block us forever.
    if sys.platform == "win32":  # the folder's access control list keeps others out
        return
    about = os.fstat(file)
    if about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) & 0o077:
        with suppress(OSError):  # a file system without access rights
            os.fchmod(file, 0o600)


def try_lock(file: int, exclusive: bool) -> bool:
    """Try to lock an open file until it is closed, without waiting; the branch for Windows is untested.

    The lock is ``flock``'s, which belongs to the open file and not to the process: copies of the descriptor
    hold it too, also in a child process, and it is free once the last of them is closed.

    Raises:
        OSError: on a file system that has no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            if not exclusive:
                msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def zipped(files: Mapping[str, bytes], folder: str = "", compression: int = 6) -> bytes:
    """Return files as a ZIP archive, below a folder if one is named; equal content gives equal bytes."""
    import zipfile  # here, since few processes write archives

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=compression) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(f"{folder}/{name}" if folder else name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file that gets its name only once it is complete; an error leaves nothing behind.

    Args:
        content: all of it, or its parts, each of which is made when it is written.
    """
    parts = [content] if isinstance(content, bytes) else content
    if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/stdout
        with path.open("wb") as file:
            file.writelines(parts)
        return
    # processes and threads may write one file at once
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("wb") as file:
            file.writelines(parts)
        publish(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def link(path: str | Path, second: str | Path) -> None:
    """Give a file that nobody changes a second name, or copy it on a file system without links."""
    try:
        os.link(path, second)
    except OSError:
        shutil.copyfile(path, second)


def publish(part: Path, path: Path) -> None:
    """Give a written file its final name, once its content is on the disk."""
    # Content, then name, then folder: without the first fsync a power failure may leave an empty file under
    # the name, and without the last one it may undo the rename.
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, each on the disk before the next."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk; Windows does so by itself."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""Full-width forms too, which some spreadsheets read as the plain ones."""
_MAYBE = frozenset((*_FORMULA, " "))
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")


def guarded(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would run as a formula; numbers are not changed."""
    if not isinstance(value, str) or value[:1] not in _MAYBE:
        return value  # at once, as a long export asks of millions of values
    if value.lstrip(" ").startswith(_FORMULA) and not _NUMBER.match(value):
        return "'" + value
    return value


def unguarded(text: str) -> str:
    """Return the text that ``guarded`` wrote."""
    return text[1:] if text[:1] == "'" and guarded(text[1:]) == text else text
