"""Published values beside what the store holds, measured as each paper measures."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.base.events import AFTER_AGGREGATION, BEFORE_AGGREGATION, Entity, RoundFinished, Started
from fedcore.cli import main as cli
from fedcore.config import Experiment, MethodEntry
from fedcore.papers import published
from fedcore.papers.cells import TableCell
from fedcore.papers.equivalents import NoEquivalent, equivalent, variant_runs
from fedcore.papers.reproductions import reproductions
from fedcore.results.comparison import compare
from fedcore.store import Store
from fedcore.store.liveness import new_owner
from fedcore.store.writer import RunWriter
from tests.support import fill
from tests.support.papers import PACS, ROUNDS, find, matrix, preset, share, train, with_texts


@pytest.fixture(scope="module")
def fedot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment, list[TableCell]]:
    db = tmp_path_factory.mktemp("published") / "runs.db"
    experiment = preset("fedot/table1-pacs", ("FedOT", "FedOT(-o)", "Zero-shot CLIP"), seeds=(50, 77))
    moved = experiment.data.model_copy(update={"root": "somewhere"})
    train(db, experiment.model_copy(update={"data": moved, "methods": experiment.methods[:2]}))
    return db, experiment, reproductions(Store(db), experiment)


def test_generalization_personalization_and_comprehensive(fedot):
    _, _, rows = fedot
    acc = np.stack([matrix("FedOT", seed) for seed in (50, 77)])
    off = ~np.eye(4, dtype=bool)
    expected = {
        "generalization": [np.diag(a).mean() for a in acc],
        "personalization": [a[off].mean() for a in acc],
        "comprehensive": [a.mean() for a in acc],
    }
    for metric, values in expected.items():
        row = find(rows, table="1", method="FedOT", metric=metric)
        assert row.outcome == "measured"
        assert row.stat.mean == pytest.approx(np.mean(values))
        assert row.stat.std == pytest.approx(np.std(values, ddof=1))
        assert row.stat.n == 2
        assert row.outcome_text == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} †"


def test_tables_by_held_out_domain_and_target(fedot):
    _, _, rows = fedot
    acc = np.mean([matrix("FedOT", seed) for seed in (50, 77)], axis=0)
    assert find(rows, table="5", method="FedOT", target="C").stat.mean == pytest.approx(acc[1, 1])
    held_out = {"table": "7", "method": "FedOT", "setting": "held out P"}
    assert find(rows, **held_out, target="S").stat.mean == pytest.approx(acc[2, 3])
    assert find(rows, **held_out, target="avg").stat.mean == pytest.approx(acc[2, [0, 1, 3]].mean())
    assert find(rows, table="9", method="FedOT", target="A").stat.mean == pytest.approx(acc[0].mean())
    zero_shot = np.mean([matrix("Zero-shot CLIP", seed) for seed in (50, 77)], axis=0)
    row = find(rows, table="9", method="Zero Shot", target="A")
    assert row.stat.mean == pytest.approx(zero_shot[0, 0]), "printed by domain, not by held-out domain"


def test_condition_number_is_the_last_round_s(fedot):
    row = find(fedot[2], table="2", method="FedOT", target="avg", metric="condition number")
    assert row.stat.mean == pytest.approx(np.mean([2.0, 3.0, 4.0]))


def test_nothing_is_blank(fedot):
    _, experiment, rows = fedot
    assert len(rows) == len(published.values_of(experiment))
    assert find(rows, table="1", method="VPT", metric="generalization").outcome_text == "not run"
    assert find(rows, table="1", method="FedOT(+B)", metric="generalization").outcome == "measured", (
        "r = 1 is FedOT"
    )
    linear = find(rows, table="2", method="FedOT(-o)", target="avg", metric="generalization")
    assert linear.outcome_text == "not run"
    assert find(rows, table="1", method="FedCLIP", metric="generalization").outcome_text == "not run"
    assert all(r.outcome_text for r in rows)
    assert (
        Counter(r.outcome for r in rows)["not implemented"]
        == Counter(equivalent(f).__class__ for f in published.values_of(experiment))[NoEquivalent]
    )


def test_a_seed_counts_when_all_held_out_domains_are_done(db):
    experiment = preset("fedot/table1-pacs", ("FedOT",), seeds=(50,))
    train(db, experiment, held_out=("cartoon", "photo", "sketch"))
    rows = reproductions(Store(db), experiment)
    assert find(rows, table="1", method="FedOT", metric="generalization").outcome_text == "not run"
    assert find(rows, table="5", method="FedOT", target="C").outcome == "measured"
    assert find(rows, table="5", method="FedOT", target="A").outcome_text == "not run"


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": ROUNDS + 1},
        {"participation": 0.5},
        {"methods": (MethodEntry(name="fedot", config={"lr": 0.1}),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_runs_of_another_setting_do_not_count(fedot, change):
    db, experiment, _ = fedot
    rows = reproductions(Store(db), experiment.model_copy(update=change))
    assert {r.outcome for r in rows} == {"not run"}


def test_domains_traffic_and_what_no_run_gives(db):
    experiment = preset("feddeap/table1-domainnet-126", ("FedDEAP", "PromptFL"))
    train(db, experiment.model_copy(update={"seeds": (1,)}))
    rows = reproductions(Store(db), experiment)
    traffic = find(rows, table="4", method="PromptFL", metric="Comm. (M/epoch)")
    assert traffic.outcome_text == "counted without a run; the page Papers has the count"
    assert "several" in find(rows, table="4", method="FACMIC", metric="Performance (%)").outcome_text
    assert (
        find(rows, table="4", method="FedDEAP", metric="Performance (%)").outcome_text
        == "a mean over several data sets"
    )
    ours = [100 * share("FedDEAP/None", 1, ROUNDS, d, f"client:{d}") for d in PACS]
    row = find(rows, table="1", method="FedDEAP", target="avg")
    assert (row.stat.mean, row.stat.std) == (pytest.approx(np.mean(ours)), None)
    sketch = find(rows, table="1", method="FedDEAP", target="s")
    assert sketch.stat.mean == pytest.approx(ours[PACS.index("sketch")])


def test_mean_of_the_last_rounds_for_sdfed_and_whole_test_set_for_fedalign(db):
    sdfed = preset("sdfed/table1-dtd", ("SDFed",), seeds=(1,))
    aligned = preset("fedalign/table1-food101-iid", ("FedAlign",))
    train(db, sdfed)
    train(db, aligned)
    row = find(reproductions(Store(db), sdfed), table="1", method="SDFed")
    ours = [100 * share("SDFed/None", 1, r, d, f"client:{d}") for r in (1, 2, 3) for d in PACS]
    assert row.stat.mean == pytest.approx(np.mean(ours))
    row = find(reproductions(Store(db), aligned), table="1", method="FedAlign", metric="global")
    whole = [100 * share("FedAlign/None", 1, ROUNDS, "global", f"domain:{d}") for d in PACS]
    assert row.stat.mean == pytest.approx(np.mean(whole))


def test_fedalign_s_local_is_read_from_class_sets_and_under_path_from_own_samples(tmp_path):
    """Made-up counts tell the four readings apart.

    IID: FedAlign after aggregation, 3/10 and 5/10, PromptFL before it, 9/10 and 9/10. Path: before it,
    1/4 and 3/4 of own samples.
    """
    counts = [
        (AFTER_AGGREGATION, 1, 4, 3, 10),
        (AFTER_AGGREGATION, 2, 5, 5, 10),
        (BEFORE_AGGREGATION, 1, 4, 9, 10),
        (BEFORE_AGGREGATION, 2, 5, 9, 10),
    ]
    ours = [
        (AFTER_AGGREGATION, 1, 1, 4, 4),
        (AFTER_AGGREGATION, 2, 2, 4, 4),
        (BEFORE_AGGREGATION, 1, 1, 1, 4),
        (BEFORE_AGGREGATION, 2, 2, 3, 4),
    ]
    for setting, label, cells, expected in (
        ("iid", "FedAlign", counts + ours, 40.0),
        ("iid-baselines", "PromptFL", counts + ours, 90.0),
        ("path", "FedAlign", ours, 50.0),
    ):
        db = tmp_path / f"{setting}.db"
        Store(db).prepare()
        experiment = preset(f"fedalign/table1-food101-{setting}", (label,))
        planned = with_texts(experiment, {"apple pie": ["a pie."]}) if label == "FedAlign" else experiment
        created = Store(db).experiments.create(planned)
        writer = RunWriter(Store(db).jobs.claim(new_owner(), "cpu", experiment_id=created.experiment_id))
        writer.claim.begin()
        names = [(0, "global", "global"), (1, "client", "a"), (2, "client", "b"), (3, "domain", "d")]
        names += [(4, "classes", "classes of a"), (5, "classes", "classes of b")]
        writer.started(
            Started(entities=tuple(Entity(*n) for n in names), rounds_total=ROUNDS, environment={})
        )
        for round_ in range(ROUNDS + 1):
            found = tuple(fill.cell(*counts, stage=stage) for stage, *counts in cells)
            writer.write_round(RoundFinished(round=round_, cells=found))
        writer.claim.finish("done")
        row = find(reproductions(Store(db), experiment), table="1", method=label, metric="local")
        assert (row.outcome, row.stat.mean) == ("measured", pytest.approx(expected))


HALF = {"apple pie": ["a pie."], "baby back ribs": []}


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (HALF, "1 of 2 classes had no written description and used the prompt"),
        (None, "recorded before written descriptions were kept"),
    ],
)
def test_a_gt_value_of_classes_that_took_the_prompt_is_told_apart(db, texts, why, capsys):
    aligned = preset("fedalign/table1-food101-iid", ("FedAlign",))
    train(db, with_texts(aligned, texts))
    row = find(reproductions(Store(db), aligned), table="1", method="FedAlign", metric="global")
    assert (row.outcome, row.comparability.state) == ("measured", "with a caveat")
    (reason,) = [text for _, text in row.comparability.reasons if why in text]
    assert row.stat is not None and row.outcome_text.endswith(" †")
    file = db.parent / "aligned.toml"
    file.write_text(config.dumps(aligned), encoding="utf-8")
    assert cli.main(["published", str(file), "--db", str(db)]) == 0
    said = capsys.readouterr().err
    assert f"\n†: FedAlign: {reason}" in f"\n{said}" and "1 measured, with a caveat" in said
    (note,) = [n for n in compare(Store(db), [1]).notes if n.startswith("†")]
    assert note.startswith("† FedAlign: ") and why in note


def test_texts_of_one_s_own_match_a_preset_and_runs_with_all_of_them_come_first(db):
    """Also before newer runs of the same seed that took the prompt."""
    aligned = preset("fedalign/table1-food101-iid", ("FedAlign",))
    train(db, with_texts(aligned, {"apple pie": ["a pie."], "baby back ribs": ["ribs."]}))
    train(db, with_texts(aligned, HALF))
    row = find(reproductions(Store(db), aligned), table="1", method="FedAlign", metric="global")
    assert (row.outcome, row.reason, row.stat.n) == ("measured", "", 1)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "pathological"])
def test_what_a_kind_of_partition_does_not_read_keeps_no_run_from_counting(kind):
    """A sweep over kinds carries the fields of all of them: Figure 8's first runs are those of Table 1."""
    suffix = {"iid": "iid", "dirichlet": "dir", "pathological": "path"}
    table = variant_runs(preset(f"fedalign/table1-cifar10-{suffix[kind]}", ("FedAlign",)))[0].key
    swept = [
        v.key
        for v in variant_runs(preset("fedalign/figure8-cifar10", ("FedAlign",)))
        if v.config.partition.kind == kind
    ]
    assert swept[0] == table and table not in swept[1:]


