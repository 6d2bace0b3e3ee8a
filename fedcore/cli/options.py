"""Options that all commands share, and errors printed in one line."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.errors import FedLensError, first_line
from fedcore.system_errors import explain

if TYPE_CHECKING:
    from fedcore.store import Store

DONE, NOT_DONE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses."""

Database = Annotated[
    Path | None,
    typer.Option(
        "--db",
        metavar="FILE",
        help="Database (default: FEDLENS_DB, or runs.db in the checkout, elsewhere in the current folder)",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error")]
MethodFiles = Annotated[
    list[Path] | None,
    typer.Option("--methods", metavar="FILE", help="Python file with a method of your own; may be repeated"),
]
RunIds = Annotated[
    list[int], typer.Argument(metavar="ID", help="Ids of runs (with --experiment: of experiments)")
]
Where = Annotated[
    str,
    typer.Option(metavar="FILTER", help='Only these runs: "method = fedot and partition.alpha < 0.5"'),
]
OfExperiments = Annotated[
    bool, typer.Option("--experiment", help="The ids are experiments: take all of their runs")
]


def with_common_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options ``--methods`` and ``--debug``, and print its errors in one line.

    Args:
        command: returns its exit status; it may take ``debug`` too.
    """

    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def run(*, methods: list[Path] | None, debug: bool, **options: object) -> int:
        try:
            with _warnings_in_one_line():
                if methods:
                    from fedcore.methods import registry

                    for file in methods:
                        registry.load_file(file)
                return command(**options, **({"debug": debug} if "debug" in own.parameters else {}))
        except FedLensError as error:
            return print_error(error.line(), BAD_INPUT, debug)
        except KeyboardInterrupt:
            return print_error("interrupted", INTERRUPTED, debug)
        except BrokenPipeError:  # `... | head` is not an error; keep Python from flushing the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return NOT_DONE
        except Exception as error:  # noqa: BLE001 - the last resort: one line, the traceback with --debug
            fault = explain(error, "this command")
            line = f"{first_line(error)}; --debug shows where" if fault is None else fault.line()
            return print_error(line, NOT_DONE, debug)

    shared = [
        inspect.Parameter("methods", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=MethodFiles),
        inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug),
    ]
    kept = [parameter for parameter in own.parameters.values() if parameter.name != "debug"]
    run.__signature__ = own.replace(parameters=[*kept, *shared])  # type: ignore[attr-defined]
    return run


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings that concern the user's files, such as renamed fields, as notes without source code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_in_one_line(
            message: Warning | str, category: type[Warning], *where: Any, **more: Any
        ) -> None:
            if issubclass(category, FutureWarning):
                print_note(str(message))
            else:
                show(message, category, *where, **more)

        warnings.showwarning = show_in_one_line
        yield


def print_error(line: str, status: int, debug: bool = False) -> int:
    """Print an error, after its traceback if ``debug`` is set, and return the exit status."""
    if debug:
        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr)
    return status


def print_note(line: str) -> None:
    """Print a remark that is not an error."""
    print(f"note: {line}", file=sys.stderr)


def warn_of_damage(store: Store) -> None:
    """Check the database whose numbers have been printed, and say if they may be wrong; there may be none.

    Raises:
        FedLensError: when the database cannot be opened.
    """
    sys.stdout.flush()  # the check of a large database takes seconds
    if store.path.is_file() and (warning := store.integrity.warning()):
        print(f"warning: {warning}", file=sys.stderr)


def writable(db: Path | None) -> Path:
    """Create or migrate the database, and return its path.

    Raises:
        FedLensError: field ``db``, if it cannot be written.
    """
    from fedcore.store import Store
    from fedcore.system_errors import ReadOnlyDatabase

    access = Store(db).prepare()
    if not access.writable:
        raise ReadOnlyDatabase(access.why or "", "db")
    return access.path
