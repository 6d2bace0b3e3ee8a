"""The statistics of comparisons, against numpy on the very rows that were recorded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedcore.base.events import VALIDATION, Started
from fedcore.config import Experiment, expand
from fedcore.methods import registry
from fedcore.results import curves, settings
from fedcore.results.comparison import (
    compare,
    config_differences,
    partial_fields,
    reason_not_comparable,
    significance,
)
from fedcore.results.metrics import METRICS, Rule, RunResult, selected_rounds, value_per_seed
from fedcore.results.statistics import Stat, spread
from fedcore.results.summary import best_and_second
from fedcore.store import Recorder, RunRow, Store
from tests.support import fill


def shares(db: Path, run_id: int, round_: int) -> np.ndarray:
    """Own accuracy of every client, per cent, straight from the recorded counts."""
    found = [o for o in Store(db).cells.own_accuracy(run_id) if o.round == round_]
    return np.array([100 * o.correct / o.total for o in found])


def test_spread_is_the_sample_standard_deviation() -> None:
    values = [81.5, 79.25, 90.0]
    stat = spread(values)
    assert stat is not None
    assert stat.mean == pytest.approx(np.mean(values))
    assert stat.std == pytest.approx(np.std(values, ddof=1))
    assert stat.n == 3
    assert spread([80.0, None]) == Stat(80.0, None, 1) and Stat(80.0, None, 1).text() == "80.0"
    assert spread([None, float("nan")]) is None


def test_rules_choose_rounds() -> None:
    assert selected_rounds([0, 1, 2, 3], 2, "last") == (3,)
    assert selected_rounds([0, 1, 2, 3], 2, "best") == (2,)
    assert selected_rounds([0, 1, 2, 3], None, "best") == ()
    assert selected_rounds(range(15), 2, "mean10") == tuple(range(5, 15))
    assert selected_rounds([0, 1, 2], 2, "mean10") == (1, 2), "round 0 is no training round"
    assert selected_rounds([], 2, "last") == ()


def test_the_last_ten_rounds_are_rounds_not_evaluations() -> None:
    assert selected_rounds(range(0, 51, 5), 2, "mean10") == (45, 50)
    assert selected_rounds([0, 20, 40], 2, "mean10") == (40,)
    assert selected_rounds([0], 0, "mean10") == (0,), "zero-shot has nothing else"


def test_fewer_evaluations_than_ten_are_said(db: Path) -> None:
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(4,), rounds=20))
    writer.started(Started(entities=fill.entities(), rounds_total=20, environment={"device": "cpu"}))
    for round_ in (0, 5, 10, 15, 20):
        writer.write_round(fill.a_round("fedot", 4, round_, 20))
    writer.claim.finish("done")
    found = compare(Store(db), [1], "mean10")
    assert found.rows[0].runs[0].rounds == (15, 20)
    assert found.rows[0].runs[0].rounds_text == "mean of 15 to 20, 2 evaluated"
    assert found.notes == ("FedOT, seed 4: only 2 of the last ten rounds evaluated",)
    expected = np.mean([shares(db, writer.run_id, r).mean() for r in (15, 20)])
    assert found.rows[0].stats["personal"].mean == pytest.approx(expected)


def test_the_untrained_round_is_never_the_best_on_validation(db: Path) -> None:
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2))
    writer.started(Started(entities=fill.entities(), rounds_total=2, environment={"device": "cpu"}))
    for round_ in range(3):  # a learning rate that harms: accuracy falls
        writer.write_round(replace(fill.a_round("fedot", 1, 2 - round_, 2), round=round_))
    writer.claim.finish("done")
    found = compare(Store(db), [1], "best")
    assert found.rows[0].runs[0].rounds == (1,) and not found.notes


@pytest.mark.parametrize(
    ("label", "rule", "rounds"), [("FedOT", "last", [10]), ("SDFed", "mean10", range(1, 11))]
)
def test_a_mean_is_over_clients_then_rounds_then_seeds(
    filled: Path, label: str, rule: Rule, rounds: Sequence[int]
) -> None:
    group = next(g for g in compare(Store(filled), [1], rule).rows if g.label == label)
    assert len(group.runs) == 3
    for metric, of_clients in (("personal", np.mean), ("worst", np.min)):
        per_seed = [np.mean([of_clients(shares(filled, v.run.id, r)) for r in rounds]) for v in group.runs]
        assert group.stats[metric].mean == pytest.approx(np.mean(per_seed))
        assert group.stats[metric].std == pytest.approx(np.std(per_seed, ddof=1))


def test_best_on_validation_reads_test_at_the_validated_round(filled: Path) -> None:
    group = next(g for g in compare(Store(filled), [1], "best").rows if g.label == "PromptFL")
    expected = []
    for value in group.runs:
        by_round = {
            p.round: p.personal_mean
            for p in Store(filled).rounds.mean_accuracy([value.run.id], split=VALIDATION)
        }
        best = min(r for r, v in by_round.items() if v == max(by_round.values()))
        assert value.rounds == (best,)
        expected.append(shares(filled, value.run.id, best).mean())
    assert group.stats["personal"].mean == pytest.approx(np.mean(expected))


def test_unfinished_runs_are_left_out_and_said(filled: Path) -> None:
    found = compare(Store(filled), [2])
    assert [g.label for g in found.rows] == ["Zero-shot CLIP"]
    (note,) = found.notes
    assert note.startswith("4 runs are not finished and left out: FedOT, seed 1 (")
    assert note.endswith("FedAlign, seed 1 (queued)")
    more = compare(Store(filled), [2], unfinished=True)
    assert {g.label for g in more.rows} == {"Zero-shot CLIP", "FedOT", "PromptFL", "SDFed"}


def test_a_repeated_seed_is_no_further_evidence(db: Path) -> None:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2)
    first, second = fill.done(db, experiment), fill.done(db, experiment)
    found = compare(Store(db), [first, second])
    assert found.rows[0].stats["personal"].n == 1
    assert found.rows[0].runs[0].run.experiment_id == second
    assert "repeat" in found.notes[0]


def test_config_differences_are_those_of_whole_configs_in_words(filled: Path) -> None:
    """Every made-up run leaves its hyper-parameters at the papers' defaults, which differ."""
    found = compare(Store(filled), [1])
    differing, partial = config_differences(found.rows), partial_fields(found.rows)
    methods = {g.key: registry.get(g.method).Config() for g in found.rows}
    shown = dict(zip(methods, differing["method.config.lr"], strict=True))
    assert shown == {k: f"{c.lr:g}" if hasattr(c, "lr") else "" for k, c in methods.items()}
    assert "" in shown.values(), "zero-shot CLIP learns nothing"
    fedot = next(g for g in found.rows if g.method == "fedot")
    assert partial[fedot.key,]["method.config.share"] == "the classifier"
    learning = tuple(k for k, c in methods.items() if hasattr(c, "momentum"))
    assert partial[learning]["method.config.momentum"] == "0.9", "equal wherever it is"
    assert all(len(set(row) - {""}) > 1 for row in differing.values())
    assert not any(name in differing for fields in partial.values() for name in fields)


