"""CLIP's image tower the naive way, one image at a time, with learned tokens among its own.

Written from Jia et al., 2022 (Sections 3.2 and 3.3) and Khattak et al., 2023 (Section 3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor


def embedding(visual: torch.nn.Module, tokens: Tensor, prompts: list[Tensor]) -> Tensor:
    """The embedding of an image whose tokens enter layer 0; layer i's prompts stand in for the last one's.

    Shape: tokens (n, width), prompts: (p, width) each -> (d,).
    """
    n, x = len(tokens), tokens
    for i, block in enumerate(visual.transformer.resblocks):
        if i < len(prompts):
            x = torch.cat([x[:1], prompts[i], x[1:n] if i == 0 else x[1 + len(prompts[i - 1]) :]])
        x = block(x[None])[0]
    return visual.ln_post(x[0]) @ visual.proj


def text_feature(model: torch.nn.Module, ids: Tensor, prompts: list[Tensor]) -> Tensor:
    """The text feature of one sequence; layer i's prompts stand behind [SOS] in the place of its tokens.

    Shape: ids (tokens,), prompts: (M, m) each -> (d,).
    """
    x, length = model.token_embedding(ids), len(prompts[0])
    x = torch.cat([x[:1], prompts[0], x[1 + length :]]) + model.positional_embedding
    for i, block in enumerate(model.transformer.resblocks):
        if 0 < i < len(prompts):
            x = torch.cat([x[:1], prompts[i], x[1 + length :]])
        x = block(x[None], attn_mask=model.attn_mask)[0]
    return model.ln_final(x)[ids.argmax()] @ model.text_projection
