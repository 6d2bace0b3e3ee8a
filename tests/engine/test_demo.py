"""The demonstration keeps its promise: FedOT gains on zero-shot CLIP."""

from pathlib import Path

import pytest

from fedcore.base.events import AFTER_AGGREGATION, GLOBAL, Cell, RoundFinished, Started
from fedcore.engine.plan import plan
from fedcore.engine.train import train
from fedcore.papers.experiments import preset

Rounds = list[tuple[Cell, ...]]


def trained(name: str, artifacts: Path, folder: Path) -> tuple[Started, Rounds]:
    """The demo's entry of one method, trained for all its rounds: who is who, and the cells of each round."""
    demo = preset("demo")
    entries = tuple(entry for entry in demo.methods if entry.name == name)
    (run,) = plan(demo.model_copy(update={"methods": entries})).runs
    events = list(train(run, artifacts=artifacts, folder=folder))
    (started,) = [e for e in events if isinstance(e, Started)]
    return started, [e.cells for e in events if isinstance(e, RoundFinished)]


def personal(started: Started, cells: tuple[Cell, ...]) -> float:
    """Mean over clients of the accuracy of each one's model on its own test samples, percent.

    A method without personal models has the global one serve every client.
    """
    found = {(c.model, c.test_set): c for c in cells if (c.split, c.stage) == (2, AFTER_AGGREGATION)}
    clients = [e.code for e in started.entities if e.kind == "client"]
    assert len(clients) == 6
    scores = [found.get((k, k)) or found[GLOBAL, k] for k in clients]
    return 100 * sum(c.correct / c.total for c in scores) / len(scores)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.mark.slow
def test_fedot_beats_zero_shot_by_twenty_points(artifacts, tmp_path):
    who, plain = trained("zero-shot", artifacts, tmp_path / "zero-shot")
    started, rounds = trained("fedot", artifacts, tmp_path / "once")
    assert len(rounds) == 11, "round 0 and ten more"
    assert [one.environment["common_model"] for one in (who, started)] == [True, False]
    before, after = personal(who, plain[-1]), personal(started, rounds[-1])
    assert 40 < before < 60, "zero-shot CLIP knows the upright digits, not the turned ones"
    assert after >= before + 20
