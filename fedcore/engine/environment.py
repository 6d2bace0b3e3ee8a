"""The environment that a run's bits depend on: recorded with it, and reused or compared when it resumes."""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import fedcore
from fedcore.base import consent
from fedcore.base.devices import text_of
from fedcore.base.errors import Elsewhere, FedLensError
from fedcore.base.events import Notice
from fedcore.base.files import ASSETS, IN_CHECKOUT, PROJECT, user_path
from fedcore.base.lazy import torch
from fedcore.clip.specs import backbone_spec
from fedcore.config import RunConfig, backbones
from fedcore.engine.clients.local import CHUNK
from fedcore.methods import registry

THREADS = "FEDLENS_THREADS"
"""Environment variable: the CPU threads of a new run."""
_PACKAGES = ("torch", "torchvision", "numpy", "open_clip_torch", "pillow")
"""Packages that compute a run's numbers, or decode its images."""
_AFFECT_BITS = ("device_name", "processor_features", "fedlens", "code", *_PACKAGES, "platform", "tf32",
                "precision")  # fmt: skip
"""Recorded properties that affect the last bits of a number."""
_MAY_DIFFER = ("device_name", "processor_features", "torch", "code")
"""Those of them in which the processes of one run may differ; ``code`` only where the user allows it."""
MIXED_CODE = "FEDLENS_MIXED_CODE"
"""Environment variable: 1 lets machines with other code of FedLens train, and marks their runs."""
_OTHER_REPOSITORY = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_NAMESPACE",
)
"""Environment variables that make git read another repository than the folder's."""
_CONTENT = {
    "weights": "the weights or their preprocessing",
    "weights_digest": "the bytes of the weights' files",
    "data": "the samples of the data set, their labels or domains",
    "pixels": "the image files (their names, sizes or times)",
}
"""Recorded content that must be unchanged when a run resumes."""


