"""Findings in words: who leads by which metric, and what the seeds prove of it."""

from collections.abc import Sequence
from pathlib import Path

from fedcore.results.comparison import compare
from fedcore.results.finding import findings, verdict
from fedcore.results.leaderboard import more_seeds
from fedcore.results.statistics import pairwise_tests
from fedcore.results.summary import Summary, summarise
from fedcore.store import Recorder, Store
from fedcore.store.database import writing
from fedcore.store.writer import set_config
from tests.support import fill

CLIENTS, TOTAL = ("a", "b"), 100


def record(db: Path, method: str, seed: int, correct: int, common: int, experiment: str = "x") -> int:
    """Record a run with so many right answers of its personal models and of its global model."""
    with Recorder(db, method=method, seed=seed, dataset="rotated-digits", experiment=experiment) as run:
        counts = {("global", client): (common, TOTAL) for client in CLIENTS}
        run.round(1, counts | {(client, client): (correct, TOTAL) for client in CLIENTS})
    return run.experiment_id


def said(db: Path, experiment: int) -> str | None:
    store = Store(db)
    return verdict(store, store.experiments.get(experiment))


def test_each_metric_has_its_leader_and_one_seed_proves_nothing(db: Path) -> None:
    record(db, "mine", 1, correct=90, common=60)
    text = said(db, record(db, "yours", 1, correct=80, common=70))
    assert text is not None
    assert "mine leads on personal accuracy (90.0 %), yours with the global model (70.0 %)." in text
    assert text.endswith("One seed: no difference is proven.")


def test_a_single_row_leads_nobody_and_a_single_leader_may_have_and_in_its_name(db: Path) -> None:
    text = said(db, record(db, "this and that", 1, correct=90, common=60))
    assert text is not None and "leads" not in text
    text = said(db, record(db, "yours", 1, correct=80, common=50))
    assert text is not None and "this and that leads on personal accuracy" in text


def test_a_miniature_backbone_is_no_evidence_on_data_that_it_never_saw(db: Path) -> None:
    for method, correct in (("mine", 90), ("yours", 80)):
        for dataset in ("pacs", "rotated-digits"):
            with Recorder(
                db, method=method, seed=1, dataset=dataset, backbone="mini-vit", experiment=dataset
            ) as run:
                run.round(1, {(client, client): (correct, TOTAL) for client in CLIENTS})
    worth = "No evidence about CLIP: mini-vit was trained on drawings and digits alone."
    photographs, drawings = said(db, 1), said(db, 2)
    assert photographs is not None and photographs.endswith(f"One seed: no difference is proven. {worth}")
    assert drawings is not None and worth not in drawings
    assert [*compare(Store(db), [1]).settings.values()] == ["pacs · by domain · mini-vit (no evidence)"]


def seeded(db: Path, noise: Sequence[float], **means: float) -> Summary:
    """Return the summary of methods with so many right answers in the mean, and their noise by seed."""
    for seed, extra in enumerate(noise):
        for i, (method, mean) in enumerate(means.items()):
            shift = extra * (i + 1) * (-1) ** i
            record(db, method, seed, correct=int(mean + shift), common=60)
    return summary_of(db)


def summary_of(db: Path) -> Summary:
    return summarise(compare(Store(db), [1]), tested=())


def found(summary: Summary) -> str:
    (text,) = findings(summary).values()
    return text


def test_two_seeds_prove_nothing(tmp_path: Path) -> None:
    text = found(seeded(tmp_path / "runs.db", (0, 1), mine=90, yours=50))
    assert text.endswith("2 seeds: no difference is proven.")


