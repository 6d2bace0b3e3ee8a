"""Train the runs of a bundle or a report again, and name what differs from what was recorded."""

import csv
import io
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.events import Event
from fedcore.base.files import read_text
from fedcore.base.progress import Work, counted
from fedcore.config import RunConfig
from fedcore.config.field_names import number_ranges
from fedcore.jobs import handlers
from fedcore.jobs.handlers import Handler, Job
from fedcore.results.run_files import environment_texts
from fedcore.share.archive import SUMMARY, first_difference, open_bundle
from fedcore.share.checked import checked_comparison
from fedcore.share.content import read_report
from fedcore.share.make import make
from fedcore.share.page import printed_parts, report_html
from fedcore.share.recipe import ExperimentRecipe, Recipe, RunRecipe, round_digests
from fedcore.share.samples import data_of, read_folders, with_folders, without_folder
from fedcore.share.verify import Content, sound_content
from fedcore.share.views.cost import AGAINST
from fedcore.store import Store

PAGES = (".html", ".htm")
_REUSED = ("threads", "chunk")
"""Numbers of the recorded runs that decide the last bits and can be chosen again on any machine."""
_MOST_REUSED = 1024
_REPORTED = (
    "device_name", "processor_features", "platform", "python", "torch", "torchvision", "numpy",
    "open_clip_torch", "pillow", "fedlens", "code", "commit", "device", "threads", "chunk", "precision",
    "data", "pixels", "weights", "weights_digest",
)  # fmt: skip
"""Parts of the environment that may explain other numbers."""
_HELD_RECIPE = re.compile(r'<script\b[^>]*\bid="recipe"[^>]*>(.*?)</script', re.DOTALL)
"""The element of a report's page that holds its recipe, in which no text ends the element."""


@dataclass(frozen=True)
class Source:
    """A recipe, and the bundle or the text of the report's page that it comes from."""

    recipe: Recipe
    bundle: Content | None = None
    page: str = ""


def read_source(path: Path) -> Source:
    """Read the recipe of a bundle whose numbers follow from its evidence, or of the page of a report."""
    if path.suffix.lower() not in PAGES:
        content = sound_content(open_bundle(path))
        return Source(content.recipe, content)
    page = read_text(path, "a report", "bundle")
    held = _HELD_RECIPE.search(page)
    try:
        recipe = Recipe.model_validate(json.loads(held[1] if held is not None else ""))
    except (ValueError, RecursionError) as error:
        raise FedLensError(
            f"{path} holds no recipe of runs ({first_line(error)}); give a report or a bundle of FedLens",
            "bundle",
        ) from error
    return Source(recipe, page=page)


def write_methods(recipe: Recipe, folder: Path) -> dict[str, tuple[Path, str]]:
    """Write a recipe's methods and encoders below a folder, to be read; returns path and digest by place."""
    written = {}
    for place, method in recipe.methods.items():
        path = (folder / place).resolve()
        content = method.text.encode()
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if path.read_bytes() != content:
                raise FedLensError(f"{path} has another content; move it away, or choose another --db", "db")
        except OSError as error:
            raise FedLensError(f"cannot write {path}: {error.strerror}; choose another --db", "db") from error
        written[place] = path, method.sha256
    return written


def trainable(
    recipe: Recipe, files: Mapping[str, tuple[Path, str]], data: Sequence[str] = ()
) -> list[ExperimentRecipe]:
    """Return the experiments of a recipe, and those of their runs that FedLens trained, for this machine.

    Args:
        files: see ``write_methods``.
        data: folders of the data sets, see ``read_folders``; embedded ones need none.
    """
    folders, found = read_folders((run.config for run in recipe.runs), data), []

    def written(place: str, *_: object) -> str:
        if place not in files:
            raise FedLensError(f"the file {Path(place).name} is not part of it", "bundle")
        return str(files[place][0])

    for experiment in recipe.experiments:
        runs = []
        for run in experiment.runs:
            if run.origin != "engine":
                continue
            config = with_folders(run.config, folders, written)
            if lacking := without_folder(data_of(run.config), folders):
                needed = " ".join(f"--data {name}=FOLDER" for name in lacking)
                raise FedLensError(f"name the folders of its data: {needed}", "data")
            _reused(run.environment)
            if recipe.choices.rule == "best":
                config = config.model_copy(update={"keep_checkpoints": "best"})
            runs.append(run.model_copy(update={"config": config}))
        if runs:
            # files of runs that are not trained may be absent
            placed = with_folders(
                experiment.config, folders, lambda place, *_: str(files.get(place, (place,))[0])
            )
            # the draws of a search are repeated, and nothing follows them
            placed = placed.model_copy(update={"name": experiment.name, "tuning": None})
            found.append(experiment.model_copy(update={"config": placed, "runs": tuple(runs)}))
    if not found:
        raise FedLensError("FedLens trained none of these runs: they were recorded by a script", "bundle")
    return found


