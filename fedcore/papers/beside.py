"""Our figures beside the printed ones: read from the store as each paper measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedcore.config import Experiment, RunConfig, expand, sweeps
from fedcore.errors import FedLensError
from fedcore.methods import class_texts, registry
from fedcore.papers import published
from fedcore.papers.published import Absent, Figure, Ours
from fedcore.results.comparison import CAVEAT_MARK, compare
from fedcore.results.metrics import (
    Rule,
    RunResult,
    accuracy_by_domain,
    comprehensive,
    global_accuracy,
    personalisation,
)
from fedcore.results.settings import unused_fields
from fedcore.results.statistics import Stat, signed, spread
from fedcore.store import BROADCAST, LOCAL, NamedCell, Store

RULES: dict[str, Rule] = {
    "fedot": "best",
    "fedot_conference": "best",
    "sdfed": "mean10",
    "fedalign": "last",
    "feddeap": "last",
}
"""Paper -> the round that it reports: chosen on validation, the mean of the last ten, the last."""

Status = Literal[
    "measured",
    "measured with a caveat",
    "not run",
    "not implemented",
    "elsewhere",
    "measured on another test set",
]


@dataclass(frozen=True)
class Beside:
    """One printed figure and ours.

    Attributes:
        ours: mean over seeds, in the printed figure's unit; None unless it was measured.
        label: our method's name in its experiment, empty where there is none.
        why: what is missing, or how our runs depart from what was printed; empty where nothing is to say.
    """

    figure: Figure
    status: Status
    ours: Stat | None = None
    label: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """Our figure, or why there is none; never blank."""
        if self.ours is None:
            return self.why if self.status == "elsewhere" else self.status
        mark = f" {CAVEAT_MARK}" if self.status == "measured with a caveat" else ""
        return self.ours.text(_digits(self.figure.value)) + mark

    @property
    def printed(self) -> str:
        """The paper's figure as it prints it."""
        return Stat(self.figure.value, self.figure.std, 1).text(_digits(self.figure.value))

    @property
    def difference(self) -> str:
        """Ours minus the printed one, with its sign; empty where there is none of ours."""
        if self.ours is None:
            return ""
        return signed(self.ours.mean - self.figure.value, _digits(self.figure.value))


def beside(store: Store, preset: Experiment) -> list[Beside]:
    """All printed figures that a preset names, ours beside them as far as its runs are done.

    A run that FedLens trained counts where data (wherever they lie), partition, backbone, rounds and the
    method's whole config are the preset's; its seed may be any, and so may one's own written descriptions.
    Runs of all experiments in the store count, archived ones aside; of a repeated seed the newest. Runs that
    depart from what their config says (``Method.result_caveat``) count where there are no others.

    Args:
        db: the store; it need not exist yet.

    Raises:
        FedLensError: when the preset names no printed figure, or a method that FedLens has not.
    """
    if not preset.reproduces:
        raise FedLensError("this experiment names no published figures; add [[reproduces]]", "reproduces")
    reader = _Reader(store)
    variants = variants_of(preset)
    configs = contents(preset)
    runs: dict[Rule, dict[int, list[_Done]]] = {}
    found = []
    for figure in published.named_by(preset):
        meant = published.ours(figure)
        if isinstance(meant, Absent):
            status: Status = "not implemented" if meant.kind == "method" else "elsewhere"
            found.append(Beside(figure, status, why=meant.why))
            continue
        rule = RULES[figure.paper]
        if rule not in runs:
            runs[rule] = _matching(store, preset, configs, rule)
        entry = place(configs, meant)
        if entry is None:
            found.append(Beside(figure, "not run", why="the experiment has no such method"))
            continue
        done = runs[rule].get(entry, [])
        label = variants[entry].method.label or registry.get(variants[entry].method.name).title
        found.append(_measured(reader, figure, done, preset.held_out, label))
    return found


