"""Files hold the numbers of the screen and of the database."""

import io
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedcore.base.errors import FedLensError
from fedcore.config import DataConfig, MethodEntry, PartitionConfig
from fedcore.results import exports as tables
from fedcore.results import sharing
from fedcore.results.comparison import compare, significance
from fedcore.results.finding import finding
from fedcore.results.metrics import METRICS, value_per_seed
from fedcore.results.statistics import Stat, spread
from fedcore.results.summary import MARKS_NOTE, best_and_second, summarise
from fedcore.share.checked import checked_comparison
from fedcore.store import Recorder, Store, rounds
from tests.support import fill
from tests.support.exported import exported, table_of


def test_summary_has_the_numbers_of_the_comparison(filled: Path) -> None:
    """Tidy: a row per method and metric, machine names, numbers that pandas reads as such."""
    found = compare(Store(filled), [1], "last")
    frame = pd.read_csv(io.StringIO(exported(Store(filled), [1], baseline="PromptFL")))
    assert len(frame) == sum(len(g.stats) for g in found.rows)
    assert not frame.duplicated(["label", "metric"]).any()
    assert set(frame["metric"]) <= set(METRICS) and set(frame["rule"]) == {"last"}
    for group in found.rows:
        for metric, stat in group.stats.items():
            row = frame.set_index(["label", "metric"]).loc[(group.label, metric)]
            assert row["mean"] == pytest.approx(stat.mean) and row["std"] == pytest.approx(stat.std, abs=1e-6)
            assert (row["n"], row["baseline"], row["method"]) == (3, "PromptFL", group.method)
    first = frame.iloc[0]
    assert (first["experiment"], first["data"], first["backbone"], first["partition"], first["clients"]) == (
        "Rotated digits, made up",
        "rotated-digits",
        "mini-vit",
        "domain",
        6,
    )
    numbers = ("clients", "rounds", "mean", "std", "n", "difference", "pairs", "p", "p_holm")
    assert all(pd.api.types.is_numeric_dtype(frame[name]) for name in numbers)
    assert frame["held_out"].dtype == bool


def test_configs_and_domains_join_the_summary_by_row(filled: Path) -> None:
    found = compare(Store(filled), [1])
    summary, domains, configs = (
        pd.read_csv(io.StringIO(exported(Store(filled), [1], table)))
        for table in ("summary", "domains", "configs")
    )
    assert len(configs) == len(found.rows) and configs["row"].is_unique
    joined = summary.merge(configs, on="row", suffixes=("", "_config"))
    assert len(joined) == len(summary)
    ours = next(g for g in found.rows if g.label == "FedOT")
    fields = configs.set_index("label").loc["FedOT"]
    assert fields["method.config.lr"] == ours.fields["method.config.lr"]
    assert {name for g in found.rows for name in g.fields} <= set(configs.columns)
    wide = domains.set_index(["label", "breakdown"])
    for group in found.rows:
        for name, stat in group.breakdowns["domain"].items():
            assert wide.loc[(group.label, "domain"), name] == pytest.approx(stat.mean)
            assert wide.loc[(group.label, "domain"), f"{name}_std"] == pytest.approx(stat.std)
    assert set(domains["row"]) == set(configs["row"])


