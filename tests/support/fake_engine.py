"""An engine without torch: quick, deterministic, and with a state that depends on every round before.

Resuming from the wrong round, or losing one, therefore changes all later numbers. As a script it is the job
process of the supervisor's tests.
"""

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from fedcore.base.events import (
    AFTER_AGGREGATION,
    Cell,
    ClientRound,
    Diagnostic,
    Entity,
    Event,
    Finished,
    Notice,
    RoundFinished,
    Started,
)
from fedcore.base.progress import Progress, Work
from fedcore.config import RunConfig
from fedcore.engine import checkpoint
from fedcore.engine.clients.local import Stopped
from fedcore.jobs import handlers as job_training
from fedcore.jobs import launcher, process
from fedcore.jobs import supervisor as worker
from fedcore.jobs.handlers import Job
from fedcore.store import Store
from fedcore.store.jobs import TRAINING, Claim

TOTAL = 1000


def train(
    run: RunConfig,
    *,
    artifacts: Path,
    folder: Path,
    device: str = "cpu",
    resume_from: str | None = None,
    environment: dict[str, Any] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """The engine's signature. ``method.config``: seconds per round, ``fail_at`` round, ``forget_the_end``."""
    options = run.method.config
    state, done = f"seed {run.seed} {run.method.name}", -1
    if resume_from is not None:
        done, state = read_checkpoint(Path(resume_from))
    entities = [
        Entity(0, "global", "global"),
        *(
            Entity(i, "client", f"client-{i}", domain="photo", samples=10, class_counts=(4, 6))
            for i in (1, 2, 3)
        ),
    ]
    yield Progress("encoding", 3, 3)
    yield Started(
        entities=(*entities, Entity(4, "domain", "photo", domain="photo", samples=30)),
        rounds_total=run.rounds,
        environment={"threads": 1, "chunk": 32},
    )
    yield Notice("a remark")
    for number in range(done + 1, run.rounds + 1):
        end = time.monotonic() + float(options.get("seconds", 0))
        while number and time.monotonic() < end:
            if should_stop():
                raise Stopped
            time.sleep(0.005)
        if number and should_stop():
            raise Stopped
        if number == options.get("fail_at"):
            raise ZeroDivisionError("the fake engine was told to")
        state = hashlib.sha256(f"{state} {number}".encode()).hexdigest()
        path = write_checkpoint(folder, number, state)
        yield _round(number, state, str(path))
    if not options.get("forget_the_end"):
        yield Finished(run.rounds)


def write_checkpoint(folder: Path, number: int, state: str = "") -> Path:
    """A checkpoint of the fake engine: its state is in the metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"round": str(number), "run": state, "digest": "0" * 32}
    path = checkpoint.path_of(folder, number)
    path.write_bytes(b"".join(checkpoint.with_digest(save({"taken": np.zeros(1)}, metadata))))
    return path


def read_checkpoint(path: Path) -> tuple[int, str]:
    with safe_open(path, "np") as file:
        return int(file.metadata()["round"]), file.metadata()["run"]


def _round(number: int, state: str, path: str) -> RoundFinished:
    draws = [int(state[i : i + 4], 16) % (TOTAL + 1) for i in range(0, 48, 4)]
    cells = [
        Cell(
            split=split,
            stage=AFTER_AGGREGATION,
            model=model,
            test_set=test_set,
            correct=draws[(3 * model + test_set + split) % len(draws)],
            total=TOTAL,
            loss=0.5,
        )
        for split in (1, 2)
        for model in (0, 1, 2, 3)
        for test_set in (1, 2, 3)
    ]
    clients = (
        tuple(
            ClientRound(client=i, steps=5, train_loss=0.25 * i, bytes_up=100, bytes_down=200)
            for i in (1, 2, 3)
        )
        if number
        else ()
    )
    figures = (Diagnostic("alpha", draws[0] / 7, client_a=1, client_b=2), Diagnostic("drift", draws[1] / 3))
    return RoundFinished(
        round=number,
        train_loss=draws[2] / TOTAL if number else None,
        seconds_train=0.1,
        seconds_aggregate=0.01,
        seconds_evaluate=0.02,
        scalars_up=50,
        scalars_down=60,
        bytes_up=300,
        bytes_down=600,
        clients=clients,
        cells=tuple(cells),
        diagnostics=figures,
        checkpoint=path,
    )


training = partial(job_training.train, engine=train)
"""The handler of a run, with this engine."""


def handle(job: Job) -> Work[dict[str, Any]]:
    """A task: ``steps`` of ``seconds``; ``fail`` raises, ``arrays`` writes a file, ``result`` comes back."""
    args = job.args
    for step in range(1, args.get("steps", 1) + 1):
        yield Progress("stepping", step, args.get("steps", 1))
        time.sleep(args.get("seconds", 0))
    if args.get("fail"):
        raise ZeroDivisionError("the fake task was told to\nfail")
    if args.get("arrays"):
        job.write_arrays(squares=np.arange(args["arrays"]) ** 2)
    return {"sum": args.get("result", 0)}


def start(claim: Claim, pool: str) -> subprocess.Popen[bytes]:
    """Start this file as the process of a job."""
    arguments = ["job", str(claim.db), claim.kind, str(claim.id), claim.owner, str(claim.attempt)]
    command, log = ["tests.support.fake_engine", *arguments], claim.folder / launcher.PROCESS_LOG
    return launcher.start_detached(command, log, holder=(claim.db, claim.owner))


MACHINE = launcher.ThisMachine(["cpu"], start)


def revive(store: Store) -> None:
    """Start this file as the supervisor, as a job's process does with the real one."""
    worker.ensure_worker(store, ["tests.support.fake_engine", "supervisor"])


def main() -> int:
    """``job DB KIND ID OWNER ATTEMPT``, or ``supervisor DB [IDLE]``."""
    what, db, *rest = sys.argv[1:]
    if what == "job":
        kind, number, owner, attempt = rest
        claimed = Claim(Path(db), kind, int(number), owner, int(attempt))
        handler = training if kind == TRAINING else handle
        outcome = process.work(claimed, "cpu", handler=handler, beat_seconds=0.2, revive=revive)
        return launcher.UNRECORDED_STATUS if outcome == "unrecorded" else 0
    return worker.serve(db, machines=lambda store: MACHINE, tick=0.05, idle=float(rest[0] if rest else 60))


if __name__ == "__main__":
    sys.exit(main())
