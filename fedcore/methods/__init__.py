"""The methods, one file each; ``base.py`` has the contract. A user's own method file imports from here."""

from fedcore.base.presentation import GRADIENT_CONFLICT, About, DiagnosticChart, FieldChart, MatrixChart
from fedcore.methods.base import (
    Batch,
    FedLensMethodError,
    Generators,
    Method,
    Models,
    Params,
    Phase,
    Ragged,
    RunContext,
    State,
    Step,
    Uploads,
)
from fedcore.methods.federation import LocalData, Problem
from fedcore.methods.hyperparameters import (
    TENFOLD,
    BatchSize,
    Epochs,
    LearningRate,
    LossWeight,
    MethodConfig,
    Momentum,
    Optimiser,
    PromptLength,
    Rank,
    SearchRange,
    WeightDecay,
    Weighting,
    hyper,
)
from fedcore.methods.registry import get, load_all, load_file, method
from fedcore.methods.tensors import (
    class_means,
    compared,
    cosine_logits,
    cross_entropy,
    draw_linear,
    in_pieces,
    linear,
    masked_mean,
    mean_cosine,
    piece_size,
    saved_bytes,
    weighted_mean,
)
