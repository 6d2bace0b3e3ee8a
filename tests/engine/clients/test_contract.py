"""A method's mistakes are refused with its first step, by file and line, and not trained in silence."""

import os
import re
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcore.base.errors import FedLensError
from fedcore.engine.clients import contract, hooks
from fedcore.engine.clients.executor import Cohort, Worker
from fedcore.engine.parallel import Parallel, Serving
from fedcore.engine.round import all_rounds
from fedcore.engine.server import Server
from fedcore.methods import (
    FedLensMethodError,
    Method,
    Models,
    Ragged,
    State,
    Step,
    Uploads,
    cross_entropy,
    registry,
)
from tests.support import own_methods
from tests.support.against import build, federation_for
from tests.support.method_cases import CASES
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import at_once, run_rounds, tiny_federation

THIS_FILE = Path(__file__)
BOTH = ("weight", "bias")


def line_of(text: str) -> int:
    """The number of this file's only line that ends in a comment."""
    return next(
        i for i, line in enumerate(THIS_FILE.read_text().splitlines(), 1) if line.endswith(f"# {text}")
    )


def loss_of(method: BiasMethod, params, const, batch) -> torch.Tensor:
    return cross_entropy(method.logits(params, const, batch.x), batch.labels, batch.mask)


class Scalar(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({BOTH: loss_of(self, params, const, batch).mean()})  # scalar


class LeavesOut(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({("weight",): loss_of(self, params, const, batch)})


class Detached(BiasMethod):
    def train_step(self, params, const, batch):
        logits = self.logits(params | {"bias": params["bias"].detach()}, const, batch.x)
        return Step({BOTH: cross_entropy(logits, batch.labels, batch.mask)})


class NeedsItsBias(BiasMethod):
    def models(self, state):
        return super(BiasMethod, self).models(state)

    def logits(self, params, head, x):
        return x @ params["weight"].transpose(1, 2) + params["bias"][:, None]  # missing


class SharesItsBias(BiasMethod):
    def train_step(self, params, const, batch):
        everyone = params | {"bias": params["bias"].mean(0, keepdim=True).expand_as(params["bias"])}
        logits = self.logits(everyone, const, batch.x)
        return Step({BOTH: cross_entropy(logits, batch.labels, batch.mask)})


class SortsInCapitals(BiasMethod):
    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.batch_order = "Sorted"


class AnotherAxis(BiasMethod):
    class_axes = {"weight": -1}


class MisspeltRows(BiasMethod):
    client_rows = ("biases",)


class ForgetsSuper(BiasMethod):
    def __init__(self, config, problem):
        self.classes = problem.classes


class SeedsAll(BiasMethod):
    def upload(self, params, record, data):
        torch.manual_seed(0)
        return {"weight": params["weight"]}


class ClipsInPlace(BiasMethod):
    def upload(self, params, record, data):
        return {"weight": params["weight"].clamp_(-1, 1)}


class MovesTheFormerState(BiasMethod):
    def aggregate(self, state, uploads, generator):
        state.shared["weight"].add_(uploads.mean("weight", "uniform"))
        return state


class NormalisesTheSamples(BiasMethod):
    def logits(self, params, head, x):
        return super().logits(params, head, x.clamp_(-1, 1))


class ShrinksAsItPredicts(BiasMethod):
    def models(self, state):
        state.shared["weight"].mul_(0.5)
        return super().models(state)


class ShiftsTheClassFeatures(BiasMethod):
    def train_step(self, params, const, batch):
        self.problem.class_features.mul_(0.5)
        return super().train_step(params, const, batch)


class CentresTheClassFeatures(BiasMethod):
    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.text = problem.class_features
        self.text -= self.text.mean(0)


class ScalesAgainAndAgain(BiasMethod):
    def logits(self, params, head, x):
        params["weight"] = params["weight"] * 2
        return super().logits(params, head, x)


class TakesTheBiasAway(BiasMethod):
    def upload(self, params, record, data):
        del params["bias"]
        return params


class ReplacesTheFormerState(BiasMethod):
    def aggregate(self, state, uploads, generator):
        state.shared["weight"] = uploads.mean("weight", "uniform")
        return state


class CentresWhatItIsGiven(BiasMethod):
    def logits(self, *given):
        given[2].clamp_(-1, 1)
        return super().logits(*given)


class HasNoPhase(BiasMethod):
    @property
    def phases(self):
        return ()


class StartsWithNothing(BiasMethod):
    init = Method.init


class ForgetsWhatItRemembers(BiasMethod):
    def init(self, generator):
        return replace(super().init(generator), server={"before": torch.zeros(2)})

    def aggregate(self, state, uploads, generator):
        return State(shared=super().aggregate(state, uploads, generator).shared)


class ReadsEachUpload(BiasMethod):
    needs_only_means = True

    def aggregate(self, state, uploads, generator):
        return replace(state, shared={"weight": uploads.dense("weight").mean(0)})


class Transposes(BiasMethod):
    def train_step(self, params, const, batch):
        logits = self.logits(params, const, batch.x).transpose(1, 2)
        return Step({BOTH: cross_entropy(logits, batch.labels, batch.mask)})


class GoesBackward(BiasMethod):
    def train_step(self, params, const, batch):
        loss = loss_of(self, params, const, batch)
        loss.sum().backward()
        return Step({BOTH: loss})


class MisspellsAName(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({BOTH: params["wieght"].sum((1, 2))})


class MisspellsAPart(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({BOTH: cross_entropy(batch.x, batch.targets, batch.mask)})


class MisspellsAField(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({BOTH: self.config.strength * loss_of(self, params, const, batch)})


class TrainsFaster(BiasMethod):
    def __init__(self, config, problem):
        super().__init__(config.model_copy(update={"lr": 5.0}), problem)


class ListConfig(BiasConfig):
    steps: list[int] = [1]


class AddsToItsConfig(BiasMethod):
    Config = ListConfig

    def __init__(self, config, problem):
        super().__init__(config, problem)
        config.steps.append(2)


class OwnModelsUnused(BiasMethod):
    clients_use_global = True

    def models(self, state):
        one = {"weight": state.shared["weight"][None]}
        return Models(one, {"weight": self.repeat(state.shared)["weight"] + state.local["bias"][..., None]})


RETURNED: dict[str, list[tuple[Callable[[Any], object], str]]] = {
    "init": [
        (lambda s: State(shared=s.shared["weight"]), r"State.shared is a tensor of .*, shared={...}"),
        (
            lambda s: replace(s, server={"rows": [1.0, 2.0]}),
            "State.server has 'rows': a list; it takes tensors by name",
        ),
        (lambda s: replace(s, personal=s.local), "'bias' is in two parts of the state"),
        (
            lambda s: replace(s, personal={"scale": torch.ones(1)}),
            r"the personal 'scale' has shape \(1,\), but its first axis counts the 2 clients",
        ),
        (
            lambda s: replace(s, local={"bias": s.local["bias"][0]}),
            r"the local 'bias' has shape \(3,\).*State\(local=self.repeat",
        ),
        (
            lambda s: replace(s, shared=s.shared | {"scale": torch.ones(1)}),
            "the state shares 'weight', 'scale', but Returning.shared names 'weight'",
        ),
        (
            lambda s: replace(s, shared={"weight": torch.randn(3, 192)}),
            "it draws from the global generator of torch, or seeds it, so that a repeated or",
        ),
    ],
    "sends": [
        (lambda _: None, "it returns a NoneType; return tensors by name"),
        (lambda _: {}, r"it does not send 'weight', which clients share; send {\*\*super\(\)"),
        (
            lambda sent: {"weight": sent["weight"][0]},
            r"'weight' has shape \(3, \d+\), but its first axis counts the 2 participants",
        ),
    ],
    "round_constants": [
        (
            lambda _: {"text": torch.ones(3, 16)},
            "'text' has shape .* but its first axis counts the 2 participants",
        )
    ],
    "lr_factors": [
        (lambda _: {"wieght": 10.0}, "it has a factor for 'wieght', but the clients hold 'weight', 'bias'"),
        (lambda _: {"weight": -1.0}, "the factor of 'weight' is -1.0; give a number that is not negative"),
    ],
    "train_step": [
        (
            lambda s: Step({BOTH: s.record["row"].sum(2)}),
            r".*shape \(2, 4\), not one value per client, shape \(clients,\) = \(2,\)",
        ),
        (lambda s: Step({BOTH: s.terms["ce"], ("bias",): s.terms["ce"]}), "'bias' is in two losses"),
        (
            lambda s: Step({(*BOTH, "scale"): s.terms["ce"]}),
            ".*moves 'scale', but the clients hold 'weight', 'bias'",
        ),
        (
            lambda s: Step({"weight": s.terms["ce"]}),
            r'a loss is for .weight., which is not a tuple of names; write \("weight",\)',
        ),
        (lambda s: s.terms["ce"], r"it returns a tensor of shape \(2,\); return Step"),
        (lambda s: Step([s.terms["ce"]]), "losses of the step is a list; it takes values by name"),
        (
            lambda s: Step({("weight",): s.terms["ce"]}, moved={"bias": torch.ones(3)}),
            r"moved has 'bias' with shape \(3,\), the clients hold \(2, 3\)",
        ),
        (
            lambda s: Step({}, moved={"bias": torch.ones(2, 3)}),
            "the step has no loss, which would be recorded",
        ),
        (
            lambda s: replace(s, terms={"ce": s.terms["ce"].mean()}),
            r"the term 'ce' is a tensor of shape \(\), not one value per client",
        ),
        (
            lambda s: replace(s, record={"mean": s.record["row"].mean(1)}),
            r"the record 'mean' is a tensor of shape \(2, \d+\); give a value for every sample of the",
        ),
        (
            lambda s: Step(
                {("weight",): s.terms["ce"]}, {("bias",): s.terms["ce"]}, moved={"bias": torch.ones(2, 3)}
            ),
            "a guide, or only, is for 'bias', which no loss moves",
        ),
        (
            lambda s: Step(
                {("weight",): s.terms["ce"]},
                only={("bias",): s.terms["ce"] > 0},
                moved={"bias": torch.ones(2, 3)},
            ),
            "a guide, or only, is for 'bias', which no loss moves",
        ),
        (
            lambda s: replace(s, guides=s.losses, combine=lambda gradients, guides: None),
            "combine returns a NoneType; return the gradients by name",
        ),
        (
            lambda s: Step({BOTH: s.terms["ce"] + torch.randn(2)}),
            "it draws from the global generator of torch",
        ),
    ],
    "after_training": [
        (
            lambda trained: {"weight": trained["weight"]},
            "it returns {'weight'.*; return the same names and shapes",
        )
    ],
    "before_aggregation": [(lambda _: {}, "it returns no parameters; return the parameters")],
    "upload": [
        (lambda _: {}, r"the server averages the shared 'weight', of shape .*but upload does not send it"),
        (
            lambda sent: {"weight": sent["weight"].mean(1)},
            r"the server averages the shared 'weight', .*but upload sends a tensor of shape",
        ),
        (
            lambda sent: sent | {"samples": [1, 2, 3]},
            "'samples' is a list; give a tensor whose first axis counts the 2 participants",
        ),
        (
            lambda sent: sent | {"rows": Ragged(torch.ones(2), torch.ones(2))},
            r"'rows' has values of shape \(2,\) and lengths of shape \(2,\); values are",
        ),
        (
            lambda sent: {"weight": sent["weight"] + np.random.normal(0, 0.1)},  # noqa: NPY002
            "it draws from the global generator of numpy",
        ),
    ],
    "aggregate": [
        (lambda _: None, "it returns a NoneType; return replace"),
        (lambda _: State(shared={}), "the shared 'weight' is missing after the server's step"),
        (
            lambda s: replace(s, shared={"weight": s.shared["weight"].repeat(2, 1, 1)}),
            r"the shared 'weight' has shape \(2, .* but had shape",
        ),
        (
            lambda s: replace(s, shared={"weight": s.shared["weight"].numpy()}),
            "State.shared has 'weight': a ndarray; it takes tensors by name",
        ),
        (
            lambda s: replace(s, server={"rounds": 1}),
            "State.server has 'rounds': an int; it takes tensors by name",
        ),
        (
            lambda s: replace(s, local={"bias": torch.zeros(2, 3)}),
            r"it returns local parameters \('bias'\), which the server cannot change",
        ),
    ],
    "diagnostics": [
        (
            lambda _: {"norm": torch.ones(3)},
            r"'norm' is a tensor of shape \(3,\); return one number, or one for",
        ),
        (lambda _: {"norm": "large"}, "'norm' is a str; return one number"),
        (lambda _: {"norm": np.array(["large", "small"])}, "'norm' is a ndarray; return one number"),
        (lambda _: {"ce": 1.0}, "'ce' is a term of the steps too, of which only one would be stored"),
    ],
    "round_log": [(lambda _: "all well", "it returns a str; return a list of texts")],
    "downloads": [(lambda sent: [*sent.values()], "it returns a list; return {name: value}")],
    "models": [
        (lambda _: None, "it returns a NoneType; return Models"),
        (lambda _: Models(None, None), "the clients' parameters are a NoneType; give tensors by name"),
        (
            lambda models: Models({"weight": models.global_model["weight"][0]}, models.clients),
            r".* of the global model has shape .* counts the 1 model; write \w+\[None\]",
        ),
        (
            lambda models: Models(models.global_model, {n: v[:1] for n, v in models.clients.items()}),
            "'.*' of the clients' models has shape .*but its first axis counts the 2 clients",
        ),
    ],
    "head": [(lambda _: None, "it returns a NoneType; return tensors by name")],
    "logits": [
        (
            lambda scores: scores.flatten(0, 1),
            r"it returns a tensor of shape \(\d+, 3\), not \(models, samples, classes\)",
        )
    ],
}
"""Hook -> what it returns, made of what it should return, and what is said of it."""


def returning(hook: str, change: Callable[[Any], object]) -> type[BiasMethod]:
    """A method one of whose hooks returns something else, made of what it should return."""
    right = getattr(BiasMethod, hook)

    def function(self, *given):
        return change(right(self, *given))

    function.__code__ = function.__code__.replace(co_name=hook)  # which a message names
    return type("Returning", (BiasMethod,), {hook: function})


@pytest.mark.parametrize(
    ("hook", "change", "message"),
    [(hook, *row) for hook, rows in RETURNED.items() for row in rows],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_hook_may_not_return_is_refused_by_its_file_and_line(hook, change, message):
    refuse(returning(hook, change), f"in {hook}: {message}")


MISTAKES = [
    (
        ForgetsWhatItRemembers,
        r"aggregate: 'before' of State.server is missing after the server's step.*server={",
    ),
    (GoesBackward, "train_step: it calls backward"),
    (TrainsFaster, "__init__: the method has another config than the recorded one, under which its results"),
    (AddsToItsConfig, "__init__: the method has another config than the recorded one"),
    (
        OwnModelsUnused,
        "models: 'weight' of a client differs from that of the global model, but OwnModelsUnused",
    ),
    (HasNoPhase, r"phases: phases is \(\); return the training phases in order"),
    (ForgetsSuper, r"__init__: the method has no config or no problem afterwards; begin with super\(\)"),
    (SeedsAll, "upload: it draws from the global generator of torch, or seeds it, so that a repeated or"),
    (ClipsInPlace, r"upload: it writes into params\['weight'\], which is read again; compute a new tensor"),
    (MovesTheFormerState, r"aggregate: it writes into state\.shared\['weight'\]"),
    (NormalisesTheSamples, "logits: it writes into x, which is read again"),
    (ScalesAgainAndAgain, r"logits: it writes into params\['weight'\], which is read again"),
    (TakesTheBiasAway, r"upload: it writes into params\['bias'\], which is read again; .* of a dict"),
    (ReplacesTheFormerState, r"aggregate: it writes into state\.shared\['weight'\], which is read again"),
    (CentresWhatItIsGiven, "logits: it writes into given, which is read again"),
    (ShrinksAsItPredicts, r"models: it writes into state\.shared\['weight'\]"),
    (ShiftsTheClassFeatures, r"train_step: it writes into self\.problem\.class_features"),
    (CentresTheClassFeatures, r"__init__: it writes into self\.problem\.class_features, which is read again"),
    (SortsInCapitals, "__init__: SortsInCapitals.batch_order is 'Sorted'; declare one of 'shuffled', 'so"),
    (
        AnotherAxis,
        r"axis -1 of 'weight' counts the classes, but it has shape \(3, \d+\) and there are 3",
    ),
    (MisspeltRows, "client_rows names 'biases', but the personal and server parts have nothing"),
    (Scalar, r"train_step: the loss of 'weight', 'bias' is a tensor of shape \(\), not one value per client"),
    (LeavesOut, "train_step: no loss moves 'bias', which would stay as init made it"),
    (Detached, "the loss of 'weight', 'bias' does not depend on 'bias'"),
    (NeedsItsBias, r"logits: the global model has no 'bias', only 'weight'.*Models\(None"),
    (SharesItsBias, "train_step: the first client's loss depends on 'bias' of other clients"),
]


@pytest.mark.parametrize(("cls", "message"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_is_refused_by_the_file_and_function_that_makes_it(cls, message):
    refuse(cls, message)


def refuse(cls: type[BiasMethod], message: str) -> None:
    """Train two clients for a round, which fails; there are three classes, so that a message tells both."""
    federation = tiny_federation(samples=(9, 5))
    with pytest.raises(FedLensMethodError, match=message) as error:
        run_rounds(hooks.make(cls, cls.Config(), federation.problem), federation, 1)
    files = "|".join(re.escape(str(file)) for file in (THIS_FILE, own_methods.__file__))
    assert re.match(rf"({files}):\d+, in ", str(error.value))


class ClipsWhatItTrained(BiasMethod):
    def after_training(self, params, received, data, round_):  # the contract calls the first one ``trained``
        params["weight"].clamp_(-1, 1)
        return params


class DiagnosesWithNumpy(BiasMethod):
    def diagnostics(self, before, trained, uploads, data):
        return {"norm": np.linalg.norm(trained["bias"].numpy(), axis=1)}


class PredictsInInferenceMode(BiasMethod):
    @torch.inference_mode()
    def head(self, params, data):
        return {"text": self.problem.class_features, "one": torch.ones(len(params["weight"]), 1)}


@pytest.mark.parametrize("cls", [ClipsWhatItTrained, DiagnosesWithNumpy, PredictsInInferenceMode])
def test_a_method_that_changes_nobodys_numbers_is_not_refused(cls):
    federation = tiny_federation()
    assert len(run_rounds(hooks.make(cls, BiasConfig(), federation.problem), federation, 1).finished) == 2


def test_clients_that_hold_the_global_model_are_found_without_reading_what_is_repeated():
    """Of 10,000 clients with a model of 51,200 numbers, reading took 0.6 s in every evaluation."""
    one, unreadable = torch.rand(1, 4, 4), torch.full((1, 4, 4), float("nan"))
    for value in (one, unreadable):
        assert contract._is_repeated(value, value[0].expand(5, 4, 4))
    assert contract._is_repeated(one, one.repeat(5, 1, 1))
    for other in ((one + 1).expand(5, -1, -1), one.mT.expand(5, -1, -1), one[:, :1].expand(5, -1, -1)):
        assert not contract._is_repeated(one, other)


def test_the_gradients_of_guides_are_added_unless_the_step_combines_them():
    def halved(step: Step) -> Step:
        half = {BOTH: step.terms["ce"] / 2}
        return Step(half, guides=half)

    federation = tiny_federation()
    one, other = (
        run_rounds(cls(BiasConfig(), federation.problem), federation, 1).state
        for cls in (BiasMethod, returning("train_step", halved))
    )
    assert torch.equal(one.shared["weight"], other.shared["weight"])


class NotANumber(BiasMethod):
    def aggregate(self, state, uploads, generator):
        after = super().aggregate(state, uploads, generator)
        return replace(after, shared={name: value * float("nan") for name, value in after.shared.items()})


class NotANumberForAll(NotANumber):
    clients_use_global = True


@pytest.mark.parametrize("cls", [NotANumber, NotANumberForAll])
def test_scores_that_are_not_numbers_are_no_accuracy(cls):
    """A model of NaN predicts the first class always; in the last round no loss would show it."""
    federation = tiny_federation()
    with pytest.raises(FedLensError, match=r"class scores of a model are not numbers \(NaN\)") as error:
        run_rounds(cls(BiasConfig(), federation.problem), federation, 1)
    assert error.value.field == "lr"


@pytest.mark.parametrize("proximal", [0.0, 0.1])
@pytest.mark.parametrize(("cls", "line"), [(Scalar, "scalar"), (NeedsItsBias, "missing")])
def test_the_line_is_the_one_at_fault_also_with_a_proximal_term(cls, line, proximal):
    federation = tiny_federation()
    with pytest.raises(FedLensMethodError, match=rf"test_contract\.py:{line_of(line)}, in "):
        run_rounds(cls(BiasConfig(proximal=proximal), federation.problem), federation, 1)


def test_a_chunk_without_samples_leaves_the_check_to_the_next():
    federation = tiny_federation(samples=(0, 5, 7))
    assert len(run_rounds(BiasMethod(BiasConfig(), federation.problem), federation, 1, chunk=1).finished) == 2
    with pytest.raises(FedLensMethodError, match="no loss moves 'bias'"):
        run_rounds(LeavesOut(BiasConfig(), federation.problem), federation, 1, chunk=1)


def test_a_misspelt_weighting_is_not_read_as_another_one():
    """It was read as weights by sample counts."""
    uploads = Uploads({}, torch.arange(2), torch.tensor([1, 3]))
    assert uploads.weights("uniform").tolist() == [0.5, 0.5] and uploads.weights("samples").tolist() == [
        0.25,
        0.75,
    ]
    with pytest.raises(
        ValueError, match="no weighting 'Uniform'; give self.config.weighting, 'uniform' or 's"
    ):
        uploads.weights("Uniform")


class Exits(BiasMethod):
    error: type[BaseException] = SystemExit

    def models(self, state):
        raise self.error


@pytest.mark.parametrize("error", [SystemExit, StopIteration])
def test_an_exit_in_its_code_is_an_error_of_the_method(monkeypatch, error):
    """The process ended without a word, or Python named another error in its place."""
    monkeypatch.setitem(registry._METHODS, Exits.name, Exits)
    monkeypatch.setattr(Exits, "error", error)
    federation = tiny_federation()
    with (
        pytest.raises(
            FedLensMethodError, match=r"test_contract\.py:\d+, in models: the method 'test-bias' raised"
        ),
        hooks.faults_named(Exits.name),
    ):
        run_rounds(Exits(BiasConfig(), federation.problem), federation, 1)


class IsStopped(BiasMethod):
    def models(self, state):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().models(state)


def test_an_exit_by_a_signal_ends_the_process_whatever_it_computes(monkeypatch, tmp_path):
    """Ray ends an actor so. Told as an error of the method, it failed the run instead of moving it."""
    handler = tmp_path / "handler.py"
    handler.write_text("import sys\n\ndef stop(number, frame):\n    sys.exit(1)\n")
    before = signal.signal(signal.SIGTERM, runpy.run_path(str(handler))["stop"])
    monkeypatch.setitem(registry._METHODS, IsStopped.name, IsStopped)
    federation = tiny_federation()
    try:
        with pytest.raises(SystemExit), hooks.faults_named(IsStopped.name):
            run_rounds(IsStopped(BiasConfig(), federation.problem), federation, 1)
    finally:
        signal.signal(signal.SIGTERM, before)


class Raises(BiasMethod):
    error: Exception = ZeroDivisionError("by hand")

    def upload(self, params, record, data):
        raise self.error  # raised


def test_an_error_of_its_code_is_named_on_another_device_too(monkeypatch):
    """Its traceback stays there; the name of the line comes back."""
    monkeypatch.setitem(registry._METHODS, Raises.name, Raises)
    federation = tiny_federation()
    method = Raises(BiasConfig(), federation.problem)
    serving = Serving(lambda: Worker([Cohort(method, federation, range(3))]))
    parallel = Parallel([at_once(serving)], torch.device("cpu"))
    loop = Server(method, federation, 1)
    loop.executor = parallel
    place = rf"test_contract\.py:{line_of('raised')}, in upload: the method 'test-bias' raised "
    with pytest.raises(FedLensMethodError, match=place + "ZeroDivisionError: by hand") as error:
        list(all_rounds(loop))
    assert "raise self.error" in "".join(error.value.__notes__)
    monkeypatch.setattr(Raises, "error", MemoryError())
    with pytest.raises(MemoryError):  # the machine's
        list(all_rounds(loop))
    # a GPU reports what an earlier operation did, so the line would be any
    monkeypatch.setattr(Raises, "error", RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(RuntimeError, match="^CUDA error"), hooks.faults_named(Raises.name):
        run_rounds(method, federation, 1)


class PlansWithADict(BiasMethod):
    @classmethod
    def check(cls, config, context):
        sizes = {"sizes": [1, 2]}
        return sizes["none"]


def test_an_error_in_planning_does_not_load_torch(monkeypatch):
    monkeypatch.setitem(registry._METHODS, PlansWithADict.name, PlansWithADict)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(hooks, "torch", None)
    with pytest.raises(FedLensMethodError, match=r"in check: the method 'test-bias' raised KeyError"):
        contract.planned(PlansWithADict, "check", BiasConfig(), None)


class ForgetsTheSamples(BiasMethod):
    def logits(self, params, head, x):
        return x * params["weight"]  # without samples


def test_an_error_of_shapes_lists_the_shapes(monkeypatch):
    monkeypatch.setitem(registry._METHODS, ForgetsTheSamples.name, ForgetsTheSamples)
    federation = tiny_federation()
    place = rf"{line_of('without samples')}, in logits: the method 'test-bias' raised RuntimeError: .*"
    shapes = r"; the shapes there are params\['weight'\] \(1, .*\), x \(1, \d+, \d+\)\. The first axis counts"
    with (
        pytest.raises(FedLensMethodError, match=place + shapes),
        hooks.faults_named(ForgetsTheSamples.name),
    ):
        run_rounds(ForgetsTheSamples(BiasConfig(), federation.problem), federation, 1)


SLIPS = [
    (StartsWithNothing, "^StartsWithNothing defines no init; define it, or trains = False"),
    (
        ReadsEachUpload,
        "aggregate: .* the upload 'weight' was not stored, because needs_only_means is True; take its mean",
    ),
    (
        Transposes,
        r"train_step: .* logits of shape \(3, 3, 4\) for labels of shape \(3, 4\); logits are \(clients, b",
    ),
    (MisspellsAName, r"KeyError: 'wieght'; what there is: params\['weight'\] \(3, .*batch\.x \(3, 4, "),
    (MisspellsAPart, "'Batch' object has no attribute 'targets'; it has clients, labels, mask, places, wh"),
    (MisspellsAField, "'BiasConfig' object has no attribute 'strength'; it has optimiser, lr, "),
]


@pytest.mark.parametrize(("cls", "message"), SLIPS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_slip_is_told_with_what_there_is(cls, message, monkeypatch):
    monkeypatch.setitem(registry._METHODS, cls.name, cls)
    federation = tiny_federation()
    with pytest.raises(FedLensMethodError, match=message), hooks.faults_named(cls.name):
        run_rounds(hooks.make(cls, cls.Config(), federation.problem), federation, 1)


@pytest.mark.parametrize("case", ["fedot", "feddeap", "fedalign"])
def test_the_contract_is_checked_once(case, monkeypatch):
    """Later steps, rounds and chunks call the method's own phases."""
    name, config, *_ = CASES[case]
    federation, seen = federation_for(name, config), []
    checked = contract.FirstStep._checked
    monkeypatch.setattr(
        contract.FirstStep, "_checked", lambda self, *given: seen.append(1) or checked(self, *given)
    )
    method = build(name, federation, **config)
    run_rounds(method, federation, 2, chunk=2)
    steps = -(-9 // 4) * method.config.local_epochs
    assert 0 < len(seen) <= len(method.phases) * steps, "only the first chunk's calls pass through it"
