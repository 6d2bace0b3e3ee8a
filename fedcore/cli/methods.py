"""``methods``: the methods, and the hyper-parameters of one."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedcore.cli.options import DONE, with_common_options

commands = typer.Typer()


@commands.command("methods")
@with_common_options
def list_methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One of the methods")] = None,
) -> int:
    """List the methods, or the hyper-parameters of one."""
    from fedcore.methods import registry

    if name is None:
        for known, cls in registry.load_all().items():
            print(f"{known:<14} {cls.about.title:<18} {cls.about.source}")
        return DONE
    cls = registry.get(name, "name")
    print(f"{cls.about.title} ({cls.about.source})\n{cls.about.summary}\n")
    for field, info in cls.Config.model_fields.items():
        default = json.dumps(info.get_default(call_default_factory=True), default=str)
        print(f"{field} = {default:<12} # {info.description}")
    return DONE
