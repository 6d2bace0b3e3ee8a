"""``data get``, ``check``, ``encode`` and ``partition``: a data set, what is in it, who would get what."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

from fedcore import config
from fedcore.errors import FedLensError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedcore.data.check.findings import CheckReport

_Result = TypeVar("_Result")
MOST_LINES = 40
"""Clients or classes that a table lists; the rest are counted."""


def get(name: str, root: str | None) -> int:
    """Fetch a data set of the catalog, and read it as a run will."""
    from fedcore.data import catalog

    found = catalog.entry(name)
    if root is None and found.torchvision:
        raise FedLensError(
            f"say with --root where {found.title} shall go (about {found.megabytes} MB)", "root"
        )
    said = ""
    for step in catalog.download(name, root or "."):  # torchvision draws the bar
        if step.message != said:
            said = step.message
            print(said, file=sys.stderr)
    images, warnings = prepared(lambda: catalog.load_checked(name, root))
    for warning in warnings:
        print(f"note: {warning}", file=sys.stderr)
    print(f'{len(images):,} images of {found.title}; in an experiment: name = "{name}", root = "{root}"')
    return 0


def prepared(attempt: Callable[[], _Result]) -> _Result:
    """Do something with a data set; a bar where it has to be unpacked, converted or measured first."""
    from fedcore.cli.progress import track
    from fedcore.data.readers.prepare import Prepared

    work = Prepared(attempt)
    steps = iter(work)
    for first in steps:
        track(itertools.chain((first,), steps))
    return work.result


def choices(part: type[BaseModel], field: str) -> tuple[str, ...]:
    """The words that a field of the config may be."""
    return get_args(part.model_fields[field].annotation)


def columns(given: Sequence[str]) -> dict[str, str]:
    """``label=diagnosis`` as ``data.columns`` has it.

    Raises:
        FedLensError: for one without its ``=``.
    """
    pairs = [pair.partition("=") for pair in given]
    bare = next((own for own, _, name in pairs if not own or not name), None)
    if bare is not None:
        raise FedLensError(f"'{bare}' names no column; write it as label=diagnosis", "columns")
    return {own: name for own, _, name in pairs}


def encode(data: config.DataConfig, wanted: config.BackboneConfig, reads: str, folder: Path) -> int:
    """Encode a data set ahead of its runs, as they will."""
    from fedcore.cli.progress import track
    from fedcore.clip.facts import facts
    from fedcore.engine import setup
    from fedcore.engine.plan import read_images
    from fedcore.jobs.devices import default_device, torch_name

    images, left_out = prepared(lambda: read_images(data, facts(wanted.name).image_size))
    for line in left_out:
        print(f"note: {line}", file=sys.stderr)
    device = torch_name(default_device())
    backbone = setup.load_backbone(wanted.name, wanted.pretrained, device, wanted.precision)
    track(setup.encode(backbone, images, reads, folder))
    print(f"{len(images)} images of {images.name} encoded with {wanted.name}")
    return 0


def check(what: str, root: str | None, as_json: bool, named: Mapping[str, str] | None = None) -> int:
    """Look through a folder, manifest or saved data set, or one of the catalog by its name.

    Args:
        named: what its columns are called.

    Returns: 0 where it can be used.
    """
    from fedcore.cli.progress import track
    from fedcore.data import catalog
    from fedcore.data.check import check as checking

    by_name = not Path(what).expanduser().exists() and what in {e.name for e in catalog.entries()}
    name, where = (what, root) if by_name else (checking.kind_of(what), what)
    report: list[checking.CheckReport] = []

    def steps() -> Iterator[checking.Step]:
        for step in checking.check(name, where, columns=named):
            if isinstance(step, checking.Step):
                yield step
            else:
                report.append(step)

    track(steps())
    (found,) = report
    print(found.to_json() if as_json else text(found))
    if found.error:
        raise FedLensError(found.error, "data.root")
    return 0


def text(report: CheckReport) -> str:
    """A report as it is printed: counts, then what was found."""
    lines = []
    if report.images:
        width = max(map(len, (*report.domains, "domain")))
        lines.append(f"{report.images:,} images, {len(report.classes)} classes")
        for domain, counts in zip(report.domains, report.counts, strict=True):
            listed = ", ".join(f"{c} {n:,}" for c, n in zip(report.classes, counts, strict=True))
            few = len(report.classes) <= MOST_LINES
            lines.append(f"  {domain:<{width}}  {sum(counts):>9,}" + (f"  {listed}" if few else ""))
        lines += [f"  e.g. {path}" for paths in report.samples.values() for path in paths[:1]]
    lines += [finding.line for finding in report.findings]
    lines += [f"note: {note}" for note in report.notes]
    if not report.findings and not report.error:
        lines.append("nothing odd was found")
    return "\n".join(lines)


def partition(file: Path) -> int:
    """Who gets what in an experiment, and how unlike the clients are."""
    from fedcore.engine.plan import plan

    found = prepared(lambda: plan(config.load(file)))
    width = max(map(len, (*found.clients, "client")))
    print(f"{'client':<{width}}  samples  classes  entropy (bits)")
    for name, samples, classes, entropy in found.client_figures()[:MOST_LINES]:
        print(f"{name:<{width}}  {samples:>7,}  {classes:>7}  {entropy:>14.2f}")
    if len(found.clients) > MOST_LINES:
        print(f"... and {len(found.clients) - MOST_LINES} more")
    print(
        f"{len(found.clients)} clients; label entropy {found.entropy:.2f} of {found.most_entropy:.2f} bits; "
        f"mean Jensen-Shannon distance {found.heterogeneity:.2f} (0 equal, 1 disjoint)"
    )
    for warning in found.warnings:
        print(f"note: {warning}", file=sys.stderr)
    return 0
