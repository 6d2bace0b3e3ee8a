"""The attention of FedTPG's network, which FedMVP's has too: tokens that ask, and others that are asked.

    a = MHA(LN(q), LN(k), v) with four heads,  P = a + W_2 (x_1 gelu(x_2)) with (x_1, x_2) = W_1 LN(a)

All layers have a bias; nothing is added to a of what asked.
"""

from collections.abc import Callable

from fedcore.base.lazy import Generator, Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.methods.base import Params
from fedcore.methods.tensors import draw_linear, linear

HEADS = 4
LAYERS = ("q", "k", "v", "out", "up", "down")
NORMS = ("norm_query", "norm_names", "norm_feed")
PARTS = tuple(f"{layer}_{part}" for layer in (*NORMS, *LAYERS) for part in "wb")


def draw(m: int, d: int, generator: Callable[[str], Generator], xavier: bool = True) -> Params:
    """Return layers as torch draws them, and norms that change nothing; ``xavier`` as MultiheadAttention.

    torch's MultiheadAttention has q, k and v in one matrix, of 3 m rows, where their widths are equal.

    Args:
        m, d: widths of the tokens that ask and of those that are asked.

    Shape: weights (out, in), biases (out,).
    """
    values: Params = {}
    for norm, width in zip(NORMS, (m, d, m), strict=True):
        values |= {f"{norm}_w": torch.ones(width), f"{norm}_b": torch.zeros(width)}
    sizes = {"q": (m, m), "k": (m, d), "v": (m, d), "out": (m, m), "up": (8 * m, m), "down": (m, 4 * m)}
    for layer, (rows, columns) in sizes.items():
        weight, bias = draw_linear(rows, columns, generator(layer))
        if xavier and layer in ("q", "k", "v", "out"):
            bias = torch.zeros_like(bias)
            if layer != "out":
                weight = weight * (6 * columns / (columns + (3 * m if m == d else m))) ** 0.5
        values |= {f"{layer}_w": weight, f"{layer}_b": bias}
    return values


def attend(params: Params, queries: Tensor, asked: Tensor, values: Tensor | None = None) -> Tensor:
    """Return P. Args: values: of the tokens that are asked; default: these behind their norm.

    Shape: queries (models, n, m), asked and values (models, t, d) -> (models, n, m).
    """

    def layer(name: str, x: Tensor) -> Tensor:
        return linear(x, params[f"{name}_w"], params[f"{name}_b"])

    def norm(name: str, x: Tensor) -> Tensor:
        scaled = F.layer_norm(x, x.shape[-1:]) * params[f"{name}_w"][:, None]
        return scaled + params[f"{name}_b"][:, None]

    keys = norm("norm_names", asked)
    q, k, v = (
        layer(name, x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for name, x in (
            ("q", norm("norm_query", queries)),
            ("k", keys),
            ("v", keys if values is None else values),
        )
    )
    attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    a = layer("out", attended)
    plain, gate = layer("up", norm("norm_feed", a)).chunk(2, dim=-1)
    return a + layer("down", plain * F.gelu(gate))
