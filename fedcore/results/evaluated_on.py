"""Differences between the test sets of a row and those of the other rows of its setting.

Tables show imported and merged results beside the runs of FedLens. An accuracy on some of the clients, on
other clients or on other numbers of samples is another quantity, so it is shown but not compared.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import sqrt

from fedcore.base.progress import first_few
from fedcore.config import RunConfig
from fedcore.results.metrics import RunResult, TestSets
from fedcore.results.rows import ComparisonRow
from fedcore.results.statistics import group_by

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
            others = [sets for (_, held), sets in expected.items() if held == domain]
            theirs, totals = _common(others, drawn)
            unknown = unknown or not totals
        else:
            matched = matched or theirs is not None
        found = [_first_difference(sets, theirs, totals) for sets in result.test_sets if theirs]
        if text := next(filter(None, found), ""):
            texts.setdefault(text, []).append(seed)
    if texts:
        text, seeds = next(iter(texts.items()))
        everywhere = len(seeds) == len(runs)
        more = ", other seeds too" if len(texts) > 1 else ""
        return text if everywhere else f"{text} (seed {seeds[0]}{more})"
    if unknown and not matched:
        return "no seed in common with the other rows, so it is unknown whether the test samples agree"
    return ""


def _common(others: Sequence[TestSets], drawn: bool) -> tuple[TestSets | None, bool]:
    """Return the test sets to expect of a seed without a counterpart, and whether to expect their totals."""
    if not others:
        return None, False
    names = [{kind: set(sets[kind]) for kind in sets} for sets in others]
    agree = all(n == names[0] for n in names)
    return others[0] if agree else None, not drawn and all(sets == others[0] for sets in others)


def _first_difference(ours: TestSets, theirs: TestSets, totals: bool) -> str:
    for kind, noun in NOUNS.items():
        recorded = ours[kind] and theirs[kind]
        if recorded and (text := _difference(ours[kind], theirs[kind], noun, totals)):
            return text if kind == "own" else f"global model {text}"
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
