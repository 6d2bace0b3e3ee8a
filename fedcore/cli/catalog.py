"""``methods``, ``presets`` and ``published``: built-in methods and experiments, and the papers' values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.base.files import write_whole
from fedcore.base.progress import counted
from fedcore.cli import common
from fedcore.cli.common import refuse_if
from fedcore.cli.terminal import AsJson, Row, print_table
from fedcore.methods import registry
from fedcore.store import Store

if TYPE_CHECKING:
    from fedcore.papers.comparability import CoverageColumn


@common.command("methods")
def list_methods(
    name: Annotated[str | None, Argument(metavar="NAME", help="One of the methods")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or the hyper-parameters of one."""
    if name is None:
        found = registry.load_all().items()
        rows = [{"name": n, "title": cls.about.title, "source": cls.about.source} for n, cls in found]
        print_table(rows, as_json)
        return
    refuse_if(as_json, "the hyper-parameters of a method are printed as TOML; leave out --json", "json")
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
    as_json: AsJson = False,
) -> None:
    """List the experiments that come with FedLens, or write them.

    They are the demo, the ablations of methods, and the papers' experiments, one for tables that share their
    runs. Where a paper does not state a setting, the notes of its preset say what was chosen.
    """
    from fedcore.papers import experiments

    wanted = names or experiments.names()
    if write is None:
        print_table(({"name": name, "title": experiments.title(name)} for name in wanted), as_json)
        return
    refuse_if(as_json, "--write writes TOML files; leave out --json", "json")
    folder = common.file_output(write, "name a folder", "write")
    files = {folder / f"{name}.toml": experiments.preset(name) for name in wanted}
    for file in files:
        exists = f"{file} exists; choose another folder or move the file away"
        refuse_if(file.exists(), exists, "write")
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
    as_json: AsJson = False,
    db: common.Database = None,
) -> None:
    """Show the values that a paper prints, with ours beside them.

    Ours is the mean over seeds of finished runs that have the experiment's data, partition, CLIP, rounds and
    hyper-parameters, at the round that the paper reports. Notes below the table explain † (with a caveat)
    and ‡ (not comparable, so no difference is given).
    """
    from fedcore.papers import comparability as papers
    from fedcore.papers.reproductions import outcome_counts, reasons, reproductions

    for name, given in (("coverage", coverage), ("evidence", evidence)):
        misplaced = given and (file is not None or preset is not None)
        refuse_if(misplaced, f"--{name} covers all papers; leave the experiment out", name)
    both = "--coverage and --evidence are two tables; give one of them"
    refuse_if(coverage and evidence, both, "evidence")
    if coverage:
        _print_coverage(papers.coverage(), as_json)
        return
    if evidence:
        names = ("source", "dataset", "setting", "backbone", "method", "target", "metric", "value")
        rows: list[Row] = [
            {"place": reason.place, "evidence": reason.text} | {n: getattr(value, n) for n in names}
            for reason, values in papers.evidence().items()
            for value in values
        ]
        print_table(rows, as_json, under=("place", "evidence"))
        count = len({tuple(row[name] for name in names) for row in rows})
        common.print_note(f"{count} comparable values")
        return
    experiment = common.load_experiment(file, preset, db)
    store = Store(db)
    cells = reproductions(store, experiment)
    printed = ("table", "dataset", "setting", "method", "target", "metric")
    table: list[Row] = [
        {
            **{name: getattr(cell.value, name) for name in printed},
            "published": cell.value.text,
            "ours": cell.outcome_text,
            "difference": cell.gap_text,
            "comparability": cell.judgement,
        }
        for cell in cells
    ]
    print_table(table, as_json)
    for mark, methods, reason in reasons(cells):
        common.print_note(f"{methods}: {reason}", mark)
    counts = ", ".join(f"{count} {status}" for status, count in outcome_counts(cells).items())
    common.print_note(f"{counted(len(cells), 'value')}: {counts}")
    common.warn_of_damage(store)


def _print_coverage(tables: Mapping[tuple[str, str], Counter[CoverageColumn]], as_json: bool) -> None:
    """Print a row per table, a sum per paper and over all, and the meaning of the columns."""
    from fedcore.data import catalog
    from fedcore.papers.comparability import COVERAGE_COLUMNS
    from fedcore.papers.experiments import data_sets
    from fedcore.results.summary import STATES

    def line(paper: str, table: str, counts: Iterable[Counter[CoverageColumn]]) -> Row:
        total: Counter[CoverageColumn] = sum(counts, Counter())
        runnable = sum(total[column] for column in STATES)
        by_column: dict[str, int] = {column: total[column] for column in COVERAGE_COLUMNS}
        return {"paper": paper, "table": table, "values": total.total(), "can be run": runnable, **by_column}

    lines = []
    for paper in dict.fromkeys(paper for paper, _ in tables):
        of_paper = {table: counts for (name, table), counts in tables.items() if name == paper}
        lines += [line(paper, table, [counts]) for table, counts in of_paper.items()]
        lines.append(line(paper, "all", of_paper.values()))
    lines.append(line("all", "", tables.values()))
    print_table(lines, as_json)
    common.print_note(
        "FedLens has the method, the setting and the data set (give its folder with --root)", "can be run"
    )
    for column, meaning in COVERAGE_COLUMNS.items():
        common.print_note(meaning, column)
    if absent := sorted(data_sets() - {*catalog.names()}):
        common.print_note(f"the catalog lacks {', '.join(absent)}")
