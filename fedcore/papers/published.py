"""The values that papers print in their tables (``values.csv``), and the names that the four print."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass

from fedcore.config import BackboneConfig, CohortConfig, Experiment, backbone_names
from fedcore.errors import FedLensError
from fedcore.papers import library
from fedcore.papers.library import VALUES_FILE, Paper
from fedcore.paths import read_text
from fedcore.results.metrics import Rule
from fedcore.results.statistics import Stat

BEST_BLOCKS = {"FEMNIST": 256, "PACS": 1, "Office-Home": 1, "VLCS": 4, "TerraIncognita": 16}
"""FedOT(+B): the number of blocks that its paper found best. 1 is FedOT itself, though the tables differ."""

COCOOP_FORMS = {
    "CoCoOp": "server_coop",  # Table 1 prints the row of Server CoOp
    "CoCoOp (Server CoOp)": "server_coop",
    "CoCoOp (Meta-Net Random Init)": "random_meta_net",
    "CoCoOp (All Global)": "all_global",
}
"""CoCoOp's federated forms as FedOT's tables print them -> the field ``share``."""

VPT_FORMS = {
    "VPT": {"prompt_length": 2, "depth": 1},  # Table 1 prints the row of VPT-Shallow with p = 2
    "VPT-SHALLOW (p=2)": {"prompt_length": 2, "depth": 1},
    "VPT-SHALLOW (p=10)": {"prompt_length": 10, "depth": 1},
    "VPT-DEEP (p=2, d=2)": {"prompt_length": 2, "depth": 2},
    "VPT-DEEP (p=10, d=9)": {"prompt_length": 10, "depth": 9},
}
"""VPT's forms as FedOT's tables print them -> fields of ``vpt``."""

VISION_NETWORKS = {
    f"{network}-{training}": {"network": name, "weights": weights}
    for network, name in (("ResNet", "resnet50"), ("ViT", "vit_b_16"))
    for training, weights in (("full", "scratch"), ("tuning", "pretrained"))
}
"""Networks without CLIP as FedDEAP's tables print them -> fields of ``fedavg-vision``."""

PROMPT_LENGTHS: dict[str, dict[str, int]] = {
    "p_prom.=12, g_prom.=20": {"prompt_length": 20, "personal_length": 12},
    "p_prom.=20, g_prom.=12": {"prompt_length": 12, "personal_length": 20},
}
"""Prompt lengths as FedDEAP's Table 5 prints them -> fields of ``feddeap``; other tables use 16 tokens."""

