"""What a task has found, with digests of the values in its row and of the arrays beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcore.cache.integrity import file_digest, new_digest
from fedcore.store.database import JSON_TABLE

ARRAYS_NAME = "arrays.npz"
"""The file of large results in a task's folder."""
_DIGEST = len(new_digest().hexdigest())


def seal(result: Mapping[str, Any], folder: Path) -> str:
    """Return a result as its row stores it: a digest, and then JSON with a digest of the arrays."""
    content = {"result": result, "arrays": _arrays_digest(folder)}
    text = json.dumps(content, allow_nan=False)
    return new_digest(text.encode()).hexdigest() + text


def unseal(stored: str | bytes, folder: Path) -> dict[str, Any] | None:
    """Return a sealed result; None if it or the arrays are not what was written. Arrays may be missing."""
    sealed = stored if isinstance(stored, bytes) else stored.encode()
    if new_digest(sealed[_DIGEST:]).hexdigest().encode() != sealed[:_DIGEST]:
        return None
    content = JSON_TABLE.validate_json(sealed[_DIGEST:])
    return content["result"] if _arrays_digest(folder) in (None, content["arrays"]) else None


def _arrays_digest(folder: Path) -> str | None:
    try:
        return file_digest(folder / ARRAYS_NAME)
    except FileNotFoundError:
        return None
