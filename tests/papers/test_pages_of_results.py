"""The pages of results are written from recorded runs: figures checked by hand on a small database."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.base.events import BEFORE_AGGREGATION, Diagnostic, Entity, RoundFinished, Started
from fedcore.results.specification import Specification
from fedcore.results.statistics import Stat
from fedcore.store import Store
from fedcore.store.liveness import new_owner
from fedcore.store.writer import RunWriter
from tests.support import fill
from tools.docs import ablations as ablations_doc
from tools.docs import blocks, forest
from tools.docs import generalisation as generalisation_doc
from tools.docs import openness as openness_doc
from tools.docs.paired import MOST_SEEDS, detectable, paired, seeds_needed
from tools.docs.recorded import newest

SMALL = """
name = "Small"
rounds = 1
seeds = [1, 2, 3]
[data]
name = "rotated-digits"
shots = 4
[backbone]
name = "mini-vit"
[[methods]]
name = "fedot"
label = "FedOT"
[[methods]]
name = "fedot"
label = "FedOT, linear"
config = { local_transform = "linear" }
"""
PAGE = """Kept above.

<!-- setting: small -->
<!-- end -->

<!-- table: small -->
| old |
<!-- end -->
Kept below.
"""
WRITTEN = """Kept above.

<!-- setting: small -->
`OMP_NUM_THREADS=1 fedlens run --preset ablations/small --db ablations.db`

6 runs: rotated-digits, 4 training images of a class and client, 200 test images, 1 rounds.
CPU, 1 thread; torch 2.
<!-- end -->

<!-- table: small -->
![Personal accuracy (numbers: measured/small-1.csv)](measured/small-1.svg)

![Personal accuracy, pairs (numbers: measured/small-2.csv)](measured/small-2.svg)

![Personal accuracy, before aggregation (numbers: measured/small-3.csv)](measured/small-3.svg)

![Personal accuracy, before aggregation, pairs (numbers: measured/small-4.csv)](measured/small-4.svg)

![Global model (numbers: measured/small-5.csv)](measured/small-5.svg)

![Global model, pairs (numbers: measured/small-6.csv)](measured/small-6.svg)
<!-- end -->
Kept below.
"""
DIFFERENCE = "difference (95 % interval),could have seen,seeds for half a point"
TABLES = [
    f"""variant,accuracy,{DIFFERENCE},largest condition number,cosine of updates,n
FedOT,55.0 ± 5.0,,,,4.00 ± 2.00,0.25 ± 0.00,3
"FedOT, linear",59.0 ± 6.0,+4.0 (+1.5 to +6.5),3.3,34,4.00 ± 2.00,0.25 ± 0.00,3
""",
    f"""pair,{DIFFERENCE}
"FedOT, linear, minus FedOT",+4.0 (+1.5 to +6.5),3.3,34
""",
    f"""variant,accuracy,{DIFFERENCE},n
FedOT,50.0 ± 5.0,,,,3
"FedOT, linear",54.0 ± 6.0,+4.0 (+1.5 to +6.5),3.3,34,3
""",
    f"""pair,{DIFFERENCE}
"FedOT, linear, minus FedOT",+4.0 (+1.5 to +6.5),3.3,34
""",
    f"""variant,accuracy,{DIFFERENCE},n
FedOT,30.0 ± 0.0,,,,3
"FedOT, linear",30.0 ± 0.0,0.0 (0.0 to 0.0),,,3
""",
    f"""pair,{DIFFERENCE}
