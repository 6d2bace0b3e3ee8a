"""The papers' printed figures, what each of them is in FedLens, and which can be run here. No torch.

The files in ``fedcore/assets/published`` hold the tables as printed, in per cent unless the metric says
otherwise; where a paper's average is not the mean of its row, it stays as printed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fedcore.config import BackboneConfig, CohortConfig, Experiment, backbone_names
from fedcore.data import catalog
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.paths import ASSETS

PUBLISHED = ASSETS / "published"
PAPERS = {
    "fedot": "FedOT",
    "fedot_conference": "FedOT, conference version",
    "sdfed": "SDFed",
    "fedalign": "FedAlign",
    "feddeap": "FedDEAP",
}
"""Paper -> title; the keys are the files' names."""

BEST_BLOCKS = {"FEMNIST": 256, "PACS": 1, "Office-Home": 1, "VLCS": 4, "TerraIncognita": 16}
"""FedOT(+B): the number of blocks that its paper found best. 1 is FedOT itself, though the tables differ."""

PROMPT_LENGTHS: dict[str, dict[str, int]] = {
    "p_prom.=12, g_prom.=20": {"prompt_length": 20, "personal_length": 12},
    "p_prom.=20, g_prom.=12": {"prompt_length": 12, "personal_length": 20},
}
"""Lengths as FedDEAP's Table 5 prints them -> those of its prompts; elsewhere both have 16 tokens."""

_OPENAI = BackboneConfig(name="ViT-B-16", pretrained="openai")
COHORTS = {
    "2 strong + 3 medium ViT-B-16, 5 weak RN50": (
        CohortConfig(clients=2, backbone=_OPENAI, batch_size=32, local_epochs=2),
        CohortConfig(clients=3, backbone=_OPENAI, batch_size=16, local_epochs=1),
        CohortConfig(
            clients=5,
            backbone=BackboneConfig(name="RN50", pretrained="openai"),
            batch_size=8,
            local_epochs=1,
            max_steps=50,
        ),
    )
}
"""Mixed backbones as SDFed's Table 4 prints them -> its clients, from its Table 9."""

CATALOG = {
    "FEMNIST": "femnist-digits",
    "PACS": "pacs",
    "Office-Home": "office-home",
    "OfficeHome": "office-home",
    "VLCS": "vlcs",
    "TerraIncognita": "terra-incognita",
    "DomainNet-126": "domainnet-126",
    "Office-Caltech10": "office-caltech10",
    "DDR": "ddr",
    "Office31": "office31",
    "CIFAR10": "cifar10",
    "CIFAR-10": "cifar10",
    "CIFAR100": "cifar100",
    "EuroSAT": "eurosat",
    "OxfordPet": "oxford-pets",
    "OxfordPets": "oxford-pets",
    "Food101": "food101",
    "Flower102": "flowers102",
    "Flowers102": "flowers102",
    "DTD": "dtd",
    "Caltech101": "caltech101",
    "Tiny-ImageNet": "tiny-imagenet",
}
"""Data sets as the tables print them -> their names in experiments."""

DOMAINS: dict[str, dict[str, str]] = {
    "FEMNIST": {"33": "33", "0": "0", "25": "25", "26": "26"},
    "Office-Home": {
        "A": "Art", "C": "Clipart", "P": "Product", "R": "Real World",
        "Art": "Art", "Clipart": "Clipart", "Product": "Product", "Real-World": "Real World",
    },
    "PACS": {
        "A": "art_painting", "C": "cartoon", "P": "photo", "S": "sketch",
        "a": "art_painting", "c": "cartoon", "p": "photo", "s": "sketch",
    },
    "VLCS": {"C": "Caltech101", "L": "LabelMe", "S": "SUN09", "V": "VOC2007"},
    "TerraIncognita": {
        "L38": "location_38", "L43": "location_43", "L46": "location_46", "L100": "location_100",
    },
    "DomainNet-126": {"c": "clipart", "p": "painting", "r": "real", "s": "sketch"},
    "Office-Caltech10": {"a": "amazon", "c": "caltech", "d": "dslr", "w": "webcam"},
    "DDR": {"HB": "HB", "LB": "LB", "HD": "HD", "LD": "LD"},
    "Office31": {"Amazon": "amazon", "DSLR": "dslr", "Webcam": "webcam"},
}  # fmt: skip
"""Domains as the tables print them -> as the catalog names them."""


@dataclass(frozen=True)
class Figure:
    """One printed figure; ``table`` to ``metric`` as in the file. std: None where the paper prints none."""

    paper: str
    table: str
    dataset: str
    setting: str
    backbone: str
    method: str
    target: str
    metric: str
    value: float
    std: float | None