_OPENAI = BackboneConfig(name="ViT-B-16", pretrained="openai")
COHORTS: dict[str, tuple[CohortConfig, ...]] = {
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
"""Mixed backbones as SDFed's Table 4 prints them -> the cohorts of clients of its Table 9."""

CATALOG = {
    "FEMNIST": "femnist-digits",
    "PACS": "pacs",
    "Office-Home": "office-home",
    "OfficeHome": "office-home",
    "VLCS": "vlcs",
    "TerraIncognita": "terra-incognita",
    "DomainNet-126": "domainnet-126",
    "Office-Caltech10": "office-caltech10",
    "DDR": "ddr-all",
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
class PublishedValue:
    """One value of a paper's table, in per cent unless its metric says otherwise.

    ``table`` to ``metric`` are as printed, and so is an average, even if it is not the mean of its row.

    Attributes:
        paper: key of its paper (``library``).
        target: the domain of the value, or ``avg``.
        std: None if the paper prints none.
    """

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

    @property
    def digits(self) -> int:
        """The number of decimals that the papers print: two for per cent, three for cosines."""
        return 2 if abs(self.value) >= 1 else 3

    @property
    def text(self) -> str:
        """The value with its spread, as the paper prints it."""
        return Stat(self.value, self.std, 1).text(self.digits)

    @property
    def source(self) -> str:
        """The paper and its table, such as ``FedOT, Table 1``."""
        paper = library.find(self.paper)
        return f"{paper.title}, {paper.title_of(self.table)}"

    @property
    def rule(self) -> Rule:
        """The rule by which the paper selects the round that it reports; the last round if it names none."""
        return library.find(self.paper).reported_round or "last"


COLUMNS = ("table", "dataset", "setting", "backbone", "method", "target", "metric", "value", "std")
"""Columns of ``values.csv``; ``dataset``, ``setting``, ``backbone`` and ``std`` may be empty."""
OPTIONAL = ("dataset", "setting", "backbone", "std")
LARGEST_VALUES = 20_000
"""Number of values of one source that are read; the largest that ships has 2,440."""


@library.cached
def load(paper: str) -> tuple[PublishedValue, ...]:
    """Return a paper's values in the file's order."""
    return read_values(library.find(paper))


def read_values(paper: Paper) -> tuple[PublishedValue, ...]:
    """Read the ``values.csv`` of a paper's folder.

    Raises:
        FedLensError: naming the file, the line and the column, and what to do.
    """
    file = paper.folder / VALUES_FILE
    text = read_text(file, f"a paper's folder, which has a {VALUES_FILE}", "folder")
    return values_from(csv.DictReader(io.StringIO(text)), paper.key, str(file))


def values_from(lines: csv.DictReader[str], paper: str, where: str) -> tuple[PublishedValue, ...]:
    """Return the values of a CSV file with the columns of ``COLUMNS``.

    Args:
        where: name of the file for errors.
    """
    head = lines.fieldnames or []
    wrong = [name for name in COLUMNS if name not in head] or [name for name in head if name not in COLUMNS]
    if wrong:
        what = "is missing" if wrong[0] in COLUMNS else "is not a column of values"
        raise FedLensError(
            f"{where}, line 1: '{wrong[0]}' {what}; the columns are {','.join(COLUMNS)}", wrong[0]
        )
    found: list[PublishedValue] = []
    for row in lines:
        line = f"{where}, line {lines.line_num}"
        if None in row or None in row.values():
            raise FedLensError(
                f"{line}: it has not {len(head)} cells; quote a cell that holds a comma", "values"
            )
        empty = [name for name in COLUMNS if name not in OPTIONAL and not row[name].strip()]
        if empty:
            raise FedLensError(f"{line}: {empty[0]} is empty; write it as printed", empty[0])
        texts = {name: row[name].strip() for name in COLUMNS[:-2]}
        value = _number(row["value"], f"{line}: value")
        std = _number(row["std"], f"{line}: std") if row["std"].strip() else None
        if std is not None and std < 0:
            raise FedLensError(f"{line}: std is {row['std']}; a spread is not negative", "std")
        found.append(PublishedValue(paper, **texts, value=value, std=std))
        if len(found) > LARGEST_VALUES:
            raise FedLensError(f"{where}: it has more than {LARGEST_VALUES:,} values; divide it", "values")
    if not found:
        raise FedLensError(f"{where}: it has no values; add a line per printed value", "values")
    return tuple(found)


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FedLensError(
            f"{where} is {text.strip()!r:.40}; write a number such as 83.21", "value"
        ) from None
    return number


@library.cached
def load_all() -> tuple[PublishedValue, ...]:
    """Return the values of all papers, one paper after another."""
    return tuple(value for paper in library.papers() for value in load(paper))


def printed_backbone(experiment: Experiment) -> str:
    """Return an experiment's backbone as the tables print it, or the names of its cohorts' backbones."""
    printed = {cohorts: text for text, cohorts in COHORTS.items()}
    return printed.get(experiment.cohorts, backbone_names(experiment))


def values_of(experiment: Experiment) -> tuple[PublishedValue, ...]:
    """Return the values that an experiment's ``reproduces`` names, for the experiment's backbone only."""
    values: dict[PublishedValue, None] = {}
    for i, entry in enumerate(experiment.reproduces):
        matching = [
            v
            for v in load(entry.paper)
            if v.table == entry.table
            and entry.dataset in ("", v.dataset)
            and v.setting in (entry.setting or (v.setting,))
            and v.method in (entry.methods or (v.method,))
            and v.backbone == printed_backbone(experiment)
        ]
        if not matching:
            raise FedLensError(
                f"no value in table {entry.table} of {entry.paper} matches; see the paper's {VALUES_FILE}",
                f"reproduces.{i}",
            )
        values.update(dict.fromkeys(matching))
    return tuple(values)
