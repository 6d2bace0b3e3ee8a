"""The outputs of two helper models for every drawing: a naive classifier, and the trained ResNet.

The naive classifier knows upright images only. Its output is the target of a plain class prompt for a turned
image. Without it the embedded model would be as good on rotated domains as on upright ones, and a federation
would have nothing to adapt to. The ViT, which is slow to start by itself, imitates the ResNet.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from torch import Tensor, nn

from fedcore.data.drawn import drawing
from scripts.pretraining import drawings
from scripts.pretraining.model import TrainableClip, Vocabulary, average_gradients, pixels

_UPRIGHT = 12  # degrees, as in the captions
_STEPS, _BATCH, _RATE = 450, 128, 2e-3


def _forward(model: nn.Module, batch: np.ndarray) -> Tensor:
    x = pixels(batch, OPENAI_DATASET_MEAN, OPENAI_DATASET_STD).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float()


def _write(
    path: Path, model: nn.Module, corpus: drawings.Corpus, width: int, rank: int, ranks: int, finish
) -> None:
    """Store ``finish(model(images), rows)`` of all drawings. Shape: (images, width) float16."""
    n = len(corpus.facts)
    part_file = path.with_suffix(".part")
    if rank == 0:
        np.lib.format.open_memmap(part_file, "w+", np.float16, (n, width)).flush()
    dist.barrier()
    out = np.load(part_file, mmap_mode="r+")
    mine = np.array_split(np.arange(n), ranks)[rank]
    for rows in np.array_split(mine, max(1, len(mine) // 250)):
        with torch.no_grad():
            out[rows] = finish(_forward(model, corpus.pixels[64][rows]), rows).numpy()
    out.flush()
    dist.barrier()
    if rank == 0:
        part_file.rename(path)
    dist.barrier()


def write_naive(folder: Path, corpus: drawings.Corpus, rank: int, ranks: int, seed: int) -> None:
    """Train a classifier on upright drawings and store its output for all; digits stay among digits."""
    torch.manual_seed(seed + 1)
    tower = TrainableClip("mini-rn", Vocabulary()).visual.to(memory_format=torch.channels_last)
    model = nn.Sequential(tower, nn.Linear(tower.output_dim, len(drawings.CLASSES)))
    parameters = list(model.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, _STEPS, pct_start=0.1)
    upright = np.flatnonzero(np.abs(corpus.column("angle")) <= _UPRIGHT)
    rng = np.random.default_rng([seed, rank, 7])
    for step in range(_STEPS):
        rows = np.sort(rng.choice(upright, _BATCH))
        labels = torch.from_numpy(corpus.column("label")[rows].astype(np.int64))
        loss = nn.functional.cross_entropy(
            _forward(model, corpus.pixels[64][rows]), labels, label_smoothing=0.02
        )
        optimiser.zero_grad()
        loss.backward()
        average_gradients(parameters, ranks)
        optimiser.step()
        schedule.step()
        if rank == 0 and step % 50 == 0:
            print(f"upright-only classifier {step} loss {loss.item():.3f}", flush=True)
    model.eval()
    is_digit = torch.arange(len(drawings.CLASSES)) >= len(drawing.SHAPES)

    def finish(logits: Tensor, rows: np.ndarray) -> Tensor:
        family = torch.from_numpy(corpus.column("label")[rows] >= len(drawing.SHAPES))
        return logits.masked_fill(family[:, None] != is_digit, -1e4).softmax(1)

    _write(folder / "naive.npy", model, corpus, len(drawings.CLASSES), rank, ranks, finish)


def write_teacher(folder: Path, corpus: drawings.Corpus, rank: int, ranks: int) -> None:
    """Store the trained ResNet's normalised features of all drawings."""
    model = TrainableClip("mini-rn", Vocabulary())
    model.load_state_dict(torch.load(folder / "mini-rn.pt")["model"])
    tower = model.visual.eval().to(memory_format=torch.channels_last)
    _write(
        folder / "teacher.npy",
        tower,
        corpus,
        model.text_projection.shape[1],
        rank,
        ranks,
        lambda features, _: nn.functional.normalize(features, dim=-1),
    )
