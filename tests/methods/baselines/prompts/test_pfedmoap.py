from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedcore.base.errors import FedLensError
from fedcore.methods.base import Uploads
from fedcore.methods.baselines.prompts import pfedmoap
from tests.support.against import (
    NEAR,
    assert_predictions,
    build,
    client_logits,
    engine_batches,
    naive_clip,
    samples,
)
from tests.support.oracles.fedavg import mean_nll
from tests.support.oracles.promptfl import sgd, weighted
from tests.support.tiny import run_rounds, tiny_federation

SETTINGS = {"context_length": 3, "lr": 0.05, "gate_lr": 0.5, "gate_width": 8, "batch_size": 4}
FOUR = (5, 4, 3, 4)
GATE = [f"gate_{layer}_{part}" for layer in "qkvo" for part in "wb"]


def attention(gate, q, texts) -> torch.Tensor:
    """One query over the experts' texts, one head after the other. Shape: q (8,), texts (E, 8) -> (8,)."""
    wq, bq, wk, bk, wv, bv, wo, bo = gate
    q, keys, values = wq @ q + bq, [wk @ t + bk for t in texts], [wv @ t + bv for t in texts]
    heads = []
    for i in range(8):  # a width of 8 leaves each head one number
        shares = torch.softmax(torch.stack([10 * q[i] * k[i] for k in keys]), 0)
        heads.append(sum(s * v[i] for s, v in zip(shares, values, strict=True)))
    return wo @ torch.stack(heads) + bo


def scores(local, experts, gate, scale, x) -> list[torch.Tensor]:
    """Shape: own (K, 16), experts: (K, 16) each, x (n, 16)."""
    found = []
    for h in x:
        h = h / h.norm()
        row = []
        for k, t in enumerate(local):
            score = scale * (h @ t)
            if experts:
                texts = torch.stack([t[::2], *(e[k][::2] for e in experts)])
                score = 0.5 * score + scale * (h[::2] @ attention(gate, h[::2], texts))
            row.append(score)
        found.append(torch.stack(row))
    return found


def nearest(prompts, i, count) -> list[torch.Tensor]:
    others = sorted((float((p - prompts[i]).norm()), j) for j, p in enumerate(prompts) if j != i)
    return [prompts[j] for _, j in others[:count]]


def test_agrees_with_the_naive_implementation():
    """Four clients with three experts each, its own one included."""
    federation = tiny_federation(samples=FOUR)
    clip = naive_clip(federation)
    method = build("pfedmoap", federation, **SETTINGS, experts=3, local_epochs=1, schedule="constant")
    first = method.init(federation.problem.generator)
    mean, gates = first.shared["context"], [[first.local[n][i] for n in GATE] for i in range(4)]
    xs, labels = samples(federation)
    given: list[list[torch.Tensor]] = [[]] * 4
    for steps_of in engine_batches(federation, method, 2):
        sent = []
        for i, steps in enumerate(steps_of):
            texts = [clip.texts(p) for p in given[i]]
            values = [v.clone().requires_grad_() for v in (mean, *gates[i])]
            momenta: list[torch.Tensor | None] = [None] * 9
            for chosen in steps:
                params, *gate = values
                found = scores(clip.texts(params), texts, gate, clip.scale, xs[i][chosen])
                loss = mean_nll(found, labels[i][chosen])
                moving = values if texts else values[:1]
                gradients = torch.autograd.grad(loss, moving)
                moved = [
                    sgd([v], [g], part, {"lr": lr, "momentum": 0.9, "weight_decay": 5e-4})[0]
                    for v, g, part, lr in zip(
                        moving, gradients, slots(momenta), [0.05] + [0.5] * 8, strict=False
                    )
                ]
                values = moved + values[len(moved) :]
            sent.append(values[0].detach())
            gates[i] = [v.detach() for v in values[1:]]
        mean = weighted(sent, [float(n) for n in FOUR])
        given = [nearest(sent, i, 2) for i in range(4)]
    loop = run_rounds(method, federation, 2)
    state = loop.state
    torch.testing.assert_close(state.shared["context"], mean, **NEAR)
    torch.testing.assert_close(state.server["prompts"], torch.stack(sent), **NEAR)
    for n, name in enumerate(GATE):
        torch.testing.assert_close(state.local[name], torch.stack([g[n] for g in gates]), **NEAR)
    for part in ("gate_q_w", "gate_o_w"):
        assert (state.local[part] - first.local[part]).abs().max() > 1e-4  # it did train
    shown = []
    for local, experts, gate in zip(sent, given, gates, strict=True):
        texts = [clip.texts(p) for p in experts]
        shown.append(scores(clip.texts(local), texts, gate, clip.scale, federation.pool.values[:6]))
    assert_predictions(loop, None, [torch.stack(one) for one in shown])


