"""One row of a comparison, the runs that differ by seed and held-out domain only; its setting in words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedcore.base.events import NO_VALUE
from fedcore.base.progress import counted, listed
from fedcore.config import RunConfig, backbones
from fedcore.config.field_names import data_title, seeds_text
from fedcore.data import catalog
from fedcore.methods import registry
from fedcore.results.metrics import Breakdown, Metric, RunResult
from fedcore.results.settings import config_for_display, result_caveat
from fedcore.results.statistics import Stat
from fedcore.store import EntityRow, Store

CAVEAT_MARK = "†"
"""Marks a row with runs that depart from their config, and the note on it."""
NOT_COMPARABLE_MARK = "‡"
"""Marks a row that was evaluated on other test sets than its setting's other rows, and the note on it."""


@dataclass(frozen=True)
class ComparisonRow:
    """Runs that differ by seed and held-out domain only: one row of a table.

    Attributes:
        label: unique within the setting; names what differs where one method appears twice.
        setting: key of the data, partition and backbone that all rows of one table share.
        stats: mean and spread over seeds, per cent.
        other_tests: how its test sets differ from those of the setting's other rows; empty if they agree.
    """

    key: str
    label: str
    method: str
    setting: str
    runs: tuple[RunResult, ...]
    stats: dict[Metric, Stat]
    config: RunConfig
    breakdowns: dict[Breakdown, dict[str, Stat]] = field(default_factory=dict)
    other_tests: str = ""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({r.run.seed for r in self.runs}))

    @property
    def trains(self) -> bool:
        """Return whether a run reports another round than 0, which is before training."""
        return any(result.rounds != (0,) for result in self.runs)

    @property
    def trained_by_fedlens(self) -> bool:
        """Return whether FedLens trained the runs; a script may have recorded them, or they were imported."""
        return self.runs[0].run.origin == "engine"

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The config as a flat table, with defaults resolved if FedLens trained the runs."""
        return config_for_display(self.config, self.trained_by_fedlens)

    @cached_property
    def caveat(self) -> str:
        """The runs' departures from their config, and the reason for missing values; empty without either."""
        departs = result_caveat(self.config) if self.trained_by_fedlens else ""
        return "; ".join(filter(None, (departs, self.no_value)))

    @cached_property
    def no_value(self) -> str:
        """Why it has no accuracy on new classes or after adaptation; empty if it has them."""
        notices = (notice.message for r in self.runs for notice in r.run.notices)
        return "; ".join(dict.fromkeys(text for text in notices if text.startswith(NO_VALUE)))

    @property
    def remark(self) -> str:
        """A caveat for the reader, to be given wherever the row is shown; usually empty."""
        tests = f"{self.other_tests}, so it is not compared with the other rows" if self.other_tests else ""
        return "; ".join(filter(None, (tests, self.caveat)))

    @property
    def mark(self) -> str:
        return NOT_COMPARABLE_MARK if self.other_tests else CAVEAT_MARK if self.caveat else ""

    @property
    def drawn_label(self) -> str:
        """The label in charts, which have no room for a remark but show that a row is not compared."""
        return f"{self.label} {NOT_COMPARABLE_MARK}" if self.other_tests else self.label


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
