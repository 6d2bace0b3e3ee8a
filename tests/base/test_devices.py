"""What this process may use of the machine, and what the machine is doing."""

import json
import os
import platform
import subprocess
import sys
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from fedcore.base import devices
from fedcore.base.devices import ControlGroup, limited_groups
from fedcore.base.errors import FedLensError

MACHINE = psutil.virtual_memory().total


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def groups(tmp_path, monkeypatch):
    def found(membership: str) -> list[ControlGroup]:
        (tmp_path / "own").write_text(membership)
        return limited_groups()

    monkeypatch.setattr(devices, "_MOUNT", tmp_path / "fs")
    monkeypatch.setattr(devices, "_MEMBERSHIP", tmp_path / "own")
    return found


def test_the_second_version_of_control_groups_with_an_outer_limit(tmp_path, groups):
    inner = tmp_path / "fs" / "user" / "job"
    write(inner, memory__max="max\n", memory__current="700\n")
    write(
        inner.parent,
        memory__max="1000\n",
        memory__current="800\n",
        memory__stat="anon 500\ninactive_file 250\nactive_file 50\n",
    )
    assert groups("0::/user/job\n") == [ControlGroup(1000, 550)]


def test_the_first_version_names_its_controllers(tmp_path, groups):
    stat = "inactive_file 1\ntotal_inactive_file 100\n"
    folder = tmp_path / "fs" / "memory" / "job"
    write(folder, memory__limit_in_bytes="2000\n", memory__usage_in_bytes="900\n", memory__stat=stat)
    assert groups("5:cpu,cpuacct:/other\n4:memory:/job\n0::/\n") == [ControlGroup(2000, 800)]


def test_in_a_container_the_path_is_the_hosts_and_only_the_outermost_folder_is_there(tmp_path, groups):
    write(tmp_path / "fs", memory__max="3000\n", memory__current="10\n")
    assert groups("0::/system.slice/docker-1234.scope\n") == [ControlGroup(3000, 10)]


def test_a_machine_without_control_groups(groups):
    assert limited_groups() == []


def test_a_group_limits_what_the_cpu_has(monkeypatch):
    monkeypatch.setattr(devices, "limited_groups", lambda: [ControlGroup(10**9, 4 * 10**8)])
    cpu = devices.list_devices()[-1]
    assert cpu.memory_total == 10**9
    assert cpu.memory_total - cpu.memory_used == min(6 * 10**8, devices.available_memory())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no ulimit")
def test_a_limit_of_the_process_counts():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9)); "
        "from fedcore.base import devices; print(devices.total_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == min(10**9, MACHINE)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has limits of its own")
