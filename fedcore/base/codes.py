"""Codes of models, test sets, splits and stages, wherever one is stored: accuracy cells, the database."""

from typing import Literal

GLOBAL = 0
"""Entity code of the global model.

Clients are 1..C, the further test sets (domains, base and new classes) C+1..C+D; the class set of client c,
if there is one, is C+D+c."""
NO_VALUE = "no value "
"""Beginning of the notice why a run has no accuracy on new classes, or of unseen clients that adapt."""
CROSS_CLASS_NOT_ANALYSED = (
    "The clients of this run predict among their own classes only. Analyses of single images show one set of "
    "classes for all models, so they are not available for it."
)
"""Reason why single images of a cross-class run cannot be analysed."""
TRAIN, VALIDATION, TEST = 0, 1, 2
SPLITS = ("train", "validation", "test")
"""Code -> name."""
PARTS = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION,
    "crossval": VALIDATION, "test": TEST, "testing": TEST,
}  # fmt: skip
"""Names of splits in data sets (folders, columns of a list, parts of a saved set) -> code."""
BEFORE_AGGREGATION, AFTER_AGGREGATION = 0, 1
"""Stages of a round at which models are evaluated."""
StageName = Literal["before_aggregation", "after_aggregation"]
STAGES: tuple[StageName, ...] = ("before_aggregation", "after_aggregation")
"""Code -> name, as files and the command line have it."""