def test_a_run_recorded_before_there_were_class_sets_is_no_local_performance(db):
    iid = preset("fedalign/table1-food101-iid", ("FedAlign",))
    assert (
        find(reproductions(Store(db), iid), table="1", method="FedAlign", metric="local").outcome == "not run"
    )
    train(db, iid)
    row = find(reproductions(Store(db), iid), table="1", method="FedAlign", metric="local")
    assert (row.outcome, row.stat) == ("measured on another test set", None)
    assert row.outcome_text == "measured on another test set" and "client's own share" in row.reason


def test_of_a_sweep_the_variant_that_is_printed_is_beside_the_value(db):
    """FedOT with one and two local epochs: the paper's tables have one."""
    swept = preset("fedot/table1-pacs", ("FedOT",), seeds=(50,), sweep={"methods.*.local_epochs": (1, 2)})
    train(db, swept)
    row = find(reproductions(Store(db), swept), table="1", method="FedOT", metric="generalization")
    label = "FedOT (local epochs 1)"
    assert row.outcome == "measured"
    assert row.stat.mean == pytest.approx(np.diag(matrix(label, 50)).mean())


def test_a_run_with_cohorts_is_beside_table_4_and_one_without_is_not(db):
    mixed = preset("sdfed/table4-dtd", ("SDFed",), seeds=(1,))
    train(db, mixed.model_copy(update={"cohorts": ()}))
    assert find(reproductions(Store(db), mixed), method="SDFed").outcome == "not run"
    train(db, mixed)
    row = find(reproductions(Store(db), mixed), method="SDFed")
    ours = [100 * share("SDFed/None", 1, r, d, f"client:{d}") for r in (1, 2, 3) for d in PACS]
    assert (row.outcome, row.stat.mean) == ("measured", pytest.approx(np.mean(ours)))


def test_an_experiment_that_names_nothing_is_refused(tmp_path):
    with pytest.raises(FedLensError, match="names no published values"):
        reproductions(Store(tmp_path / "none.db"), config.parse({"methods": [{"name": "fedot"}]}))


def test_the_command_prints_both(fedot, capsys):
    db, _, _ = fedot
    named = ["--preset", "fedot/table1-pacs"]
    assert cli.main(["published", *named, "--db", str(db)]) == 0
    out, notes = capsys.readouterr()
    head, *rows = csv.reader(out.splitlines())
    assert f"note: {len(rows)} values: " in notes and "\n†: " in notes
    assert head[-4:] == ["published", "ours", "difference", "comparability"]
    assert cli.main(["published", "--coverage"]) == 0
    out, notes = capsys.readouterr()
    total = list(csv.reader(out.splitlines()))[-1]
    assert total[:2] == ["all", ""]
    columns = [int(n) for n in total[2:]]
    assert columns[0] == 9213 == sum(columns[2:]) and columns[1] == sum(columns[2:5])
    assert "the catalog lacks" not in notes
    assert cli.main(["published"]) == 2
    assert cli.main(["published", *named, "--coverage"]) == 2