def test_a_method_that_is_not_known_here_has_its_config_as_recorded(filled: Path) -> None:
    config = compare(Store(filled), [1]).rows[0].config
    odd = config.method.model_copy(update={"name": "somebody-s", "config": {"lr": 3.0}})
    flat = settings.config_for_display(config.model_copy(update={"method": odd}), trained_by_fedlens=True)
    assert [k for k in flat if k.startswith("method.config")] == ["method.config.lr"]


def test_lists_are_values_and_cohorts_are_numbered() -> None:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1)
    content = experiment.model_dump() | {
        "partition": {"kind": "iid", "clients": 3},
        "cohorts": [{"clients": 2, "backbone": {"name": "mini-rn"}}, {"clients": 1}],
    }
    content["data"]["domains"] = ["0°", "15°"]
    flat = settings.flatten(expand(Experiment.model_validate(content))[0])
    assert flat["data.domains"] == ("0°", "15°")
    assert (flat["cohorts.0.clients"], flat["cohorts.0.backbone.name"]) == (2, "mini-rn")
    assert flat["cohorts.1.clients"] == 1


def test_no_difference_across_rounds_or_participation(db: Path) -> None:
    for i, (rounds, participation) in enumerate(((2, 1.0), (3, 1.0), (2, 0.5))):
        methods = ("fedot", "zero-shot") if not i else (("sdfed", "promptfl")[i - 1],)
        fill.done(db, fill.an_experiment(methods=methods, rounds=rounds, participation=participation))
    found = compare(Store(db), [1, 2, 3])
    rows = {g.method: g for g in found.rows}
    base = rows["fedot"]
    assert reason_not_comparable(rows["sdfed"], base) == "rounds 3 against 2"
    assert reason_not_comparable(rows["promptfl"], base) == "participation 0.5 against 1"
    tested = significance(found.rows, base, "personal")
    assert list(tested) == [rows["zero-shot"].key]
    assert tested[rows["zero-shot"].key].adjusted == tested[rows["zero-shot"].key].p, "a family of one"
    assert "rows differ in rounds: 2, 3" in found.notes
    assert "rows differ in participation: 0.5, 1" in found.notes


