"""``presets``: the experiments that come with FedLens, and how other commands take one of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cache.durable import write_whole
from fedcore.cli.options import DONE, with_common_options
from fedcore.errors import FedLensError
from fedcore.progress import counted

if TYPE_CHECKING:
    from fedcore.config import Experiment

commands = typer.Typer()

ExperimentFile = Annotated[Path | None, typer.Argument(metavar="FILE.toml", help="Experiment file")]
PresetName = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="A preset instead of a file; `fedlens presets` lists them"),
]


def load_experiment(file: Path | None, preset: str | None) -> Experiment:
    """Return the experiment of a file or of a preset, whichever is given.

    Raises:
        FedLensError: when neither or both were given, or when the one that was given does not exist.
    """
    from fedcore import config
    from fedcore.papers import experiments

    if preset is not None and file is None:
        return experiments.preset(preset)
    if file is None or preset is not None:
        raise FedLensError("give either an experiment file or --preset NAME", "file")
    experiment = config.load(file)
    _ask_about_method_files(experiment)
    return experiment


def _ask_about_method_files(experiment: Experiment) -> None:
    """Ask whether the method files that an experiment names may run, where a person can answer.

    Raises:
        NotAgreed: for a file that the user has not agreed to.
    """
    from fedcore.methods import consent, registry

    for named in dict.fromkeys(entry.file for entry in experiment.methods if entry.file):
        try:
            registry.load_agreed(named)
        except consent.NotAgreed as error:
            question = f"{error.file} runs as a program of your account. Have you read it, and run it now?"
            if not sys.stdin.isatty() or not typer.confirm(question, err=True):
                raise
            consent.agree(error.file, error.sha256)


@commands.command("presets")
@with_common_options
def presets(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these presets (default: all)")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write them as TOML files, to edit and run")
    ] = None,
) -> int:
    """List the experiments that come with FedLens, or write them."""
    from fedcore.papers import experiments

    wanted = names or [experiments.DEMO, *experiments.published()]
    if write is not None:
        return _write(wanted, write)
    for name in wanted:
        title = experiments.preset(name).name if name == experiments.DEMO else experiments.title(name)
        print(f"{name:<42} {title}")
    return DONE


def _write(names: Sequence[str], folder: Path) -> int:
    """Write ``FOLDER/<paper>/<name>.toml`` for each preset; files that exist are never overwritten."""
    from fedcore import config
    from fedcore.papers import experiments

    files = {folder / f"{name}.toml": experiments.preset(name) for name in names}
    for file in files:
        if file.exists():
            raise FedLensError(f"{file} exists; choose another folder or move the file away", "write")
    try:
        for file, experiment in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, config.dumps(experiment).encode())
    except OSError as error:
        message = f"cannot write to {folder}: {error.strerror}; choose another folder"
        raise FedLensError(message, "write") from error
    print(f"{counted(len(files), 'file')} written to {folder}")
    return DONE
