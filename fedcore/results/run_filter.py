"""A filter over runs in words: ``method = fedot and partition.alpha < 0.5``.

Fields are those of a run (``RUN_FIELDS``) and of its config by their dotted names; the end of a name is
enough where it names one field: ``alpha``, ``lr``. Accuracies are no fields: choosing runs by their test
accuracy would make a comparison say whatever one likes.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from fedcore.config import RunConfig
from fedcore.errors import FedLensError
from fedcore.results.settings import config_for_display
from fedcore.store import RunRow, Store

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
"""Fields that a run has beside those of its config."""
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "contains", "in")
MAX_LENGTH = 2000
MAX_DEPTH = 30
Record = Mapping[str, Any]
"""The values of one run by field."""

_TOKEN = re.compile(r"""\s*(?:("[^"]*"|'[^']*')|(<=|>=|!=|==|<>|[=<>(),])|([^\s=<>!(),"']+)|(\S))""")
_WORDS = {"and", "or", "not", "in", "contains"}
_SAME = {"==": "=", "<>": "!="}


@dataclass(frozen=True)
class Comparison:
    """One condition: a field, an operator and the value or values after it."""

    field: str
    operator: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Not:
    """The opposite of a condition."""

    term: Term


@dataclass(frozen=True)
class Both:
    """Conditions that all hold."""

    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Either:
    """Conditions of which one holds."""

    terms: tuple[Term, ...]


Term = Comparison | Not | Both | Either


def select(text: str, records: Mapping[int, Record]) -> set[int]:
    """Return the runs that a filter keeps; an empty filter keeps all.

    A run that lacks a field meets ``field = none`` and no other condition on it.

    Args:
        records: run -> its values, see ``run_records``.

    Raises:
        FedLensError: field ``where``, for a text that cannot be read, an unknown field, or an order (``<``)
            of values that are no numbers.
    """
    if not text.strip():
        return set(records)
    term = parse(text)
    known = dict.fromkeys([*RUN_FIELDS, *(name for record in records.values() for name in record)])
    names = {c.field: _resolve(c.field, known) for c in comparisons(term)}
    for comparison in comparisons(term):
        _check_order(comparison, names[comparison.field], records.values())
    return {i for i, record in records.items() if _holds(term, record, names)}


def run_records(runs: Iterable[RunRow], configs: Mapping[int, RunConfig]) -> dict[int, Record]:
    """Return the values that a filter reads, by run: fields of the run and of its config."""
    resolved: dict[tuple[str, bool], Record] = {}
    records: dict[int, Record] = {}
    for run in runs:
        key = run.group_hash, run.origin == "engine"
        config = resolved.get(key)
        if config is None:  # runs of one hash differ in seed and held-out domain only, which are the run's
            config = resolved[key] = config_for_display(configs[run.id], key[1])
        own = {name: getattr(run, name) for name in RUN_FIELDS if name not in ("run", "experiment")}
        own |= {"method.label": run.label}
        records[run.id] = {**config, **own, "run": run.id, "experiment": run.experiment_id}
    return records


def kept_runs(store: Store, experiment_ids: Iterable[int], where: str) -> list[RunRow]:
    """Return the runs of some experiments that a filter keeps, in order of id.

    Raises:
        FedLensError: field ``where``, for a filter that cannot be read.
    """
    runs = store.runs.of_experiments(experiment_ids)
    if not where.strip():
        return runs
    kept = select(where, run_records(runs, store.runs.configs([r.id for r in runs])))
    return [r for r in runs if r.id in kept]


def parse(text: str) -> Term:
    """Read a filter.

    Raises:
        FedLensError: field ``where``, saying what was expected and where.
    """
    if len(text) > MAX_LENGTH:
        _refuse(f"it is longer than {MAX_LENGTH} characters")
    return _Parser(text).read()


def comparisons(term: Term) -> Iterator[Comparison]:
    """Yield every condition of a filter, in its order."""
    if isinstance(term, Comparison):
        yield term
    elif isinstance(term, Not):
        yield from comparisons(term.term)
    else:
        for inner in term.terms:
            yield from comparisons(inner)


class _Parser:
    """Reads a filter from left to right: ``or`` joins what ``and`` joins."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []  # a token, and whether it stood in quotes
        for match in _TOKEN.finditer(text.rstrip()):
            quoted, sign, word, stray = match.groups()
            if stray is not None:
                quote = "; close the quotation mark" if stray in "\"'" else ""
                _refuse(f"cannot read {stray} here{quote}")
            self._tokens.append((quoted[1:-1], True) if quoted is not None else (sign or word, False))
        self._place = 0
        self._depth = 0

    def read(self) -> Term:
        term = self._either()
        if self._place < len(self._tokens):
            _refuse(f"expected 'and' or 'or' before {self._shown()}")
        return term

    def _either(self) -> Term:
        terms = [self._both()]
        while self._take("or"):
            terms.append(self._both())
        return terms[0] if len(terms) == 1 else Either(tuple(terms))

    def _both(self) -> Term:
        terms = [self._unary()]
        while self._take("and"):
            terms.append(self._unary())
        return terms[0] if len(terms) == 1 else Both(tuple(terms))

    def _unary(self) -> Term:
        negated = False
        while self._take("not"):
            negated = not negated
        if self._take("("):
            self._depth += 1
            if self._depth > MAX_DEPTH:
                _refuse(f"more than {MAX_DEPTH} brackets within each other")
            term = self._either()
            self._depth -= 1
            if not self._take(")"):
                _refuse(f"expected ) before {self._shown()}")
        else:
            term = self._comparison()
        return Not(term) if negated else term

    def _comparison(self) -> Term:
        field, quoted = self._token()
        if quoted or field.lower() in _WORDS or not re.match(r"[\w.\-]+\Z", field):
            _refuse(f"expected a field before {self._shown()}" if field else f"expected {_EXAMPLE}")
        self._place += 1
        if self._take("not"):
            if not self._take("in"):
                _refuse(f"expected 'in' after '{field} not'")
            return Not(Comparison(field, "in", self._values(field)))
        operator, quoted = self._token()
        operator = _SAME.get(operator, operator.lower())
        if quoted or operator not in OPERATORS:
            _refuse(f"expected one of {' '.join(OPERATORS)} after '{field}', not {self._shown()}")
        self._place += 1
        if operator == "in":
            return Comparison(field, operator, self._values(field))
        value = self._value(f"'{field} {operator}'")
        if operator in ("<", "<=", ">", ">=") and _number(value) is None:
            _refuse(f"'{field} {operator}' needs a number, not '{value}'")
        return Comparison(field, operator, (value,))

    def _values(self, field: str) -> tuple[str, ...]:
        if not self._take("("):
            _refuse(f"expected a list in brackets after '{field} in', such as (1, 2)")
        values = [self._value(f"'{field} in ('")]
        while self._take(","):
            values.append(self._value("the comma"))
        if not self._take(")"):
            _refuse(f"expected , or ) before {self._shown()}")
        return tuple(values)

    def _value(self, after: str) -> str:
        """Take a value: a text in quotes, or words up to the next sign or ``and``, ``or``."""
        text, quoted = self._token()
        if quoted:
            self._place += 1
            return text
        words = []
        while (text := self._token()[0]) and not self._token()[1]:
            if text in OPERATORS or text in _SAME or text in ("(", ")", ",") or text.lower() in _WORDS:
                break
            words.append(text)
            self._place += 1
        if not words:
            _refuse(f"expected a value after {after}, not {self._shown()}")
        return " ".join(words)

    def _token(self) -> tuple[str, bool]:
        return self._tokens[self._place] if self._place < len(self._tokens) else ("", False)

    def _take(self, text: str) -> bool:
        token, quoted = self._token()
        there = not quoted and token.lower() == text
        self._place += there
        return there

    def _shown(self) -> str:
        token, _ = self._token()
        return f"'{token}'" if self._place < len(self._tokens) else "the end"


_EXAMPLE = "a condition, such as method = fedot"


def _refuse(why: str) -> NoReturn:
    raise FedLensError(f"the filter cannot be read: {why}", "where")


def _resolve(field: str, known: Mapping[str, None]) -> str:
    """Return the full name of a field: itself, or the only one that ends with it."""
    lowered = {name.lower(): name for name in known}
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
    near = [name for low, name in lowered.items() if low.rpartition(".")[2] == last]
    near = near or [lowered[n] for n in difflib.get_close_matches(asked, lowered, 3)]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "fields are those of the tab Config"
    raise FedLensError(f"no run has the field '{field}' of the filter; {hint}", "where")


def _check_order(comparison: Comparison, name: str, records: Iterable[Record]) -> None:
    """Refuse an order on a field that holds no numbers."""
    if comparison.operator not in ("<", "<=", ">", ">="):
        return
    values = [r[name] for r in records if r.get(name) is not None]
    if values and all(_as_number(value) is None for value in values):
        raise FedLensError(
            f"the filter compares '{comparison.field}' with {comparison.operator}, but it holds no numbers, "
            f"such as '{values[0]}'; use = or contains",
            "where",
        )


def _holds(term: Term, record: Record, names: Mapping[str, str]) -> bool:
    if isinstance(term, Comparison):
        return _meets(term, record.get(names[term.field]))
    if isinstance(term, Not):
        return not _holds(term.term, record, names)
    holds = (_holds(inner, record, names) for inner in term.terms)
    return all(holds) if isinstance(term, Both) else any(holds)


def _meets(comparison: Comparison, value: Any) -> bool:
    operator, values = comparison.operator, comparison.values
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
