"""A filter over runs in words: ``method = fedot and partition.alpha < 0.5``.

Fields are those of a run (``RUN_FIELDS``) and of its config by their dotted names; the end of a name is
enough if it names one field: ``alpha``, ``lr``, and so is a title of the tab Config, ``learning rate``.
Accuracy cannot be filtered on: with runs chosen by their test accuracy, a comparison could be made to say
anything.
"""

import ast
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.config import RunConfig
from fedcore.config.field_names import field_phrase
from fedcore.results.settings import config_for_display
from fedcore.store import RunRow

RUN_FIELDS: dict[str, str] = {
    "run": "number of the run",
    "experiment": "number of the experiment",
    "method": "machine name of the method, such as fedot",
    "label": "name of the method in tables",
    "seed": "random seed",
    "held_out": "held-out domain",
    "state": "queued, running, done, failed, ...",
    "origin": "engine, recorder or import",
    "device": "device that trained it",
    "rounds_done": "finished rounds",
    "starred": "yes for runs with a star",
    "tags": "tags that you gave the run",
    "notes": "notes that you wrote beside it",
}
"""Fields of a run that are not in its config."""
MAX_LENGTH = 2000
RunFields = Mapping[str, Any]
"""The values of one run by field."""

# The parts of a condition. A word ends at a sign or a space and is never given back (++), so that a filter
# that does not match is refused quickly.
_SIGN = r"""[=<>!(),"'\s]"""
_WORD = rf"(?!(?:and|or|not|in|contains)(?:{_SIGN}|\Z))(?:(?!{_SIGN}).)++"
_VALUE = rf"""(?:"[^"]*"|'[^']*'|{_WORD}(?:\s+{_WORD})*)"""
_CONDITION = re.compile(
    rf"(?<![^\s(])(?P<field>(?=[\w.\-]+(?:{_SIGN}|\Z)){_WORD})\s*(?:"
    rf"(?P<negated>not\s+)?in\s*\(\s*(?P<listed>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)"
    rf"|(?P<operator><=|>=|!=|==|<>|[=<>]|contains\b)\s*(?P<value>{_VALUE}))",
    re.IGNORECASE,
)
_SYNONYMS = {"==": "=", "<>": "!="}
_JOINING = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Name, ast.Load)
"""Python's names of what joins conditions; ``a (b)``, for example, is a call and refused."""


@dataclass(frozen=True)
class Condition:
    """A field, an operator and the value or values after it."""

    field: str
    operator: str
    values: tuple[str, ...]
    negated: bool = False


def select(text: str, records: Mapping[int, RunFields]) -> set[int]:
    """Return the runs that a filter keeps; an empty filter keeps all.

    A run that lacks a field meets ``field = none`` and no other condition on it.

    Raises:
        FedLensError: field ``where``, for an unreadable filter, an unknown field, or an order (``<``) of
            values that are not numbers.
    """
    if not text.strip():
        return set(records)
    fields = dict.fromkeys([*RUN_FIELDS, *(name for record in records.values() for name in record)])
    term, conditions = parse(_titles_replaced(text, fields))
    names = [_resolve(c.field, fields) for c in conditions]
    for condition, name in zip(conditions, names, strict=True):
        values = [r[name] for r in records.values() if r.get(name) is not None]
        ordered = condition.operator in ("<", "<=", ">", ">=")
        if ordered and values and all(_as_number(value) is None for value in values):
            raise FedLensError(
                f"the filter compares '{condition.field}' with {condition.operator}, but it holds no "
                f"numbers, such as '{values[0]}'; use = or contains",
                "where",
            )
    selected = set()
    for run, record in records.items():
        met = {f"c{i}": _meets(c, record.get(names[i])) != c.negated for i, c in enumerate(conditions)}
        if _holds(term, met):
            selected.add(run)
    return selected


def run_records(runs: Iterable[RunRow], configs: Mapping[int, RunConfig]) -> dict[int, RunFields]:
    """Return the values that a filter reads, by run: fields of the run and of its config."""
    resolved: dict[tuple[str, bool], RunFields] = {}
    records: dict[int, RunFields] = {}
    for run in runs:
        key = run.group_hash, run.origin == "engine"
        config = resolved.get(key)
        if config is None:  # runs of one hash differ in seed and held-out domain only, which are the run's
            config = resolved[key] = config_for_display(configs[run.id], key[1])
        of_run = {name: getattr(run, name) for name in RUN_FIELDS if name not in ("run", "experiment")}
        of_run |= {"method.label": run.label}
        records[run.id] = {**config, **of_run, "run": run.id, "experiment": run.experiment_id}
    return records


