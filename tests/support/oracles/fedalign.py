"""FedAlign the naive way: open_clip's own towers with the weights W0 + gamma B A written into them.

Loops over clients, classes and samples; full-width SVD. Nothing here imports FedLens.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import functional_call

from tests.support.oracles.promptfl import Batches, mean_loss, scores, weighted

Factors = tuple[Tensor, ...]
"""a (layers, 3, r, width), b (layers, 3, width, r). Where all of Table 4 is trained, of an image tower also
its class embedding, positional embedding and projection; of the text tower also its positional embedding and
the factors (r, m) and (vocabulary, r) of its token embedding."""


@dataclass
class World:
    """The state of the server and the clients between rounds."""

    text: Factors
    personal: list[Factors]  # what each client starts its next round from
    serving: list[Factors]  # what each client predicts with
    common: Factors
    features: Tensor  # the text features that clients receive, (K, d)
    attention: list[list[float]] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)  # uploaded features per client


class ImageTail(torch.nn.Module):
    """The upper blocks of open_clip's vision transformer, called one image at a time."""

    def __init__(self, visual: torch.nn.Module, start: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(copy.deepcopy(visual.transformer.resblocks[start:]))
        self.ln_post, self.proj = copy.deepcopy(visual.ln_post), visual.proj

    def forward(self, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            tokens = block(tokens)
        return self.ln_post(tokens[:, 0]) @ self.proj

    def weights(self, factors: Factors, gamma: float) -> dict[str, Tensor]:
        return patched(self.blocks, "blocks", 0, factors, gamma)


class WholeImageTower(torch.nn.Module):
    """open_clip's whole vision transformer but for its convolution, which the samples have behind them."""

    def __init__(self, visual: torch.nn.Module, start: int) -> None:
        super().__init__()
        self.visual, self.start = copy.deepcopy(visual), start
        self.visual.conv1 = torch.nn.Identity()

    def forward(self, patches: Tensor) -> Tensor:
        side = math.isqrt(patches.shape[1])
        return self.visual(patches.transpose(1, 2).unflatten(2, (side, side)))

    def weights(self, factors: Factors, gamma: float) -> dict[str, Tensor]:
        a, b, class_token, positions, projection = factors
        blocks = self.visual.transformer.resblocks
        return {
            **patched(blocks, "visual.transformer.resblocks", self.start, (a, b), gamma),
            "visual.class_embedding": class_token,
            "visual.positional_embedding": positions,
            "visual.proj": projection,
        }


class TextTower(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)

    def forward(self, ids: Tensor) -> Tensor:
        return self.model.encode_text(ids)


def patched(
    blocks: torch.nn.ModuleList, prefix: str, start: int, factors: Factors, gamma: float
) -> dict[str, Tensor]:
    """W0 + gamma B A for the q, k and v rows of every adapted layer."""
    a, b = factors[:2]
    weights = {}
    for i in range(a.shape[0]):
        rows = [gamma * b[i, j] @ a[i, j] for j in range(3)]
        name = f"{prefix}.{start + i}.attn.in_proj_weight"
        weights[name] = blocks[start + i].attn.in_proj_weight + torch.cat(rows)
    return weights


def image_feature(
    tail: ImageTail | WholeImageTower, factors: Factors, gamma: float, tokens: Tensor
) -> Tensor:
    """Normalised. Shape: tokens (tokens, width) -> (d,)."""
    out = functional_call(tail, tail.weights(factors, gamma), (tokens[None],))[0]
    return out / out.norm()


def text_features(tower: TextTower, factors: Factors, start: int, gamma: float, ids: Tensor) -> Tensor:
    """Normalised. Shape: ids (K, 77) -> (K, d)."""
    blocks = tower.model.transformer.resblocks
    weights = patched(blocks, "model.transformer.resblocks", start, factors, gamma)
    if len(factors) > 2:
        weights["model.positional_embedding"] = factors[2]
        table = tower.model.token_embedding.weight
        weights["model.token_embedding.weight"] = table + gamma * factors[4] @ factors[3]
    out = functional_call(tower, weights, (ids,))
    return torch.stack([t / t.norm() for t in out])


def orthogonality(features: list[Tensor], labels: list[int], renormalise: bool, norm: str) -> Tensor:
    means = []
    for c in sorted(set(labels)):
        members = [f for f, y in zip(features, labels, strict=True) if y == c]
        mean = sum(members) / len(members)
        means.append(mean / mean.norm() if renormalise else mean)
    if len(means) < 2:
        return torch.zeros((), dtype=features[0].dtype)
    total, gram = 0.0, []
    for i, x in enumerate(means):
        for j, y in enumerate(means):
            gram.append(x @ y - (1.0 if i == j else 0.0))
            total = total + gram[-1] ** 2
    if norm == "mean_squares":
        return total / len(means) ** 2
    if norm == "spectral":
        return torch.linalg.eigvalsh(torch.stack(gram).view(len(means), -1)).abs().max()
    return total.sqrt()


def similarity(kind: str, x: Tensor, y: Tensor) -> float:
    if kind == "cosine":
        return float(x @ y / (x.norm() * y.norm()))
    if kind == "dot":
        return float(x @ y)
    distance = math.sqrt(float(((x - y) ** 2).sum()))
    return -distance if kind == "negated euclidean" else distance


def attention(
    prototypes: list[dict[int, Tensor]], counts: list[dict[int, int]], config: dict, without_self: bool
):
    """alpha, row by row; None for a client with nothing to attend to."""
    rows: list[list[float] | None] = []
    for k, means in enumerate(prototypes):
        exponents = {}
        for j, others in enumerate(prototypes):
            if not means or not others or (without_self and j == k):
                continue
            total = 0.0
            for c, u in means.items():
                d = sum(similarity(config["similarity"], u, v) for v in others.values())
                if config["reduce"] == "mean":
                    d /= len(others)
                total += counts[k][c] / sum(counts[k][e] for e in means) * d
            exponents[j] = math.exp(total)
        z = sum(exponents.values())
        rows.append([exponents.get(j, 0.0) / z for j in range(len(prototypes))] if exponents else None)
    return rows


def mix(uploads: list[Factors], weights: list[float], config: dict, served: bool) -> Factors:
    """A weighted mean of updates, the low-rank ones as factors again; in full where it is served exactly."""
    plain = tuple(weighted(list(values), weights) for values in zip(*uploads, strict=True))
    if config["average"] == "factors":
        return plain
    layers, _, rank, width = uploads[0][0].shape
    rank = width if served and config["average"] == "exact" else rank
    a, b = uploads[0][0].new_zeros(layers, 3, rank, width), uploads[0][0].new_zeros(layers, 3, width, rank)
    for layer in range(layers):
        for j in range(3):
            delta = sum(w * up[1][layer, j] @ up[0][layer, j] for w, up in zip(weights, uploads, strict=True))
            u, s, vh = torch.linalg.svd(delta)
            turn = torch.eye(rank, dtype=delta.dtype)
            if rank == uploads[0][0].shape[2]:  # of all A with this product, the nearest to the clients' mean
                overlap = plain[0][layer, j] @ vh[:rank].T
                values, vectors = torch.linalg.eigh(overlap @ overlap.T)
                turn = vectors @ torch.diag(values**-0.5) @ vectors.T @ overlap
            a[layer, j] = turn @ vh[:rank] / math.sqrt(3)
            b[layer, j] = u[:, :rank] @ torch.diag(s[:rank]) @ turn.T * math.sqrt(3)
    return a, b, *plain[2:]


def joined(low: Factors, high: Factors, boundary: int) -> Factors:
    """Adapted layers and embeddings below ``boundary`` from one, what lies above from the other."""
    layers = tuple(torch.cat([x[:boundary], y[boundary:]]) for x, y in zip(low[:2], high[:2], strict=True))
    if len(low) == 2:
        return layers
    return *layers, low[2], low[3], high[4]


def optimiser(kind: str, values: list[Tensor], lr: float) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(values, lr=lr)
    return torch.optim.SGD(values, lr=lr, momentum=0.9)


def train_client(
    tail, factors: Factors, text: Tensor, x: Tensor, y: Tensor, steps: list[list[int]], config: dict
):
    """The client's factors after a round, and the features of its last epoch by position, with hits."""
    values = [t.clone().requires_grad_() for t in factors]
    moves = optimiser(config["optimiser"], values, config["lr"])
    seen: dict[int, tuple[Tensor, bool]] = {}
    for chosen in steps:
        features = [image_feature(tail, tuple(values), config["gamma"], x[i]) for i in chosen]
        loss = mean_loss(text, torch.stack(features), y[chosen], config["scale"])
        loss = loss + config["mu"] * orthogonality(
            features, y[chosen].tolist(), config["renormalise"], config["norm"]
        )
        for i, f in zip(chosen, features, strict=True):  # a later epoch writes over an earlier one
            seen[i] = (f.detach(), int(scores(text, f, config["scale"]).argmax()) == int(y[i]))
        moves.zero_grad()
        loss.backward()
        moves.step()
    return tuple(v.detach() for v in values), seen


def train_text(
    tower, world: World, ids: Tensor, pairs: list[tuple[Tensor, int]], orders: list[list[int]], config: dict
) -> Factors:
    """The text tower's factors; ``orders``: how each epoch visits the pairs."""
    values = [t.clone().requires_grad_() for t in world.text]
    moves = torch.optim.Adam(values, lr=config["server_lr"])
    size = config["server_batch_size"]
    for chosen in [o[i : i + size] for o in orders for i in range(0, len(o), size)]:
        chosen = [pairs[i] for i in chosen]
        text = text_features(tower, tuple(values), config["text_start"], config["gamma"], ids)
        loss = mean_loss(
            text, torch.stack([f for f, _ in chosen]), torch.tensor([c for _, c in chosen]), config["scale"]
        )
        moves.zero_grad()
        loss.backward()
        moves.step()
    return tuple(v.detach() for v in values)


def run(
    model, ids, xs, labels, image: Factors, text: Factors, batches: Batches, shuffles: Callable, config: dict
) -> World:
    """All rounds.

    Args:
        ids: token ids of the class texts, (K, 77).
        xs: each client's activations entering the first adapted layer, or its patches where all is trained.
        image, text: the first factors of both towers.
        shuffles: (round, number of pairs) -> the orders in which the server's epochs visit the pairs.
    """
    clients = len(xs)
    tail = (ImageTail if len(image) == 2 else WholeImageTower)(model.visual, config["start"])
    tower = TextTower(model)
    features = text_features(tower, text, config["text_start"], config["gamma"], ids).detach()
    world = World(text, [image] * clients, [image] * clients, image, features)
    counts = [{c: int((y == c).sum()) for c in set(y.tolist())} for y in labels]
    for round_, steps_of in enumerate(batches, start=1):
        uploads, prototypes, pairs, world.pairs = [], [], [], []
        for k in range(clients):
            factors, seen = train_client(
                tail, world.personal[k], world.features, xs[k], labels[k], steps_of[k], config
            )
            right = [(seen[i][0], int(labels[k][i])) for i in sorted(seen) if seen[i][1]]
            means = {}
            for c in sorted({y for _, y in right}):
                members = [f for f, y in right if y == c]
                means[c] = sum(members) / len(members)
            uploads.append(factors)
            prototypes.append(means)
            pairs += right
            world.pairs.append(len(right))
        world.text = train_text(tower, world, ids, pairs, shuffles(round_, len(pairs)), config)
        world.features = text_features(tower, world.text, config["text_start"], config["gamma"], ids).detach()
        sizes = [len(y) if config["weighting"] == "samples" else 1 for y in labels]
        _aggregate(world, uploads, prototypes, counts, sizes, config)
    return world


def _aggregate(world: World, uploads, prototypes, counts, samples: list[int], config: dict) -> None:
    share = [n / sum(samples) for n in samples]
    world.common, common = mix(uploads, share, config, True), mix(uploads, share, config, False)
    start = attention(prototypes, counts, config, config["ex_query"])
    serve = attention(prototypes, counts, config, False)
    world.attention = [share if row is None else row for row in start]
    world.personal, world.serving = [], []
    for k in range(len(uploads)):
        for rows, stored, low in ((start, world.personal, common), (serve, world.serving, world.common)):
            high = mix(uploads, share if rows[k] is None else rows[k], config, rows is serve)
            stored.append(joined(low, high, config["boundary"]))
