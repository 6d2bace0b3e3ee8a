"""Rehearsals: a table's experiments on embedded data with a miniature CLIP. Their numbers are no evidence.

A rehearsal holds out as many domains as the paper, so that it fills every cell of the table; each of the
paper's domains stands for an embedded one.
"""

from __future__ import annotations

from fedcore.config import Experiment
from fedcore.data import catalog
from fedcore.papers import mini as mini_version

DATA = mini_version.DATA
DOMAINS = ("photo", "sketch", "cartoon+30", "painting-45")
"""The embedded domains that stand for the paper's first, second, third and fourth."""
TAG = "rehearsal"
NOTES = "A rehearsal with a miniature model on embedded data: its numbers are no evidence about any paper."


def stand_ins(experiment: Experiment) -> dict[str, str]:
    """Return the embedded domain that stands for each domain of a paper's experiment.

    A data set of one domain, or one that is not partitioned by domains, needs none.
    """
    if experiment.partition.kind != "domain":
        return {}
    domains = experiment.data.domains or catalog.entry(experiment.data.name).domains
    return dict(zip(domains, DOMAINS, strict=False))


def rehearsal(experiment: Experiment) -> Experiment:
    """Return the rehearsal of a paper's experiment: its methods in their order, one seed, two rounds.

    Raises:
        FedLensError: for an unknown method, or a field that a method does not have.
    """
    small = mini_version.mini(experiment)
    changes: dict[str, object] = {
        "name": f"{experiment.name} (rehearsal)",
        "notes": NOTES,
        "tags": (TAG,),
    }
    names = stand_ins(experiment)
    if names:
        domains = tuple(names.values())
        changes["data"] = small.data.model_copy(update={"domains": domains})
        changes["held_out"] = tuple(names[domain] for domain in experiment.held_out)
    return small.model_copy(update=changes)
