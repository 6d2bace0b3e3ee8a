"""The round loop against textbook loops, its events, checkpoints and stops."""

import time

import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.base.events import Finished, RoundFinished
from fedcore.engine.clients.local import Stopped
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server, traffic
from fedcore.methods.base import Ragged
from tests.support.against import cells, client_logits, counted, global_logits
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import drawn_backbone, finished, run_rounds, tiny_federation


@pytest.fixture(scope="module")
def backbone():
    return drawn_backbone()


def _method(backbone, federation=None, **config):
    federation = federation or tiny_federation(backbone)
    return BiasMethod(BiasConfig(**config), federation.problem), federation


def textbook(method, federation, rounds: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """FedAvg as a textbook writes it, one client at a time. ``rounds``: the participants of each round."""
    config, problem = method.config, federation.problem
    state = method.init(problem.generator)
    weight, biases = state.shared["weight"], list(state.local["bias"])
    for round_, clients in enumerate(rounds, start=1):
        total, shares = torch.zeros_like(weight), 0
        for c in clients:
            w, b = weight.clone().requires_grad_(), biases[c].clone().requires_grad_()
            optimiser = torch.optim.SGD([w, b], config.lr, config.momentum, weight_decay=config.weight_decay)
            rows = federation.train.held_by(c)
            for epoch in range(config.local_epochs):
                draws = problem.generator("batches", round_, epoch, problem.clients[c])
                for part in rows[torch.randperm(len(rows), generator=draws)].split(config.batch_size):
                    optimiser.zero_grad()
                    logits = federation.pool.values[part] @ w.T + b
                    torch.nn.functional.cross_entropy(logits, federation.pool.labels[part]).backward()
                    optimiser.step()
            share = len(rows) if config.weighting == "samples" else 1
            total, shares = total + share * w.detach(), shares + share
            biases[c] = b.detach()
        weight = total / shares
    return weight, torch.stack(biases)


def assert_is_textbook(loop, method, federation, rounds: list[list[int]]) -> None:
    weight, bias = textbook(method, federation, rounds)
    torch.testing.assert_close(loop.state.shared["weight"], weight, rtol=0, atol=1e-10)
    torch.testing.assert_close(loop.state.local["bias"], bias, rtol=0, atol=1e-10)


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("chunk", [1, 2, 32])
def test_batched_rounds_equal_the_textbook_loop(backbone, epochs, chunk):
    method, federation = _method(backbone, local_epochs=epochs)
    loop = run_rounds(method, federation, 3, chunk=chunk)
    assert_is_textbook(loop, method, federation, [[0, 1, 2]] * 3)


@pytest.fixture(scope="module")
def five(backbone):
    return tiny_federation(backbone, samples=(9, 5, 7, 12, 4))


@pytest.mark.parametrize("chunk", [1, 32])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_who_takes_part_is_averaged_by_its_own_samples_and_alone_moves(five, weighting, chunk):
    method = BiasMethod(BiasConfig(weighting=weighting), five.problem)
    loop = run_rounds(method, five, 4, participation=0.4, chunk=chunk)
    present = [[row.client - 1 for row in event.clients] for event in loop.finished[1:]]
    assert [len(clients) for clients in present] == [2] * 4
    assert any(clients != sorted(range(2)) for clients in present), "not the first two again and again"
    assert_is_textbook(loop, method, five, present)
    assert loop.state.rounds_trained.tolist() == [sum(c in clients for clients in present) for c in range(5)]


def test_every_round_draws_its_own_participants_until_all_have_taken_part(five):
    loop = Server(BiasMethod(BiasConfig(), five.problem), five, 1, participation=0.4)
    drawn = [tuple(loop.participants(round_).tolist()) for round_ in range(1, 31)]
    assert drawn == [tuple(loop.participants(round_).tolist()) for round_ in range(1, 31)]
    assert len(set(drawn)) > 5, "of ten pairs"
    assert all(a < b for a, b in drawn)
    assert {c for pair in drawn for c in pair} == set(range(5))
    order = (2, 0, 4, 1, 3)
    turned = tiny_federation(samples=(9, 5, 7, 12, 4), order=order)
    other = Server(BiasMethod(BiasConfig(), turned.problem), turned, 1, participation=0.4)
    names = {five.problem.clients[i] for i in drawn[0]}
    assert names == {turned.problem.clients[i] for i in other.participants(1)}, "drawn by name"


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, 1), (0.3, 2), (0.49, 2), (0.5, 3), (0.9, 5), (1.0, 5)]
)
def test_a_share_of_the_clients_is_rounded_half_up_and_never_none(five, share, expected):
    loop = Server(BiasMethod(BiasConfig(), five.problem), five, 1, participation=share)
    assert len(loop.participants(1)) == expected


