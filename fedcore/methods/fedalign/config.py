"""Hyper-parameters of FedAlign."""

from typing import Literal, Self

from pydantic import model_validator

from fedcore import methods as fl
from fedcore.methods.class_texts import ClassText, ClassTextConfig

OrthogonalityNorm = Literal["frobenius", "mean_squares", "spectral"]


class LoRAConfig(fl.MethodConfig):
    """FedAlign's hyper-parameters of low-rank updates, which the baselines that it is compared with share.

    Layers count from 0 in a tower of 12 and are scaled to other depths.
    """

    optimiser: fl.Optimiser = fl.hyper("adam", "Local optimiser (FedAlign: Adam)")
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of the clients (FedAlign: 1e-3)")
    weight_decay: fl.WeightDecay = fl.hyper(0.0, "Weight decay of the clients (FedAlign names none)")
    batch_size: fl.BatchSize = fl.hyper(64, "Samples in a local batch (FedAlign: 64)")
    weighting: fl.Weighting = fl.hyper(
        "samples", "Server mean over clients: weighted by sample counts (paper), or plain"
    )
    rank: fl.Rank = fl.hyper(4, "Rank r of the low-rank updates (FedAlign: 4)", title="LoRA rank")
    gamma: float = fl.hyper(
        0.25,
        "Scaling of the updates, W = W0 + gamma B A (FedAlign: 0.25)",
        title="LoRA scaling",
        gt=0,
        le=100,
    )
    start_layer: int = fl.hyper(
        2,
        "First adapted attention layer l, from 0, of 12 (FedAlign: 2); scaled to the depth",
        title="first adapted layer",
        ge=0,
        le=11,
    )


