"""The setting of a comparison in whole sentences."""

from collections.abc import Iterable, Sequence

from fedcore.config import RunConfig, backbones
from fedcore.config.field_names import data_title, seeds_text
from fedcore.data import catalog
from fedcore.methods import registry
from fedcore.progress import counted, listed
from fedcore.results.rows import ComparisonRow
from fedcore.store import EntityRow, Store

SPLITS = {
    "60/20/20": "Within each domain and class, 60 % of the images are for training, 20 % for validation and "
    "20 % for testing.",
    "80/20": "Within each domain and class, 80 % of the images are for training and 20 % for testing.",
    "official": "The images are split as the data set itself splits them.",
    "swapped": "The data set's test and validation parts are for training, its training part is for testing.",
    "coop": "The images, their classes and their split are those of the file that CoOp's authors publish.",
}


def setting_paragraph(store: Store, rows: Sequence[ComparisonRow]) -> str:
    """Return the setting of rows that share one, as a paragraph."""
    run = rows[0].runs[0].run
    config = rows[0].config
    entities = store.cells.entities(run.id)
    clients = [e for e in entities if e.kind == "client"]
    unseen = sum(e.kind == "unseen" for e in entities)
    further = f"The final model is also tested on {counted(unseen, 'client')} that took no part in training."
    models = (
        f"{b.name} with the weights {b.pretrained}"
        if b.pretrained
        else f"{b.name}, a small CLIP that comes with FedLens"
        for b in backbones(config)
    )
    return " ".join(
        [
            _data(config, clients),
            *([further] if unseen else []),
            *_split(config, rows, store.cells.class_counts(run.id).values()),
            f"The pretrained model is {' or '.join(dict.fromkeys(models))}.",
            _training(rows),
        ]
    )


def _data(config: RunConfig, clients: Sequence[EntityRow]) -> str:
    partition, several = config.partition, [config.data, *(other.data for other in config.further_data)]
    titles = {entry.name: f"{entry.title} ({entry.source})" for entry in catalog.entries()}
    what = "; ".join(data_title(d) if d.root else titles.get(d.name, data_title(d)) for d in several)
    domains = len({c.domain for c in clients if c.domain})
    each = " each" if len(clients) > 1 else ""
    origin = f", from {domains} domains" if 0 < domains < len(clients) else ""
    share = {
        "domain": f"with the images of one domain{each}{origin}",
        "iid": "to which the images are dealt at random",
        "dirichlet": "whose shares of the classes are drawn from a Dirichlet distribution "
        f"(alpha {partition.alpha or 0:g})",
        "pathological": f"with {counted(partition.classes_per_client or 1, 'class')}{each}",
        "dealt": "with disjoint classes, which are dealt out in blocks of equal size",
        "blocks": f"with about {counted(partition.classes_per_client or 1, 'class')} of one data set{each}",
        "natural": "as the data set names them",
    }[partition.kind]
    return f"Data: {what}. The federation has {counted(len(clients), 'client')} {share}."


def _split(
    config: RunConfig, rows: Sequence[ComparisonRow], class_counts: Iterable[Sequence[int]]
) -> list[str]:
    """Return sentences on the images to train and test on, given the class counts of a run's clients."""
    data = config.data
    said = [SPLITS[data.split]]
    other = [d for d in (further.data for further in config.further_data) if d.split != data.split]
    if other:
        said = [f"{data_title(d)}: {SPLITS[d.split]}" for d in (data, *other)]
    if data.classes == "coop" and data.split != "coop":
        said.insert(0, "The classes are those of CoOp.")
    if data.training_classes == "base":
        half = {"label": "in the data set's order", "name": "in alphabetical order"}[data.class_order]
        said.append(
            f"The clients train on the base classes, the first half {half}. Models are also tested on the "
            "new classes, the other half."
        )
    if data.training_classes == "own":
        said.append(
            "The first half of the classes of each data set is dealt to clients in blocks. Each client "
            "trains and predicts among its own classes only, with the prompt of its data set. The global "
            "model is tested among these, among all classes of the first half, and among those of the other "
            "half, which no client has."
        )
    if data.shots is not None:
        who = {"client": "Each client trains", "federation": "All clients together train"}[data.shots_scope]
        # a client whose share of a class is smaller has all of its share
        fewer = any(0 < n < data.shots for counts in class_counts for n in counts)
        at_most = "at most " if fewer and data.shots_scope == "client" else ""
        said.append(f"{who} on {at_most}{counted(data.shots, 'image')} of each class.")
    held_out = sorted({run.run.held_out for row in rows for run in row.runs if run.run.held_out is not None})
    whole = " with all of its images" if rows[0].config.held_out_share == "all" else ""
    if len(held_out) == 1:
        said.append(f"The domain {held_out[0]} has no client and is the unseen test set{whole}.")
    elif held_out:
        names = ", ".join(held_out)
        said.append(f"Each of the domains {names} in turn has no client and is the unseen test set{whole}.")
    return said


def _training(rows: Sequence[ComparisonRow]) -> str:
    untrained = [row.label for row in rows if not _is_trained(row)]
    trained = [row for row in rows if _is_trained(row)]
    rounds = sorted({row.config.rounds for row in trained})
    shares = sorted({row.config.participation for row in trained})
    seeds = sorted({seed for row in rows for seed in row.seeds})
    counts = sorted({len(row.seeds) for row in rows})
    who = (
        "all clients"
        if shares == [1.0]
        else f"{' or '.join(f'{100 * s:g} %' for s in shares)} of the clients"
    )
    length = f"{' or '.join(map(str, rounds))} round{'s' * (rounds != [1])}"
    seeded = seeds_text(seeds)
    if counts != [len(seeds)]:  # some row lacks some of them
        number = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        seeded = f"{number} of the {seeded} each"
    do, were = ("does", "was") if len(untrained) == 1 else ("do", "were")
    others = f"{listed(untrained, most=4)} {do} not train"
    if not trained:
        return f"{others} and {were} tested with {seeded}."
    noun = "methods" if len({row.method for row in trained}) == len(trained) else "rows of the table"
    if untrained:
        who_trained = f"{others}; the other {'method' if len(trained) == 1 else f'{len(trained)} {noun}'}"
    else:
        several = "Both" if len(trained) == 2 else f"All {len(trained)}"
        who_trained = "The method" if len(trained) == 1 else f"{several} {noun}"
    return f"{who_trained} trained for {length} with {who}, with {seeded}."


def _is_trained(row: ComparisonRow) -> bool:
    method = registry.find(row.method) if row.trained_by_fedlens else None
    return method is None or method.trains
