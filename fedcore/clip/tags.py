"""open_clip's pretrained tags: their repositories and cached weights, read without importing torch."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

from fedcore.errors import FedLensError, did_you_mean, first_line
from fedcore.lazy import kept_out

_HUB_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""File names of a hub repository's weights if a tag names none, in the order in which they are tried."""
_ALIAS = "_fedlens_open_clip"


@cache
def _table() -> types.ModuleType:
    """Import ``open_clip.pretrained`` alone: under its own name it would load the whole package and torch."""
    if "open_clip.pretrained" in sys.modules:
        return sys.modules["open_clip.pretrained"]
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise FedLensError("open_clip is not installed; `pip install open_clip_torch`")
    package = types.ModuleType(_ALIAS)
    package.__path__ = [str(Path(spec.origin).parent)]
    sys.modules[_ALIAS] = package
    with kept_out("safetensors.torch"):  # it would import torch
        return importlib.import_module(f"{_ALIAS}.pretrained")


def tags(name: str) -> tuple[str, ...]:
    """Return the pretrained tags of a model, as open_clip lists them."""
    return tuple(_table().list_pretrained_tags_by_model(name))


def check(name: str, tag: str) -> None:
    """Refuse a tag that a model does not have.

    Raises:
        FedLensError: ``backbone.pretrained``, with the nearest tags.
    """
    known = tags(name)
    if _table().is_pretrained_cfg(name, tag):
        return
    if not known:
        raise FedLensError(
            f"open_clip has no weights of {name} to download; give the path of a weights file",
            "backbone.pretrained",
        )
    hint = did_you_mean(tag, known, f"there are {', '.join(known[:6])}", number=2)
    raise FedLensError(f"{name} has no weights called '{tag}'; {hint}", "backbone.pretrained")


def config(name: str, tag: str) -> dict[str, Any]:
    """Return open_clip's record of a tag: repository, preprocessing and activation."""
    return dict(_table().get_pretrained_cfg(name, tag))


def repository(name: str, tag: str) -> tuple[str, tuple[str, ...]]:
    """Return the Hugging Face repository of a tag, and the file names its weights may have, best first."""
    repo, _, file = str(config(name, tag)["hf_hub"]).rpartition("/")
    if not file:
        return repo, _HUB_FILES
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
    """Return the notice that a run with this tag will download its weights; None if they are cached."""
    if cached(name, tag) is not None:
        return None
    return f"the weights '{tag}' of {name} will be downloaded from huggingface.co/{repository(name, tag)[0]}"


def download_error(name: str, tag: str, error: Exception) -> FedLensError:
    """Return the error of a failed download; it says how to copy the weights to this machine."""
    repo, files = repository(name, tag)
    return FedLensError(
        f"the weights '{tag}' of {name} are not on this machine and cannot be downloaded "
        f"({first_line(error)}); on a machine with a network, download them with "
        f"`hf download {repo} {files[0]}`, then copy them into this machine's Hugging Face cache, or give "
        "the file's path as weights",
        "backbone.pretrained",
    )
