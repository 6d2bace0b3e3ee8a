"""``data get``, ``data check`` and ``data partition``: a data set, what is in it, and who would get what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedcore import config
from fedcore.errors import FedLensError

if TYPE_CHECKING:
    from fedcore.data.findings import CheckReport

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
    images, warnings = catalog.load_checked(name, root)
    for warning in warnings:
        print(f"note: {warning}", file=sys.stderr)
    print(f'{len(images):,} images of {found.title}; in an experiment: name = "{name}", root = "{root}"')
    return 0


def check(what: str, root: str | None, as_json: bool) -> int:
    """Look through a folder, manifest or saved data set, or one of the catalog by its name.

    Returns: 0 where it can be used.
    """
    from fedcore.data import catalog
    from fedcore.data import check as checking
    from fedcore.progress import track

    by_name = not Path(what).expanduser().exists() and what in {e.name for e in catalog.entries()}
    name, where = (what, root) if by_name else (checking.kind_of(what), what)
    report: list[checking.CheckReport] = []

    def steps() -> Iterator[checking.Step]:
        for step in checking.check(name, where):
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

    found = plan(config.load(file))
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
