"""One row of a comparison, its setting in words, and how its test sets differ from those of other rows.

Tables show imported and merged results beside the runs of FedLens. An accuracy on some of the clients, on
other clients or on other numbers of samples is another quantity, so it is shown but not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

from fedcore.base.consent import CALLABLE
from fedcore.base.events import COUNTS_ONLY, NO_VALUE
from fedcore.base.progress import counted, first_few, listed
from fedcore.config import BackboneConfig, RunConfig, backbones
from fedcore.config.field_names import data_title, seeds_text
from fedcore.data import catalog
from fedcore.data.images import GIVEN
from fedcore.methods import registry
from fedcore.results.metrics import Breakdown, Metric, RunResult, TestSets, value_per_seed
from fedcore.results.settings import config_for_display, result_caveat
from fedcore.results.statistics import Stat, group_by
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
        runs: of seeds that have every held-out domain, see ``complete_seeds``.
        stats: mean and spread over seeds, per cent.
        other_tests: how its test sets differ from those of the setting's other rows; empty if they agree.
        members: of a mean over data sets (``averages``), the row of each; ``runs`` then has one per seed.
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
    members: tuple[ComparisonRow, ...] = ()

    @property
    def parts(self) -> tuple[ComparisonRow, ...]:
        """The rows with the runs behind its numbers."""
        return self.members or (self,)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({r.run.seed for r in self.runs}))

    @cached_property
    def by_seed(self) -> dict[Metric, dict[int, float]]:
        """The value of each seed, by metric."""
        return {metric: value_per_seed(self.runs, metric) for metric in self.stats}

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
        if self.members:
            return "; ".join(dict.fromkeys(filter(None, (row.caveat for row in self.members))))
        departs = result_caveat(self.config) if self.trained_by_fedlens else ""
        return "; ".join(filter(None, (departs, self.no_value)))

    @cached_property
    def no_value(self) -> str:
        """Why it has no accuracy on new classes or after adaptation, or no predictions; usually empty."""
        notices = (notice.message for r in self.runs for notice in r.run.notices)
        return "; ".join(dict.fromkeys(text for text in notices if text.startswith((NO_VALUE, COUNTS_ONLY))))

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
    models = map(_model, backbones(config))
    return " ".join(
        [
            _data(config, clients),
            *([further] if unseen else []),
            *_split(config, rows, store.cells.class_counts(run.id).values()),
            f"The pretrained model is {' or '.join(dict.fromkeys(models))}.",
            _training(rows),
        ]
    )


def _model(backbone: BackboneConfig) -> str:
    name, weights = backbone.name, backbone.pretrained
    if weights:
        return (
            f"an encoder of our own, {weights}" if name == CALLABLE else f"{name} with the weights {weights}"
        )
    if name == GIVEN:
        return "known by its embeddings alone"
    other = name.startswith("timm:")
    return f"{name} with timm's default weights" if other else f"{name}, a small CLIP that comes with FedLens"


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


SeedAndDomain = tuple[int, str | None]
"""Seed and held-out domain: the test sets are drawn with the one, and the clients depend on the other."""
NOUNS = {"own": "client", "global": "client", "domain": "domain"}
NAMED = 3
"""Maximum number of names in a text."""


def reports_sample(result: RunResult, config: RunConfig) -> bool:
    """Return whether a selected round tested samples of the test sets, see ``RunConfig.test_sample``."""
    return config.test_sample is not None and any(0 < r < config.rounds for r in result.rounds)


def without_samples(results: Iterable[RunResult], configs: Mapping[int, RunConfig]) -> list[RunResult]:
    """Return results without the sizes of sampled test sets, which are not test sets themselves.

    Rows whose samples are of other sizes are told apart by their configs.
    """
    return [
        replace(r, test_sets=tuple({**sets, "domain": {}} for sets in r.test_sets))
        if reports_sample(r, configs[r.run.id])
        else r
        for r in results
    ]


def sample_text(samples: int) -> str:
    """Return what an accuracy between the first and the last round is worth, as a sentence."""
    error = f"√(p (1 - p) / {samples:,}), at most {50 / sqrt(samples):.1f} points"
    return (
        f"Between the first and the last round, at most {samples:,} samples of a test set are tested, except "
        f"of clients' own: the accuracy p of such samples has a standard error of {error}."
    )


def sample_notes(rows: Iterable[ComparisonRow]) -> list[str]:
    """Return a note for each size of samples, and which rows report rounds that were tested on them."""
    notes = []
    for samples, members in group_by(rows, lambda row: row.config.test_sample).items():
        if samples is not None:
            reported = [row.label for row in members if any(reports_sample(r, row.config) for r in row.runs)]
            where = f"Such rounds are in the table: {', '.join(dict.fromkeys(reported))}." if reported else ""
            where = where or "The rounds in the table are not among them; curves show them."
            notes.append(f"{sample_text(samples)} {where}")
    return notes


def expected_test_sets(runs: Iterable[RunResult]) -> dict[SeedAndDomain, TestSets]:
    """Return the test sets that most runs of each seed and held-out domain have; the first of equals.

    A method that does not record a kind of test sets, such as those of a global model, does not disagree.
    """
    expected: dict[SeedAndDomain, TestSets] = {}
    for place, results in group_by(runs, lambda r: (r.run.seed, r.run.held_out)).items():
        recorded = [sets for r in results for sets in r.test_sets]
        expected[place] = {}
        for kind in NOUNS:
            counted = Counter(frozenset(s[kind].items()) for s in recorded if s[kind])
            expected[place][kind] = dict(max(counted, key=counted.__getitem__, default=()))
    return expected


def with_other_tests(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Return the rows with a text on how their test sets differ from those of most rows that FedLens trained.

    If FedLens trained none of a setting's rows, all of them decide.
    """
    expected, samples = {}, {}
    for setting, members in group_by(rows, lambda row: row.setting).items():
        trained = [row for row in members if row.trained_by_fedlens]
        runs = (result for row in trained or members for result in row.runs)
        expected[setting] = expected_test_sets(runs), bool(trained)
        samples[setting] = trained if any(row.config.test_sample for row in trained) else []
    return [
        replace(
            row,
            other_tests=_other_tests(row, *expected[row.setting]) or _other_sample(row, samples[row.setting]),
        )
        for row in rows
    ]


