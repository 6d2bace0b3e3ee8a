"""If a node runs out of memory, its run ends with that reason and keeps all recorded rounds."""

from pathlib import Path

import psutil
import pytest

from fedcore.config import parse
from fedcore.engine.plan import plan
from fedcore.methods import registry
from fedcore.store import Store
from tests.support.cluster import OWN_METHOD, step_until, supervisor_of, two_nodes, watching
from tests.support.jobs import execute_next, recorded, row

ROUNDS = 60
ROOM, MOST = 3 * 10**9, 8 * 10**9
"""Bytes that the node may take beyond what is used at its start, and at which a run stops taking more."""
HUNGRY = """
        while pathlib.Path({marker!r}).exists() and sum(map(len, TAKEN)) < {most}:
            TAKEN.append(b"x" * 2**28)
        logits = self.logits(params, const, batch.x)
        loss ="""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def hungry_method(marker: Path) -> str:
    """A method that takes memory in its next step once the marker exists."""
    method = OWN_METHOD.replace("import torch\n", "import pathlib\n\nimport torch\n\nTAKEN = []\n", 1)
    step = "\n        logits = self.logits(params, const, batch.x)\n        loss ="
    assert step in method
    return method.replace(step, HUNGRY.format(marker=str(marker), most=MOST))


def queue(db: Path, file: Path, device: str) -> int:
    chosen = parse({"rounds": ROUNDS, "methods": [{"name": "sent-bias", "file": str(file)}]})
    return Store(db).experiments.create(chosen, plan(chosen).runs, device=device).run_ids[0]


def test_a_run_that_takes_all_memory_of_its_node_is_interrupted_and_goes_on(db, tmp_path, monkeypatch):
    memory = psutil.virtual_memory()
    if memory.available < MOST:
        pytest.fail(f"this test needs {MOST / 1e9:.0f} GB of free memory")
    used = memory.total - memory.available
    marker, file = tmp_path / "hungry", tmp_path / "own.py"
    file.write_text(hungry_method(marker))
    registry.load_file(file)

    monkeypatch.setenv("RAY_memory_usage_threshold", f"{(used + ROOM) / memory.total:.4f}")
    with two_nodes(tmp_path) as cluster, watching(cluster) as watch:
        run_id = queue(db, file, "beta")
        with supervisor_of(db, watch) as supervisor:
            step_until(supervisor, lambda: row(db, run_id).rounds_done >= 2)
            marker.touch()
            step_until(supervisor, lambda: row(db, run_id).ended)
            run = row(db, run_id)
            assert (run.state, run.status_text) == (
                "interrupted",
                "the memory of the node beta is used up; end other programs there, or let fewer runs share "
                "it; resume continues after the last round",
            )
            assert 2 <= run.rounds_done < ROUNDS
            marker.unlink()
            Store(db).runs.resume([run_id])
            step_until(supervisor, lambda: row(db, run_id).ended)
    assert (row(db, run_id).state, row(db, run_id).attempt) == ("done", 2)

    local_id = queue(db, file, "auto")
    assert execute_next(db, number=local_id) == "done"
    assert recorded(db, run_id) == recorded(db, local_id)