def parse(text: str) -> tuple[ast.expr, tuple[Condition, ...]]:
    """Read a filter: its conditions, and the expression that joins them under the names c0, c1, ...

    ``and``, ``or``, ``not`` and brackets are valid Python, so Python's parser reads them. Conditions are not,
    because a value needs no quotation marks (``label = Zero-shot CLIP``).
    """
    if len(text) > MAX_LENGTH:
        _refuse(f"it is longer than {MAX_LENGTH} characters")
    for stray in re.findall(r"[()]|[^\s()]+", _CONDITION.sub(" ", text)):
        if stray.lower() not in ("and", "or", "not", "(", ")"):
            _refuse(f"there is no condition at {stray}; {_EXAMPLE}")
    conditions: list[Condition] = []

    def name(match: re.Match[str]) -> str:
        operator = (match["operator"] or "in").lower()
        values = re.findall(_VALUE, match["listed"] or match["value"], re.IGNORECASE)
        plain = tuple(v[1:-1] if v[0] in "\"'" else " ".join(v.split()) for v in values)
        negated = match["negated"] is not None
        conditions.append(Condition(match["field"], _SYNONYMS.get(operator, operator), plain, negated))
        return f" c{len(conditions) - 1} "

    joined = " ".join(_CONDITION.sub(name, text).lower().split())
    try:
        term = ast.parse(joined, mode="eval").body
        readable = all(isinstance(node, _JOINING) for node in ast.walk(term))
    except (SyntaxError, RecursionError, MemoryError):
        readable = False
    if not readable:
        _refuse(f"its brackets or a word such as 'and' are in the wrong place; {_EXAMPLE}")
    for condition in conditions:
        value = condition.values[0]
        if condition.operator[0] in "<>" and _number(value) is None:
            _refuse(f"'{condition.field} {condition.operator}' needs a number, not '{value}'")
    return term, tuple(conditions)


_EXAMPLE = "write conditions such as method = fedot, joined by 'and', 'or', 'not' and brackets"


def _refuse(why: str) -> NoReturn:
    raise FedLensError(f"the filter cannot be read: {why}", "where")


def _titles_replaced(text: str, fields: Iterable[str]) -> str:
    """Replace titles of fields before an operator, as the tab Config shows them, by the fields' names."""
    names: dict[str, list[str]] = {}
    for name in fields:
        names.setdefault(field_phrase(name).lower(), []).append(name)
    titles = {t: named[0] for t, named in names.items() if " " in t and len(named) == 1}
    if not titles:
        return text
    either = "|".join(re.escape(t) for t in sorted(titles, key=len, reverse=True))
    before_operator = r"(?=\s*[=<>!]|\s+(?:not\s+)?in\s*\(|\s+contains\b)"
    # quoted values are matched first, so that they stay
    pattern = re.compile(
        rf"""(?P<quoted>"[^"]*"|'[^']*')|(?<![^\s(])(?P<title>{either}){before_operator}""", re.IGNORECASE
    )
    return pattern.sub(lambda m: m["quoted"] or titles[m["title"].lower()], text)


def _resolve(field: str, fields: Mapping[str, None]) -> str:
    """Return the full name of a field: itself, or the only one that ends with it."""
    lowered = {name.lower(): name for name in fields}
    asked = field.lower()
    if asked in lowered:
        return lowered[asked]
    ending = [name for low, name in lowered.items() if low.endswith(f".{asked}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise FedLensError(
            f"the filter's field '{field}' may be {', '.join(ending[:4])}; write one of these", "where"
        )
    last = asked.rpartition(".")[2]
    namesakes = [name for low, name in lowered.items() if low.rpartition(".")[2] == last]
    hint = f"did you mean {' or '.join(map(repr, namesakes[:3]))}?"
    if not namesakes:
        hint = did_you_mean(asked, fields, "fields are those of the tab Config", number=3)
    raise FedLensError(f"no run has the field '{field}' of the filter; {hint}", "where")


def _holds(term: ast.expr, met: Mapping[str, bool]) -> bool:
    if isinstance(term, ast.BoolOp):
        parts = (_holds(part, met) for part in term.values)
        return all(parts) if isinstance(term.op, ast.And) else any(parts)
    if isinstance(term, ast.UnaryOp):
        return not _holds(term.operand, met)
    assert isinstance(term, ast.Name), "see _JOINING"
    return met[term.id]


def _meets(condition: Condition, value: Any) -> bool:
    operator, values = condition.operator, condition.values
    if value in (None, (), ""):
        return operator in ("=", "in") and "none" in (v.lower() for v in values)
    members = value if isinstance(value, tuple) else (value,)
    if operator == "contains":
        return any(values[0].lower() in str(member).lower() for member in members)
    if operator in ("=", "in"):
        return any(_equal(member, asked) for member in members for asked in values)
    if operator == "!=":
        return not any(_equal(member, values[0]) for member in members)
    ours, asked = _as_number(value), _number(values[0])
    if ours is None or asked is None:
        return False
    return {"<": ours < asked, "<=": ours <= asked, ">": ours > asked, ">=": ours >= asked}[operator]


def _equal(value: Any, asked: str) -> bool:
    if isinstance(value, bool):
        return asked.lower() in (("true", "yes") if value else ("false", "no"))
    number = _as_number(value)
    return number == _number(asked) if number is not None else str(value).lower() == asked.lower()


def _as_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) or "_" in text else number