def slots(momenta: list) -> list:
    """One list for each value, which ``sgd`` updates in place."""
    for i, held in enumerate(momenta):
        momenta[i] = held if isinstance(held, list) else [held]
    return momenta


@pytest.mark.parametrize("selection", ["nearest", "random", "one_order"])
def test_a_client_gets_prompts_of_others_once_it_has_taken_part(selection, monkeypatch):
    """Five of ten clients a round; experts are last prompts that were sent, of others, without repetition."""
    federation = tiny_federation(samples=(4,) * 10)
    method = build("pfedmoap", federation, **SETTINGS, experts=4, local_epochs=1, selection=selection)
    loop = run_rounds(method, federation, 3, participation=0.5)
    state, sizes = loop.state, {}
    taken = state.rounds_trained > 0
    assert 5 < int(taken.sum()) <= 10
    everyone = torch.arange(10)
    for i, experts in enumerate(method.sends(state, everyone)["experts"]):
        others = [j for j in taken.nonzero()[:, 0].tolist() if j != i]
        found = [j for e in experts for j in others if torch.equal(e, state.server["prompts"][j])]
        assert (len(set(found)) == 3) if taken[i] else not experts.any()
        sizes[i] = found
    if selection == "random":
        assert sizes != {i: f for i, f in sizes.items() if f == sorted(f)}
    with torch.no_grad():
        once = [i for i in range(10) if state.rounds_trained[i] == 1]
        models = method.models(state).of(everyone)
        assert once and not models["experts"][once].any(), "an attention that was never trained does not vote"
    # down: the mean, and from the second participation on three experts of 3 x 16 numbers
    seen, prompt = torch.zeros(10, dtype=torch.bool), 3 * 16
    for round_, event in enumerate(loop.finished[1:], 1):
        participants = loop.participants(round_)
        assert event.scalars_down == len(participants) * prompt + int(seen[participants].sum()) * 3 * prompt
        assert event.scalars_up == len(participants) * prompt
        seen[participants] = True
    monkeypatch.setattr(pfedmoap, "COMPARED", 3)
    in_pieces = run_rounds(method, federation, 3, participation=0.5)
    assert torch.equal(state.personal["chosen"], in_pieces.state.personal["chosen"])
    assert [event.cells for event in loop.finished] == [event.cells for event in in_pieces.finished]


def test_of_one_order_everybody_gets_the_first_in_every_round():
    """Three experts of ten clients: four clients are anybody's, in whatever order the config has them."""
    found = []
    for rounds, order in ((1, None), (2, None), (1, tuple(range(9, -1, -1)))):
        federation = tiny_federation(samples=(4,) * 10, order=order)
        method = build("pfedmoap", federation, **SETTINGS, experts=4, local_epochs=1, selection="one_order")
        chosen = run_rounds(method, federation, rounds).state.personal["chosen"]
        names = federation.problem.clients
        found.append({names[i]: [names[j] for j in row] for i, row in enumerate(chosen.tolist())})
    given = found[0]
    anybodys = {name for row in given.values() for name in row}
    three = next(row for name, row in given.items() if name not in anybodys)
    first = [*three, *(anybodys - set(three))]
    assert len(first) == 4
    assert given == found[1] == found[2] == {i: [j for j in first if j != i][:3] for i in given}


