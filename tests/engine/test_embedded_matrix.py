"""Every method of the demonstration on both embedded data sets and both miniature backbones: one loop."""

import itertools

import pytest

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.base.events import Finished, RoundFinished
from fedcore.engine.plan import plan
from fedcore.engine.train import train

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
    ("sdfed", "shapes", "mini-rn"),
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
    rounds = [e for e in events if isinstance(e, RoundFinished)]
    assert [e.round for e in rounds] == [0, 1]
    assert isinstance(events[-1], Finished)
    global_cells = {c.test_set: c for c in rounds[-1].cells if (c.split, c.model) == (2, 0)}
    assert len(global_cells) == 4  # two clients, two domains
    upright = global_cells[1]
    assert upright.correct / upright.total > 0.5  # chance is 0.1: labels follow their images
    assert (rounds[-1].bytes_up > 0) == (method != "zero-shot")