def _measured(
    reader: _Reader, figure: Figure, done: Sequence[_Done], held_out: Sequence[str], label: str
) -> Beside:
    """Ours of one printed figure, from finished runs of the printed method."""
    stat = reader.stat(figure, [d.value for d in done if not d.caveat], held_out)
    if stat is not None:
        return Beside(figure, "measured", stat, label)
    stat = reader.stat(figure, [d.value for d in done], held_out)
    if stat is not None:
        told = dict.fromkeys(d.caveat for d in done if d.caveat)
        return Beside(figure, "measured with a caveat", stat, label, "; ".join(told))
    if done and figure.metric == "local":
        return Beside(figure, "measured on another test set", label=label, why=ANOTHER_TEST_SET)
    return Beside(figure, "not run", label=label)


ANOTHER_TEST_SET = (
    "printed: the whole test set's samples of the classes that a client holds; these runs measured the "
    "client's own share only"
)
"""Why a finished run has no local performance of FedAlign's: it was recorded without class sets."""


def entry_of(preset: Experiment, meant: Ours) -> int | None:
    """Position among ``variants_of`` of what a printed method is: same name, all of its fields equal.

    Of a sweep over anything else it is the first: what is printed comes first among its values.
    """
    return place(contents(preset), meant)


def place(known: Sequence[dict[str, Any]], meant: Ours) -> int | None:
    """The same among variants that are written out already (``contents``): for many figures in turn."""
    for i, content in enumerate(known):
        method = content["method"]
        if method["name"] == meant.name and all(method["config"][k] == v for k, v in meant.config.items()):
            return i
    return None


def variants_of(preset: Experiment) -> list[RunConfig]:
    """One run per method and combination of swept values, of the first seed."""
    return expand(preset.model_copy(update={"held_out": (), "seeds": preset.seeds[:1]}))


def contents(preset: Experiment) -> list[dict[str, Any]]:
    """What runs of each variant have in common, every hyper-parameter written out.

    Raises:
        FedLensError: for a method or hyper-parameter that FedLens has not.
    """
    pairs = zip(sweeps.variants(preset), variants_of(preset), strict=True)
    return [content_of(run, f"methods.{variant.index}") for variant, run in pairs]


def content_of(config: RunConfig, field: str = "methods") -> dict[str, Any]:
    """What must be equal for a run to count; defaults are filled in, as fields may be added to a method.

    Fields that the kind of partition does not read are left out: a sweep over kinds carries those of all.
    """
    any_will_do = {
        "seed": True,
        "held_out": True,
        "data": {"root"},
        "partition": unused_fields(config.partition),
    }
    content = config.model_dump(mode="json", exclude=any_will_do)
    method = config.method
    full = registry.build_config(method.name, method.config, f"{field}.config")
    own = {*class_texts.fields(type(full))}  # everybody writes their own
    content["method"] = {"name": method.name, "config": full.model_dump(mode="json", exclude=own)}
    return content


@dataclass(frozen=True)
class _Done:
    """A finished run, and how it departs from what its config says."""

    value: RunResult
    caveat: str

    @property
    def order(self) -> tuple[bool, int]:
        """Of two runs of one seed the larger counts: one that departs from nothing, then the newer."""
        return not self.caveat, self.value.run.id


def _matching(
    store: Store, preset: Experiment, configs: Sequence[dict[str, Any]], rule: Rule
) -> dict[int, list[_Done]]:
    """Finished runs of each of the preset's methods; of a repeated (seed, held-out domain) one, ``order``."""
    if not Path(store.path).exists():
        return {}
    ids = [e.id for e in store.experiments.all() if e.config.data.name == preset.data.name]
    best: dict[int, dict[tuple[int, str | None], _Done]] = {}
    names = {entry.name for entry in preset.methods}
    for group in compare(store, ids, rule, partial_seeds=True).groups if ids else ():
        if not group.here or group.method not in names:
            continue
        content = content_of(group.config)
        for i in [i for i, config in enumerate(configs) if config == content]:
            for value in group.runs:
                key, done = (value.run.seed, value.run.held_out), _Done(value, group.caveat)
                kept = best.setdefault(i, {})
                if key not in kept or kept[key].order < done.order:
                    kept[key] = done
    return {i: list(kept.values()) for i, kept in best.items()}


