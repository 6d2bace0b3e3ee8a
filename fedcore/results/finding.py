"""The findings of a comparison in words: for Compare, reports and exports, and for Live at the end.

A finding names the leaders and says what the seeds prove. It is made from the same summary as the tables, so
that it cannot claim anything else than they do.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from fedcore.base.progress import counted, duration, listed, shortened
from fedcore.results import settings
from fedcore.results.comparison import compare, reason_not_comparable
from fedcore.results.metrics import METRICS, Metric
from fedcore.results.progress import seconds_outside_rounds
from fedcore.results.statistics import MIN_PAIRS, TESTS, PairedTest, Test, pairwise_tests, signed, tests_made
from fedcore.results.summary import Summary, SummaryRow, SummaryTable, shown_metrics, summarise
from fedcore.store import ExperimentRow, Store

ALSO: tuple[Metric, ...] = ("personal", "generalisation", "global", "harmonic", "harmonic_local")
"""Metrics whose leaders a finding names beside that of the chosen one."""
MOST_ROWS = 24
"""Of more rows the pairs are not tested: hundreds of tests would find little, and take seconds."""
MOST_NAMES = 4
_listed = partial(listed, most=MOST_NAMES)
LONGEST_NAME = 60
LEAST_LOADING = 1.0
"""Seconds from which on a verdict names the time of loading and encoding."""


def findings(summary: Summary) -> dict[str, str]:
    """Return the finding of each setting that has one, by the setting's title."""
    found = {table.title: finding(summary, table) for table in summary.tables}
    return {title: text for title, text in found.items() if text}


def finding(summary: Summary, table: SummaryTable) -> str:
    """Return who leads a setting by which metric, and whether the seeds prove it; nothing of a single row.

    What makes the setting no evidence is always said.
    """
    metric = summary.metric if summary.metric in table.metrics else next(iter(table.metrics), summary.metric)
    worth = settings.worth(table.rows[0].row.config)
    if len(_measured(table, metric)) < 2:
        return worth
    leaders: dict[tuple[str, ...], list[str]] = {}
    for m in dict.fromkeys([metric, *(m for m in ALSO if m in table.metrics)]):
        rows = _measured(table, m)
        highest = max((row.row.stats[m].mean for row in rows), default=0.0)
        names = [_name(row) for row in rows if f"{row.row.stats[m].mean:.1f}" == f"{highest:.1f}"]
        if m == metric or len(names) < len(rows):
            unit = METRICS[m].unit
            value = f"{highest:.1f} %" if unit == "%" else f"{signed(highest)} {unit}"
            leaders.setdefault(tuple(names), []).append(f"{METRICS[m].leads} ({value})")
    (first, metrics), *others = leaders.items()
    lead = "leads" if len(first) == 1 else "lead"
    said = [f"{_listed(first)} {lead} {' and '.join(metrics)}"]
    said += [f"{_listed(names)} {' and '.join(m)}" for names, m in others]
    if table.baseline is not None and all(metric in row.differences for row in table.rows):
        proven = _against_baseline(table, metric, summary.test)
    else:
        proven = _against_others(table, metric, summary.test)
    return f"{', '.join(said)}. {proven} {worth}".rstrip()


def verdict(store: Store, experiment: ExperimentRow) -> str | None:
    """Return how long an experiment's runs took and what it found; None while they train or without any."""
    if any(not run.ended for run in experiment.runs):
        return None
    compared = compare(store, [experiment.id])
    if not compared.rows:
        return None
    done = sum(run.state == "done" for run in experiment.runs)
    all_done = done == len(experiment.runs)
    ended = "Done" if all_done else f"{done} of {counted(len(experiment.runs), 'run')} done"
    seconds = [s for run in experiment.runs if (s := run.elapsed()) is not None]
    # of runs that were trained beside each other, so not a wait
    loading = sum(seconds_outside_rounds(store, experiment.runs).values())
    runs = "the run took" if len(seconds) == 1 else f"{counted(len(seconds), 'run')} took"
    time = f"; {runs} {duration(sum(seconds) - loading)}{' in all' * (len(seconds) > 1)}" if seconds else ""
    time += f", loading and encoding {duration(loading)}" if loading >= LEAST_LOADING else ""
    found = findings(summarise(compared, tested=(), metric=shown_metrics(compared.rows)[0]))
    texts = [f"{title}: {text}" if len(found) > 1 else text for title, text in found.items()]
    return " ".join([f"{ended}{time}.", *texts])


