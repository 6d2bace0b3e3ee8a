"""Nothing local can be in what crosses: a transport that sees every tensor, over all registered methods."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from fedcore.base.events import RoundFinished
from fedcore.engine.clients.executor import Cohort
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server, Transport
from fedcore.methods import registry
from fedcore.methods.base import Method, Params, Ragged
from fedcore.methods.federation import Federation
from fedcore.methods.fedot import FedOT
from tests.support.against import build, federation_for
from tests.support.method_cases import CASES, slow_but
from tests.support.tiny import drawn_backbone, tiny_cohorts

ROUNDS = 2
"""What leaves a client in the second may be of what it kept from the first."""
SHORTEST = 8
"""Numbers that a piece must have before an affine match of all of them is evidence."""
ALMOST_ONE = 1 - 1e-9
ALIKE = 1 - 1e-4


@dataclass
class Listening(Transport):
    """Keeps a copy of every tensor that crosses, each participant's part by itself, without padding."""

    sent: list[dict[str, list[Tensor]]] = field(default_factory=list)
    received: list[dict[str, list[Tensor]]] = field(default_factory=list)

    def up(self, sent: dict[str, Tensor | Ragged]) -> dict[str, Tensor | Ragged]:
        crossing = super().up(sent)
        self.sent.append({name: parts(value) for name, value in crossing.items()})
        return crossing

    def down(self, sent: Params) -> Params:
        crossing = super().down(sent)
        self.received.append({name: parts(value) for name, value in crossing.items()})
        return crossing


def parts(value: Tensor | Ragged) -> list[Tensor]:
    if isinstance(value, Ragged):
        return [v[:n].double().clone() for v, n in zip(value.values, value.lengths.tolist(), strict=True)]
    return [v.double().clone() for v in value]