def test_rows_with_other_numbers_of_seeds_are_not_said_to_have_one(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    for method, seed in ("mine", 1), ("mine", 2), ("yours", 1):
        record(db, method, seed, correct=90, common=60)
    assert found(summary_of(db)).endswith("1 to 2 seeds: no difference is proven.")


def test_a_leader_is_better_only_than_the_rows_that_the_leaderboard_puts_below_it(tmp_path: Path) -> None:
    summary = seeded(tmp_path / "runs.db", (0, 2, 1, 3), mine=91, close=90, far=50)
    text = found(summary)
    values = {row.row.label: row.row.by_seed["personal"] for row in summary.tables[0].rows}
    leader = max(values, key=lambda name: sum(values[name].values()))
    other = next(name for name in values if name not in (leader, "far"))
    tests = pairwise_tests(values)
    assert tests.get((leader, "far"), tests.get(("far", leader))).significant  # type: ignore[union-attr]
    of_close = tests.get((leader, other)) or tests[other, leader]
    assert not of_close.significant
    assert f"{leader} is significantly better than far, but not than {other} (+" in text
    assert f"points, {of_close.text}) (paired t-test over 4 seeds, Holm-corrected for 3 pairs)." in text


def test_a_row_whose_name_is_cut_like_that_of_a_worse_one_stays_open(tmp_path: Path) -> None:
    long = "a method with hyper-parameters that are named in its long label, "
    text = found(
        seeded(tmp_path / "runs.db", (0, 2, 1, 3), mine=91, **{f"{long} near": 90, f"{long} far": 50})
    )
    assert "mine is significantly better than" in text and ", but not than a method with" in text


def test_the_correction_counts_the_tests_that_were_made(db: Path) -> None:
    """Twins differ by nothing in every seed, which is no test: p is multiplied by two, not by three."""
    for seed, noise in enumerate((0, 1, 3)):
        for method, correct in ("mine", 90), ("twin", 90), ("far", 50 - noise):
            record(db, method, seed, correct, common=60)
    assert "(paired t-test over 3 seeds, Holm-corrected for 2 pairs)" in found(summary_of(db))


def test_all_below_or_none(tmp_path: Path) -> None:
    text = found(seeded(tmp_path / "a.db", (0, 2, 1), mine=90, yours=50, theirs=30))
    assert "mine is significantly better than each of the other 2 rows" in text
    text = found(seeded(tmp_path / "c.db", (0, 2, 1), mine=90, yours=50))
    assert "better than yours (p" in text and text.endswith("; paired t-test over 3 seeds)."), "one test"
    text = found(seeded(tmp_path / "b.db", (0, 5, -5), mine=80, yours=79))
    assert "No difference is proven: mine is not significantly better than yours (+" in text


def test_with_a_baseline_it_says_what_the_table_marks(db: Path) -> None:
    seeded(db, (0, 2, 1), base=80, above=95, below=40, alike=81)
    summary = summarise(compare(Store(db), [1]), "base")
    rows = {row.row.label: row.differences["personal"] for row in summary.tables[0].rows}
    assert rows["above"].significant and rows["below"].significant and not rows["alike"].significant
    text = found(summary)
    for name, word in (("above", "better"), ("below", "worse")):
        cell = rows[name]
        assert cell.test is not None
        assert f"{name} ({cell.text(1)} points, {cell.test.text}) is significantly {word} than base" in text
    assert "is not significantly different from base (paired t-test over 3 seeds" in text


def test_rows_without_enough_seeds_are_counted(db: Path) -> None:
    seeded(db, (0, 2, 1), mine=90, yours=50)
    record(db, "single", 0, correct=95, common=60)
    text = found(summary_of(db))
    assert text.startswith("single leads on personal accuracy (95.0 %)")
    assert "mine is significantly better than yours" in text
    assert text.endswith("1 row could not be tested; the table says why.")


def test_a_verdict_says_the_time_of_the_rounds_and_that_of_loading_and_encoding(db: Path) -> None:
    number = fill.done(db, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=2))
    assert (said(db, number) or "").startswith(
        "Done; 2 runs took 5 s in all, loading and encoding 23 s. FedOT leads"
    )
    single = fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2))
    assert said(db, single) == "Done; the run took 2 s, loading and encoding 13 s."


def test_nothing_is_said_while_a_run_trains(db: Path) -> None:
    experiment = record(db, "mine", 1, correct=90, common=60)
    training = Recorder(db, method="yours", seed=1, dataset="rotated-digits", experiment="x")
    assert said(db, experiment) is None
    training.finish()


def test_more_seeds_are_those_that_a_test_lacks_and_join_the_experiment(db: Path) -> None:
    number = fill.done(db, fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1,), rounds=2))
    store = Store(db)
    runs = more_seeds(store, store.experiments.get(number))
    assert [(run.method.name, run.seed) for run in runs] == [
        ("fedot", 2),
        ("promptfl", 2),
        ("fedot", 3),
        ("promptfl", 3),
    ]
    added = store.experiments.extend(number, runs)
    experiment = store.experiments.get(number)
    assert [run.id for run in experiment.runs][-4:] == list(added.run_ids)
    assert experiment.config.seeds == (1, 2, 3)
    assert len({run.group_hash for run in experiment.runs}) == 2, "a row per method, with three seeds"
    assert more_seeds(store, experiment) == []
    with store.checked([number]):
        pass


def test_a_method_whose_file_was_corrected_between_two_runs_gets_each_seed_once(db: Path) -> None:
    number = fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=2))
    store = Store(db)
    with writing(db) as database:
        for (run, config), sha256 in zip(
            store.runs.configs([1, 2]).items(), ("0" * 64, "1" * 64), strict=True
        ):
            method = config.method.model_copy(update={"file": "/mine.py", "sha256": sha256})
            set_config(database, run, config.model_copy(update={"method": method}))
    runs = more_seeds(store, store.experiments.get(number))
    assert [(run.seed, run.method.sha256) for run in runs] == [(3, "1" * 64)]


def test_runs_of_another_script_get_no_seeds_here(db: Path) -> None:
    number = record(db, "mine", 1, correct=90, common=60)
    assert more_seeds(Store(db), Store(db).experiments.get(number)) == []