@pytest.mark.parametrize(
    "options", [{}, {"optimiser": "adam", "optimiser_state": "kept"}], ids=["sgd", "adam with its state"]
)
def test_what_a_client_trains_does_not_depend_on_who_shares_its_chunk(options):
    """A client without experts beside one with some: weight decay moved its attention, and Adam counted."""
    federation = tiny_federation(samples=(4,) * 10)
    method = build("pfedmoap", federation, **SETTINGS, experts=4, local_epochs=1, **options)
    alone, together = (run_rounds(method, federation, 3, participation=0.5, chunk=n) for n in (1, 32))
    seen = alone.state.rounds_trained
    assert set(seen.tolist()) >= {1, 2}
    first = method.init(federation.problem.generator).local
    for name in GATE:
        torch.testing.assert_close(together.state.local[name], alone.state.local[name], atol=1e-9, rtol=0)
        assert torch.equal(together.state.local[name][seen <= 1], first[name][seen <= 1])
    pairs = zip(*(client_logits(method, loop.state, federation) for loop in (alone, together)), strict=True)
    assert all(torch.allclose(one, other, atol=1e-8, rtol=0) for one, other in pairs)


def test_an_attention_votes_once_it_has_been_trained_however_often_its_client_took_part():
    """The same client alone in rounds 1 and 2 has no experts to train with, and gets some after round 3."""
    federation = tiny_federation(samples=(4,) * 3)
    method = build("pfedmoap", federation, **SETTINGS, experts=2, local_epochs=1)
    loop = run_rounds(method, federation, 3, participation=0.4)
    one, again, other = (int(loop.participants(round_)) for round_ in (1, 2, 3))
    assert one == again != other
    first = method.init(federation.problem.generator).local
    assert all(torch.equal(loop.state.local[name][one], first[name][one]) for name in GATE)
    everyone = torch.arange(3)
    assert method.sends(loop.state, everyone)["experts"][one].any() and loop.state.rounds_trained[one] == 2
    assert not method.models(loop.state).of(everyone)["experts"].any()


class Largest(TorchDispatchMode):
    """Notes the most numbers that a tensor made in this block holds."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {id(v.untyped_storage()) for v in tree_leaves(args) if torch.is_tensor(v)}
        for value in tree_leaves(result):
            if torch.is_tensor(value) and id(value.untyped_storage()) not in given:
                self.numbers = max(self.numbers, value.untyped_storage().size() // value.element_size())
        return result


def test_the_server_copies_no_prompt_of_a_client_that_never_took_part(monkeypatch):
    """After a round of five of 200 clients no tensor that was made has a prompt for each of the 200."""
    monkeypatch.setattr(pfedmoap, "COMPARED", 5)
    problem = tiny_federation().problem
    method = build("pfedmoap", tiny_federation(), **SETTINGS, experts=4)
    method.problem = replace(problem, clients=tuple(f"client-{i:03}" for i in range(200)))
    first = method.init(problem.generator)
    prompts = first.server["prompts"].clone()
    state = replace(
        first, server={**first.server, "prompts": prompts}, rounds_trained=torch.zeros(200, dtype=torch.int64)
    )
    sending = torch.tensor([3, 50, 51, 120, 199])
    uploads = Uploads(
        {"context": torch.randn(5, 3, 16, dtype=torch.float64)}, sending, torch.ones(5, dtype=torch.int64)
    )
    with Largest() as made:
        after = method.aggregate(state.server_side(), uploads, problem.generator)
        assert after.server["prompts"].shape == (5, 3, 16)
        prompts[sending] = after.server["prompts"]
        after = replace(after, server={**after.server, "prompts": prompts})
        sent, models = method.sends(after, sending), method.models(after).of(sending)
    assert sent["experts"].shape == models["experts"].shape == (5, 3, 3, 16) and sent["experts"].all()
    assert 5 * 3 * 3 * 16 <= made.numbers < 200 * 3 * 16
    stored = after.shared | after.personal | {"gated": after.server["gated"]}
    assert sum(v.numel() for v in stored.values()) == 3 * 16 + 200 * 3 + 200


def test_a_width_that_the_heads_cannot_share_is_refused():
    with pytest.raises(FedLensError, match="8 heads, which cannot share a width of 12") as refused:
        build("pfedmoap", tiny_federation(), gate_width=12)
    assert refused.value.field == "gate_width"
