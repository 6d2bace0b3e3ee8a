"""A method's mistakes are refused with its first step, by file and line, and not trained in silence."""

import os
import re
import runpy
import signal
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

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
from tests.support.method_cases import CASES
from tests.support.own_methods import BiasConfig, BiasMethod
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

THIS_FILE = Path(__file__)


def line_of(text: str) -> int:
    """The number of this file's only line that ends in a comment."""
    return next(
        i for i, line in enumerate(THIS_FILE.read_text().splitlines(), 1) if line.endswith(f"# {text}")
    )


def loss_of(method: BiasMethod, params, const, batch) -> torch.Tensor:
    return cross_entropy(method.logits(params, const, batch.x), batch.labels, batch.mask)


class Scalar(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({("weight", "bias"): loss_of(self, params, const, batch).mean()})  # scalar


class PerSample(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({("weight", "bias"): self.logits(params, const, batch.x).sum(2)})


class LeavesOut(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({("weight",): loss_of(self, params, const, batch)})


class Detached(BiasMethod):
    def train_step(self, params, const, batch):
        logits = self.logits(params | {"bias": params["bias"].detach()}, const, batch.x)
        return Step({("weight", "bias"): cross_entropy(logits, batch.labels, batch.mask)})


class Twice(BiasMethod):
    def train_step(self, params, const, batch):
        loss = loss_of(self, params, const, batch)
        return Step({("weight", "bias"): loss, ("bias",): params["bias"].square().sum(1)})


class Unknown(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({("weight", "bias", "scale"): loss_of(self, params, const, batch)})


class BareName(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({"weight": loss_of(self, params, const, batch)})


class BareLoss(BiasMethod):
    def train_step(self, params, const, batch):
        return loss_of(self, params, const, batch)


class MovesAnotherShape(BiasMethod):
    def train_step(self, params, const, batch):
        losses = {("weight",): loss_of(self, params, const, batch)}
        return Step(losses, moved={"bias": params["bias"].mean(0)})


class ScalarTerm(BiasMethod):
    def train_step(self, params, const, batch):
        loss = loss_of(self, params, const, batch)
        return Step({("weight", "bias"): loss}, terms={"ce": loss.mean()})


class NeedsItsBias(BiasMethod):
    def models(self, state):
        return super(BiasMethod, self).models(state)

    def logits(self, params, head, x):
        return x @ params["weight"].transpose(1, 2) + params["bias"][:, None]  # missing


class FlatLogits(BiasMethod):
    def logits(self, params, head, x):
        return super().logits(params, head, x).flatten(0, 1)


class OneBias(BiasMethod):
    def init(self, generator):
        state = super().init(generator)
        return replace(state, local={"bias": state.local["bias"][0]})


class SharesMore(BiasMethod):
    def init(self, generator):
        state = super().init(generator)
        return State(shared=state.shared | {"scale": torch.ones(1)}, local=state.local)


class SendsNothing(BiasMethod):
    def upload(self, params, record, data):
        return {}


class SendsItsMean(BiasMethod):
    def upload(self, params, record, data):
        return {"weight": params["weight"].mean(0)}


class AggregatesNothing(BiasMethod):
    def aggregate(self, state, uploads, generator):
        pass


class LosesItsWeight(BiasMethod):
    def aggregate(self, state, uploads, generator):
        return State(shared={})


class StacksItsWeight(BiasMethod):
    def aggregate(self, state, uploads, generator):
        return State(shared={"weight": uploads.dense("weight")})


class NoModels(BiasMethod):
    def models(self, state):
        super().models(state)


class GlobalWithoutAxis(BiasMethod):
    def models(self, state):
        models = super().models(state)
        return Models({name: value[0] for name, value in models.global_model.items()}, models.clients)


class TwoModels(BiasMethod):
    def models(self, state):
        models = super().models(state)
        return Models(models.global_model, {name: value[:2] for name, value in models.clients.items()})


class NothingBefore(BiasMethod):
    def before_aggregation(self, trained, received):
        return {}


class HoldsLess(BiasMethod):
    def after_training(self, trained, received, data, round_):
        return {"weight": trained["weight"]}


class SharesItsBias(BiasMethod):
    def train_step(self, params, const, batch):
        everyone = params | {"bias": params["bias"].mean(0, keepdim=True).expand_as(params["bias"])}
        logits = self.logits(everyone, const, batch.x)
        return Step({("weight", "bias"): cross_entropy(logits, batch.labels, batch.mask)})


class HalvedAndGuided(BiasMethod):
    def train_step(self, params, const, batch):
        half = loss_of(self, params, const, batch) / 2
        return Step({("weight", "bias"): half}, guides={("weight", "bias"): half})


class GuidesAstray(BiasMethod):
    def train_step(self, params, const, batch):
        loss = loss_of(self, params, const, batch)
        return Step({("weight",): loss}, guides={("bias",): loss}, moved={"bias": params["bias"]})


class OnlyAstray(BiasMethod):
    def train_step(self, params, const, batch):
        loss = loss_of(self, params, const, batch)
        return Step({("weight",): loss}, only={("bias",): loss > 0}, moved={"bias": params["bias"]})


class SortsInCapitals(BiasMethod):
    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.batch_order = "Sorted"


class AnotherAxis(BiasMethod):
    class_axes = {"weight": -1}


class MisspeltRows(BiasMethod):
    client_rows = ("biases",)


class BareShared(BiasMethod):
    def init(self, generator):
        return State(shared=super().init(generator).shared["weight"])


class ListOfRows(BiasMethod):
    def init(self, generator):
        return replace(super().init(generator), server={"rows": [1.0, 2.0]})


class OneNameTwice(BiasMethod):
    def init(self, generator):
        state = super().init(generator)
        return replace(state, personal={"bias": state.local["bias"]})


class OnePersonal(BiasMethod):
    def init(self, generator):
        return replace(super().init(generator), personal={"scale": torch.ones(1)})


class ForgetsSuper(BiasMethod):
    def __init__(self, config, problem):
        self.classes = problem.classes


class DrawsAtRandom(BiasMethod):
    def init(self, generator):
        return State(shared={"weight": torch.randn(3, 192)}, local=super().init(generator).local)


class DrawsInItsStep(BiasMethod):
    def train_step(self, params, const, batch):
        noisy = batch.x + torch.randn_like(batch.x)
        return Step(
            {("weight", "bias"): cross_entropy(self.logits(params, {}, noisy), batch.labels, batch.mask)}
        )


class SeedsAll(BiasMethod):
    def upload(self, params, record, data):
        torch.manual_seed(0)
        return {"weight": params["weight"]}


class DrawsFromNumpy(BiasMethod):
    def upload(self, params, record, data):
        return {"weight": params["weight"] + np.random.normal(0, 0.1)}  # noqa: NPY002


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


class SendsNoDict(BiasMethod):
    def sends(self, state, clients):
        return None


class SendsOnlyOne(BiasMethod):
    def sends(self, state, clients):
        return dict(state.shared)


class ForgetsToSend(BiasMethod):
    def sends(self, state, clients):
        return {}


class ConstantOfClasses(BiasMethod):
    def round_constants(self, params, data):
        return {"text": self.problem.class_features[:2]}


class FasterElsewhere(BiasMethod):
    def lr_factors(self):
        return {"wieght": 10.0}


class UphillFactor(BiasMethod):
    def lr_factors(self):
        return {"weight": -1.0}


class SendsNumbers(BiasMethod):
    def upload(self, params, record, data):
        return {"weight": params["weight"], "samples": [1, 2, 3]}


class RaggedInOne(BiasMethod):
    def upload(self, params, record, data):
        return {"weight": params["weight"], "rows": Ragged(torch.ones(3), torch.ones(3))}


class DiagnosesAllClasses(BiasMethod):
    def diagnostics(self, before, trained, uploads, data):
        return {"norm": trained["bias"][:2, 0]}


class DiagnosesInWords(BiasMethod):
    def diagnostics(self, before, trained, uploads, data):
        return {"norm": "large"}


class DiagnosesWords(BiasMethod):
    def diagnostics(self, before, trained, uploads, data):
        return {"norm": np.array(["large"] * len(data.clients))}


class LogsOneText(BiasMethod):
    def round_log(self, uploads):
        return "all well"


class CountsNothing(BiasMethod):
    def downloads(self, state, clients, received):
        return [*received.values()]


class ListOfLosses(BiasMethod):
    def train_step(self, params, const, batch):
        return Step([loss_of(self, params, const, batch)])


class RecordsClients(BiasMethod):
    def train_step(self, params, const, batch):
        loss = loss_of(self, params, const, batch)
        return Step({("weight", "bias"): loss}, record={"mean": batch.x.mean(1)})


class OnlyMoves(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({}, moved=dict(params))


class HasNoPhase(BiasMethod):
    @property
    def phases(self):
        return ()


class CombinesNothing(BiasMethod):
    def train_step(self, params, const, batch):
        loss = loss_of(self, params, const, batch)
        names = ("weight", "bias")
        return Step({names: loss}, guides={names: loss}, combine=lambda gradients, guides: None)


class DiagnosesATerm(BiasMethod):
    def diagnostics(self, before, trained, uploads, data):
        return {"ce": 1.0}


class ModelsOfNobody(BiasMethod):
    def models(self, state):
        return Models(None, None)


class HeadOfNothing(BiasMethod):
    def head(self, params, data):
        return None


class AggregatesWithNumpy(BiasMethod):
    def aggregate(self, state, uploads, generator):
        return State(shared={"weight": uploads.mean("weight", "uniform").numpy()})


class CountsRounds(BiasMethod):
    def aggregate(self, state, uploads, generator):
        return replace(super().aggregate(state, uploads, generator), server={"rounds": uploads.round})


class MovesLocalOnes(BiasMethod):
    def aggregate(self, state, uploads, generator):
        return replace(super().aggregate(state, uploads, generator), local={"bias": torch.zeros(3, 3)})


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
        return Step({("weight", "bias"): cross_entropy(logits, batch.labels, batch.mask)})


class GoesBackward(BiasMethod):
    def train_step(self, params, const, batch):
        loss = loss_of(self, params, const, batch)
        loss.sum().backward()
        return Step({("weight", "bias"): loss})


class MisspellsAName(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({("weight", "bias"): params["wieght"].sum((1, 2))})


class MisspellsAPart(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({("weight", "bias"): cross_entropy(batch.x, batch.targets, batch.mask)})


class MisspellsAField(BiasMethod):
    def train_step(self, params, const, batch):
        return Step({("weight", "bias"): self.config.strength * loss_of(self, params, const, batch)})


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
    (ListOfLosses, "train_step: losses of the step is a list; it takes values by name"),
    (
        RecordsClients,
        r"the record 'mean' is a tensor of shape \(3, \d+\); give a value for every sample of the",
    ),
    (OnlyMoves, "train_step: the step has no loss, which would be recorded"),
    (HasNoPhase, r"phases: phases is \(\); return the training phases in order"),
    (CombinesNothing, "train_step: combine returns a NoneType; return the gradients by name"),
    (DiagnosesATerm, "diagnostics: 'ce' is a term of the steps too, of which only one would be stored"),
    (ModelsOfNobody, "models: the clients' parameters are a NoneType; give tensors by name"),
    (HeadOfNothing, "head: it returns a NoneType; return tensors by name"),
    (MovesLocalOnes, r"aggregate: it returns local parameters \('bias'\), which the server cannot change"),
    (ForgetsSuper, r"__init__: the method has no config or no problem afterwards; begin with super\(\)"),
    (DrawsAtRandom, "init: it draws from the global generator of torch, or seeds it, so that a repeated or"),
    (SeedsAll, "upload: it draws from the global generator of torch, or seeds it, so that a repeated or"),
    (DrawsInItsStep, "train_step: it draws from the global generator of torch"),
    (DrawsFromNumpy, "upload: it draws from the global generator of numpy"),
    (ClipsInPlace, r"upload: it writes into params\['weight'\], which is read again; compute a new tensor"),
    (MovesTheFormerState, r"aggregate: it writes into state\.shared\['weight'\]"),
    (NormalisesTheSamples, "logits: it writes into x, which is read again"),
    (ScalesAgainAndAgain, r"logits: it writes into params\['weight'\], which is read again"),
    (TakesTheBiasAway, r"upload: it writes into params\['bias'\], which is read again; .* of a dict"),
    (ReplacesTheFormerState, r"aggregate: it writes into state\.shared\['weight'\], which is read again"),
    (AggregatesWithNumpy, "aggregate: State.shared has 'weight': a ndarray; it takes tensors by name"),
    (CountsRounds, "aggregate: State.server has 'rounds': an int; it takes tensors by name"),
    (CentresWhatItIsGiven, "logits: it writes into given, which is read again"),
    (ShrinksAsItPredicts, r"models: it writes into state\.shared\['weight'\]"),
    (ShiftsTheClassFeatures, r"train_step: it writes into self\.problem\.class_features"),
    (CentresTheClassFeatures, r"__init__: it writes into self\.problem\.class_features, which is read again"),
    (SendsNoDict, "sends: it returns a NoneType; return tensors by name"),
    (SendsOnlyOne, r"sends: 'weight' has shape \(3, \d+\), but its first axis counts the \d+ participants"),
    (ForgetsToSend, r"sends: it does not send 'weight', which clients share; send {\*\*super\(\)"),
    (ConstantOfClasses, "round_constants: 'text' has shape .* but its first axis counts the 3 participants"),
    (FasterElsewhere, "lr_factors: it has a factor for 'wieght', but the clients hold 'weight', 'bias'"),
    (UphillFactor, "lr_factors: the factor of 'weight' is -1.0; give a number that is not negative"),
    (SendsNumbers, "upload: 'samples' is a list; give a tensor whose first axis counts the 3 participants"),
    (RaggedInOne, r"upload: 'rows' has values of shape \(3,\) and lengths of shape \(3,\); values are"),
    (DiagnosesAllClasses, r"diagnostics: 'norm' is a tensor of shape \(2,\); return one number, or one for"),
    (DiagnosesInWords, "diagnostics: 'norm' is a str; return one number"),
    (DiagnosesWords, "diagnostics: 'norm' is a ndarray; return one number"),
    (LogsOneText, "round_log: it returns a str; return a list of texts"),
    (CountsNothing, "downloads: it returns a list; return {name: value}"),
    (SortsInCapitals, "__init__: SortsInCapitals.batch_order is 'Sorted'; declare one of 'shuffled', 'so"),
    (
        AnotherAxis,
        r"axis -1 of 'weight' counts the classes, but it has shape \(3, \d+\) and there are 3",
    ),
    (MisspeltRows, "client_rows names 'biases', but the personal and server parts have nothing"),
    (BareShared, r"init: State.shared is a tensor of shape .*; it takes tensors by name, shared={...}"),
    (ListOfRows, r"init: State.server has 'rows': a list; it takes tensors by name"),
    (OneNameTwice, "init: 'bias' is in two parts of the state"),
    (OnePersonal, r"init: the personal 'scale' has shape \(1,\), but its first axis counts the 3 clients"),
    (Scalar, r"train_step: the loss of 'weight', 'bias' is a tensor of shape \(\), not one value per client"),
    (PerSample, r"shape \(3, 4\), not one value per client, shape \(clients,\) = \(3,\)"),
    (LeavesOut, "train_step: no loss moves 'bias', which would stay as init made it"),
    (Detached, "the loss of 'weight', 'bias' does not depend on 'bias'"),
    (Twice, "'bias' is in two losses"),
    (Unknown, "moves 'scale', but the clients hold 'weight', 'bias'"),
    (BareName, r'a loss is for .weight., which is not a tuple of names; write \("weight",\)'),
    (BareLoss, r"it returns a tensor of shape \(3,\); return Step"),
    (MovesAnotherShape, r"moved has 'bias' with shape \(3,\), the clients hold \(3, 3\)"),
    (ScalarTerm, r"the term 'ce' is a tensor of shape \(\), not one value per client"),
    (NeedsItsBias, r"logits: the global model has no 'bias', only 'weight'.*Models\(None"),
    (FlatLogits, r"logits: it returns a tensor of shape \(\d+, 3\), not \(models, samples, classes\)"),
    (OneBias, r"init: the local 'bias' has shape \(3,\).*State\(local=self.repeat"),
    (
        SendsNothing,
        r"upload: the server averages the shared 'weight', of shape .*but upload does not send it",
    ),
    (SendsItsMean, r"upload: the server averages the shared 'weight', .*but upload sends a tensor of shape"),
    (AggregatesNothing, "aggregate: it returns a NoneType; return replace"),
    (LosesItsWeight, "aggregate: the shared 'weight' is missing after the server's step"),
    (StacksItsWeight, r"aggregate: the shared 'weight' has shape \(3, .* but had shape"),
    (NoModels, "models: it returns a NoneType; return Models"),
    (GlobalWithoutAxis, r"of the global model has shape .* counts the 1 model; write \w+\[None\]"),
    (TwoModels, "models: '.*' of the clients' models has shape .*but its first axis counts the 3 clients"),
    (NothingBefore, "before_aggregation: it returns no parameters; return the parameters"),
    (HoldsLess, "after_training: it returns {'weight'.*; return the same names and shapes"),
    (SharesItsBias, "train_step: the first client's loss depends on 'bias' of other clients"),
    (GuidesAstray, "a guide, or only, is for 'bias', which no loss moves"),
    (OnlyAstray, "a guide, or only, is for 'bias', which no loss moves"),
    (SharesMore, "init: the state shares 'weight', 'scale', but SharesMore.shared names 'weight'"),
]


@pytest.mark.parametrize(("cls", "message"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_is_refused_by_the_file_and_function_that_makes_it(cls, message):
    if cls in (OneBias, SendsOnlyOne):  # as many clients as classes would hide it
        federation = tiny_federation(samples=(9, 5))
    else:
        federation = tiny_federation()
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
    federation = tiny_federation()
    one, other = (
        run_rounds(cls(BiasConfig(), federation.problem), federation, 1).state
        for cls in (BiasMethod, HalvedAndGuided)
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
    parallel = Parallel([lambda content: _done(serving.answer(content))], torch.device("cpu"))
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


def _done(content: bytes) -> Future[bytes]:
    future: Future[bytes] = Future()
    future.set_result(content)
    return future


@pytest.mark.parametrize("case", ["fedot", "feddeap", "fedalign"])
def test_the_contract_is_checked_once(case, monkeypatch):
    """Later steps, rounds and chunks call the method's own phases."""
    name, config, *_ = CASES[case]
    cls = registry.get(name)
    backbone = drawn_backbone()
    built = registry.build_config(name, config)
    federation = tiny_federation(backbone, cls.reads(built, backbone.spec))
    seen = []
    checked = contract.FirstStep._checked
    monkeypatch.setattr(
        contract.FirstStep, "_checked", lambda self, *given: seen.append(1) or checked(self, *given)
    )
    method = cls(built, federation.problem)
    run_rounds(method, federation, 2, chunk=2)
    steps = -(-9 // 4) * (built.local_epochs if cls.trains else 0)
    assert len(seen) <= len(method.phases) * max(1, steps), "only the first chunk's calls pass through it"
