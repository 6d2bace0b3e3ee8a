"""``methods``, ``presets`` and ``published``: built-in methods and experiments, and the papers' values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.base.files import write_whole
from fedcore.base.progress import counted
from fedcore.cli import common
from fedcore.methods import registry
from fedcore.store import Store

if TYPE_CHECKING:
    from fedcore.papers.cells import TableCell
    from fedcore.papers.comparability import CoverageColumn, Reason
    from fedcore.papers.published import PublishedValue


@common.command("methods")
def list_methods(
    name: Annotated[str | None, Argument(metavar="NAME", help="One of the methods")] = None,
) -> None:
    """List the methods, or the hyper-parameters of one."""
    if name is None:
        found = registry.load_all()
        width, of_title = max(map(len, found)), max(len(cls.about.title) for cls in found.values())
        for method, cls in found.items():
            print(f"{method:<{width}}  {cls.about.title:<{of_title}}  {cls.about.source}")
        return
    cls = registry.get(name, "name")
    print(f"# {cls.about.title} ({cls.about.source})\n# {cls.about.summary}\n")
    lines = {}
    for field, info in cls.Config.model_fields.items():
        default = info.get_default(call_default_factory=True)
        # TOML has no null: a field that is empty by default stays a comment
        text = f"# {field} =" if default is None else f"{field} = {json.dumps(default, default=str)}"
        lines[text] = info.description
    width = max(map(len, lines), default=0)
    for text, description in lines.items():
        print(f"{text:<{width}}  # {description}")


@common.command("presets")
def presets(
    names: Annotated[
        list[str] | None, Argument(metavar="NAME", help="Only these presets (default: all)")
    ] = None,
    write: Annotated[
        str | None, Option(metavar="FOLDER", help="Write them as TOML files, to edit and run")
    ] = None,
) -> None:
    """List the experiments that come with FedLens, or write them.

    They are the demo, the ablations of methods, and the papers' experiments, one for tables that share their
    runs. Where a paper does not state a setting, the notes of its preset say what was chosen.
    """
    from fedcore.papers import experiments

    wanted = names or experiments.names()
    if write is None:
        for name in wanted:
            print(f"{name:<42} {experiments.title(name)}")
        return
    folder = common.file_output(write, "name a folder", "write")
    files = {folder / f"{name}.toml": experiments.preset(name) for name in wanted}
    for file in files:
        exists = f"{file} exists; choose another folder or move the file away"
        common.refuse_if(file.exists(), exists, "write")
    try:
        for file, experiment in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, config.dumps(experiment).encode())
    except OSError as error:
        message = f"cannot write to {folder}: {error.strerror}; choose another folder"
        raise FedLensError(message, "write") from error
    print(f"{counted(len(files), 'file')} written to {folder}")


@common.command("published")
def published(
    file: common.ExperimentFile = None,
    preset: common.PresetName = None,
    coverage: Annotated[
        bool, Option("--coverage", help="Count the published values that can be run here")
    ] = False,
    evidence: Annotated[
        bool, Option("--evidence", help="List every comparable value with the evidence for it")
    ] = False,
    db: common.Database = None,
) -> None:
    """Show the values that a paper prints, with ours beside them.

    Ours is the mean over seeds of finished runs that have the experiment's data, partition, CLIP, rounds and
    hyper-parameters, at the round that the paper reports. Lines below the table explain † (with a caveat)
    and ‡ (not comparable, so no difference is given).
    """
    from fedcore.papers import comparability as papers
    from fedcore.papers.reproductions import reproductions

    for name, given in (("coverage", coverage), ("evidence", evidence)):
        misplaced = given and (file is not None or preset is not None)
        common.refuse_if(misplaced, f"--{name} covers all papers; leave the experiment out", name)
    if coverage or evidence:
        texts = [coverage_text(papers.coverage())] if coverage else []
        if evidence:
            texts.append(evidence_text(papers.evidence()))
        print("\n\n".join(texts))
        return
    experiment = common.load_experiment(file, preset, db)
    store = Store(db)
    print(reproductions_text(reproductions(store, experiment)))
    common.warn_of_damage(store)


def coverage_text(tables: Mapping[tuple[str, str], Counter[CoverageColumn]]) -> str:
    """Return a row per table, a sum per paper and over all, and the meaning of the columns."""
    from fedcore.data import catalog
    from fedcore.papers.comparability import COVERAGE_COLUMNS
    from fedcore.papers.experiments import data_sets
    from fedcore.results.summary import STATES

    def line(paper: str, table: str, counts: Iterable[Counter[CoverageColumn]]) -> tuple[object, ...]:
        total: Counter[CoverageColumn] = sum(counts, Counter())
        runnable = sum(total[column] for column in STATES)
        return paper, table, total.total(), runnable, *(total[column] for column in COVERAGE_COLUMNS)

    lines: list[tuple[object, ...]] = []
    for paper in dict.fromkeys(paper for paper, _ in tables):
        of_paper = {table: counts for (name, table), counts in tables.items() if name == paper}
        lines += [line(paper, table, [counts]) for table, counts in of_paper.items()]
        lines.append(line(paper, "all", of_paper.values()))
    lines.append(line("all", "", tables.values()))
    absent = sorted(data_sets() - {*catalog.names()})
    return "\n".join(
        [
            common.columns([("paper", "table", "values", "can be run", *COVERAGE_COLUMNS), *lines], left=2),
            "",
            "can be run: FedLens has the method, the setting and the data set (give its folder with --root)",
            *(f"{column}: {meaning}" for column, meaning in COVERAGE_COLUMNS.items()),
            *([f"the catalog lacks {', '.join(absent)}"] if absent else []),
        ]
    )


def evidence_text(supported: Mapping[Reason, Sequence[PublishedValue]]) -> str:
    """Return the comparable values, one line each, below the evidence that makes them so."""
    blocks = []
    for reason, values in supported.items():
        lines = [
            (v.source, v.dataset, v.setting, v.backbone, v.method, v.target, v.metric, v.value)
            for v in values
        ]
        blocks.append(f"{reason.place}: {reason.text}\n{common.columns(lines, left=7)}")
    count = len({value for values in supported.values() for value in values})
    return "\n\n".join([*blocks, f"{count} comparable values"])


def reproductions_text(cells: Sequence[TableCell]) -> str:
    """Return the rows as a table for a terminal, and the number of rows of each status."""
    from fedcore.papers.reproductions import outcome_counts, reasons

    head = (
        "table", "data set", "setting", "method", "target", "metric",
        "published", "ours", "difference", "comparability",
    )  # fmt: skip
    printed = ("table", "dataset", "setting", "method", "target", "metric")
    lines = [
        (
            *(getattr(cell.value, name) or "-" for name in printed),
            cell.value.text,
            cell.outcome_text,
            cell.gap_text or "-",
            cell.judgement or "-",
        )
        for cell in cells
    ]
    counts = ", ".join(f"{count} {status}" for status, count in outcome_counts(cells).items())
    notes = [f"{mark} {methods}: {reason}" for mark, methods, reason in reasons(cells)]
    return "\n".join(
        [common.columns([head, *lines], left=6), *notes, f"{counted(len(cells), 'value')}: {counts}"]
    )
