"""The devices and the memory of this machine, and what a process may use of them, without loading torch."""

import ctypes
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

from fedcore.base.errors import FedLensError, is_gpu_memory
from fedcore.base.files import read_texts, state_folder, write_texts, write_whole

CPU = "cpu"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Device:
    """A device that runs can train on.

    Attributes:
        id: ``cpu``, or the UUID of a GPU or of an instance of a partitioned one.
        memory_total, memory_used: bytes; for the CPU, of the machine or of the control group that limits us.
        load: between 0 and 1, None if it cannot be read.
        capability: of CUDA; the higher, the newer is the GPU.
        index: the GPU's number in ``nvidia-smi``.
        fault: why torch cannot use it, or why it rests; "" if it can; None if nobody has tried it.
    """

    id: str
    name: str
    memory_total: int
    memory_used: int
    load: float | None
    capability: tuple[int, int] = (0, 0)
    index: int | None = None
    fault: str | None = None


def list_devices() -> list[Device]:
    """Return the GPUs that the installed torch can use, the newest and largest first, then the CPU.

    A GPU counts until ``try_gpus`` has found that torch cannot use it.
    """
    total = total_memory()
    cpu = Device(CPU, platform.processor() or "CPU", total, max(0, total - available_memory()), _cpu_load())
    gpus = [gpu for gpu in _gpus() if not gpu.fault]
    return [*sorted(gpus, key=lambda gpu: (gpu.capability, gpu.memory_total), reverse=True), cpu]


def refused_gpus() -> list[str]:
    """Return a sentence for each GPU that torch cannot use, and for each that rests."""
    return [
        f"{gpu.name} {gpu.fault}; it is tried again by itself"
        if gpu.fault.startswith(RESTS)
        else f"{gpu.name} cannot be used ({gpu.fault}); install a driver that fits torch "
        f"{version('torch')}, or a torch that fits the driver"
        for gpu in _gpus()
        if gpu.fault
    ]


def try_gpus() -> None:
    """Compute something on each GPU in a child process, unless that worked before with this driver and torch.

    A driver also lists its GPUs if it is too old for the installed torch, and every run would fail. It takes
    some seconds a GPU; the result is kept in the state folder.
    """
    for gpu in _gpus():
        if gpu.fault == "":
            continue
        fault = trial(gpu.id)
        found = {} if fault is None else {f"{gpu.id} {_software()}": fault}
        _note_trial({gpu.id: "", **found})  # it does not rest any more


def trial(device: str) -> str | None:
    """Compute something on a device in a child process; returns how that failed, "" if it did not.

    None: other programs fill its memory, so it is not known.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", TRIAL, torch_name(device)],
            env={**os.environ, **environment_for(device)},
            stderr=subprocess.PIPE,
            timeout=TRIAL_SECONDS,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"it did not answer for {TRIAL_SECONDS} seconds"
    lines = done.stderr.strip().splitlines() or [f"the trial ended with status {done.returncode}"]
    fault = lines[-1][:300] if done.returncode else ""
    return None if "out of memory" in fault else fault


def let_rest(gpu: str, why: str) -> None:
    """Start no runs on a GPU after a fault; a supervisor tries it after a while ("": it has rested)."""
    _note_trial({gpu: why and f"{RESTS} {why}"})


def rest_of(gpu: str) -> str:
    """Return why a GPU rests; "" if it does not."""
    return read_texts(state_folder() / TRIALS).get(gpu, "")


def _note_trial(results: Mapping[str, str]) -> None:
    file = state_folder() / TRIALS
    write_texts(file, {**read_texts(file), **results})


TRIAL = "import sys, torch; assert torch.ones(8, device=sys.argv[1]).add(1).sum().item() == 16"
TRIAL_SECONDS = 120
TRIALS = "gpus.json"
RESTS = "rests after a fault:"


def named(text: str) -> Device:
    """Return the device that a user names: ``cpu``, or a GPU's number, UUID or its beginning, or name.

    Raises:
        FedLensError: if no device of this machine has that name, or several have.
    """
    devices, asked = list_devices(), text.strip().lower()
    gpus = [gpu for gpu in devices if gpu.id != CPU]
    found = [d for d in devices if asked == d.id.lower()] or [g for g in gpus if asked == str(g.index)]
    found = found or [gpu for gpu in gpus if asked and gpu.id.lower().startswith(asked)]
    found = found or [gpu for gpu in gpus if asked and asked in gpu.name.lower()]
    if len(found) == 1:
        return found[0]
    has = ", ".join([*(f"{gpu.index} ({gpu.name}, {gpu.id})" for gpu in gpus), CPU])
    fault = f"{text!r} names {len(found)} devices of" if found else f"no device {text!r} is in"
    raise FedLensError(f"{fault} this machine; it has {has}", "device")


LOADS = f"load-{platform.node()}.json"  # machines may share a home
SAMPLE_SECONDS, KEPT_SECONDS = 20, 3600
_next_sample = 0.0


def sample_loads() -> None:
    """Record the load of this machine's devices in the state folder, and keep an hour of them."""
    global _next_sample
    if time.monotonic() < _next_sample:
        return
    _next_sample, now = time.monotonic() + SAMPLE_SECONDS, time.time()
    loads = {d.name if d.index is None else f"{d.name} ({d.index})": d.load for d in list_devices()}
    kept = [sample for sample in recorded_loads() if now - KEPT_SECONDS < sample[0] < now]
    with suppress(OSError):
        state_folder().mkdir(parents=True, exist_ok=True)
        write_whole(state_folder() / LOADS, json.dumps([*kept, (now, loads)]).encode())
    for file in state_folder().glob("load-*.json"):  # every container writes its own
        with suppress(OSError):
            if file.stat().st_mtime < now - KEPT_SECONDS:
                file.unlink()


