"""The tables and figures of docs/openness.md, from recorded rehearsals of the readings of some tables.

The page has the commands that make the runs. Then:

python -m tools.docs.openness study.db
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedcore.base.errors import FedLensError
from fedcore.papers import choices
from fedcore.papers.choices import Multiverse, readings
from fedcore.papers.layout import all_tables
from fedcore.results.charts.ranks import specification_chart
from fedcore.results.charts.still import still
from fedcore.results.charts.theme import Theme
from fedcore.results.charts.vector import svg_file
from fedcore.results.metrics import run_results
from fedcore.results.specification import Specification, chance, curve
from fedcore.results.statistics import group_by, signed
from fedcore.store import Store
from tools.docs.blocks import FOLDER, fill, rewrite
from tools.docs.recorded import difference, environment, markdown

PAGE = FOLDER / "openness.md"
PICTURES = FOLDER / "openness"
DATABASE = "study.db"
KINDS = ("survives", "same sign, not decided", "depends", "not seen")
"""Beginnings of the verdicts."""
EVERY = 10**6
"""More readings than any table has: those whose runs are recorded are taken."""
WIDTH = 1100
SHOWN = 1.0
"""Points from which an effect is named."""


@dataclass(frozen=True)
class Question:
    """A part of a table, and how its readings were sampled.

    Attributes:
        columns: column of the table -> the names in it that were run.
        most: readings that were asked for; None: the default.
    """

    table: str
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    most: int | None = None

    @property
    def command(self) -> str:
        """The command that makes the runs."""
        options = "".join(f' --{column} "{name}"' for column, names in self.columns.items() for name in names)
        sample = f" --most {self.most}" if self.most else ""
        return f"fedlens papers readings {self.table}{options} --rehearsal{sample} --run --db {DATABASE}"


QUESTIONS: dict[str, Question] = {
    "feddeap": Question(
        "feddeap-1",
        {"dataset": ["DomainNet-126"], "method": ["CLIP-zs", "CLIP-FC", "FedCLIP", "PromptFL", "FedDEAP"]},
        1,
    ),
    "fedot": Question(
        "fedot-1", {"dataset": ["FEMNIST"], "method": ["Zero-Shot CLIP", "FedCLIP", "FedOT"]}, 1
    ),
    "fedalign": Question(
        "fedalign-1",
        {"dataset": ["CIFAR10"], "setting": ["Dir"], "method": ["FedAlign", "PromptFL", "FedPGP"]},
        1,
    ),
    "sdfed": Question(
        "sdfed-1", {"dataset": ["DTD"], "backbone": ["ViT-B-16"], "method": ["SDFed", "CoOp"]}, 1
    ),
}
"""Name of a block -> what it asks."""


def shown(store: Store, question: Question) -> list[Multiverse]:
    """Return the rankings of means of a part of a table, under every reading whose runs are recorded.

    Raises:
        FedLensError: if fewer than two readings of a ranking are recorded.
    """
    values = [
        value
        for table in all_tables()
        if table.name == question.table
        for value in table.values
        if value.target == "avg"
        and all(getattr(value, column) in names for column, names in question.columns.items())
    ]
    recorded = choices.recorded_runs(store, rehearsal=True)
    found = [
        choices.multiverse(ranking, rehearsal=True, most=EVERY).read(recorded)
        for ranking in choices.rankings(values)
    ]
    lacking = next((of.ranking.title for of in found if len(of.found) < 2), None)
    if lacking is not None:
        raise FedLensError(
            f"{store.path}: the runs of '{lacking}' are missing; make them: {question.command}"
        )
    return found


def verdict(found: Sequence[Specification], printed: float) -> str:
    """Return whether the sign of a printed difference is that of the rehearsal under every reading.

    A difference is decided if its 95 % interval excludes 0.

    Args:
        found: the difference under all readings, one of which is that of FedLens.
        printed: the difference of the printed values.
    """
    default = next(spec for spec in found if not any(spec.reading))
    agrees = {spec.reading: spec.stat.mean * printed > 0 for spec in found}
    decided = [s for s in found if s.half is not None and abs(s.stat.mean) > s.half]
    if all(agrees.values()):
        return "survives" if default in decided else "same sign, not decided"
    if not any(agrees.values()):
        return "not seen"
    if not decided:
        return "depends, never decided"
    both = len({agrees[spec.reading] for spec in decided}) == 2
    return "depends, decided both ways" if both else "depends"


def rivals_table(every: Sequence[Multiverse]) -> str:
    """Return a row per pair of methods and quantity: the difference in FedLens's and in all readings."""
    headings = [
        "difference",
        "printed",
        "FedLens's reading (95 % interval)",
        "could have seen",
        "all readings (ahead in)",
        "sign turned by other seeds",
        "sign of the printed difference",
    ]
    return markdown(headings, [row for of in every for row in _rivals(of)])


