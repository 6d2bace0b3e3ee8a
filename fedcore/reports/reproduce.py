"""What a report leaves to its readers: how to train its runs again, in one command, and what to cite."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from fedcore.config import MethodEntry, dumps
from fedcore.errors import FedLensError
from fedcore.methods import consent, registry
from fedcore.reports.content import Report
from fedcore.results.run_files import repeat_command, run_toml, trained_with
from fedcore.store import Store

SCRIPT = "reproduce.sh"
FOLDER = "runs"
METHODS = "methods"


@dataclass(frozen=True)
class Reproduction:
    """One command that trains the runs of a report again.

    Attributes:
        command: empty if FedLens trained none of them.
        files: what the command reads, by name: the experiments, and the user's own methods.
        missing: method files that have changed since, or are gone.
    """

    command: str
    files: Mapping[str, str]
    missing: tuple[str, ...]


def reproduction(report: Report) -> Reproduction:
    """Return the command and its files; each experiment trains all of its runs, whichever are shown."""
    trained = {run.experiment_id for run in report.comparison.runs if run.origin == "engine"}
    experiments = [e for e in report.comparison.experiments if e.id in trained]
    methods, missing = own_methods(entry for e in experiments for entry in e.config.methods)
    options = "".join(f" --methods {shlex.quote(name)}" for name in methods)
    files, commands = dict(methods), []
    for e in experiments:
        without_files = tuple(m.model_copy(update={"file": None, "sha256": None}) for m in e.config.methods)
        files[f"experiment-{e.id}.toml"] = dumps(e.config.model_copy(update={"methods": without_files}))
        commands.append(f"fedlens run experiment-{e.id}.toml{options} --db reproduced.db")
    return Reproduction(" && ".join(commands), files, tuple(missing))


def own_methods(entries: Iterable[MethodEntry]) -> tuple[dict[str, str], list[str]]:
    """Return the text of the user's method files by name, and the names of those that cannot be given.

    A file that has changed since its runs were planned would not repeat them.
    """
    files: dict[str, str] = {}
    missing = []
    for path, digest in dict.fromkeys((m.file, m.sha256) for m in entries if m.file):
        name = PurePath(path).name
        try:
            _, content = registry.read(path)
        except FedLensError:
            missing.append(name)
            continue
        if (
            digest not in (None, consent.digest(content))
            or files.get(name, content.decode()) != content.decode()
        ):
            missing.append(name)
        else:
            files[name] = content.decode()
    return files, missing


def reproduction_files(store: Store, report: Report) -> dict[str, str]:
    """Return the script and an experiment file per run by path, of the runs behind the numbers.

    Each file names every hyper-parameter; each command the threads and the device that decide the last bits.
    """
    averaged = {r.run.id: r.run for g in report.comparison.rows for r in g.runs}
    trained = [averaged[i] for i in sorted(averaged) if averaged[i].origin == "engine"]
    others = [str(i) for i in sorted(averaged) if averaged[i].origin != "engine"]
    methods, missing = own_methods(store.runs.config(run.id).method for run in trained)
    files = {f"{METHODS}/{name}": text for name, text in methods.items()}
    options = "".join(f" --methods {shlex.quote(path)}" for path in files)
    commands = []
    for run in trained:
        name = f"{FOLDER}/run-{run.id}.toml"
        files[name] = run_toml(store, run.id, with_method_file=False)
        commands.append(f'{repeat_command(name, report.environments[run.id])}{options} --db "$database"')
    lines = [
        "#!/bin/sh",
        *_comments(report, others, missing),
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


def _comments(report: Report, others: list[str], missing: list[str]) -> list[str]:
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
    if missing:
        said.append(
            f"Method files that have changed since, or are gone, so they are not here: {', '.join(missing)}"
        )
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
