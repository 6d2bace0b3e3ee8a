"""The user agrees to each method file before it runs, because it is a program with all rights of the account.

A file that the user names (``--methods``, ``FEDLENS_METHODS``, ``load_file``) is agreed to by that. One that
an experiment names may come from somebody else, so it is loaded only after the user has agreed. Agreements
are remembered by path and content; a changed file needs a new one.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from fedcore.base.errors import FedLensError
from fedcore.base.files import state_folder

FILE = "method-files.json"
_THIS_PROCESS: set[tuple[str, str]] = set()
"""Path and SHA-256 of files agreed to in this process, in case they cannot be stored on disk."""


class NotAgreed(FedLensError):
    """An experiment names a method file that the user has not agreed to.

    Attributes:
        file: its absolute path.
        sha256: of the content that would run.
    """

    def __init__(self, file: Path, sha256: str) -> None:
        super().__init__(
            f"the experiment names the method file {file}, which you have not agreed to run as it is now; "
            f"read it, then agree on the page New or Run, or name it with --methods {file}",
            "methods",
        )
        self.file = file
        self.sha256 = sha256


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def is_agreed(file: Path, sha256: str) -> bool:
    """Return whether the user has agreed to a file with this content."""
    return (str(file), sha256) in _THIS_PROCESS or sha256 in _agreements().get(str(file), ())


def agree(file: Path, sha256: str) -> None:
    """Remember that the user agreed to a file with this content."""
    if is_agreed(file, sha256):
        return
    _THIS_PROCESS.add((str(file), sha256))
    agreed = _agreements()
    agreed[str(file)] = [sha256]
    folder = state_folder()
    # Written beside the file and renamed, so that another process never reads half of it.
    part = folder / f"{FILE}.{os.getpid()}"
    with suppress(OSError):  # the agreement then holds for this process only
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_text(json.dumps(agreed, indent=2), encoding="utf-8")
        part.chmod(0o600)
        part.replace(folder / FILE)


def agree_for_process(file: Path, sha256: str) -> None:
    """Let this process run a file to which the user agreed on the machine that sent it."""
    _THIS_PROCESS.add((str(file), sha256))


def version() -> str:
    """Return a text that changes whenever the user agrees to a file, as part of the key of cached plans."""
    return digest(json.dumps([_agreements(), sorted(_THIS_PROCESS)]).encode())


def _agreements() -> dict[str, list[str]]:
    """Return the stored agreements, path -> SHA-256 of contents; empty if they cannot be read."""
    try:
        agreed = json.loads((state_folder() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return agreed if isinstance(agreed, dict) and all(isinstance(v, list) for v in agreed.values()) else {}