@dataclass(frozen=True)
class Ours:
    """A printed method as FedLens' own: the registered name and the config fields that make it this one."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Absent:
    """Why FedLens has no figure to put beside a printed one.

    kind: 'method' (or a variant or setting) is not implemented; 'elsewhere': no single experiment gives it.
    """

    kind: Literal["method", "elsewhere"]
    why: str


@cache
def load(paper: str) -> tuple[Figure, ...]:
    """A paper's printed figures, in the file's order.

    Raises:
        FedLensError: for a paper that there is no file of.
    """
    if paper not in PAPERS:
        raise FedLensError(f"no published figures of '{paper}'; there are {', '.join(PAPERS)}", "reproduces")
    return _read(paper, PUBLISHED / f"{paper}.csv")


def _read(paper: str, path: Path) -> tuple[Figure, ...]:
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            Figure(
                paper,
                **{k: v for k, v in row.items() if k not in ("value", "std")},
                value=float(row["value"]),
                std=float(row["std"]) if row["std"] else None,
            )
            for row in csv.DictReader(file)
        )


def everything() -> tuple[Figure, ...]:
    """All printed figures, paper after paper."""
    return tuple(figure for paper in PAPERS for figure in load(paper))


def named_by(experiment: Experiment) -> tuple[Figure, ...]:
    """The printed figures that an experiment is set up to repeat, those of its backbone only.

    Raises:
        FedLensError: for a paper that there is no file of, or an entry that no printed figure fits.
    """
    found: dict[Figure, None] = {}
    for i, wanted in enumerate(experiment.reproduces):
        fitting = [
            f
            for f in load(wanted.paper)
            if f.table == wanted.table
            and wanted.dataset in ("", f.dataset)
            and f.setting in (wanted.setting or (f.setting,))
            and f.method in (wanted.methods or (f.method,))
            and f.backbone == printed_backbone(experiment)
        ]
        if not fitting:
            raise FedLensError(
                f"no figure of table {wanted.table} of {wanted.paper} fits; see fedcore/assets/published",
                f"reproduces.{i}",
            )
        found.update(dict.fromkeys(fitting))
    return tuple(found)


def printed_backbone(experiment: Experiment) -> str:
    """An experiment's backbones as the tables print them; cohorts that no table has go by their names."""
    printed = {cohorts: text for text, cohorts in COHORTS.items()}
    return printed.get(experiment.cohorts, backbone_names(experiment))


def ours(figure: Figure) -> Ours | Absent:
    """What a printed figure's method and setting are in FedLens, or why there is nothing."""
    found = _METHODS[figure.paper.removesuffix("_conference")](figure)
    if isinstance(found, str):
        return Absent("method", found)
    if found is None or found.name not in registry.load_all():
        return Absent("method", f"{figure.method} is not implemented")
    elsewhere = _elsewhere(figure)
    return Absent("elsewhere", elsewhere) if elsewhere else found


def _elsewhere(figure: Figure) -> str | None:
    if figure.dataset == "avg of five" or figure.metric == "Performance (%)":
        return "a mean over several data sets"
    if figure.metric.startswith("trainable parameters"):
        return "a count, not a run"
    if figure.metric.startswith("Infer. Time"):
        return "a time on the authors' machine"
    return None


def _fedot(figure: Figure) -> Ours | None:
    plain = {"local_transform": "cayley", "share": "split", "init": "text", "blocks": 1}
    name = figure.method.replace("FEDOT", "FedOT")
    if name in ("Zero-Shot CLIP", "Zero Shot", "CLIP (ZS)"):
        return Ours("zero-shot")
    if name in ("PromptFL", "CoOp (M=4)"):  # Table 1 prints the row of M = 4 as PromptFL
        return Ours("promptfl", {"context_length": 4})
    if name == "CoOp (M=16)":
        return Ours("promptfl", {"context_length": 16})
    if name == "FedCLIP":
        return Ours("fedclip")
    changes: dict[str, dict[str, Any]] = {
        "FedOT": {"init": "random"} if figure.setting == "RandInit" else {},
        "FedOT+random init": {"init": "random"},
        "FedOT(+B)": {"blocks": BEST_BLOCKS.get(figure.dataset, 1)},
        "FedOT+blockwise": {"blocks": BEST_BLOCKS.get(figure.dataset, 1)},
        "FedOT(-o)": {"local_transform": "linear"},
        "FedLT": {"local_transform": "linear"},
        "FedAdapter": {"local_transform": "adapter"},
        "FedAVG": {"share": "all_global"},
        "FedOT(All Global)": {"share": "all_global"},
        "FedOT(All Local)": {"share": "all_local"},
    }
    return Ours("fedot", plain | changes[name]) if name in changes else None


def _sdfed(figure: Figure) -> Ours | str | None:
    if figure.method == "CoOp":
        return Ours("coop")
    name, _, rest = figure.method.partition("[")
    mixed = name == "SDFed" and figure.backbone in COHORTS  # "in heterogeneous environments", Section 4.1
    if mixed or name == "SDFed (S_l in 4..64)":
        return Ours("sdfed", {"components": "all", "local_length": "random:4-64"})
    if name not in ("SDFed", "SDFed (S_l=8)"):
        return None
    components = {"": "all", "pfhf+srlp+irdc]": "all"}.get(rest.lower(), rest.lower().rstrip("]"))
    return Ours("sdfed", {"components": components, "local_length": "fixed:8"})


