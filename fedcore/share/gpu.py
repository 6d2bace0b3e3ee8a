"""A page about a GPU to attach to an issue: whether it computes what the CPU does, how fast, and in how much.

Nothing is downloaded: methods are compared on embedded data, and what is measured has random weights.
"""

import math
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedcore.base import devices
from fedcore.base.errors import first_line
from fedcore.base.events import RoundFinished
from fedcore.base.lazy import open_clip
from fedcore.base.progress import result_of
from fedcore.clip.specs import MINI_MODELS
from fedcore.config import RunConfig, parse
from fedcore.engine.clients.local import bytes_of_client
from fedcore.engine.environment import resolve_environment
from fedcore.engine.plan import plan
from fedcore.engine.round import train_round
from fedcore.engine.server import Server
from fedcore.engine.train import make_server, set_up_again
from fedcore.methods.base import Ragged
from fedcore.methods.federation import Rows
from fedcore.methods.registry import load_all
from fedcore.papers.mini import DOMAINS, rehearsal

BOUND = 1e-3
"""Largest |a - b| / |b| after two steps, in norms, that the rounding of single precision explains."""
NOISE = 1e-4
"""A smaller |b| counts as this: the gradient of an attention's key bias is zero but for rounding."""
TESTED = 2
"""Images of each test set: some methods encode every class for each image, and evaluation takes no steps."""
MEASURED, IMAGES = ("fedot", "sdfed", "fedalign", "feddeap"), 256
READS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_linalg_check_errors",
         "unique", "_unique", "_unique2", "unique_dim", "unique_consecutive")  # fmt: skip
"""Operations whose results the host waits for."""


class Launches(TorchDispatchMode):
    """Counts the operations that compute, each at least one kernel of a GPU, and those of ``READS``."""

    launches = reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it; views compute nothing."""
        self.launches += not any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        self.reads += func._opname in READS
        return func(*args, **(kwargs or {}))


def trained(
    run: RunConfig, artifacts: Path, device: str, steps: int = 2
) -> tuple[Server, dict[str, Tensor], dict[str, float]]:
    """Train a run's first round with so many steps of each client.

    Returns: what can be compared (losses, uploads, logits of the last pass), and what was measured.
    """
    resolve_environment(run, device, None)
    setup = result_of(set_up_again(run, artifacts, device))
    test = setup.federation.test
    few = Rows.of([test.held_by(owner)[:TESTED].numpy() for owner in range(len(test.counts))])
    federation = replace(setup.federation, test=few)
    cohorts = tuple(replace(cohort, federation=federation, max_steps=steps) for cohort in setup.cohorts)
    server = make_server(run, replace(setup, federation=federation, cohorts=cohorts))
    found = dict[str, Tensor]()
    upward, logits = server.transport.up, setup.method.logits

    def up(sent: dict[str, Any]) -> dict[str, Any]:
        found.update({f"uploads {n}": v.values if isinstance(v, Ragged) else v for n, v in sent.items()})
        return upward(sent)

    def kept(*given: Any) -> Tensor:
        found["logits"] = logits(*given)
        return found["logits"]

    vars(server.transport)["up"], vars(setup.method)["logits"] = up, kept
    devices.reset_peak_memory(device)
    with Launches() as counted:  # type: ignore[no-untyped-call]
        server.run_state.done = 0  # without the evaluation before training
        last = next(event for event in train_round(server, 1) if isinstance(event, RoundFinished))
    losses = [last.train_loss, *(cell.loss for cell in last.cells)]
    found["losses"] = torch.tensor([loss for loss in losses if loss is not None])
    peak = devices.peak_memory(device) / 2**20
    measured = {"s a round": last.seconds_train or 0.0, "MiB at most": peak}
    return server, found, measured | {"launches": counted.launches, "reads": counted.reads}


def report(device: str, backbone: str = "ViT-B-32", methods: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of the page, in Markdown; the last one says how many methods agree.

    Args:
        device: torch's name.
        backbone: of what is measured.
        methods: default: all.
    """
    names, agree = methods or tuple(load_all()), 0
    yield f"# FedLens on {torch.cuda.get_device_name() if device == 'cuda' else device}\n"
    yield f"torch {torch.__version__}, CUDA {torch.version.cuda}, {platform.platform()}\n"
    yield "| method | losses | uploads | logits | |\n|---|---|---|---|---|"
    small = rehearsal(parse({"name": "GPU", "methods": [{"name": name} for name in names]}))
    data = small.data.model_copy(update={"domains": DOMAINS[:2], "shots": 2})
    runs = plan(small.model_copy(update={"rounds": 1, "seeds": (1,), "data": data})).runs
    with tempfile.TemporaryDirectory(prefix="fedlens-gpu-") as temporary:
        folder = Path(temporary)
        for run in runs:
            if "batch_size" in run.method.config:
                run.method.config["batch_size"] = 4  # else a client has one step only
            off = {"losses": 0.0, "uploads": 0.0, "logits": 0.0}
            try:
                (_, ours, _), (_, theirs, _) = (trained(run, folder, where) for where in (device, "cpu"))
                for name, b in theirs.items():
                    a, b, kind = ours[name].detach().cpu().double(), b.detach().double(), name.split()[0]
                    gap = torch.where(a == b, 0.0, a - b).norm() / b[b.isfinite()].norm().clamp(min=NOISE)
                    off[kind] = max(off[kind], math.inf if gap.isnan() else float(gap))
            except Exception as error:  # noqa: BLE001 - an error is a result
                yield f"| {run.method.name} | | | | {first_line(error)[:200]} |"
                continue
            agrees = max(off.values()) <= BOUND
            agree += agrees
            verdict = "agrees" if agrees else f"**differs by more than {BOUND:g}**"
            yield f"| {run.method.name} | {' | '.join(f'{v:.1e}' for v in off.values())} | {verdict} |"
        weights = None
        if backbone not in MINI_MODELS:
            weights = str(folder / "random.pt")
            torch.save(open_clip().create_model(backbone).state_dict(), weights)
        for run in (run for run in runs if run.method.name in MEASURED):
            chosen = run.backbone.model_copy(update={"name": backbone, "pretrained": weights})
            run = run.model_copy(update={"backbone": chosen})
            (_, _, one), (server, _, two) = (trained(run, folder, device, steps) for steps in (1, 2))
            two |= {f"{name} a step": two.pop(name) - one[name] for name in ("launches", "reads")}
            forecast = bytes_of_client(server.method, server.federation, server.state)
            two["MiB forecast for its clients"] = forecast * len(server.participants(1)) / 2**20
            begun, clip = time.perf_counter(), server.federation.problem.backbone
            with torch.no_grad():
                clip.embed_images(torch.rand(IMAGES, 3, *[clip.spec.image_size] * 2).to(device)).cpu()
            two["images/s encoded"] = IMAGES / (time.perf_counter() - begun)
            yield f"\n{run.method.name} with {backbone}: " + ", ".join(f"{v:.4g} {n}" for n, v in two.items())
    yield f"\n{agree} of {len(names)} methods agree with the CPU."