def recorded_loads() -> list[tuple[float, dict[str, float | None]]]:
    """Return the time and the devices' load of each sample of the last hour, the oldest first."""
    try:
        samples = json.loads((state_folder() / LOADS).read_bytes())
        return [(float(at), {str(name): load for name, load in loads.items()}) for at, loads in samples]
    except (OSError, ValueError, TypeError, AttributeError):  # there is none, or another program wrote it
        return []


def _cpu_load() -> float | None:
    """Return the processor's load since the last sample of any thread; None at the first.

    ``psutil.cpu_percent`` remembers a sample per thread, so it would be 0 in each new thread of a page.
    """
    global _last_sample, _last_load
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts the time of guests in that of users too
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    with _sampling:
        if _last_sample is None:
            _last_sample = idle, total
        elif total - _last_sample[1] >= SHORTEST_SAMPLE:
            share = (idle - _last_sample[0]) / (total - _last_sample[1])
            _last_load = min(1.0, max(0.0, 1 - share))
            _last_sample = idle, total
        return _last_load


SHORTEST_SAMPLE = 0.5
"""Processor seconds, of all cores together, that a sample of the load covers at least."""
_sampling = threading.Lock()
_last_sample: tuple[float, float] | None = None
_last_load: float | None = None


@cache
def torch_has_cuda() -> bool:
    """Return whether the installed torch has CUDA, by its version file: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    file = Path(spec.origin).parent / "version.py"
    return bool(file.is_file() and re.search(r"^cuda\b.*=\s*['\"]", file.read_text(), re.MULTILINE))


@cache
def _software() -> str:
    """Return the versions of the driver and of torch, which decide whether a GPU can be used."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return f"driver {pynvml.nvmlSystemGetDriverVersion()}, torch {version('torch')}"
    finally:
        pynvml.nvmlShutdown()


def _gpus() -> list[Device]:
    if not torch_has_cuda():
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver: a machine without a GPU
        return []
    tried, software = read_texts(state_folder() / TRIALS), _software()
    gpus: list[Device] = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # a GPU that has fallen off the bus has no handle
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
                gpus += [_gpu(part, capability, index, tried, software) for part in _parts(handle)]
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    names = [part.strip() for part in visible.split(",") if part.strip()]
    return [gpu for gpu in gpus if any(n == str(gpu.index) or gpu.id.startswith(n) for n in names)]


def _parts(handle: Any) -> list[Any]:
    """Return the instances of a partitioned GPU, which CUDA uses in its place, else the GPU itself."""
    import pynvml

    try:
        partitioned = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError:
        partitioned = False
    if not partitioned:
        return [handle]
    instances = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(pynvml.NVMLError):  # this place for an instance is empty
            instances.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
    return instances


