"""Hyper-parameters of SDFed."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from fedcore.methods.base import BatchSize, LearningRate, MethodConfig, Weighting

LONGEST = 75
"""[SOS] and [EOT] take two of CLIP's 77 places; class names need more (``check_room``)."""


class SDFedConfig(MethodConfig):
    """Hyper-parameters of SDFed."""

    lr: LearningRate = Field(0.01, description="Learning rate of local SGD (paper: 0.01)")
    batch_size: BatchSize = Field(16, description="Samples in a local batch (paper: 16)")
    weighting: Weighting = Field(
        "samples", description="Server mean over clients: weighted by sample counts (Eq. 5), or plain"
    )
    global_length: int = Field(
        8,
        ge=1,
        le=LONGEST,
        title="global prompt length",
        description="Length of the shared prompt, tokens (S_s; paper: 8)",
    )
    local_length: str = Field(
        "fixed:8",
        title="local prompt length",
        description="Length of each client's own prompt, tokens (S_l): fixed:8, random:4-64 (by seed), or "
        "one number per client, e.g. 4,8,64 (paper: 8, or 4 to 64)",
    )
    truncation: float = Field(
        0.6,
        gt=0,
        lt=1,
        title="truncated share",
        description="lambda: share of the global prompt's directions that are filtered out (paper: 0.6)",
    )
    margin: float = Field(
        0.8,
        ge=0,
        le=2,
        title="repulsion margin",
        description="gamma: distance below which global and local class features repel (paper: 0.8)",
    )
    components: Literal["none", "pfhf", "pfhf+srlp", "pfhf+irdc", "all"] = Field(
        "all",
        description="Ablations of Table 6, from none (one shared prompt) to all; pfhf+srlp uses G_c R only",
        json_schema_extra={
            "words": {
                "none": "one shared prompt",
                "pfhf": "PFHF",
                "pfhf+srlp": "PFHF + SRLP",
                "pfhf+irdc": "PFHF + IRDC",
            }
        },
    )
    refine_every: Literal["step", "round"] = Field(
        "round",
        description="How often R is made: once per round (Section 4.2.5) or every step (Algorithm 1)",
        json_schema_extra={"words": {"step": "every step", "round": "once per round"}},
    )
    refined_gradient: bool = Field(
        False,
        description="Let the stretch loss also train the refined prompt (Appendix C.3; off: C.4)",
    )
    null_basis: Literal["svd", "seeded"] = Field(
        "svd",
        title="null space basis",
        description="Directions beyond the global prompt's rank: the SVD's own choice, or a fixed random "
        "basis drawn by seed. The SVD's can jump with the last bits of the prompt; choose seeded to compare "
        "runs with and without --over, or from several machines",
        json_schema_extra={"words": {"svd": "the SVD's", "seeded": "drawn by seed"}},
    )
    projector: Literal["leading", "rank", "random"] = Field(
        "leading",
        description="Directions that R removes: leading, the first floor(lambda m) of the global prompt's "
        "full decomposition (paper); rank, the directions of the global prompt alone, at most as many as it "
        "has tokens; random, floor(lambda m) drawn by seed, whatever the global prompt is (a control)",
        json_schema_extra={
            "words": {
                "leading": "leading directions",
                "rank": "the global prompt's own",
                "random": "random directions",
            }
        },
    )
    label_space: Literal["all", "client"] = Field(
        "all",
        description="Classes that a client's losses and predictions cover: all, or those it holds",
        json_schema_extra={"words": {"all": "all classes", "client": "the client's own"}},
    )
    untrained: Literal["global", "local"] = Field(
        "global",
        title="untrained clients use",
        description="Prompt used to evaluate clients that have never taken part",
        json_schema_extra={"words": {"global": "the global prompt", "local": "their own prompt"}},
    )

    @field_validator("local_length")
    @classmethod
    def _readable(cls, value: str) -> str:
        low, high, listed = parse_lengths(value)
        if not all(1 <= n <= LONGEST for n in (low, high, *listed)):
            raise ValueError(f"prompt lengths are 1 to {LONGEST} tokens")
        if low > high:
            raise ValueError("write the shorter length first, e.g. random:4-64")
        return value


def parse_lengths(text: str) -> tuple[int, int, tuple[int, ...]]:
    """Parse a text of lengths into the shortest, the longest and, for a list, the lengths themselves.

    Raises:
        ValueError: when the text is none of the three forms.
    """
    if match := re.fullmatch(r"fixed:(\d{1,4})", text):
        return int(match[1]), int(match[1]), ()
    if match := re.fullmatch(r"random:(\d{1,4})-(\d{1,4})", text):
        return int(match[1]), int(match[2]), ()
    if re.fullmatch(r"\d{1,4}( *, *\d{1,4})*", text):
        listed = tuple(int(n) for n in text.split(","))
        return min(listed), max(listed), listed
    raise ValueError("write fixed:8, random:4-64, or one length per client such as 4,8,64")
