"""Clients with different backbones and budgets in one federation."""

from dataclasses import replace

import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.base.events import BEFORE_AGGREGATION, GLOBAL, Started
from fedcore.config import loads
from fedcore.engine.clients.executor import Cohort, after_aggregation
from fedcore.engine.plan import plan
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.engine.train import train
from fedcore.methods import registry
from fedcore.methods.baselines.prompts.promptfl import PromptFL, PromptFLConfig
from fedcore.methods.baselines.zero_shot import ZeroShot, ZeroShotConfig
from fedcore.methods.fedot import FedOT, FedOTConfig
from fedcore.methods.sdfed.method import SDFed, SDFedConfig
from tests.support.against import cells, client_logits, counted, counts, engine_batches, naive_clip, samples
from tests.support.method_cases import CASES
from tests.support.oracles import sdfed as oracle
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import drawn_backbone, finished, parts, run_rounds, tiny_cohorts, tiny_federation

SAMPLES = (9, 5, 7, 6)
SGD = {"momentum": 0.9, "weight_decay": 5e-4}
STRONG = {"batch_size": 4, "local_epochs": 2}
WEAK = {"batch_size": 2, "max_steps": 2}


@pytest.fixture(scope="module")
def narrow():
    """d = 16, m = 16."""
    return drawn_backbone(seed=0)


@pytest.fixture(scope="module")
def wide():
    """Another CLIP: d = 24, m = 16."""
    return drawn_backbone(seed=5, embed_dim=24)


def sdfed(**changes) -> SDFedConfig:
    return SDFedConfig(**{"lr": 0.05, "global_length": 3, "local_length": "2,5,3,4", **changes})


def mixed(narrow, wide, config=None) -> tuple[Cohort, ...]:
    """Two strong clients with the narrow CLIP, two weak ones with the wide."""
    parts = [(narrow, 2, STRONG), (wide, 2, WEAK)]
    return tiny_cohorts(SDFed, config or sdfed(), parts, samples=SAMPLES)


def run(cohorts, rounds=2, **options):
    return run_rounds(cohorts[0].method, cohorts[0].federation, rounds, cohorts=cohorts, **options)


@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"components": "pfhf+srlp", "weighting": "uniform"}, marks=pytest.mark.slow)],
    ids=lambda changes: "-".join(changes.values()) or "paper",
)
def test_two_backbones_agree_with_the_naive_loop(narrow, wide, changes):
    """METHODS.md 2: prompts live in token space, so G_s is shared by clients with d = 16 and d = 24."""
    cohorts = mixed(narrow, wide, config=sdfed(**changes))
    method, config = cohorts[0].method, cohorts[0].method.config
    first = method.init(cohorts[0].federation.problem.generator)
    owner = [c for c in cohorts for _ in c.clients]
    drawn = [engine_batches(c.federation, c.method, 2) for c in owner]
    g_s, locals_ = oracle.run(
        [c.federation.problem.backbone.model for c in owner],
        narrow.tokenizer,
        cohorts[0].federation.problem.classes,
        [samples(c.federation)[0][i] for i, c in enumerate(owner)],
        samples(cohorts[0].federation)[1],
        first.shared["global_prompt"],
        [p[:n] for p, n in zip(first.local["local_prompt"], method.lengths, strict=True)],
        [[drawn[i][r][i][: c.max_steps] for i, c in enumerate(owner)] for r in range(2)],
        [c.federation.problem.backbone.logit_scale for c in owner],
        {**config.model_dump(), **SGD},
    )
    loop = run(cohorts)
    torch.testing.assert_close(loop.state.shared["global_prompt"], g_s, atol=1e-6, rtol=0)
    assert (g_s - first.shared["global_prompt"]).abs().max() > 1e-3  # it did train
    assert [c.steps for c in loop.finished[-1].clients] == [6, 4, 2, 2]
    for i, c in enumerate(owner):
        length, clip = int(method.lengths[i]), naive_clip(c.federation)
        local = loop.state.local["local_prompt"][i]
        torch.testing.assert_close(local[:length], locals_[i], atol=1e-6, rtol=0)
        used = locals_[i] @ oracle.projector(g_s, 0.6) if config.components == "pfhf+srlp" else locals_[i]
        scores = client_logits(c.method, loop.state, c.federation)[i]
        expected = clip.scores(clip.texts(used), c.federation.pool.values)
        torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)


def test_a_model_is_evaluated_through_its_own_backbone_on_every_test_set(narrow, wide):
    cohorts = mixed(narrow, wide)
    loop = run(cohorts, 1)
    found = counts(loop.finished[-1])
    assert set(found) == {(m, t) for m in range(1, 5) for t in range(1, 7)}
    for cohort in cohorts:
        scores = client_logits(cohort.method, loop.state, cohort.federation)
        for i in cohort.clients:
            for j in range(6):
                rows = cohort.federation.test.held_by(j)
                assert found[i + 1, j + 1] == counted(scores[i], cohort.federation, rows)
    assert set(cells(loop.finished[-1], split=1)) == {(i, i) for i in range(1, 5)}
    assert set(cells(loop.finished[-1], stage=BEFORE_AGGREGATION)) == {(i, i) for i in range(1, 5)}


