"""Rows of a sweep as families, lines and grids: every number is that of the comparison's row."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedcore.base.presentation import FieldChart
from fedcore.config import Experiment, MethodEntry, parse
from fedcore.results import sweeps
from fedcore.results.analyses import rows_by_field
from fedcore.results.charts.sweep import client_chart, parallel_chart, sweep_heatmap, sweep_line_chart
from fedcore.results.charts.theme import Theme
from fedcore.results.comparison import Comparison, compare
from fedcore.share.views import ViewSource
from fedcore.share.views import sweep as sweep_view
from fedcore.store import Recorder, Store
from fedcore.store.database import writing
from tests.support import fill

SWEEP = {"methods.fedot.blocks": (1, 2), "partition.alpha": (0.1, 0.5)}


def an_experiment(sweep: dict, methods: tuple[str, ...] = ("fedot", "promptfl")) -> Experiment:
    plain = fill.an_experiment(methods=methods, seeds=(1, 2), rounds=1).model_dump()
    return parse({**plain, "sweep": sweep})


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    db = tmp_path_factory.mktemp("sweep") / "runs.db"
    number = fill.done(db, an_experiment(SWEEP))
    return db, compare(Store(db), [number])


def families_of(swept: tuple[Path, Comparison]) -> list[sweeps.SweepFamily]:
    return sweeps.sweep_families(swept[1], "personal", [SWEEP])


def test_a_family_has_the_swept_fields_that_concern_its_method(swept):
    fedot, promptfl = families_of(swept)
    assert (fedot.title, promptfl.title) == ("FedOT", "PromptFL")
    assert set(fedot.fields) == {"method.config.blocks", "partition.alpha"}
    assert promptfl.fields == ("partition.alpha",)
    assert len(fedot.rows) == 4 and len(promptfl.rows) == 2
    for point in fedot.rows:
        assert point.values["partition.alpha"] == point.group.config.partition.alpha
        assert point.values["method.config.blocks"] == point.group.config.method.config["blocks"]
        assert point.stat == point.group.stats["personal"] and point.stat.n == 2


def test_lines_run_over_one_field_and_fix_the_others(swept):
    fedot = families_of(swept)[0]
    found = sweeps.sweep_lines(fedot, "method.config.blocks")
    assert [line.label for line in found] == ["FedOT: Dirichlet alpha 0.1", "FedOT: Dirichlet alpha 0.5"]
    assert [line.x for line in found] == [(1, 2), (1, 2)]
    for line, alpha in zip(found, (0.1, 0.5), strict=True):
        for x, stat in zip(line.x, line.stats, strict=True):
            (point,) = [
                p for p in fedot.rows if p.values == {"method.config.blocks": x, "partition.alpha": alpha}
            ]
            assert stat is point.stat


def test_a_grid_has_every_combination_once(swept):
    fedot = families_of(swept)[0]
    found = sweeps.sweep_grid(fedot, "method.config.blocks", "partition.alpha", {})
    assert (found.rows, found.columns) == ((1, 2), (0.1, 0.5))
    assert {s for row in found.stats for s in row} == {p.stat for p in fedot.rows}
    assert found.stats[1][0] == next(
        p.stat for p in fedot.rows if list(p.values.values()) in ([2, 0.1], [0.1, 2])
    )


def lengths_sweep(db: Path, lists: tuple[str, ...]) -> sweeps.SweepFamily:
    """A sweep over the local prompt lengths of the five clients of made-up runs."""
    number = fill.done(db, an_experiment({"methods.sdfed.local_length": lists}, ("sdfed",)))
    (family,) = sweeps.sweep_families(
        compare(Store(db), [number]), "personal", [{"methods.sdfed.local_length": lists}]
    )
    return family


def test_lengths_of_clients_that_always_agree_are_one_axis(tmp_path: Path) -> None:
    """SDFed's Figure 5: one domain's clients keep their length, those of the others take all combinations."""
    clients = len(fill.CLIENTS)
    both = [(4, 4), (4, 64), (64, 4), (64, 64)]
    lists = tuple(",".join(map(str, [8, a, a, *[b] * (clients - 3)])) for a, b in both)
    family = lengths_sweep(tmp_path / "runs.db", lists)
    first, second = (
        f"method.config.clients {who}: local prompt length" for who in ("2 to 3", f"4 to {clients}")
    )
    assert family.fields == (first, second)
    grid = sweeps.sweep_grid(family, first, second, {})
    assert (grid.rows, grid.columns) == ((4, 64), (4, 64))
    for (a, b), text in zip(both, lists, strict=True):
        (row,) = (r for r in family.rows if r.group.config.method.config["local_length"] == text)
        assert row.values == {first: a, second: b}
        assert grid.stats[(4, 64).index(a)][(4, 64).index(b)] is row.stat
    assert family.values(first) == [4, 64]


def test_clients_have_a_box_of_all_their_runs_at_each_value(tmp_path: Path) -> None:
    """SDFed's Figure 6, against the cells: each client's own accuracy in both seeds."""
    db = tmp_path / "runs.db"
    family = lengths_sweep(db, ("fixed:64", "fixed:8"))
    points = sweeps.client_points(family, "method.config.local_length")
    names, found = {}, []
    for run in Store(db).runs.of_experiments([1]):
        length = int(Store(db).runs.config(run.id).method.config["local_length"].removeprefix("fixed:"))
        names = {e.entity: e.name for e in Store(db).cells.entities(run.id)}
        own = [o for o in Store(db).cells.own_accuracy(run.id) if o.round == run.rounds_done]
        found += [(names[o.client], length, pytest.approx(100 * o.correct / o.total)) for o in own]
    assert len(points) == 2 * 2 * len(fill.CLIENTS)
    assert [p[1] for p in points] == [8] * 2 * len(fill.CLIENTS) + [64] * 2 * len(fill.CLIENTS), "by size"
    assert sorted(points, key=lambda p: p[:2]) == sorted(found, key=lambda p: p[:2])
    chart = client_chart(points, Theme(), "method.config.local_length")
    assert [box.name for box in chart.figure.data] == list(fill.CLIENTS)
    for box in chart.figure.data:
        assert list(box.x) == ["8"] * 2 + ["64"] * 2
        assert list(box.y) == pytest.approx([p[2] for p in points if p[0] == box.name], abs=0.01)
        assert f"{box.name} {np.median(box.y):.1f} %" in chart.alt


def test_without_a_sweep_whatever_varies_is_an_axis(db):
    entries = [MethodEntry(name="fedot", label=f"b{b}", config={"blocks": b}) for b in (4, 1, 16)]
    number = fill.done(db, fill.an_experiment(methods=entries, seeds=(1,), rounds=1))
    (family,) = sweeps.sweep_families(compare(Store(db), [number]), "personal")
    assert family.fields == ("method.config.blocks",)
    assert family.values("method.config.blocks") == [1, 4, 16]
    (line,) = sweeps.sweep_lines(family, "method.config.blocks")
    assert line.x == (1, 4, 16)


def test_a_hyper_parameter_left_at_its_default_has_its_value_on_the_axis(db):
    entries = [MethodEntry(name="fedot", label=f"b{c}", config=c) for c in ({}, {"blocks": 4})]
    number = fill.done(db, fill.an_experiment(methods=entries, seeds=(1,), rounds=1))
    (family,) = sweeps.sweep_families(compare(Store(db), [number]), "personal")
    assert family.values("method.config.blocks") == [1, 4]


@pytest.mark.parametrize(
    "sweep", [{"methods.fedot.blocks": (1, 4)}, {**SWEEP, "methods.fedot.blocks": (1, 4)}]
)
def test_rows_with_and_without_held_out_domains_are_different_families(db: Path, sweep: dict) -> None:
    """They have equal values of the swept fields, and one of them took the place of the other on a line."""
    plain = an_experiment(sweep, ("fedot",))
    fill.done(db, plain)
    fill.done(db, plain.model_copy(update={"held_out": fill.CLIENTS[:2]}))
    compared = compare(Store(db), [1, 2])
    for sweeps_of in ([plain.sweep], []):
        families = sweeps.sweep_families(compared, "personal", sweeps_of)
        assert len(families) == 2
        drawn = [
            stat.mean
            for family in families
            for line in sweeps.sweep_lines(family, "method.config.blocks")
            for stat in line.stats
        ]
        assert sorted(drawn) == sorted(row.stats["personal"].mean for row in compared.rows)


def test_one_row_for_each_method_is_no_sweep(filled):
    assert sweeps.sweep_families(compare(Store(filled), [1]), "personal") == []


def test_a_missing_combination_is_a_gap(swept):
    fedot = families_of(swept)[0]
    less = sweeps.SweepFamily(fedot.title, fedot.method, fedot.fields, fedot.rows[1:])
    found = sweeps.sweep_grid(less, "method.config.blocks", "partition.alpha", {})
    assert sum(s is None for row in found.stats for s in row) == 1
    chart = sweep_heatmap(found, Theme(), "Personal accuracy", (0, 100), "%")
    assert np.isnan(np.array(chart.figure.data[0].z, dtype=float)).sum() == 1
    assert "1 combination was not run" in chart.alt


def recorded_sweep(db: Path, correct: dict[int, tuple[int, ...]]) -> list[str]:
    """The findings on a sweep over blocks: value -> correct of 100 for each seed."""
    Store(db).prepare()
    for blocks, counts in correct.items():
        for seed, count in enumerate(counts, 1):
            with Recorder(
                db, method="own", seed=seed, experiment="Sweep", config={"blocks": blocks}, rounds_total=1
            ) as run:
                run.round(1, accuracy={("a", "a"): (count, 100)})
    comparison = compare(Store(db), [1])
    (family,) = sweeps.sweep_families(comparison, "personal", [{"methods.own.blocks": tuple(correct)}])
    return sweeps.findings(comparison, family, "personal")


def test_a_value_is_the_best_only_if_the_test_separates_it(tmp_path):
    (level,) = recorded_sweep(tmp_path / "level.db", {1: (80, 83, 79), 2: (81, 81, 82)})
    assert level == (
        "own: the highest mean is that of blocks 2 (81.3 ± 0.6 %). It cannot be told apart from blocks 1 "
        "(p = 0.691)."
    )
    (clear,) = recorded_sweep(tmp_path / "clear.db", {1: (60, 61, 62), 2: (80, 81, 83)})
    assert clear.startswith(
        "own: the best is blocks 2 (81.3 ± 1.5 %), significantly better than each other one"
    )
    (few,) = recorded_sweep(tmp_path / "few.db", {1: (60, 61), 2: (80, 82)})
    assert few == (
        "own: the highest mean is that of blocks 2 (81.0 ± 1.4 %). It cannot be told apart from blocks 1, "
        "with fewer than 3 seeds in common."
    )


def test_the_best_of_several_values_is_corrected_for_all_their_pairs(tmp_path: Path) -> None:
    """The data choose which value is the highest, so each pair could have been the one that is named."""
    drawn = {1: (70, 74, 69), 2: (71, 76, 72), 3: (80, 85, 83)}
    (said,) = recorded_sweep(tmp_path / "runs.db", drawn)
    p = {pair: stats.ttest_rel(drawn[pair[0]], drawn[pair[1]]).pvalue for pair in ((3, 1), (3, 2), (2, 1))}
    ordered = sorted(p, key=lambda pair: p[pair])
    assert ordered == [(3, 2), (3, 1), (2, 1)]
    largest = max(3 * p[ordered[0]], 2 * p[ordered[1]])
    assert 2 * p[3, 2] < 0.05 and largest < 0.05
    assert said.endswith(f"(p up to {largest:.2g} after Holm's correction for 3 pairs).")


def test_a_value_is_not_the_best_if_another_is_better_on_their_common_seeds(tmp_path: Path) -> None:
    """The highest mean is that of more seeds, the last two of them lucky."""
    (said,) = recorded_sweep(tmp_path / "runs.db", {1: (70, 71, 72, 99, 99), 2: (80, 81, 83)})
    assert said.startswith(
        "own: the highest mean is that of blocks 1 (82.2 ± 15.4 %). It cannot be told apart"
    )


def test_no_chart_of_a_sweep_calls_a_value_the_best(swept):
    comparison, families = swept[1], families_of(swept)
    fedot = families[0]
    grid = sweeps.sweep_grid(fedot, "method.config.blocks", "partition.alpha", {})
    lines = sweeps.sweep_lines(fedot, "method.config.blocks")
    charts = (
        parallel_chart(families, Theme(), "Accuracy", "%"),
        sweep_heatmap(grid, Theme(), "Accuracy", (0, 100), "%"),
        sweep_line_chart(lines, Theme(), "method.config.blocks", "Accuracy", "%"),
    )
    assert not [chart.alt for chart in charts if "best" in chart.alt]
    said = sweeps.findings(comparison, fedot, "personal")
    assert len(said) == 2, "one per partition: values on other clients are not compared"
    assert all("alpha" in text and "fewer than 3 seeds" in text for text in said)
    assert sweeps.findings(comparison, families[1], "personal") == [], "PromptFL has one row per partition"


def test_values_are_ordered_by_size_words_after_numbers():
    assert sweeps.sorted_values(["b", 10, 2.5, None, "a", 10]) == [None, 2.5, 10, "a", "b"]
    assert sweeps.sorted_values([("b", "a"), 3, ("a",)]) == [3, ("a",), ("b", "a")]


def test_figures_show_the_means_of_the_table(swept):
    families = families_of(swept)
    fedot = families[0]
    (line, *_) = sweeps.sweep_lines(fedot, "partition.alpha")
    chart = sweep_line_chart([line], Theme(), "partition.alpha", "Personal accuracy", "%")
    assert list(chart.figure.data[0].y) == [s.mean for s in line.stats]
    assert list(chart.figure.data[0].error_y.array) == [s.std for s in line.stats]
    chart = parallel_chart(families, Theme(), "Personal accuracy", "%")
    dimensions = {d.label: d for d in chart.figure.data[0].dimensions}
    assert set(dimensions) == {"Method", "Blocks", "Dirichlet alpha", "Personal accuracy"}
    means = [p.stat.mean for f in families for p in f.rows]
    assert list(dimensions["Personal accuracy"].values) == means
    assert list(dimensions["Dirichlet alpha"].ticktext) == ["0.1", "0.5"]
    assert list(dimensions["Blocks"].ticktext) == ["n/a", "1", "2"], "PromptFL has no blocks"
    assert f"from {min(means):.1f} to {max(means):.1f} %." in chart.alt


def test_methods_over_one_field_share_a_chart_with_zero_shot_as_its_level_line(db):
    """Shots are settings of their own, yet the page and the report draw them once, with the first."""
    content = an_experiment({"data.shots": (1, 4)}, ("zero-shot", "promptfl", "fedot")).model_dump()
    content["data"] |= {"shots": 1, "shots_scope": "federation"}
    fill.done(db, parse(content))
    store = Store(db)
    comparison = compare(store, [1])
    families = sweep_view.families_of(comparison, "personal")
    joint, alone = sweeps.joint_families(families)
    assert list(joint) == ["data.shots"] and not alone
    figure = sweep_view.joint_figure(families, "data.shots", "personal")
    assert figure.title == "All methods over shots per class of all clients together"
    drawn = figure.chart(Theme(dark=False), 800).figure
    by_name = {trace.name: list(trace.y) for trace in drawn.data}
    means = {(g.method, g.config.data.shots): g.stats["personal"].mean for g in comparison.rows}
    assert by_name == {
        name: [means[method, 1], means[method, 4]]
        for name, method in (("Zero-shot CLIP", "zero-shot"), ("PromptFL", "promptfl"), ("FedOT", "fedot"))
    }
    first, second = comparison.settings
    source = ViewSource(store, comparison, "personal")
    assert [f.name for f in sweep_view.figures(source, first)] == ["sweep-all-data.shots", "sweep"]
    assert sweep_view.figures(source, second) == []


def test_a_chart_over_a_field_has_the_rows_that_differ_in_it_alone_as_the_table_has_them(db: Path) -> None:
    """Runs that hold out another domain are not further seeds, and other partitions other points."""
    sweep = {"methods.fedot.blocks": (1, 4), "partition.alpha": (0.1, 0.5)}
    fill.done(db, an_experiment(sweep, ("fedot",)).model_copy(update={"held_out": fill.CLIENTS[:2]}))
    store, chart = Store(db), FieldChart("Degrees of freedom", "degrees_of_freedom", "blocks", "r")
    compared = compare(store, [1])
    with writing(db) as database:
        for row in compared.rows:
            for result in row.runs:
                values = (result.run.id, chart.value, 2016 / row.fields["method.config.blocks"])
                database.execute(
                    "INSERT INTO diagnostics(run_id, name, round, value) VALUES (?, ?, 1, ?)",
                    values,
                )
    of_setting = compared.rows_in(compared.rows[-1].setting)
    found = rows_by_field(store, compared, of_setting[0].runs[0].run, chart)
    assert [(row.setting, row.recorded) for row in found] == [(1, 2016), (4, 504)]
    assert {row.accuracy for row in found} == {row.stats["personal"] for row in of_setting}
    seeds = {result.run.seed for result in of_setting[0].runs}
    assert [row.accuracy.n for row in found] == 2 * [len(seeds)] and len(of_setting[0].runs) == 2 * len(seeds)
