"""The methods of FedLens as ``assets/methods.toml`` lists them, known without loading their files."""

import tomllib
from functools import cache
from typing import NamedTuple

from fedcore.files import ASSETS


class BuiltIn(NamedTuple):
    """A method's name in forms, tables and charts, and the module that registers it."""

    title: str
    module: str


@cache
def built_in() -> dict[str, BuiltIn]:
    """Return the methods by name, in the order of their looks in charts."""
    listed = tomllib.loads((ASSETS / "methods.toml").read_text(encoding="utf-8"))
    return {name: BuiltIn(one["title"], f"fedcore.methods.{one['module']}") for name, one in listed.items()}
