"""Make the data set ``femnist`` of the json files that LEAF's ``preprocess.sh`` wrote into ``all_data/``."""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Picture


def rows(folder: str) -> Iterator[dict[str, Any]]:
    """Yield each drawing with its writer and its character."""
    for file in sorted(Path(folder).glob("*.json")):
        for writer, of in json.loads(file.read_text())["user_data"].items():
            for pixels, label in zip(of["x"], of["y"], strict=True):
                grey = (np.reshape(pixels, (28, 28)) * 255 + 0.5).astype("uint8")
                yield {"image": Picture.fromarray(grey), "writer_id": writer, "character": label}


names = list(string.digits + string.ascii_uppercase + string.ascii_lowercase)
features = Features(image=Image(), writer_id=Value("string"), character=ClassLabel(names=names))
Dataset.from_generator(rows, features=features, gen_kwargs={"folder": "all_data"}).save_to_disk("femnist")