def test_freed_memory_is_not_given_back_to_be_asked_for_again():
    code = """
import resource
from fedcore.base.devices import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(20 * 2**20) for _ in range(6)]
    blocks.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
keep_freed_memory()
faults()
print(faults())
"""
    before, after = map(int, subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert before > 10_000 > 1_000 > after


def test_runs_side_by_side_divide_the_memory_unless_the_user_has_said_how_much(monkeypatch):
    monkeypatch.delenv(devices.MEMORY_SHARE, raising=False)
    whole = devices.memory_share()
    assert whole == devices.total_memory() <= MACHINE
    assert devices.MEMORY_SHARE not in devices.environment_for("cpu")
    assert devices.MEMORY_SHARE not in devices.environment_for("GPU-a", 2)
    monkeypatch.setenv(devices.MEMORY_SHARE, devices.environment_for("cpu", 2)[devices.MEMORY_SHARE])
    assert devices.memory_share() == whole // 2
    assert devices.MEMORY_SHARE not in devices.environment_for("cpu", 2), "a share is not divided again"


@pytest.mark.parametrize("given", ["0", "8 GB", "-5", "1e9"])
def test_a_share_that_is_no_number_of_bytes(monkeypatch, given):
    monkeypatch.setenv(devices.MEMORY_SHARE, given)
    with pytest.raises(FedLensError, match="give a number of bytes"):
        devices.memory_share()


Times = namedtuple("Times", "user idle")


def test_a_new_thread_sees_the_load_that_others_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_last_sample", None)
    monkeypatch.setattr(devices, "_last_load", None)
    seen = []
    for times in (Times(100.0, 100.0), Times(103.0, 101.0), Times(103.1, 101.0)):
        monkeypatch.setattr(devices.psutil, "cpu_times", lambda times=times: times)
        with ThreadPoolExecutor(1) as thread:
            seen.append(thread.submit(lambda: devices.list_devices()[-1].load).result())
    assert seen == [None, 0.75, 0.75], "nothing yet; three of four seconds; too short a time to tell"


class Refused(Exception):
    """What NVML raises for a question that a GPU does not answer."""


class Driver:
    """NVML with some GPUs: (uuid, name, capability, total and used memory or None, instances or None)."""

    NVMLError, NVML_DEVICE_MIG_ENABLE = Refused, 1

    def __init__(self, *gpus):
        self.gpus = gpus

    def nvmlSystemGetDriverVersion(self):
        return "470.57"

    def nvmlInit(self): ...
    def nvmlShutdown(self): ...

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.given(self.gpus[index])

    def nvmlDeviceGetUUID(self, gpu):
        return gpu[0]

    def nvmlDeviceGetName(self, gpu):
        return gpu[1]

    def nvmlDeviceGetCudaComputeCapability(self, gpu):
        return gpu[2]

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return namedtuple("Memory", "total used")(*self.given(gpu[3]))

    def nvmlDeviceGetUtilizationRates(self, gpu):
        raise Refused

    def nvmlDeviceGetMigMode(self, gpu):
        return (0 if self.given(gpu[4]) == () else 1, 1)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, number):
        return self.given(gpu[4][number] if number < len(gpu[4]) else None)

    @staticmethod
    def given(value):
        if value is None:
            raise Refused
        return value


DISPLAY = ("GPU-1d", "Quadro P400", (6, 1), (2 * 2**30, 0), None)
H100 = ("GPU-2a", "NVIDIA H100", (9, 0), (80 * 2**30, 70 * 2**30), ())
IDLE_H100 = ("GPU-3b", "NVIDIA H100", (9, 0), (80 * 2**30, 2**30), ())
PART = ("MIG-4c", "NVIDIA A100 MIG 1g.5gb", None, (5 * 2**30, 0), None)
A100 = ("GPU-4c", "NVIDIA A100", (8, 0), (40 * 2**30, 0), (PART,))


@pytest.fixture
def driver(monkeypatch, tmp_path):
    def install(*gpus):
        devices._software.cache_clear()
        monkeypatch.setitem(sys.modules, "pynvml", Driver(*gpus))
        monkeypatch.setattr(devices, "torch_has_cuda", lambda: True)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "state"))
    yield install
    devices._software.cache_clear()


def test_the_newest_gpu_with_most_free_memory_is_taken_and_not_the_first(driver):
    driver(DISPLAY, H100, IDLE_H100)
    assert devices.default_device() == "GPU-3b"
    assert [d.id for d in devices.list_devices()] == ["GPU-2a", "GPU-3b", "GPU-1d", "cpu"]


def test_a_gpu_that_reports_no_memory_uses_the_machines(driver):
    driver(("GPU-5", "NVIDIA GB10", (12, 1), None, None), None)
    gpu, _ = devices.list_devices()
    assert (gpu.id, gpu.memory_total, gpu.load) == ("GPU-5", devices.total_memory(), None)