def difference_of_rows(row: ComparisonRow, baseline: ComparisonRow) -> str:
    """Describe how a row's test sets differ from a baseline's; empty if they agree."""
    tests = _other_tests(row, expected_test_sets(baseline.runs), baseline.trained_by_fedlens)
    return tests or _other_sample(row, [baseline])


def _other_sample(row: ComparisonRow, others: Sequence[ComparisonRow]) -> str:
    """Describe a row whose samples are of another size than most rows'; empty where no sample is reported.

    A row that does not train has round 0 only, which is tested in full whatever the size.
    """
    compared = [one for one in others if one.trained_by_fedlens and one.trains]
    if not compared or not (row.trained_by_fedlens and row.trains):
        return ""
    ours = row.config.test_sample
    theirs = Counter(one.config.test_sample for one in compared).most_common(1)[0][0]
    if ours == theirs or not any(reports_sample(r, x.config) for x in (row, *compared) for r in x.runs):
        return ""
    texts = ("whole test sets" if n is None else f"samples of {n:,} of a test set" for n in (ours, theirs))
    return "tested between the first and the last round on " + " instead of ".join(texts)


def _other_tests(row: ComparisonRow, expected: Mapping[SeedAndDomain, TestSets], trained: bool) -> str:
    """Describe how the test sets of a row's runs differ from the expected ones; empty if they agree.

    Args:
        expected: by seed and held-out domain, see ``expected_test_sets``.
        trained: whether FedLens trained these runs; if it trained both sides, seeds without a counterpart are
            not checked.
    """
    runs, partition, trusted = row.runs, row.config.partition, trained and row.trained_by_fedlens
    # whether the seed decides how many test samples a client has
    drawn = partition.kind != "domain" or partition.clients_per_domain > 1
    held_out = {str(domain): 0 for _, domain in expected if domain is not None}
    ours = {str(r.run.held_out): 0 for r in runs if r.run.held_out is not None}
    if text := _difference(ours, held_out, "held-out domain", totals=False):
        return text
    texts: dict[str, list[int]] = {}
    unknown = matched = False
    for result in runs:
        seed, domain = result.run.seed, result.run.held_out
        theirs, totals = expected.get((seed, domain)), True
        if theirs is None and not trusted:
            # a seed without a counterpart: the test sets in which all other seeds agree, and their totals
            # unless each seed draws its own
            others = [sets for (_, held), sets in expected.items() if held == domain]
            names = [{kind: set(sets[kind]) for kind in sets} for sets in others]
            theirs = others[0] if others and all(n == names[0] for n in names) else None
            totals = bool(others) and not drawn and all(sets == others[0] for sets in others)
            unknown = unknown or not totals
        else:
            matched = matched or theirs is not None
        found = (
            f"{'' if kind == 'own' else 'global model '}{text}"
            for sets in result.test_sets
            if theirs
            for kind, noun in NOUNS.items()
            if sets[kind] and theirs[kind] and (text := _difference(sets[kind], theirs[kind], noun, totals))
        )
        if first := next(found, ""):
            texts.setdefault(first, []).append(seed)
    if texts:
        text, seeds = next(iter(texts.items()))
        everywhere = len(seeds) == len(runs)
        more = ", other seeds too" if len(texts) > 1 else ""
        return text if everywhere else f"{text} (seed {seeds[0]}{more})"
    if unknown and not matched:
        return "no seed in common with the other rows, so it is unknown whether the test samples agree"
    return ""


def _difference(ours: Mapping[str, int], theirs: Mapping[str, int], noun: str, totals: bool) -> str:
    others = [name for name in ours if name not in theirs]
    common = [name for name in ours if name in theirs]
    texts = []
    if common and len(common) < len(theirs):
        texts.append(f"evaluated on {len(common)} of {len(theirs)} {noun}s")
    if others:
        one = "another" if len(others) == 1 else "other"
        texts.append(f"evaluated on {one} {noun}{'s' * (len(others) > 1)} ({first_few(others, NAMED)})")
    if changed := [name for name in common if totals and ours[name] != theirs[name]]:
        first, rest = changed[0], len(changed) - 1
        like_it = f" (and {rest} more {noun}{'s' * (rest > 1)} like it)" if rest else ""
        texts.append(f"{ours[first]} instead of {theirs[first]} test samples of {first}{like_it}")
    return "; ".join(texts)