def _gpu(
    handle: Any, capability: tuple[int, int], index: int, tried: Mapping[str, str], software: str
) -> Device:
    import pynvml

    load: float | None = None
    with suppress(pynvml.NVMLError):  # an instance of a partitioned GPU does not report it
        load = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        total, used = memory.total, memory.used
    except pynvml.NVMLError:  # the GPU shares the machine's memory
        total = total_memory()
        used = max(0, total - available_memory())
    uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
    fault = tried.get(uuid) or tried.get(f"{uuid} {software}")
    return Device(uuid, name, total, used, load, capability, index, fault)


def accepts(device: str, first_gpu: str | None) -> tuple[str, ...]:
    """Return the values of ``requested_device`` that a device serves.

    The CPU serves ``auto`` only where there is no GPU.
    """
    if device == CPU:
        return (CPU,) if first_gpu else (CPU, "auto")
    return (device, "auto", "gpu", "cuda")


def accepted_devices() -> set[str]:
    """Return the values of ``requested_device`` that the devices of this machine serve."""
    found = [device.id for device in list_devices()]
    first_gpu = next((device for device in found if device != CPU), None)
    return {asked for device in found for asked in accepts(device, first_gpu)}


def torch_name(device: str) -> str:
    """Return torch's name of a device, in a process that sees this one only."""
    return CPU if device == CPU else "cuda"


PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Environment variables that let OpenMP threads wait without spinning; set them before torch is loaded.

When a browser or another run shares the cores, spinning threads made training three to six times slower
(measured on two cores).
"""


def environment_for(device: str, sharers: int = 1) -> dict[str, str]:
    """Return the environment variables of a process that may use this device only.

    Args:
        sharers: runs that may train on it at once; on the CPU they divide its threads and its memory.
    """
    variables = {
        "CUDA_VISIBLE_DEVICES": "" if device == CPU else device,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **PATIENT_THREADS,
    }
    if device != CPU and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        variables["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # blocks of unequal sizes fit
    if device == CPU and sharers > 1 and "FEDLENS_THREADS" not in os.environ:
        variables["FEDLENS_THREADS"] = variables["OMP_NUM_THREADS"] = str(max(1, _cores() // sharers))
    if device == CPU and sharers > 1 and MEMORY_SHARE not in os.environ:
        variables[MEMORY_SHARE] = str(max(1, total_memory() // sharers))
    return variables


def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MiB of freed memory in this process; other C libraries stay as they are.

    It would return the memory of a step to Linux, which then clears each page of the next step's anew. Larger
    blocks than 32 MiB are returned as before: glibc adapts this limit, up to there, until one is set.
    """
    set_limit = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_limit is not None:
        set_limit(_M_TRIM_THRESHOLD, 2**28)
        set_limit(_M_MMAP_THRESHOLD, MAPPED_BLOCK)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt``, as glibc's malloc.h numbers them."""
MAPPED_BLOCK = 2**25
"""Bytes from which on a block of memory is mapped by itself, and not a part of the heap."""


def _cores() -> int:
    """Return the threads that torch would use: OMP_NUM_THREADS, else the physical cores that we may use."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads):
        return int(threads)
    usable = usable_cpus()
    return min(usable, psutil.cpu_count(logical=False) or usable)


def usable_cpus() -> int:
    """Return the number of CPUs on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


CUDA_CONTEXT = 600 * 2**20
"""Bytes that a process holds on a GPU besides torch's memory: CUDA's context and its libraries' kernels."""


def peak_memory(device: str) -> int:
    """Return the most bytes of memory that this process has used, of a GPU or (``cpu``) of the machine."""
    torch = sys.modules.get("torch")  # a process that trains has loaded it
    if device != "cpu" and torch is not None:
        return int(torch.cuda.max_memory_reserved()) + CUDA_CONTEXT
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    # Linux's peak of this process alone; ``ru_maxrss`` begins with that of its parent
    if found := re.search(r"^VmHWM:\s*(\d+) kB$", text_of(Path("/proc/self/status")), re.MULTILINE):
        return int(found[1]) * 1024
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def fitting(compute: Callable[[int], Result], size: int) -> tuple[Result, int]:
    """Compute with ``size`` things at once, and with half as many whenever a GPU's memory is used up.

    What cannot be divided is given as 2, and is then tried again with the memory that earlier work has kept.

    Returns: the result, and the size that fitted.
    """
    while True:
        try:
            return compute(size), size
        except RuntimeError as error:
            if size == 1 or not is_gpu_memory(error):
                raise
        size //= 2  # only here: an error holds the frames, and with them the tensors, of what failed
        sys.modules["torch"].cuda.empty_cache()


