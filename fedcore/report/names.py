"""What fields and their values are called, for people: ``partition.alpha`` is "Dirichlet alpha". No torch."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

from fedcore.config import DataConfig
from fedcore.methods import class_texts

_OWN = ("folder", "manifest", "hf-dataset")
_TITLES = {
    "data.name": "Data set",
    "data.root": "Folder",
    "data.domains": "Domains",
    "data.template": "Prompt",
    "data.split": "Train / validation / test",
    "data.shots": "Shots per class",
    "data.columns": "Names of columns",
    "data.decode": "JPEG decoding",
    "partition.kind": "Who holds what",
    "partition.alpha": "Dirichlet alpha",
    "partition.min_samples": "Fewest samples",
    "partition.dirichlet_form": "Dirichlet shares",
    "partition.leftover": "Leftover classes",
    "backbone.name": "CLIP backbone",
    "backbone.pretrained": "Weights",
    "backbone.precision": "Precision",
    "method.name": "Method",
    "method.label": "Name in tables",
    "method.file": "Method's file",
    "method.sha256": "Checksum of the method's file",
}
"""Titles by whole path, where the last part of it does not say it."""

_WORDS = {
    "lr": "Learning rate",
    "server_lr": "Server learning rate",
    "max_steps": "Step limit",
    "evaluate_every": "Rounds between evaluations",
    "weighting": "Clients' weights",
    "rank": "LoRA rank",
    "personal_length": "Domain prompt length",
    "gamma": "LoRA scaling",
    "start_layer": "First adapted layer",
    "boundary_layer": "First mixed layer",
    "orthogonality": "Orthogonality weight",
    "renormalise": "Normalise means again",
    "scale": "Cosine scale",
    "style": "Class texts",
    "descriptions": "Written descriptions",
    "upload_ratio": "Share uploaded",
    "similarity": "Prototype similarity",
    "euclidean": "Euclidean similarity",
    "reduce": "Over classes",
    "ex_query": "Leave own update out",
    "average": "Averaging of updates",
    "trainable": "Trained parts",
    "etf_temperature": "ETF temperature",
    "phi_input": "Transformation input",
    "domain_etf": "Domain ETF columns",
    "unseen": "Global model's context",
    "share": "Server averages",
    "init": "First classifier",
    "tau": "Logit temperature",
    "global_length": "Global prompt length",
    "local_length": "Local prompt length",
    "truncation": "Truncated share",
    "margin": "Repulsion margin",
    "null_basis": "Null space basis",
    "refine_every": "Refine every",
    "untrained": "Untrained clients use",
    "features": "Image features",
    "bias": "Class offsets",
    "beta1": "Adam beta 1",
    "beta2": "Adam beta 2",
    "eps": "Adam epsilon",
    "proximal": "Proximal weight",
    "held_out": "Held-out domains",
}
"""Titles by the last part of a path, where its words alone do not say it."""

_VALUES: dict[str, dict[Any, str]] = {
    "kind": {"domain": "by domain", "iid": "IID", "dirichlet": "Dirichlet"},
    "optimiser": {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"},
    "weighting": {"uniform": "all alike", "samples": "by samples"},
    "optimiser_state": {"fresh": "new each round", "kept": "kept across rounds"},
    "leftover": {"drop": "dropped", "spread": "spread over all clients"},
    "trainable": {"table4": "all of Table 4"},
    "style": {"gt": "written descriptions", "st": "from the prompt"},
    "scale": {"clip": "CLIP's own"},
    "loss": {"ce": "cross-entropy"},
    "null_basis": {"svd": "SVD"},
    "components": {"pfhf": "PFHF", "pfhf+srlp": "PFHF + SRLP", "pfhf+irdc": "PFHF + IRDC"},
    "shots": {None: "all"},
    "domains": {None: "all"},
    "template": {None: "the data set's own"},
    "pretrained": {None: "its own"},
    "tau": {None: "CLIP's own"},
    "personal_length": {None: "the prompt length"},
    "backbone": {None: "the experiment's"},
    "batch_size": {None: "the method's"},
    "local_epochs": {None: "the method's"},
    "max_steps": {None: "no limit"},
    "descriptions": {None: "the data set's own"},
}
"""Words for values, by the last part of a path; a value without words is shown as it is."""

_PROPER = ("CLIP", "LoRA", "Dirichlet", "JPEG", "ETF", "Adam", "Euclidean")
_AS_TYPED = ("data", "backbone")
"""Parts whose texts are names, files and prompts: an underscore there belongs to them."""


def data_words(data: DataConfig) -> str:
    """A data set's name; of one's own data, which all bear the name of their form, its folder's or file's."""
    own = PurePath(data.root).name if data.name in _OWN and data.root else ""
    return f"{own} ({data.name})" if own else data.name


def reason_words(reason: str) -> str:
    """Why a run ended, its field by title: ``data.root: no folder /x`` is "Folder: no folder /x"."""
    field, sep, what = reason.partition(": ")
    return f"{field_title(field)}: {what}" if sep and field in _TITLES else reason


def field_title(path: str) -> str:
    """The title of a field of an experiment, a run or a method.

    Args:
        path: dotted, as in TOML files, sweeps, errors and flattened configs (``partition.alpha``,
            ``methods.fedot.lr``, ``method.config.lr``, ``cohorts.0.clients``); of a method's field the last
            part is enough (``lr``). A method in the path is not named by the title.
    """
    path = path.removeprefix("sweep.")
    part, _, rest = path.partition(".")
    if part == "cohorts" and rest:
        number, _, name = rest.partition(".")
        if not number.isdecimal():
            return f"Cohorts: {field_words(rest)}"
        return f"Cohort {int(number) + 1}: {field_words(name)}" if name else f"Cohort {int(number) + 1}"
    name = path.rpartition(".")[2]
    return _TITLES.get(path) or _WORDS.get(name) or name.replace("_", " ").capitalize()


def field_words(path: str) -> str:
    """The title as it stands within a sentence: ``learning rate``, ``Dirichlet alpha``."""
    title = field_title(path)
    return title if title.startswith(_PROPER) else title[:1].lower() + title[1:]


def value_text(path: str, value: object) -> str:
    """A value of a field in words: options without underscores, what an empty field stands for, lists."""
    name = path.rpartition(".")[2]
    if isinstance(value, (str, type(None))) and value in _VALUES.get(name, {}):
        return _VALUES[name][value]
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if class_texts.is_texts(value):
        return class_texts.summary(value)  # type: ignore[arg-type]
    if isinstance(value, (list, tuple)):
        return ", ".join(value_text(path, v) for v in value)
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    return value if path.partition(".")[0] in _AS_TYPED else value.replace("_", " ")
