"""The round loop, as a stream of events; it does not know who reads them."""

from collections.abc import Iterator

from fedcore.base.events import Event, Finished, Notice
from fedcore.engine.clients.evaluator import evaluated_clients
from fedcore.engine.round import before_training, train_round
from fedcore.engine.server import Server


class Loop(Server):
    """One run in progress."""

    def events(self) -> Iterator[Event]:
        """Run round 0 (the evaluation before training) unless resumed, then every round.

        Raises:
            Stopped: between two steps, if ``should_stop`` says so; the current round is discarded.
        """
        evaluated, clients = len(evaluated_clients(self.federation.problem)), len(self._clients)
        if evaluated < clients:
            yield Notice(
                f"{evaluated} of the {clients:,} clients are evaluated, drawn once for all rounds; "
                "means over clients are means over these"
            )
        for round_ in range(self.run_state.done + 1, self.rounds + 1):
            yield from train_round(self, round_) if round_ else before_training(self)
        yield Finished(self.rounds)