@pytest.mark.parametrize(
    ("cls", "settings"), [(PromptFL, PromptFLConfig(context_length=3)), (ZeroShot, ZeroShotConfig())]
)
def test_a_global_prompt_is_as_many_models_as_there_are_backbones(narrow, wide, cls, settings):
    """Each client predicts with the common prompt through its own CLIP; no cell calls itself global."""
    parts = [(narrow, 2, {}), (wide, 2, {})]
    cohorts = tiny_cohorts(cls, settings, parts, samples=SAMPLES)
    loop = run(cohorts, 1)
    for event in loop.finished:
        found = cells(event)
        assert {model for model, _ in found} == {1, 2, 3, 4}
    for cohort in cohorts:
        alone = Server(cohort.method, cohort.federation, 1)
        alone.run_state = loop.run_state
        expected = {k: c for k, c in cells_of(alone).items() if k[0] - 1 in cohort.clients}
        assert {k: c for k, c in found.items() if k[0] - 1 in cohort.clients} == expected


def cells_of(loop):
    evaluated = after_aggregation(
        loop.worker.evaluators, loop.executor, loop.state, False, loop.chunk, loop.should_stop
    )
    return {(c.model, c.test_set): c for c in evaluated if c.split == 2}


def test_cohorts_that_differ_in_budget_alone_keep_the_global_model(narrow):
    parts = [(narrow, 2, STRONG), (narrow, 2, WEAK)]
    cohorts = tiny_cohorts(PromptFL, PromptFLConfig(context_length=3), parts, samples=SAMPLES)
    shared = [replace(c, federation=cohorts[0].federation) for c in cohorts]
    found = cells(run(tuple(shared), 1).finished[-1])
    assert {model for model, _ in found} == {GLOBAL, 1, 2, 3, 4}


@pytest.mark.parametrize("cls", [SDFed, FedOT])
def test_one_cohort_and_two_alike_are_as_none(narrow, cls):
    config = sdfed() if cls is SDFed else FedOTConfig(lr=0.1, batch_size=4)
    method, federation = cls(config, (f := tiny_federation(narrow, samples=SAMPLES)).problem), f
    none = run_rounds(method, federation, 2)
    one = run_rounds(method, federation, 2, cohorts=(Cohort(method, federation, range(4)),))
    two = [Cohort(method, federation, r) for r in (range(1), range(1, 4))]
    two = run_rounds(method, federation, 2, cohorts=tuple(two))
    timeless = [replace_times(e) for e in none.finished]
    assert [replace_times(e) for e in one.finished] == timeless
    torch.testing.assert_close(parts(one.state), parts(none.state), atol=0, rtol=0)
    torch.testing.assert_close(parts(two.state), parts(none.state), atol=1e-9, rtol=0)
    assert cells(two.finished[-1]).keys() == cells(none.finished[-1]).keys()


def replace_times(event):
    return replace(event, seconds_train=0, seconds_aggregate=0, seconds_evaluate=0)


@pytest.mark.parametrize("case", ["fedalign", "fedot", "promptfl"])
def test_a_cohort_trains_as_if_all_clients_were_like_it(narrow, case):
    """Budgets alone differ, whatever a method uploads (pairs and prototypes of FedAlign) or keeps."""
    name, values, *_ = CASES[case]
    config = registry.build_config(name, values)
    budgets = [{"batch_size": 3, "local_epochs": 2}, {"local_epochs": 2, "max_steps": 1}]
    reads = registry.get(name).reads(config, narrow.spec)

    def first_round(*parts):
        rounds = run(tiny_cohorts(registry.get(name), config, parts, reads=reads), 1).finished
        return {c.client: (c.steps, c.train_loss, c.bytes_up) for c in rounds[1].clients}

    mixed = first_round((narrow, 1, budgets[0]), (narrow, 2, budgets[1]))
    for clients, budget in (((1,), budgets[0]), ((2, 3), budgets[1])):
        alike = first_round((narrow, 3, budget))
        for c in clients:
            assert mixed[c] == (alike[c][0], pytest.approx(alike[c][1], abs=1e-9), alike[c][2])
    assert [mixed[c][0] for c in (1, 2, 3)] == [6, 1, 1]


@pytest.mark.parametrize("swapped", [False, True], ids=["within", "across"])
def test_order_of_clients_does_not_matter(narrow, wide, swapped):
    config = sdfed(local_length="random:2-6")
    first = run(mixed(narrow, wide, config=config))
    order = (3, 2, 1, 0) if swapped else (1, 0, 3, 2)
    parts = [(narrow, 2, STRONG), (wide, 2, WEAK)]
    cohorts = tiny_cohorts(SDFed, config, parts[::-1] if swapped else parts, samples=SAMPLES, order=order)
    turned = run(cohorts)
    torch.testing.assert_close(
        turned.state.shared["global_prompt"], first.state.shared["global_prompt"], atol=1e-6, rtol=0
    )
    expected = first.state.local["local_prompt"][list(order)]
    torch.testing.assert_close(turned.state.local["local_prompt"], expected, atol=1e-6, rtol=0)


