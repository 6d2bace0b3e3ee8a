"""The methods of FedLens as ``assets/methods.toml`` lists them, known without loading their files."""

import re
import tomllib
from functools import cache
from typing import NamedTuple

from fedcore.base.files import ASSETS


class BuiltIn(NamedTuple):
    """A method's title, the module that registers it, and the keys of its papers (``references``)."""

    title: str
    module: str
    cites: tuple[str, ...]


@cache
def built_in() -> dict[str, BuiltIn]:
    """Return the methods by name, in the order of their looks in charts."""
    listed = tomllib.loads((ASSETS / "methods.toml").read_text(encoding="utf-8"))
    return {
        name: BuiltIn(one["title"], f"fedcore.methods.{one['module']}", tuple(one["cites"]))
        for name, one in listed.items()
    }


@cache
def references() -> dict[str, str]:
    """Return the BibTeX entries of papers by their keys."""
    entries = re.split(r"\n(?=@)", (ASSETS / "references.bib").read_text(encoding="utf-8").strip())
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry.strip() for entry in entries}
