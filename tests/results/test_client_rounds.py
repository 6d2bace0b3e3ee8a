"""The client by round matrix of a comparison, against the recorded counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcore.plots import heatmaps
from fedcore.plots.theme import Theme
from fedcore.records.events import ClientRound
from fedcore.results.comparison import compare
from fedcore.results.panels.matrices import row_panels
from fedcore.store import Store
from tests.support import fill


def test_it_is_the_mean_over_seeds_and_ends_at_the_table(filled: Path) -> None:
    found = compare(Store(filled), [1])
    group = next(g for g in found.rows if g.label == "SDFed")
    panel = row_panels(Store(filled), found, group.setting, "clients")[group.key]
    assert panel.rows == fill.CLIENTS and panel.columns == tuple(map(str, range(11)))
    expected = np.zeros((6, 11))
    for value in group.runs:
        for own in Store(filled).cells.own_accuracy(value.run.id):
            expected[own.client - 1, own.round] += 100 * own.correct / own.total / 3
    np.testing.assert_allclose(panel.values, expected)
    assert panel.own_mean == pytest.approx(group.stats["personal"].mean), "the last round, as in the table"
    assert "SDFed, own accuracy" in heatmaps.heatmap_grid([panel], Theme()).alt


def test_a_client_that_took_no_part_is_a_gap(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    _, writers = fill.start(db, fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=1))
    for writer, there in zip(writers, ((1, 2, 4, 5, 6), (1, 2, 4, 5)), strict=True):
        fill.train(writer, until=0)
        row = fill.a_round("fedot", fill.config_of(writer).seed, 1, 1)
        writer.write_round(
            replace(
                row,
                clients=tuple(
                    ClientRound(client=c, steps=12, train_loss=1.0, bytes_up=0, bytes_down=0) for c in there
                ),
            )
        )
        writer.claim.finish("done")
    found = compare(Store(db), [1])
    (panel,) = row_panels(Store(db), found, found.rows[0].setting, "clients").values()
    assert np.argwhere(np.isnan(panel.values)).tolist() == [[2, 1]], "the third client, in no run of round 1"
    (own,) = [o for o in Store(db).cells.own_accuracy(writers[0].run_id) if (o.client, o.round) == (6, 1)]
    assert panel.values[5, 1] == pytest.approx(100 * own.correct / own.total), "of the one run that has it"
