"""Class order, keys and clients are the same whatever PYTHONHASHSEED says: sets and dicts decide nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

CLASSES = ("zebra", "ant", "Owl", "bee", "10", "9")
DOMAINS = ("sketch", "Art", "photo")

SCRIPT = """
import json, sys
from fedcore.data import catalog
from fedcore.data.partition import partition
from fedcore.data.splits import split
from tests.support.partitions import digest
out = {}
for name, root in json.loads(sys.argv[1]).items():
    images = catalog.load(name, root)
    facts = catalog.facts(name, root)
    marks = split(images, "60/20/20", 1)
    kinds = [{"kind": "domain"}, {"kind": "iid", "clients": 3},
             {"kind": "dirichlet", "clients": 3, "alpha": 1.0, "dirichlet_form": "per_client"},
             {"kind": "pathological", "clients": 2, "classes_per_client": 2, "leftover": "spread"}]
    kinds += [{"kind": "natural"}] if images.owner else []
    clients = [digest(partition(images, marks, seed=1, **kind)) for kind in kinds]
    out[name] = [images.classes, images.domains, images.keys, images.labels.tolist(), images.owner,
                 facts.classes, facts.domains, *clients]
print(json.dumps(out))
"""


def test_every_loader_and_partition_is_the_same_under_two_hash_seeds(tmp_path: Path):
    datasets.disable_progress_bars()
    rows, content = [], {"image": [], "label": [], "domain": [], "writer": []}
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            for i in range(6):
                path = tmp_path / "set" / domain / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((4, 4, 3), 40 * d + 6 * c + i, dtype=np.uint8)).save(path)
                rows.append(f"{domain}/{name}/{i}.png,{name},{domain},w{i % 2}")
                values = ({"bytes": path.read_bytes(), "path": None}, c, domain, f"w{i % 2}")
                for column, value in zip(content.values(), values, strict=True):
                    column.append(value)
    (tmp_path / "set" / "list.csv").write_text("\n".join(["path,label,domain,client", *rows]))
    text = datasets.Value("string")
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES)),
                "domain": text, "writer": text}  # fmt: skip
    data = datasets.Dataset.from_dict(content, features=datasets.Features(features))
    data.save_to_disk(str(tmp_path / "saved"))
    roots = {
        "folder": str(tmp_path / "set"),
        "manifest": str(tmp_path / "set" / "list.csv"),
        "hf-dataset": str(tmp_path / "saved"),
    }
    one, two = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", SCRIPT, json.dumps(roots)],
                env={**os.environ, "PYTHONHASHSEED": seed},
                cwd=Path(__file__).parents[2],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for seed in ("0", "4242")
    )
    assert one == two
    for name in ("folder", "manifest"):
        assert one[name][0] == sorted(CLASSES) and one[name][1] == sorted(DOMAINS)
    assert one["hf-dataset"][0] == list(CLASSES), "a ClassLabel has an order of its own"
    assert [found[5:7] for found in one.values()] == [found[:2] for found in one.values()]
    assert len(one["manifest"]) == len(one["folder"]) + 1, "with its clients"
