"""Class order, keys, clients and pixels do not depend on PYTHONHASHSEED: sets and dicts decide nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from fedcore.data.drawn import shapes
from fedcore.data.drawn.drawing import STYLES
from tests.support.data.layouts import WRITE
from tests.support.data.partitions import KINDS, pixel_digest

CLASSES = ("zebra", "ant", "Owl", "bee", "10", "9")
DOMAINS = ("sketch", "Art", "photo")
NAMED = ("pacs", "domainnet", "ddr", "femnist", "oxford-pets", "food101", "tiny-imagenet", "cifar10")
DRAWINGS = [f"{style}+30/star/000" for style in STYLES]

SCRIPT = """
import json, sys
from fedcore.data import catalog, descriptions
own, named, drawings = json.loads(sys.argv[1])
quick = repr([catalog.class_names(name) for name in ("rotated-digits", "shapes")])
quick += repr([catalog.class_names("folder", own["folder"]), descriptions.read("shapes")])
heavy = sorted({"torch", "sklearn", "pandas"} & set(sys.modules))

from fedcore.data.drawn import shapes
from fedcore.data.splits import split
from tests.support.data.partitions import KINDS, digest, partition, pixel_digest

def loaded(name, root):
    i = catalog.load(name, root)[0]
    return i, [i.classes, i.domains, catalog.class_names(name, root), i.keys, i.labels.tolist(),
               i.domain.tolist(), i.fingerprint, i.owner, None if i.split is None else i.split.tolist()]

sets, clients = {}, {}
for name, root in own.items():
    images, sets[name] = loaded(name, root)
    marks = split(images, "60/20/20", 1)
    kinds = [{"kind": "domain"}, {"kind": "iid", "clients": 3},
             {"kind": "dirichlet", "clients": 3, "alpha": 1.0, "dirichlet_form": "per_client"},
             {"kind": "pathological", "clients": 2, "classes_per_client": 2, "leftover": "spread"}]
    kinds += [{"kind": "natural"}] if images.owner else []
    clients[name] = [digest(partition(images, marks, seed=1, **kind)) for kind in kinds]
for name, root in named.items():
    sets[name] = loaded(name, root)[1]
digits = catalog.load("rotated-digits")[0]
marks = split(digits, "60/20/20", 1)
clients["digits"] = [digest(partition(digits, marks, seed=1, **kind)) for kind in KINDS.values()]
pixels = pixel_digest(shapes.draw_key(key) for key in drawings)
print(json.dumps([quick, sets, clients, pixels, heavy, "torch" in sys.modules]))
"""


def own_data(folder: Path) -> dict[str, str]:
    """One data set of one's own as a folder, a manifest and a saved data set."""
    datasets.disable_progress_bars()
    rows, content = [], {"image": [], "label": [], "domain": [], "writer": []}
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            for i in range(6):
                path = folder / "set" / domain / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((4, 4, 3), 40 * d + 6 * c + i, dtype=np.uint8)).save(path)
                rows.append(f"{domain}/{name}/{i}.png,{name},{domain},w{i % 2}")
                values = ({"bytes": path.read_bytes(), "path": None}, c, domain, f"w{i % 2}")
                for column, value in zip(content.values(), values, strict=True):
                    column.append(value)
    (folder / "set" / "list.csv").write_text("\n".join(["path,label,domain,client", *rows]))
    text = datasets.Value("string")
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=list(CLASSES)),
        "domain": text,
        "writer": text,
    }
    data = datasets.Dataset.from_dict(content, features=datasets.Features(features))
    data.save_to_disk(str(folder / "saved"))
    return {
        "folder": str(folder / "set"),
        "manifest": str(folder / "set" / "list.csv"),
        "hf-dataset": str(folder / "saved"),
    }


def test_nothing_depends_on_the_hash_seed_and_facts_load_nothing_heavy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    roots = {name: str(WRITE[name](tmp_path / name)) for name in NAMED}
    arguments = json.dumps([own_data(tmp_path), roots, DRAWINGS])
    other = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, arguments],
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    one = json.loads(other.stdout)
    monkeypatch.setattr(sys, "argv", ["-c", arguments])
    exec(SCRIPT, {})  # here, with the hash seed that pytest started with
    two = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert one[:4] == two[:4]
    quick, sets, clients, pixels, heavy, torch_is_loaded = one
    assert heavy == [] and not torch_is_loaded, "labels, splits and partitions never need torch"
    assert f"{tuple(sorted(CLASSES))}" in quick
    for name in ("folder", "manifest"):
        assert sets[name][0] == sorted(CLASSES) and sets[name][1] == sorted(DOMAINS)
    assert sets["hf-dataset"][0] == list(CLASSES), "a ClassLabel has an order of its own"
    assert [s[2] for s in sets.values()] == [s[0] for s in sets.values()], "both agree"
    assert len(clients["manifest"]) == len(clients["folder"]) + 1, "with its clients"
    assert len(set(clients["digits"])) == len(KINDS)
    assert pixels == pixel_digest(shapes.draw_key(key) for key in DRAWINGS)
