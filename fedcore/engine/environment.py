"""The conditions that a run's bits depend on: recorded with it, kept by a resume, and compared with now."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import fedcore
from fedcore.config import RunConfig, backbones
from fedcore.engine.clients.memory import CHUNK
from fedcore.errors import FedLensError
from fedcore.lazy import torch
from fedcore.methods import consent, registry
from fedcore.paths import IN_CHECKOUT, PROJECT, user_path
from fedcore.records.events import Notice

THREADS = "FEDLENS_THREADS"
"""Environment variable: the CPU threads of a run that begins."""
_PACKAGES = ("torch", "torchvision", "numpy", "open_clip_torch", "pillow")
"""Packages that compute a run's numbers, or decode its images."""
_DECIDE = ("device_name", "processor_features", "fedlens", *_PACKAGES, "platform", "tf32", "precision")
"""Recorded conditions that decide the last bits of a number."""
_COMPUTES = ("device_name", "processor_features", "torch")
"""Those of them in which the processes of one run may differ."""
_WITHOUT_BF16 = ("DEFAULT", "NO AVX", "AVX2")
"""What torch calls processors that have no instructions for bf16."""
_OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
                     "GIT_PREFIX", "GIT_NAMESPACE")  # fmt: skip
"""Environment variables by which git answers for another repository than that of the folder."""
_CONTENT = {
    "weights": "the weights or their preprocessing",
    "weights_digest": "the bytes of the weights' files",
    "data": "the samples of the data set, their labels or domains",
    "pixels": "the image files (their names, sizes or times)",
}
"""Recorded content, without which a run must not go on."""


