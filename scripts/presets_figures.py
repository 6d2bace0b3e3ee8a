"""Figures that sweep one field over a table's experiment: lengths, blocks, shots, weights, shares.

Each takes the table's own settings and one or two of its methods, so that its first value repeats a row of
the table where there is one. What a figure's axis shows is in the notes where the paper does not print it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fedcore.papers.published import CATALOG
from scripts.presets_parts import Preset, method, rows

BLOCKS = [2**n for n in range(10)]
SHOTS = [16, 8, 4, 2, 1]
LENGTHS = [8, 4, 12, 20, 28, 36, 48, 64]
RATIOS = [1.0, 0.8, 0.6, 0.4, 0.2]
WEIGHTS = [1.0, 0.01, 0.1, 0.5, 2.0]
IMBALANCE = [0.01, 0.1, 0.5, 1.0, 10.0]
ALIGNED = {
    "orthogonality": ("mu", [0.0, 0.01, 0.5, 1.0]),
    "boundary_layer": ("m", [3, 5, 7, 11, 12]),
    "rank": ("r", [2, 3, 5, 6]),
    "start_layer": ("l", [0, 4, 6, 8]),
}
"""FedAlign's Figures 3 and 7: field -> its letter, and the values beside the default."""


def figures(tables: Iterable[Preset]) -> Iterator[Preset]:
    """A file for each figure and data set; ``tables``: the experiments they are made from."""
    known = {preset.path: preset for preset in tables}
    for dataset, table in (("FEMNIST", 7), ("Office-Home", 8)):
        yield _blocks(known, dataset, table)
    for dataset in ("Flowers102", "DTD", "Food101", "OxfordPets", "Caltech101"):
        yield _shots(known, dataset)
    yield _lengths(known)
    for dataset in ("CIFAR10", "CIFAR100", "OxfordPet", "Flower102"):
        yield _aligned(known, dataset)
    for dataset in ("CIFAR10", "CIFAR100", "EuroSAT", "OxfordPet", "Flower102"):
        yield _upload(known, dataset)
    for dataset in ("PACS", "DomainNet-126"):
        yield _imbalance(known, dataset)
    for dataset, table in (("PACS", 1), ("Office-Caltech10", 1), ("DomainNet-126", 1), ("DDR", 2)):
        yield _weights(known, dataset, table)


def _figure(base: Preset, path: str, name: str, notes: str, labels: list[str], **parts: Any) -> Preset:
    """The table's experiment with the methods of these labels, as a figure."""
    content = {k: v for k, v in base.content.items() if k not in ("reproduces", "sweep")}
    chosen = [m for m in content["methods"] if m["label"] in labels]
    tags = [*content["tags"], "sweep"]
    return Preset(path, {**content, "name": name, "notes": notes, "tags": tags, "methods": chosen, **parts})


def _notes(base: Preset, figure: str, axis: str) -> str:
    """The table's notes under the figure's number, and what its axis shows here."""
    paper, _, rest = base.content["notes"].partition(", Table")
    rest = rest.partition(":")[2]
    return f"{paper}, {figure}:{rest} The paper draws this figure and prints no values: {axis}."


def _blocks(known: dict[str, Preset], dataset: str, table: int) -> Preset:
    short = CATALOG[dataset].removesuffix("-digits")
    base = known[f"fedot/table1-{short}"]
    axis = (
        "personalisation by the number of blocks, 2^N, with N from 0 to 9, where nothing is rotated any more"
    )
    return _figure(
        base,
        f"fedot/figure2-{short}",
        f"FedOT, {dataset}, number of blocks",
        _notes(base, "Figure 2", axis),
        ["FedOT"],
        sweep={"methods.fedot.blocks": BLOCKS},
        reproduces=[rows("fedot", table, dataset, methods=["FedOT"])],
    )


def _shots(known: dict[str, Preset], dataset: str) -> Preset:
    base = known[f"sdfed/table1-{CATALOG[dataset]}"]
    return _figure(
        base,
        f"sdfed/figure4-{CATALOG[dataset]}",
        f"SDFed, {dataset}, number of shots",
        _notes(base, "Figure 4", "16 shots, those of Table 1, and 8, 4, 2 and 1 here"),
        ["CoOp (local)", "SDFed"],
        sweep={"data.shots": SHOTS},
        reproduces=[rows("sdfed", 1, dataset, methods=["CoOp", "SDFed"])],
    )