def resolve_environment(run: RunConfig, device: str, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Set the choices that affect a run's bits (threads, chunk...), reusing those of an earlier attempt.

    Returns:
        these choices with the versions and the machine, to be stored with the run.
    """
    earlier = earlier or {}
    # The thread count is part of the numbers: torch splits a sum among its threads, and the order of the
    # partial sums decides the last bits.
    threads = int(earlier.get("threads") or _wanted_threads() or _threads_of_torch())
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device.startswith("cuda"):
        # Kernels that add with atomics give other bits in each run. cuBLAS needs a fixed workspace for the
        # deterministic ones, and reads this variable when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return {
        "threads": threads,
        "chunk": int(earlier.get("chunk") or CHUNK),
        **({"passes_halved": int(earlier["passes_halved"])} if earlier.get("passes_halved") else {}),
        "precision": "+".join(dict.fromkeys(b.precision for b in backbones(run))),
        "tf32": run.method.config.get("arithmetic") == "tf32",
        "device": device,
        "device_name": torch.cuda.get_device_name() if device.startswith("cuda") else processor(),
        "processor_features": torch.backends.cpu.get_cpu_capability(),
        "fedlens": fedcore.__version__,
        "code": code(),
        **commits(run.method.file),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: _version(name) for name in _PACKAGES},
        "torch": str(torch.__version__),  # with its build for CPU or CUDA
    }


def _wanted_threads() -> int | None:
    """Return the CPU threads that the environment variable asks for, if it is set."""
    given = os.environ.get(THREADS, "")
    if given and not re.fullmatch(r"[1-9][0-9]{0,3}", given):
        raise FedLensError(f"{THREADS} is '{given[:40]}'; give a number of CPU threads, e.g. 4")
    return int(given) if given else None


_threads_of_torch = cache(lambda: torch.get_num_threads())
"""The number that torch chose in this process, before a run set its own."""
_version = cache(metadata.version)


def code_on_disk() -> str:
    """Return a digest of FedLens' code and of its files that decide numbers.

    The version is the same in all commits between two releases. A method file of the user's has its own
    digest in the config. Protocols and published values are left out, since no run reads them.
    """
    package = ASSETS.parent
    files = [*package.rglob("*.py"), *ASSETS.glob("*.*"), *ASSETS.glob("descriptions/*")]
    digest = hashlib.sha256()
    for name, path in sorted((p.relative_to(package).as_posix(), p) for p in files):
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


code = cache(code_on_disk)
"""The digest of the code that this process found when it first asked; FedLens may be replaced later."""


def other_code(where: str, theirs: str) -> str | None:
    """Compare a machine's code of FedLens with this one's; returns how it differs, None if it does not.

    Raises:
        Elsewhere: if it differs, unless the user allows that.
    """
    if theirs == code():
        return None
    differs = f"{where} has other code of FedLens ({theirs} instead of {code()})"
    if os.environ.get(MIXED_CODE) == "1":
        return differs
    raise Elsewhere(
        f"{differs}; install one commit in both places (if they have it, the worker began with an earlier "
        f"one: start it again), or set {MIXED_CODE}=1 for the worker, whose runs then say so"
    )


def commits(method_file: str | None) -> dict[str, str]:
    """Return the commits of the checkouts that a run depends on, as far as they are under version control.

    ``commit`` is FedLens' own, unless it was installed. ``checkout`` is that of the working folder, from
    which the run or its worker was launched, unless it is FedLens' own. ``method_checkout`` is that of the
    method's file.
    """
    found = {"commit": commit_of(PROJECT) if IN_CHECKOUT else ""}
    with suppress(FileNotFoundError):  # the folder was deleted
        folder = Path.cwd()
        if not (IN_CHECKOUT and folder.is_relative_to(PROJECT)):
            found["checkout"] = commit_of(folder)
    if method_file:
        file = user_path(method_file).resolve()
        with suppress(OSError):  # the content that runs may come from another machine
            if consent.digest(file.read_bytes()) == registry.file_hash(file):
                found["method_checkout"] = commit_of(file.parent, file.name)
    return {name: commit for name, commit in found.items() if commit}


@cache
def commit_of(folder: Path, file: str = "") -> str:
    """Return the commit of a folder's checkout, such as ``1b6fd86 with changes``; empty without one.

    Changes are those of tracked files since the commit.

    Args:
        file: of the folder; the text mentions it if it is not part of the checkout.
    """
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD")
        # To compare contents, ``git status`` runs the filters that a checkout's own config names, so a
        # foreign checkout could run any program. Filters of the user's config (git-lfs) stay.
        named = r"^filter\..*\.(clean|process|required)$"
        listed = _git(folder, "config", "--show-scope", "--name-only", "--get-regexp", named, fails_with=1)
        filters_off = [
            part
            for scope, name in (line.split("\t", 1) for line in listed.splitlines())
            if scope in ("local", "worktree")
            for part in ("-c", f"{name}={'false' if name.endswith('.required') else ''}")
        ]
        status = _git(folder, *filters_off, "status", "--porcelain", "--untracked-files=no")
        changed = " with changes" if status else ""
        if file and not _git(folder, "ls-files", "--", file):
            changed += f" without {file}"
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or an unresponsive disk
        return ""
    return f"{commit}{changed}"


def _git(folder: Path, *arguments: str, fails_with: int = 0) -> str:
    """Run git so that it changes nothing, fetches nothing and starts no file monitor, and return its output.

    Variables that name another repository, which git sets for hooks, are ignored.

    Args:
        fails_with: an exit status that is not an error.
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
    """Return the name of this machine's processor, which ``platform`` does not know on most Linux systems."""
    return _cpuinfo("model name") or platform.processor() or platform.machine() or "cpu"


def bf16_instructions() -> str:
    """Return the names of this processor's instructions for products in bf16; empty if none are known."""
    flags = (_cpuinfo("flags") or _cpuinfo("Features")).split()  # of x86, or of Arm
    return ", ".join(name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in flags)


def _cpuinfo(field: str) -> str:
    """Return a field of Linux's description of the first processor; empty elsewhere."""
    value = re.search(rf"^{field}\s*:\s*(.+)$", text_of(Path("/proc/cpuinfo")), re.MULTILINE)
    return value[1].strip() if value else ""


def environment_differences(
    earlier: Mapping[str, Any] | None, now: Mapping[str, Any], done: int
) -> Iterator[Notice]:
    """Yield a notice for each property that affects bits and differs from the attempt that is resumed."""
    earlier = earlier or {}
    for name in _AFFECT_BITS:
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
            f"resumed after round {done} with its {now['threads']} CPU threads, which affect its last bits, "
            f"instead of the {asked} requested now"
        )


