"""The limits of config fields, and values inside and outside them."""

from __future__ import annotations

import math
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

SIGNS = {
    "ge": "greater than or equal to",
    "gt": "greater than",
    "le": "less than or equal to",
    "lt": "less than",
}


def limits(info: FieldInfo) -> list[tuple[str, float]]:
    return [(sign, getattr(m, sign)) for m in info.metadata for sign in SIGNS if hasattr(m, sign)]


def is_whole(info: FieldInfo) -> bool:
    return int in kinds(info) and float not in kinds(info)


def outside(sign: str, limit: float, whole: bool) -> float:
    """The nearest number that a limit forbids."""
    if sign in ("gt", "lt"):
        return limit
    if whole:
        return int(limit) - 1 if sign == "ge" else int(limit) + 1
    return math.nextafter(limit, -math.inf if sign == "ge" else math.inf)


def inside(sign: str, limit: float, whole: bool) -> float:
    """The nearest number that a limit allows."""
    if sign in ("ge", "le"):
        return int(limit) if whole else limit
    if whole:
        return int(limit) + (1 if sign == "gt" else -1)
    return math.nextafter(limit, math.inf if sign == "gt" else -math.inf)


def kinds(info: FieldInfo) -> list[object]:
    """The types of a field's union, or its one type."""
    return (
        [info.annotation]
        if get_origin(info.annotation) is Literal
        else [
            info.annotation,
            *get_args(info.annotation),
        ]
    )


def choices(info: FieldInfo) -> list[str]:
    return [c for kind in kinds(info) if get_origin(kind) is Literal for c in get_args(kind)]