def _fedalign(figure: Figure) -> Ours | str | None:
    plain = {"style": "gt", "orthogonality": 0.1, "ex_query": True, "similarity": "cosine"}
    changes: dict[str, dict[str, Any]] = {
        "FedAlign": {},
        "FedAlign w/o GT": {"style": "st"},
        "FedAlign w/o L_orth": {"orthogonality": 0.0},
        "FedAlign w/o ex-query": {"ex_query": False},
    }
    if figure.method in changes:
        similarity = figure.setting.partition(", ")[2].removesuffix(" similarity") or "cosine"
        return Ours("fedalign", plain | changes[figure.method] | {"similarity": similarity})
    style = "gt" if figure.setting.endswith("GT") else "st"
    zero_shot = Ours("zero-shot", {"style": style})
    return {"Zero-Shot CLIP": zero_shot, "PromptFL": Ours("promptfl")}.get(figure.method)


def _feddeap(figure: Figure) -> Ours | str | None:
    switches = ("personal_prompt", "semantic_alignment", "domain_alignment")
    variants = {
        "FedDEAP": (True, True, True),
        "FedDEAP [FedDEAP]": (True, True, True),
        "FedDEAP [Baseline]": (False, False, False),
        "FedDEAP [w/ Personalized Prompt]": (True, False, False),
        "FedDEAP [w/o Semantic Align.]": (True, False, True),
        "FedDEAP [w/o Domain Align.]": (True, True, False),
    }
    if figure.method in variants:
        lengths = PROMPT_LENGTHS.get(figure.setting, {"prompt_length": 16, "personal_length": None})
        return Ours("feddeap", dict(zip(switches, variants[figure.method], strict=True)) | lengths)
    names = {"CLIP-zs": "zero-shot", "CLIP-FC": "clip-fc", "FedCLIP": "fedclip", "PromptFL": "promptfl"}
    return Ours(names[figure.method]) if figure.method in names else None


_METHODS = {"fedot": _fedot, "sdfed": _sdfed, "fedalign": _fedalign, "feddeap": _feddeap}


@dataclass(frozen=True)
class Coverage:
    """How many printed figures of one table FedLens has a run for.

    figures: all of them. runnable: method, setting and data set exist. no_data: method and setting do, but
    the catalog has no such data set yet. not_implemented: the method or the setting does not exist, whatever
    the data. elsewhere: no single experiment gives them (means over data sets, counts, times).
    """

    paper: str
    table: str
    figures: int
    runnable: int
    no_data: int
    not_implemented: int
    elsewhere: int


def coverage(figures: Iterable[Figure] | None = None) -> tuple[Coverage, ...]:
    """A row per paper and table, in the papers' order."""
    counts: dict[tuple[str, str], list[int]] = {}
    for figure in everything() if figures is None else figures:
        counts.setdefault((figure.paper, figure.table), [0, 0, 0, 0])[_column(figure)] += 1
    order = {paper: i for i, paper in enumerate(PAPERS)}
    return tuple(
        Coverage(paper, table, sum(n), *n)
        for (paper, table), n in sorted(counts.items(), key=lambda item: _place(item[0], order))
    )


def _column(figure: Figure) -> int:
    """Which count of ``Coverage`` a figure belongs to, in the order of its fields after ``figures``."""
    found = ours(figure)
    if isinstance(found, Absent):
        return 2 if found.kind == "method" else 3
    return 0 if CATALOG.get(figure.dataset) in {entry.name for entry in catalog.entries()} else 1


def _place(key: tuple[str, str], order: dict[str, int]) -> tuple[int, int, str]:
    paper, table = key
    return order[paper], int(table) if table.isdecimal() else 0, table


def coverage_text() -> str:
    """``coverage`` as a table for a terminal: a sum per paper and over all, and what the columns mean."""
    head = ("paper", "table", "figures", "can be run", "no data set yet", "not implemented", "elsewhere")
    lines: list[tuple[object, ...]] = []
    covered = coverage()
    for paper in PAPERS:
        own = [c for c in covered if c.paper == paper]
        lines += [(paper, c.table, *_counts([c])) for c in own]
        lines.append((paper, "all", *_counts(own)))
    lines.append(("all", "", *_counts(covered)))
    known = {entry.name for entry in catalog.entries()}
    absent = sorted({name for name in CATALOG.values() if name not in known})
    return "\n".join(
        [
            columns([head, *lines], left=2),
            "",
            "can be run: FedLens has the method, the setting and the data set (give its folder as root)",
            *([f"no data set yet: the catalog lacks {', '.join(absent)}"] if absent else []),
            "not implemented: FedLens lacks the method or the setting, whatever the data",
            "elsewhere: no single experiment gives it (a mean over data sets, a count, a time)",
        ]
    )


def _counts(covered: Iterable[Coverage]) -> tuple[int, ...]:
    rows = [(c.figures, c.runnable, c.no_data, c.not_implemented, c.elsewhere) for c in covered]
    return tuple(map(sum, zip(*rows, strict=True)))


def columns(lines: Iterable[Iterable[object]], left: int) -> str:
    """Text in columns, the first ``left`` of them aligned to the left, the others to the right."""
    cells = [[str(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = (
        (c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    )
    return "\n".join("  ".join(line).rstrip() for line in aligned)
