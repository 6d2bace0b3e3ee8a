"""Chunks in several processes: the bits of one process, wherever a chunk is trained."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch

from fedcore.base.errors import Elsewhere, FedLensError, SystemFault
from fedcore.base.events import Notice, Started
from fedcore.base.files import PROJECT
from fedcore.config import RunConfig, parse
from fedcore.engine import parallel
from fedcore.engine.clients import evaluator as evaluate
from fedcore.engine.clients import local
from fedcore.engine.clients.executor import GlobalPasses, Order, OwnModels, Worker
from fedcore.engine.clients.local import Stopped, clients_at_once
from fedcore.engine.environment import MIXED_CODE, code, numerics, resolve_environment, unlike_processes
from fedcore.engine.parallel import Parallel, Serving, pack, processes, unpack
from fedcore.engine.plan import plan
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.engine.train import Spread, train
from tests.support.against import build, federation_for
from tests.support.encoded import DIGITS
from tests.support.jobs import wait_for
from tests.support.method_cases import CASES
from tests.support.tiny import at_once, drawn_backbone, finished, parts

CPU = torch.device("cpu")
FOUR = ("fedot", "sdfed", "fedalign", "feddeap")


def new_loop(name: str, rounds: int = 3, **fields: object) -> Server:
    """A run of three clients, two of whom take part, one in a chunk."""
    method, config, *_ = CASES[name]
    federation = federation_for(method, config, drawn_backbone(), samples=(9, 5, 7))
    made = build(method, federation, **config, **fields)
    return Server(made, federation, rounds, participation=0.67, chunk=1)


def new_worker(name: str, ends_after: int = 10**6, **fields: object) -> Worker:
    """The worker of a process; it ends as if it was killed when it has made so many orders."""
    worker = new_loop(name, **fields).worker
    if ends_after < 10**6:
        train, left = worker.train, iter(range(ends_after))
        worker.train = lambda *given: train(*given) if next(left, None) is not None else os._exit(9)
    return worker


def rows(loop: Server) -> list[object]:
    """All that the rounds measured, without the seconds."""
    found = []
    for e in finished(all_rounds(loop)):
        found += [(e.round, e.train_loss, e.clients, e.bytes_up, e.bytes_down), (e.cells, e.diagnostics)]
    return found


QUICK = {("fedot", "fresh"), ("fedalign", "fresh"), ("feddeap", "kept")}


@pytest.mark.parametrize(
    ("name", "state"),
    [
        pytest.param(name, state, marks=() if (name, state) in QUICK else pytest.mark.slow)
        for name, state in [*((name, "fresh") for name in (*FOUR, "promptfl")), ("feddeap", "kept")]
    ],
)
def test_chunks_trained_elsewhere_give_the_bits_of_one_process(name, state):
    expected = new_loop(name, optimiser_state=state)
    spread = new_loop(name, optimiser_state=state)
    servings = [Serving(partial(new_worker, name, optimiser_state=state)) for _ in range(2)]
    spread.executor = Parallel([at_once(s) for s in servings], CPU)
    spread.worker.evaluate = spread.worker.train = None  # the models are evaluated elsewhere too
    assert rows(spread) == rows(expected)
    torch.testing.assert_close(parts(spread.state), parts(expected.state), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fedot", "fedclip", "feddeap"])
def test_the_passes_of_the_global_model_are_divided_and_few_own_models_are_sent_at_once(name, monkeypatch):
    """Nine passes for two processes; a process never holds the own models of more than a chunk."""
    asked: list[list[object]] = [[], []]

    def submit_to(number: int) -> Callable[[bytes], Future[bytes]]:
        serving = Serving(partial(new_worker, name))

        def submit(content: bytes) -> Future[bytes]:
            asked[number].append(unpack(content, CPU))
            return at_once(serving)(content)

        return submit

    samples = new_loop(name).federation.pool.values[0].numel()
    monkeypatch.setattr(evaluate, "_ELEMENTS", {"cpu": 2 * samples})
    expected, spread = new_loop(name, rounds=1), new_loop(name, rounds=1)
    spread.executor = Parallel([submit_to(0), submit_to(1)], CPU)
    assert rows(spread) == rows(expected)
    for orders in asked:
        passes = [p for p in orders if isinstance(p, GlobalPasses)]
        assert len(passes) == 4, "test and validation samples, before and after the round"
        assert all(len(p.passes) > 1 for p in passes)
    sizes = [len(p.clients) for orders in asked for p in orders if isinstance(p, OwnModels)]
    assert sizes == ([] if name == "fedclip" else [1] * 6)


def test_a_broadcast_tensor_is_packed_once():
    wide = torch.zeros(1000).expand(500, 1000)
    loop = new_loop("fedot")
    loop.chunk = 2
    chunk = next(loop._chunks({"w": wide}, torch.tensor([0, 1]), 1))
    content = pack(chunk)
    assert len(content) < 100_000
    assert unpack(content, CPU).received["w"].shape == (2, 1000)


@pytest.mark.slow
def test_two_real_processes_give_the_rows_of_one_and_the_end_of_one_of_them_is_said(monkeypatch):
    # A new process imports the main module, and tests of pages leave the dashboard in its place.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    expected, spread, stopped, broken = (new_loop("fedot") for _ in range(4))
    one_thread = {"OMP_NUM_THREADS": "1"}
    makes = [partial(new_worker, "fedot"), partial(new_worker, "fedot", ends_after=3)]
    threads, safe = torch.get_num_threads(), os.environ.get("PYTHONSAFEPATH", "")
    torch.set_num_threads(1)
    try:
        with processes([(make, one_thread) for make in makes], CPU) as both:
            spread.executor = stopped.executor = broken.executor = both
            assert rows(spread) == rows(expected)
            stopped.should_stop = lambda: True
            with pytest.raises(Stopped):
                rows(stopped)
            with pytest.raises(SystemFault, match="resume continues after the last round"):
                rows(broken)
    finally:
        torch.set_num_threads(threads)
    assert os.environ.get("PYTHONSAFEPATH", "") == safe, "a program that is started later imports as before"


PARENT = """
import os, signal, sys, time
from pathlib import Path
from fedcore.engine.parallel import processes

