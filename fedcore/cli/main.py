"""The entry point of the command ``fedlens``: it parses the arguments and runs one command."""

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module, metadata
from itertools import pairwise
from typing import Annotated, NoReturn

import typer
from typer.main import get_command

import fedcore
from fedcore.base.devices import PATIENT_THREADS
from fedcore.cli.common import BAD_INPUT, DONE, application, print_error, printable_output

for _module in (
    "experiments",
    "serving",
    "results",
    "bundles",
    "database",
    "data",
    "catalog",
    "papers",
):
    import_module(f"fedcore.cli.{_module}")  # adds its commands, which the help lists in this order

MULTI_VALUE_OPTIONS = ("--seed", "--columns")
"""Options that take several values at once: ``--seed 1 2 3``."""
OPTIONAL_VALUES = {"--ray": "auto"}
"""Options that may be given without a value, and the value that they have then."""
_parser = cache(get_command)  # it reads the signatures of all commands, which takes 30 ms


def _print_versions(wanted: bool) -> None:
    if wanted:
        libraries = ("torch", "open_clip_torch", "numpy", "streamlit")
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in libraries)
        print(f"FedLens {fedcore.__version__} (Python {platform.python_version()}, {versions})")
        raise typer.Exit


START = """FedLens compares federated-learning methods for CLIP. What to do next:

  fedlens run --demo                    a comparison without data, weights or network, in two minutes
  fedlens app                           the dashboard, in the browser
  fedlens presets                       experiments of papers; fedlens run --preset NAME trains one
  fedlens run FILE.toml                 an experiment of your own
  fedlens list                          what is recorded
  fedlens export @last                  the numbers of the newest experiment
  fedlens report @last -o report.html   the same as a page with its charts
  fedlens --help                        all commands"""


@application.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print the versions of FedLens and of its main libraries",
        ),
    ] = False,
) -> None:
    """Compare federated-learning methods for CLIP from the command line."""
    if context.invoked_subcommand is None:
        print(START)


def fedlens() -> NoReturn:
    """Run the command of this process, and exit with its status."""
    for name, value in PATIENT_THREADS.items():
        os.environ.setdefault(name, value)
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its arguments are by default those of the process.

    Returns: exit status 0 if the work was done, 2 for bad input, 130 after Ctrl-C, otherwise 1.
    """
    given = sys.argv[1:] if arguments is None else arguments
    with printable_output():
        try:
            status = _parser(application).main(list(_spelled_out(given)), "fedlens", standalone_mode=False)
        except typer.TyperException as error:  # the arguments cannot be parsed
            context = getattr(error, "ctx", None)
            message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
            path = context.command_path if context else "fedlens"
            return print_error(f"{message[:1].lower()}{message[1:]}; see `{path} --help`", BAD_INPUT)
        return status if isinstance(status, int) else DONE


def _spelled_out(arguments: Sequence[str]) -> Iterator[str]:
    """Write arguments as the parser understands them: ``--seed 1 --seed 2`` and ``--ray auto``."""
    option, values = "", 0
    for argument, following in pairwise([*arguments, "-"]):
        if argument.startswith("-") and not argument[1:].isdigit():
            option, values = argument, 0
        else:
            values += 1
            if values > 1 and option in MULTI_VALUE_OPTIONS:
                yield option
        yield argument
        if argument in OPTIONAL_VALUES and following.startswith("-"):
            yield OPTIONAL_VALUES[argument]
