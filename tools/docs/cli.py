"""The blocks of docs/cli.md: what the help of the commands and groups of their names says."""

from __future__ import annotations

from collections import Counter

from typer.core import TyperArgument, TyperCommand
from typer.main import get_command

from fedcore.cli import main
from tools.docs.blocks import FOLDER, fill

PAGE = FOLDER / "cli.md"
EVERYWHERE = ("db", "methods", "debug", "quiet", "as_json")
"""Options of nearly all commands, which the introduction of the page explains."""


def commands() -> dict[str, TyperCommand]:
    """Return the visible commands by their words: ``run``, ``data check``..."""
    top = get_command(main.application).commands
    below = {f"{name} {inner}": c for name in top for inner, c in getattr(top[name], "commands", {}).items()}
    every = {name: c for name, c in top.items() if not hasattr(c, "commands")} | below
    return {name: command for name, command in every.items() if not command.hidden}


def render(text: str) -> str:
    """Return the page with a block for each section; what several commands take is explained once."""
    found = commands()
    lines = {name: _lines(command) for name, command in found.items()}
    count = Counter(line for of_command in lines.values() for line in of_command)
    shared = [line for line in count if count[line] > 1]

    def block(marked: str) -> str:
        return "\n".join(one(name) for name in found if name.split()[0] in marked.split("-"))

    def one(name: str) -> str:
        own = "\n".join(line for line in lines[name] if line not in shared)
        also = ", ".join(f"`{line.split('`')[1].split()[0]}`" for line in lines[name] if line in shared)
        text = (found[name].help or "").replace("\b\n", "")  # the mark that keeps lines of a list apart
        given = " ".join(
            [name, *(p.metavar or "" for p in found[name].params if isinstance(p, TyperArgument))]
        )
        parts = [f"**`fedlens {given}`** {text}", own, f"Also {also}." if also else ""]
        return "\n\n".join(filter(None, parts)) + "\n"

    return fill(text, {"commands": block, "shared": lambda _: "\n".join([*shared, ""])})


def _lines(command: TyperCommand) -> list[str]:
    """Return a line for each argument, and for each option that not all commands have."""
    lines = []
    for parameter in command.params:
        if parameter.name in EVERYWHERE or getattr(parameter, "hidden", False):
            continue
        choices = "|".join(map(str, parameter.type_descriptor.choices or ()))
        option = "" if isinstance(parameter, TyperArgument) else max(parameter.opts, key=len)
        name = f"{option} {parameter.metavar or choices}".strip()
        if parameter.help:
            lines.append(f"- `{name}`: {parameter.help}")
    return lines
