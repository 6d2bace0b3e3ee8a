"""An experiment's plain values as TOML text, which the standard library reads but does not write."""

from __future__ import annotations

import json
from typing import Any


def written(content: dict[str, Any]) -> str:
    """The text of an experiment file: plain fields, then sections, the sweep, and lists of tables.

    Args:
        content: an experiment as JSON has it, without what is none: TOML has no null.
    """
    content = dict(content)
    lists = {key: content.pop(key) for key in ("cohorts", "methods", "reproduces")}
    tables = {key: content.pop(key) for key in ("data", "partition", "backbone")}
    sweep = content.pop("sweep")
    lines = [f"{key} = {_toml(value)}" for key, value in content.items()]
    for key, table in tables.items():
        lines += ["", f"[{key}]", *(f"{k} = {_toml(v)}" for k, v in table.items())]
    if sweep:
        lines += ["", "[sweep]", *(f"{json.dumps(k)} = {_toml(v)}" for k, v in sweep.items())]
    for key, entries in lists.items():
        for entry in map(dict, entries):
            below = _below(f"{key}.config", entry.pop("config", None))  # tables come last
            lines += ["", f"[[{key}]]", *(f"{k} = {_toml(v)}" for k, v in entry.items() if v != []), *below]
    return "\n".join(lines) + "\n"


def _below(path: str, config: dict[str, Any] | None) -> list[str]:
    """A method's hyper-parameters: on one line, or as tables where one of them is a table itself."""
    if config is None:
        return []
    tables = {k: v for k, v in config.items() if isinstance(v, dict) and v}
    if not tables:
        return [f"config = {_toml(config)}"]
    lines = [
        "",
        f"[{path}]",
        *(f"{_toml(k)} = {_toml(v)}" for k, v in config.items() if k not in tables and v is not None),
    ]
    for name, table in tables.items():
        lines += ["", f"[{path}.{_toml(name)}]", *(f"{_toml(k)} = {_toml(v)}" for k, v in table.items())]
    return lines


def _toml(value: object) -> str:
    if isinstance(value, dict):  # TOML has no null: a field that is none is left out
        parts = [f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items() if v is not None]
        return "{ " + ", ".join(parts) + " }" if parts else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):  # JSON strings are TOML basic strings, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