class _Reader:
    """Reads printed metrics from recorded runs; cells of a round are read once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cells = cache(self._cells)
        self.diagnostics = cache(lambda run, name: store.diagnostics.of_run(run, name))

    def _cells(self, run: int, round_: int, point: int) -> list[NamedCell]:
        return self.store.cells.at_rounds({run: round_}, point=point)

    def stat(self, figure: Figure, runs: Iterable[RunResult], held_out: Sequence[str]) -> Stat | None:
        """Mean and spread over seeds; a seed counts when all the runs that the figure needs are done."""
        by_seed: dict[int, dict[str | None, RunResult]] = {}
        for value in runs:
            by_seed.setdefault(value.run.seed, {})[value.run.held_out] = value
        return spread(self._seed(figure, members, held_out) for members in by_seed.values())

    def _seed(
        self, figure: Figure, runs: dict[str | None, RunResult], held_out: Sequence[str]
    ) -> float | None:
        """One seed's value. ``runs`` by held-out domain, which is None where nothing is held out."""
        measure = _MEASURES[figure.metric]
        if not held_out:
            return measure(self, figure, runs[None], None) if None in runs else None
        names = published.DOMAINS.get(figure.dataset.replace("OfficeHome", "Office-Home"), {})
        # "held out A" (Tables 7 and 8), else one run per target, else all of them
        printed = figure.setting.removeprefix("held out ") if "held out " in figure.setting else figure.target
        wanted = list(held_out) if printed == "avg" else [names[printed]]
        if figure.method == "Zero Shot" and figure.metric == "comprehensive" and figure.target != "avg":
            # Tables 9 and 10 print zero-shot CLIP by domain, the others by held-out domain
            measure = _generalization
        values = [measure(self, figure, runs[d], d) for d in wanted if d in runs]
        known = [v for v in values if v is not None]
        return float(np.mean(known)) if len(known) == len(wanted) else None

    def over_rounds(
        self, value: RunResult, point: int, pick: Callable[[list[NamedCell]], list[float]]
    ) -> float | None:
        """Per cent: the mean over the picked shares of a round, then over the chosen rounds."""
        rounds = [pick(self.cells(value.run.id, round_, point)) for round_ in value.rounds]
        if not rounds or not all(rounds):
            return None
        return 100 * float(np.mean([np.mean(shares) for shares in rounds]))


def _own(cells: Iterable[NamedCell], domains: Iterable[str] | None = None) -> list[float]:
    """Shares of the clients' own models on their own samples."""
    return [
        c.correct / c.total
        for c in cells
        if c.model_kind == c.test_set_kind == "client"
        and c.model == c.test_set
        and (domains is None or c.domain in domains)
    ]


def _accuracy(reader: _Reader, figure: Figure, value: RunResult, out: str | None) -> float | None:
    """Mean over clients (of the target's domain) of their own models on their own test samples."""
    names = published.DOMAINS.get(figure.dataset, {})
    domains = None if figure.target == "avg" else [names[figure.target]]
    return reader.over_rounds(value, BROADCAST, lambda cells: _own(cells, domains))


def _whole_test(reader: _Reader, figure: Figure, value: RunResult, out: str | None) -> float | None:
    """FedAlign's global performance: the global model on the whole test set."""
    return reader.over_rounds(value, BROADCAST, lambda c: _known(global_accuracy(c)))


def after_aggregation(figure: Figure) -> bool:
    """Whether a printed local performance is of models after aggregation: FedAlign's under IID and Dirichlet.

    (Its Appendix B.3.) PromptFL's figures show that theirs are of those before it: under IID every client
    holds all classes, where one aggregated model would have one figure, and the paper prints two.
    """
    return figure.method.startswith("FedAlign") and not figure.setting.startswith("Path")


def _local_test(reader: _Reader, figure: Figure, value: RunResult, out: str | None) -> float | None:
    """Local performance: models on all test samples of a client's classes, which under Path are its own."""
    point = BROADCAST if after_aggregation(figure) else LOCAL
    pick = _own if figure.setting.startswith("Path") else _on_own_classes
    return reader.over_rounds(value, point, pick)


