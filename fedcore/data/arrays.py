"""Files of large arrays that are written row by row, survive interruptions and are shared by processes.

An array ``NAME.npy`` appears under that name only when it is complete. Until then its rows grow in
``NAME.part``. After each flush ``NAME.journal`` records how many rows are safely on disk and the digest of
the file up to there, so that an interrupted writer can continue. ``NAME.json`` describes the content and,
once it is complete, holds its digest (``integrity.py``). The process that writes holds a lock on
``NAME.lock``.
"""

import io
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.base.errors import DAMAGE, FedLensError
from fedcore.base.files import keep_private, new_digest, open_lock, publish, try_lock
from fedcore.data.integrity import description_file, description_with_digest, write_description

HEADER_BYTES = 128
"""Bytes before the first row of a .npy file (``np.lib.format`` aligns to 64; shapes here fit two blocks)."""
_FLUSH_SECONDS = 2.0
"""At most this many seconds of work are lost with a killed process; an fsync per batch would cost more."""
_BLOCK = 1 << 24


class ArrayWriter:
    """Writes an array row by row.

    Attributes:
        done: number of rows written. The rows of an earlier, interrupted writer count if its description,
            shape and data type were the same and their digests match; otherwise the file is started again.
    """

    def __init__(
        self,
        path: Path,
        rows: int,
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        description: dict[str, object],
    ) -> None:
        """Open or create the part file of ``path``; the caller holds the write lock."""
        self.path = path
        self.rows = rows
        self._row_shape = row_shape
        self._dtype = dtype
        self._row_bytes = math.prod(row_shape) * dtype.itemsize
        self._description = description | {"shape": [rows, *row_shape], "dtype": dtype.name}
        out = io.BytesIO()
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(out, header | {"shape": (rows, *row_shape)})
        self._header = out.getvalue()
        self._digest = new_digest(self._header)
        self.done = self._resume()
        part = _part(path)
        if not self.done:
            _journal(path).unlink(missing_ok=True)
            write_description(path, self._description)
            part.write_bytes(self._header)
        self._file = part.open("r+b")
        keep_private(self._file.fileno())  # readers will lock it
        self._file.truncate(len(self._header) + self.done * self._row_bytes)  # what the journal confirms
        self._file.seek(0, os.SEEK_END)
        self._flushed, self._flushed_at = self.done, time.monotonic()

    def write(self, values: np.ndarray) -> None:
        """Append the next rows. Shape: values (any number of rows, *row shape)."""
        if values.shape[1:] != self._row_shape or values.dtype != self._dtype:
            raise ValueError(
                f"expected rows of {self._row_shape} {self._dtype}, got {values.shape[1:]} {values.dtype}"
            )
        content = np.ascontiguousarray(values).tobytes()
        with self._readable_errors():
            self._file.write(content)
        self._digest.update(content)
        self.done += len(values)
        if time.monotonic() - self._flushed_at > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the rows to the disk, then the journal line that confirms them."""
        # Rows are synced before their journal line is written: after a power failure the journal never
        # confirms rows that are not on the disk. The next writer cuts off rows without a line.
        if self.done > self._flushed:
            with self._readable_errors():
                self._file.flush()
                os.fsync(self._file.fileno())
                with _journal(self.path).open("a", encoding="utf-8") as journal:
                    journal.write(json.dumps([self.done, self._digest.hexdigest()]) + "\n")
                    journal.flush()
                    os.fsync(journal.fileno())
        self._flushed, self._flushed_at = self.done, time.monotonic()

    def close(self) -> None:
        """Give the file its final name when it is complete; otherwise keep the rows for the next writer."""
        try:
            self.flush()
        finally:
            self._file.close()
        if self.done == self.rows:
            with self._readable_errors():
                write_description(self.path, description_with_digest(self._description, self._digest))
                publish(_part(self.path), self.path)
            _journal(self.path).unlink(missing_ok=True)

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FedLensError(
                f"cannot write {_part(self.path)}: {error.strerror}; free disk space and resume the run, "
                "which keeps the images already on the disk"
            ) from error

    def _resume(self) -> int:
        """Return how many rows of an earlier writer are intact, and drop the journal lines after them.

        The journal's digests are compared because a disk may lose what it confirmed. On the way the digest
        of the whole file is brought up to the resumed row, so that it need not be read again in the end.
        """
        done = 0
        confirmed = []
        with suppress(OSError, ValueError, TypeError):  # no file, or a truncated line: earlier lines count
            if not self._description.items() <= description(self.path).items():
                return 0
            with _part(self.path).open("rb") as file:
                if file.read(len(self._header)) != self._header:
                    return 0
                for line in _journal(self.path).read_text(encoding="utf-8").splitlines():
                    end, expected = json.loads(line)
                    digest, size = self._digest.copy(), (end - done) * self._row_bytes
                    for start in range(0, size, _BLOCK):
                        digest.update(file.read(min(_BLOCK, size - start)))
                    if digest.hexdigest() != expected:
                        break
                    self._digest, done = digest, end
                    confirmed.append(line + "\n")
        if done:
            _journal(self.path).write_text("".join(confirmed), encoding="utf-8")
        return done


def _part(path: Path) -> Path:
    return path.with_suffix(".part")


def _journal(path: Path) -> Path:
    return path.with_suffix(".journal")


def files(folder: Path) -> list[Path]:
    """Return the arrays of a folder: the finished ones, then the ``.part`` files of the others."""
    return [*folder.glob("*.npy"), *folder.glob("*.part")]


def rows_on_disk(path: Path) -> int:
    """Return how many rows of an unfinished array its journal confirms."""
    try:
        return int(json.loads(_journal(path).read_text(encoding="utf-8").splitlines()[-1])[0])
    except (OSError, ValueError, IndexError, TypeError):  # no journal, or its last line is being written
        return 0


def unfinished_bytes(path: Path) -> int:
    """Return the size of an unfinished array's part file, 0 if there is none."""
    part = _part(path)
    return part.stat().st_size if part.exists() else 0


