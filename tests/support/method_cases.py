"""Small settings and cases of every method, for tests that hold for all of them."""

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import pytest

from fedcore.base.presentation import built_in
from fedcore.methods import registry

Case = tuple[str, dict[str, object], set[str], set[str], set[str]]
"""A method, its config, the names of what crosses upwards and downwards, and of what stays."""


def names(text: str | AbstractSet[str]) -> set[str]:
    """The words of a text, or a set as it is."""
    return set(text.split()) if isinstance(text, str) else set(text)


def layers(text: str) -> set[str]:
    """Weight and bias of each linear layer that is named."""
    return {f"{layer}_{part}" for layer in text.split() for part in "wb"}


def case(
    method: str,
    crosses: str | AbstractSet[str],
    *,
    down: str | AbstractSet[str] | None = None,
    keeps: str | AbstractSet[str] = "",
    **config: object,
) -> Case:
    """The same crosses in both directions unless ``down`` says otherwise; a field of None is left out."""
    chosen = {"batch_size": 4, "lr": 0.01} | config
    given = {field: value for field, value in chosen.items() if value is not None}
    return method, given, names(crosses), names(crosses if down is None else down), names(keeps)


NETWORK = names("w1 b1 w2 b2")
IMAGE = names("image_a image_b")
TABLE4 = IMAGE | names("image_class image_positions image_projection")
EVIDENCE = names("prototypes counts features labels")
PHI = {f"phi_{net}_{part}" for net in "sd" for part in NETWORK}
ATTENTION = layers("norm_query norm_names norm_feed q k v out up down")
FEDTPG = names("queries") | ATTENTION
FACMIC = NETWORK | names("gamma beta running_mean running_var")
BLOCK = names("ln_1. self_attention.in_proj_ self_attention.out_proj. ln_2. mlp.0. mlp.3.")
TINY_VIT = names("class_token encoder.pos_embedding") | {
    prefix + kind
    for prefix in (
        *names("conv_proj. encoder.ln. heads.head."),
        *(f"encoder.layers.encoder_layer_{block}.{layer}" for block in range(2) for layer in BLOCK),
    )
    for kind in ("weight", "bias")
}
"""Parameters of a vision transformer of torchvision with two blocks."""
CASES: dict[str, Case] = {
    "clip-fc": case("clip-fc", "bias weight"),
    "cocoop": case("cocoop", NETWORK | names("context")),
    "cocoop-server-coop": case("cocoop", "context", keeps=NETWORK, share="server_coop"),
    "cocoop-random-meta-net": case("cocoop", "context", keeps=NETWORK, share="random_meta_net"),
    "clip-adapter": case("clip-adapter", "w1 w2"),
    "coop": case("coop", "", keeps="context", lr=0.1),
    "dp-fpl": case("dp-fpl", "context", keeps="own steps", context_length=3, rank=2),
    "fedalign": case("fedalign", EVIDENCE | IMAGE, down=IMAGE | names("text"), rank=2, class_text="template"),
    "fedalign-table4": case(
        "fedalign",
        TABLE4 | EVIDENCE,
        down=TABLE4 | names("text"),
        rank=2,
        class_text="template",
        trainable="table4",
    ),
    "facmic": case("facmic", FACMIC),
    "fedapt": case("fedapt", "context query_w", lr=0.05, context_length=3),
    "fedapt-trained-keys": case(
        "fedapt",
        "context key query_w",
        down="context keys query_w",
        lr=0.05,
        context_length=3,
        keys="trained",
    ),
    "fedavg-lora": case("fedavg-lora", IMAGE, rank=2),
    "fedavg-lora-ffa": case("fedavg-lora", "image_b", rank=2, aggregation="ffa"),
    "fedavg-lora-fedsa": case("fedavg-lora", "image_a", keeps="image_b", rank=2, aggregation="fedsa"),
    "fedavg-lora-exact": case(
        "fedavg-lora", IMAGE, down=IMAGE | names("residual"), rank=2, aggregation="exact"
    ),
    "fedavg-lora-stack": case(
        "fedavg-lora", IMAGE, down=IMAGE | names("residual"), rank=2, aggregation="stack"
    ),
    "fedavg-lora-fair": case("fedavg-lora", IMAGE, rank=2, aggregation="fair"),
    "fedavg-lora-hetero": case("fedavg-lora", IMAGE, keeps="rank", rank=2, aggregation="hetero"),
    "fedprox-lora": case("fedprox-lora", IMAGE, rank=2),
    "fedclip": case("fedclip", NETWORK),
    "fedakt": case("fedakt", layers("down up"), keeps=layers("head")),
    "fedgh": case("fedgh", "labels means", down="bias weight"),
    "fedtpg": case("fedtpg", FEDTPG, context_length=3),
    "fedmvp": case("fedmvp", ATTENTION | layers("text"), class_text="template"),
    "fedotp": case("fedotp", "context", keeps="own", context_length=3),
    "fedpgp": case("fedpgp", "context", keeps="u v", context_length=9, rank=9, local_epochs=1),
    "feddeap": case("feddeap", PHI | names("p_s"), keeps="p_d", prompt_length=3),
    "fedavg-vision": case("fedavg-vision", TINY_VIT, network="vit_tiny"),
    "fedmaple": case("fedmaple", "b context deep w", lr=0.05),
    "fedot": case("fedot", "classifier", keeps="matrix", lr=0.1),
    "fedot-blocks": case("fedot", "classifier", keeps="matrix", lr=0.1, blocks=2),
    "fedot-adapter": case("fedot", "classifier", keeps="down up", lr=0.1, local_transform="adapter"),
    "fedot-all-local": case("fedot", "", keeps="classifier matrix", share="all_local"),
    "fedot-prompt": case("fedot", "prompt", keeps="matrix", lr=0.1, classifier="prompt"),
    "fedpha": case("fedpha", "global_prompt", keeps="local_prompt", global_length=6, local_length="4,9,6"),
    "ivlp": case("ivlp", "context deep visual", lr=0.05),
    "promptsrc": case("promptsrc", "context deep visual", lr=0.05),
    "fedmgp": case(
        "fedmgp", "text visual", keeps="own_text own_visual pairs", lr=0.05, groups=3, local_epochs=1
    ),
    "pfedmma": case(
        "pfedmma", layers("shared"), keeps=layers("image_down image_up text_down text_up"), width=8, alpha=0.3
    ),
    "kgcoop": case("kgcoop", "context"),
    "plot": case("plot", "context", context_length=3, prompts=2),
    "proda": case("proda", "context", keeps="steps", context_length=3, prompts=4),
    "prograd": case("prograd", "context"),
    "pfedmoap": case(
        "pfedmoap",
        "context",
        down="context experts",
        keeps=layers("gate_q gate_k gate_v gate_o"),
        context_length=3,
        local_epochs=1,
    ),
    "promptfl": case("promptfl", "context", lr=0.1),
    "promptfolio": case("promptfolio", "context", keeps="own", context_length=3),
    "promptfl-class-specific": case(
        "promptfl", "context", context_length=3, class_specific=True, suffix="sentence"
    ),
    "sdfed": case("sdfed", "global_prompt", keeps="local_prompt", local_length="4,9,6"),
    "taskres": case("taskres", "residual"),
    "taskres-local": case("taskres", "", keeps="residual", share="local"),
    "tip-adapter": case("tip-adapter", "", keeps="client", batch_size=None, lr=None),
    "tip-adapter-f": case("tip-adapter-f", "", keeps="shift"),
    "vpt": case("vpt", "classifier", keeps="prompts", lr=0.1),
    "vpt-deep": case("vpt", "classifier", keeps="prompts", lr=0.1, depth=9),
    "zero-shot": case("zero-shot", "", batch_size=None, lr=None),
}
for _name in built_in().keys() - {method for method, *_ in CASES.values()}:  # both ways what it averages
    CASES[_name] = case(_name, set(registry.get(_name).shared))
