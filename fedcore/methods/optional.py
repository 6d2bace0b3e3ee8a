"""Optional protocols, which only some methods offer in addition to ``Method``'s contract.

A method offers one of them by having its members. There is nothing to inherit from and nothing to register.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from torch import Tensor

    from fedcore.federation import LocalData
    from fedcore.methods.base import Params, Ragged, RunContext, Uploads


@runtime_checkable
class RoundConstants(Protocol):
    """A method whose local training needs values that stay constant for one round (SDFed's projector)."""

    def round_constants(self, params: Params, data: LocalData) -> Params:
        """Return values computed once per round and client, without gradient, before the first step.

        Shape: params and result (participants, ...).
        """


@runtime_checkable
class LearningRates(Protocol):
    """A method whose parameters do not all have the same learning rate (FedOT's transform)."""

    def lr_factors(self) -> dict[str, float]:
        """Return multiples of the run's learning rate by parameter name; 1 for names that are left out."""


@runtime_checkable
class LocalModels(Protocol):
    """A method whose trained models need more than their parameters to predict before aggregation."""

    def before_aggregation(self, trained: Params, received: Params) -> Params:
        """Return the participants' models as evaluated before aggregation.

        Args:
            trained: the participants' parameters after local training, their local ones included.
            received: what was sent to them at the start of the round.

        Shape: (participants, ...) each.
        """


@runtime_checkable
class BatchPrediction(Protocol):
    """A method whose prediction may depend on the other samples of its batch."""

    def predicts_in_batches(self) -> bool:
        """Return whether it does with this config; if so, samples of two test sets never share a batch."""


def predicts_in_batches(method: object) -> bool:
    """Return whether a method's prediction depends on the other samples of its batch."""
    return isinstance(method, BatchPrediction) and method.predicts_in_batches()


@runtime_checkable
class LearnedPrompts(Protocol):
    """A method that learns vectors in the text tower's token space; Run shows their nearest words."""

    def prompts(self, params: Params, clients: Tensor | None) -> dict[str, Tensor | Ragged]:
        """Return the learned vectors by name of the prompt.

        Shape: clients (models,), None for the global model -> (models, tokens, m), or (models, classes,
        tokens, m) for prompts of each class.
        """


@runtime_checkable
class GradCAMScores(Protocol):
    """A method with more scores than the predicted class's whose evidence in an image is worth seeing."""

    def gradcam_scores(self, params: Params, head: Params, x: Tensor) -> dict[str, Tensor]:
        """Return more scores by name, for Grad-CAM to show beside the score of the predicted class.

        Shape: x (models, samples, ...) -> (models, samples) each.
        """


@runtime_checkable
class ResultCaveat(Protocol):
    """A method whose results may need a word of caution."""

    @classmethod
    def result_caveat(cls, config: Any, embedded: bool) -> str:
        """Say what a reader of a finished run must know, for display beside its results; empty if nothing.

        Args:
            embedded: whether its data set comes with FedLens.
        """


@runtime_checkable
class RoundLog(Protocol):
    """A method that has something to say about a round."""

    def round_log(self, uploads: Uploads) -> list[str]:
        """Return log lines about this round, e.g. that a client fell back to the global model."""


@runtime_checkable
class ClassTexts(Protocol):
    """A method that describes classes by written texts; ``class_texts.Described`` implements it."""

    @classmethod
    def freeze_config(cls, config: Any, context: RunContext) -> BaseModel:
        """Write the texts out in the config, so that the run can be repeated from the config alone.

        Wherever ``check`` accepts ``config`` it accepts the result too.
        """

    @classmethod
    def plan_warnings(cls, config: Any, context: RunContext) -> list[str]:
        """Return warnings about a config that can run but may not do what its user expects."""

    @classmethod
    def result_caveat(cls, config: Any, embedded: bool) -> str:
        """Say how a finished run differs from its config, for display beside its results; empty if not.

        Args:
            embedded: whether its data set comes with FedLens.
        """

    def drawn_texts(self) -> dict[str, str]:
        """Class -> the text drawn for it by the run's seed, for the run's log; empty: none was drawn."""
