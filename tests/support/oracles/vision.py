"""CLIP's image tower the naive way, one image at a time, with learned tokens among its own.

Written from Jia et al., 2022 (Sections 3.2 and 3.3) and Khattak et al., 2023 (Section 3.2).
"""

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

    What follows [EOT] is left out: under the causal mask nothing sees it.

    Shape: ids (tokens,), prompts: (M, m) each -> (d,).
    """
    n = int(ids.argmax()) + 1
    x, length = model.token_embedding(ids[:n]), len(prompts[0])
    x = torch.cat([x[:1], prompts[0], x[1 + length :]]) + model.positional_embedding[:n]
    for i, block in enumerate(model.transformer.resblocks):
        if 0 < i < len(prompts):
            x = torch.cat([x[:1], prompts[i], x[1 + length :]])
        x = block(x[None], attn_mask=model.attn_mask[:n, :n])[0]
    return model.ln_final(x)[-1] @ model.text_projection


def prompted_embedding(model: torch.nn.Module, values: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """One image's embedding with the image prompts of IVLP, of which the first pass the embedding's norm.

    Shape: values visual (layers, p, width), tokens (n, width) -> (d,).
    """
    visual = values["visual"]
    return embedding(model.visual, tokens, [model.visual.ln_pre(visual[0]), *visual[1:]])


def prompted_texts(model: torch.nn.Module, values: dict[str, Tensor], sequences: Tensor) -> Tensor:
    """All classes' text features with the text prompts of IVLP.

    Shape: values context (M, m), deep (layers - 1, M, m), sequences (K, tokens) -> (K, d).
    """
    contexts = [values["context"], *values.get("deep", ())]
    return torch.stack([text_feature(model, one, contexts) for one in sequences])
