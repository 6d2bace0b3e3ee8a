"""One small case per method, for tests that hold for all of them."""

from __future__ import annotations

NETWORK = ("w1", "b1", "w2", "b2")


IMAGE = {"image_a", "image_b"}


TABLE4 = IMAGE | {"image_class", "image_positions", "image_projection"}


EVIDENCE = {"prototypes", "counts", "features", "labels"}


PHI = {f"phi_{net}_{part}" for net in "sd" for part in ("w1", "b1", "w2", "b2")}


FEDTPG = {"queries"} | {
    f"{layer}_{part}"
    for layer in ("norm_query", "norm_names", "norm_feed", "q", "k", "v", "out", "up", "down")
    for part in "wb"
}


SMALL = {"batch_size": 4, "lr": 0.01}


LORA = {**SMALL, "rank": 2}


FACMIC = {"w1", "b1", "gamma", "beta", "w2", "b2", "running_mean", "running_var"}


BLOCK = ("ln_1.", "self_attention.in_proj_", "self_attention.out_proj.", "ln_2.", "mlp.0.", "mlp.3.")


TINY_VIT = {"class_token", "encoder.pos_embedding"} | {
    prefix + kind
    for prefix in (
        "conv_proj.",
        "encoder.ln.",
        "heads.head.",
        *(f"encoder.layers.encoder_layer_{block}.{layer}" for block in range(2) for layer in BLOCK),
    )
    for kind in ("weight", "bias")
}
"""Parameters of a vision transformer of torchvision with two blocks."""