def test_every_cell_of_the_matrix_counts_what_the_models_predict(backbone):
    method, federation = _method(backbone)
    loop = run_rounds(method, federation, 2)
    ours = client_logits(method, loop.state, federation)
    scores = [global_logits(method, loop.state, federation), *ours]
    broadcast = cells(loop.finished[-1])
    assert set(broadcast) == {(m, t) for m in range(4) for t in range(1, 6)}
    for (model, test_set), cell in broadcast.items():
        rows = federation.test.held_by(test_set - 1)
        assert (cell.correct, cell.total) == counted(scores[model], federation, rows)
        loss = torch.nn.functional.cross_entropy(scores[model][rows], federation.pool.labels[rows])
        assert cell.loss == pytest.approx(float(loss), abs=1e-12)
    validation = [(c.model, c.test_set) for c in loop.finished[-1].cells if c.split == 1]
    assert validation == [(0, 1), (0, 2), (0, 3), (1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("options", [{}, {"participation": 0.4}])
@pytest.mark.parametrize("optimiser_state", ["fresh", "kept"])
def test_resuming_gives_the_rows_of_an_uninterrupted_run(backbone, tmp_path, options, optimiser_state):
    method, federation = _method(backbone, optimiser_state=optimiser_state, optimiser="adam")
    whole = run_rounds(method, federation, 5, **options)
    part = run_rounds(method, federation, 3, folder=tmp_path, run_key="k", **options)
    resumed = Server(method, federation, 5, folder=tmp_path, run_key="k", **options)
    resumed.resume(part.finished[-1].checkpoint)
    rest = finished(all_rounds(resumed))
    assert [e.round for e in rest] == [4, 5]
    assert [e.cells for e in rest] == [e.cells for e in whole.finished[-2:]]
    assert [e.train_loss for e in rest] == [e.train_loss for e in whole.finished[-2:]]


def assert_steps_of_torch(method, federation, rates: list[float]) -> None:
    """One client, one batch a round: each round is a step of torch's SGD, at this round's learning rate."""
    config = method.config
    loop = run_rounds(method, federation, len(rates))
    first = method.init(federation.problem.generator)
    weight, bias = (v.clone().requires_grad_() for v in (first.shared["weight"], first.local["bias"][0]))
    rows, sgd = federation.train.index[0], None
    for rate in rates:
        if sgd is None or config.optimiser_state == "fresh":
            sgd = torch.optim.SGD(
                [weight, bias], rate, momentum=config.momentum, weight_decay=config.weight_decay
            )
        sgd.param_groups[0]["lr"] = rate
        sgd.zero_grad()
        scores = federation.pool.values[rows] @ weight.T + bias
        torch.nn.functional.cross_entropy(scores, federation.pool.labels[rows]).backward()
        sgd.step()
    torch.testing.assert_close(loop.state.shared["weight"], weight.detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(loop.state.local["bias"][0], bias.detach(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("optimiser_state", ["fresh", "kept"])
def test_a_kept_optimiser_goes_on_where_it_stopped_and_a_fresh_one_does_not(backbone, optimiser_state):
    federation = tiny_federation(backbone, samples=(9,))
    config = BiasConfig(lr=0.5, momentum=0.9, batch_size=64, optimiser_state=optimiser_state)
    assert_steps_of_torch(BiasMethod(config, federation.problem), federation, [0.5] * 3)


def test_the_learning_rate_falls_by_half_a_cosine_after_the_warm_up(backbone):
    """As torch's own scheduler, an epoch of which is a round of ours."""
    federation = tiny_federation(backbone, samples=(9,))
    config = BiasConfig(
        lr=0.5, momentum=0.9, batch_size=64, schedule="cosine", warmup_rounds=1, optimiser_state="kept"
    )
    sgd = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    cosine, rates = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=4), [1e-5]
    for _ in range(3):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        cosine.step()
    assert_steps_of_torch(BiasMethod(config, federation.problem), federation, rates)


def test_the_seconds_of_a_round_are_split_and_none_is_lost(backbone):
    begin = time.perf_counter()
    loop = run_rounds(*_method(backbone), 2)
    spent = time.perf_counter() - begin
    parts = [(e.seconds_train, e.seconds_aggregate, e.seconds_evaluate) for e in loop.finished]
    assert parts[0][:2] == (0, 0) and all(min(p) > 0 for p in parts[1:])
    assert sum(map(sum, parts)) < spent


def test_stopping_discards_the_unfinished_round(backbone, tmp_path):
    method, federation = _method(backbone)
    seen, steps = [], iter(range(9))  # three steps a round: in round 4
    loop = Server(method, federation, 9, folder=tmp_path, should_stop=lambda: next(steps, None) is None)
    events = (seen.append(event.round) for event in all_rounds(loop))
    with pytest.raises(Stopped):
        list(events)
    assert seen == [0, 1, 2, 3] and loop.run_state.done == 3


def test_traffic_counts_what_crosses_and_ragged_rows_without_padding(backbone):
    method, federation = _method(backbone)
    loop = run_rounds(method, federation, 1)
    event = loop.finished[1]
    assert event.scalars_up == event.scalars_down == 3 * 3 * 16
    assert event.bytes_up == 3 * 3 * 16 * 8
    assert [c.bytes_up for c in event.clients] == [3 * 16 * 8] * 3
    ragged = traffic({"r": Ragged(torch.zeros(2, 5, 4), torch.tensor([1, 5]))}, 2)
    assert ragged.scalars.tolist() == [4, 20] and ragged.bytes.tolist() == [16, 80]


def test_a_loss_that_is_not_finite_names_the_client_and_the_round(backbone):
    federation = tiny_federation(backbone)
    federation.pool.values[federation.train.index[1, 0]] = float("nan")
    method, _ = _method(backbone, federation)
    with pytest.raises(FedLensError, match="client 'client-b'.*round 1; lower lr"):
        run_rounds(method, federation, 2)


def test_many_clients_keep_the_full_matrix_for_the_last_round_only(backbone, monkeypatch):
    """Others: the global row (5), three clients' own sets and every client on both domains (6)."""
    monkeypatch.setattr("fedcore.engine.clients.evaluator.FULL_MATRIX_CLIENTS", 2)
    method, federation = _method(backbone)
    loop = run_rounds(method, federation, 2)
    tests = [cells(event) for event in loop.finished]
    assert [len(t) for t in tests] == [20, 5 + 3 + 6, 20]
    assert set(tests[1]) == {(0, t) for t in range(1, 6)} | {(m, t) for m in (1, 2, 3) for t in (m, 4, 5)}
    monkeypatch.setattr("fedcore.engine.clients.evaluator.FULL_MATRIX_CLIENTS", 3)
    whole = cells(run_rounds(method, federation, 2).finished[1])
    assert tests[1].items() <= whole.items(), "what is kept is what the full matrix has there"


def test_evaluate_every_still_evaluates_the_last_round(backbone):
    loop = run_rounds(*_method(backbone), 5, evaluate_every=2)
    assert [bool(e.cells) for e in loop.finished] == [True, False, True, False, True, True]


def test_zero_rounds_report_the_start_and_finish(backbone):
    method, federation = _method(backbone)
    events = list(all_rounds(Server(method, federation, 0)))
    assert [type(e) for e in events] == [RoundFinished, Finished]


def test_a_checkpoint_of_another_config_and_a_damaged_one_are_refused(backbone, tmp_path):
    method, federation = _method(backbone)
    path = run_rounds(method, federation, 1, folder=tmp_path, run_key="one").finished[-1].checkpoint
    with pytest.raises(FedLensError, match="made with another config, other weights or other images"):
        Server(method, federation, 2, run_key="two").resume(path)
    with open(path, "r+b") as file:
        file.truncate(100)
    with pytest.raises(FedLensError, match="cannot resume from"):
        Server(method, federation, 2, run_key="one").resume(path)