class FedAlignConfig(ClassTextConfig, LoRAConfig):
    left_open = (
        fl.OPTIMISER_STATE,
        fl.LeftOpen(
            "temperature",
            "the paper prints tau = 2.66, which is CLIP's initial logarithm of the scale, ln(1/0.07)",
            "cosines times exp(2.66) = 14.3",
            {"cosines over 2.66": {"scale": 0.376}, "CLIP's own scale": {"scale": "clip"}},
        ),
        fl.LeftOpen(
            "trained parts",
            "the text says that attention alone is trained, Table 4 and Appendix C.1 count more",
            "attention alone",
            {"all that Table 4 counts": {"trainable": "table4"}},
        ),
        fl.LeftOpen(
            "norm of the orthogonality loss",
            "the paper writes a 2-norm, the code that it cites takes the mean of squares",
            "Frobenius",
            {
                "mean of squares": {"orthogonality_norm": "mean_squares"},
                "spectral": {"orthogonality_norm": "spectral"},
            },
            unless={"orthogonality": (0.0,)},
        ),
        fl.LeftOpen(
            "means in the orthogonality loss",
            "the paper does not normalise them, and then the diagonal cannot be 1",
            "normalised again",
            {"as they are": {"renormalise": False}},
            unless={"orthogonality": (0.0,)},
        ),
        fl.LeftOpen(
            "averaging",
            "Equations 13 and 14 average products B A, whose rank grows with the clients",
            "exact; cut where the next round starts",
            {"cut for prediction too": {"average": "product"}, "B and A apart": {"average": "factors"}},
        ),
        fl.LeftOpen(
            "sum over the other's classes",
            "as printed it drives attention to one neighbour when classes are many",
            "as printed",
            {"mean": {"reduce": "mean"}},
        ),
        fl.LeftOpen(
            "sign of the Euclidean distance",
            "as printed, clients learn from those that differ most",
            "as printed",
            {"negated": {"euclidean": "negated"}},
            unless={"similarity": ("cosine", "dot")},
        ),
        fl.LeftOpen(
            "server's training",
            "the paper does not say how often the server passes over the uploaded features",
            "one epoch",
            {"five epochs": {"server_epochs": 5}},
        ),
    )

    trainable: Literal["attention", "table4"] = fl.hyper(
        "attention",
        "Low-rank updates of attention alone (the paper's text), or table4, all that its Table 4 "
        "counts: the image tower's class and positional embeddings and projection too, and the text tower's "
        "token embedding (low-rank) and positional embedding",
        title="trained parts",
        words={"attention": "attention layers", "table4": "all of Table 4"},
    )
    boundary_layer: int = fl.hyper(
        9,
        "First layer m, from 0, of 12, that is mixed by attention; below it the global mean "
        "(paper: 9; 12 turns attention off); scaled to the depth",
        title="first mixed layer",
        ge=0,
        le=12,
    )
    orthogonality: fl.LossWeight = fl.hyper(
        0.1,
        "Weight mu of the orthogonality penalty (paper: 0.1)",
        title="orthogonality weight",
        search=fl.TENFOLD,
    )
    renormalise: bool = fl.hyper(
        True,
        "Normalise the class means in the penalty to unit length (the paper does not)",
        title="renormalise means",
    )
    orthogonality_norm: OrthogonalityNorm = fl.hyper(
        "frobenius",
        "Norm of the penalty: Frobenius, the mean of squares (the code that the paper cites), or "
        "spectral (as the paper's subscript 2 reads); for mean_squares, choose a larger mu",
        words={"frobenius": "Frobenius", "mean_squares": "mean of squares"},
    )
    gradient_shares: bool = fl.hyper(
        False,
        "Record how large the gradient of the orthogonality penalty is beside that of the "
        "cross-entropy; training stays the same and takes about twice as long",
        title="measure gradient shares",
    )
    scale: float | Literal["clip"] = fl.hyper(
        14.3,
        "Factor of all cosines: exp(2.66) = 14.3 (paper), or 'clip' for the backbone's own",
        title="cosine scale",
        words={"clip": "CLIP's own"},
    )
    class_text: ClassText = fl.hyper(
        "description",
        "Class texts: description, written ones (paper; the prompt if a class has none), or "
        "template, the prompt",
    )
    upload_ratio: float = fl.hyper(
        1.0,
        "Share of the correctly predicted features that a client uploads (paper: 1)",
        title="share uploaded",
        ge=0,
        le=1,
    )
    similarity: Literal["cosine", "dot", "euclidean"] = fl.hyper(
        "cosine",
        "Similarity of two prototypes (paper: cosine; Table 8)",
        title="prototype similarity",
        words={"dot": "dot product", "euclidean": "Euclidean distance"},
    )
    euclidean: Literal["plain", "negated"] = fl.hyper(
        "plain",
        "Euclidean distance as printed, which favours dissimilar prototypes, or with a minus sign",
        title="Euclidean similarity",
        words={"plain": "as printed", "negated": "with a minus sign"},
    )
    reduce: Literal["sum", "mean"] = fl.hyper(
        "sum",
        "How similarities to the other client's classes are combined: sum (paper, Eq. 11; "
        "saturates with many classes), or mean",
        title="reduction over classes",
    )
    ex_query: bool = fl.hyper(
        True,
        "Leave a client's own update out of the mean that it starts the next round from (paper: yes)",
        title="leave out own update",
    )
    average: Literal["exact", "product", "factors"] = fl.hyper(
        "exact",
        "Average the products B A and cut to rank r only the factors that the next round starts "
        "from (exact; paper, Eq. 13, 14), cut the evaluated models too (product), or "
        "average B and A separately (factors)",
        title="averaging of updates",
        words={"exact": "products B A", "product": "products, cut to rank r", "factors": "B and A apart"},
    )
    server_lr: fl.LearningRate = fl.hyper(
        1e-3, "Learning rate of the server's Adam (paper: 1e-3)", title="server learning rate"
    )
    server_epochs: int = fl.hyper(1, "Server passes over the uploaded features in a round", ge=0, le=1000)
    server_batch_size: fl.BatchSize = fl.hyper(64, "Samples in a server batch")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.boundary_layer < self.start_layer:
            raise ValueError(
                f"boundary_layer {self.boundary_layer} is below start_layer; use {self.start_layer} or more"
            )
        if self.scale != "clip" and not 0 < self.scale <= 1000:
            raise ValueError("scale is a number above 0 up to 1000, or 'clip'")
        return self
