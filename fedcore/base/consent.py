"""Python files of the user's own, methods and encoders, and the user's agreement to run each of them.

Such a file is a program with all rights of the account. One that the user names (``--methods``,
``FEDLENS_METHODS``, ``registry.load_file``) is agreed to by that. One that an experiment names may come from
somebody else, so it runs only after the user has agreed. Agreements are remembered by path and content; a
changed file needs a new one.
"""

import builtins
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.files import state_folder, user_path

CALLABLE = "callable"
"""Backbone that such a file defines, whose path is in place of the weights."""
FILE = "method-files.json"
_INSTALLED = (Path(os.__file__).parent, Path(sys.base_prefix, "DLLs"), Path(__file__).parents[1])
"""Folders of Python's modules and of fedcore."""
_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Names of the folders of installed packages."""
RECEIVED: dict[Path, bytes] = {}
"""Content of files that came with a run from another machine, by their paths there."""
_THIS_PROCESS: set[tuple[str, str]] = set()
"""Path and SHA-256 of files agreed to in this process, in case they cannot be stored on disk."""


class NotAgreed(FedLensError):
    """An experiment names a file that the user has not agreed to run.

    Attributes:
        file: its absolute path.
        sha256: of the content that would run.
    """

    def __init__(self, file: Path, sha256: str, field: str = "methods") -> None:
        super().__init__(
            f"the experiment names the file {file}, which you have not agreed to run as it is now; "
            f"read it, then agree on the page New or Run, or name it with --methods {file}",
            field,
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


def read(path: str | Path, field: str = "methods") -> tuple[Path, bytes]:
    """Return the absolute path and the content of a Python file."""
    file = user_path(path, field).resolve()
    if file in RECEIVED:
        return file, RECEIVED[file]
    if not file.is_file():
        raise FedLensError(f"no Python file at {file}; give the path of one", field)
    try:
        return file, file.read_bytes()
    except OSError as error:
        raise FedLensError(f"cannot read {file}: {error.strerror}; give another file", field) from error


def agreed(path: str | Path, sha256: str | None = None, field: str = "methods") -> tuple[Path, bytes]:
    """Return the absolute path and the content of a file that an experiment names.

    Args:
        sha256: of the content that a run was planned with.

    Raises:
        NotAgreed: when the user has not agreed to run the file as it is now.
    """
    file, content = read(path, field)
    now = digest(content)
    if sha256 is not None and now != sha256:
        raise FedLensError(
            f"{path} has changed since this run was planned; clone or restart it to use the "
            "new file, or put the old one back",
            "method.file",
        )
    if not is_agreed(file, now):
        raise NotAgreed(file, now, field)
    return file, content


def receive(path: str | Path, content: bytes) -> None:
    """Accept a file that came with a run; the user agreed to its content on the machine that sent it.

    The file need not exist on this machine; the run's config names it by its path on the other one.
    """
    file = user_path(path, "methods").resolve()
    RECEIVED[file] = content
    agree_for_process(file, digest(content))


def run(file: Path, content: bytes, field: str = "methods") -> ModuleType:
    """Run a file's content, to which the user has agreed, and return it as a module."""
    module = ModuleType("fedlens_own_" + file.stem)
    module.__file__ = str(file)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": partial(_import, file, field)}
    # pydantic looks up the annotations of a config class in the module that sys.modules has by its name.
    sys.modules[module.__name__] = module
    with faults_named(file, "does not import:", field):
        exec(compile(content, file, "exec"), module.__dict__)
    return module


@contextmanager
def faults_named(file: Path, what: str, field: str) -> Iterator[None]:
    """Tell an error that a user's file raises in one line, with the line of the file where it arose."""
    try:
        yield
    except FedLensError:
        raise
    except (Exception, SystemExit) as error:
        frames = [(f.f_code, line) for f, line in walk_tb(error.__traceback__)]
        own = [f":{line}, in {code.co_name}" for code, line in frames if code.co_filename == str(file)]
        raise FedLensError(f"{file}{own[-1] if own else ''}: {what} {first_line(error)}", field) from error


def _import(file: Path, field: str, name: str, *given: Any, **named: Any) -> ModuleType:
    """Import for a user's file what is installed.

    A module of the user's own would run without consent, and a run could resume with another version of it.
    """
    places = [name]  # without a spec it is another such file, or the script that runs
    with suppress(ValueError):
        spec = importlib.util.find_spec(name.partition(".")[0])
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if spec is not None and spec.has_location and spec.origin is not None:
            places.append(spec.origin)
    for place in map(Path, places):
        if not any(map(place.is_relative_to, _INSTALLED)) and _PACKAGES.isdisjoint(place.parts):
            raise FedLensError(
                f"{file} imports '{name or '.'}', which is not installed; it is one file, so put into "
                "it what it needs from there, or install that as a package (without --editable)",
                field,
            )
    return builtins.__import__(name, *given, **named)
