"""What papers print as counts, counted from the methods of FedLens without a run (``computed.csv``).

A CLIP with random weights has the shapes of the real one, and only shapes are counted.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from fedcore.base.lazy import open_clip, torch
from fedcore.clip.backbone import Backbone
from fedcore.clip.specs import backbone_spec, config_files
from fedcore.config import MethodEntry
from fedcore.data import catalog
from fedcore.engine.server import traffic
from fedcore.methods import registry
from fedcore.methods.base import Params
from fedcore.methods.federation import LocalData, Problem
from fedcore.papers import library, published
from fedcore.papers.experiments import preset


def render() -> dict[Path, str]:
    """Return the ``computed.csv`` of the papers that print counts."""
    found = {"fedalign": _parameters(), "feddeap": _traffic()}
    return {
        library.find(paper).folder / library.COMPUTED_FILE: library.csv_text(
            [
                published.COMPUTED_COLUMNS,
                *((*v.line[:-2], f"{ours:.6f}") for v, ours in dict(counted).items()),
            ]
        )
        for paper, counted in found.items()
    }


def _parameters() -> Iterator[tuple[published.PublishedValue, float]]:
    """Count what FedAlign trains in each tower (its Table 4), in units of 2^20."""
    problem = _problem("cifar10", "a photo of a {}.")
    for value in (v for v in published.load("fedalign") if v.table == "4"):
        rank, layer = map(int, re.findall(r"\d+", value.setting))
        config = {"trainable": "table4", "rank": rank, "start_layer": layer, "class_text": "template"}
        method = registry.get("fedalign")(registry.build_config("fedalign", config), problem)
        state = method.init(problem.generator)
        of_tower: Params = (
            state.server if value.target == "text" else {n: v[0] for n, v in state.personal.items()}
        )
        yield value, sum(v.numel() for n, v in of_tower.items() if n.startswith(f"{value.target}_")) / 2**20


def _traffic() -> Iterator[tuple[published.PublishedValue, float]]:
    """Count what a client of FedDEAP's Table 4 sends in a round, in millions of scalars."""
    experiment = preset("feddeap/table1-domainnet-126")
    problem = _problem(experiment.data.name, str(experiment.data.template))
    entries: dict[str, MethodEntry] = {str(entry.label): entry for entry in experiment.methods}
    for value in (v for v in published.load("feddeap") if v.metric.startswith("Comm.")):
        entry = entries[value.method]
        method = registry.get(entry.name)(registry.build_config(entry.name, entry.config), problem)
        clients = torch.arange(len(problem.clients))
        sent = method.upload(method.sends(method.init(problem.generator), clients), {}, cast(LocalData, None))
        yield value, int(traffic(sent, len(clients)).scalars[0]) / 1e6


def _problem(data: str, template: str) -> Problem:
    """Return the problem of one client per domain on a ViT-B-32."""
    entry, device = catalog.entry(data), torch.device("cpu")
    model = (
        open_clip().CLIP(**json.loads(config_files()["ViT-B-32"].read_text())).eval().requires_grad_(False)
    )
    tokenizer = open_clip().get_tokenizer("ViT-B-32")
    spec = backbone_spec("ViT-B-32")
    domains = entry.domains or ("all",)
    return Problem(
        backbone=Backbone(spec, model, tokenizer, lambda image: torch.empty(0), device, "none", "fp32"),
        classes=entry.classes,
        template=template,
        clients=domains,
        domains=domains,
        client_domain=torch.arange(len(domains)),
        samples=torch.full((len(domains),), len(entry.classes)),
        class_counts=torch.ones(len(domains), len(entry.classes), dtype=torch.int64),
        seed=0,
        descriptions={},
    )