def test_resuming_gives_the_rows_of_an_uninterrupted_run(narrow, wide, tmp_path):
    cohorts = mixed(narrow, wide, config=sdfed(optimiser_state="kept", optimiser="adam", lr=0.01))
    whole = run(cohorts, 4, participation=0.75)
    part = run(cohorts, 2, participation=0.75, folder=tmp_path, run_key="k")
    resumed = Server(
        cohorts[0].method, cohorts[0].federation, 4, cohorts=cohorts, participation=0.75, run_key="k"
    )
    resumed.resume(part.finished[-1].checkpoint)
    assert [e.cells for e in finished(all_rounds(resumed))] == [e.cells for e in whole.finished[-2:]]
    assert torch.equal(resumed.state.local["local_prompt"], whole.state.local["local_prompt"])


def test_a_round_may_leave_a_whole_cohort_out(narrow, wide):
    cohorts = mixed(narrow, wide)
    loop = run(cohorts, 3, participation=0.25)
    took_part = [[c.client for c in e.clients] for e in loop.finished[1:]]
    assert [len(clients) for clients in took_part] == [1, 1, 1]
    assert loop.state.rounds_trained.sum() == 3


def test_a_client_stops_at_its_own_step_limit(narrow):
    """Steps are counted over the epochs of a round; whoever has taken them moves no more."""
    federation = tiny_federation(narrow, samples=(9, 3))  # 3 and 1 batches of 4 in an epoch
    config = BiasConfig(local_epochs=2)
    method = BiasMethod(config, federation.problem)
    capped = run((Cohort(method, federation, range(2), max_steps=2),), 1)
    assert [c.steps for c in capped.finished[-1].clients] == [2, 2]
    free = run((Cohort(method, federation, range(2)),), 1)
    assert [c.steps for c in free.finished[-1].clients] == [6, 2]
    bias = [loop.state.local["bias"] for loop in (capped, free)]
    assert torch.equal(bias[0][1], bias[1][1]) and not torch.equal(bias[0][0], bias[1][0])
    short = BiasMethod(BiasConfig(), federation.problem)
    assert [c.steps for c in run((Cohort(short, federation, range(2), 2),), 1).finished[-1].clients] == [2, 1]


@pytest.mark.parametrize(("max_steps", "samples"), [(None, [9, 3]), (2, [8, 3])])
def test_records_stand_where_samples_of_the_last_epoch_stand_that_a_client_reaches(
    narrow, max_steps, samples
):
    """With two steps that is two batches of the first client's only epoch, and all of the other's."""
    federation = tiny_federation(narrow, samples=(9, 3))
    seen = {}

    class Looking(BiasMethod):
        def upload(self, params, record, data):
            seen.update(row=record["row"], x=data.x, mask=data.mask)
            return super().upload(params, record, data)

    method = Looking(BiasConfig(local_epochs=2), federation.problem)
    run((Cohort(method, federation, range(2), max_steps=max_steps),), 1)
    recorded = (seen["row"] != 0).any(-1)
    assert recorded.sum(1).tolist() == samples and not recorded[~seen["mask"]].any()
    assert torch.equal(seen["row"][recorded], seen["x"][recorded])


@pytest.mark.slow
def test_embedded_backbones_end_to_end(tmp_path):
    """From the config to checkpoints: both encodings are cached, cohorts are part of the run."""
    experiment = loads(
        'name = "t"\nrounds = 2\n[data]\nname = "shapes"\ndomains = ["photo"]\nshots = 2\n'
        '[partition]\nkind = "pathological"\nclients = 3\nclasses_per_client = 3\n'
        "[[cohorts]]\nclients = 1\nbatch_size = 2\nlocal_epochs = 2\n"
        '[[cohorts]]\nclients = 2\nbatch_size = 4\nmax_steps = 1\nbackbone = { name = "mini-rn" }\n'
        '[[methods]]\nname = "sdfed"\nconfig = { local_length = "random:4-8" }\n'
    )
    (planned,) = plan(experiment).runs
    events = list(train(planned, artifacts=tmp_path, folder=tmp_path / "whole"))
    rounds = finished(events)
    assert [c.steps for c in rounds[-1].clients] == [6, 1, 1]
    assert {m for m, _ in cells(rounds[-1])} == {1, 2, 3}
    (started,) = [e for e in events if isinstance(e, Started)]
    weights = started.environment["weights"]
    assert "mini-vit:" in weights and "+mini-rn:" in weights
    assert len(list((tmp_path / "encodings").glob("*.npy"))) == 2
    first = rounds[1].checkpoint
    again = train(planned, artifacts=tmp_path, folder=tmp_path / "again", resume_from=first)
    assert [e.cells for e in finished(again)] == [rounds[2].cells]
    alone = planned.model_copy(update={"cohorts": ()})
    with pytest.raises(FedLensError, match="made with another config, other weights or other images"):
        list(train(alone, artifacts=tmp_path, folder=tmp_path / "other", resume_from=first))