def description(path: Path) -> dict[str, object]:
    """Return an array's description with its shape and dtype; empty if it cannot be read."""
    try:
        content = json.loads(description_file(path).read_text(encoding="utf-8"))
    except (OSError, *DAMAGE):
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def write_lock(path: Path) -> Iterator[bool]:
    """Try to take an array's write lock; yields False when another process holds it.

    The operating system releases the lock when the process that holds it ends, however it ends.
    """
    file = open_lock(path.with_suffix(".lock"))
    try:
        yield try_lock(file, exclusive=True)
    finally:
        os.close(file)


def open_mapped(path: Path) -> np.ndarray:
    """Memory-map a finished array copy-on-write: torch needs writable memory, but the file must not change.

    ``delete`` refuses the file as long as the array exists: the shared lock belongs to the open file, and
    the mapping keeps that open through a duplicate of its descriptor.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise FedLensError(f"{path} was just deleted; resume the run to create it again") from error
    with file:
        keep_private(file.fileno())
        if not try_lock(file.fileno(), exclusive=False):
            raise FedLensError(f"{path} is being deleted; resume the run to create it again")
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        return np.memmap(file, dtype=dtype, mode="c", offset=file.tell(), shape=shape)


def delete(path: Path) -> int:
    """Delete an array, finished or not, unless a run uses it; return the number of bytes freed."""
    with write_lock(path) as acquired:
        if not acquired:
            raise FedLensError(f"{path.name} is being written by a run; stop the run first")
        freed = _remove_unused(path) if path.exists() else 0
        for file in (_part(path), _journal(path), description_file(path)):
            if file.exists():
                freed += file.stat().st_size
                file.unlink()
    return freed


def _remove_unused(path: Path) -> int:
    busy = FedLensError(f"{path.name} is in use by a run; wait for it to end or stop it first")
    with path.open("rb") as file:
        if not try_lock(file.fileno(), exclusive=True):
            raise busy
        size = path.stat().st_size
        if sys.platform != "win32":
            path.unlink()
            return size
    try:
        path.unlink()
    except PermissionError as error:  # Windows itself refuses to delete a file that is mapped
        raise busy from error
    return size
