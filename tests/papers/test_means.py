"""A printed mean over data sets beside ours: of all of them or of none, and what is missing is named."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcore.papers import cells
from fedcore.papers.cells import (
    Availability,
    TableCell,
    fillings,
    missing_parts,
    source_of,
    table_cells,
)
from fedcore.papers.equivalents import RunSource, parts_of_mean
from fedcore.papers.mini import DATA
from fedcore.papers.published import load
from fedcore.papers.recorded import Measurement, RecordedRuns
from fedcore.results.statistics import Stat
from fedcore.results.summary import Comparability
from fedcore.store import Store
from tests.support.papers import finish, queue, value_of

MAIN = [value for value in load("fedot_conference") if value.table == "main"]
OVERALL = value_of("feddeap", table="4", method="FedDEAP", metric="Performance (%)")
NOTHING = Availability({})


def test_every_value_of_the_headline_table_has_the_runs_of_five_data_sets() -> None:
    assert len(MAIN) == 26
    for value in MAIN:
        sources = [source_of(part) for part in parts_of_mean(value)]
        assert all(isinstance(source, RunSource) for source in sources), value
        assert len({source.config.data.name for source in sources}) == 5


@pytest.mark.parametrize("paper", ["fedot", "feddeap"])
def test_parts_are_what_the_paper_averages(paper: str) -> None:
    """FedDEAP's printed mean follows from the parts; so does, for FedOT, which sets and methods are named."""
    value = OVERALL if paper == "feddeap" else next(v for v in MAIN if v.method == "FEDOT(+B)")
    parts = parts_of_mean(value)
    if paper == "fedot":
        assert [part.dataset for part in parts] == [
            "FEMNIST",
            "PACS",
            "Office-Home",
            "VLCS",
            "TerraIncognita",
        ]
        return
    same = ("dataset", "setting", "method", "metric", "target")
    printed = [
        next(v.value for v in load(paper) if all(getattr(v, name) == getattr(part, name) for name in same))
        for part in parts
    ]
    assert f"{np.mean(printed) + 1e-9:.2f}" == value.mean_text


def test_a_mean_has_a_value_once_every_data_set_has_one(db: Path) -> None:
    store = Store(db)

    def cell() -> TableCell:
        return table_cells(RecordedRuns(store, {DATA}), [OVERALL], NOTHING, True)[OVERALL]

    before = cell()
    assert before.status == "can be run" and before.stat is None and len(before.parts) == 4
    wanted = fillings([before], NOTHING)
    assert sum(len(each.wanted) for each in wanted) == sum(map(len, missing_parts([before]).values())) > 1
    for i, filling in enumerate(wanted):
        finish(db, queue(store, filling).experiment_id)
        now = cell()
        if i < len(wanted) - 1:
            assert now.stat is None and "are not measured yet" in now.reason
    assert now.status == "rehearsed" and not now.missing
    assert now.stat.mean == pytest.approx(np.mean([part.stat.mean for part in now.parts]))


def test_data_sets_without_a_common_seed_are_no_measured_mean(db: Path) -> None:
    waiting = table_cells(RecordedRuns(Store(db), {DATA}), [OVERALL], NOTHING, True)[OVERALL].parts
    ours = [Measurement(Stat(50.0, None, 1), (), Comparability(), by_seed={s: 50.0}) for s in range(4)]
    parts = [
        replace(part, status="comparable", missing=(), measurement=one)
        for part, one in zip(waiting, ours, strict=True)
    ]
    cell = cells._mean_cell(OVERALL, parts)
    assert cell.stat is None and cell.status == "can be run"
    assert cell.reason == "a mean over 4 data sets, without a seed that all have"