def used_memory(device: str) -> int:
    """Return the bytes of memory that this process uses now, of a GPU or of the machine."""
    torch = sys.modules.get("torch")
    if device != CPU and torch is not None:
        return int(torch.cuda.memory_reserved()) + CUDA_CONTEXT
    return int(psutil.Process().memory_info().rss)


def answers(device: str) -> bool:
    """Return whether this process can go on with its device, as some errors of CUDA last until its end.

    It ends too if the device rests.
    """
    torch = sys.modules.get("torch")
    try:
        if device != CPU and torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return device == CPU or not rest_of(device)


def reset_peak_memory(device: str) -> None:
    """Let ``peak_memory`` begin anew in a process that has worked before.

    Memory that the earlier work has not freed still counts. For the machine's memory this needs Linux.
    """
    torch = sys.modules.get("torch")
    if device != CPU and torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def default_device() -> str:
    """Return the device of a run that names none: of the newest GPUs the one with most room, else the CPU."""
    return max(list_devices(), key=lambda d: (d.capability, d.memory_total - d.memory_used)).id


MEMORY_SHARE = "FEDLENS_MEMORY"
"""Environment variable: the bytes that a run may count on; the supervisor divides memory among runs."""
_MOUNT, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_GROUP_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and use of a control group, as versions 2 and 1 name their files."""
_RECLAIMABLE = re.compile(r"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)
"""Cached files in ``memory.stat``, which make room when a process asks for memory; the last line counts."""


class ControlGroup(NamedTuple):
    """A control group of this process that has a limit. used: bytes, without those that can be reclaimed."""

    limit: int
    used: int


def total_memory() -> int:
    """Return the bytes that this process may use: the machine's memory, or the lowest of its limits."""
    limits = [psutil.virtual_memory().total, *(g.limit for g in limited_groups())]
    if sys.platform != "win32":
        import resource

        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):  # ``ulimit -v`` and ``ulimit -d``
            limit = resource.getrlimit(kind)[0]
            if limit != resource.RLIM_INFINITY:
                limits.append(limit)
    return min(limits)


def available_memory() -> int:
    """Return the bytes that are free for a process of this machine, within its control groups."""
    free = psutil.virtual_memory().available
    return max(0, min([free, *(g.limit - g.used for g in limited_groups())]))


def memory_share() -> int:
    """Return the bytes that a run may count on.

    It decides the chunks of a run and thereby the last bits of its numbers, so it must not depend on how much
    memory is free at the moment.
    """
    given = os.environ.get(MEMORY_SHARE, "")
    if given and not re.fullmatch(r"[1-9][0-9]{0,17}", given):
        raise FedLensError(f"{MEMORY_SHARE} is '{given[:40]}'; give a number of bytes, e.g. 8000000000")
    return min(total_memory(), int(given)) if given else total_memory()


def limited_groups() -> list[ControlGroup]:
    """Return the control groups that limit the memory of this process, outer ones included."""
    found = []
    for folder in _group_folders():
        for limit_file, used_file in _GROUP_FILES:
            limit, used = _number_in(folder / limit_file), _number_in(folder / used_file)
            if limit is not None and used is not None:
                cached = _RECLAIMABLE.findall(text_of(folder / "memory.stat"))
                found.append(ControlGroup(limit, max(0, used - int(cached[-1] if cached else 0))))
    return found


def _group_folders() -> Iterator[Path]:
    """Yield the folders of this process's control groups, innermost first; some may not exist.

    In a container the path may be that of the host. Then only the outermost folder exists, and it is the
    container's.
    """
    for line in text_of(_MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        outermost = _MOUNT / "memory" if controllers else _MOUNT
        folder = outermost / path.lstrip("/")
        yield folder
        if folder != outermost:
            yield from (p for p in folder.parents if p.is_relative_to(outermost))


def _number_in(file: Path) -> int | None:
    """Return the number in a file; None if it holds none, as in a group without a limit."""
    text = text_of(file).strip()
    return int(text) if text.isdecimal() else None


def text_of(file: Path) -> str:
    """Return the text of one of Linux's files about the system; empty if there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or another version of control groups
        return ""


@contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """Let a GPU round the factors of matrix products to TF32 in this block; a CPU has no TF32."""
    from fedcore.base.lazy import torch

    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = wanted
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
