"""A small file of embeddings in which classes can be told apart, for runs of a second."""

from pathlib import Path

import numpy as np

CLASSES = ("cat", "dog", "fire engine")


def embedding_file(folder: Path, class_vectors: bool = True) -> Path:
    """Write 180 embeddings of width 12 with a split, and beside them a vector of each class."""
    generator = np.random.default_rng(0)
    centres, label = generator.normal(size=(len(CLASSES), 12)), np.arange(180) % len(CLASSES)
    values = centres[label] + 0.8 * generator.normal(size=(180, 12)) + 3
    parts = np.resize(["train"] * 9 + ["validation"] * 3 + ["test"] * 3, 180)
    columns = {
        "label": np.array(CLASSES)[label],
        "split": parts,
        "domain": np.repeat(["photo", "sketch"], 90),
    }
    np.savez(folder / "set.npz", embedding=values.astype(np.float16), **columns)
    if class_vectors:
        np.savez(folder / "set.classes.npz", embedding=centres + 3, label=np.array(CLASSES))
    return folder / "set.npz"


TOML = """
name = "given"
rounds = 3
[data]
name = "embeddings"
root = "{root}"
split = "official"
[backbone]
name = "given"
"""
