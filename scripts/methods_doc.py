"""Write each method's idea and its table of fields into docs/methods.md, from the code that defines them.

python -m scripts.methods_doc            # rewrite what stands between the markers
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedcore.methods import registry
from fedcore.methods.base import MethodConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "methods.md"
BLOCK = re.compile(r"(<!-- (idea|fields): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def render(text: str) -> str:
    """The page with every block between markers as the code has it.

    Raises:
        FedLensError: for a marker that names no method.
    """
    return BLOCK.sub(lambda m: m[1] + _block(m[2], m[3]) + m[4], text)


def _block(kind: str, name: str) -> str:
    if name == "all":
        return table(MethodConfig, {})
    cls = registry.get(name)
    if kind == "idea":
        return f"*{cls.about.source}.*\n\n{cls.about.summary}\n"
    common = MethodConfig.model_fields if issubclass(cls.Config, MethodConfig) else {}
    return table(cls.Config, common)


def table(config: type[BaseModel], common: dict[str, FieldInfo]) -> str:
    """A row for each field that is not exactly as in ``common``."""
    fields = {n: f for n, f in config.model_fields.items() if n not in common or not _same(f, common[n])}
    if not fields:
        return "No field of its own.\n"
    rows = ["| field | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        cells = f"`{name}`", f"`{_default(field)}`", _allowed(field), field.description or ""
        rows.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(rows) + "\n"


def _same(one: FieldInfo, other: FieldInfo) -> bool:
    return (one.default, one.description) == (other.default, other.description)


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _allowed(field: FieldInfo) -> str:
    """Choices or range, in few signs."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) is not Literal else ()
    choices = [c for k in (field.annotation, *kinds) if get_origin(k) is Literal for c in get_args(k)]
    if choices:
        return ", ".join([f"`{c}`" for c in choices] + ["a number"] * (float in kinds))
    if field.annotation is bool:
        return "`true`, `false`"
    limits = [(SIGNS[n], getattr(m, n)) for m in field.metadata for n in SIGNS if hasattr(m, n)]
    return ", ".join(f"{sign} {limit:g}" for sign, limit in limits) or "see meaning"


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