"FedOT, linear, minus FedOT",0.0 (0.0 to 0.0),,
""",
]
"""Client 1 of FedOT has 20, 30 and 40 of 100, that of FedOT, linear 26, 38 and 50; client 2 has 80 always."""


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "ablations"
    folder.mkdir()
    (folder / "small.toml").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(ablations_doc, "EXAMPLES", folder)
    monkeypatch.setattr(forest, "MEASURED", tmp_path / "measured")
    measure = ablations_doc.Measure
    measures = (measure("personal"), measure("personal", before=True), measure("global"))
    monkeypatch.setattr(ablations_doc, "MEASURES", {"small": measures})
    monkeypatch.setattr(ablations_doc, "PAIRS", {"small": (("FedOT, linear", "FedOT"),)})
    return folder


def own_round(label: str, seed: int, held_out: str | None = None) -> RoundFinished:
    correct = [10 + 10 * seed + ((4 + 2 * seed) if "linear" in label else 0), 80]
    cells = [fill.cell(c, c, correct[c - 1], 100) for c in (1, 2)]
    cells += [fill.cell(0, c, 30, 100) for c in (1, 2)]
    trained = [correct[0] - 10, correct[1]]
    cells += [fill.cell(c, c, trained[c - 1], 100, stage=BEFORE_AGGREGATION) for c in (1, 2)]
    recorded = [
        Diagnostic("condition_number", 2.0 * seed + 10 * (held_out == "rot15"), client_a=1),
        Diagnostic("condition_number", 1.0, client_a=2),
        Diagnostic("gradient_conflict", 0.25),
    ]
    return RoundFinished(round=1, cells=tuple(cells), diagnostics=tuple(recorded))


def recorded(db: Path, text: str = SMALL, threads: tuple[int, ...] = (1,), runs: int | None = None) -> Path:
    """Some or all runs of an experiment, with the threads of each in turn."""
    Store(db).prepare()
    created = Store(db).experiments.create(config.loads(text))
    for i in range(len(created.run_ids) if runs is None else runs):
        writer = RunWriter(Store(db).jobs.claim(new_owner(), "cpu", experiment_id=created.experiment_id))
        writer.claim.begin()
        clients = [Entity(i + 1, "client", name, domain=name) for i, name in enumerate("ab")]
        entities = (Entity(0, "global", "global"), *clients)
        place = {"device": "cpu", "threads": threads[i % len(threads)], "torch": "2", "platform": "Linux"}
        writer.started(Started(entities=entities, rounds_total=1, environment=place))
        run = fill.config_of(writer)
        writer.write_round(own_round(run.method.label, run.seed, run.held_out))
        writer.claim.finish("done")
    return db


def csv_of(folder: Path, number: int = 1) -> str:
    return (folder.parent / "measured" / f"small-{number}.csv").read_text("utf-8")


def test_tables_hold_means_and_spreads_and_the_prose_stays(small, tmp_path):
    db = recorded(tmp_path / "runs.db")
    assert ablations_doc.render(PAGE, Store(db)) == WRITTEN
    assert [csv_of(small, i) for i in range(1, 7)] == TABLES
    assert ablations_doc.render(WRITTEN, Store(db)) == WRITTEN


def test_a_figure_holds_every_number_and_draws_intervals_in_bold_where_they_exclude_zero(small, tmp_path):
    ablations_doc.render(PAGE, Store(recorded(tmp_path / "runs.db")))
    picture = ElementTree.fromstring((small.parent / "measured" / "small-1.svg").read_text("utf-8"))
    texts = {node.text: node.get("font-weight") for node in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {cell for line in csv.reader(csv_of(small).splitlines()) for cell in line} - {""} <= set(texts)
    assert texts["+4.0 (+1.5 to +6.5)"] == "600" and texts["4.00 ± 2.00"] is None
    # one scale: 0 lies left of the interval by 1.5 of its 5 points
    zero, interval = picture.findall("{http://www.w3.org/2000/svg}path")
    at = float(zero.get("d").removeprefix("M").split(" ")[0])
    start, end = float(interval.get("d")[1:].split(" ")[0]), float(interval.get("d").split("H")[1])
    assert (start - at) / (end - start) == pytest.approx(1.5 / 5, abs=0.01)


def test_held_out_domains_of_a_seed_are_no_spread_over_seeds(small, tmp_path):
    """The condition numbers are 2, 4, 6 without the one domain and 12, 14, 16 without the other."""
    text = SMALL.replace("seeds =", 'held_out = ["rot0", "rot15"]\nseeds =')
    (small / "small.toml").write_text(text, encoding="utf-8")
    page = ablations_doc.render(PAGE, Store(recorded(tmp_path / "runs.db", text)))
    assert "measured/small-1.csv" in page
    assert "FedOT,55.0 ± 5.0,,,,9.00 ± 2.00,0.25 ± 0.00,3\n" in csv_of(small)


def test_the_newest_runs_of_the_file_count(small, tmp_path):
    db = recorded(tmp_path / "runs.db", threads=(2,))
    recorded(db)
    recorded(db, SMALL.replace('"Small"', '"Another"'), threads=(3,))
    assert "CPU, 1 thread; " in ablations_doc.render(PAGE, Store(db))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": (1, 2)}, "the runs differ in device, threads, platform or versions"),
        ({"runs": 5}, "is incomplete: it lacks FedOT"),
        ({"text": SMALL.replace("[1, 2, 3]", "[1, 2, 4]")}, "small.toml has changed since it was run"),
        ({"text": SMALL.replace('"Small"', '"Another"')}, "no experiment 'Small'; make it with"),
    ],
    ids=["threads", "unfinished", "other-seeds", "another-experiment"],
)
def test_runs_that_do_not_make_the_report_are_refused(small, tmp_path, options, message):
    db = recorded(tmp_path / "runs.db", **options)
    with pytest.raises(FedLensError, match=message):
        ablations_doc.render(PAGE, Store(db))


def test_a_missing_database_and_a_wrong_marker_are_named(small, tmp_path):
    with pytest.raises(FedLensError, match="no database at .*none.db; make it with"):
        ablations_doc.render(PAGE, Store(tmp_path / "none.db"))
    db = recorded(tmp_path / "runs.db")
    with pytest.raises(FedLensError, match="no experiment of ablations is named 'sdfed'; there are small"):
        ablations_doc.render("<!-- table: sdfed -->\n<!-- end -->", Store(db))


def test_only_the_blocks_that_are_asked_for_are_written(small, tmp_path):
    db = recorded(tmp_path / "runs.db")
    page = PAGE.replace("table: small", "table: another")
    assert (
        ablations_doc.render(page, Store(db), ["small"])
        == WRITTEN[: WRITTEN.index("<!-- table")] + (page[page.index("<!-- table") :])
    )


def blocks_of(page: Path, *kinds: str) -> list[list[str]]:
    """The names of the blocks of some kinds in a page."""
    found: dict[str, list[str]] = {kind: [] for kind in kinds}
    named = {kind: lambda name, of=of: of.append(name) or "" for kind, of in found.items()}
    blocks.fill(page.read_text("utf-8"), named)
    return list(found.values())


def test_every_table_of_the_page_has_its_setting_and_its_experiment():
    names = sorted(path.stem for path in ablations_doc.EXAMPLES.glob("*.toml"))
    settings, tables = blocks_of(ablations_doc.PAGE, "setting", "table")
    assert settings == tables and set(tables) <= set(names) and tables
    assert sorted(ablations_doc.MEASURES) == names


def test_differences_and_what_they_could_have_seen():
    """Checked with a table of Student's t: t(0.975, 4) = 2.776."""
    found = paired([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764 * 2.5**0.5 / 5**0.5
    assert (found.mean, found.n) == (3.0, 5)
    assert (found.low, found.high) == (pytest.approx(3 - half, abs=1e-3), pytest.approx(3 + half, abs=1e-3))
    assert found.detectable == pytest.approx(detectable(2.5**0.5, 5))
    assert paired([1.0]) is None
    n = seeds_needed(1.0, 0.5)
    assert n == 34, "as G*Power has it for d = 0.5"
    assert detectable(1.0, n) <= 0.5 < detectable(1.0, n - 1)
    assert seeds_needed(100.0, 0.5) == MOST_SEEDS


@pytest.mark.parametrize("n", [2, 3, 5])
def test_what_could_have_been_seen_is_found_in_four_of_five_repetitions(n):
    drawn = np.random.default_rng(n).normal(detectable(2.0, n), 2.0, (100_000, n))
    assert (stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.005)


def test_the_tables_of_generalisation_subtract_the_first_method_or_another_metric(small, tmp_path):
    """The personal accuracies are 50, 55, 60 and 53, 59, 65; the global model has 30 always."""
    db = Store(recorded(tmp_path / "runs.db"))
    found = newest(db, small / "small.toml")
    question = generalisation_doc.Question("small", "Title", ("personal", "global"), "personal")
    _, (first, second) = generalisation_doc.table(question, found)
    assert first == ["FedOT", "55.0 ± 5.0", "30.0 ± 0.0", "", "", "3"]
    assert second[3:] == ["**+4.0 (+1.5 to +6.5)**", "3.3", "3"]
    headings, (first, _) = generalisation_doc.table(
        generalisation_doc.Question("small", "Title", ("personal",), "personal", "global"), found
    )
    assert headings[:3] == ["method", "Personal", "Personal minus Global (95 % interval)"]
    assert first == ["FedOT", "55.0 ± 5.0", "**+25.0 (+12.6 to +37.4)**", "16.3", "3"]


def test_every_table_of_generalisation_has_its_question_and_its_experiment():
    studies, answers = blocks_of(generalisation_doc.PAGE, "study", "answer")
    assert sorted(answers) == sorted(generalisation_doc.QUESTIONS)
    files = {path.stem for path in generalisation_doc.EXAMPLES.glob("*.toml")}
    assert set(studies) == files == {q.experiment for q in generalisation_doc.QUESTIONS.values()}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(2.0, 1.0), (3.0, 4.0)], "survives"),
        ([(2.0, 3.0), (3.0, 1.0)], "same sign, not decided"),
        ([(2.0, None), (3.0, 1.0)], "same sign, not decided"),
        ([(2.0, 1.0), (-3.0, 1.0)], "depends, decided both ways"),
        ([(2.0, 1.0), (-3.0, 4.0)], "depends"),
        ([(2.0, 5.0), (-3.0, 4.0)], "depends, never decided"),
        ([(-2.0, 1.0), (-3.0, 4.0)], "not seen"),
    ],
)
def test_a_printed_difference_survives_only_with_its_sign_under_every_reading(
    found: list[tuple[float, float | None]], expected: str
) -> None:
    """The first reading is that of FedLens; a value is a mean and half its interval."""
    specs = [Specification((i,), Stat(mean, 1.0, 3), half) for i, (mean, half) in enumerate(found)]
    assert openness_doc.verdict(specs, printed=0.5) == expected
    opposite = [Specification(s.reading, Stat(-s.stat.mean, 1.0, 3), s.half) for s in specs]
    assert openness_doc.verdict(opposite, printed=-0.5) == expected


def test_the_page_of_openness_has_a_section_for_every_question() -> None:
    page = openness_doc.PAGE.read_text(encoding="utf-8")
    for name, question in openness_doc.QUESTIONS.items():
        assert f"<!-- openness: {name} -->\n```bash\n{question.command}\n```" in page
        assert (openness_doc.PICTURES / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