def _on_own_classes(cells: Iterable[NamedCell]) -> list[float]:
    return [c.correct / c.total for c in cells if c.test_set_kind == "classes"]


def _generalization(reader: _Reader, figure: Figure, value: RunResult, out: str | None) -> float | None:
    """G: the global model on the held-out domain."""
    return reader.over_rounds(value, BROADCAST, lambda c: _known(global_accuracy(c, out)))


def _personalization(reader: _Reader, figure: Figure, value: RunResult, out: str | None) -> float | None:
    """P: the clients' models on their own domains, of one printed target or the mean over all domains."""
    if figure.setting.startswith("held out") and figure.target != "avg":
        name = published.DOMAINS.get(figure.dataset, {})[figure.target]
        return reader.over_rounds(value, BROADCAST, lambda c: _known(accuracy_by_domain(c).get(name)))
    return reader.over_rounds(value, BROADCAST, lambda c: _known(personalisation(c, out)))


def _comprehensive(reader: _Reader, figure: Figure, value: RunResult, out: str | None) -> float | None:
    """C: the clients' models on their own domains and the global one on the held-out domain, all equal."""
    return reader.over_rounds(value, BROADCAST, lambda c: _known(comprehensive(c, out)))


def _known(share: float | None) -> list[float]:
    return [] if share is None else [share]


def _condition(reader: _Reader, figure: Figure, value: RunResult, out: str | None) -> float | None:
    """Final condition number of the clients' transforms, mean over clients."""
    rows = reader.diagnostics(value.run.id, "condition_number")
    last = [r.value for r in rows if r.round == rows[-1].round and r.value is not None] if rows else []
    return float(np.mean(last)) if last else None


def _conflict(reader: _Reader, figure: Figure, value: RunResult, out: str | None) -> float | None:
    """Mean pairwise cosine of the clients' pseudo-gradients, mean over all rounds."""
    known = [r.value for r in reader.diagnostics(value.run.id, "gradient_conflict") if r.value is not None]
    return float(np.mean(known)) if known else None


def _traffic(reader: _Reader, figure: Figure, value: RunResult, out: str | None) -> float | None:
    """Millions of scalars that a client sends in a round (the paper does not say what it counts)."""
    rounds = [r for r in reader.store.rounds.of_runs([value.run.id]) if r.round > 0]
    clients = sum(e.kind == "client" for e in reader.store.cells.entities(value.run.id))
    known = [r.scalars_up for r in rounds if r.scalars_up is not None]
    return float(np.mean(known)) / clients / 1e6 if known and clients else None


_MEASURES: dict[str, Callable[[_Reader, Figure, RunResult, str | None], float | None]] = {
    "accuracy": _accuracy,
    "mean client accuracy": _accuracy,
    "global": _whole_test,
    "local": _local_test,
    "generalization": _generalization,
    "personalization": _personalization,
    "comprehensive": _comprehensive,
    "condition number": _condition,
    "pseudo-gradient cosine": _conflict,
    "Comm. (M/epoch)": _traffic,
}
"""Metrics as printed -> how ours is read. A metric without one is ``Absent`` in ``published``."""


def _digits(value: float) -> int:
    """Decimals as the papers print: two for per cent, three for cosines."""
    return 2 if abs(value) >= 1 else 3


def text(rows: Sequence[Beside]) -> str:
    """The rows as a table for a terminal, and how many are of which kind."""
    head = ("table", "data set", "setting", "method", "target", "metric", "published", "ours", "difference")
    lines = [
        (
            r.figure.table,
            r.figure.dataset,
            r.figure.setting or "-",
            r.figure.method,
            r.figure.target,
            r.figure.metric,
            r.printed,
            r.text,
            r.difference or "-",
        )
        for r in rows
    ]
    kinds = {kind: sum(r.status == kind for r in rows) for kind in get_args(Status)}
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    why = dict.fromkeys(r.why for r in rows if r.status == "measured with a caveat")
    notes = [f"{CAVEAT_MARK} {text}" for text in why]
    return "\n".join([published.columns([head, *lines], left=6), *notes, f"{len(rows)} figures: {counts}"])
