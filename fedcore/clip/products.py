"""Products with the frozen weights of a tower, in one of two ways.

The plain way is ``torch.nn.functional.linear``. The packed way is oneDNN's, with a copy of the weight that is
laid out for it (``fedcore.clip.packed``). Both compute in single precision; their sums differ in order, and
so in the last bits. ``fedcore.clip.speed`` chooses the way of new runs.
"""

from fedcore.lazy import Tensor, torch
from fedcore.lazy import functional as F

PLAIN, PACKED = "plain", "packed"
"""The two ways, as a run's environment records them."""
MIN_WIDTH = 512
"""Width of a tower from which on its weights may be packed."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, by the way that the weight's tower was loaded with.

    Shape: x (..., in), weight (out, in), or a view of one such as ``weight.T``, bias (out,) -> (..., out).
    """
    packed = getattr(weight if weight._base is None else weight._base, "packed", None)
    if packed is None or torch.is_autocast_enabled(x.device.type):
        return F.linear(x, weight, bias)
    return packed.linear(x, weight, bias)