# case -> method, config, what crosses upwards, what crosses downwards, what stays
CASES: dict[str, tuple[str, dict[str, object], set[str], set[str], set[str]]] = {
    "clip-fc": ("clip-fc", SMALL, {"weight", "bias"}, {"weight", "bias"}, set()),
    "cocoop": ("cocoop", SMALL, {"context", *NETWORK}, {"context", *NETWORK}, set()),
    "cocoop-server-coop": (
        "cocoop",
        {**SMALL, "share": "server_coop"},
        {"context"},
        {"context"},
        set(NETWORK),
    ),
    "cocoop-random-meta-net": (
        "cocoop",
        {**SMALL, "share": "random_meta_net"},
        {"context"},
        {"context"},
        set(NETWORK),
    ),
    "clip-adapter": ("clip-adapter", SMALL, {"w1", "w2"}, {"w1", "w2"}, set()),
    "coop": ("coop", {**SMALL, "lr": 0.1}, set(), set(), {"context"}),
    "dp-fpl": (
        "dp-fpl",
        {**SMALL, "context_length": 3, "rank": 2},
        {"context"},
        {"context"},
        {"own", "steps"},
    ),
    "fedalign": ("fedalign", {**LORA, "class_text": "template"}, IMAGE | EVIDENCE, IMAGE | {"text"}, set()),
    "fedalign-table4": (
        "fedalign",
        {**LORA, "class_text": "template", "trainable": "table4"},
        TABLE4 | EVIDENCE,
        TABLE4 | {"text"},
        set(),
    ),
    "facmic": ("facmic", SMALL, FACMIC, FACMIC, set()),
    "fedapt": (
        "fedapt",
        {**SMALL, "lr": 0.05, "context_length": 3},
        {"context", "query_w"},
        {"context", "query_w"},
        set(),
    ),
    "fedapt-trained-keys": (
        "fedapt",
        {**SMALL, "lr": 0.05, "context_length": 3, "keys": "trained"},
        {"context", "query_w", "key"},
        {"context", "query_w", "keys"},
        set(),
    ),
    "fedavg-lora": ("fedavg-lora", LORA, IMAGE, IMAGE, set()),
    "fedavg-lora-ffa": ("fedavg-lora", {**LORA, "aggregation": "ffa"}, {"image_b"}, {"image_b"}, set()),
    "fedavg-lora-fedsa": (
        "fedavg-lora",
        {**LORA, "aggregation": "fedsa"},
        {"image_a"},
        {"image_a"},
        {"image_b"},
    ),
    "fedavg-lora-exact": (
        "fedavg-lora",
        {**LORA, "aggregation": "exact"},
        IMAGE,
        IMAGE | {"residual"},
        set(),
    ),
    "fedavg-lora-stack": (
        "fedavg-lora",
        {**LORA, "aggregation": "stack"},
        IMAGE,
        IMAGE | {"residual"},
        set(),
    ),
    "fedavg-lora-fair": ("fedavg-lora", {**LORA, "aggregation": "fair"}, IMAGE, IMAGE, set()),
    "fedavg-lora-hetero": ("fedavg-lora", {**LORA, "aggregation": "hetero"}, IMAGE, IMAGE, {"rank"}),
    "fedprox-lora": ("fedprox-lora", LORA, IMAGE, IMAGE, set()),
    "fedclip": ("fedclip", SMALL, {"w1", "b1", "w2", "b2"}, {"w1", "b1", "w2", "b2"}, set()),
    "fedakt": (
        "fedakt",
        SMALL,
        {"down_w", "down_b", "up_w", "up_b"},
        {"down_w", "down_b", "up_w", "up_b"},
        {"head_w", "head_b"},
    ),
    "fedgh": ("fedgh", SMALL, {"means", "labels"}, {"weight", "bias"}, set()),
    "fedtpg": ("fedtpg", {**SMALL, "context_length": 3}, FEDTPG, FEDTPG, set()),
    "fedotp": ("fedotp", {**SMALL, "context_length": 3}, {"context"}, {"context"}, {"own"}),
    "fedpgp": (
        "fedpgp",
        {**SMALL, "context_length": 9, "rank": 9, "local_epochs": 1},
        {"context"},
        {"context"},
        {"u", "v"},
    ),
    "feddeap": ("feddeap", {**SMALL, "prompt_length": 3}, {"p_s"} | PHI, {"p_s"} | PHI, {"p_d"}),
    "fedavg-vision": (
        "fedavg-vision",
        {**SMALL, "network": "vit_tiny"},
        TINY_VIT,
        TINY_VIT,
        set(),
    ),
    "fedmaple": (
        "fedmaple",
        {**SMALL, "lr": 0.05},
        {"context", "deep", "w", "b"},
        {"context", "deep", "w", "b"},
        set(),
    ),
    "fedot": ("fedot", {**SMALL, "lr": 0.1}, {"classifier"}, {"classifier"}, {"matrix"}),
    "fedot-blocks": ("fedot", {**SMALL, "lr": 0.1, "blocks": 2}, {"classifier"}, {"classifier"}, {"matrix"}),
    "fedot-adapter": (
        "fedot",
        {**SMALL, "lr": 0.1, "local_transform": "adapter"},
        {"classifier"},
        {"classifier"},
        {"down", "up"},
    ),
    "fedot-all-local": ("fedot", {**SMALL, "share": "all_local"}, set(), set(), {"classifier", "matrix"}),
    "fedpha": (
        "fedpha",
        {**SMALL, "global_length": 6, "local_length": "4,9,6"},
        {"global_prompt"},
        {"global_prompt"},
        {"local_prompt"},
    ),
    "ivlp": (
        "ivlp",
        {**SMALL, "lr": 0.05},
        {"context", "deep", "visual"},
        {"context", "deep", "visual"},
        set(),
    ),
    "promptsrc": (
        "promptsrc",
        {**SMALL, "lr": 0.05},
        {"context", "deep", "visual"},
        {"context", "deep", "visual"},
        set(),
    ),
    "fedmgp": (
        "fedmgp",
        {**SMALL, "lr": 0.05, "groups": 3, "local_epochs": 1},
        {"text", "visual"},
        {"text", "visual"},
        {"own_text", "own_visual", "pairs"},
    ),
    "pfedmma": (
        "pfedmma",
        {**SMALL, "width": 8, "alpha": 0.3},
        {"shared_w", "shared_b"},
        {"shared_w", "shared_b"},
        {
            f"{tower}_{layer}_{part}"
            for tower in ("image", "text")
            for layer in ("down", "up")
            for part in "wb"
        },
    ),
    "kgcoop": ("kgcoop", SMALL, {"context"}, {"context"}, set()),
    "plot": ("plot", {**SMALL, "context_length": 3, "prompts": 2}, {"context"}, {"context"}, set()),
    "proda": ("proda", {**SMALL, "context_length": 3, "prompts": 4}, {"context"}, {"context"}, {"steps"}),
    "prograd": ("prograd", SMALL, {"context"}, {"context"}, set()),
    "pfedmoap": (
        "pfedmoap",
        {**SMALL, "context_length": 3, "local_epochs": 1},
        {"context"},
        {"context", "experts"},
        {f"gate_{layer}_{part}" for layer in "qkvo" for part in "wb"},
    ),
    "promptfl": ("promptfl", {**SMALL, "lr": 0.1}, {"context"}, {"context"}, set()),
    "promptfolio": ("promptfolio", {**SMALL, "context_length": 3}, {"context"}, {"context"}, {"own"}),
    "promptfl-class-specific": (
        "promptfl",
        {**SMALL, "context_length": 3, "class_specific": True, "suffix": "sentence"},
        {"context"},
        {"context"},
        set(),
    ),
    "sdfed": (
        "sdfed",
        {**SMALL, "local_length": "4,9,6"},
        {"global_prompt"},
        {"global_prompt"},
        {"local_prompt"},
    ),
    "taskres": ("taskres", SMALL, {"residual"}, {"residual"}, set()),
    "taskres-local": ("taskres", {**SMALL, "share": "local"}, set(), set(), {"residual"}),
    "tip-adapter": ("tip-adapter", {}, set(), set(), {"client"}),
    "tip-adapter-f": ("tip-adapter-f", SMALL, set(), set(), {"shift"}),
    "vpt": ("vpt", {**SMALL, "lr": 0.1}, {"classifier"}, {"classifier"}, {"prompts"}),
    "vpt-deep": ("vpt", {**SMALL, "lr": 0.1, "depth": 9}, {"classifier"}, {"classifier"}, {"prompts"}),
    "zero-shot": ("zero-shot", {}, set(), set(), set()),
}