def pieces(secret: Tensor) -> list[Tensor]:
    """Rows and columns of a private tensor, or runs of it where those are short, that are not constant.

    Whatever contains the tensor, transposed or not, contains some of them. Shape: -> (pieces, length) each.
    """
    secret = secret.double()
    secret = secret.reshape(1, -1) if secret.dim() < 2 else secret  # a single number has no pieces
    if secret.shape[-1] < SHORTEST:
        secret = secret.flatten()
        secret = secret[: len(secret) // SHORTEST * SHORTEST].view(-1, SHORTEST)
    found = [secret.flatten(0, -2), secret.transpose(-1, -2).flatten(0, -2)]
    return [
        rows[(rows - rows.mean(1, keepdim=True)).norm(dim=1) > 1e-9]
        for rows in found
        if rows.shape[1] >= SHORTEST
    ]


def arrangements(crossing: Tensor) -> Iterator[Tensor]:
    yield crossing.flatten()
    if crossing.dim() > 1:
        yield crossing.transpose(-1, -2).flatten()


def unit(rows: Tensor) -> Tensor:
    """Centred and of length 1: two rows are affine copies of each other when their product is 1 or -1."""
    centred = rows - rows.mean(-1, keepdim=True)
    return centred / torch.linalg.vector_norm(centred, dim=-1, keepdim=True).clamp(min=1e-12)


def different(values: list[Tensor]) -> list[Tensor]:
    """The tensors without repetition: a broadcast gives all clients the same."""
    return [v for i, v in enumerate(values) if not any(torch.equal(v, earlier) for earlier in values[:i])]


def evidence(secrets: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """The pieces of private tensors, centred and of length 1, with what they are of."""
    return [(what, unit(rows)) for what, secret in secrets for rows in pieces(secret) if len(rows)]


def carried(crossing: Tensor, wanted: list[tuple[str, Tensor]]) -> list[str]:
    """Whose pieces stand in a crossing tensor, times any number plus any number.

    What is alike in double precision is so in single precision, which is looked at first.
    """
    found = []
    for flat in arrangements(crossing.double()):
        for width in {rows.shape[1] for _, rows in wanted if rows.shape[1] <= len(flat)}:
            windows = unit(flat.unfold(0, width, 1))
            short = windows.float()
            for what, rows in wanted:
                if rows.shape[1] != width:
                    continue
                lowest, highest = (rows.float() @ short.T).aminmax()
                if max(-lowest, highest) < ALIKE:
                    continue
                if (rows @ windows.T).abs().max() > ALMOST_ONE:
                    found.append(what)
    return list(dict.fromkeys(found))


def secrets(loop: Server, before: Params) -> Iterator[tuple[str, Tensor]]:
    """What each client keeps: its local parameters before and after the round, and how they moved."""
    for name, after in loop.state.local.items():
        for i, client in enumerate(loop.federation.problem.clients):
            yield f"{client}'s {name} before the round", before[name][i]
            yield f"{client}'s {name} after the round", after[i]
            yield f"the change of {client}'s {name}", after[i] - before[name][i]


def samples(federation: Federation) -> Iterator[tuple[str, Tensor]]:
    for i, client in enumerate(federation.problem.clients):
        yield f"{client}'s samples", federation.pool.x(federation.train.held_by(i))


def leaks(
    method: Method, federation: Federation, cohorts: tuple[Cohort, ...] = (), largest: float = float("inf")
) -> tuple[list[str], Listening]:
    """Run two rounds; one line for every private tensor that is found in something that crossed.

    Args:
        largest: numbers of a tensor up to which it is looked through.
    """
    road, found, seen = Listening(), [], 0
    loop = Server(method, federation, ROUNDS, transport=road, cohorts=cohorts)
    encoded = [line for c in loop.cohorts for line in samples(c.federation)]
    before = {name: value.clone() for name, value in loop.state.local.items()}
    for event in all_rounds(loop):
        if not isinstance(event, RoundFinished) or event.round == 0:
            continue
        crossings = [*(("up", sent) for sent in road.sent[seen:]), ("down", road.received[-1])]
        seen = len(road.sent)
        wanted = evidence((*secrets(loop, before), *encoded))
        for direction, crossed in crossings:
            for name, values in crossed.items():
                found += [
                    f"{what} went {direction} as {name} in round {event.round}"
                    for value in different([v for v in values if v.numel() <= largest])
                    for what in carried(value, wanted)
                ]
        before = {name: value.clone() for name, value in loop.state.local.items()}
    return found, road


# a whole network is sent by fedavg-vision, which takes long to look through, and nothing is kept
@pytest.mark.parametrize("case", slow_but(set(CASES) - {"fedavg-vision"}, CASES))
def test_nothing_local_crosses(case):
    check(case)


def test_nothing_local_crosses_in_the_small_tensors_of_a_network():
    check("fedavg-vision", largest=200)


def check(case: str, **options: float) -> None:
    name, config, up, down, local = CASES[case]
    federation = federation_for(name, config)
    method = build(name, federation, **config)
    found, road = leaks(method, federation, **options)
    assert found == []
    assert len(road.sent) == len(road.received) == ROUNDS
    for sent, received in zip(road.sent, road.received, strict=True):
        assert set(sent) == up
        assert set(received) == down
        assert not local & (set(sent) | set(received))
        for values in (*sent.values(), *received.values()):
            assert len(values) == len(federation.problem.clients)
    assert set(method.init(federation.problem.generator).local) == local


def test_nothing_local_crosses_between_backbones():
    """Samples as either CLIP encodes them, and prompts of clients with either."""
    config = registry.build_config("sdfed", CASES["sdfed"][1])
    parts = [(drawn_backbone(), 1, {}), (drawn_backbone(seed=5, embed_dim=24), 2, {"max_steps": 1})]
    cohorts = tiny_cohorts(registry.get("sdfed"), config, parts)
    found, road = leaks(cohorts[0].method, cohorts[0].federation, cohorts)
    assert found == []
    assert [set(sent) for sent in road.sent] == [{"global_prompt"}] * 2 * ROUNDS, "each cohort by itself"
    assert [set(sent) for sent in road.received] == [{"global_prompt"}] * ROUNDS


LEAKS = {
    "itself": lambda secret: secret,
    "scaled and shifted": lambda secret: 3 - 0.01 * secret,
    "transposed": lambda secret: secret.transpose(-1, -2),
    "one row among others": lambda secret: torch.cat(
        [torch.sin(torch.arange(5.0).double()).expand(len(secret), -1), secret[:, 0, 3]], 1
    ),
}


@pytest.mark.parametrize("kind", LEAKS)
@pytest.mark.parametrize("named", [pytest.param("extra", marks=pytest.mark.slow), "classifier"])
def test_a_leak_is_heard(kind, named):
    """The test above can fail: a FedOT that sends X, openly or inside the classifier."""

    class Leaky(FedOT):
        def upload(self, params, record, data):
            sent = super().upload(params, record, data)
            hidden = LEAKS[kind](params["matrix"])
            if named == "extra":
                return {**sent, "extra": hidden}
            rows, short = sent["classifier"].clone(), hidden.flatten(1)[:, :48]
            rows.view(len(rows), -1)[:, : short.shape[1]] = short
            return {"classifier": rows}

        def aggregate(self, state, uploads, generator):
            return state

    federation = federation_for("fedot", CASES["fedot"][1])
    method = Leaky(registry.build_config("fedot", CASES["fedot"][1]), federation.problem)
    found, _ = leaks(method, federation)
    assert any(f"matrix after the round went up as {named}" in line for line in found)


def test_a_change_and_a_sample_are_heard_too():
    torch.manual_seed(0)
    sample, noise = torch.randn(5, 24, dtype=torch.float64), torch.randn(3, 24, dtype=torch.float64)

    def carries(crossing: Tensor, secret: Tensor) -> bool:
        return carried(crossing, evidence([("it", secret)])) == ["it"]

    assert carries(torch.cat([noise, 0.5 * sample[2:3]]), sample)
    assert not carries(noise, sample)
    assert not carries(sample.mean(0), sample)
    assert carries(torch.stack([sample[1], noise[0]], 1), sample)  # a row as a column
    assert not carries(torch.zeros(4, 24), sample)
    short = torch.randn(16, 4, dtype=torch.float64)  # rows too short to be evidence by themselves
    assert carries(torch.cat([noise.flatten(), -2 * short.flatten()]), short)
    assert not carries(noise, short)
