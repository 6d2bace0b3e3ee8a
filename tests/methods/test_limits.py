"""What a method is without its own part: the method that it extends, or zero-shot CLIP."""

from functools import cache

import pytest
import torch

from fedcore.methods.base import Method
from fedcore.methods.federation import Federation
from tests.support.against import build, client_logits, federation_for, global_logits
from tests.support.tiny import drawn_backbone, run_rounds, tiny_federation

Case = tuple[str, dict[str, object]]
PROMPTS: dict[str, Case] = {
    "kgcoop": ("kgcoop", {"init": "random", "schedule": "constant", "knowledge_weight": 0}),
    "pfedmoap": ("pfedmoap", {"experts": 1, "local_epochs": 1, "schedule": "constant"}),
    "proda": ("proda", {"prompts": 1, "prompt_batch": 1}),
    "prograd": ("prograd", {"init": "random", "schedule": "constant", "conflict_weight": 0, "proximal": 0.1}),
    "promptfolio": ("promptfolio", {"theta": 0}),
}
COMMON: dict[str, object] = {"context_length": 3, "lr": 0.05, "batch_size": 4}


@pytest.mark.parametrize("case", PROMPTS)
def test_without_its_part_it_is_promptfl_bit_for_bit(case):
    name, options = PROMPTS[case]
    context, expected = trained(name, **options), trained("promptfl", proximal=options.get("proximal", 0))
    assert torch.equal(context.reshape(expected.shape), expected)


@cache
def trained(name: str, **options: object) -> torch.Tensor:
    """The shared context after three rounds."""
    federation = tiny_federation()
    return run_rounds(build(name, federation, **COMMON, **options), federation, 3).state.shared["context"]


SMALL: dict[str, object] = {"lr": 0.05, "batch_size": 4}
LORA: dict[str, object] = {"rank": 2, "batch_size": 4}
STILL: dict[str, object] = {"lr": 0.0, "server_lr": 0.0}
ZERO_SHOT: dict[str, tuple[str, int, dict[str, object]]] = {
    "clip-adapter": ("clip-adapter", 2, SMALL | {"alpha": 0}),
    "clip-fc": ("clip-fc", 0, {"init": "text", "features": "normalised"}),
    "fedavg-lora": ("fedavg-lora", 0, LORA),
    **{
        f"fedalign-{trainable}-{rounds}": ("fedalign", rounds, LORA | more | {"trainable": trainable})
        for trainable in ("attention", "table4")
        for rounds, more in ((0, {}), (2, STILL))
    },
    **{
        f"fedot-{kind}": ("fedot", 2, {"lr": 0, "local_transform": kind})
        for kind in ("cayley", "linear", "adapter", "none")
    },
    "pfedmma": ("pfedmma", 2, SMALL | {"width": 8, "alpha": 0}),
    "taskres-untrained": ("taskres", 0, SMALL),
    "taskres": ("taskres", 2, SMALL | {"alpha": 0}),
    "tip-adapter": ("tip-adapter", 0, {"alpha": 0, "search": "none"}),
}
"""Method, rounds and settings."""


def scores(method: Method, federation: Federation, rounds: int) -> list[torch.Tensor]:
    """What the global model, if there is one, and every client's predict."""
    state = run_rounds(method, federation, rounds).state
    of_clients = list(client_logits(method, state, federation))
    if method.models(state).global_model is None:
        return of_clients
    return [global_logits(method, state, federation), *of_clients]


@pytest.mark.parametrize("case", ZERO_SHOT)
def test_without_its_part_or_without_training_it_is_zero_shot_clip(case):
    name, rounds, options = ZERO_SHOT[case]
    backbone = drawn_backbone()
    federation = federation_for(name, options, backbone)
    scale = {"scale": backbone.logit_scale} if name in ("fedalign", "fedavg-lora") else {}
    plain = tiny_federation(backbone)
    (expected, *_) = scores(build("zero-shot", plain), plain, 0)
    for found in scores(build(name, federation, **options, **scale), federation, rounds):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
