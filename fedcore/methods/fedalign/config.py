"""Hyper-parameters of FedAlign."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedcore.methods.base import BatchSize, LearningRate, MethodConfig, Optimiser, WeightDecay, Weighting
from fedcore.methods.class_texts import ClassText, ClassTextConfig

OrthogonalityNorm = Literal["frobenius", "mean_squares", "spectral"]


class LoRAConfig(MethodConfig):
    """FedAlign's hyper-parameters of low-rank updates, which the baselines that it is compared with share.

    Layers count from 0 in a tower of 12 and are scaled to other depths.
    """

    optimiser: Optimiser = Field("adam", description="Local optimiser (FedAlign: Adam)")
    lr: LearningRate = Field(1e-3, description="Learning rate of the clients (FedAlign: 1e-3)")
    weight_decay: WeightDecay = Field(0.0, description="Weight decay of the clients (FedAlign names none)")
    batch_size: BatchSize = Field(64, description="Samples in a local batch (FedAlign: 64)")
    weighting: Weighting = Field(
        "samples", description="Server mean over clients: weighted by sample counts (paper), or plain"
    )
    rank: int = Field(
        4, ge=1, le=256, title="LoRA rank", description="Rank r of the low-rank updates (FedAlign: 4)"
    )
    gamma: float = Field(
        0.25,
        gt=0,
        le=100,
        title="LoRA scaling",
        description="Scaling of the updates, W = W0 + gamma B A (FedAlign: 0.25)",
    )
    start_layer: int = Field(
        2,
        ge=0,
        le=11,
        title="first adapted layer",
        description="First adapted attention layer l, from 0, of 12 (FedAlign: 2); scaled to the depth",
    )


class FedAlignConfig(ClassTextConfig, LoRAConfig):
    """Hyper-parameters of FedAlign."""

    trainable: Literal["attention", "table4"] = Field(
        "attention",
        title="trained parts",
        description="Low-rank updates of attention alone (the paper's text), or table4, all that its Table 4 "
        "counts: the image tower's class and positional embeddings and projection too, and the text tower's "
        "token embedding (low-rank) and positional embedding",
        json_schema_extra={"words": {"attention": "attention layers", "table4": "all of Table 4"}},
    )
    boundary_layer: int = Field(
        9,
        ge=0,
        le=12,
        title="first mixed layer",
        description="First layer m, from 0, of 12, that is mixed by attention; below it the global mean "
        "(paper: 9; 12 turns attention off); scaled to the depth",
    )
    orthogonality: float = Field(
        0.1,
        ge=0,
        le=1000,
        title="orthogonality weight",
        description="Weight mu of the orthogonality penalty (paper: 0.1)",
    )
    renormalise: bool = Field(
        True,
        title="renormalise means",
        description="Normalise the class means in the penalty to unit length (the paper does not)",
    )
    orthogonality_norm: OrthogonalityNorm = Field(
        "frobenius",
        description="Norm of the penalty: Frobenius, the mean of squares (the code that the paper cites), or "
        "spectral (as the paper's subscript 2 reads); for mean_squares, choose a larger mu",
        json_schema_extra={"words": {"frobenius": "Frobenius", "mean_squares": "mean of squares"}},
    )
    gradient_shares: bool = Field(
        False,
        title="measure gradient shares",
        description="Record how large the gradient of the orthogonality penalty is beside that of the "
        "cross-entropy; training stays the same and takes about twice as long",
    )
    scale: float | Literal["clip"] = Field(
        14.3,
        title="cosine scale",
        description="Factor of all cosines: exp(2.66) = 14.3 (paper), or 'clip' for the backbone's own",
        json_schema_extra={"words": {"clip": "CLIP's own"}},
    )
    class_text: ClassText = Field(
        "description",
        description="Class texts: description, written ones (paper; the prompt where a class has none), or "
        "template, the prompt",
    )
    upload_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        title="share uploaded",
        description="Share of the correctly predicted features that a client uploads (paper: 1)",
    )
    similarity: Literal["cosine", "dot", "euclidean"] = Field(
        "cosine",
        title="prototype similarity",
        description="Similarity of two prototypes (paper: cosine; Table 8)",
        json_schema_extra={"words": {"dot": "dot product", "euclidean": "Euclidean distance"}},
    )
    euclidean: Literal["plain", "negated"] = Field(
        "plain",
        title="Euclidean similarity",
        description="Euclidean distance as printed, which favours dissimilar prototypes, or with a minus "
        "sign",
        json_schema_extra={"words": {"plain": "as printed", "negated": "with a minus sign"}},
    )
    reduce: Literal["sum", "mean"] = Field(
        "sum",
        title="reduction over classes",
        description="How similarities to the other client's classes are combined: sum (paper, Eq. 11; "
        "saturates with many classes), or mean",
    )
    ex_query: bool = Field(
        True,
        title="leave out own update",
        description="Leave a client's own update out of the mean that it starts from next (paper: yes)",
    )
    average: Literal["exact", "product", "factors"] = Field(
        "exact",
        title="averaging of updates",
        description="Average the products B A and cut to rank r only the factors that the next round starts "
        "from (exact; paper, Eq. 13, 14), cut what is evaluated too (product, as in earlier releases), or "
        "average B and A separately",
        json_schema_extra={
            "words": {
                "exact": "products B A",
                "product": "products, cut to rank r",
                "factors": "B and A apart",
            }
        },
    )
    server_lr: LearningRate = Field(
        1e-3,
        title="server learning rate",
        description="Learning rate of the server's Adam (paper: 1e-3)",
    )
    server_epochs: int = Field(
        1, ge=0, le=1000, description="Server passes over the uploaded features in a round"
    )
    server_batch_size: BatchSize = Field(64, description="Samples in a server batch")

    @model_validator(mode="after")
    def _ordered(self) -> FedAlignConfig:
        if self.boundary_layer < self.start_layer:
            raise ValueError(
                f"boundary_layer {self.boundary_layer} is below start_layer; use {self.start_layer} or more"
            )
        if self.scale != "clip" and not 0 < self.scale <= 1000:
            raise ValueError("scale is a number above 0 up to 1000, or 'clip'")
        return self
