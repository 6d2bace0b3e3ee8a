"""Parts that all commands share: options, errors in one line, and output that cannot control a terminal."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, cast

import typer
from typer import Argument, Option

from fedcore import config
from fedcore.base import consent
from fedcore.base.errors import FedLensError, ReadOnlyDatabase, explain, first_line
from fedcore.base.files import user_path, write_whole
from fedcore.methods import registry
from fedcore.store import Store

if TYPE_CHECKING:
    from fedcore.results.statistics import Test
    from fedcore.share.checked import CheckedComparison, ComparisonChoices

DONE, NOT_DONE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses."""
STANDARD_OUTPUT = "-"
"""The name of standard output where an option names a file."""
Command = Callable[..., int | None]
application = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The command ``fedlens``; each module of this package adds its commands with ``command``."""
Database = Annotated[
    Path | None,
    Option(
        "--db",
        metavar="FILE",
        help="Database (default: FEDLENS_DB, or runs.db in the checkout, elsewhere in the current folder)",
    ),
]
Debug = Annotated[bool, Option("--debug", help="Show the traceback of an error")]
Quiet = Annotated[bool, Option("--quiet", help="Print results and errors only: no progress, no notes")]
is_quiet = ContextVar("is_quiet", default=False)
"""Whether the command that runs was given ``--quiet``."""
MethodFiles = Annotated[
    list[Path] | None,
    Option(
        "--methods", metavar="FILE", help="Python file with a method or encoder of yours; may be repeated"
    ),
]
RunId = Annotated[str, Argument(metavar="RUN", help="Id of a run, or @last, the newest")]
RunIds = Annotated[
    list[str],
    Argument(metavar="ID", help="Ids of runs, or @last, the newest (with --experiment: experiments)"),
]
OfExperiments = Annotated[
    bool,
    Option("--experiment", help="All runs of experiments, given by id, by name, or as @last, the newest"),
]
ExperimentNames = Annotated[
    list[str], Argument(metavar="EXPERIMENT", help="Experiments by id, by name, or as @last, the newest")
]
ListedExperiments = Annotated[
    list[str] | None,
    Argument(metavar="EXPERIMENT", help="Experiments by id, by name, or as @last (default: all)"),
]
MethodNames = Mapping[Path, Sequence[str]]
"""The files of ``--methods``, and the methods that each defines."""
ExperimentFile = Annotated[Path | None, Argument(metavar="FILE.toml", help="Experiment file")]
PresetName = Annotated[
    str | None,
    Option("--preset", metavar="NAME", help="A preset instead of a file; `fedlens presets` lists them"),
]
RunFilter = Annotated[
    str,
    Option(
        "--where", metavar="FILTER", help='Only these runs, e.g. "method = fedot and partition.alpha < 0.5"'
    ),
]
NoWorker = Annotated[
    bool, Option("--no-worker", help="Do not start a worker for the queued runs, e.g. on a login node")
]
Over = Annotated[
    int | None,
    Option(
        min=1,
        metavar="N",
        help="Train each run on N devices at once: GPUs of this machine, or processes if it has none; "
        "with --ray, devices of the cluster",
    ),
]
RayAddress = Annotated[
    str | None,
    Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Use the nodes of a Ray cluster: HOST:PORT of its head (default: the cluster of this machine)",
    ),
]
Baseline = Annotated[str | None, Option(metavar="NAME", help="Method to compare with")]
Title = Annotated[str, Option(help="Title (default: the names of the experiments)")]
Device = Annotated[
    str | None, Option(help="cpu, or a GPU: its number, UUID or name (default: the newest GPU, else the CPU)")
]
UsedDevice = Annotated[str, Option(help="cpu, or the UUID of a GPU")]
TestOption = Annotated[
    Literal["t", "wilcoxon"] | None,
    Option(help="Paired test over seeds against the baseline (default: t)"),
]
ReportedRound = Annotated[
    Literal["last", "best", "mean10"],
    Option(help="Reported round: the last, the best on validation, or the mean of the last ten"),
]
MetricName = Annotated[str, Option(metavar="NAME", help="Metric, as `fedlens export` names it")]
DataFolder = Annotated[str | None, Option(metavar="FOLDER", help="Folder of the data set")]
DataColumns = Annotated[
    list[str] | None,
    Option(
        metavar="COLUMN=NAME...",
        help="Columns of a manifest or Hugging Face data set that have other names, e.g. label=diagnosis",
    ),
]


def command(
    name: str, group: typer.Typer = application, *, hidden: bool = False
) -> Callable[[Command], Command]:
    """Return a decorator that adds a function to the command line; its docstring is the help text.

    The function returns its exit status if it may be another than 0. The command gets the options
    ``--methods`` (``MethodNames``), ``--debug`` and ``--quiet`` too, of which the function may take the first
    two, and its errors are printed in one line.
    """

    def add(function: Command) -> Command:
        group.command(name, hidden=hidden)(_with_shared_options(function))
        return function

    return add


def _with_shared_options(function: Command) -> Command:
    signature = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def run(*, methods: list[Path] | None, debug: bool, quiet: bool, **options: object) -> int:
        is_quiet.set(quiet)
        try:
            shared_options = {"methods": {f: registry.load_file(f) for f in methods or ()}, "debug": debug}
            taken = {name: value for name, value in shared_options.items() if name in signature.parameters}
            return function(**options, **taken) or DONE
        except FedLensError as error:
            return print_error(error.line(), BAD_INPUT, debug)
        except KeyboardInterrupt:
            return print_error("interrupted", INTERRUPTED, debug)
        except BrokenPipeError:
            # `... | head` is not an error. Python would flush the closed pipe at exit and print a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return NOT_DONE
        except Exception as error:  # noqa: BLE001 - the last resort: one line, and the traceback with --debug
            fault = explain(error, "this command")
            line = f"{first_line(error)}; --debug shows where" if fault is None else fault.line()
            return print_error(line, NOT_DONE, debug)

    # Typer reads the options of a command from its signature, so the shared ones are appended to it.
    shared = {"methods": (MethodFiles, None), "debug": (Debug, False), "quiet": (Quiet, False)}
    parameters = [p for p in signature.parameters.values() if p.name not in shared]
    for name, (annotation, default) in shared.items():
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def print_error(line: str, status: int, debug: bool = False) -> int:
    """Print an error, after its traceback if ``debug`` is set, and return the exit status."""
    if debug:
        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr)
    return status


def refuse_if(condition: bool, message: str, option: str) -> None:
    """Refuse options that contradict each other, or one that would have no effect."""
    if condition:
        raise FedLensError(message, option)


def confirmed(question: str, yes: bool, no_answer: str) -> bool:
    """Ask a question unless ``--yes`` was given; without a terminal ``no_answer`` is the error."""
    refuse_if(not yes and not sys.stdin.isatty(), f"{no_answer}; confirm it, or give --yes", "yes")
    return yes or typer.confirm(question, err=True)


def text_output(given: str | None) -> Path | None:
    """Return the file that ``--output`` names for a text; None if it is printed: no option, or ``-`` alone.

    Options for outputs are read as text, since ``Path("./-")``, a file in this folder, equals ``Path("-")``.
    """
    return None if given in (None, STANDARD_OUTPUT) else user_path(str(given), "output")


def file_output(given: str, remedy: str, option: str = "output") -> Path:
    """Return the path that an option names for an output that is not one text, so that ``-`` is refused."""
    refuse_if(given == STANDARD_OUTPUT, f"this is not a text to print; {remedy}", option)
    return user_path(given, option)


def print_note(line: str, kind: str = "note") -> None:
    """Print a remark that is not an error, unless the user wants quiet."""
    if not is_quiet.get():
        print(f"{kind}: {line}", file=sys.stderr)


def warn_of_damage(store: Store, experiments: Sequence[int] | None = None) -> None:
    """Check the database, if there is one, and warn if the numbers printed from it may be wrong.

    Args:
        experiments: whose numbers were printed; default: the whole database is checked.
    """
    sys.stdout.flush()  # the check of a large database takes seconds
    if store.path.is_file() and (warning := store.integrity.warning(experiments)):
        print(f"warning: {warning}", file=sys.stderr)


def writable(db: Path | None) -> Store:
    """Return the store of a database that can be written; one is made if there is none."""
    store = Store(db)
    if why := store.prepare():
        raise ReadOnlyDatabase(why, "db")
    return store


def find_runs(store: Store, given: Sequence[str], otherwise: str = "") -> list[int]:
    """Return the ids of the runs that a user named by these, or as ``@last``."""
    for text in given:
        no_id = f"'{text}' is not the id of a run; `fedlens list` shows ids{otherwise}"
        refuse_if(text != "@last" and not text.isdecimal(), no_id, "id")
    newest = store.runs.newest_id()
    refuse_if("@last" in given and not newest, "there is no run yet; `fedlens run --demo` trains some", "id")
    ids = [newest if text == "@last" else int(text) for text in given]
    check_runs(store, ids)
    return ids


def check_runs(store: Store, ids: Sequence[int]) -> None:
    """Refuse the first id that no run has."""
    existing = store.runs.versions(ids)
    for run_id in ids:
        refuse_if(run_id not in existing, f"no run {run_id}; `fedlens list` shows them", "id")


@contextmanager
def compared(
    db: Path | None,
    experiments: Sequence[str],
    choice: ComparisonChoices,
    methods: MethodNames,
    test: Test | None = None,
) -> Iterator[CheckedComparison]:
    """Check and compare the experiments that a command names; refuse a test or method file without effect."""
    from fedcore.share.checked import checked_comparison

    no_baseline = "name the method to test against with --baseline"
    refuse_if(test is not None and choice.baseline is None, no_baseline, "test")
    choice = replace(choice, test=test or choice.test)
    store = Store(db)
    ids = list(dict.fromkeys(map(store.experiments.find, experiments)))
    used = {entry.name for row in store.experiments.several(ids) for entry in row.config.methods}
    for file, names in methods.items():
        unused = f"{file} defines {', '.join(names)}, which these experiments do not have; leave it out"
        refuse_if(bool(names) and used.isdisjoint(names), unused, "methods")
    with checked_comparison(store, ids, choice) as checked:
        yield checked


def load_experiment(file: Path | None, preset: str | None, db: Path | None = None) -> config.Experiment:
    """Return the experiment of a file or of a preset, also of a paper that was added to the database."""
    from fedcore.papers import adding, experiments

    adding.use(Store(db).path)
    if preset is not None and file is None:
        return experiments.preset(preset)
    if file is None or preset is not None:
        raise FedLensError("give either an experiment file or --preset NAME", "file")
    experiment = config.load(file)
    own = [entry.file for entry in experiment.methods]
    own += [used.pretrained for used in config.backbones(experiment) if used.name == consent.CALLABLE]
    for path in dict.fromkeys(filter(None, own)):
        try:
            consent.agreed(path)
        except consent.NotAgreed as error:
            ask_to_run([(error.file, error.sha256)])
    return experiment


def ask_to_run(files: Sequence[tuple[Path, str]]) -> None:
    """Ask once whether files of this SHA-256 may run, unless the user has agreed; else ``NotAgreed``."""
    new = [(file, sha256) for file, sha256 in files if not consent.is_agreed(file, sha256)]
    if not new:
        return
    for file, sha256 in new:
        print_note(f"{file} (SHA-256 {sha256})")
    what, it = ("This file runs", "it") if len(new) == 1 else (f"These {len(new)} files run", "them")
    question = f"{what} with the rights of your account. Have you read {it}, and do you want to run {it} now?"
    if not sys.stdin.isatty() or not typer.confirm(question, err=True):
        raise consent.NotAgreed(*new[0])
    for file, sha256 in new:
        consent.agree(file, sha256)


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")
"""Control characters of ASCII (ESC, BEL) and of C1 except tab and line end, and bidirectional overrides."""


def printable(text: str) -> str:
    r"""Return a text with its control characters written out, ESC as ``\x1b``."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class _Printable:
    """A text stream that writes out control characters.

    Names in databases and data sets may come from other people. A terminal would obey control sequences in
    them, for example to change its title or the clipboard.

    Attributes:
        rich_proxied_file: the stream to which rich draws its bars, which are control sequences themselves.
            ``fedcore.cli.terminal`` makes the names in them printable.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def printable_output() -> Iterator[None]:
    """Write out control characters in all output of the block: prints, logs, warnings and tracebacks."""
    out, err = (cast("TextIO", _Printable(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


def write_text(path: Path | None, parts: Iterable[str], make_folder: bool = False) -> None:
    """Write an export to a file, or print it: in a terminal with control characters written out."""
    if path is not None:
        write_file(path, (part.encode() for part in parts), make_folder)
        return
    raw = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    out = sys.stdout if sys.stdout.isatty() else raw
    for part in parts:
        out.write(part)


def write_file(path: Path, content: bytes | Iterable[bytes], make_folder: bool = False) -> None:
    """Write the file that ``--output`` names; after an error nothing is left of it."""
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise FedLensError(f"cannot write {path}: {error.strerror}; choose another file", "output") from error
