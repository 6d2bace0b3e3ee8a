"""CoOp, local: every client learns a prompt of its own and nothing is shared (Zhou et al., 2022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fedcore.methods.base import Models, State
from fedcore.methods.baselines.promptfl import PromptFL, PromptFLConfig
from fedcore.methods.registry import method

if TYPE_CHECKING:
    from torch import Generator


class CoOpConfig(PromptFLConfig):
    """PromptFL's hyper-parameters, so that the two differ by what is shared alone."""

    lr: float = Field(
        1e-3, ge=0, le=100, description="Learning rate of local SGD (as PromptFL: 0.001; CoOp: 0.002)"
    )
    weighting: Literal["uniform", "samples"] = Field(
        "samples", description="No effect: the server averages nothing"
    )


@method
class CoOp(PromptFL):
    """PromptFL without the server: the context stays where it is trained."""

    name = "coop"
    title = "CoOp (local)"
    clients_use_global = False
    source = "Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022"
    about = (
        "CLIP stays frozen; a short sequence of word vectors before every class name is learned, as in "
        "PromptFL. "
        "Here every client trains its own and keeps it. "
        "Nothing is sent, and there is no global model. "
        "All clients start from the same random vectors, and training goes on where the last round ended. "
        "The difference to PromptFL is what federated averaging gains or costs."
    )
    Config = CoOpConfig
    shared = ()

    def init(self, generator: Callable[..., Generator]) -> State:
        """PromptFL's first context, once per client. Shape: context (clients, M, m)."""
        first = super().init(generator).shared
        return State(local={name: value.clone() for name, value in self.spread(first).items()})

    def models(self, state: State) -> Models:
        """Each client's own prompt; there is no common one."""
        return Models(None, state.local)
