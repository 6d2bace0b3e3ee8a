"""The outputs of two helper models for every drawing: a naive classifier, and the trained ResNet.

The naive classifier knows upright images only. Its output is the target of a plain class prompt for a turned
image. Without it the embedded model would be as good on rotated domains as on upright ones, and a federation
would have nothing to adapt to. The ViT, which is slow to start by itself, imitates the ResNet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedcore.data.drawn import drawing
from tools.pretraining import drawings
from tools.pretraining.captions import UPRIGHT
from tools.pretraining.model import TrainableClip, Vocabulary, see

_STEPS, _BATCH, _RATE = 450, 256, 2e-3


def _write(path: Path, corpus: drawings.Corpus, outputs: Callable[[np.ndarray], Tensor]) -> None:
    """Store ``outputs(rows)`` of all drawings. Shape: (images, width) float16."""
    count = len(corpus.facts)
    with torch.no_grad():
        parts = [outputs(rows).half().numpy() for rows in np.array_split(np.arange(count), count // 250 + 1)]
    np.save(path, np.concatenate(parts))


def write_naive(path: Path, corpus: drawings.Corpus, seed: int) -> None:
    """Train a classifier on upright drawings and store its output for all; digits stay among digits."""
    torch.manual_seed(seed + 1)
    tower = TrainableClip("mini-rn", Vocabulary()).visual.to(memory_format=torch.channels_last)
    model = nn.Sequential(tower, nn.Linear(tower.output_dim, len(drawings.CLASSES)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, _STEPS, pct_start=0.1)
    upright = np.flatnonzero(np.abs(corpus.column("angle")) <= UPRIGHT)
    rng = np.random.default_rng([seed, 7])
    labels = torch.from_numpy(corpus.column("label").astype(np.int64))
    for step in range(_STEPS):
        rows = np.sort(rng.choice(upright, _BATCH))
        logits = see(model, corpus.pixels[64][rows])
        loss = nn.functional.cross_entropy(logits, labels[rows], label_smoothing=0.02)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 50 == 0:
            print(f"upright-only classifier {step} loss {loss.item():.3f}", flush=True)
    model.eval()
    is_digit = torch.arange(len(drawings.CLASSES)) >= len(drawing.SHAPES)

    def outputs(rows: np.ndarray) -> Tensor:
        family = is_digit[labels[rows]]
        return see(model, corpus.pixels[64][rows]).masked_fill(family[:, None] != is_digit, -1e4).softmax(1)

    _write(path, corpus, outputs)


def write_teacher(path: Path, corpus: drawings.Corpus, trained: Path) -> None:
    """Store the trained ResNet's normalised features of all drawings."""
    model = TrainableClip("mini-rn", Vocabulary())
    model.load_state_dict(torch.load(trained)["model"])
    tower = model.visual.eval().to(memory_format=torch.channels_last)
    _write(path, corpus, lambda rows: nn.functional.normalize(see(tower, corpus.pixels[64][rows]), dim=-1))
