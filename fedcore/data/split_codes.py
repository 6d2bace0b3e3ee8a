"""Codes of the splits, wherever one is stored: ``ImageSet.split``, accuracy cells, the database."""

TRAIN, VALIDATION, TEST = 0, 1, 2
SPLITS = ("train", "validation", "test")
"""Code -> name."""
