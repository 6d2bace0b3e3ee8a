"""FedAlign's published experiments: five clients under three partitions, and Figures 3, 7 and 8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedcore.config import DataConfig, Experiment, MethodEntry, PartitionConfig, Reproduces
from fedcore.papers.experiments.parts import NOT_PRINTED, SPLITS, clip, figure, method, printed, tables_text
from fedcore.papers.published import CATALOG

CLASSES_PER_CLIENT = {
    "CIFAR10": 2,
    "CIFAR100": 20,
    "EuroSAT": 2,
    "OxfordPet": 7,
    "Food101": 20,
    "Flower102": 20,
}
PARTITIONS = ("IID", "Dir", "Path")
"""Partitions as the tables print them: IID, Dirichlet and pathological."""
ABLATED = ("CIFAR10", "CIFAR100", "OxfordPet", "Flower102")
ALPHAS = (0.3, 0.5, 0.7, 0.9)
MAIN_TABLE_ONLY = "Food101"
"""The data set that the paper uses only in Table 1."""

UPLOAD_RATIOS = [1.0, 0.8, 0.6, 0.4, 0.2]
SWEPT: dict[str, tuple[str, Sequence[float]]] = {
    "orthogonality": ("mu", [0.0, 0.01, 0.5, 1.0]),
    "boundary_layer": ("m", [3, 5, 7, 11, 12]),
    "rank": ("r", [2, 3, 5, 6]),
    "start_layer": ("l", [0, 4, 6, 8]),
}
"""Figures 3 and 7: field -> its letter in the paper, and the values besides the default."""

SETTINGS = (
    "Five clients. The global model is tested on the whole test set, each client's model on all test samples "
    "of the classes that the client holds: before aggregation, except for FedAlign under IID and Dirichlet, "
    "which is tested after it. The paper gives no seeds; one seed is used here, so values have no spread. It "
    "prints only one of its class descriptions (GT): write your own in the method's field 'descriptions', or "
    "in a descriptions.json in the data set's folder. A class without a description uses the prompt, and "
    "such a run is marked."
)
FLOWERS = (
    " Clients hold the official test and validation parts of Flowers-102 (7,169 images); its training part "
    "(1,020 images) is the test set. These are the counts of the paper's Table 3."
)
BASELINE_ROUNDS = (
    " The paper runs FedAlign for 10 rounds and the methods that it compares with for 50, so they have a "
    "preset of their own. Their other hyper-parameters are those of their authors' code. The learning rate "
    "is constant, although CoOp's code, on which PromptFL builds, uses a warm-up and a cosine schedule "
    "(schedule, warmup_rounds)."
)
FIGURES3_AND_7 = (
    " The paper plots these figures without printing their values. Those of mu and m are our choice, those "
    "of r and l are from Table 4. m = 12 is the mean over all layers, the dashed line."
)
FIGURE8 = NOT_PRINTED + "Here clients upload all of the features, then fewer, down to a fifth of them."

FEDALIGN = method("fedalign", "FedAlign")
ABLATIONS = (
    method("fedalign", "FedAlign w/o GT", class_text="template"),
    method("fedalign", "FedAlign w/o L_orth", orthogonality=0.0),
    method("fedalign", "FedAlign w/o ex-query", ex_query=False),
)
SIMILARITIES = ("dot", "euclidean")
"""Similarities of Table 8 besides the default, cosine."""
ZERO_SHOT = (
    method("zero-shot", "Zero-shot CLIP"),
    method("zero-shot", "Zero-shot CLIP, GT", class_text="description"),
)
BASELINES = (
    method("promptfl", "PromptFL", batch_size=64),
    method("fedmaple", "FedMaPLe", batch_size=64),
    method("fedotp", "FedOTP", batch_size=64),
    method("fedpgp", "FedPGP", batch_size=64, local_epochs=1),
)
"""The methods that Tables 1 and 5 compare FedAlign with, which run for 50 rounds (Section 5.1)."""


def experiments() -> dict[str, Experiment]:
    """Return the experiments by name: one per table, data set and partition, baselines, and the figures."""
    tables = {name: experiment for dataset in CLASSES_PER_CLIENT for name, experiment in _tables_of(dataset)}
    return {
        **tables,
        **{f"figure3-{CATALOG[d]}": _hyper_parameters(tables, d) for d in ABLATED},
        **{
            f"figure8-{CATALOG[d]}": _upload_ratios(tables, d)
            for d in CLASSES_PER_CLIENT
            if d != MAIN_TABLE_ONLY
        },
    }


def _tables_of(dataset: str) -> Iterator[tuple[str, Experiment]]:
    """Yield a data set's experiments for the tables, by name."""
    name = CATALOG[dataset]
    for partition in PARTITIONS:
        yield f"table1-{name}-{partition.lower()}", _main(dataset, partition)
        yield f"table1-{name}-{partition.lower()}-baselines", _baselines(dataset, partition, 1)
        if dataset != MAIN_TABLE_ONLY:
            yield f"table7-{name}-{partition.lower()}", _larger_clip(dataset, partition)
    for alpha in ALPHAS if dataset != MAIN_TABLE_ONLY else ():
        partition = f"Dir({alpha})"
        in_table = printed("fedalign", 5, dataset, partition, methods=["FedAlign"])
        yield f"table5-{name}-dir{alpha}", _experiment(dataset, partition, [5], [FEDALIGN], [in_table])
        yield f"table5-{name}-dir{alpha}-baselines", _baselines(dataset, partition, 5)


