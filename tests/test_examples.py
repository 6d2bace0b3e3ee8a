"""The example methods are what the README says: small files that train in the same loop as the others."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fedcore import config
from fedcore.base.files import ASSETS
from fedcore.config.identity import group_hash
from fedcore.engine.clients.local import batch_positions
from fedcore.engine.plan import plan
from fedcore.methods import registry
from fedcore.methods.base import Uploads
from tests.support.tiny import run_rounds, tiny_federation

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FILES = {
    "text-shift": "text_shift.py",
    "fedper": "fedper.py",
    "ditto": "ditto.py",
    "attentive": "attentive.py",
}


@pytest.fixture
def examples():
    for name, file in FILES.items():
        assert registry.load_file(EXAMPLES / file) == [name]
    yield
    for name in FILES:
        del registry._METHODS[name], registry._FILES[name]


@pytest.fixture
def federation():
    return tiny_federation()


def make(name: str, federation, **values: object):
    return registry.get(name)(registry.build_config(name, values), federation.problem)


@pytest.mark.parametrize(
    ("name", "lines"), [("text-shift", 46), ("fedper", 50), ("ditto", 70), ("attentive", 68)]
)
def test_the_examples_are_short(name, lines):
    assert len([line for line in (EXAMPLES / FILES[name]).read_text().splitlines() if line]) <= lines


@pytest.mark.parametrize("name", FILES)
def test_they_start_as_zero_shot_and_learn(examples, federation, name):
    method = make(name, federation, lr=0.05)
    x = federation.pool.x(federation.train.index)
    text = federation.problem.class_features
    start = method.models(method.init(federation.problem.generator)).clients
    expected = method.problem.backbone.logit_scale * F.normalize(x, dim=-1) @ text.T
    torch.testing.assert_close(method.logits(start, {}, x), expected)
    loop = run_rounds(method, federation, rounds=5)
    assert loop.finished[-1].train_loss < loop.finished[1].train_loss


def test_fedper_sends_its_base_only_and_has_no_global_model(examples, federation):
    loop = run_rounds(make("fedper", federation, lr=0.05), federation, rounds=1)
    d = federation.problem.class_features.shape[1]
    assert loop.finished[-1].scalars_up == 3 * d * d, "three clients, without heads"
    assert {cell.model for cell in loop.finished[-1].cells} == {1, 2, 3}
    heads = loop.state.local["head"]
    assert not torch.equal(heads[0], heads[1])


def test_dittos_common_model_is_that_of_federated_averaging(examples, federation):
    common = {"lr": 0.05, "batch_size": 4, "local_epochs": 2}
    ditto = run_rounds(make("ditto", federation, **common), federation, rounds=3)
    averaged = run_rounds(make("text-shift", federation, strength=1.0, **common), federation, rounds=3)
    torch.testing.assert_close(ditto.state.shared["w"], averaged.state.shared["shift"], rtol=0, atol=0)


def test_dittos_personal_model_follows_algorithm_1(examples, federation):
    """Client b alone, in plain loops; w^t is what it received at the start of a round."""
    lr, lam, client = 0.05, 3.0, 1
    values = {"lr": lr, "lam": lam, "batch_size": 2, "momentum": 0, "weight_decay": 0}
    loop = run_rounds(make("ditto", federation, **values), federation, rounds=1)
    w_1 = loop.state.shared["w"]
    assert w_1.abs().max() > 0
    loop = run_rounds(make("ditto", federation, **values), federation, rounds=2)
    data = federation.local_data(torch.tensor([client]))
    text, scale = federation.problem.class_features, federation.problem.backbone.logit_scale
    v = torch.zeros_like(text)
    for round_, w_t in ((1, torch.zeros_like(text)), (2, w_1)):
        for positions in batch_positions(data, round_, 0, 2)[0]:
            chosen = positions[positions >= 0]
            v = v.clone().requires_grad_()
            cosines = F.normalize(data.x[0, chosen], dim=-1) @ F.normalize(text + v, dim=-1).T
            (gradient,) = torch.autograd.grad(F.cross_entropy(scale * cosines, data.labels[0, chosen]), v)
            v = (v - lr * (gradient + lam * (v - w_t))).detach()
    torch.testing.assert_close(loop.state.local["v"][client], v)


def test_without_sharpness_the_attentive_server_averages_as_fedper(examples, federation):
    common = {"lr": 0.05, "batch_size": 4, "local_epochs": 2}
    mixed = run_rounds(make("attentive", federation, sharpness=0, **common), federation, rounds=3).state
    averaged = run_rounds(make("fedper", federation, **common), federation, rounds=3).state
    for base in mixed.personal["base"]:
        torch.testing.assert_close(base, averaged.shared["base"])
    torch.testing.assert_close(mixed.local["head"], averaged.local["head"])


def test_the_attentive_server_mixes_by_the_cosine_of_updates_and_remembers_absent_clients(
    examples, federation
):
    method = make("attentive", federation, sharpness=3)
    state, d = method.init(federation.problem.generator), federation.problem.class_features.shape[1]
    for clients in ((0, 1, 2), (0, 2)):
        draw = federation.problem.generator("test", len(clients))
        sent = torch.eye(d, dtype=torch.float64) + torch.randn(
            len(clients), d, d, generator=draw, dtype=torch.float64
        )
        latest = list(state.server["latest"])
        at = torch.tensor(clients)
        state = method.aggregate(state, Uploads({"base": sent}, at, torch.ones_like(at)), None)
        for client, base in zip(clients, sent, strict=True):
            latest[client] = base
        moved = [base - torch.eye(d, dtype=torch.float64) for base in latest]
        for i, base in enumerate(state.personal["base"]):
            cosines = [(moved[i] * m).sum() / (moved[i].norm() * m.norm()) for m in moved]
            weights = [(3 * c).exp() for c in cosines]
            wanted = sum(w * b for w, b in zip(weights, latest, strict=True)) / sum(weights)
            torch.testing.assert_close(base, wanted)


@pytest.mark.parametrize("file", ["text_shift.toml", "personal.toml", "attentive.toml"])
def test_their_experiment_files_are_valid(examples, file):
    found = plan(config.load(EXAMPLES / file))
    assert {run.method.name for run in found.runs} & set(FILES)


@pytest.mark.parametrize(
    "path",
    sorted([*(ASSETS / "protocols").glob("ablations/*.toml"), *EXAMPLES.glob("generalisation/*.toml")]),
    ids=lambda path: path.stem,
)
def test_the_experiments_of_the_documentation_plan_their_runs(path: Path) -> None:
    experiment = config.load(path)
    assert len(experiment.seeds) >= 5
    found = plan(experiment.model_copy(update={"seeds": experiment.seeds[:1]}))
    assert len({group_hash(run) for run in found.runs}) == len(experiment.methods)
    assert len(found.runs) == max(1, len(experiment.held_out)) * len(experiment.methods)
