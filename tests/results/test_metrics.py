"""Leave-one-domain-out and whole-test-set metrics, worked out by hand on small matrices."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedcore.base.events import Entity, Started
from fedcore.papers import published
from fedcore.papers.equivalents import RunSource
from fedcore.papers.recorded import RecordedRuns, round_shares
from fedcore.results.comparison import compare
from fedcore.results.frames import cell_frame, client_shares, domain_shares, round_metrics
from fedcore.store import NamedCell, Store
from tests.support import fill


def cell(model: str, test_set: str, correct: int, total: int, domain: str | None = None) -> NamedCell:
    kinds = ("global" if model == "global" else "client", "domain" if test_set.isupper() else "client")
    return NamedCell(1, 2, 1, 5, model, kinds[0], test_set, kinds[1], domain, correct, total, None)


CELLS = [
    cell("global", "A", 30, 40),
    cell("global", "B", 5, 10),
    cell("global", "C", 18, 20),
    cell("a1", "a1", 9, 10, "A"),
    cell("a2", "a2", 7, 10, "A"),
    cell("b", "b", 6, 10, "B"),
]


def metrics_of(cells: list[NamedCell], held_out: str | None) -> dict[str, float]:
    """Return the metrics of the only round of these cells."""
    (row,) = round_metrics(frame(cells, held_out)).to_dict("records")
    return row


def frame(cells: list[NamedCell], held_out: str | None = None) -> pd.DataFrame:
    return cell_frame(cells, [SimpleNamespace(id=1, seed=1, held_out=held_out)])


PERSONAL = [c for c in CELLS if c.model != "global"]


def test_the_global_model_on_one_domain_or_on_all_samples_at_once():
    assert metrics_of(CELLS, "A")["generalisation"] == 0.75
    assert metrics_of(CELLS, None)["whole"] == 53 / 70, "samples weigh equally, not domains"
    assert math.isnan(metrics_of(PERSONAL, None)["whole"])


def test_sampled_domains_weigh_as_their_whole_test_sets(tmp_path: Path) -> None:
    """Samples of 10 each, of a domain of 10 images and one of 60: 6/7 of the images are the second one's."""
    db = tmp_path / "runs.db"
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2, test_sample=10)
    _, (writer,) = fill.start(db, experiment)
    sizes = {"0°": 10, "15°": 60}
    entities = (Entity(0, "global", "global"), Entity(1, "client", "0°", domain="0°", samples=200))
    entities += tuple(Entity(i, "domain", d, domain=d, samples=sizes[d]) for i, d in enumerate(sizes, 2))
    alike = [fill.cell(1, 1, 5, 10), fill.cell(0, 1, 5, 10), fill.cell(0, 2, 8, 10)]
    sampled, whole = fill.cell(0, 3, 5, 10), fill.cell(0, 3, 30, 60)
    validated = [fill.cell(1, 1, 10 - round_, 10, split=1) for round_ in (1, 2)]
    fill.record(writer, entities, {1: [*alike, sampled, validated[0]], 2: [*alike, whole, validated[1]]})
    for rule in ("best", "last"):
        (row,) = compare(Store(db), [1], rule).rows
        assert row.runs[0].rounds == ((1,) if rule == "best" else (2,))
        assert row.stats["whole"].mean == pytest.approx(100 * (8 + 30) / 70)


def test_two_clients_of_a_domain_are_one_domain():
    """P = mean of A (0.9, 0.7) and B (0.6); C adds the unseen C (18 of 20) as a third."""
    assert domain_shares(frame(CELLS)).droplevel([0, 1]).to_dict() == {"A": pytest.approx(0.8), "B": 0.6}
    assert client_shares(frame(CELLS)).droplevel([0, 1]).to_dict() == {"a1": 0.9, "a2": 0.7, "b": 0.6}
    found = metrics_of(CELLS, "C")
    assert found["personalisation"] == pytest.approx((0.8 + 0.6) / 2)
    assert found["comprehensive"] == pytest.approx((0.8 + 0.6 + 0.9) / 3)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("generalization", 0.9), ("personalization", (0.8 + 0.6) / 2), ("comprehensive", (0.8 + 0.6 + 0.9) / 3)],
)
def test_what_stands_beside_the_papers_is_the_same_with_two_clients_of_a_domain(metric, expected):
    """Means over domains, as the protocol has them: over clients P would be 0.733 and C 0.775."""
    recorded = RecordedRuns(Store("none.db"), ())
    recorded.shares.update(round_shares(frame(CELLS, "C")))
    published_value = next(f for f in published.load_all() if f.paper == "fedot" and f.metric == metric)
    result = SimpleNamespace(run=SimpleNamespace(id=1, seed=1, held_out=None), rounds=(5,))
    average = replace(published_value, setting="", target="avg")
    source = RunSource(None, None, {}, 0)
    assert recorded.by_seed(average, [result], source) == {1: pytest.approx(100 * expected)}


