"""A fault of the method ends its other runs, which would repeat it; they resume with the corrected file."""

import csv
import io
import tomllib

import pytest

from fedcore.base import consent
from fedcore.base.errors import FedLensError, SystemFault
from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.methods import FedLensMethodError, registry
from fedcore.store import Store
from tests.support.command_line import run
from tests.support.jobs import execute_next

METHOD = """
from fedcore.base.lazy import torch
from fedcore.methods import About, Method, State, Step, cosine_logits, cross_entropy, method

@method
class Faulty(Method):
    name = "faulty"
    about = About(title="Faulty", source="a test", summary="A shift of the class features.")
    shared = ("shift",)

    def init(self, generator):
        return State(shared={"shift": torch.zeros_like(self.problem.class_features)})

    def train_step(self, params, const, batch):
        loss = cross_entropy(self.logits(params, const, batch.x), batch.labels, batch.mask)
        return Step({("shift",): loss.mean()})

    def logits(self, params, head, x):
        return cosine_logits(x, self.problem.class_features + params["shift"], 100.0)
"""
TOML = """
name = "Seeds of a fault"
rounds = 1
seeds = [1, 2, 3]

[data]
name = "rotated-digits"
domains = ["rot0", "rot75"]
shots = 2

[[methods]]
name = "faulty"

[[methods]]
name = "zero-shot"
"""


def states(db):
    return {r.id: r.state for r in Store(db).runs.get(range(1, 20))}


def execute(db, error):
    def handler(job):
        raise error
        yield

    return execute_next(db, handler=handler)


def test_the_other_seeds_of_that_config_stop_and_nothing_else(db, queued):
    queued(seeds=(1, 2, 3), methods=2)
    queued(seeds=(4,))
    assert execute(db, FedLensMethodError("/my/own.py:7, in train_step: no loss moves 'w'")) == "failed"
    one, *others = Store(db).runs.get(range(1, 20))
    assert "own.py:7" in one.status_text and "Traceback" in Store(db).runs.error(1)
    stopped = {r.seed: r.status_text for r in others if r.state == "stopped"}
    assert stopped.keys() == {2, 3} and all("failed in run 1" in why for why in stopped.values())
    assert [(r.method, r.seed) for r in others if r.state == "queued"] == [
        ("promptfl", 1),
        ("promptfl", 2),
        ("promptfl", 3),
        ("fedot", 4),
    ]
    assert sorted(Store(db).runs.resume(range(1, 20))) == [
        r.id for r in (one, *others) if r.seed < 4 and r.method == "fedot"
    ]


@pytest.mark.parametrize(
    "error", [SystemFault("the disk is gone"), FedLensError("client 'a': the loss is not finite", "lr")]
)
def test_what_another_seed_need_not_meet_stops_none(db, queued, error):
    queued(seeds=(1, 2, 3))
    assert execute(db, error) in ("failed", "interrupted")
    assert list(states(db).values())[1:] == ["queued", "queued"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "faulty.py"
    path.write_text(METHOD)
    yield path
    registry._METHODS.pop("faulty", None)
    registry._FILES.pop("faulty", None)


def test_from_the_command_line_the_fault_is_met_once_and_corrected(
    db, file, tmp_path, capsys, encoded_digits
):
    encoded_digits(db.parent / "artifacts")
    toml = tmp_path / "faults.toml"
    toml.write_text(TOML)
    assert run("run", toml, "--methods", file, "--db", db, "--debug") == 1
    out, err = capsys.readouterr()
    line = next(i for i, text in enumerate(METHOD.splitlines(), 1) if "loss.mean()" in text)
    assert f"{file}:{line}, in train_step: the loss of 'shift' is a tensor of shape ()" in err
    assert err.count("not begun: the method itself failed in run 1") == 2
    assert "Traceback" in err and "in train_clients" in err
    assert f"next: fedlens resume --experiment 1 --methods {file} --db {db}\n" in err
    assert sorted(row["state"] for row in csv.DictReader(io.StringIO(out))) == (
        ["done"] * 3 + ["failed"] + ["stopped"] * 2
    )
    file.write_text(METHOD.replace("loss.mean()", "loss"))
    before = Store(db).runs.config(1).method.sha256
    mine = [i for i, state in states(db).items() if state != "done"]
    assert run("resume", *mine, "--no-worker", "--db", db) == 2, "nobody agreed to the file as it is now"
    assert [states(db)[i] for i in mine] == ["failed", "stopped", "stopped"]
    assert run("resume", *mine, "--no-worker", "--methods", file, "--db", db) == 0
    configs = Store(db).runs.configs(mine)
    assert {c.method.sha256 for c in configs.values()} == {consent.digest(file.read_bytes())} != {before}
    assert len({r.group_hash for r in Store(db).runs.get(mine)}) == 1, "they stay one row of the table"
    assert [execute_next(db) for _ in mine] == ["done"] * len(mine)


def test_a_run_with_trained_rounds_keeps_the_file_that_it_began_with(db, file):
    registry.load_file(file)
    experiment = parse(tomllib.loads(TOML))
    (run_id,) = Store(db).experiments.create(experiment, plan(experiment).runs[:1]).run_ids
    with Store(db).runs._file.writing() as database:
        database.execute("UPDATE runs SET status='stopped', rounds_done=3 WHERE id=?", [run_id])
    began = Store(db).runs.config(run_id).method.sha256
    file.write_text(METHOD + "\n")
    registry.load_file(file)
    assert Store(db).runs.resume([run_id]) == [run_id]
    assert Store(db).runs.config(run_id).method.sha256 == began