def _reused(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded choices that are made again; refuse those that would harm this machine."""
    found = {name: environment[name] for name in _REUSED if environment.get(name)}
    for name, value in found.items():
        if not isinstance(value, int) or not 1 <= value <= _MOST_REUSED:
            raise FedLensError(f"its {name} are {value!r:.40}, not a number up to {_MOST_REUSED:,}", "bundle")
    return found


def handler(recipes: Sequence[RunRecipe]) -> Handler:
    """Return the handler that trains the runs of a recipe, in order, with their recorded choices."""
    waiting = iter(recipes)

    def train(job: Job) -> Generator[Event, None, dict[str, Any]]:
        recorded = next(waiting).environment
        reused = _reused(recorded)

        def engine(config: RunConfig, **options: Any) -> Iterator[Event]:
            return handlers.load_engine()(
                config, **{**options, "environment": options["environment"] or reused}
            )

        return (yield from handlers.train(job, engine))

    return train


@dataclass(frozen=True)
class Repeated:
    """The comparison of new runs with the recorded ones.

    Attributes:
        differences: what differs, in one line each; empty if all is the same to the last bit.
        environments: what differs in the machine and the versions, which may be why.
        uncompared: what was not compared.
    """

    rounds: int
    runs: int
    differences: tuple[str, ...]
    environments: tuple[str, ...]
    uncompared: tuple[str, ...]


def compare_runs(store: Store, source: Source, trained: Mapping[int, RunRecipe]) -> Work[Repeated]:
    """Compare new runs with the recorded ones; ``trained`` has the recipe of each new run by id."""
    differences: list[str] = []
    uncompared: list[str] = []
    environments: dict[str, None] = {}
    rounds = 0
    for run_id, recipe in trained.items():
        found = round_digests(store, run_id)
        other = next((r for r in recipe.rounds if found.get(r) != recipe.rounds[r]), None)
        rounds += sum(found.get(r) == digest for r, digest in recipe.rounds.items())
        if not recipe.rounds:
            differences.append(f"{recipe.name}: no round of it was recorded, to which it could be compared")
        if other is not None:
            last = max(recipe.rounds)
            differences.append(f"{recipe.name}: differs from round {other} of {last} on")
        if recipe.rounds and (lacking := sorted(found.keys() - recipe.rounds.keys())):
            differences.append(f"{recipe.name}: no digest of round {number_ranges(lacking)} was recorded")
        now, before = (
            environment_texts({n: e[n] for n in _REPORTED if n in e})
            for e in (store.runs.environment(run_id), recipe.environment)
        )
        for title in dict.fromkeys((*before, *now)):
            if before.get(title) != now.get(title):
                then, today = (of.get(title, "not recorded") for of in (before, now))
                environments[f"{title}: {then} then, {today} now"] = None
    if len(trained) < len(source.recipe.runs):
        uncompared.append(
            "all numbers but the accuracies of the rounds, since not all runs were trained again"
        )
    else:
        experiments = list(dict.fromkeys(run.experiment_id for run in store.runs.get(trained)))
        with checked_comparison(store, experiments, source.recipe.choices) as checked:
            if source.bundle is not None:
                made = yield from make(checked, source.recipe.title)
                differences += _bundle_differences(source.bundle, made.read)
            else:
                page = yield from report_html((yield from read_report(checked)))
                differences += _page_differences(printed_parts(source.page), printed_parts(page), uncompared)
    return Repeated(rounds, len(trained), tuple(differences), tuple(environments), tuple(uncompared))


def _page_differences(
    before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]], uncompared: list[str]
) -> list[str]:
    """Return how what a page prints differs from what it would print of the new runs."""
    found = []
    always = [part for part in now if part == "summary" or re.fullmatch(r"setting-\d+", part)]
    for part in dict.fromkeys((*before, *always)):
        if part.endswith(tuple(f" against {cost}" for cost in AGAINST.values())):
            uncompared.append(f"{part}, which has measured seconds")
            continue
        texts = zip_longest(before.get(part, ()), now.get(part, ()), fillvalue="nothing")
        if unequal := [pair for pair in texts if pair[0] != pair[1]]:
            printed, made = unequal[0]
            count = counted(len(unequal), "difference")
            found.append(f"{part or 'a table'}: {count}, first: {printed:.80} was printed, {made:.80} now")
    uncompared.append("the shapes in drawings, notices, config, environment, and what the author wrote")
    return found


def _bundle_differences(before: Content, now: Content) -> list[str]:
    """Return how the evidence and numbers of a bundle differ from those of the new runs."""
    found = []
    stated, made = before.archive, now.archive
    for name in stated.files:
        is_evidence = name.startswith(("splits/", "predictions/")) and name in made.files
        if is_evidence and stated.files[name] != made.files[name]:
            is_csv = name.endswith(".csv")
            text = first_difference(stated.text(name), made.text(name)) if is_csv else "other predictions"
            found.append(f"{name}: {text}")
    one, other = before.counts, now.counts
    if unequal := [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]:
        found.append(f"{counted(len(unequal), 'count')} of {len(one):,} differ")
    return found + _number_differences(stated.text(SUMMARY), made.text(SUMMARY))


def _number_differences(stated: str, made: str) -> list[str]:
    """Return the numbers of the summary that differ, in one line each."""
    tables = (csv.DictReader(io.StringIO(text)) for text in (stated, made))
    before, now = (
        {(r["label"], r["metric"], r["data"], r["held_out"]): r["mean"] for r in table} for table in tables
    )
    return [
        f"{key[0]}, {key[1]}: {before.get(key, 'nothing')} was recorded, {now.get(key, 'nothing')} now"
        for key in dict.fromkeys((*before, *now))
        if before.get(key) != now.get(key)
    ]
