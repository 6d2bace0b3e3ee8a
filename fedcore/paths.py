"""The folders of FedLens, and paths that a user names."""

from __future__ import annotations

import os
from pathlib import Path

from fedcore.errors import FedLensError, first_line

ASSETS = Path(__file__).resolve().parent / "assets"
_BESIDE = Path(__file__).resolve().parent.parent
IN_CHECKOUT = (_BESIDE / "pyproject.toml").is_file()
"""Whether the package runs from a checkout; otherwise it was installed."""
PROJECT = _BESIDE if IN_CHECKOUT else _BESIDE / "fedlens_app"
"""The folder with ``app.py``, ``pages/`` and ``docs/``: the checkout, or the installed ``fedlens_app``."""


def user_path(path: str | Path, field: str | None = None) -> Path:
    """Return the path that a user names, with ``~`` as the home folder."""
    try:
        named = Path(path).expanduser()
        named.resolve().exists()
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


def state_folder() -> Path:
    """Return the folder in which FedLens stores consents and the like for this account; it may not exist yet.

    It is FEDLENS_STATE, or ``fedlens`` in the user's state folder.
    """
    named = os.environ.get("FEDLENS_STATE")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(named) if named else Path(state) / "fedlens"
