"""A table that was pasted or uploaded, and the printed values in its cells."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from fedcore.base.errors import FedLensError
from fedcore.papers import grids, library
from fedcore.papers.grids import EMPTY, NUMBER, Grid
from fedcore.papers.published import COLUMNS, NAMING, PLACE, PublishedValue, load, values_from, values_text
from fedcore.results.statistics import group_by

Role = Literal["method", "dataset", "setting", "target", "metric", "backbone", "value", "spread", "ignored"]
ROLES: dict[Role, str] = {
    "value": "values",
    "spread": "± of the values before",
    "method": "method",
    "dataset": "data set",
    "setting": "setting",
    "target": "domain or class group",
    "metric": "metric",
    "backbone": "backbone",
    "ignored": "left out",
}
AVERAGE = "avg"
_GROUPED = re.compile(r"\d,\d{3}(?!\d)")
"""A comma that separates thousands in one country and decimals in another."""
_HEADINGS: dict[str, Role] = {
    r"data|benchmark": "dataset",
    r"partition|setting": "setting",
    r"backbone|arch|encoder": "backbone",
    r"domain|classes": "target",
    r"metric": "metric",
    r"method|algorithm|approach|strategy": "method",
    r"venue|pub|reference|cite|paper|link|config|script|year|code|log|checkpoint|download|weights": "ignored",
}
"""Words in the heading of a column of texts -> the role of the column."""
_NAMES = re.compile(r"model|name", re.I)
"""Heading of the methods where no other column is headed so."""
_AVERAGES = ("avg", "average", "mean", "avgacc", "averageaccuracy", "overall")
_METRICS = {
    r"(base(acc|accuracy|classes)?|seen)": ("base", "base accuracy"),
    r"((new|novel)(acc|accuracy|classes)?|unseen(classes)?)": ("new", "new accuracy"),
    r"(h|hm|hmean|harmonicmean)": (AVERAGE, "harmonic mean"),
    r"((top1|test)?(acc|accuracy)|top1|acc1)": ("", "accuracy"),
}
"""Printed name of a metric, as ``_key`` writes it -> its target, if it has one, and its usual name."""
_MEASURE = re.compile(
    r"\bf1|auroc|auc|fpr|precision|recall|flops|epochs?|param|\btime|latency|memory|loss|\bece\b|mcc|top-?\d|acc"
    r"(uracy|\b)|size|communication|miou|bleu|rouge|cider|meteor|\brmse|\bmae|\bmse|\bmrr|@\d+$|\bmap\b|\bnds\b",
    re.I,
)
_SETTING = re.compile(r"[=αβμτε<>≤]|shot|iid|\bdir|client|round|%|^[-+]?\d+(\.\d+)?$", re.I)
_BACKBONE = re.compile(r"vit|rn-?\d|resnet|[bl]/\d\d|convnext|swin|deit", re.I)
_TRANSFER = re.compile(r"(\w+) ?(?:-|→|->|⇒) ?(\w+)")
"""Heading that names the domain that is trained on and the one that is tested on."""
_ACCURACY = re.compile(r"\(?(zero-shot )?(acc\.?|accuracy|top-?1)[)% .]*(\(%\))?", re.I)
_GAIN = re.compile(r"Δ|↑|\bgains?\b|improvement|\bdelta\b", re.I)
_PARAMETER = re.compile(
    r"(#|no\. of|num(ber|\.)? of|local|global|non-?iid)? ?(shots?|seeds?|(communication )?rounds?|epochs?|"
    r"clients|users|alpha|beta|[αβμλτk]|n?ctx|rank|learning rate|lr|batch ?size)",  # noqa: RUF001
    re.I,
)
"""Heading of a column of numbers that are part of the setting."""


@dataclass(frozen=True)
class PastedColumn:
    """The content of a column of a printed table.

    Attributes:
        role: "value" for accuracies; the others name the values of their line.
        names: of a column of values, the fields of ``NAMING`` that its heading gives.
    """

    role: Role
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """The values of a pasted table.

    Attributes:
        places: line and column of a cell, counted without headings -> its value.
        labels: columns that name the values of their lines.
        dropped: each line, column and cell that holds something and gives no value, in words.
    """

    values: tuple[PublishedValue, ...]
    places: Mapping[tuple[int, int], PublishedValue]
    labels: frozenset[int]
    dropped: tuple[str, ...]


def is_long(grid: Grid) -> bool:
    """Return whether a grid has the columns of ``values.csv``, one value a line."""
    return set(COLUMNS) == set(grid.heads[0])


@lru_cache(maxsize=8)  # a page reads its text again in each of its runs
def read(text: str) -> tuple[Grid, ...]:
    """Read the tables that were copied from a page, a spreadsheet, a PDF, Markdown, LaTeX or a CSV file."""
    return tuple(grids.read(text, lambda words: _key(words) in _known()["dataset"]))


def _key(text: str) -> str:
    return re.sub(r"\(.*?\)|[\W_]", "", text.casefold())


@library.cached
def _known() -> dict[str, set[str]]:
    """Return the names that the papers that ship print, by field."""
    shipped = [value for paper in library.shipped() for value in load(paper)]
    fields = ("dataset", "target", "method", "backbone")
    return {name: {_key(getattr(value, name)) for value in shipped} - {""} for name in fields}


def _field_of(text: str) -> str | None:
    """Return the field of a value that a heading or label names, if it tells."""
    key = _key(text)
    if _known_metric(text):
        return "metric"
    if _is_average(text):
        return None
    if key in _known()["dataset"] or _divided(text):
        return "dataset"
    if key in _known()["method"]:
        return "method"
    if _BACKBONE.search(text):
        return "backbone"
    if len(key) > 1 and key in _known()["target"] and not key.isdigit():
        return "target"
    if _MEASURE.search(text):
        return "metric"
    return "setting" if _SETTING.search(text) else None


def _divided(text: str) -> dict[str, str]:
    """Return the fields of a heading that is a data set with its metric or setting, such as ``DTD Acc.``."""
    words = text.split()
    for i in range(len(words) - 1, 0, -1):
        dataset, rest = " ".join(words[:i]), " ".join(words[i:])
        if _key(dataset) in _known()["dataset"]:
            if _ACCURACY.fullmatch(rest):
                return {"dataset": dataset, "metric": "accuracy"}
            if _SETTING.search(rest):
                return {"dataset": dataset, "setting": rest}
    return {}


def _is_average(text: str) -> bool:
    return _key(text) in _AVERAGES or bool(
        re.search(r"^(avg|average|mean over)\b|\b(avg\.?|average)$", text, re.I)
    )


def guess(grid: Grid) -> list[PastedColumn]:
    """Guess what the columns hold: numbers are values; texts name methods, data sets and so on."""
    texts = [[line[i] for line in grid.lines if line[i] not in EMPTY] for i in range(len(grid.titles))]
    roles: list[Role] = []
    for title, cells in zip(grid.titles, texts, strict=True):
        numbers = [NUMBER.fullmatch(cell) for cell in cells]
        if not cells or sum(number is not None for number in numbers) < len(cells) / 2:
            roles.append(_role_of(title, cells, roles))
        elif _GAIN.search(title) or ("+" in "".join(cells) and all(cell[0] in "+-" for cell in cells)):
            roles.append("ignored")
        elif _PARAMETER.fullmatch(title) or not (title or roles):
            roles.append("setting")
        elif _key(title.rpartition(">")[2]) in ("std", "stddev", "sd") and roles[-1:] == ["value"]:
            roles.append("spread")
        else:
            roles.append("value")
    names = _names(grid, [i for i, role in enumerate(roles) if role == "value"], roles)
    if "method" not in roles and not any("method" in given for given in names.values()):
        against = {  # what speaks against a column of labels as that of the methods, the strongest first
            i: (any(map(NUMBER.fullmatch, texts[i])), not _NAMES.search(grid.titles[i]), role != "setting")
            for i, role in enumerate(roles)
            if role in NAMING
        }
        if against:
            roles[min(against, key=against.__getitem__)] = "method"
    return [PastedColumn(role, names.get(i, {})) for i, role in enumerate(roles)]


def _role_of(title: str, cells: Sequence[str], before: Sequence[Role]) -> Role:
    """Return the role of a column of texts, of which only settings may occur several times."""
    if not cells:
        return "ignored"
    votes = Counter(filter(None, map(_field_of, cells)))
    about = title.lower().partition("(")[0]
    named = next((role for words, role in _HEADINGS.items() if re.search(words, about)), None)
    voted = votes.most_common(1)[0][0] if votes and votes.most_common(1)[0][1] * 2 >= len(cells) else None
    role: Role = named or voted or "setting"  # type: ignore[assignment]
    return "setting" if role in before and role != "ignored" else role


def _names(grid: Grid, columns: Sequence[int], roles: Sequence[Role]) -> dict[int, dict[str, str]]:
    """Return the fields of a value that the headings of each column of values give."""
    found: dict[int, dict[str, str]] = {i: {} for i in columns}
    levels: list[dict[int, str]] = []
    for line, above in zip(grid.heads, [("",) * len(grid.titles), *grid.heads], strict=False):
        levels.append({i: line[i] for i in columns if line[i] and line[i] != above[i]})
    votes = [Counter(filter(None, map(_field_of, dict.fromkeys(level.values())))) for level in levels]
    for level, own in zip(levels, votes, strict=True):
        others = {name for other in votes for name in other if other[name] > own[name]}
        own = Counter({name: count for name, count in own.items() if name not in others})
        taken = {*roles, *(others - {"metric"}), *_given(found)}
        usual = _usual(list(dict.fromkeys(level.values())), own, taken)
        for i, text in level.items():
            name = _field_of(text)
            rare = name in ("setting", "backbone", "method") or usual == "method"
            if name is None or name in others or (rare and own[name] < own[usual]) or usual == "target":
                name = usual
            if _is_average(text) and name not in ("method", "setting"):
                given = {"target": AVERAGE} if name == "target" else {"dataset": _average(text)}
            elif name == "metric":
                given = _metric(text)
            else:
                given = (_divided(text) if name == "dataset" else {}) or {name: text}
            if name in found[i]:
                given = {"setting": ", ".join(filter(None, (found[i].get("setting"), text)))}
            found[i] |= given
    of_caption = {w for w in re.split(r"[^\w-]+", grid.caption) if _key(w) in _known()["dataset"]}
    if len(of_caption) == 1 and "dataset" not in {*roles, *_given(found)}:
        found = {i: {"dataset": min(of_caption), **given} for i, given in found.items()}
    return found


def _given(found: Mapping[int, Mapping[str, str]]) -> set[str]:
    return {name for given in found.values() for name in given}


def _average(text: str) -> str:
    """Return an average over data sets by its usual name; one over some of them keeps its own."""
    return AVERAGE if _key(text) in _AVERAGES else f"{AVERAGE} ({text})"


def _usual(texts: Sequence[str], votes: Mapping[str, int], taken: set[str]) -> str:
    """Return the field that a line of headings gives where a heading does not tell."""
    best = max(votes, key=lambda name: votes[name], default="")
    if best and best not in taken and not (best == "setting" and any(map(_is_average, texts))):
        return best
    if "dataset" in taken and not taken & {"method", "setting"}:
        return "method"
    domains = [text for text in texts if not _is_average(text)]
    short = bool(domains) and all(len(_key(text)) < 3 for text in domains)
    transfers = [match.groups() for text in domains if (match := _TRANSFER.fullmatch(text))]
    trained, tested = zip(*transfers, strict=True) if len(transfers) == len(domains) > 2 else ((), ())
    short |= bool({*trained} & {*tested})
    if "target" not in taken and (short or ("dataset" in taken and any(map(_is_average, texts)))):
        return "target"
    return "setting" if taken & {"dataset", "metric", best} else "dataset"


def _metric(text: str) -> dict[str, str]:
    target, metric = _known_metric(text) or ("", text)
    return {"metric": metric} | ({"target": target} if target else {})


def _known_metric(text: str) -> tuple[str, str] | None:
    """Return the target and the usual name of a metric, if it has one."""
    return next((usual for names, usual in _METRICS.items() if re.fullmatch(names, _key(text))), None)


def values(grid: Grid, columns: Sequence[PastedColumn], common: Mapping[str, str], paper: str) -> Reading:
    """Return the values of a pasted table.

    Args:
        columns: what each column holds.
        common: ``table``, and ``dataset``, ``setting``, ``backbone``, ``metric`` unless a column names them.
    """
    if is_long(grid):
        text = library.csv_text([grid.heads[0], *grid.lines])
        every = frozenset(range(len(COLUMNS)))
        return Reading(values_from(text, paper, "the table"), {}, every, grid.notes)
    _check(columns)
    labels = group_by([i for i, c in enumerate(columns) if c.role in NAMING], lambda i: columns[i].role)
    found: dict[tuple[int, int], tuple[str, ...]] = {}
    places: dict[tuple[str, ...], str] = {}
    ignored = (i for i, c in enumerate(columns) if c.role == "ignored" and any(x[i] for x in grid.lines))
    dropped = [*grid.notes, *(f"column '{grid.titles[i] or i + 1}'" for i in ignored)]
    last = dict.fromkeys(range(len(columns)), "")
    innermost = max((i for at in labels.values() for i in at), default=0)
    for number, line in enumerate(grid.lines):
        nth = f"line {len(grid.heads) + number + 1}"
        for i in last:
            last[i] = line[i] or (last[i] if i < innermost else "")
        named: dict[str, str] = {}
        for role, at in labels.items():
            said = {i: last[i] for i in at if last[i] not in EMPTY}  # a number needs its heading
            said |= {i: f"{grid.titles[i]} {text}" for i, text in said.items() if NUMBER.fullmatch(text)}
            named[role] = ", ".join(dict.fromkeys(said.values()))
        if _GAIN.search(named.get("method", "")):
            dropped.append(f"{nth}, '{named['method']}': a difference")
            continue
        for i, column in enumerate(columns):
            if column.role != "value" or line[i] in EMPTY:
                continue
            where = f"{nth}, column '{grid.titles[i]}'"
            number_of = NUMBER.fullmatch(line[i])
            if number_of is None or _GROUPED.search(line[i]):
                why = "may have thousands or decimals after its comma" if number_of else "is not a number"
                dropped.append(f"{where}: {line[i]!r:.40} {why}; write 83.21 or 83.21 ± 0.14")
                continue
            names = {**common, **column.names, **_usual_names(named)}
            if setting := ", ".join(filter(None, (named.get("setting"), column.names.get("setting")))):
                names["setting"] = setting
            if not names.get("method"):
                raise FedLensError(f"{nth}: the method is empty; write it into every line", "table")
            mean, spread = number_of["value"], number_of["std"]
            if columns[i + 1 : i + 2] and columns[i + 1].role == "spread":
                behind = NUMBER.fullmatch(line[i + 1])
                spread = behind["value"] if behind else spread
            given = {"target": AVERAGE, "metric": "accuracy"} | {n: text for n, text in names.items() if text}
            place = tuple(given.get(name, "") for name in PLACE)
            if place in places:
                raise FedLensError(
                    f"{where}: the same method, data set, target and metric as in {places[place]}; give one "
                    "of them another setting, target or metric",
                    "table",
                )
            places[place] = where
            found[number, i] = (*place, mean.replace(",", "."), (spread or "").replace(",", "."))
        if not any(place[0] == number for place in found):
            dropped.append(f"{nth}, '{' '.join(filter(None, named.values()))}': no value")
    if not found:
        why = next((text for text in dropped if "; write" in text), "check what the columns hold")
        raise FedLensError(f"no cell holds a value: {why}", "columns")
    named_by = frozenset(i for at in labels.values() for i in at)
    read = values_from(library.csv_text([COLUMNS, *found.values()]), paper, "the table")
    return Reading(read, dict(zip(found, read, strict=True)), named_by, tuple(dropped))


def joined(readings: Sequence[Reading], paper: str) -> tuple[PublishedValue, ...]:
    """Return the values of grids that are one table; what a ``values.csv`` must not contain is an error."""
    return values_from(values_text(v for each in readings for v in each.values), paper, "the table")


def _check(columns: Sequence[PastedColumn]) -> None:
    roles = [column.role for column in columns]
    if "value" not in roles:
        raise FedLensError("say which columns hold values", "columns")
    if "method" not in roles and not all("method" in c.names for c in columns if c.role == "value"):
        raise FedLensError("say which column names the method", "columns")
    for role in {"method", "dataset", "target", "metric", "backbone"}:
        if roles.count(role) > 1:  # type: ignore[arg-type]
            raise FedLensError(f"two columns are the {ROLES[role]}; leave one out", "columns")  # type: ignore[index]


def _usual_names(named: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a line, with averages and metrics under their usual names."""
    given = {name: text for name, text in named.items() if text}
    if _is_average(given.get("dataset", "")):
        given["dataset"] = _average(given["dataset"])
    if _is_average(given.get("target", "")):
        given["target"] = AVERAGE
    if "metric" in given:
        given |= _metric(given["metric"])
    elif _known_metric(given.get("target", "")):
        given |= _metric(given["target"])
    return given
