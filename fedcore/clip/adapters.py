"""Trainable parts beside a frozen tower, for several clients at once: LoRA, and bottlenecks at its blocks.

Sources: Hu et al., LoRA, 2021; Ghiasvand et al., pFedMMA, 2026.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedcore.base.files import new_digest
from fedcore.base.lazy import Generator, Tensor, torch
from fedcore.base.lazy import functional as F

_LARGE = 2**14
"""Numbers of a client's q, k and v from which on a CPU adds a low-rank update to each by one operation."""
_REMEMBERED = 2**26
"""Numbers that ``LowerLayers`` remembers at most: 256 MiB."""
_COUNTED_LAYERS = 12
"""Methods name layers as in a tower of 12 (ViT-B); other depths are scaled in proportion."""


def scaled_layer(layer: int, layers: int) -> int:
    """Scale the index of a layer in a 12-layer tower to a tower of another depth, rounding half up."""
    return math.floor(layer * layers / _COUNTED_LAYERS + 0.5)


def first_adapted_layer(start_layer: int, layers: int) -> int:
    """Return the first layer with a low-rank update, scaled to the tower's depth, at most the last layer."""
    return min(scaled_layer(start_layer, layers), layers - 1)


@dataclass(frozen=True)
class Lora:
    """W = W_0 + scale * (residual + b @ a) on the q, k and v projections of layers start, start + 1, ...

    Shape: a (clients, layers, 3, rank, width), b (clients, layers, 3, width, rank), residual (clients,
    layers, 3, width, width), the same for all clients; None: none.
    """

    a: Tensor
    b: Tensor
    scale: float
    start: int
    residual: Tensor | None = None

    def delta(self, layer: int, x: Tensor) -> Tensor | None:
        """Return the addition to a layer's q, k, v projection; None for layers below ``start``.

        Shape: x (clients, sequences, tokens, width) -> (clients, sequences, tokens, 3, width).
        """
        i = layer - self.start
        if not 0 <= i < self.a.shape[1]:
            return None
        a, b = self.a[:, i], self.b[:, i]
        clients, sequences, tokens, width = x.shape
        low, early = self._small(a, x), self._scales_early
        low = low.view(clients, -1, 3, a.shape[-2]).transpose(1, 2)
        full = low @ b.transpose(2, 3)  # (clients, 3, sequences * tokens, width)
        full = full.transpose(1, 2).unflatten(1, (sequences, tokens))
        if self.residual is not None:
            common = torch.nn.functional.linear(x, self.residual[0, i].flatten(0, 1))
            full = full + common.unflatten(-1, (3, width))
        return full if early else self.scale * full

    def parts(self, layer: int, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return W, A and B of an adapted layer's q, k and v projection W + B A; clients share W.

        Shape: weight (3 width, width) -> the same, a (3, clients, rank, width), b (3, clients, width, rank).
        """
        i = layer - self.start
        if self.residual is not None:
            weight = weight + self.scale * self.residual[0, i].flatten(0, 1)
        return weight, self.a[:, i].transpose(0, 1), self.scale * self.b[:, i].transpose(0, 1)

    def merged(self, layer: int, weight: Tensor) -> Tensor:
        """Return one client's projection W + B A of a layer, or the weight of a layer without an update."""
        if layer < self.start:
            return weight
        weight, a, b = self.parts(layer, weight)
        return torch.baddbmm(weight.unflatten(0, (3, -1)), b[:, 0], a[:, 0]).flatten(0, 1)

    def added(self, layer: int, x: Tensor, qkv: Tensor) -> Sequence[Tensor]:
        """Return a layer's q, k and v with their updates.

        On a CPU, a large product is added to each of the three by one operation, which has the bits of a sum:
        their gradients then need not be joined and parted.

        Shape: x (clients, sequences, tokens, width), qkv (clients, sequences, tokens, 3 width) -> three as x.
        """
        i = layer - self.start
        if not 0 <= i < self.a.shape[1]:
            return qkv.chunk(3, -1)
        a, b = self.a[:, i], self.b[:, i]
        at_once = x.device.type == "cpu" and self._scales_early
        # Sums of small products, and those in double precision, have other last bits.
        at_once = at_once and qkv.dtype == b.dtype != torch.float64 and qkv[0].numel() >= _LARGE
        # So have the gradients of ranks 1, 5, 6 and 7, and the sums of layers of width 8.
        if at_once and b.shape[-1] % 4 == 0 and b.shape[-2] >= 32:
            up = b.transpose(2, 3).flatten(0, 1).unflatten(0, (-1, 3))  # laid out as ``delta`` has it
            factors = self._small(a, x).chunk(3, 2), up.unbind(1)
            parts = zip(qkv.flatten(1, 2).chunk(3, 2), *factors, strict=True)
            return [torch.baddbmm(part, low, each).view_as(x) for part, low, each in parts]
        delta = self.delta(layer, x)
        assert delta is not None, "the layer has an update"
        return (qkv.unflatten(-1, (3, -1)) + delta).unbind(-2)

    @property
    def is_learned(self) -> bool:
        """True if autograd follows the factors."""
        return torch.is_grad_enabled() and (self.a.requires_grad or self.b.requires_grad)

    @property
    def _scales_early(self) -> bool:
        """True if the small factor is scaled, a tenth of the numbers: by a power of 2 no bit changes."""
        return self.residual is None and math.frexp(self.scale)[0] == 0.5

    def _small(self, a: Tensor, x: Tensor) -> Tensor:
        """Return x A^T of one layer, scaled early. Shape: -> (clients, sequences * tokens, 3 rank)."""
        low = x.flatten(1, 2) @ a.flatten(1, 2).transpose(1, 2)
        return self.scale * low if self._scales_early else low

    @property
    def first(self) -> "Lora":
        return Lora(self.a[:1], self.b[:1], self.scale, self.start, self.residual)

    def layers_alike(self) -> int:
        """Count the lowest adapted layers, up to the first one in which any two clients differ."""
        alike = [(t == t[:1]).flatten(2).all(2).all(0) for t in (self.a, self.b)]
        return int((alike[0] & alike[1]).long().cumprod(0).sum())


Between = Callable[[Tensor, int, int, Lora], Tensor]
"""``ImageTower.between``: the activations that leave the layers from one to before another."""


class LowerLayers:
    """The lowest adapted layers of an image tower, which compute an image once for models alike in them.

    A global model and personal ones that differ from a higher layer on are evaluated on the same images.
    """

    def __init__(self, between: Between, start: int, stop: int) -> None:
        """Remember nothing yet, of the layers from ``start`` to before ``stop``."""
        self.between, self.start, self.stop = between, start, stop
        self.factors: tuple[Tensor, ...] = ()
        self.images: dict[bytes, Tensor] = {}
        self.apart: bool | None = None

    def __call__(self, hidden: Tensor, lora: Lora) -> Tensor | None:
        """Return the activations entering layer ``stop``, found by the digest of what enters ``start``.

        Returns:
            None if the models differ in these layers, or where an image's bits may depend on its pass: in
            double precision, on other devices than a CPU, and where the first pass shows it.

        Shape: hidden (models, images, tokens, width), which enters layer ``start`` -> the same.
        """
        wanted = self.start < self.stop and self.apart is not False
        if not wanted or hidden.dtype != torch.float32 or hidden.device.type != "cpu":
            return None
        factors = [t[:, : self.stop - self.start] for t in (lora.a, lora.b)]
        if not all(torch.equal(t, t[:1].expand_as(t)) for t in factors):
            return None
        if not (self.factors and all(map(torch.equal, (t[:1] for t in factors), self.factors))):
            self.factors, self.images = tuple(t[:1].clone() for t in factors), {}
        distinct = hidden[:1] if hidden.stride(0) == 0 else hidden
        images = distinct.flatten(0, 1).contiguous()
        keys = [new_digest(memoryview(image.view(torch.uint8).numpy())).digest() for image in images]
        found = {key: self.images[key] for key in keys if key in self.images}
        missing = {key: i for i, key in enumerate(keys) if key not in found}
        if missing:
            entering = images[list(missing.values())]
            made = self._pass(entering, lora)
            if self.apart is None:
                self.apart = all(torch.equal(self._pass(entering[-n:], lora), made[-n:]) for n in (1, 3))
            found |= zip(missing, made, strict=True)
            if self.apart and (len(self.images) + len(missing)) * made[0].numel() <= _REMEMBERED:
                self.images |= found
        result = torch.stack([found[key] for key in keys])
        return result.unflatten(0, distinct.shape[:2]).expand(len(hidden), -1, -1, -1)

    def _pass(self, images: Tensor, lora: Lora) -> Tensor:
        return self.between(images[None], self.start, self.stop, lora.first)[0]


def init_lora(
    layers: int, width: int, rank: int, generator: Generator, dtype: "torch.dtype"
) -> tuple[Tensor, Tensor]:
    """Draw a Kaiming-uniform (a = sqrt 5) and leave b zero: the tower starts as the frozen one.

    Source: Hu et al., LoRA, 2021, Section 4.1.

    Shape: -> a (layers, 3, rank, width), b (layers, 3, width, rank).
    """
    bound = math.sqrt(6 / ((1 + 5) * width))
    a = torch.empty(layers, 3, rank, width, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
    return a.to(dtype), torch.zeros(layers, 3, width, rank, dtype=dtype)


@dataclass(frozen=True)
class Adapters:
    """x <- block(x) + scale Up(relu(S(relu(Down(LN_1(x)))))) in blocks start, start + 1, ....

    The scale multiplies values, and the gradient that passes through an adapter to x. It does not multiply
    the gradients of the adapter's own parameters, which would otherwise hardly move.

    Each of the three layers is a weight and its bias.

    Shape: weights down (clients, layers, r, width), shared (clients, layers, r, r) and up (clients, layers,
    width, r), biases (clients, layers, rows).
    """

    down: tuple[Tensor, Tensor]
    shared: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    scale: float
    start: int

    def delta(self, layer: int, x: Tensor) -> Tensor:
        """Return the adapter's term for a block's output; x is the normalised input of the block.

        Shape: x (clients or 1, sequences, tokens, width) -> (clients, sequences, tokens, width).
        """
        i = layer - self.start
        flat = x.flatten(1, 2)
        # The added term is zero: it changes the gradient and not the value.
        flat = flat.detach() + self.scale * (flat - flat.detach())
        for number, (weight, bias) in enumerate((self.down, self.shared, self.up)):
            flat = flat @ weight[:, i].transpose(1, 2) + bias[:, i, None]
            flat = flat if number == 2 else F.relu(flat)
        fixed = flat.detach()
        return (self.scale * fixed + (flat - fixed)).unflatten(1, x.shape[1:3])
