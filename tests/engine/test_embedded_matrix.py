"""Every method of the demonstration on embedded data, and its promise: FedOT gains on zero-shot CLIP."""

import itertools
from pathlib import Path

import pytest

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.base.events import GLOBAL, Finished, RoundFinished, Started
from fedcore.engine.plan import plan
from fedcore.engine.train import train
from fedcore.papers.experiments import preset
from tests.support.against import cells
from tests.support.tiny import finished

METHODS = ("zero-shot", "promptfl", "fedot", "sdfed", "fedalign", "feddeap")
DATA = {"rotated-digits": ["rot0", "rot45"], "shapes": ["photo", "sketch+30"]}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """One folder for all cases, so that each data set is encoded once per backbone and depth."""
    return tmp_path_factory.mktemp("artifacts")


def _experiment(method: str, data: str, backbone: str) -> config.Experiment:
    return config.parse(
        {
            "name": "t",
            "rounds": 1,
            "data": {"name": data, "domains": DATA[data], "shots": 2},
            "backbone": {"name": backbone},
            "methods": [{"name": method}],
        }
    )


QUICK = {  # the demo trains FedOT and zero-shot CLIP
    ("fedalign", "rotated-digits", "mini-vit"),
    ("sdfed", "rotated-digits", "mini-rn"),
    ("fedalign", "shapes", "mini-rn"),
}
PAIRS = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in itertools.product(METHODS, DATA, ("mini-vit", "mini-rn"))
]


@pytest.mark.parametrize(("method", "data", "backbone"), PAIRS)
def test_a_round_on_every_embedded_pair(method, data, backbone, artifacts, tmp_path):
    if (method, backbone) == ("fedalign", "mini-rn"):
        with pytest.raises(FedLensError, match="choose a ViT such as ViT-B-32") as caught:
            plan(_experiment(method, data, backbone))
        assert caught.value.field == "backbone.name"
        return
    (run,) = plan(_experiment(method, data, backbone)).runs
    events = list(train(run, artifacts=artifacts, folder=tmp_path))
    rounds = finished(events)
    assert [e.round for e in rounds] == [0, 1]
    assert isinstance(events[-1], Finished)
    global_cells = {c.test_set: c for c in rounds[-1].cells if (c.split, c.model) == (2, 0)}
    assert len(global_cells) == 4  # two clients, two domains
    upright = global_cells[1]
    assert upright.correct / upright.total > 0.5  # chance is 0.1: labels follow their images
    assert (rounds[-1].bytes_up > 0) == (method != "zero-shot")


def trained(name: str, artifacts: Path, folder: Path) -> tuple[Started, list[RoundFinished]]:
    """The demo's entry of one method, trained for all its rounds: who is who, and each round."""
    demo = preset("demo")
    entries = tuple(entry for entry in demo.methods if entry.name == name)
    (run,) = plan(demo.model_copy(update={"methods": entries})).runs
    events = list(train(run, artifacts=artifacts, folder=folder))
    (started,) = [e for e in events if isinstance(e, Started)]
    return started, finished(events)


def personal(started: Started, event: RoundFinished) -> float:
    """Mean over clients of the accuracy of each one's model on its own test samples, percent.

    A method without personal models has the global one serve every client.
    """
    found = cells(event)
    clients = [e.code for e in started.entities if e.kind == "client"]
    assert len(clients) == 6
    scores = [found.get((k, k)) or found[GLOBAL, k] for k in clients]
    return 100 * sum(c.correct / c.total for c in scores) / len(scores)


@pytest.mark.slow
def test_fedot_beats_zero_shot_by_twenty_points(artifacts, tmp_path):
    who, plain = trained("zero-shot", artifacts, tmp_path / "zero-shot")
    started, rounds = trained("fedot", artifacts, tmp_path / "once")
    assert len(rounds) == 11, "round 0 and ten more"
    assert [one.environment["common_model"] for one in (who, started)] == [True, False]
    before, after = personal(who, plain[-1]), personal(started, rounds[-1])
    assert 40 < before < 60, "zero-shot CLIP knows the upright digits, not the turned ones"
    assert after >= before + 20