def worker():
    Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(600)  # it trains

if __name__ == "__main__":
    with processes([(worker, {})], None) as both:
        both._submits[0](b"")
        while not Path(sys.argv[1]).exists():
            time.sleep(0.05)
        if sys.argv[2] == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[2] == "is interrupted":
            os.kill(int(Path(sys.argv[1]).read_text()), signal.SIGINT)  # a terminal sends it to all
            time.sleep(0.5)
            both._submits[0](b"")  # would be refused if the process had ended
"""


@pytest.mark.parametrize(
    "parent",
    ["is killed", *(pytest.param(how, marks=pytest.mark.slow) for how in ("is interrupted", "stops"))],
)
def test_a_process_ends_with_its_parent_and_not_by_the_keyboard(tmp_path, parent):
    script, child = tmp_path / "parent.py", tmp_path / "child"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, script, child, parent], env=environment, capture_output=True, timeout=120
    )
    assert done.returncode == (-signal.SIGKILL if parent == "is killed" else 0), done.stderr
    number = int(child.read_text())
    wait_for(lambda: not psutil.pid_exists(number) or psutil.Process(number).status() == "zombie")


@pytest.fixture(scope="module")
def planned() -> RunConfig:
    (run,) = plan(parse({"methods": [{"name": "fedot"}]})).runs
    return run


@pytest.fixture
def recorded(planned: RunConfig) -> dict[str, object]:
    return resolve_environment(planned, "cpu", {"threads": torch.get_num_threads()})


def test_processes_that_compute_as_the_run_does_are_not_noted(recorded):
    process = numerics(recorded)
    assert unlike_processes(recorded, [process, process | {"node": "beta"}]) == ("", [])
    what, notes = unlike_processes(recorded, [process, process | {"node": "beta", "torch": "2.0"}])
    assert notes == [f"beta has torch 2.0 instead of {recorded['torch']}"]
    assert "beta: " in what


def test_processes_with_other_code_train_only_with_the_users_word(recorded, monkeypatch):
    processes = [process := numerics(recorded), process | {"node": "beta", "code": "0123"}]
    with pytest.raises(SystemFault, match=r"^beta has other code of FedLens \(0123 instead of \w+\); i"):
        unlike_processes(recorded, processes)
    monkeypatch.setenv(MIXED_CODE, "1")
    what, notes = unlike_processes(recorded, processes)
    assert notes == [f"beta has code 0123 instead of {code()}"]
    assert what.endswith(", 0123") and code() in what, "what each of them has is recorded with the run"


def test_a_run_that_loses_a_node_goes_back_to_the_queue_and_finds_other_places():
    lost: Future[bytes] = Future()
    lost.set_exception(ConnectionError("the node is gone"))
    over_nodes = Parallel([lambda content: lost], CPU, ConnectionError, Elsewhere)
    with pytest.raises(Elsewhere, match="resume continues after the last round"):
        list(over_nodes.compute([None], lambda: False))


def test_processes_of_one_machine_share_its_memory(monkeypatch):
    loop = new_loop("fedot")
    given = loop.method, loop.federation, loop.state
    monkeypatch.setattr(local, "bytes_of_client", lambda *_: 2**20)
    of_machine = [clients_at_once(*given, 32, sharers, 64 * 2**20) for sharers in (1, 2, 16)]
    assert of_machine == [16, 8, 1]


def test_a_part_of_a_run_is_not_trained_by_other_versions(planned, recorded, tmp_path):
    with pytest.raises(FedLensError, match=r"torch .* instead of 1\.0; install the same"):
        parallel.worker_of(planned, tmp_path, "cpu", recorded | {"torch": "1.0"})


def test_a_run_says_that_its_clients_are_trained_on_another_device_and_on_unlike_ones(
    tmp_path, encoded_digits
):
    (run,) = plan(parse({"methods": [{"name": "zero-shot"}], "rounds": 1, "data": DIGITS})).runs
    one = {"node": "a", "device_name": "GPU", "processor_features": "AVX2", "torch": "2.9", "code": code()}
    other = one | {"node": "b", "processor_features": "AVX512"}

    def compute(orders: Iterable[Order], should_stop: object) -> list[dict[str, str]]:
        assert list(orders) == [None] * 9, "the rounds begin"
        return [one, other]

    processes = SimpleNamespace(width=9, compute=compute)
    spread = Spread(9, lambda *_: nullcontext(processes), "cuda")
    said: list[object] = []
    with pytest.raises(AssertionError, match="the rounds begin"):
        said.extend(train(run, artifacts=encoded_digits(tmp_path), folder=tmp_path / "run", spread=spread))
    (started,) = (event for event in said if isinstance(event, Started))
    (waits,) = (event for event in said[: said.index(started)] if "waiting" in getattr(event, "message", ""))
    assert waits.message == "waiting for 9 processes of this machine"
    clients = sum(entity.kind == "client" for entity in started.entities)
    idle = [e.message for e in said if isinstance(e, Notice) and "idle" in e.message]
    assert idle == [
        f"{9 - clients} of 9 devices stay idle while clients are trained: {clients} train in a round, "
        f"1 at once; {clients} would train them as fast"
    ]
    assert (started.environment["device"], started.environment["clients_device"]) == ("cpu", "cuda")
    assert started.environment["processors"] == (
        f"a: GPU, AVX2, 2.9, {code()}; b: GPU, AVX512, 2.9, {code()}"
    )
    notices = [event for event in said if isinstance(event, Notice) and not event.repeats_exactly]
    assert [n.message for n in notices] == [
        "its clients are trained and evaluated on cuda, and averaged on cpu",
        "its clients are trained on unlike machines, whose numbers can differ: "
        "b has processor features AVX512 instead of AVX2",
    ]


def test_an_error_for_the_user_keeps_its_field_on_the_way_back():
    error = pickle.loads(pickle.dumps(FedLensError("client 'a': the loss is not finite", "lr")))
    assert (str(error), error.field) == ("client 'a': the loss is not finite", "lr")
