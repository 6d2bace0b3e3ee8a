"""Codes of the splits, wherever one is stored: ``ImageSet.split``, accuracy cells, the database."""

TRAIN, VALIDATION, TEST = 0, 1, 2
SPLITS = ("train", "validation", "test")
"""Code -> name."""

PARTS = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION,
    "crossval": VALIDATION, "test": TEST, "testing": TEST,
}  # fmt: skip
"""What data sets call the parts of their own split: folders, columns of a list, parts of a saved set."""