def _rivals(of: Multiverse) -> list[list[str]]:
    lines = []
    default = next(reading for reading in of.found if not any(reading))
    for rival in of.ranking.rivals:
        mine, theirs = of.found[default][of.ranking.proposed], of.found[default][rival]
        specs = curve(of.values(rival))
        turned = chance(of.values(rival)[default])
        lines.append(
            [
                f"{of.ranking.proposed.method} minus {rival.method}, {rival.metric}",
                signed(of.ranking.proposed.value - rival.value),
                *difference(mine, theirs)[:2],
                f"{signed(specs[0].stat.mean)} to {signed(specs[-1].stat.mean)} "
                f"({sum(s.stat.mean > 0 for s in specs)} of {len(specs)})",
                "-" if turned is None else f"{turned:.0%}",
                verdict(specs, of.ranking.proposed.value - rival.value),
            ]
        )
    return lines


def effects_text(of: Multiverse) -> str:
    """Return what the alternatives move the paper's own method by, and which of them change the order."""
    effects = of.named_effects()
    moved = [
        f"{choice}, {alternative} ({signed(effect.mean)})"
        for choice, alternative, effect in effects
        if effect.largest >= SHOWN
    ]
    reordered = [
        f"{choice}, {alternative} ({effect.reordered} of {effect.pairs})"
        for choice, alternative, effect in effects
        if effect.reordered
    ]
    return (
        f"Alternatives that move {of.ranking.proposed.method} by a point or more: {'; '.join(moved)}.\n"
        f"Those that change the order: {'; '.join(reordered)}.\n"
    )


def picture(name: str, of: Multiverse) -> str:
    """Write the specification curve of the closest other method as SVG, and return its place in the page.

    Of many readings a sample is drawn.
    """
    default = next(reading for reading in of.found if not any(reading))
    means = of.means[default]
    mine = of.ranking.proposed.method
    rival = max(of.ranking.rivals, key=lambda v: -abs(means[v.method] - means[mine]))
    choices = [(c.name, [a.label for a in c.alternatives]) for c in of.choices]
    quantity = f"{mine} minus {rival.method}"
    sample = set(readings(of.choices))
    specs = curve({reading: by_seed for reading, by_seed in of.values(rival).items() if reading in sample})
    method = of.source(of.ranking.proposed, default).entry.name
    chart = specification_chart(specs, choices, quantity, method, Theme(), narrow=False)
    PICTURES.mkdir(exist_ok=True)
    svg = svg_file(still(chart.figure, WIDTH, name), chart.alt)
    (PICTURES / f"{name}.svg").write_bytes(svg)
    return f"![Specification curve: {chart.alt}](openness/{name}.svg)\n"


def section(store: Store, name: str) -> str:
    """Return the section of one table."""
    question = QUESTIONS[name]
    every = shown(store, question)
    return f"```bash\n{question.command}\n```\n\n{picture(name, every[0])}\n{effects_text(every[0])}"


def survey(store: Store) -> str:
    """Return the differences of all tables, and how many printed ones survive.

    A pair of methods whose runs give several quantities is counted once, by the least favourable of them.
    """
    every: dict[tuple[str, ...], list[str]] = {}
    found = [of for question in QUESTIONS.values() for of in shown(store, question)]
    for of in found:
        proposed = of.ranking.proposed
        for rival in of.ranking.rivals:
            runs = (proposed.paper, proposed.dataset, proposed.setting, rival.method)
            said = verdict(curve(of.values(rival)), proposed.value - rival.value)
            every.setdefault(runs, []).append(said)
    least = [max(of, key=_place) for of in every.values()]
    counts = ", ".join(f"{sum(text.startswith(kind) for text in least)} *{kind}*" for kind in KINDS)
    counted = f"Of {len(every)} pairs of methods, each by its least favourable quantity: {counts}.\n"
    return f"{rivals_table(found)}\n{counted}"


def _place(verdict: str) -> int:
    return next(i for i, kind in enumerate(KINDS) if verdict.startswith(kind))


def made(store: Store) -> str:
    """Return the number of runs and where they were made."""
    runs = [run for e in store.experiments.all() for run in e.runs if run.state == "done"]
    by_commit = group_by(
        run_results(store, runs, "last"), lambda r: store.runs.environment(r.run.id).get("commit")
    )
    places = "; ".join(f"{len(of)} on {environment(store, of)}" for of in by_commit.values())
    return f"{len(runs)} runs: {places}.\n"


def render(text: str, store: Store) -> str:
    """Return the page with its blocks written from the runs."""
    return fill(
        text,
        {
            "survey": lambda _: f"{made(store)}\n{survey(store)}",
            "openness": lambda name: section(store, name),
        },
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the page and its figures."""
    parser = argparse.ArgumentParser(description="Write docs/openness.md from recorded runs.")
    parser.add_argument("db", help="database with the runs of the page's commands")
    try:
        store = Store(parser.parse_args(arguments).db)
        rewrite(PAGE, lambda text: render(text, store))
    except FedLensError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
