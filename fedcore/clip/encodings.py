"""Files of encoded images: what one weighs, how it comes to be whole, who holds it, deleting it. No torch.

An encoding ``NAME.npy`` appears under that name only when it is complete. Until then its rows grow in
``NAME.part``, and ``NAME.journal`` says after each flush how many are safely on disk and what their checksum
is, so that an interrupted encoding goes on where it was. ``NAME.json`` says what is encoded, ``NAME.lock``
belongs to who writes.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np

from fedcore.clip.facts import BackboneFacts
from fedcore.errors import FedLensError

LIMIT = "FEDLENS_ENCODING_LIMIT_GB"
"""Environment variable: the most that one encoding may take on disk, GB."""

DEFAULT_LIMIT_GB = 50.0
_HALF_ABOVE = 2 * 2**30
"""Bytes of float32 activations above which they are stored in half precision (embeddings never are)."""
_SPARE = 10**9
"""Bytes that an encoding leaves free on the disk: the database and checkpoints lie beside it."""
_FLUSH_SECONDS = 2.0
"""Work that a killed process loses at most; an fsync after every batch would cost more than it saves."""
_HEADER = 128
"""Bytes before the first row of a .npy file (``np.lib.format`` aligns to 64; shapes here fit two blocks)."""


def depth(reads: str) -> int | None:
    """The k of ``layer:<k>``; None for ``embedding`` and ``patches``.

    Raises:
        FedLensError: for anything else.
    """
    if reads in ("embedding", "patches"):
        return None
    kind, _, layer = reads.partition(":")
    if kind != "layer" or not layer.isdigit():
        raise FedLensError(f"a method reads '{reads}'; it must be 'embedding', 'patches' or 'layer:<k>'")
    return int(layer)


def row_shape(facts: BackboneFacts, reads: str) -> tuple[int, ...]:
    """Shape of one encoded image.

    Raises:
        FedLensError: for tokens of an image tower that is no CLIP ViT, or an unknown encoding.
    """
    layer = depth(reads)
    if reads == "embedding":
        return (facts.embed_dim,)
    if facts.vision != "vit":
        raise FedLensError(
            f"{facts.name} has no ViT tokens to encode; choose a ViT such as ViT-B-32", "backbone.name"
        )
    return (facts.patches + (layer is not None), facts.vision_width)


def stored_as(images: int, row: tuple[int, ...], reads: str) -> np.dtype:
    """Half precision for large activations, else float32."""
    half = reads != "embedding" and images * math.prod(row) * 4 > _HALF_ABOVE
    return np.dtype(np.float16 if half else np.float32)


def estimate(facts: BackboneFacts, images: int, reads: str) -> int:
    """Bytes on disk of an encoding, before anything is loaded: exactly what will be written.

    Raises:
        FedLensError: as ``row_shape``.
    """
    return file_size(images, row_shape(facts, reads), reads)


def file_size(images: int, row: tuple[int, ...], reads: str) -> int:
    """Bytes of the .npy file that holds so many rows."""
    return _HEADER + images * math.prod(row) * stored_as(images, row, reads).itemsize


def limit() -> float:
    """The most that one encoding may take, bytes.

    Raises:
        FedLensError: when the environment variable is no positive number.
    """
    given = os.environ.get(LIMIT, "")
    try:
        gigabytes = float(given) if given else DEFAULT_LIMIT_GB
    except ValueError:
        gigabytes = math.nan
    if not gigabytes > 0:
        raise FedLensError(f"{LIMIT} is '{given}'; give a number of GB, e.g. 50")
    return gigabytes * 1e9


def check_limit(size: int, what: str) -> None:
    """Refuse an encoding that is over the limit.

    Raises:
        FedLensError: with the size, the limit and the remedy.
    """
    if size > limit():
        raise FedLensError(
            f"encoding {what} takes {size / 1e9:.1f} GB, the limit is {limit() / 1e9:g} GB; choose a later "
            f"start layer, fewer domains or a smaller backbone, or set {LIMIT} higher",
            "backbone.name",
        )


def check_room(size: int, what: str, folder: Path, there: int = 0) -> None:
    """Refuse an encoding that is over the limit or does not fit on the disk.

    Args:
        there: bytes of it that are on the disk already.

    Raises:
        FedLensError: with the size, what there is and the remedy.
    """
    check_limit(size, what)
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    if size - there + _SPARE > free:
        raise FedLensError(
            f"encoding {what} takes {(size - there) / 1e9:.1f} GB more, and {folder} has {free / 1e9:.1f} GB "
            f"free ({_SPARE / 1e9:g} GB of it stays free); delete encodings on the page Data & models, or "
            "keep the database on a larger disk",
            "backbone.name",
        )


class Part:
    """An encoding that is being written, row after row; see the module's text for its files.

    Every row up to ``done`` was written by a process that had the same ``about``: a part file of other
    content (another key, shape or data type, a checksum that does not fit) is begun anew.
    """

    def __init__(
        self, path: Path, rows: int, row: tuple[int, ...], dtype: np.dtype, about: dict[str, object]
    ) -> None:
        """Open or begin the part file of ``path``; the caller holds the lock."""
        self.path = path
        self.rows = rows
        self._row = row
        self._dtype = dtype
        self._row_bytes = math.prod(row) * dtype.itemsize
        shape = [rows, *row]
        self._about = about | {"shape": shape, "dtype": dtype.name}
        self._header = _npy_header((rows, *row), dtype)
        self.done = self._finished()
        self._file = self._open()
        self._flushed, self._sum, self._at = self.done, 0, time.monotonic()

    def write(self, values: np.ndarray) -> None:
        """The next rows. Shape: (rows, ...).

        Raises:
            ValueError: for rows of another shape than was announced.
            FedLensError: when the disk is full or not writable, or half precision cannot hold a value.
        """
        if values.shape[1:] != self._row:
            raise ValueError(f"rows of {values.shape[1:]} where {self._row} was announced")
        with np.errstate(over="ignore"):  # looked at in the next line
            stored = np.ascontiguousarray(values, dtype=self._dtype)
        if self._dtype == np.float16 and not np.isfinite(stored).all():
            raise FedLensError(
                f"{self.path.name}: an activation is too large for half precision; use fewer images, so that "
                "they are stored in single precision, or another start layer",
                "backbone.name",
            )
        content = stored.tobytes()
        with self._clear_errors():
            self._file.write(content)
        self._sum = zlib.crc32(content, self._sum)
        self.done += len(values)
        if time.monotonic() - self._at > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Rows to the disk first, then the line that vouches for them.

        Raises:
            FedLensError: when the disk is full or not writable.
        """
        if self.done > self._flushed:
            with self._clear_errors():
                self._file.flush()
                os.fsync(self._file.fileno())
                with _journal(self.path).open("a", encoding="utf-8") as journal:
                    journal.write(json.dumps([self.done, self._sum]) + "\n")
                    journal.flush()
                    os.fsync(journal.fileno())
        self._flushed, self._sum, self._at = self.done, 0, time.monotonic()

    def close(self) -> None:
        """Give the encoding its name where it is complete, else keep what is there for the next time.

        Raises:
            FedLensError: when the disk is full or not writable.
        """
        try:
            self.flush()
        finally:
            self._file.close()
        if self.done == self.rows:
            os.replace(_part(self.path), self.path)
            _journal(self.path).unlink(missing_ok=True)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FedLensError(
                f"cannot write {_part(self.path)}: {error.strerror}; make room and resume the run, which "
                "keeps the images that are on the disk"
            ) from error

    def _open(self) -> IO[bytes]:
        """The part file, cut to the rows that are vouched for."""
        part = _part(self.path)
        if not self.done:
            _journal(self.path).unlink(missing_ok=True)
            self.path.with_suffix(".json").write_text(json.dumps(self._about), encoding="utf-8")
            part.write_bytes(self._header)
        file = part.open("r+b")
        file.truncate(len(self._header) + self.done * self._row_bytes)
        file.seek(0, os.SEEK_END)
        return file

    def _finished(self) -> int:
        """Rows of an earlier attempt that are on the disk as they were written."""
        done = 0
        kept = []
        with suppress(OSError, ValueError, TypeError):  # no file, or a line cut off: what fits is kept
            if json.loads(self.path.with_suffix(".json").read_text(encoding="utf-8")) != self._about:
                return 0
            with _part(self.path).open("rb") as file:
                if file.read(len(self._header)) != self._header:
                    return 0
                for line in _journal(self.path).read_text(encoding="utf-8").splitlines():
                    upto, expected = json.loads(line)
                    if _checksum(file, (upto - done) * self._row_bytes) != expected:
                        break
                    done = upto
                    kept.append(line + "\n")
        if done:
            _journal(self.path).write_text("".join(kept), encoding="utf-8")
        return done