def _lengths(known: dict[str, Preset]) -> Preset:
    base = known["sdfed/table3-office31"]
    axis = (
        "all combinations of eight lengths of Amazon, Webcam and DSLR. Here all clients have one length, as "
        "in its black boxes; add lists with a length for each of the six clients, such as 4,4,64,64,8,8, to "
        "the values"
    )
    return _figure(
        base,
        "sdfed/figure5-office31",
        "SDFed, Office31, prompt lengths",
        _notes(base, "Figures 5 and 6", axis),
        ["SDFed"],
        sweep={"methods.sdfed.local_length": [f"fixed:{n}" for n in LENGTHS]},
        reproduces=[rows("sdfed", 3, "Office31", methods=["SDFed"])],
    )


def _aligned(known: dict[str, Preset], dataset: str) -> Preset:
    base = known[f"fedalign/table1-{CATALOG[dataset]}-dir"]
    axis = "mu and m are ours, r and l those of Table 4; m = 12 is the dashed line, the mean in all layers"
    others = [
        method("fedalign", f"FedAlign, {letter} = {value:g}", **{name: value})
        for name, (letter, values) in ALIGNED.items()
        for value in values
    ]
    own = [m for m in base.content["methods"] if m["label"] == "FedAlign"]
    return _figure(
        base,
        f"fedalign/figure3-{CATALOG[dataset]}",
        f"FedAlign, {dataset}, mu, m, r and l",
        _notes(base, "Figures 3 and 7", axis),
        [],
        methods=own + others,
        reproduces=[rows("fedalign", 1, dataset, "Dir", methods=["FedAlign"])],
    )


def _upload(known: dict[str, Preset], dataset: str) -> Preset:
    base, path = (known[f"fedalign/table1-{CATALOG[dataset]}-{s}"] for s in ("dir", "path"))
    kinds = ["iid", "dirichlet", "pathological"]
    return _figure(
        base,
        f"fedalign/figure8-{CATALOG[dataset]}",
        f"FedAlign, {dataset}, uploaded features",
        _notes(base, "Figure 8", "from all of the features to a fifth of them here"),
        ["FedAlign"],
        partition={**path.content["partition"], **base.content["partition"], "kind": kinds[0]},
        sweep={"partition.kind": kinds, "methods.fedalign.upload_ratio": RATIOS},
        reproduces=[rows("fedalign", 1, dataset, "IID", methods=["FedAlign"])],
    )


def _imbalance(known: dict[str, Preset], dataset: str) -> Preset:
    base = known[f"feddeap/table1-{CATALOG[dataset]}"]
    three = "three clients per domain, whose classes a Dirichlet distribution shares out"
    axis = "the text names two of its five alphas, 0.01 and 0.1, and none of its four baselines"
    return _figure(
        base,
        f"feddeap/figure2-{CATALOG[dataset]}",
        f"FedDEAP, {dataset}, label imbalance",
        _notes(base, "Figure 2", axis).replace("one client per domain", three),
        ["CLIP-FC", "FedCLIP", "PromptFL", "FedDEAP"],
        partition={"kind": "domain", "clients_per_domain": 3, "alpha": IMBALANCE[0]},
        sweep={"partition.alpha": IMBALANCE},
    )


def _weights(known: dict[str, Preset], dataset: str, table: int) -> Preset:
    base = known[f"feddeap/table{table}-{CATALOG[dataset]}"]
    return _figure(
        base,
        f"feddeap/figure6-{CATALOG[dataset]}",
        f"FedDEAP, {dataset}, lambda and eta",
        _notes(base, "Figure 6", "1 is the paper's choice, the others are ours"),
        ["FedDEAP"],
        sweep={"methods.feddeap.semantic_weight": WEIGHTS, "methods.feddeap.domain_weight": WEIGHTS},
        reproduces=[rows("feddeap", table, dataset, methods=["FedDEAP"])],
    )
