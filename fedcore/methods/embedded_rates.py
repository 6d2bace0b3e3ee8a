"""Warnings about learning rates that suit full-size models, where the miniature CLIP is trained with them."""

from __future__ import annotations

from typing import Any

from fedcore.clip.specs import MINI_MODELS
from fedcore.methods.base import Method, RunContext

MINI_RATE = 0.01
"""The demonstration's rate of SGD, with which FedOT and prompts learn within ten rounds."""


def rate_warnings(method: type[Method], config: Any, context: RunContext) -> list[str]:
    """Warn that a paper's learning rate is too small for the miniature CLIP."""
    paper: float = method.Config.model_fields["lr"].default
    if context.spec.name not in MINI_MODELS or config.lr != paper or paper >= MINI_RATE:
        return []
    return [
        f"{method.about.title}: its paper's learning rate {paper:g} suits full-size models; with it the "
        f"method learns slowly on {context.spec.name}. Set lr = {MINI_RATE:g}, as in the demonstration"
    ]