def _npy_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    out = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, facts)
    return out.getvalue()


def _checksum(file: IO[bytes], size: int) -> int | None:
    """CRC-32 of the next ``size`` bytes; None when there are fewer."""
    found = 0
    while size > 0:
        content = file.read(min(size, 1 << 24))
        if not content:
            return None
        found = zlib.crc32(content, found)
        size -= len(content)
    return found


def _part(path: Path) -> Path:
    return path.with_suffix(".part")


def _journal(path: Path) -> Path:
    return path.with_suffix(".journal")


def rows_done(path: Path) -> int:
    """How many rows of an unfinished encoding are on the disk, as its journal says."""
    try:
        return int(json.loads(_journal(path).read_text(encoding="utf-8").splitlines()[-1])[0])
    except (OSError, ValueError, IndexError, TypeError):  # none yet, or a line that is just being written
        return 0


def about(path: Path) -> dict[str, object]:
    """What an encoding is of: data, backbone, reads, shape...; empty for a file of an older release."""
    try:
        return dict(json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Try to become the one who writes an encoding; False when somebody else is writing it.

    The lock is the operating system's: it is free again however its holder dies.
    """
    with path.with_suffix(".lock").open("a+b") as file:
        yield _lock(file, exclusive=True)


def map_shared(path: Path) -> np.ndarray:
    """A finished encoding, memory-mapped copy-on-write (torch wants writable memory, the file stays).

    As long as the array lives, ``delete`` refuses the file: the lock belongs to the open file, which the
    mapping keeps open by a duplicate of its descriptor.

    Raises:
        FedLensError: when the file was deleted meanwhile.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise FedLensError(f"{path} was deleted just now; resume the run, which makes it again") from error
    with file:
        if not _lock(file, exclusive=False):
            raise FedLensError(f"{path} is being deleted just now; resume the run, which makes it again")
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        return np.memmap(file, dtype=dtype, mode="c", offset=file.tell(), shape=shape)


def delete(path: Path) -> int:
    """Delete an encoding, finished or not. Returns: bytes that came free.

    Raises:
        FedLensError: when a run reads or writes it.
    """
    with claim(path) as ours:
        if not ours:
            raise FedLensError(f"{path.name} is being written by a run; stop the run first")
        freed = _remove_unused(path) if path.exists() else 0
        for file in (_part(path), _journal(path), path.with_suffix(".json")):
            if file.exists():
                freed += file.stat().st_size
                file.unlink()
    return freed


def _remove_unused(path: Path) -> int:
    busy = FedLensError(f"{path.name} is in use by a run; wait for it to end or stop it first")
    with path.open("rb") as file:
        if not _lock(file, exclusive=True):
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


def _lock(file: IO[bytes], exclusive: bool) -> bool:
    """Lock an open file without waiting, until it is closed. The Windows branch is untested."""
    if sys.platform == "win32":
        import msvcrt

        if not exclusive:
            return True
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