def _against_baseline(table: SummaryTable, metric: Metric, test: Test) -> str:
    """Return which rows differ from the baseline, by the tests of the table."""
    assert table.baseline is not None
    others = [row for row in table.rows if not row.differences[metric].is_baseline]
    made = [(_name(row), row.differences[metric].test) for row in others]
    tested = [(name, found) for name, found in made if found is not None and found.adjusted is not None]
    baseline = shortened(table.baseline.label, LONGEST_NAME)
    if not tested:
        few = _few_seeds([row for row in table.rows if metric in row.row.stats], metric)
        return few or f"No row could be tested against {baseline}; the table says why."
    better = [t for t in tested if t[1].better]
    worse = [t for t in tested if t[1].significant and t not in better]
    rest = [t for t in tested if not t[1].significant]
    parts = []
    for words, rows in (
        ("significantly better than", better),
        ("significantly worse than", worse),
        ("not significantly different from", rest),
    ):
        if rows:
            names = _listed([f"{name} ({_measured_gap(found)})" for name, found in rows])
            parts.append(f"{names} {'is' if len(rows) == 1 else 'are'} {words} {baseline}")
    how = _how([found for _, found in tested], test, len(tested), "row")
    return f"{'; '.join(parts)} ({how}).{_rest(len(others) - len(tested))}"


def _against_others(table: SummaryTable, metric: Metric, test: Test) -> str:
    """Return which rows the leader is better than, by tests of all pairs as on the leaderboard."""
    rows = _measured(table, metric)
    seeded = [row for row in rows if row.row.stats[metric].n >= MIN_PAIRS]
    if not seeded:
        return _few_seeds(rows, metric)
    leader = max(seeded, key=lambda row: row.row.stats[metric].mean)
    name = _name(leader)
    compared = [row for row in seeded if not reason_not_comparable(row.row, leader.row)]
    if len(compared) < 2:
        return f"No other row with {MIN_PAIRS} seeds is comparable with {name}, so no difference is proven."
    if len(compared) > MOST_ROWS:
        return (
            f"The highest of {len(compared)} means is partly luck; choose a baseline to test the differences."
        )
    compared.sort(key=lambda row: row is not leader)  # first, so that its differences are from the others
    tests = pairwise_tests({row.row.key: row.row.by_seed[metric] for row in compared}, test)
    against = [(_name(row), tests[leader.row.key, row.row.key]) for row in compared[1:]]
    better = [who for who, found in against if found.better]
    open_ = [f"{who} ({_measured_gap(found)})" for who, found in against if not found.better]
    how = _how([found for _, found in against], test, tests_made(tests.values()), "pair")
    if not open_:
        beaten = better[0] if len(better) == 1 else f"each of the other {len(better)} rows"
        closest = max((found for _, found in against), key=lambda found: found.adjusted or 0.0)
        most = " at most" if len(better) > 1 else ""
        said, how = f"{name} is significantly better than {beaten}", f"{closest.text}{most}; {how}"
    elif better:
        said = f"{name} is significantly better than {_listed(better)}, but not than {_listed(open_)}"
    else:
        said = f"No difference is proven: {name} is not significantly better than {_listed(open_)}"
    return f"{said} ({how}).{_rest(len(table.rows) - len(compared))}"


def _measured(table: SummaryTable, metric: Metric) -> list[SummaryRow]:
    """Return the rows that have a metric and were evaluated on the setting's test sets."""
    return [row for row in table.rows if metric in row.row.stats and not row.row.other_tests]


def _few_seeds(rows: Iterable[SummaryRow], metric: Metric) -> str:
    counts = [row.row.stats[metric].n for row in rows]
    fewest, most = min(counts), max(counts)
    if fewest >= MIN_PAIRS:
        return ""
    seeds = f"{fewest} to {most} seeds" if fewest < most else "One seed" if most == 1 else f"{most} seeds"
    return f"{seeds}: no difference is proven."


def _measured_gap(test: PairedTest) -> str:
    points = "" if test.difference is None else f"{signed(test.difference)} points, "
    return f"{points}{test.text}"


def _how(tests: Sequence[PairedTest], test: Test, family: int, noun: str) -> str:
    pairs = sorted({found.n for found in tests})
    seeds = str(pairs[0]) if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    corrected = f", Holm-corrected for {counted(family, noun)}" if family > 1 else ""
    return f"{TESTS[test]} over {seeds} seeds{corrected}"


def _rest(rows: int) -> str:
    return f" {counted(rows, 'row')} could not be tested; the table says why." if rows else ""


def _name(row: SummaryRow) -> str:
    return shortened(row.row.label, LONGEST_NAME)
