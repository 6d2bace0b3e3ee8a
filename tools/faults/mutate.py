"""Seeded mutations of texts and files, as an editor, a script or a stranger may make them."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import numpy as np

TOKENS = (
    "", "0", "-1", "1e15", "1e308", "NaN", "Infinity", "-inf", "null", "true", "9223372036854775808", "0.1",
    "\uff11\uff12", "\x00", "\ufeff", "\r\n", "\u202e", "'", '"', '""', ",", ";", "{", "}", "[", "]", "\\",
    "../../etc/passwd", "=cmd()", "<script>", "é" * 300, "9" * 5000, "a.b.c", "%s", "{0}", " ",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    10**400,
    1e308,
    -1e308,
    1e-320,
    0.5,
    "",
    " ",
    "\x00",
    "NaN",
    "x" * 5000,
    "\ud800",
    "global",
    [],
    {},
    [None],
    [[]],
    {"": None},
    "2026-01-01",
    float("nan"),
    float("inf"),
)
DEEP = 200_000


def mutate_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Change a file in one to four places without regard for its format."""
    for _ in range(rng.integers(1, 5)):
        content = _one_change(content, rng)
    return content


def _one_change(content: bytes, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content) + 1))
    end = min(len(content), start + int(rng.geometric(0.1)))
    token = str(rng.choice(TOKENS)).encode("utf-8", "surrogatepass")
    kind = rng.integers(7)
    if kind == 0 and content:
        place = min(start, len(content) - 1)
        return content[:place] + bytes([content[place] ^ 1 << int(rng.integers(8))]) + content[place + 1 :]
    middle = (b"", token, content[start:end] * 2, rng.bytes(4), b"", token)[kind - 1]
    return content[:start] + middle + (b"" if kind == 5 else content[end:])


def mutate_lines(content: bytes, separator: bytes, rng: np.random.Generator) -> bytes:
    """Change one to three cells of a table, or drop, repeat or swap lines of it."""
    lines = content.split(b"\n")
    for _ in range(rng.integers(1, 4)):
        one, other = (int(i) for i in rng.integers(len(lines), size=2))
        kind = rng.integers(5)
        if kind == 0 and len(lines) > 1:
            del lines[one]
        elif kind == 1:
            lines.insert(other, lines[one])
        else:
            cells = lines[one].split(separator)
            token = str(rng.choice(TOKENS)).encode("utf-8", "surrogatepass")
            cells[rng.integers(len(cells))] = token
            lines[one] = separator.join(cells)
    return b"\n".join(lines)


def mutate_json(content: bytes, rng: np.random.Generator) -> bytes:
    """Change one to three values of a JSON file, or drop or rename keys of it."""
    if rng.random() < 0.01:
        return b'{"format":' + b"[" * DEEP + b"]" * DEEP + b"}"
    value = json.loads(content)
    for _ in range(rng.integers(1, 4)):
        _change_below(value, rng)
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _change_below(value: Any, rng: np.random.Generator) -> None:
    """Change something at a random depth."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = keys[rng.integers(len(keys))]
        inner = value[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
            value = inner
            continue
        kind = rng.integers(6)
        if kind == 0:
            del value[key]
        elif kind == 1 and isinstance(value, dict):
            value[str(rng.choice(TOKENS))] = value.pop(key)
        elif kind == 1:
            value.insert(0, inner)
        else:
            value[key] = deepcopy(VALUES[rng.integers(len(VALUES))])
        return
