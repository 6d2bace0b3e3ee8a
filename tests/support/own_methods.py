"""A method as small as the contract allows (shared linear head, private bias), to test the engine with."""

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Generator, Tensor

from fedcore.methods import About, Batch, Method, MethodConfig, Models, Params, State, Step, cross_entropy


class BiasConfig(MethodConfig):
    lr: float = Field(0.1, ge=0)
    batch_size: int = Field(4, ge=1)


class BiasMethod(Method):
    """Shared weight W (K, d), local bias b (K)."""

    name = "test-bias"
    about = About(title="Bias", source="tests", summary="A shared linear classifier with a private bias.")
    Config = BiasConfig
    shared = ("weight",)

    def init(self, generator: Callable[..., Generator]) -> State:
        p = self.problem
        weight = torch.zeros(len(p.classes), p.backbone.spec.embed_dim, dtype=p.backbone.dtype)
        bias = p.draw_per_client(
            lambda g: torch.randn(len(p.classes), generator=g, dtype=torch.float64).to(p.backbone.dtype),
            "bias",
        )
        return State(shared={"weight": weight}, local={"bias": bias})

    def train_step(self, params: Params, const: Params, batch: Batch) -> Step:
        logits = self.logits(params, const, batch.x)
        loss = cross_entropy(logits, batch.labels, batch.mask)
        return Step({("weight", "bias"): loss}, record={"row": batch.x}, terms={"ce": loss})

    def models(self, state: State) -> Models:
        common = {"weight": state.shared["weight"][None]}
        return Models(common, {**self.repeat(state.shared), **state.local})

    def logits(self, params: Params, head: Params, x: Tensor) -> Tensor:
        logits = x @ params["weight"].transpose(1, 2)
        return logits + params["bias"][:, None] if "bias" in params else logits
