"""Figures that a method records of every round, drawn by groups: those that are read together share a chart.

A name that is not in ``GROUPS`` has a chart of its own: a new method's figures need no line here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.report.curves import Series, Until, labels
from fedcore.runs import queries
from fedcore.runs.queries import RunRow


@dataclass(frozen=True)
class Group:
    """Figures of one chart.

    Attributes:
        lines: recorded name -> what its line is called; one name alone needs none.
        note: what a reader has to know beside the picture.
    """

    title: str
    lines: dict[str, str]
    per_cent: bool = False
    note: str = ""

    @property
    def key(self) -> str:
        """Names the group in the URL."""
        return next(iter(self.lines))


GROUPS = (
    Group(
        "Condition number kappa of the transforms",
        {"condition_number": ""},
        note="1 where the transform is orthogonal.",
    ),
    Group(
        "Subspace overlap of global and local prompt",
        {"subspace_overlap": ""},
        note="Mean squared cosine of the principal angles: 0 orthogonal, 1 one within the other.",
    ),
    Group(
        "ETF alignment of the networks (cosine)",
        {"semantic_etf_cosine": "semantic", "domain_etf_cosine": "domain"},
        note="Cosine of an image's turned feature and its vector of the frame.",
    ),
    Group("Prototypes a client sends", {"prototypes": ""}, note="Classes that it recognised at least once."),
    Group(
        "Gradient difference beside its bound",
        {"gradient_difference": "difference", "gradient_bound": "bound, never tight"},
        note="The bound 2 tau (kappa_i + kappa_j) of the pair that differs most is never tight: normalised "
        "features alone give at most 2 sqrt(2) tau.",
    ),
    Group("Gradient conflict (mean cosine of the clients' updates)", {"gradient_conflict": ""}),
    Group("Orthogonality error of the transforms", {"orthogonality_error": ""}),
    Group("Degrees of freedom of a transform", {"degrees_of_freedom": ""}),
    Group(
        "SDFed's loss terms",
        {
            "ce_local": "local prompt",
            "ce_global": "global prompt",
            "stretch": "stretch",
            "separate": "separate",
        },
    ),
    Group("Length of the local prompt", {"local_length": ""}),
    Group(
        "How well the networks tell classes and domains",
        {
            "semantic_shared_accuracy": "semantic",
            "domain_shared_accuracy": "domain",
            "semantic_network_accuracy": "semantic, as a client trained it",
            "domain_network_accuracy": "domain, as a client trained it",
        },
        per_cent=True,
        note="The averaged networks, on the clients' training images. A client trains its own on one domain.",
    ),
    Group(
        "FedDEAP's loss terms",
        {
            "contrastive": "contrastive",
            "text_semantic": "text, semantic",
            "text_domain": "text, domain",
            "image_semantic": "image, semantic",
            "image_domain": "image, domain",
        },
    ),
    Group("Features a client sends", {"uploaded_features": ""}),
    Group("Clients that fell back to the global mean", {"global_fallback": ""}),
    Group(
        "Loss terms",
        {"cross_entropy": "cross-entropy", "orthogonality": "orthogonality", "proximal": "proximal"},
    ),
)
"""The most telling first."""
TELLING = 4
"""Of how many of them the first that a run has is shown unasked."""


def recorded(db: str | Path, runs: Iterable[RunRow]) -> list[Group]:
    """The groups of what some runs recorded, with the names that are there; matrices are heatmaps."""
    names = dict.fromkeys(n for r in runs for n in queries.diagnostic_names(db, r.id, matrices=False))
    found = []
    for group in GROUPS:
        lines = {name: text for name, text in group.lines.items() if names.pop(name, "gone") is None}
        if lines:
            found.append(Group(group.title, lines, group.per_cent, group.note))
    return found + [Group(name.replace("_", " ").capitalize(), {name: ""}) for name in sorted(names)]


def telling(groups: Sequence[Group]) -> list[Group]:
    """What to show unasked: of each method's figures the first; of unknown ones the first."""
    first = {g.key for g in GROUPS[:TELLING]}
    return [g for g in groups if g.key in first] or list(groups[:1])


def series(db: str | Path, until: Until, group: Group) -> list[Series]:
    """A line for every run and name: the mean over clients, with the smallest and largest of them."""
    scale = 100 if group.per_cent else 1
    runs = {r.id: r for r in queries.runs(db, until)}
    names = labels(runs.values())
    found = []
    for name, text in group.lines.items():
        rows: dict[int, list[queries.DiagnosticMean]] = {}
        for row in queries.diagnostic_means(db, until, name):
            if row.round <= until[row.run_id]:
                rows.setdefault(row.run_id, []).append(row)
        for run_id, points in rows.items():
            label = f"{names[run_id]}, {text}" if text else names[run_id]
            spread = any(p.count > 1 for p in points)
            found.append(
                Series(
                    label,
                    runs[run_id].method,
                    tuple(float(p.round) for p in points),
                    tuple(scale * p.mean for p in points),
                    (None,) * len(points),
                    1,
                    tuple(scale * p.low for p in points) if spread else (),
                    tuple(scale * p.high for p in points) if spread else (),
                )
            )
    return found