def test_a_client_of_the_held_out_domain_is_no_part_of_p():
    assert metrics_of(CELLS, "B")["personalisation"] == pytest.approx(0.8)


def test_without_a_global_model_there_is_no_g_and_no_c():
    found = metrics_of(PERSONAL, "C")
    assert math.isnan(found["comprehensive"]) and math.isnan(found["generalisation"])
    assert found["personalisation"] == pytest.approx(0.7)


def matrix_of(db: Path, seeds: dict[int, np.ndarray]) -> int:
    """Record FedOT runs whose ACC matrix (held-out j x domain i, of 100 samples) is given for each seed."""
    names = fill.CLIENTS[:3]
    experiment = fill.an_experiment(methods=("fedot",), seeds=tuple(seeds), rounds=1, held_out=names)
    created, writers = fill.start(db, experiment)
    for writer in writers:
        run = fill.config_of(writer)
        j = names.index(run.held_out)
        trained = [n for n in names if n != run.held_out]
        entities = fill.entities(trained, names)
        writer.started(Started(entities=entities, rounds_total=1, environment={"device": "cpu"}))
        codes = {(e.kind, e.name): e.code for e in entities}
        own = [(codes["client", n], int(seeds[run.seed][j, names.index(n)])) for n in trained]
        cells = [fill.cell(code, code, correct, 100, loss=None) for code, correct in own]
        cells.append(fill.cell(0, codes["domain", names[j]], int(seeds[run.seed][j, j]), 100))
        writer.write_round(replace(fill.a_round("fedot", 1, 1, 1, trained), cells=tuple(cells)))
        writer.claim.finish("done")
    return created.experiment_id


def test_g_p_and_c_are_means_over_the_matrix_then_over_seeds(db: Path) -> None:
    rng = np.random.default_rng(3)
    acc = {seed: rng.integers(40, 100, (3, 3)) for seed in (1, 2, 3)}
    found = compare(Store(db), [matrix_of(db, acc)])
    (group,) = found.rows
    off = ~np.eye(3, dtype=bool)
    for metric, expected in (
        ("generalisation", [np.diag(a).mean() for a in acc.values()]),
        ("personalisation", [a[off].mean() for a in acc.values()]),
        ("comprehensive", [a.mean() for a in acc.values()]),
    ):
        stat = group.stats[metric]
        assert (stat.mean, stat.n) == (pytest.approx(np.mean(expected)), 3), metric
        assert stat.std == pytest.approx(np.std(expected, ddof=1)), metric
    assert "whole" not in group.stats, "a held-out domain's test set is no part of a federation's"
    first = fill.CLIENTS[0]
    assert group.breakdowns["held_out"][first].mean == pytest.approx(np.mean([a[0, 0] for a in acc.values()]))
    personal = [np.mean([a[1, 0], a[2, 0]]) for a in acc.values()]
    assert group.breakdowns["domain"][first].mean == pytest.approx(np.mean(personal))
    assert group.breakdowns["domain"][first].std == pytest.approx(np.std(personal, ddof=1))
    assert found.notes == ()


def test_fewer_held_out_domains_than_there_are_is_said(db: Path) -> None:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2, held_out=fill.CLIENTS[:2])
    found = compare(Store(db), [fill.done(db, experiment)])
    assert found.notes == ("G, P and C over 2 of 6 domains held out: 0°, 15°",)


def test_domains_and_clients_of_a_plain_run(filled: Path) -> None:
    group = next(g for g in compare(Store(filled), [1]).rows if g.label == "FedOT")
    assert "generalisation" not in group.stats
    means = [s.mean for s in group.breakdowns["domain"].values()]
    assert len(means) == len(fill.CLIENTS)
    assert np.mean(means) == pytest.approx(group.stats["personal"].mean)
    assert group.breakdowns["client"] == group.breakdowns["domain"], "one client for each domain"
    assert group.stats["whole"].n == 3
