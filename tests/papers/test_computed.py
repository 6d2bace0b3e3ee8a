"""Counts and times that papers print: counted without a run, or measured where runs record them."""

import pytest

from fedcore.papers.cells import Availability, table_cells
from fedcore.papers.layout import table_latex, tables
from fedcore.papers.published import load
from fedcore.papers.recorded import RecordedRuns
from fedcore.papers.reproductions import reproductions
from fedcore.store import Store
from tests.support.papers import find, preset, train, value_of
from tools.docs import computed


def test_counts_need_no_run_and_are_those_of_the_formulas(db) -> None:
    values = [v for v in load("fedalign") if v.table == "4"]
    values += [v for v in load("feddeap") if v.metric.startswith("Comm.")]
    cells = table_cells(RecordedRuns(Store(db), set()), values, Availability({}))
    assert all(
        cell.status == cell.seeds_text == "computed" and cell.stat.std is None for cell in cells.values()
    )
    of_fedalign = {v: cell for v, cell in cells.items() if v.paper == "fedalign"}
    assert {cell.judgement for cell in of_fedalign.values()} == {"comparable"}
    assert all(cell.stat.text(3) == v.text for v, cell in of_fedalign.items())
    classes, tokens, width, hidden = 126, 16, 512, 256
    prompts = classes * tokens * width
    networks = 2 * (2 * width * hidden + hidden + width)
    ours = {v.method: round(1e6 * cell.stat.mean) for v, cell in cells.items() if v.paper == "feddeap"}
    assert (ours["PromptFL"], ours["FedDEAP"]) == (prompts, prompts + networks)
    table = next(table for table in tables("feddeap") if table.name == "feddeap-4")
    cells = table_cells(RecordedRuns(Store(db), set()), table.values, Availability({}))
    assert table_latex(table, cells).count(r"$^\dagger$ (computed)") == 4, "the reading matters there too"


@pytest.mark.slow
def test_the_stored_counts_are_those_of_the_code() -> None:
    for file, text in computed.render().items():
        assert file.read_text(encoding="utf-8") == text, "run python -m tools.docs"


def test_times_are_read_from_the_rounds(db) -> None:
    """Made-up rounds: 0.1 s of aggregation; 0.1 s of training for four clients; no measured decomposition."""
    experiment = preset("sdfed/table5-flowers102", ("SDFed, timed",))
    train(db, experiment)
    rows = reproductions(Store(db), experiment)
    assert find(rows, setting="Global Prompt Aggregation").stat.mean == pytest.approx(100)
    assert find(rows, setting="Local Model Training").stat.mean == pytest.approx(25)
    assert find(rows, setting="Global Prompt Decomposition").stat is None
    assert {row.judgement for row in rows} == {"not comparable"}
    deap = preset("feddeap/table1-domainnet-126", ("FedDEAP",), seeds=(1,))
    train(db, deap)
    found = find(reproductions(Store(db), deap), table="4", method="FedDEAP", metric="Infer. Time (s/batch)")
    tested = 5 * 8 * 200 + 4 * 100  # five models, eight test sets; and four validation sets
    assert found.stat.mean == pytest.approx(256 * 0.1 / tested, rel=0.06)


@pytest.mark.parametrize(
    ("work", "name", "rows", "cell"),
    [
        ("sdfed", "sdfed-8", 27, "the aggregation weight"),
        ("sdfed", "sdfed-9", 4, "ResNet50"),
        ("fedot", "fedot-4", 6, "Black-box TL"),
        ("fedalign", "fedalign-3", 7, "7169"),
    ],
)
def test_tables_of_text_stand_as_printed(work: str, name: str, rows: int, cell: str) -> None:
    table = next(table for table in tables(work) if table.name == name)
    assert len(table.cells) == rows and not table.values
    assert cell in {text for row in table.cells for text in row}
    assert len({len(row) for row in table.cells}) == 1


def test_the_four_papers_lack_no_table() -> None:
    names = {table.name for work in ("fedot", "sdfed", "fedalign", "feddeap") for table in tables(work)}
    counts = {"fedot": 10, "sdfed": 9, "fedalign": 8, "feddeap": 5}
    assert {f"{work}-{i + 1}" for work, n in counts.items() for i in range(n)} <= names
    assert value_of("sdfed", setting="Local Model Training").text == "4529.6"
