"""Count the floating-point operations of a round as they are executed, without a formula.

The first round of a run is trained once more, under torch's counter, and nothing of it is recorded. So
counting costs a run nothing and changes none of its bits: a counter inside a recorded run would stand between
torch and every operation of a step. torch counts matrix products, convolutions and attention, 2 operations
for each multiplication with addition; sums, activations, norms, factorisations and the optimiser are not
counted.
"""

from dataclasses import dataclass
from pathlib import Path

from fedcore.config import RunConfig
from fedcore.engine.environment import resolve_environment
from fedcore.engine.setup import set_up_again
from fedcore.engine.train import make_loop
from fedcore.progress import Progress, Work
from fedcore.records.events import RoundFinished


@dataclass(frozen=True)
class FlopCount:
    """The operations of round 1 of a run: local training, aggregation, and the values that it records.

    Attributes:
        by_operation: the part of each of torch's operations, such as ``bmm``.
        clients: participants of the round.
        steps: local steps of all participants.
    """

    total: int
    by_operation: dict[str, int]
    clients: int
    steps: int


def count_flops(run: RunConfig, artifacts: Path, device: str) -> Work[FlopCount]:
    """Train the first round of a run and count its operations. Rows that pad unequal batches are counted too.

    Args:
        artifacts: folder of the encodings; a missing one is made.
    """
    from torch.utils.flop_counter import FlopCounterMode

    if run.rounds == 0:
        return FlopCount(0, {}, 0, 0)
    # Round 1 must not be evaluated: it is neither a multiple of this nor the last one.
    run = run.model_copy(update={"evaluate_every": run.rounds + 2, "rounds": run.rounds + 1})
    resolved = resolve_environment(run, device, None)
    setup = yield from set_up_again(run, artifacts, device)
    loop = make_loop(run, setup, int(resolved["chunk"]))
    events = loop.events()
    for event in events:
        if isinstance(event, RoundFinished):  # of round 0, the evaluation before training
            break
    yield Progress("counting the operations of round 1", 0, 1)
    with FlopCounterMode(display=False) as counter:
        finished = next(event for event in events if isinstance(event, RoundFinished))
    counts = counter.get_flop_counts().get("Global", {})  # a method that does not train has none
    by_operation = {str(name).rpartition(".")[2]: n for name, n in counts.items()}
    taken = sum(client.steps for client in finished.clients)
    return FlopCount(counter.get_total_flops(), by_operation, len(finished.clients), taken)
