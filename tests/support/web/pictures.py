"""Folders of small pictures."""

import json
from pathlib import Path

from PIL import Image


def image_folder(root: Path, described: object = None) -> str:
    """A folder of one domain and two classes, as the data part of an experiment."""
    for i, name in enumerate(("cat", "fire_engine")):
        (root / "photo" / name).mkdir(parents=True)
        for j in range(10):
            Image.new("RGB", (8, 8), (100 * i, j, 0)).save(root / "photo" / name / f"{j}.png")
    if described is not None:
        (root / "descriptions.json").write_text(json.dumps(described))
    return f'name = "folder"\nroot = "{root.as_posix()}"'
