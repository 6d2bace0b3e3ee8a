"""The miniature CLIP during training: a compact token table, context vectors and initial weights."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import open_clip
import torch
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file
from torch import Tensor, nn

from fedcore.clip import weights
from tools.pretraining.captions import vocabulary_texts

SOS, EOT = 49406, 49407


class Vocabulary:
    """The BPE ids of open_clip that occur in captions, renumbered."""

    def __init__(self) -> None:
        bpe = SimpleTokenizer()
        seen = {i for text in vocabulary_texts() for i in bpe.encode(text)}
        self.ids = torch.tensor([*sorted(seen), SOS, EOT])
        self._place = {int(i): k for k, i in enumerate(self.ids)}
        self._encode = bpe.encode
        self.row = lru_cache(200_000)(self._row)

    def rows(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Compact ids, [SOS] first, padded with [EOT]. Shape: -> (texts, longest), and lengths (texts,)."""
        coded = [self.row(t) for t in texts]
        out = torch.full((len(coded), max(map(len, coded))), self._place[EOT])
        for row, ids in zip(out, coded, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return out, torch.tensor([len(ids) for ids in coded])

    def _row(self, text: str) -> list[int]:
        return [self._place[i] for i in (SOS, *self._encode(text)[:75], EOT)]


class TrainableClip(nn.Module):
    """One image tower and the text tower, with a token row only for words that occur."""

    def __init__(self, name: str, words: Vocabulary) -> None:
        super().__init__()
        weights.register_embedded()
        clip = open_clip.create_model(name)
        width = clip.positional_embedding.shape[1]
        self.visual, self.transformer, self.ln_final = clip.visual, clip.transformer, clip.ln_final
        self.positional_embedding, self.text_projection = clip.positional_embedding, clip.text_projection
        self.logit_scale = clip.logit_scale
        self.rows = nn.Embedding(len(words.ids), width)
        nn.init.normal_(self.rows.weight, std=0.02)
        self.register_buffer("mask", clip.attn_mask, persistent=False)

    def text(self, rows: Tensor, lengths: Tensor, context: Tensor | None = None) -> Tensor:
        """Return normalised text features; ``context`` vectors are inserted after [SOS].

        Shape: rows (texts, n), context (texts, c, width) -> (texts, embedding).
        """
        x = self.rows(rows)
        if context is not None:
            x = torch.cat([x[:, :1], context, x[:, 1:]], 1)[:, :77]
            lengths = (lengths + context.shape[1]).clamp(max=77)
        n = x.shape[1]
        x = self.transformer(x + self.positional_embedding[:n], attn_mask=self.mask[:n, :n])
        x = self.ln_final(x[torch.arange(len(x)), lengths - 1])
        return nn.functional.normalize((x @ self.text_projection).float(), dim=-1)

    def text_parameters(self) -> list[nn.Parameter]:
        parts = (self.transformer, self.ln_final, self.rows)
        return [p for m in parts for p in m.parameters()] + [self.positional_embedding, self.text_projection]


def start_vit(visual: nn.Module) -> None:
    """Start from mimetic attention (Trockman and Kolter, 2023) and 2-D sine positions.

    With the usual random weights a ViT of this size stays at chance.
    """
    width = visual.positional_embedding.shape[1]
    side = math.isqrt(visual.positional_embedding.shape[0] - 1)
    frequency = 1.0 / 100 ** (torch.arange(width // 4) / (width // 4))
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    waves = [f(v.reshape(-1, 1) * frequency) for v in (x, y) for f in (torch.sin, torch.cos)]
    with torch.no_grad():
        visual.positional_embedding[1:] = 0.5 * torch.cat(waves, 1)
        visual.positional_embedding[0] = 0
        for block in visual.transformer.resblocks:
            attn = block.attn
            heads, d = attn.num_heads, width // attn.num_heads
            query, key, value = attn.in_proj_weight.chunk(3)
            for h in range(heads):
                left, right = _factors(0.7, 0.7, width)
                query[h * d : (h + 1) * d] = left[:, :d].T
                key[h * d : (h + 1) * d] = right[:d]
            left, right = _factors(0.4, -0.4, width)
            value.copy_(right)
            attn.out_proj.weight.copy_(left)


def _factors(noise: float, identity: float, width: int) -> tuple[Tensor, Tensor]:
    """Return two factors of a noisy multiple of the identity matrix. Shape: (width, width) each."""
    goal = noise * torch.randn(width, width) / math.sqrt(width) + identity * torch.eye(width)
    u, s, v = torch.linalg.svd(goal)
    return u * s.sqrt(), s.sqrt()[:, None] * v


class FactHeads(nn.Module):
    """Temporary classifiers of the named facts, which speed up the image tower's first steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # label, style, colour, background, size, place, and the angle in 13 bins of 15 degrees
        self.heads = nn.ModuleList(nn.Linear(width, n) for n in (49, 8, 12, 8, 3, 5, 13))

    def forward(self, features: Tensor, facts: Tensor) -> Tensor:
        goals = facts.clone()
        goals[:, 6] = ((facts[:, 6] + 97) // 15).clamp(0, 12)
        losses = [nn.functional.cross_entropy(h(features), goals[:, i]) for i, h in enumerate(self.heads)]
        return 2 * losses[0] + sum(losses[1:6]) / 5 + losses[6]


def see(tower: nn.Module, batch: np.ndarray) -> Tensor:
    """Return what an image model makes of drawings. Shape: (n, side, side, 3) uint8 -> (n, outputs)."""
    x = torch.from_numpy(batch).permute(0, 3, 1, 2).float().div_(255)
    mean, std = (torch.tensor(v)[:, None, None] for v in (OPENAI_DATASET_MEAN, OPENAI_DATASET_STD))
    with torch.autocast("cpu", torch.bfloat16):
        return tower(((x - mean) / std).contiguous(memory_format=torch.channels_last)).float()


def save_embedded(
    name: str,
    full: dict[str, Tensor],
    ids: Tensor,
    rows: Tensor,
    folder: Path,
    with_text: bool = True,
) -> None:
    """Write one image tower and the shared text tower in half precision, for ``weights.embedded_state_dict``.

    Shape: ids (words,), the BPE ids of the stored token rows (words, width).
    """
    text = {k: v for k, v in full.items() if not k.startswith("visual.") and k != "logit_scale"}
    text |= {"token_rows": rows, "token_ids": ids.int()}
    image = {k: v for k, v in full.items() if k.startswith("visual.") or k == "logit_scale"}
    files = {f"{name}.safetensors": image} | ({weights.TEXT_FILE: text} if with_text else {})
    for file, part in files.items():
        half = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in part.items()}
        save_file(half, folder / file)
        (folder / file).chmod(0o644)
