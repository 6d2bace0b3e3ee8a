"""Pretrained tags of open_clip and timm: repositories, cached weights and downloads, without torch."""

import hashlib
import importlib
import importlib.util
import json
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

from fedcore.base import hub
from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.base.files import ASSETS
from fedcore.base.lazy import replaced
from fedcore.base.progress import Work

_HUB_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""File names of a hub repository's weights if a tag names none, in the order in which they are tried."""
_ALIAS = "_fedlens_open_clip"


@cache
def open_clip_folder() -> Path:
    """Return the folder of the package open_clip, which is not imported."""
    spec = importlib.util.find_spec("open_clip")
    assert spec is not None and spec.origin is not None, "open_clip is a requirement of FedLens"
    return Path(spec.origin).parent


@cache
def _table() -> types.ModuleType:
    """Import ``open_clip.pretrained`` under another name, since its package would load torch."""
    if "open_clip.pretrained" in sys.modules:
        return sys.modules["open_clip.pretrained"]
    package = types.ModuleType(_ALIAS)
    package.__path__ = [str(open_clip_folder())]
    sys.modules[_ALIAS] = package
    with replaced({"safetensors.torch": None}):  # it would import torch
        return importlib.import_module(f"{_ALIAS}.pretrained")


@cache
def timm_models() -> dict[str, tuple[int, dict[str, tuple[int, str, str]]]]:
    """Return the width of each timm model, and its tags: image side, repository, file if not the usual.

    The default tag comes first. ``tools/timm_models.py`` writes the table, since timm itself loads torch.
    """
    content = json.loads((ASSETS / "timm.json").read_text())
    return {f"timm:{name}": of_model for name, of_model in content.items()}


def tags(name: str) -> tuple[str, ...]:
    """Return the pretrained tags of a model, as open_clip or timm lists them."""
    if name in timm_models():
        return tuple(timm_models()[name][1])
    return tuple(_table().list_pretrained_tags_by_model(name))


def check(name: str, tag: str) -> None:
    """Refuse a tag that a model does not have."""
    available = tags(name)
    if tag in available or _table().is_pretrained_cfg(name, tag):
        return
    if not available:
        raise FedLensError(
            f"{name} has no weights to download; give the path of a weights file",
            "backbone.pretrained",
        )
    hint = did_you_mean(tag, available, f"there are {', '.join(available[:6])}", number=2)
    raise FedLensError(f"{name} has no weights called '{tag}'; {hint}", "backbone.pretrained")


def config(name: str, tag: str) -> dict[str, Any]:
    """Return open_clip's record of a tag: repository, preprocessing and activation."""
    return dict(_table().get_pretrained_cfg(name, tag))


def repository(name: str, tag: str) -> tuple[str, tuple[str, ...]]:
    """Return the Hugging Face repository of a tag, and the file names its weights may have, best first."""
    check(name, tag)
    if name in timm_models():
        _, repo, file = timm_models()[name][1][tag]
        usual = ("model.safetensors", "pytorch_model.bin")
    else:
        repo, _, file = str(config(name, tag)["hf_hub"]).rpartition("/")
        usual = _HUB_FILES
    if not file:
        return repo, usual
    return repo, (str(Path(file).with_suffix(".safetensors")), file)


def cached(name: str, tag: str) -> Path | None:
    """Return the weights of a tag in this machine's Hugging Face cache; never uses the network."""
    from huggingface_hub import constants, try_to_load_from_cache

    repo, files = repository(name, tag)
    paths = (try_to_load_from_cache(repo, file, cache_dir=constants.HF_HUB_CACHE) for file in files)
    return next((Path(path) for path in paths if isinstance(path, str)), None)


def content(name: str, tag: str) -> str:
    """Return the hash of the file that a tag stands for on this machine, empty if it is not cached.

    The hub's cache links to a file that is named by its hash; a copy without links is read and hashed.
    """
    path = cached(name, tag)
    if path is None:
        return ""
    if path.is_symlink():
        return path.resolve().name
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download_note(name: str, tag: str) -> str | None:
    """Return a notice that a run with this tag will download its weights; None if they are cached."""
    if cached(name, tag) is not None:
        return None
    where = hub.address(repository(name, tag)[0], "model")
    return (
        f"the weights '{tag}' of {name} are downloaded from {where} before the first round; "
        f"`fedlens backbones get {name} {tag}` does so now"
    )


def ask(name: str, tag: str) -> hub.Upstream:
    """Return what a download of a tag's weights takes, as the Hub says at this moment."""
    repo, files = repository(name, tag)
    return hub.ask(repo, files=files, kind="model")


def fetch(name: str, tag: str) -> Work[Path]:
    """Return the file of a tag's weights, downloaded unless it is cached."""
    if (file := cached(name, tag)) is not None:
        return file
    repo, files = repository(name, tag)
    try:
        wanted = ask(name, tag)
        return (yield from hub.download(wanted, f"{name} {tag}")) / wanted.file
    except FedLensError as error:
        raise FedLensError(
            f"the weights '{tag}' of {name} are not on this machine, and {error}; or, on a machine with a "
            f"network, download them with `hf download {repo} {files[0]}`, then copy them into this "
            "machine's Hugging Face cache, or give the file's path as weights",
            "backbone.pretrained",
        ) from error