def test_the_instances_of_a_partitioned_gpu_are_devices(driver, monkeypatch):
    driver(A100, DISPLAY)
    assert [d.id for d in devices.list_devices()] == ["MIG-4c", "GPU-1d", "cpu"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-4c")
    assert devices.default_device() == "MIG-4c"
    driver((*A100[:4], (PART, ("MIG-4d", *PART[1:]))), DISPLAY)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert devices.default_device() == "GPU-1d"


def test_a_device_is_named_by_its_number_its_uuid_or_its_name(driver):
    driver(DISPLAY, H100, IDLE_H100)
    for name, found in (("1", "GPU-2a"), ("gpu-3b", "GPU-3b"), ("quadro", "GPU-1d"), ("CPU", "cpu")):
        assert devices.named(name).id == found
    with pytest.raises(FedLensError, match=r"'h100' names 2 devices .* has 1 \(NVIDIA H100, GPU-2a\), 2 "):
        devices.named("h100")
    with pytest.raises(FedLensError, match="no device '' is in this machine"):
        devices.named("")


def test_a_gpu_on_which_torch_cannot_compute_is_no_device_and_the_reason_is_said(driver, monkeypatch):
    driver(H100)
    too_old = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."
    monkeypatch.setattr(devices, "TRIAL", f"import sys; print('...', file=sys.stderr); sys.exit('{too_old}')")
    assert devices.default_device() == "GPU-2a"  # nobody has tried it
    devices.try_gpus()
    assert [d.id for d in devices.list_devices()] == ["cpu"]
    (said,) = devices.refused_gpus()
    assert said.startswith(f"NVIDIA H100 cannot be used ({too_old}); install a driver that fits torch ")
    monkeypatch.setattr(devices, "TRIAL", "pass")
    devices.try_gpus()  # at the next start, when it has been mended
    assert (devices.refused_gpus(), devices.default_device()) == ([], "GPU-2a")
    monkeypatch.setattr(devices, "TRIAL", "raise SystemExit('not asked again: it worked with this driver')")
    devices.try_gpus()
    assert devices.default_device() == "GPU-2a"
    monkeypatch.setattr(Driver, "nvmlSystemGetDriverVersion", lambda self: "580.1")
    driver(H100)
    devices.try_gpus()
    assert devices.default_device() == "cpu"


@pytest.mark.parametrize("why", ["", "a computation crashed on it"])
def test_a_gpu_that_others_have_filled_is_a_device(driver, monkeypatch, why):
    """One that rested when a worker began was never tried again."""
    driver(H100)
    devices.let_rest("GPU-2a", why)
    monkeypatch.setattr(devices, "TRIAL", "raise SystemExit('torch.OutOfMemoryError: CUDA out of memory.')")
    devices.try_gpus()
    assert (devices.refused_gpus(), devices.default_device()) == ([], "GPU-2a")


def test_a_gpu_that_rests_is_no_device_and_the_reason_is_said(driver, monkeypatch):
    driver(H100)
    devices.let_rest("GPU-2a", "a computation crashed on it")
    assert devices.default_device() == "cpu" and not devices.answers("GPU-2a")
    (said,) = devices.refused_gpus()
    assert said == "NVIDIA H100 rests after a fault: a computation crashed on it; it is tried again by itself"
    monkeypatch.setattr(devices, "TRIAL", "pass")
    devices.try_gpus()  # at a worker's start
    assert devices.default_device() == "GPU-2a" and devices.answers("GPU-2a")


def test_loads_are_recorded_every_few_seconds_for_an_hour(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(devices, "_next_sample", 0.0)
    now = time.time()
    assert devices.recorded_loads() == []
    devices.sample_loads()
    devices.sample_loads()
    ((first, loads),) = devices.recorded_loads()
    assert first >= now and [*loads] == [d.name for d in devices.list_devices()]
    file, ended = (tmp_path / "state" / name for name in (devices.LOADS, "load-a-container.json"))
    ended.touch()
    os.utime(ended, (0, now - devices.KEPT_SECONDS - 1))
    (ended.parent / "load-nobody.json").symlink_to("nowhere")
    file.write_text(json.dumps([(now - devices.KEPT_SECONDS - 1, loads), (now - 60, loads)]))
    monkeypatch.setattr(devices, "_next_sample", 0.0)
    devices.sample_loads()
    assert [round(when - now) < 0 for when, _ in devices.recorded_loads()] == [True, False], "an hour is kept"
    assert file.exists() and not ended.exists()
    for damaged in ("{", "null", "[1]", '{"a": 1}', "[[1, 2]]"):
        file.write_text(damaged)
        assert devices.recorded_loads() == [], damaged