def resolve_environment(run: RunConfig, device: str, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fix the choices that decide a run's bits (threads, chunk...), keeping those of an earlier attempt.

    Returns:
        these choices with the versions and the machine, to be stored with the run.
    """
    earlier = earlier or {}
    threads = int(earlier.get("threads") or _wanted_threads() or torch.get_num_threads())
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return {
        "threads": threads,
        "chunk": int(earlier.get("chunk") or CHUNK),
        "precision": "+".join(dict.fromkeys(b.precision for b in backbones(run))),
        "tf32": run.method.config.get("arithmetic") == "tf32",
        "device": device,
        "device_name": torch.cuda.get_device_name() if device.startswith("cuda") else processor(),
        "processor_features": torch.backends.cpu.get_cpu_capability(),
        "fedlens": fedcore.__version__,
        **({"commit": commit} if (commit := checkout_commit()) else {}),
        **user_commits(run.method.file),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: _version(name) for name in _PACKAGES},
        "torch": str(torch.__version__),  # with its build for CPU or CUDA
    }


def _wanted_threads() -> int | None:
    """Return the CPU threads that the environment variable asks for, if it is set.

    Raises:
        FedLensError: when it is no positive number.
    """
    given = os.environ.get(THREADS, "")
    if given and not re.fullmatch(r"[1-9][0-9]{0,3}", given):
        raise FedLensError(f"{THREADS} is '{given[:40]}'; give a number of CPU threads, e.g. 4")
    return int(given) if given else None


_version = cache(metadata.version)


@cache
def checkout_commit() -> str:
    """Return the commit of FedLens' checkout, such as ``1b6fd86 with changes``; empty if it was installed.

    Changes are those of tracked files since the commit.
    """
    return commit_of(PROJECT) if IN_CHECKOUT else ""


def user_commits(method_file: str | None) -> dict[str, str]:
    """Return the commits of the user's own checkouts, where they are under version control.

    ``checkout`` is that of the working folder, from which the run or its worker was launched; FedLens' own is
    recorded as ``commit`` already. ``method_checkout`` is that of the file that defines the method.
    """
    commits: dict[str, str] = {}
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # deleted since
        return commits
    if not (IN_CHECKOUT and folder.is_relative_to(PROJECT)):
        commits["checkout"] = commit_of(folder)
    if method_file:
        file = user_path(method_file).resolve()
        if _is_what_runs(file):
            commits["method_checkout"] = commit_of(file.parent, file.name)
    return {name: commit for name, commit in commits.items() if commit}


def _is_what_runs(method_file: Path) -> bool:
    """Return whether the file has the content that runs, which may have come from another machine."""
    try:
        return consent.digest(method_file.read_bytes()) == registry.file_hash(method_file)
    except OSError:
        return False


@cache
def commit_of(folder: Path, file: str = "") -> str:
    """Return the commit of a folder's checkout, such as ``1b6fd86 with changes``; empty without one.

    Args:
        file: of the folder; the text says so where it is not part of the checkout.
    """
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD")
        filters = _filters_off(folder)
        changed = (
            " with changes" if _git(folder, *filters, "status", "--porcelain", "--untracked-files=no") else ""
        )
        if file and not _git(folder, "ls-files", "--", file):
            changed += f" without {file}"
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or a disk that does not answer
        return ""
    return f"{commit}{changed}"


def _filters_off(folder: Path) -> list[str]:
    """Return git's options that keep it from running the filters that a checkout's own config names.

    ``git status`` runs them to compare contents. Those of the user's config (git-lfs) stay.
    """
    named = r"^filter\..*\.(clean|process|required)$"
    listed = _git(folder, "config", "--show-scope", "--name-only", "--get-regexp", named, fails_with=1)
    scopes = (line.split("\t", 1) for line in listed.splitlines())
    return [part for scope, name in scopes if scope in ("local", "worktree")
            for part in ("-c", f"{name}={'false' if name.endswith('.required') else ''}")]  # fmt: skip


def _git(folder: Path, *arguments: str, fails_with: int = 0) -> str:
    """Return the output of git, which changes nothing, fetches nothing and starts no monitor of files.

    Variables that name another repository, as git sets them for hooks, do not count.

    Args:
        fails_with: an exit status that is no error.
    """
    variables = {name: value for name, value in os.environ.items() if name not in _OTHER_REPOSITORY}
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=10, env=variables | {"GIT_NO_LAZY_FETCH": "1"}
    )
    if done.returncode not in (0, fails_with):
        done.check_returncode()
    return done.stdout.strip()


def processor() -> str:
    """Return the name of this machine's processor, which Python does not know on most Linux systems."""
    try:
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        listed = ""
    name = re.search(r"^model name\s*:\s*(.+)$", listed, re.MULTILINE)
    return name[1].strip() if name else platform.processor() or platform.machine() or "cpu"


def environment_differences(
    earlier: Mapping[str, Any] | None, now: Mapping[str, Any], done: int
) -> Iterator[Notice]:
    """Say what decides a run's bits and differs from the attempt that is resumed after round ``done``."""
    earlier = earlier or {}
    for name in _DECIDE:
        before = earlier.get(name, now[name])
        if before != now[name]:
            title = name.replace("_", " ")
            yield Notice(
                f"resumed after round {done} with another {title}: {before} before, {now[name]} now",
                repeats_exactly=False,
            )
    asked = _wanted_threads()
    if asked and asked != earlier.get("threads", asked):
        yield Notice(
            f"resumed after round {done} with its {now['threads']} CPU threads, which decide its last bits, "
            f"not with the {asked} that it was given now"
        )


def unsuited_arithmetic(run: RunConfig, resolved: Mapping[str, Any], device: str) -> Iterator[Notice]:
    """Say where a run's clients are trained on a device that is not made for its arithmetic."""
    if device.startswith("cuda"):
        return
    if resolved["tf32"]:
        yield Notice("its arithmetic is tf32, which only GPUs have: its clients are trained in fp32 here")
    if run.method.config.get("arithmetic") == "bf16" and not resolved["processor_features"].startswith(
        "AVX512"
    ):
        yield Notice("its arithmetic is bf16, in which this processor is slower than in fp32")


def check_versions(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to compute a part of a run with other versions than those that are recorded with it.

    A build of torch for another device is no other version.

    Raises:
        FedLensError: naming the versions that differ.
    """

    def version(values: Mapping[str, Any], name: str) -> str:
        return str(values[name]).partition("+")[0]

    other = [
        f"{name} {now[name]} instead of {recorded[name]}"
        for name in ("fedlens", *_PACKAGES)
        if name in recorded and version(recorded, name) != version(now, name)
    ]
    if other:
        raise FedLensError(
            f"{platform.node()} cannot train a part of the run: it has {', '.join(other)}; install the same",
            "over",
        )


def computed_by(resolved: Mapping[str, Any]) -> dict[str, str]:
    """Return what of a process decides the last bits of its numbers, to be compared within a run."""
    return {"node": platform.node(), **{name: str(resolved[name]) for name in _COMPUTES}}


def unlike_processes(
    recorded: Mapping[str, Any], processes: Sequence[Mapping[str, str]]
) -> tuple[str, list[str]]:
    """Compare the processes over which a run is spread with the first one, and with each other.

    Args:
        recorded: by the run's process, which computes numbers too where it has the same kind of device.
        processes: ``computed_by`` of each.

    Returns:
        what each of them is, for the run's environment, and the differences; both empty where all are alike.
    """
    alone = "clients_device" in recorded  # then the first process has another kind of device
    first = processes[0] if alone else {name: str(recorded[name]) for name in _COMPUTES}
    differences = [
        f"{other['node']} has {name.replace('_', ' ')} {other[name]} instead of {first[name]}"
        for other in processes
        for name in _COMPUTES
        if other[name] != first[name]
    ]
    if not differences:
        return "", []
    what = [f"{p['node']}: {', '.join(p[name] for name in _COMPUTES)}" for p in processes]
    return "; ".join(dict.fromkeys(what)), list(dict.fromkeys(differences))


def check_content(earlier: Mapping[str, Any] | None, now: Mapping[str, str]) -> None:
    """Refuse to continue a run with other weights or images than those that it began with.

    Raises:
        FedLensError: saying what is different, and what to do.
    """
    for name, value in now.items():
        before = (earlier or {}).get(name, value)
        if before != value:
            raise FedLensError(
                f"the run began with other content: {_CONTENT[name]} have changed since ({before[:60]} "
                f"before, {value[:60]} now); put the former files back and resume, or clone the run to train "
                "it with the new ones"
            )
