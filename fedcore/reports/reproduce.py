"""What a report leaves to its readers: a script that trains its runs again, and how to cite FedLens."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import fedcore
from fedcore.reports.content import Report
from fedcore.results.run_files import repeat_command, run_toml, trained_with
from fedcore.store import Store

SCRIPT = "reproduce.sh"
FOLDER = "runs"


def reproduction_files(store: Store, report: Report) -> dict[str, str]:
    """Return the script and an experiment file per run by path, of the runs behind the numbers.

    Each file names every hyper-parameter; each command the threads and the device that decide the last bits.
    """
    averaged = {r.run.id: r.run for g in report.comparison.rows for r in g.runs}
    trained = [averaged[i] for i in sorted(averaged) if averaged[i].origin == "engine"]
    others = [str(i) for i in sorted(averaged) if averaged[i].origin != "engine"]
    files, commands = {}, []
    for run in trained:
        name = f"{FOLDER}/run-{run.id}.toml"
        files[name] = run_toml(store, run.id)
        commands.append(f'{repeat_command(name, report.environments[run.id])} --db "$database"')
    lines = [
        "#!/bin/sh",
        *_comments(report, others),
        "set -eu",
        'cd "$(dirname "$0")"',
        'database="${1:-reproduced.db}"',
        'if [ -e "$database" ]; then',
        '  echo "$database exists; name a new database: sh reproduce.sh FILE" >&2',
        "  exit 2",
        "fi",
        "fedlens --version",
        *commands,
        *(_report_again(report, len(trained)) if trained else ["echo 'no run was trained by FedLens' >&2"]),
        "",
    ]
    return {SCRIPT: "\n".join(lines), **files}


def _comments(report: Report, others: list[str]) -> list[str]:
    """Say what the script does, and what trained these runs; text from a database stays in its line."""
    said = [
        "Trains the runs behind this report again, into a database of its own, and makes the report of them.",
        "Usage: sh reproduce.sh [DATABASE]; needs the command fedlens, and data and weights as they were.",
        *dict.fromkeys(
            trained_with(environment) for environment in report.environments.values() if environment
        ),
        *_machines(report.environments),
    ]
    unfinished = [r for g in report.comparison.rows for r in g.runs if r.run.state != "done"]
    if unfinished:
        said.append(
            f"These runs were not finished when the report was made, but are trained to their end here: "
            f"run {', '.join(str(i) for i in sorted(r.run.id for r in unfinished))}"
        )
    if others:
        said.append(f"Recorded by a script or imported, so not trained here: run {', '.join(others)}")
    return [f"# {' '.join(text.split())}" for text in said]


def _machines(environments: Mapping[int, Mapping[str, object]]) -> list[str]:
    texts = dict.fromkeys(
        f"on {e.get('device_name', 'an unknown device')}, {e.get('platform', 'an unknown system')}, "
        f"torch {e.get('torch', 'unknown')}"
        for e in environments.values()
        if e
    )
    return list(texts)


def _report_again(report: Report, runs: int) -> list[str]:
    """Return the commands that make the same report of the new runs, whose experiments count from 1."""
    options = ["--rule", report.choice.rule]
    trained = [g for g in report.comparison.rows if g.trained_by_fedlens]  # others are not made again
    if report.choice.baseline in {g.label for g in trained}:
        options += ["--baseline", report.choice.baseline, "--test", report.choice.test]
    metric = report.choice.metric
    if metric is not None and any(metric in g.stats for g in trained):
        options += ["--metric", metric]
    # the filter is left out: it may name what the new database does not have, and it has no other runs
    return [f'fedlens report $(seq 1 {runs}) {shlex.join(options)} --db "$database" -o reproduced']


def fedlens_bibtex() -> str:
    """Return the BibTeX entry of this FedLens, as in CITATION.cff."""
    version = fedcore.__version__
    return (
        "@software{fedlens,\n"
        "  author  = {{The FedLens developers}},\n"
        "  title   = {{FedLens}: federated adaptation of {CLIP}, compared},\n"
        f"  version = {{{version}}},\n"
        "  year    = {2026},\n"
        "}\n"
    )