def test_a_row_that_does_not_train_is_set_against_any_rounds(db: Path) -> None:
    """Zero-shot CLIP records round 0 alone, whatever the rounds of its experiment."""
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2))
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("zero-shot",), seeds=(1,), rounds=9))
    fill.train(writer, until=0)
    writer.claim.finish("done")
    fedot, still = compare(Store(db), [1, 2]).rows
    assert still.runs[0].rounds == (0,)
    assert reason_not_comparable(fedot, still) == reason_not_comparable(still, fedot) == ""
    assert significance((fedot, still), still, "personal")[fedot.key].difference is not None
    assert not any("differ" in note for note in compare(Store(db), [1, 2]).notes)


def test_nothing_is_claimed_of_unfinished_runs(db: Path) -> None:
    _, writers = fill.start(db, fill.an_experiment(methods=("fedot", "sdfed"), seeds=(1, 2, 3), rounds=4))
    for writer in writers:
        run = fill.config_of(writer)
        fill.train(writer, until=2 if (run.method.name, run.seed) == ("sdfed", 2) else None)
    found = compare(Store(db), [1], unfinished=True)
    base, other = found.rows
    assert reason_not_comparable(other, base) == "SDFed has unfinished runs"
    assert significance(found.rows, base, "personal") == {}
    base, other = compare(Store(db), [1]).rows
    assert reason_not_comparable(other, base) == ""
    (tested,) = significance((base, other), base, "personal").values()
    assert (tested.n, tested.p) == (2, None), "two seeds are left: nothing is claimed"


def test_held_out_domains_are_averaged_within_a_seed_first(db: Path) -> None:
    clients = fill.CLIENTS
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=2, held_out=clients[:2])
    found = compare(Store(db), [fill.done(db, experiment)])
    (group,) = found.rows
    assert group.stats["personal"].n == 2, "seeds, not runs"
    values = {s: [v.values["personal"] for v in group.runs if v.run.seed == s] for s in (1, 2)}
    assert group.stats["personal"].std == pytest.approx(np.std([np.mean(v) for v in values.values()], ddof=1))
    run = group.runs[0]
    cells = Store(db).cells.at_rounds({run.run.id: run.rounds})
    (cell,) = [
        c
        for c in cells
        if c.model_kind == "global" and c.test_set_kind == "domain" and c.test_set == run.run.held_out
    ]
    assert run.values["generalisation"] == pytest.approx(100 * cell.correct / cell.total)


def a_value(run: RunRow, seed: int, held_out: str, personal: float) -> RunResult:
    values = {m: personal if m == "personal" else None for m in METRICS}
    return RunResult(replace(run, seed=seed, held_out=held_out), (10,), values)


def test_a_seed_that_lacks_a_held_out_domain_is_no_seed_of_the_mean(filled: Path) -> None:
    run = Store(filled).runs.of_experiments([1])[0]
    runs = [a_value(run, 1, "A", 90.0), a_value(run, 1, "B", 50.0), a_value(run, 2, "A", 90.0)]
    assert value_per_seed(runs, "personal") == {1: 70.0}
    assert spread(value_per_seed(runs, "personal").values()) == Stat(70.0, None, 1)
    assert value_per_seed(runs[1:], "personal") == {}, "no seed has both"


