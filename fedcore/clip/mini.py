"""The embedded miniature CLIP: two image towers and one text tower, pretrained on drawings.

The files in ``fedcore/assets`` hold only the token rows of words that occur in the pretraining captions; the
full table that open_clip expects is rebuilt here. ``docs/embedded.md`` says what these weights are good for.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedcore.clip.light_import import open_clip
from fedcore.clip.specs import MINI_MODELS
from fedcore.files import ASSETS

_TEXT_FILE = "mini-text.safetensors"
_VOCABULARY = 49_408
_UNSEEN_SEED, _UNSEEN_STD = 77, 0.02  # rows of words in no caption are drawn as open_clip initialises them


def register() -> None:
    """Register the miniature models with open_clip; further calls do nothing."""
    if MINI_MODELS[0] not in open_clip().list_models():
        for name in MINI_MODELS:
            open_clip().add_model_config(ASSETS / f"{name}.json")


def state_dict(name: str) -> dict[str, Tensor]:
    """Return the full float32 state dict of ``open_clip.create_model(name)``."""
    state: dict[str, Tensor] = {}
    for file in (_TEXT_FILE, f"{name}.safetensors"):
        path = ASSETS / file
        if not path.exists():
            raise FileNotFoundError(f"{path}: missing; `make embedded` trains and writes it")
        state |= load_file(path)
    ids, rows = state.pop("token_ids").long(), state.pop("token_rows").float()
    generator = torch.Generator().manual_seed(_UNSEEN_SEED)
    table = torch.randn(_VOCABULARY, rows.shape[1], generator=generator) * _UNSEEN_STD
    table[ids] = rows
    # BatchNorm counts batches in int64; everything else is stored in half precision and computed in single
    full = {k: v.float() if v.is_floating_point() else v for k, v in state.items()}
    return full | {"token_embedding.weight": table}


def save(
    name: str,
    full: dict[str, Tensor],
    ids: Tensor,
    rows: Tensor,
    folder: Path = ASSETS,
    with_text: bool = True,
) -> None:
    """Write one image tower, and the shared text tower, in half precision, as ``state_dict`` reads them.

    Shape: ids (words,), the BPE ids of the stored token rows (words, width).
    """
    text = {k: v for k, v in full.items() if not k.startswith("visual.") and k != "logit_scale"}
    text |= {"token_rows": rows, "token_ids": ids.int()}
    image = {k: v for k, v in full.items() if k.startswith("visual.") or k == "logit_scale"}
    files = {f"{name}.safetensors": image} | ({_TEXT_FILE: text} if with_text else {})
    for file, part in files.items():
        half = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in part.items()}
        save_file(half, folder / file)
        (folder / file).chmod(0o644)
