"""The command line ``fedlens``. It only calls the library: parse, call, print."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import typer
from typer.main import get_command

from fedcore.cli import app, data, methods, presets, published, queue, results, run, store
from fedcore.cli.options import BAD_INPUT, DONE, complain

SEVERAL = ("--seed", "--columns")
"""Options that take several values at once: ``--seed 1 2 3``."""

top = typer.Typer(
    help="Compare methods of federated CLIP adaptation: train, follow and export, without the browser.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for noun in (run, queue, results, store, data, methods, presets, published, app):
    top.add_typer(noun.commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: default: those of the process.

    Returns: exit status 0 only when the work was done, 2 for bad input, 130 after Ctrl-C.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        status = get_command(top).main(list(_one_value_each(given)), "fedlens", standalone_mode=False)
    except typer.TyperException as error:  # the arguments cannot be parsed
        command = getattr(error, "ctx", None)
        message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
        path = command.command_path if command else "fedlens"
        return complain(f"{message[:1].lower()}{message[1:]}; see `{path} --help`", BAD_INPUT)
    return status if isinstance(status, int) else DONE


def _one_value_each(arguments: Sequence[str]) -> Iterator[str]:
    """``--seed 1 2`` as ``--seed 1 --seed 2``, which is what the parser understands."""
    option, values = "", 0
    for argument in arguments:
        is_option = argument.startswith("-") and not argument[1:].isdigit()
        if is_option:
            option, values = argument if argument in SEVERAL else "", 0
        elif option:
            values += 1
            if values > 1:
                yield option
        yield argument
