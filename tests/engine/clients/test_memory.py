"""As many clients are trained at once as fit into memory, and local parameters may be mapped from a file."""

import os
import platform
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from fedcore.base.events import Notice
from fedcore.engine import checkpoint
from fedcore.engine.clients import evaluator, local
from fedcore.engine.clients.local import bytes_of_client, clients_at_once
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.engine.train import Spread, _choose_chunk
from fedcore.methods import tensors
from fedcore.methods.fedot import FedOT, FedOTConfig
from fedcore.methods.tensors import compared
from tests.support.against import build, federation_for
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import finished, parts, run_rounds, tiny_backbone, tiny_federation

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def federation():
    return tiny_federation(samples=(9, 5, 7))


def loop_of(federation, name: str = "promptfl", **fields: object) -> Server:
    return Server(build(name, federation, **fields), federation, 1)


def test_as_many_clients_as_fit_and_at_least_one(federation, monkeypatch):
    loop = loop_of(federation)
    size = bytes_of_client(loop.method, federation, loop.state)
    for budget, fitting in ((size * 5 + 1, 5), (size * 99, 32), (size // 2, 1)):
        monkeypatch.setattr(local, "_MOST", budget)
        assert clients_at_once(loop.method, federation, loop.state, 32) == fitting


def test_what_is_measured_grows_with_the_batch_and_leaves_the_run_as_it_was(federation):
    def floats(samples: int) -> int:
        method = FedOT(FedOTConfig(batch_size=samples), federation.problem)
        state = Server(method, federation, 1).state
        before = state.local["matrix"].clone(), torch.get_rng_state()
        size = bytes_of_client(method, federation, state)
        assert torch.equal(state.local["matrix"], before[0]) and torch.equal(torch.get_rng_state(), before[1])
        return size // 8

    one, four = floats(1), floats(4)
    assert four - one >= 3 * 3 * 16, "three samples more keep some vectors of 16 numbers each"
    assert one < federation.pool.values.numel() + 20 * 16 * 16, "the frozen CLIP does not count"


def test_what_a_client_receives_its_gradient_and_next_value_count_beside_saved_tensors(
    federation, monkeypatch
):
    loop = loop_of(federation, "facmic")
    monkeypatch.setattr(local, "_HEAP", 0)
    assert bytes_of_client(loop.method, federation, loop.state) == 3 * local.size_of(loop.state.shared)


MEASURE = """
import torch
from fedcore.engine.clients.local import bytes_of_client
from tools.benchmarks.scale import make_loop

loop = make_loop("fedavg-lora", 32, 10, 20, {}, 1, 1.0, "mini-vit", distinct=8)
estimate = bytes_of_client(loop.method, loop.federation, loop.state)
(chunk,) = loop._chunks(loop.method.sends(loop.state, torch.arange(32)), torch.arange(32), 1)

def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = kib("VmRSS")
loop.worker.train(chunk)
print(1024 * (kib("VmHWM") - before) / 32 / estimate)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators reuse memory otherwise")
def test_the_memory_that_training_takes_is_near_the_estimate():
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURE]
    done = subprocess.run(command, env=given, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0.75 < float(done.stdout.split()[-1]) < 1.3


def test_a_method_without_training_takes_all(federation):
    loop = loop_of(federation, "zero-shot")
    assert clients_at_once(loop.method, federation, loop.state, 32) == 32


def test_a_run_says_when_memory_limits_it_and_several_processes_all_have_a_chunk(federation, monkeypatch):
    loop = loop_of(federation)
    two = Spread(2, lambda *_: nullcontext(), "cpu", sharers=2)
    assert list(_choose_chunk(loop, None)) == [] and loop.chunk == 32
    assert list(_choose_chunk(loop, two)) == [] and loop.chunk == 2
    monkeypatch.setattr(local, "_MOST", 1)
    (notice,) = _choose_chunk(loop, two)
    assert notice.message.startswith("clients trained at once: 1,") and loop.chunk == 1


@pytest.fixture(scope="module")
def five():
    return tiny_federation(samples=(9, 5, 7, 12, 4))


def run(five, folder, **options):
    method = FedOT(FedOTConfig(lr=0.01, blocks=2), five.problem)
    return run_rounds(method, five, 3, participation=0.6, folder=folder, **options)


def measured(loop: Server) -> list[object]:
    return [(event.cells, event.diagnostics) for event in loop.finished]


def test_local_parameters_on_a_file_are_those_in_memory(five, tmp_path, monkeypatch):
    inside = run(five, tmp_path / "inside")
    monkeypatch.setattr(checkpoint, "IN_MEMORY", 0)
    mapped = run(five, tmp_path / "mapped")
    torch.testing.assert_close(mapped.state.local, inside.state.local, rtol=0, atol=0)
    assert measured(mapped) == measured(inside)
    assert not list((tmp_path / "mapped").glob(".local*")), "the file has no name, so a kill leaves none"


def test_a_round_leaves_the_rows_of_absent_clients_in_place(five, monkeypatch):
    monkeypatch.setattr(checkpoint, "IN_MEMORY", 0)
    local = {"matrix": torch.arange(12.0).view(4, 3)}
    rows = checkpoint.ClientRows(local, None)
    before = rows.values["matrix"].data_ptr()
    rows.write(torch.tensor([1, 3]), {"matrix": -torch.ones(2, 3), "shared": torch.ones(2)})
    assert rows.values["matrix"].data_ptr() == before
    assert rows.values["matrix"].tolist() == [[0, 1, 2], [-1] * 3, [6, 7, 8], [-1] * 3]
    assert local["matrix"].min() == 0, "the parameters that were given are not written to"


def test_on_a_file_a_row_is_written_when_its_client_is_first_needed(monkeypatch):
    monkeypatch.setattr(checkpoint, "IN_MEMORY", 0)
    rows_of_clients = torch.arange(12.0).view(4, 3)
    rows = checkpoint.ClientRows({"same": torch.ones(2).expand(4, -1), "own": rows_of_clients}, None)
    rows.need(torch.tensor([2]))
    assert rows.values["same"][:, 0].tolist() == [0, 0, 1, 0] and torch.equal(
        rows.values["own"], rows_of_clients
    )
    rows.values["same"][2] = 7.0
    rows.need(torch.tensor([2, 3]))
    assert rows.values["same"][:, 0].tolist() == [0, 0, 7, 1], "a row that is there stays"


ADAPTED = {"rank": 1, "class_text": "template", "lr": 0.01, "batch_size": 4}


@pytest.mark.parametrize(
    ("name", "fields", "large"),
    [
        ("fedot", {"lr": 0.01, "blocks": 2}, 0),
        ("fedot", {"lr": 0.01, "blocks": 2}, 2**28),
        ("fedalign", ADAPTED, 0),
        pytest.param("fedalign", ADAPTED, 2**28, marks=pytest.mark.slow),
    ],
)
def test_only_some_rows_on_a_file_change_no_number_also_after_a_stop(
    tmp_path, monkeypatch, name, fields, large
):
    five = federation_for(name, fields, tiny_backbone(), samples=(9, 5, 7, 12, 4))

    def run(folder):
        return run_rounds(build(name, five, **fields), five, 3, participation=0.6, folder=folder)

    monkeypatch.setattr(evaluator, "MAX_EVALUATED_CLIENTS", 2)
    inside = run(tmp_path / "inside")
    monkeypatch.setattr(checkpoint, "IN_MEMORY", 0)
    monkeypatch.setattr(checkpoint, "LARGE", large)
    mapped = run(tmp_path / "mapped")
    assert measured(mapped) == measured(inside)
    again = Server(mapped.method, five, 3, participation=0.6, folder=tmp_path / "mapped")
    again.resume(tmp_path / "mapped" / "round-2.safetensors")
    (third,) = finished(all_rounds(again))
    assert (third.cells, third.diagnostics) == (mapped.finished[3].cells, mapped.finished[3].diagnostics)
    taken = again.state.rounds_trained > 0
    for key, value in parts(inside.state).items():
        part, _, name = key.partition(".")
        rows = taken if part == "local" or name in again.method.client_rows else ...
        assert torch.equal(parts(again.state)[key][rows], value[rows]), key


def test_pairs_are_of_all_participants_up_to_a_limit():
    assert compared(3).tolist() == [0, 1, 2] and compared(0).tolist() == []
    some = compared(5 * tensors.MAX_COMPARED)
    assert len(some) == tensors.MAX_COMPARED and (some.diff() == 5).all()
    assert len(compared(tensors.MAX_COMPARED + 1).unique()) == tensors.MAX_COMPARED


def test_gradients_are_compared_between_the_sampled_participants(five, monkeypatch):
    everyone = run_rounds(FedOT(FedOTConfig(), five.problem), five, 1).finished[1]
    monkeypatch.setattr(tensors, "MAX_COMPARED", 2)  # the first client and the third of five
    some = run_rounds(FedOT(FedOTConfig(), five.problem), five, 1).finished[1]

    def values(event, name):
        return {d.client_a: d.value for d in event.diagnostics if d.name == name}

    assert len(values(some, "condition_number")) == 5, "what belongs to one client is said of all"
    assert values(some, "gradient_difference")[-1] < values(everyone, "gradient_difference")[-1]
    assert values(some, "gradient_conflict") != values(everyone, "gradient_conflict")
    assert some.cells == everyone.cells


class Crowded(BiasMethod):
    """Takes two clients at once, three samples in a pass and one attempt at a server step."""

    attempts = 0

    def full(self) -> RuntimeError:
        return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def train_step(self, params, const, batch):
        if len(batch.clients) > 2:
            raise self.full()
        return super().train_step(params, const, batch)

    def logits(self, params, head, x):
        if x.shape[1] > 3:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return super().logits(params, head, x)

    def aggregate(self, state, uploads, generator):
        self.attempts += 1
        if self.attempts == 1:
            raise self.full()
        return super().aggregate(state, uploads, generator)


def crowded(cls: type[BiasMethod], federation, chunk: int) -> Server:
    return Server(cls(BiasConfig(batch_size=3), federation.problem), federation, 2, chunk=chunk)


def test_a_lack_of_a_gpus_memory_is_answered_with_less_at_once_everywhere(monkeypatch):
    federation = tiny_federation(samples=(9, 5, 7, 6, 8))
    server = crowded(Crowded, federation, 8)
    events = list(all_rounds(server))
    first, second = [e for e in events if isinstance(e, Notice)]
    assert first.message.startswith("out of memory: now 8 clients at once, and passes with 1/")
    assert second.message.startswith("out of memory: now 2 clients at once, and passes with 1/")
    assert second.fitted == server.at_once and first.fitted["passes_halved"] > 0 and server.chunk == 2
    found, plain = (
        sorted((e.round, cell) for e in finished(events) for cell in e.cells)
        for events in (events, all_rounds(crowded(BiasMethod, federation, 2)))
    )
    assert [(r, c._replace(loss=0)) for r, c in found] == [(r, c._replace(loss=0)) for r, c in plain]
    assert [c.loss for _, c in found] == pytest.approx([c.loss for _, c in plain], rel=1e-5)

    again = crowded(Crowded, federation, 2)
    again.worker.fit.halved = server.worker.fit.halved
    assert not [e for e in all_rounds(again) if isinstance(e, Notice)], "the next seed begins with less"

    def never(*given):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Crowded, "logits", never)
    with pytest.raises(torch.OutOfMemoryError):
        list(all_rounds(crowded(Crowded, federation, 1)))