def test_rounds_are_the_same_bytes_in_parts_of_any_size(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = exported(Store(filled), [2], "rounds")
    monkeypatch.setattr(rounds, "_AT_ONCE", 5)
    with checked_comparison(Store(filled), [2]) as checked:
        parts = list(tables.rounds_csv(checked.store, checked.comparison))
    assert len(parts) > 200 and max(part.count("\n") for part in parts) == 5
    assert "".join(parts) == whole


def test_rounds_of_a_damaged_store_are_refused(db: Path) -> None:
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    store = Store(db)
    comparison = compare(store, [1])
    for damage in ("UPDATE accuracy SET total=0, correct=0", "DELETE FROM entities WHERE entity=1"):
        with closing(sqlite3.connect(db)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints=ON")
            connection.execute(damage)
        with pytest.raises(FedLensError, match="has no samples, or belongs to no model"):
            list(tables.rounds_csv(store, comparison))


def test_rounds_hold_every_cell_with_counts(filled: Path) -> None:
    table = table_of(exported(Store(filled), [2], "rounds"))
    runs = {r.id: r for r in Store(filled).runs.of_experiments([2])}
    cells = Store(filled).cells
    parts = (part for s, p in ((2, 1), (2, 0), (1, 1)) for part in cells.of_runs(runs, s, p))
    expected = sum(map(len, parts))
    assert len(table) == expected > 1000
    for row in table[:: len(table) // 50]:
        assert float(row["accuracy"]) == pytest.approx(
            100 * int(row["correct"]) / int(row["total"]), abs=0.005
        )


def test_formulas_are_guarded_and_numbers_are_not() -> None:
    starts = ("=", "+", "-", "@", "\t", "\r", "\n", " =", "\t=", "\uff1d", " \uff20")
    for text in ("=HYPERLINK(1)", "@x", "-cmd|' /C calc'!A0", *(f"{start}1+1" for start in starts)):
        assert tables.guarded(text) == f"'{text}"
    for number in ("-3.50", "+0.25", "-1e-05", "12.50", "+3", 5):
        assert tables.guarded(number) == number


def test_a_label_that_is_a_formula_leaves_as_text(db: Path) -> None:
    entry = MethodEntry(name="fedot", label="=1+1")
    number = fill.done(db, fill.an_experiment("@evil", methods=(entry,), seeds=(1,), rounds=2))
    assert {r["label"] for r in table_of(exported(Store(db), [number]))} == {"'=1+1"}
    table = table_of(exported(Store(db), [number], "rounds"))
    assert {(r["label"], r["experiment"]) for r in table} == {("'=1+1", "'@evil")}


def test_latex_marks_best_and_second(filled: Path) -> None:
    text = sharing.summary_latex(summarise(compare(Store(filled), [1])))
    found = {g.label: g.stats["personal"] for g in compare(Store(filled), [1]).rows}
    assert rf"\textbf{{{found['FedOT'].mean:.2f}}} {{\scriptsize $\pm$ {found['FedOT'].std:.2f}}}" in text
    assert rf"\underline{{{found['FedAlign'].mean:.2f}}}" in text
    assert rf"last round, mean $\pm$ sample standard deviation over seeds. {MARKS_NOTE}}}" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    assert sharing.tex("a_b & 5%") == r"a\_b \& 5\%"


def test_latex_marks_what_its_two_decimals_show(filled: Path) -> None:
    """82.64 and 82.63 are equal on the screen, not in the file."""
    found = compare(Store(filled), [1])
    means = iter((91.9, 82.64, 82.63, 70.0, 60.0))
    rows = tuple(replace(g, stats={"personal": Stat(next(means), 0.1, 3)}) for g in found.rows)
    assert [*best_and_second(rows, "personal").values()] == ["best", "second", "second"]
    text = sharing.summary_latex(summarise(replace(found, rows=rows)))
    assert r"\underline{82.64}" in text and r"\underline{82.63}" not in text
    one = sharing.summary_latex(summarise(replace(found, rows=rows), digits=1))
    assert one.count(r"\underline{82.6}") == 2 and "82.63" not in one


def test_latex_has_differences_with_their_p_and_the_finding(filled: Path) -> None:
    summary = summarise(compare(Store(filled), [1]), "PromptFL", digits=1)
    text = sharing.summary_latex(summary)
    assert r"$\Delta$ Personal & $p$ & $n$" in text and "difference from PromptFL in points" in text
    for row in summary.tables[0].rows:
        (line,) = (ln for ln in text.splitlines() if ln.strip().startswith(f"{{{row.row.label}}}"))
        difference, p = line.split(" & ")[-3:-1]
        cell = row.differences["personal"]
        if cell.is_baseline:
            assert (difference, p) == ("--", "--")
        else:
            assert cell.test is not None and cell.test.adjusted is not None
            assert difference == f"${cell.text(1)}$" + "$^*$" * cell.significant
            assert p == ("$<0.001$" if cell.test.adjusted < 0.001 else f"{cell.test.adjusted:.3f}")
    assert f"% {finding(summary, summary.tables[0])}" in text.splitlines()


def test_latex_tables_have_labels_of_their_own(filled: Path) -> None:
    text = sharing.summary_latex(summarise(compare(Store(filled), [1], "best")))
    assert r"\label{tab:rotated-digits-by-domain-mini-vit-best}" in text
    assert text.index(r"\caption") < text.index(r"\label") < text.index(r"\begin{tabular}")


def test_latex_of_any_label_is_one_line_that_compiles(db: Path) -> None:
    labels = ("[a] \\ {b}", "*c_d #1 & 50 % ~^", 'e\n\nf <|"$')
    plain = MethodEntry(name="fedot")
    entries = [
        plain.model_copy(update={"label": label, "config": {"blocks": 2**i}})
        for i, label in enumerate(labels)
    ]
    experiment = fill.an_experiment(methods=(plain,), seeds=(1,), rounds=1)
    number = fill.done(db, experiment.model_copy(update={"methods": tuple(entries)}))
    lines = sharing.summary_latex(summarise(compare(Store(db), [number]))).splitlines()
    assert "last round, one seed." in next(line for line in lines if r"\caption" in line)
    found = [line.partition(" & ")[0].strip() for line in lines[lines.index(r"    \midrule") + 1 :][:3]]
    assert found == [
        r"{[a] \textbackslash{} \{b\}}",
        r"{*c\_d \#1 \& 50 \% \textasciitilde{}\textasciicircum{}}",
        r"{e f \textless{}\textbar{}''\$}",
    ]


def test_what_a_row_lacks_leaves_with_its_numbers(db: Path) -> None:
    """Runs of before written descriptions were kept: the screen marks the row, and so do the files."""
    elsewhere = DataConfig(name="folder", root="/a")
    number = fill.done(db, fill.an_experiment(methods=("zero-shot", "fedalign"), rounds=2, data=elsewhere))
    why = "recorded before written descriptions were kept with a run"
    lines = sharing.summary_latex(summarise(compare(Store(db), [number]))).splitlines()
    marked = [line for line in lines if r"$^\dagger$" in line]
    assert marked[0].startswith(r"    {FedAlign}$^\dagger$ & ") and why in marked[1] and len(marked) == 2
    assert lines.index(marked[1]) == lines.index(r"  \end{tabular}") + 1
    table = table_of(exported(Store(db), [number], baseline="Zero-shot CLIP", test="wilcoxon"))
    assert {(r["label"], why in r["remark"]) for r in table} == {
        ("Zero-shot CLIP", False),
        ("FedAlign", True),
    }
    tested = [r["remark"] for r in table if r["pairs"] == "3"]
    assert tested and all(r.startswith("n = 3 cannot reach below 0.25; recorded before") for r in tested)


def test_latex_and_csv_count_the_seeds_of_each_mean(filled: Path) -> None:
    found = compare(Store(filled), [1])
    group = next(g for g in found.rows if g.label == "FedOT")
    first, *rest = group.runs
    runs = (replace(first, values={**first.values, "global": None}), *rest)
    group = replace(group, breakdowns={})
    stats = {m: spread(value_per_seed(runs, m).values()) for m in ("personal", "global")}
    changed = replace(found, rows=(replace(group, runs=runs, stats=stats),))
    last = next(line for line in sharing.summary_latex(summarise(changed)).splitlines() if "FedOT" in line)
    assert last.endswith(r"& 3/2 \\")
    table = table_of(tables.rows_csv(tables.summary_rows(summarise(changed))))
    assert [(r["n"], r["seeds"]) for r in table] == [("3", "1 2 3"), ("2", "2 3")]


def test_json_has_numbers_and_nulls_and_configs_that_repeat_the_runs(filled: Path) -> None:
    content = json.loads(exported(Store(filled), [1], "summary", "json"))
    assert len(content["runs"]) == 15
    first = content["runs"][0]
    assert first["config"] == Store(filled).runs.config(first["id"]).model_dump(mode="json")
    for row in content["summary"]:
        assert isinstance(row["mean"], float) and isinstance(row["n"], int) and row["baseline"] is None
        assert row["printed"] is None and row["difference"] is None
    assert "" not in [value for row in content["summary"] + content["breakdowns"] for value in row.values()]


def test_breakdowns_have_every_domain_and_client(filled: Path) -> None:
    group = next(g for g in compare(Store(filled), [1]).rows if g.label == "SDFed")
    table = table_of(exported(Store(filled), [1], "breakdowns"))
    for part, stats in group.breakdowns.items():
        found = {r["name"]: r for r in table if (r["label"], r["breakdown"]) == ("SDFed", part)}
        assert found.keys() == stats.keys()
        for name, stat in stats.items():
            assert float(found[name]["mean"]) == pytest.approx(stat.mean)
            assert float(found[name]["std"]) == pytest.approx(stat.std)


def test_summary_has_the_test_that_the_page_shows(filled: Path) -> None:
    found = compare(Store(filled), [1])
    pinned = next(g for g in found.rows if g.label == "PromptFL")
    for test in ("t", "wilcoxon"):
        tested = significance(found.rows, pinned, "personal", test)
        table = table_of(exported(Store(filled), [1], baseline="PromptFL", test=test))
        for group in found.rows:
            (row,) = [r for r in table if (r["label"], r["metric"]) == (group.label, "personal")]
            if group.key == pinned.key:
                assert (row["p"], row["test"]) == ("", "")
                continue
            paired = tested[group.key]
            assert row["test"] == test and row["pairs"] == "3"
            assert float(row["p"]) == pytest.approx(paired.p, rel=0.01)
            assert float(row["p_holm"]) == pytest.approx(paired.adjusted, rel=0.01)
            assert row["remark"] == paired.remark
    assert "n = 3 cannot reach below 0.25" in {r["remark"] for r in table}


def test_clients_are_counted_by_seed_since_each_may_draw_other_ones(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    for seed, names in ((1, "abc"), (2, "cde")):
        with Recorder(db, method="own", seed=seed, dataset="rotated-digits", experiment="E") as run:
            run.round(1, accuracy={(name, name): (1, 2) for name in names})
    (row,) = compare(Store(db), [1]).rows
    assert len(row.breakdowns["client"]) == 5
    assert {r["clients"] for r in table_of(exported(Store(db), [1]))} == {"3"}


@pytest.mark.parametrize(("unseen", "clients"), [(0.0, "1000"), (0.25, "750")])
def test_clients_beyond_those_that_are_evaluated_are_counted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unseen: float, clients: str
) -> None:
    db = tmp_path / "runs.db"
    monkeypatch.setattr("fedcore.results.exports.MAX_EVALUATED_CLIENTS", 4)
    partition = PartitionConfig(kind="iid", clients=1000, unseen=unseen)
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1, partition=partition)
    _, (writer,) = fill.start(db, experiment)
    fill.train(writer, clients=[f"client {i}" for i in range(4)])
    assert {r["clients"] for r in table_of(exported(Store(db), [1]))} == {clients}


def test_a_difference_is_paired_as_its_test_is(tmp_path: Path) -> None:
    """A row that the baseline beats on their common seeds has the higher mean, by seeds of its own."""
    db = tmp_path / "runs.db"
    correct = {"base": (50, 62, 55), "luckier": (40, 51, 46, 99, 98), "apart": (None,) * 5 + (70, 71, 72)}
    for method, counts in correct.items():
        for seed, count in enumerate(counts, 1):
            if count is not None:
                with Recorder(db, method=method, seed=seed, dataset="rotated-digits", experiment="E") as run:
                    run.round(1, accuracy={("a", "a"): (count, 100)})
    written = table_of(exported(Store(db), [1], baseline="base"))
    table = {r["label"]: r for r in written if r["metric"] == "personal"}
    assert float(table["luckier"]["mean"]) > float(table["base"]["mean"])
    assert float(table["luckier"]["difference"]) == -10 and float(table["luckier"]["p_holm"]) < 0.05
    assert (table["apart"]["difference"], table["apart"]["pairs"]) == ("", "0")
    assert table["apart"]["remark"] == "no seed in common"
    tex = sharing.summary_latex(summarise(compare(Store(db), [1]), "base"))
    assert r"$-10.00$$^*$ & 0.003 & 5 \\" in tex and "over the seeds that both rows have" in tex


def test_clients_have_their_rounds(filled: Path) -> None:
    table = table_of(exported(Store(filled), [1], "clients"))
    runs = Store(filled).runs.of_experiments([1])
    assert len(table) == len(runs) * 6 * 11, "six clients in rounds 0 to 10"
    run = next(r for r in runs if r.method == "fedot")
    (row,) = [r for r in table if (r["run"], r["round"], r["client"]) == (str(run.id), "4", "30°")]
    (part,) = [c for c in Store(filled).rounds.clients(run.id) if (c.round, c.client) == (4, 3)]
    (score,) = [o for o in Store(filled).cells.own_accuracy(run.id) if (o.round, o.client) == (4, 3)]
    assert (row["took_part"], row["steps"], row["bytes_up"]) == ("1", str(part.steps), str(part.bytes_up))
    assert (row["own_correct"], row["own_total"]) == (str(score.correct), str(score.total))
    assert (row["domain"], row["training_samples"]) == ("30°", "200")
    untrained = next(r for r in table if r["round"] == "0")
    assert (untrained["took_part"], untrained["steps"], untrained["train_loss"]) == ("0", "", "")


def test_file_names_are_safe(filled: Path) -> None:
    experiment = replace(Store(filled).experiments.get(1), name='../=<b>"Try it"</b> 😀')
    name = tables.file_name([experiment], "summary", "csv")
    assert name.startswith("fedlens-b-try-it-b-summary-")
    assert name.endswith(f"-{tables.fingerprint([experiment])}.csv")


def test_the_mark_of_a_file_changes_with_the_data(db: Path) -> None:
    first = fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2))
    _, (writer,) = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(2,), rounds=2))
    both = [first, Store(db).runs.get([writer.run_id])[0].experiment_id]

    def mark() -> str:
        return tables.fingerprint([Store(db).experiments.get(i) for i in both])

    before = mark()
    assert before == mark() and len(before) == 8
    fill.train(writer)
    assert mark() != before


def test_a_baseline_that_is_not_there_is_refused(filled: Path) -> None:
    with pytest.raises(FedLensError, match="no method 'FedAvg' in the table; there are: FedOT, FedAlign"):
        exported(Store(filled), [1], baseline="FedAvg")