def test_incomplete_seeds_leave_tables_and_curves_and_are_said(db: Path) -> None:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=2, held_out=fill.CLIENTS[:2])
    created, writers = fill.start(db, experiment)
    configs = {writer.run_id: Store(db).runs.config(writer.run_id) for writer in writers}
    missing = next(
        x for x in writers if (configs[x.run_id].seed, configs[x.run_id].held_out) == (2, fill.CLIENTS[1])
    )
    for writer in writers:
        if writer is missing:
            writer.claim.finish("stopped", "not wanted")
        else:
            fill.train(writer)
    found = compare(Store(db), [created.experiment_id])
    (group,) = found.rows
    assert (group.seeds, group.stats["personal"].n, group.stats["generalisation"].n) == ((1,), 1, 1)
    accuracies = [shares(db, x.run_id, 2).mean() for x in writers if configs[x.run_id].seed == 1]
    assert group.stats["personal"].mean == pytest.approx(np.mean(accuracies))
    assert "FedOT, seed 2: left out, a held-out domain that another seed has is missing" in found.notes
    (line,) = curves.mean_lines(Store(db), found, group.setting, "personal")
    assert (line.n, line.std[-1]) == (1, None)
    assert line.y[-1] == pytest.approx(np.mean(accuracies))


def test_the_newest_repeat_counts_also_if_an_older_one_was_merged_later(tmp_path: Path) -> None:
    older, newer = tmp_path / "older" / "runs.db", tmp_path / "newer" / "runs.db"
    for db, correct in ((older, 10), (newer, 90)):
        db.parent.mkdir()
        with Recorder(db, method="own", seed=1, dataset="rotated-digits", experiment=db.parent.name) as run:
            run.round(1, accuracy={("a", "a"): (correct, 100)})
    Store(newer).imports.database(older)
    merged = compare(Store(newer), [e.id for e in Store(newer).experiments.all()])
    (row,) = merged.rows
    assert row.stats["personal"].mean == pytest.approx(90)
    assert "1 run is a repeat of the same config and seed: the newest counts" in merged.notes


def test_a_note_names_the_seeds_that_failed_unless_they_were_repeated(db: Path) -> None:
    """A mean over the seeds that did not diverge is no mean over seeds."""
    _, writers = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1, 2, 3, 4), rounds=1))
    for writer in writers:
        if fill.config_of(writer).seed == 1:
            fill.train(writer)
        else:
            writer.claim.finish("failed", "the loss is not finite")
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(4,), rounds=1))
    note = "3 runs are not finished and left out: FedOT, seeds 2 and 3 (failed)"
    assert note in compare(Store(db), [1, 2]).notes


def test_a_note_names_the_held_out_domain_of_a_run_that_failed(db: Path) -> None:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1, held_out=fill.CLIENTS[:2])
    _, writers = fill.start(db, experiment)
    for writer in writers:
        if fill.config_of(writer).held_out == "0°":
            writer.claim.finish("failed", "the loss is not finite")
        else:
            fill.train(writer)
    assert (
        "1 run is not finished and left out: FedOT without 0°, seed 1 (failed)"
        in compare(Store(db), [1]).notes
    )


def test_best_and_second_as_printed(filled: Path) -> None:
    found = compare(Store(filled), [1])
    names = {g.key: g.label for g in found.rows}
    marks = best_and_second(found.rows, "personal")
    assert {names[key]: mark for key, mark in marks.items()} == {"FedOT": "best", "FedAlign": "second"}
    assert best_and_second(found.rows[:1], "personal") == {}, "alone"


def test_significance_pairs_seeds_within_a_setting(tmp_path: Path, filled: Path) -> None:
    groups = {g.label: g for g in compare(Store(filled), [1]).rows}
    baseline = groups["PromptFL"]
    found = significance(list(groups.values()), baseline, "personal")
    assert baseline.key not in found and len(found) == len(groups) - 1
    ours, theirs = (list(value_per_seed(groups[m].runs, "personal").values()) for m in ("FedOT", "PromptFL"))
    raw = {
        k: stats.ttest_rel(list(value_per_seed(g.runs, "personal").values()), theirs).pvalue
        for k, g in groups.items()
        if k != "PromptFL"
    }
    fedot = found[groups["FedOT"].key]
    assert fedot.difference == pytest.approx(np.mean(np.subtract(ours, theirs)))
    assert fedot.p == pytest.approx(raw["FedOT"])
    assert found[min((groups[k].key for k in raw), key=lambda key: found[key].p)].adjusted == pytest.approx(
        min(1.0, 4 * min(raw.values()))
    )
    other = tmp_path / "runs.db"
    fill.done(other, fill.an_experiment(methods=("promptfl",), data="shapes", rounds=2))
    (shapes,) = compare(Store(other), [1]).rows
    assert significance(list(groups.values()), shapes, "personal") == {}
