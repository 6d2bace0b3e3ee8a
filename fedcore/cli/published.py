"""``published``: the values that papers print, with ours beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cli.options import DONE, Database, warn_of_damage, with_common_options
from fedcore.cli.presets import ExperimentFile, PresetName, load_experiment
from fedcore.errors import FedLensError
from fedcore.progress import counted

if TYPE_CHECKING:
    from fedcore.papers.comparability import Reason
    from fedcore.papers.coverage import Column
    from fedcore.papers.published import PublishedValue
    from fedcore.papers.reproductions import Reproduction

commands = typer.Typer()


@commands.command("published")
@with_common_options
def published(
    file: ExperimentFile = None,
    preset: PresetName = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Count the published values that can be run here")
    ] = False,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="List every comparable value with what makes it so")
    ] = False,
    db: Database = None,
) -> int:
    """Show the values that a paper prints, with ours beside them."""
    from fedcore.papers.coverage import coverage as counted
    from fedcore.papers.coverage import evidence as supported
    from fedcore.papers.reproductions import reproductions
    from fedcore.store import Store

    for name, given in (("coverage", coverage), ("evidence", evidence)):
        if given and (file is not None or preset is not None):
            raise FedLensError(f"--{name} covers all papers; leave the experiment out", name)
    if coverage or evidence:
        texts = [coverage_text(counted())] * coverage + [evidence_text(supported())] * evidence
        print("\n\n".join(texts))
        return DONE
    experiment = load_experiment(file, preset)
    store = Store(db)
    print(reproductions_text(reproductions(store, experiment)))
    warn_of_damage(store)
    return DONE


def coverage_text(tables: Mapping[tuple[str, str], Counter[Column]]) -> str:
    """Return a row per table, a sum per paper and over all, and the meaning of the columns."""
    from fedcore.papers.coverage import COLUMNS, RUNNABLE, missing_data_sets

    def line(paper: str, table: str, counts: Iterable[Counter[Column]]) -> tuple[object, ...]:
        total: Counter[Column] = sum(counts, Counter())
        runnable = sum(total[column] for column in RUNNABLE)
        return paper, table, total.total(), runnable, *(total[column] for column in COLUMNS)

    lines: list[tuple[object, ...]] = []
    for paper in dict.fromkeys(paper for paper, _ in tables):
        own = {table: counts for (name, table), counts in tables.items() if name == paper}
        lines += [line(paper, table, [counts]) for table, counts in own.items()]
        lines.append(line(paper, "all", own.values()))
    lines.append(line("all", "", tables.values()))
    absent = missing_data_sets()
    return "\n".join(
        [
            columns([("paper", "table", "values", "can be run", *COLUMNS), *lines], left=2),
            "",
            "can be run: FedLens has the method, the setting and the data set (give its folder with --root)",
            *(f"{column}: {meaning}" for column, meaning in COLUMNS.items()),
            *([f"the catalog lacks {', '.join(absent)}"] if absent else []),
        ]
    )


def evidence_text(supported: Mapping[Reason, Sequence[PublishedValue]]) -> str:
    """Return the comparable values, one line each, below the evidence that makes them so."""
    from fedcore.papers.comparability import FILE

    blocks = []
    for reason, values in supported.items():
        lines = [
            (v.source, v.dataset, v.setting, v.backbone, v.method, v.target, v.metric, v.value)
            for v in values
        ]
        blocks.append(f"{FILE.name}, line {reason.line}: {reason.text}\n{columns(lines, left=7)}")
    count = len({value for values in supported.values() for value in values})
    return "\n\n".join([*blocks, f"{count} comparable values"])


def reproductions_text(rows: Sequence[Reproduction]) -> str:
    """Return the rows as a table for a terminal, and the number of rows of each status."""
    from fedcore.papers.reproductions import reasons, status_counts

    head = (
        "table", "data set", "setting", "method", "target", "metric",
        "published", "ours", "difference", "comparability",
    )  # fmt: skip
    lines = [
        (
            row.published.table,
            row.published.dataset,
            row.published.setting or "-",
            row.published.method,
            row.published.target,
            row.published.metric,
            row.published_text,
            row.measured_text,
            row.difference or "-",
            row.comparability.state if row.comparability else "-",
        )
        for row in rows
    ]
    counts = ", ".join(f"{count} {status}" for status, count in status_counts(rows).items())
    notes = [f"{mark} {methods}: {reason}" for mark, methods, reason in reasons(rows)]
    return "\n".join([columns([head, *lines], left=6), *notes, f"{counted(len(rows), 'value')}: {counts}"])


def columns(lines: Iterable[Iterable[object]], left: int) -> str:
    """Return text in columns, the first ``left`` of them aligned to the left, the others to the right."""
    cells = [[str(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = (
        (c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    )
    return "\n".join("  ".join(line).rstrip() for line in aligned)
