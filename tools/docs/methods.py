"""The blocks of docs/methods/, each method's idea and its table of fields, and the lists of all methods."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedcore.base.presentation import built_in
from fedcore.methods import registry
from fedcore.methods.hyperparameters import MethodConfig
from tools.docs.blocks import FOLDER, fill

PAGES = FOLDER / "methods"
README, NAVIGATION = FOLDER.parent / "README.md", FOLDER.parent / "mkdocs.yml"
CENTRE = 4
"""Methods that the README names before this list: the first ones of the index."""
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def render(text: str) -> str:
    """Return a page with every block written from the code.

    Raises:
        FedLensError: for a marker that names no method.
    """
    return fill(text, {"idea": idea, "fields": fields, "readings": readings, "methods": listed})


def readme(text: str) -> str:
    """Return the README with the titles of all methods."""
    titles = [method.title for method in built_in().values()][CENTRE:]
    return fill(text, {"methods": lambda _: ", ".join(titles) + ".\n"})


def navigation(text: str) -> str:
    """Return mkdocs.yml with a line for each method's page."""
    lines = [f"      - {method.title}: methods/{name}.md\n" for name, method in built_in().items()]
    return re.sub(r"(?<=      - methods/index.md\n)(?: +- [^\n]+: methods/[^\n]+\n)+", "".join(lines), text)


def listed(_: str) -> str:
    """Return the table of methods; the second line of a method's page holds the cells of its row."""
    rows = [
        "| method | name | shared | stays with the client | numbers sent by a client in a round |",
        "|---|---|---|---|---|",
    ]
    for name, method in built_in().items():
        row = re.search(r"^<!-- row: (.*) -->$", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.M)
        cells = f"[{method.title}]({name}.md)", f"`{name}`", row[1] if row else " | | "
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def idea(name: str) -> str:
    """Return a method's paper and its idea."""
    about = registry.get(name).about
    return f"*{about.source}.*\n\n{about.summary}\n"


def readings(name: str) -> str:
    """Return a table of what a method declares that its paper leaves open."""
    rows = ["| open | the paper | FedLens | other readings |", "|---|---|---|---|"]
    config: Any = registry.get(name).Config
    for point in config.left_open:
        others = "; ".join(
            f"{label}: " + ", ".join(f"`{field} = {json.dumps(value)}`" for field, value in of.items())
            for label, of in point.others.items()
        )
        rows.append(f"| {point.name} | {point.why} | {point.ours} | {others} |")
    return "\n".join(rows) + "\n"


def fields(name: str) -> str:
    """Return a table of a method's own fields, or of those that all methods have (``all``).

    A method whose config extends that of another method has rows for what differs from it, and only the
    names of the other fields that both have.
    """
    if name == "all":
        return table(MethodConfig, {})
    config = registry.get(name).Config
    common = MethodConfig.model_fields if issubclass(config, MethodConfig) else {}
    owners = {registry.get(other).Config: (other, method.title) for other, method in built_in().items()}
    parent = next((base for base in config.__mro__[1:] if base in owners), None)
    if parent is None:
        return table(config, common)
    of_parent = table(parent, common).splitlines()
    same = [row.split("|")[1].strip() for row in table(config, common).splitlines()[2:] if row in of_parent]
    other, title = owners[parent]
    own = table(config, {**common, **parent.model_fields})
    return f"{own}\nAlso {', '.join(same)}, as for [{title}]({other}.md).\n" if same else own


def table(config: type[BaseModel], common: dict[str, FieldInfo]) -> str:
    """Return a row for each field that is not exactly as in ``common``."""
    specific = {n: f for n, f in config.model_fields.items() if n not in common or not _equal(f, common[n])}
    if not specific:
        return "No field of its own.\n"
    rows = ["| field | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in specific.items():
        cells = f"`{name}`", _default(field), _allowed(field), field.description or ""
        rows.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(rows) + "\n"


def _equal(one: FieldInfo, other: FieldInfo) -> bool:
    return (one.default, one.description) == (other.default, other.description)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None:
        return str((field.json_schema_extra or {}).get("empty", "none"))  # type: ignore[union-attr]
    return f"`{value or '(empty)' if isinstance(value, str) else json.dumps(value, default=str)}`"


def _allowed(field: FieldInfo) -> str:
    """Return the choices or the range of a field, in short; empty if its description says what is allowed."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) is not Literal else ()
    choices = [c for k in (field.annotation, *kinds) if get_origin(k) is Literal for c in get_args(k)]
    if choices:
        return ", ".join([f"`{c}`" for c in choices] + ["a number"] * (float in kinds))
    if field.annotation is bool:
        return "`true`, `false`"
    limits = {n: getattr(m, n) for m in field.metadata for n in SIGNS if hasattr(m, n)}
    if limits.keys() == {"ge", "le"}:
        return f"{limits['ge']:g} to {limits['le']:g}"
    return ", ".join(f"{SIGNS[name]} {limit:g}" for name, limit in limits.items())
