"""``papers list``, ``add``, ``remove``, ``pairs``, ``pair``, ``audit`` and ``readings``: printed values."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.base.files import user_path
from fedcore.base.progress import counted
from fedcore.cli import common, experiments
from fedcore.cli.terminal import AsJson, print_table, with_preparation
from fedcore.engine.plan import plan
from fedcore.store import Store

if TYPE_CHECKING:
    from fedcore.papers.layout import PrintedTable
    from fedcore.papers.published import PublishedValue

papers = typer.Typer(help="List, add, remove or audit papers with printed values.")
common.application.add_typer(papers, name="papers")


def _use(db: Path | None) -> Path:
    """Read the papers added to a database, report those that cannot be read, and return its path."""
    from fedcore.papers import adding

    path = Path(Store(db).path)
    for error in adding.use(path):
        print(f"left out: {error}", file=sys.stderr)
    return path


@common.command("list", papers)
def list_papers(as_json: AsJson = False, db: common.Database = None) -> None:
    """List the papers, with the number of their values, and the folder of those that were added."""
    from fedcore.papers import library
    from fedcore.papers.published import load

    _use(db)
    table = []
    for key, paper in library.papers().items():
        row = {"name": key, "values": len(load(key)), "kind": paper.kind, "title": paper.title}
        table.append(row | {"citation": paper.citation, "folder": None if paper.ships else paper.folder})
    print_table(table, as_json)


@common.command("add", papers)
def add(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A folder with paper.toml and values.csv")],
    db: common.Database = None,
) -> None:
    """Check a paper's folder, copy it beside the database (or into FEDLENS_PAPERS), and audit its values."""
    from fedcore.papers import adding
    from fedcore.papers.published import load

    path = _use(db)
    paper, found = adding.add(user_path(folder, "folder"), path)
    for finding in found:
        print(f"{finding.kind}: {finding.value.source}, {finding.value.cell}: {finding.text}")
    print(f"{paper.title}: {counted(len(load(paper.key)), 'value')} added, {counted(len(found), 'finding')}")


@common.command("remove", papers)
def remove(
    name: Annotated[str, Argument(metavar="NAME", help="An added paper")], db: common.Database = None
) -> None:
    """Delete a paper that was added to the database."""
    from fedcore.papers import adding

    adding.remove(name, _use(db))


@common.command("pairs", papers)
def pairs(
    of: Annotated[
        list[str] | None, Argument(metavar="NAME", help="Only pairs that two of these papers print")
    ] = None,
    db: common.Database = None,
) -> None:
    """List the pairs of baseline and data set that more than one source prints."""
    from fedcore.papers import library, literature

    _use(db)
    works = {library.find(name, "name").work for name in of or ()}
    found = [p for p in literature.several().values() if not of or len(works & {*p.works}) > 1]
    for pair in found:
        print(pair.text)
    print(f"{counted(len(found), 'pair')} of baseline and data set printed by more than one source")


@common.command("pair", papers)
def pair(
    baseline: Annotated[str, Argument(metavar="BASELINE")],
    dataset: Annotated[str, Argument(metavar="DATASET")],
    db: common.Database = None,
) -> None:
    """Show what every source prints for a baseline on a data set, and in which setting."""
    from fedcore.papers import library, literature
    from fedcore.papers.published import findings_of

    _use(db)
    every = literature.pairs()
    if (baseline, dataset) not in every:
        asked, printed = f"{baseline} on {dataset}", {f"{b} on {d}" for b, d in every}
        meant = did_you_mean(asked, printed, "`fedlens papers pairs` lists the pairs of several sources")
        raise FedLensError(f"no source prints {asked}; {meant}", "baseline")
    shown = every[baseline, dataset]
    print(shown.text)
    for value in shown.values:
        paper = library.find(value.paper)
        setting = literature.protocol_text(literature.protocol(value))
        print(
            f"{value.text:>15}  {literature.quantity(value)}, {value.source} ({paper.kind}), "
            f"{value.backbone or 'backbone not stated'}; {setting or 'setting not stated'}"
        )
        for finding in findings_of(value):
            print(f"{'':>15}  {finding.kind}: {finding.text}")


@common.command("audit", papers)
def audit(
    name: Annotated[str | None, Argument(metavar="NAME", help="One paper (default: all)")] = None,
    db: common.Database = None,
) -> int:
    """List what the audits found; the exit status is 1 if that is a warning about the named paper."""
    from fedcore.papers import library
    from fedcore.papers.published import FINDINGS, of_paper

    _use(db)
    papers = library.papers() if name is None else [library.find(name, "name").key]
    found = [f for paper in papers for of_value in of_paper(paper).values() for f in of_value]
    for finding in found:
        print(f"{finding.kind}: {finding.value.source}, {finding.value.cell}: {finding.text}")
    counts = Counter(finding.kind for finding in found)
    for kind, meaning in FINDINGS.items():
        if counts[kind]:
            print(f"{counts[kind]:>5} {kind}: {meaning}")
    warned = name is not None and any(finding.warns for finding in found)
    return common.NOT_DONE if warned else common.DONE