def arithmetic_notices(run: RunConfig, resolved: Mapping[str, Any], device: str) -> Iterator[Notice]:
    """Yield a notice of arithmetic that brings nothing to a run, if a CPU trains its clients."""
    if device.startswith("cuda"):
        return
    if resolved["tf32"]:
        yield Notice("its arithmetic is tf32, which only GPUs have: its clients are trained in fp32 here")
    has_tower = not all(backbone_spec(b.name, b.pretrained).is_black_box for b in backbones(run))
    if has_tower and run.method.config.get("arithmetic") == "bf16" and not bf16_instructions():
        yield Notice(
            "its arithmetic is bf16, for which no instructions of this processor were found: local training "
            "can take ten times as long as in fp32"
        )


def check_versions(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to compute a part of a run with other versions than the recorded ones.

    Builds of one version of torch for different devices count as equal.
    """
    other = [
        f"{name} {now[name]} instead of {recorded[name]}"
        for name in ("fedlens", *_PACKAGES)
        if name in recorded and str(recorded[name]).split("+")[0] != now[name].split("+")[0]
    ]
    if other:
        raise FedLensError(
            f"{platform.node()} cannot train a part of the run: it has {', '.join(other)}; install the same",
            "over",
        )


def numerics(resolved: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties of a process that affect bitwise results, to be compared within a run."""
    return {"node": platform.node(), **{name: str(resolved[name]) for name in _MAY_DIFFER}}


def unlike_processes(
    recorded: Mapping[str, Any], processes: Sequence[Mapping[str, str]]
) -> tuple[str, list[str]]:
    """Compare the processes of a spread run with the first one, and with each other.

    Args:
        recorded: environment of the run's own process, which evaluates too if it has the same kind of device.
        processes: ``numerics`` of each.

    Returns:
        a description of each process for the run's environment, and the differences; both empty if all are
        alike.

    Raises:
        Elsewhere: if one has other code of FedLens, unless the user allows that.
    """
    for process in processes:
        other_code(process["node"], process["code"])
    other_device = "clients_device" in recorded
    first = processes[0] if other_device else {name: str(recorded[name]) for name in _MAY_DIFFER}
    differences = [
        f"{other['node']} has {name.replace('_', ' ')} {other[name]} instead of {first[name]}"
        for other in processes
        for name in _MAY_DIFFER
        if other[name] != first[name]
    ]
    if not differences:
        return "", []
    described = [f"{p['node']}: {', '.join(p[name] for name in _MAY_DIFFER)}" for p in processes]
    return "; ".join(dict.fromkeys(described)), list(dict.fromkeys(differences))


def check_content(earlier: Mapping[str, Any] | None, now: Mapping[str, str]) -> None:
    """Refuse to continue a run with other weights or images than those that it began with."""
    for name, value in now.items():
        before = (earlier or {}).get(name, value)
        if before != value:
            raise FedLensError(
                f"the run began with other content: {_CONTENT[name]} have changed since ({before[:60]} "
                f"before, {value[:60]} now); put the former files back and resume, or clone the run to train "
                "it with the new ones"
            )