def _experiment(
    dataset: str,
    partition: str,
    tables: Sequence[int],
    methods: list[MethodEntry],
    reproduces: list[Reproduces],
    **changes: Any,
) -> Experiment:
    """Return an experiment with the settings that all of the paper's share; ``changes`` replace fields."""
    return Experiment(
        **{
            "name": f"FedAlign, {dataset}, {partition}",
            "notes": _notes(dataset, tables_text(tables)),
            "tags": ("published", "fedalign"),
            "rounds": 10,
            "seeds": (1,),
            "data": DataConfig(
                name=CATALOG[dataset],
                template="a photo of a {}.",
                split=SPLITS.get(dataset, "official"),
            ),
            "partition": _partition(dataset, partition),
            "backbone": clip("ViT-B-32"),
            "methods": methods,
            "reproduces": reproduces,
            **changes,
        }
    )


def _notes(dataset: str, place: str) -> str:
    return f"FedAlign, {place}. {SETTINGS}" + (FLOWERS if dataset == "Flower102" else "")


def _partition(dataset: str, printed_as: str) -> PartitionConfig:
    """Return the partition that a table prints as ``IID``, ``Path``, ``Dir`` or ``Dir(0.3)``."""
    if printed_as == "IID":
        return PartitionConfig(kind="iid", clients=5)
    if printed_as == "Path":
        return PartitionConfig(kind="pathological", clients=5, classes_per_client=CLASSES_PER_CLIENT[dataset])
    alpha = float(printed_as[4:-1]) if "(" in printed_as else 0.1
    return PartitionConfig(kind="dirichlet", clients=5, alpha=alpha)


def _main(dataset: str, partition: str) -> Experiment:
    """Return the experiment of Tables 1, 2, 6 and 8 on one partition."""
    tables, methods = [1], [FEDALIGN]
    reproduces = [printed("fedalign", 1, dataset, partition, methods=["FedAlign"])]
    if dataset in ABLATED:
        tables.append(2)
        methods += ABLATIONS
        reproduces.append(printed("fedalign", 2, dataset, partition))
    if dataset != MAIN_TABLE_ONLY:
        tables.append(8)
        methods += [method("fedalign", f"FedAlign, {s}", similarity=s) for s in SIMILARITIES]
        settings = [f"{partition}, {s} similarity" for s in ("cosine", *SIMILARITIES)]
        reproduces.append(printed("fedalign", 8, dataset, *settings))
        if partition == "IID":
            tables.append(6)
            methods = [*ZERO_SHOT, *methods]
            reproduces.append(printed("fedalign", 6, dataset))
    return _experiment(dataset, partition, sorted(tables), methods, reproduces)


def _baselines(dataset: str, partition: str, table: int) -> Experiment:
    """Return the experiment of the methods that the paper gives more rounds than FedAlign."""
    return _experiment(
        dataset,
        partition,
        [table],
        list(BASELINES),
        [printed("fedalign", table, dataset, partition, methods=[m.label or m.name for m in BASELINES])],
        name=f"FedAlign, {dataset}, {partition}, baselines",
        notes=_notes(dataset, tables_text([table])) + BASELINE_ROUNDS,
        rounds=50,
    )


def _larger_clip(dataset: str, partition: str) -> Experiment:
    """Return the experiment of Table 7, and under IID of Table 6's zero-shot values, on ViT-B-16."""
    zero_shot = partition == "IID"
    return _experiment(
        dataset,
        partition,
        [6, 7] if zero_shot else [7],
        [*(ZERO_SHOT if zero_shot else ()), FEDALIGN],
        [
            printed("fedalign", 7, dataset, partition),
            *([printed("fedalign", 6, dataset)] if zero_shot else []),
        ],
        backbone=clip("ViT-B-16"),
    )


def _hyper_parameters(tables: dict[str, Experiment], dataset: str) -> Experiment:
    """Return the experiment of Figures 3 and 7, one hyper-parameter at a time."""
    others = [
        method("fedalign", f"FedAlign, {letter} = {value:g}", **{field: value})
        for field, (letter, values) in SWEPT.items()
        for value in values
    ]
    return figure(
        tables[f"table1-{CATALOG[dataset]}-dir"],
        name=f"FedAlign, {dataset}, mu, m, r and l",
        notes=_notes(dataset, "Figures 3 and 7") + FIGURES3_AND_7,
        methods=[FEDALIGN, *others],
        reproduces=[printed("fedalign", 1, dataset, "Dir", methods=["FedAlign"])],
    )


def _upload_ratios(tables: dict[str, Experiment], dataset: str) -> Experiment:
    """Return the experiment of Figure 8, fewer uploaded features under all three partitions."""
    kinds = ["iid", "dirichlet", "pathological"]
    return figure(
        tables[f"table1-{CATALOG[dataset]}-dir"],
        ["FedAlign"],
        name=f"FedAlign, {dataset}, uploaded features",
        notes=_notes(dataset, "Figure 8") + FIGURE8,
        partition=PartitionConfig(
            kind=kinds[0], clients=5, alpha=0.1, classes_per_client=CLASSES_PER_CLIENT[dataset]
        ),
        sweep={"partition.kind": kinds, "methods.fedalign.upload_ratio": UPLOAD_RATIOS},
        reproduces=[printed("fedalign", 1, dataset, "IID", methods=["FedAlign"])],
    )
