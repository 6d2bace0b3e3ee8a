"""The methods, one file each; ``base.py`` has the contract. Method files import from here."""

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
    rate_warnings,
)
from fedcore.methods.federation import LocalData, Problem
from fedcore.methods.hyperparameters import (
    CLASS_MEANS,
    HALF_COSINE,
    OPTIMISER_STATE,
    TENFOLD,
    UNTRAINED_CLASSES,
    BatchSize,
    Epochs,
    LearningRate,
    LeftOpen,
    LossWeight,
    MethodConfig,
    Momentum,
    Optimiser,
    PromptLength,
    Rank,
    RateSchedule,
    SearchRange,
    WeightDecay,
    Weighting,
    hyper,
)
from fedcore.methods.registry import get, load_all, load_file, method
from fedcore.methods.tensors import (
    Adam,
    OncePerSample,
    class_means,
    compared,
    cosine_logits,
    cross_entropy,
    draw_linear,
    in_pieces,
    linear,
    masked_mean,
    mean_cosine,
    measured,
    piece_size,
    saved_bytes,
    weighted_mean,
)