SMALL = {
    "fedot": {"lr": 0.01},
    "sdfed": {"global_length": 2, "local_length": "random:2-4", "lr": 0.05},
    "fedpha": {"global_length": 6, "local_length": "random:2-4", "lr": 0.05},
    "fedalign": {"rank": 2, "class_text": "template", "lr": 0.01, "server_lr": 0.01, "average": "factors"},
    "feddeap": {"prompt_length": 2, "lr": 0.02},
    "promptfl": {"context_length": 2, "lr": 0.05},
    "coop": {"context_length": 2, "lr": 0.05},
    "promptfolio": {"context_length": 2, "lr": 0.05},
    "dp-fpl": {"context_length": 2, "rank": 1, "lr": 0.05},
    "pfedmoap": {"context_length": 2, "lr": 0.05, "local_epochs": 1},
    "kgcoop": {"context_length": 2, "init": "random", "lr": 0.05, "schedule": "constant"},
    "prograd": {"context_length": 2, "init": "random", "lr": 0.05, "schedule": "constant"},
    "fedotp": {"context_length": 2, "lr": 0.05, "tolerance": 0.1},
    "plot": {"context_length": 2, "prompts": 2, "lr": 0.05, "schedule": "constant"},
    "proda": {"context_length": 2, "prompts": 4, "lr": 0.05},
    "fedpgp": {"context_length": 2, "rank": 2, "lr": 0.05, "local_epochs": 1},
    "fedapt": {"context_length": 2, "lr": 0.05},
    "fedmgp": {"groups": 3, "lr": 0.05, "local_epochs": 1},
    "pfedmma": {"width": 4, "alpha": 0.3},
    "fedtpg": {"context_length": 2, "lr": 0.05},
    "fedmvp": {"class_text": "template", "prompt_length": 3},
    "fedavg-lora": {"rank": 2, "lr": 0.01},
    "fedavg-vision": {"network": "vit_tiny"},
    "fedprox-lora": {"rank": 2, "lr": 0.01},
}
"""Prompts and ranks that the tiny CLIP has room for; methods that are not named run as they are."""
BUILT_IN = [n for n, cls in registry.load_all().items() if cls.__module__.startswith("fedcore.methods.")]
TRAINED = [name for name in BUILT_IN if registry.get(name).trains]


def slow_but(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return values as parameters of a test, which is slow for all but a few."""
    return [pytest.param(value, marks=() if value in quick else pytest.mark.slow) for value in values]
