"""What runs will fetch and write before they train, told while the experiment is still a form. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedcore.clip import encodings, tags
from fedcore.clip.facts import facts, weights_source
from fedcore.config import RunConfig, backbones
from fedcore.methods import registry

_WORTH_SAYING = 10**9
"""Bytes of an encoding from which on a plan mentions it."""


@dataclass(frozen=True)
class Encoding:
    """A file of encoded images that runs read: ``size`` bytes for ``images`` rows."""

    data: str
    backbone: str
    reads: str
    images: int
    size: int


def encoded(runs: Sequence[RunConfig], data: str, images: int) -> tuple[Encoding, ...]:
    """What runs read, each file once. data: the name of the images, as encodings carry it."""
    found = dict.fromkeys((b.name, _reads(run, b.name)) for run in runs for b in backbones(run))
    return tuple(
        Encoding(data, name, reads, images, encodings.estimate(facts(name), images, reads))
        for name, reads in found
    )


def notes(runs: Sequence[RunConfig], images: int) -> list[str]:
    """Weights that will be downloaded, and large encodings that will be written.

    Raises:
        FedLensError: ``backbone.name``, for an encoding over the limit.
    """
    found = []
    for backbone, reads in dict.fromkeys((b, _reads(run, b.name)) for run in runs for b in backbones(run)):
        size = encodings.estimate(facts(backbone.name), images, reads)
        what = f"{images:,} images with {backbone.name} ('{reads}')"
        encodings.check_limit(size, what)
        if isinstance(weights_source(backbone.name, backbone.pretrained), str):
            found.append(tags.download_note(backbone.name, str(backbone.pretrained)))
        if size > _WORTH_SAYING:
            found.append(f"encoding {what} writes {size / 1e9:.1f} GB, unless it is cached already")
    return [note for note in dict.fromkeys(found) if note is not None]


def _reads(run: RunConfig, backbone: str) -> str:
    config = registry.build_config(run.method.name, run.method.config)
    return registry.get(run.method.name).reads(config, facts(backbone))
