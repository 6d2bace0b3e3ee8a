"""The page about a GPU: every method through the whole engine on a device that only counts."""

from contextlib import nullcontext

import pytest

from fedcore.cli import main as cli
from fedcore.engine import train
from fedcore.methods.registry import load_all
from fedcore.share import gpu
from tests.support import device

TITLES = "s a round", "launches a step", "reads a step", "MiB at most", "images/s encoded"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture
def counting(monkeypatch, folder):
    """The device; backbones that are wanted there are moved to it, and images are encoded once."""
    plain = train.load_backbones

    def load(wanted):
        there = wanted[0][2] == device.DEVICE.type
        loaded = plain([(name, tag, "cpu", precision) for name, tag, _, precision in wanted])
        return [device.move(backbone) for backbone in loaded] if there else loaded

    monkeypatch.setattr(train, "load_backbones", load)
    monkeypatch.setattr(gpu.tempfile, "TemporaryDirectory", lambda prefix: nullcontext(folder))
    monkeypatch.setattr(gpu.devices, "peak_memory", lambda name: 2**20)
    monkeypatch.setattr(gpu.devices, "reset_peak_memory", lambda name: None)
    with device.CountingDevice() as counting:
        yield counting


@pytest.mark.parametrize(
    "names",
    [
        ("fedot", "cocoop"),
        pytest.param(tuple(load_all()), marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
    ids=["two", "all"],
)
def test_methods_compute_the_same_there_and_are_measured(counting, names):
    lines = list(gpu.report(device.DEVICE.type, "mini-vit", names))
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| method")]
    assert [row for row in rows if not row.endswith("| agrees |")] == []
    assert lines[-1] == f"\n{len(names)} of {len(names)} methods agree with the CPU."
    measured = [line for line in lines if " with mini-vit: " in line]
    assert len(measured) == len(set(names) & set(gpu.MEASURED))
    assert all(title in line for title in TITLES for line in measured)
    assert counting.launches > 100


def test_a_method_that_computes_something_else_or_fails_is_named(counting, monkeypatch):
    plain = train.make_server

    def other(run, setup):
        server = plain(run, setup)
        if setup.backbones[0].device == device.DEVICE:
            if run.method.name == "taskres":
                raise RuntimeError("CUDA error: misaligned address")
            server.method.config.__dict__["lr"] *= 2
        return server

    monkeypatch.setattr(gpu, "make_server", other)
    lines = list(gpu.report(device.DEVICE.type, "mini-vit", ("clip-fc", "taskres")))
    assert any("| clip-fc |" in line and "differs by more than" in line for line in lines)
    assert "| taskres | | | | RuntimeError: CUDA error: misaligned address |" in lines


def test_the_command_writes_the_page_and_needs_a_gpu(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu.devices, "try_gpus", lambda: None)
    assert cli.main(["doctor", "--gpu"]) == 2
    assert "this machine has no GPU that torch can use" in capsys.readouterr().err
    monkeypatch.setattr(gpu.devices, "default_device", lambda: "GPU-1")
    monkeypatch.setattr(gpu.devices, "environment_for", lambda device: {})
    for lines, status in ((["| fedot | agrees |"], 0), (["| fedot | | | | RuntimeError: x |"], 1)):
        monkeypatch.setattr(gpu, "report", lambda device, lines=lines: iter([device, *lines]))
        assert cli.main(["doctor", "--gpu"]) == status
        assert (tmp_path / "fedlens-gpu.md").read_text().splitlines() == ["cuda", *lines]
