"""The commands about results: write them to files, take them from elsewhere, set them beside printed ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedcore import config
from fedcore.errors import FedLensError
from fedcore.store import database
from fedcore.store.importing import Merged


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Make these commands known; ``command`` adds one by name, function and text."""
    export = command("export", _export, "the comparison's numbers")
    export.add_argument("id", type=int, nargs="+", metavar="ID", help="experiments")
    export.add_argument(
        "--table",
        choices=("summary", "rounds", "clients", "experiment"),
        default="summary",
        help="which table; experiment: all that was recorded, to import elsewhere",
    )
    export.add_argument("--format", choices=("csv", "latex", "json"), default="csv", help="how it is written")
    export.add_argument(
        "-o", "--output", type=Path, default=None, help="file, or folder to put it in (default: print it)"
    )
    export.add_argument(
        "--baseline", default=None, metavar="NAME", help="method to compare with (summary csv)"
    )
    export.add_argument(
        "--test", choices=("t", "wilcoxon"), default="t", help="paired test over seeds against the baseline"
    )

    imported = command("import", _import, "record a CSV file of your own results, or an experiment's JSON")
    imported.add_argument("file", type=Path, metavar="FILE.csv|FILE.json")
    imported.add_argument(
        "--experiment",
        metavar="NAME",
        help="of a CSV file: experiment to join (name or id), or the name of a new one",
    )
    imported.add_argument("--dataset", default="own data", help="data set they were measured on")

    published = command("published", _published, "figures that papers print, beside ours")
    published.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="experiment file")
    published.add_argument(
        "--coverage", action="store_true", help="count the printed figures that can be run here"
    )

    merge = command("merge", _merge, "copy the experiments of another database into this one")
    merge.add_argument("other", type=Path, metavar="OTHER.db")


def _export(options: argparse.Namespace) -> int:
    from fedcore.papers.printed import printed_values
    from fedcore.results import export
    from fedcore.store import exchange as transfer
    from fedcore.store import queries

    db = database.resolve(options.db)
    rows = [queries.experiment(db, experiment_id) for experiment_id in options.id]
    printed = partial(printed_values, experiments=[row.config for row in rows])
    writers = {
        ("summary", "csv"): partial(
            export.summary_csv, baseline=options.baseline, test=options.test, printed=printed
        ),
        ("summary", "latex"): partial(export.summary_latex, printed=printed),
        ("summary", "json"): partial(export.summary_json, printed=printed),
        ("rounds", "csv"): export.rounds_csv,
        ("clients", "csv"): export.clients_csv,
        ("experiment", "json"): transfer.experiments_json,
    }
    write = writers.get((options.table, options.format))
    if write is None:
        there = ", ".join(kind for table, kind in writers if table == options.table)
        raise FedLensError(
            f"table '{options.table}' is not written as {options.format}; choose {there}", "format"
        )
    text = write(db, options.id)
    target = options.output
    if target is None:
        sys.stdout.write(text)
        return 0
    if target.is_dir():
        suffix = {"latex": "tex"}.get(options.format, options.format)
        name = "-".join(row.name for row in rows)
        target = target / export.file_name(name, options.table, suffix, export.fingerprint(rows))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FedLensError(
            f"cannot write {target}: {error.strerror}; choose another file", "output"
        ) from error
    return 0


def _import(options: argparse.Namespace) -> int:
    from fedcore.store import import_csv, import_json

    if options.file.suffix.lower() == ".json":
        return _tell(import_json(options.db, options.file))
    if options.experiment is None:
        raise FedLensError("name the experiment that a CSV file's runs belong to", "experiment")
    created = import_csv(options.db, options.file, options.experiment, options.dataset)
    print(f"experiment {created.experiment_id}: {len(created.run_ids)} runs recorded")
    return 0


def _published(options: argparse.Namespace) -> int:
    from fedcore.papers import beside, published

    if options.coverage == (options.file is not None):
        raise FedLensError("name an experiment file, or --coverage", "file")
    if options.coverage:
        print(published.coverage_text())
        return 0
    db = options.db or database.default_path()
    print(beside.text(beside.beside(db, config.load(options.file))))
    return 0


def _merge(options: argparse.Namespace) -> int:
    from fedcore.store import merge

    return _tell(merge(options.db, options.other))


def _tell(merged: Merged) -> int:
    for name in merged.added:
        print(f"added: {name}")
    for name in merged.present:
        print(f"here already, left as it is: {name}")
    return 0
