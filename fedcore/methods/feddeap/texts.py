"""Class texts behind FedDEAP's two prompts, so that the second prompt's gradient leaves out the first one's.

Under the causal mask [SOS] p_s is the same whatever follows it. It is a sequence of its own here, which the
backward pass from p_d's loss does not enter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcore.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.clip.backbone import Backbone
    from fedcore.clip.prompts import Suffix


class PromptedTexts:
    """The sequences [SOS] p_s[c, k] p_d[c, k] suffix[k], classes of equally long names together."""

    def __init__(self, backbone: Backbone, suffix: Suffix) -> None:
        self.backbone, self.suffix = backbone, suffix
        ends = suffix.eot.tolist()
        members = [[k for k, own in enumerate(ends) if own == end] for end in sorted(set(ends))]
        device = suffix.eot.device
        self.groups = [torch.tensor(classes, device=device) for classes in members]
        self.ends = sorted(set(ends))
        self.place = torch.cat(self.groups).argsort()
        self.sos = backbone.tokenize([""])[0, :1].to(device)

    def encode(self, shared: Tensor, own: Tensor) -> Tensor:
        """Return unnormalised text features.

        Shape: shared (clients, K, L, m), own (clients, K, L_d, m) -> (clients, K, d).
        """
        text, clients = self.backbone.text, len(shared)
        with torch.no_grad():
            sos = text.embed(self.sos)
        features = []
        for classes, end in zip(self.groups, self.ends, strict=True):
            first, second = (prompt[:, classes].flatten(0, 1) for prompt in (shared, own))
            after = self.suffix.embeddings[classes, : end + 1].repeat(clients, 1, 1)
            prefix = torch.cat([sos.expand(len(first), 1, -1), first], 1)
            pooled = torch.full((1,), own.shape[2] + end, device=own.device)
            out = text.encode(prefix, torch.cat([second, after], 1)[:, None], pooled)
            features.append(out.view(clients, len(classes), -1))
        return torch.cat(features, 1)[:, self.place]