def _printed(table: PrintedTable, named: Mapping[str, Sequence[str] | None]) -> list[PublishedValue]:
    """Return the values of a table with some printed names, column by column."""
    for column, names in named.items():
        printed = dict.fromkeys(getattr(value, column) for value in table.values)
        for name in names or ():
            if name not in printed:
                hint = did_you_mean(name, printed, f"there are {', '.join(filter(None, printed))}")
                raise FedLensError(f"{table.name} has no {column} '{name}'; {hint}", column)
    return [
        value
        for value in table.values
        if all(not names or getattr(value, column) in names for column, names in named.items())
    ]


_ONLY = "Only this {} as printed; may be repeated"


@common.command("readings", papers)
def readings(
    table: Annotated[str, Argument(metavar="TABLE", help="A table, such as fedot-1")],
    dataset: Annotated[list[str] | None, Option(metavar="NAME", help=_ONLY.format("data set"))] = None,
    setting: Annotated[list[str] | None, Option(metavar="NAME", help=_ONLY.format("setting"))] = None,
    backbone: Annotated[list[str] | None, Option(metavar="NAME", help=_ONLY.format("backbone"))] = None,
    method: Annotated[list[str] | None, Option(metavar="NAME", help=_ONLY.format("method"))] = None,
    metric: Annotated[list[str] | None, Option(metavar="NAME", help=_ONLY.format("metric"))] = None,
    rehearsal: Annotated[bool, Option("--rehearsal", help="Read rehearsals on embedded data")] = False,
    most: Annotated[int, Option(metavar="N", min=1, help="Sample this many of more readings")] = 128,
    run: Annotated[bool, Option("--run", help="First train the missing runs here")] = False,
    queue: Annotated[bool, Option("--queue", help="Queue the missing runs for the worker")] = False,
    db: common.Database = None,
) -> int:
    """Read a table in every way that its paper leaves open: what moves values, and whether ranks survive.

    It lists the choices, counts the missing runs, and reads those that are there.
    """
    from fedcore import jobs
    from fedcore.papers import choices
    from fedcore.papers.cells import Availability, fillings, find_available
    from fedcore.papers.layout import all_tables

    common.refuse_if(run and queue, "--run trains here, and --queue does not; give one of them", "queue")
    path = _use(db)
    tables = {shown.name: shown for shown in all_tables()}
    no_table = f"no table '{table}'; {did_you_mean(table, tables, 'the page Papers names them')}"
    common.refuse_if(table not in tables, no_table, "table")
    named = {"dataset": dataset, "setting": setting, "backbone": backbone, "method": method, "metric": metric}
    values = _printed(tables[table], named)
    every = [choices.multiverse(ranking, rehearsal, most) for ranking in choices.rankings(values)]
    spaces = [space for space in every if space.choices]
    nothing = f"{table}: its paper leaves nothing open that runs of these values could decide"
    common.refuse_if(not spaces, nothing, "table")
    for choice in {choice.name: choice for space in spaces for choice in space.choices}.values():
        print(f"{choice.name}: {', '.join(a.label for a in choice.alternatives)}")
    store = Store(path)
    available = find_available(store) if path.exists() else Availability({})
    recorded = choices.recorded_runs(store, rehearsal)
    cells = [cell for space in spaces for cell in space.cells(recorded, available)]
    every_filling = fillings(cells, available)
    missing = sum(len(wanted.wanted) for wanted in every_filling)
    count = sum(len(space.readings) for space in spaces)
    print(f"{counted(count, 'reading')}, {counted(missing, 'run')} missing")
    status = common.DONE
    if (run or queue) and every_filling:
        store = common.writable(db)
        for lack in (lack for f in every_filling for lack in f.lacks):
            common.refuse_if(lack.kind == "data", f"this machine lacks {lack.text}; {lack.how}", "table")
        for wanted in every_filling:
            planned = wanted.reduced(with_preparation(partial(plan, wanted.experiment)))
            if run:
                _, ended = experiments.train_in_process(store, wanted.experiment, planned.runs)
                if ended == common.INTERRUPTED:
                    return common.INTERRUPTED
                status = max(status, ended)
            else:
                store.experiments.create(wanted.experiment, planned.runs)
        if queue:
            jobs.ensure_worker(store)
            return common.DONE
        recorded = choices.recorded_runs(store, rehearsal)
    for space in spaces:
        for line in choices.report(space.read(recorded)):
            print(line)
    return status
