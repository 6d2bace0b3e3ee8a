"""Progress bars and tables for a terminal, and lines of text, CSV or JSON where the output is not one."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, groupby
from typing import Annotated, TypeVar

from rich import progress as rich
from rich.console import Console
from typer import Option

from fedcore.base.events import AFTER_AGGREGATION, TEST, Event, Notice, RoundFinished, Started
from fedcore.base.progress import Progress, Work, counted, prepare_then, result_of
from fedcore.cli.common import is_quiet, printable, printable_output
from fedcore.config import RunConfig
from fedcore.config.field_names import size_text
from fedcore.methods import registry

_LINE_SECONDS = 10.0
_Result = TypeVar("_Result")


class _Bars(rich.Progress):
    """Bars above which everything else is printed, with control characters written out."""

    def __init__(self, console: Console, *columns: rich.ProgressColumn) -> None:
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self._printable = ExitStack()

    def start(self) -> None:
        if not self.disable and not self.live.is_started:
            super().start()
            self._printable.enter_context(printable_output())

    def stop(self) -> None:
        self._printable.close()
        super().stop()


def _terminal() -> Console:
    """Return a console on the stream behind ``printable_output``, since bars are control sequences.

    Rich finds that stream itself only until the first bar, to which it redirects all output.
    """
    return Console(file=getattr(sys.stderr, "rich_proxied_file", sys.stderr), quiet=is_quiet.get())


class RunBars(_Bars):
    """One bar per run, with the rounds done and the latest personal test accuracy.

    A warning about a method that several runs repeat before they train is printed once.

    Args:
        warnings: those of the plan, which are printed already.
    """

    def __init__(self, console: Console | None = None, warnings: Sequence[str] = ()) -> None:
        super().__init__(
            console or _terminal(),
            rich.TextColumn("{task.description:<28}", markup=False),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
            rich.TextColumn("{task.fields[status]}", markup=False),
        )
        self._bars: dict[int, rich.TaskID] = {}
        self._names: dict[int, str] = {}
        self._titles: dict[int, str] = {}
        self._warnings, self._training = set(warnings), set[int]()

    def add_runs(self, experiment_id: int, runs: dict[int, RunConfig]) -> None:
        for run_id, run in runs.items():
            name = f"{run.method.label or run.method.name}, seed {run.seed}"
            self._titles[run_id] = registry.title(run.method.name)
            self._names[run_id] = printable(name + (f", without {run.held_out}" if run.held_out else ""))
            self._bars[run_id] = self.add_task(
                self._names[run_id], total=max(1, run.rounds), start=False, status=""
            )
        self._line(f"experiment {experiment_id}: {counted(len(runs), 'run')}")

    def show(self, run_id: int, event: Event) -> None:
        task = self._bars[run_id]
        if isinstance(event, Started):
            self._training.add(run_id)
            self.start_task(task)
            self.update(task, total=max(1, event.rounds_total), status="")
        elif isinstance(event, Progress):
            self.start_task(task)
            self.update(task, status=printable(f"{event.message} {event.done}/{event.total}"))
        elif isinstance(event, Notice):
            if run_id not in self._training:
                warning = f"{self._titles[run_id]}: {event.message}"
                if warning in self._warnings:
                    return
                self._warnings.add(warning)
            line = f"{self._names[run_id]}: {printable(event.message)}"
            self.console.print(line, highlight=False, markup=False)
        elif isinstance(event, RoundFinished):
            shares = [
                c.correct / c.total
                for c in event.cells
                if c.split == TEST and c.stage == AFTER_AGGREGATION and c.model == c.test_set
            ]
            accuracy = f"{100 * sum(shares) / len(shares):.1f} %" if shares else ""
            self.update(task, completed=event.round)
            if accuracy:
                self.update(task, status=accuracy)
            self._line(f"{self._names[run_id]}: round {event.round}  {accuracy}")

    def _line(self, text: str) -> None:
        if not self.console.is_terminal:
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)


def track(work: Work[_Result], console: Console | None = None) -> _Result:
    """Execute slow work with a bar, or with a line every ten seconds if the output is not a terminal."""
    console = console or _terminal()
    columns = rich.TextColumn("{task.description}", markup=False), rich.BarColumn()
    bar = _Bars(console, *columns, rich.TextColumn("{task.fields[amount]}"))
    task = bar.add_task("", total=None, amount="")
    printed = time.monotonic()

    def show(step: Progress) -> None:
        nonlocal printed
        bar.start()  # only now, so that work without steps draws no bar
        message = printable(step.message)
        shown = size_text if step.in_bytes else "{:,}".format
        amount = f"{shown(step.done)} of {shown(step.total)}" if step.total else ""
        bar.update(task, description=message, completed=step.done, total=step.total, amount=amount)
        if not console.is_terminal and time.monotonic() - printed > _LINE_SECONDS:
            printed = time.monotonic()
            console.print(f"{message} {amount}", highlight=False, soft_wrap=True, markup=False)

    try:
        result = result_of(work, show)
        bar.update(task, completed=bar.tasks[task].total)  # the last step need not have been told
        return result
    finally:
        if bar.live.is_started:
            bar.stop()


def with_preparation(attempt: Callable[[], _Result]) -> _Result:
    """Use a data set, with a bar if it must be unpacked, converted or measured first."""
    return track(prepare_then(attempt))


Row = Mapping[str, object]
"""A value per column; None where the row has none."""
AsJson = Annotated[bool, Option("--json", help="Print the table as JSON, a list with an object per row")]


def print_table(rows: Iterable[Row], as_json: bool, under: Sequence[str] = ()) -> None:
    """Print the rows of a table on standard output.

    On a terminal, columns without a value are left out, numbers have two decimals, and rows that agree in the
    columns ``under`` stand below a line with these.
    """
    from fedcore.results.exports import rows_csv

    table = list(rows)
    if as_json:
        print(json.dumps(table, indent=2, default=str))  # in ASCII: what a terminal obeys is escaped
    elif not sys.stdout.isatty():
        print(rows_csv(table, ()) if table else "", end="")
    else:
        names = [name for name in dict.fromkeys(chain(*table)) if any(_text(row.get(name)) for row in table)]
        for heading, part in groupby(table, lambda row: [f"{n}: {row[n]}" for n in under if row[n]]):
            if heading:
                print("  ".join(heading))
            for line in _lines(list(part), [name for name in names if name not in under]):
                print("  " * bool(heading) + line)


def _lines(rows: Sequence[Row], names: Sequence[str]) -> Iterable[str]:
    """Yield a table's lines, the names of its columns first; columns of numbers are aligned to the right."""
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        texts = [name, *map(_text, values)]
        width, is_text = max(map(len, texts)), any(isinstance(value, str) for value in values)
        columns.append([text.ljust(width) if is_text else text.rjust(width) for text in texts])
    return ("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"
    return "" if value is None else " ".join(str(value).split())
