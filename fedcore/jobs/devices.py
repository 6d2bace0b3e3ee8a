"""What this machine can train on, and how full it is, without loading torch."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

CPU = "cpu"


@dataclass(frozen=True)
class Device:
    """A place to train.

    Attributes:
        id: ``cpu``, or the UUID of a GPU.
        memory_total, memory_used: bytes; of the machine for the CPU.
        load: share of one, None where it cannot be read.
    """

    id: str
    name: str
    memory_total: int
    memory_used: int
    load: float | None


def list_devices() -> list[Device]:
    """The GPUs that the installed torch can use, then the CPU."""
    memory = psutil.virtual_memory()
    cpu = Device(
        CPU, platform.processor() or "CPU", memory.total, memory.total - memory.available,
        psutil.cpu_percent(interval=None) / 100,
    )  # fmt: skip
    return [*(_gpus() if torch_has_cuda() else []), cpu]


@cache
def torch_has_cuda() -> bool:
    """Whether the installed torch was built with CUDA, from its version file: importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).parent / "version.py"
    return bool(version.is_file() and re.search(r"^cuda\b.*=\s*['\"]", version.read_text(), re.MULTILINE))


def _gpus() -> list[Device]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver: a machine without a GPU
        return []
    try:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = [_gpu(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    if visible is None:
        return found
    asked = [part.strip() for part in visible.split(",") if part.strip()]
    return [gpu for i, gpu in enumerate(found) if any(a == str(i) or gpu.id.startswith(a) for a in asked)]


def _gpu(pynvml: object, index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        load: float | None = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except pynvml.NVMLError:  # a partitioned GPU does not say
        load = None
    uuid, name = _text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle))
    return Device(uuid, name, memory.total, memory.used, load)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def accepts(device: str, first_gpu: str | None) -> tuple[str, ...]:
    """Return the values of ``requested_device`` that a device serves.

    The CPU serves ``auto`` only where there is no GPU.
    """
    if device == CPU:
        return (CPU,) if first_gpu else (CPU, "auto")
    return (device, "auto", "gpu", "cuda")


def torch_name(device: str) -> str:
    """What torch calls a device inside a process that sees this one only."""
    return CPU if device == CPU else "cuda"


PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
"""OpenMP threads that wait without spinning: where a browser or another run shares the cores, spinning ones
made training three to six times slower (measured on two cores). To be set before torch is loaded."""


def environment_for(device: str, sharers: int = 1) -> dict[str, str]:
    """Environment variables of a process that may use this device only.

    Args:
        sharers: runs that may train on it at once; on the CPU they divide its threads among them.
    """
    found = {
        "CUDA_VISIBLE_DEVICES": "" if device == CPU else device,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **PATIENT_THREADS,
    }
    if device == CPU and sharers > 1 and "FEDLENS_THREADS" not in os.environ:
        found["FEDLENS_THREADS"] = found["OMP_NUM_THREADS"] = str(max(1, _cores() // sharers))
    return found


def _cores() -> int:
    """Threads that torch would take by itself: OMP_NUM_THREADS, else the physical cores that we may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, psutil.cpu_count(logical=False) or usable)


CUDA_CONTEXT = 600 * 2**20
"""What a process holds on a GPU beside torch's memory: CUDA's context and its libraries' kernels."""


def peak_memory(device: str) -> int:
    """Most bytes of a device's memory that this process has used so far; of the machine's for ``cpu``."""
    torch = sys.modules.get("torch")  # whoever trains has loaded it
    if device != "cpu" and torch is not None:
        return int(torch.cuda.max_memory_reserved()) + CUDA_CONTEXT
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def default_device() -> str:
    """Where a run in the foreground trains: the first GPU, else the CPU."""
    return list_devices()[0].id
