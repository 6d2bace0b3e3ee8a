"""Measure the embedded models, print the values, and store the zero-shot accuracies for the tests.

python -m tools.pretraining.check            # both models; writes fedcore/assets/mini-zero-shot.json
python -m tools.pretraining.check mini-rn --no-write
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedcore.clip import backbone, prompts, weights
from fedcore.clip.backbone import Backbone
from fedcore.data.drawn import digits, shapes
from fedcore.data.images import ImageSet
from tools.pretraining.drawings import STYLES

STYLE_DOMAINS = (*STYLES[:-1], "sketch", "mosaic", "night", "halftone")  # without the scans
TURNED = ("cartoon+30", "sketch+30", "mosaic-30", "halftone+45", "painting-45", "photo+60", "night-30")
PER_CLASS = 30
STORED = weights.ASSETS / "mini-zero-shot.json"


@dataclass
class EncodedData:
    """A data set encoded by one model.

    Shape: features (samples, d), of unit length; pixels (samples, 3, side, side).
    """

    data: ImageSet
    pixels: Tensor
    features: Tensor

    @property
    def labels(self) -> Tensor:
        return torch.from_numpy(self.data.labels)

    def rows(self, *domains: str) -> Tensor:
        wanted = [self.data.domains.index(d) for d in domains]
        return torch.from_numpy(np.flatnonzero(np.isin(self.data.domain, wanted)))

    def divided(self, domain: str) -> tuple[Tensor, Tensor]:
        """Return the rows of a domain in two random parts, 60 % to train and 40 % to test."""
        rows = self.rows(domain)
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
        return rows[: int(0.6 * len(rows))], rows[int(0.6 * len(rows)) :]

    def accuracy(
        self, text: Tensor, rows: Tensor | slice = slice(None), features: Tensor | None = None
    ) -> float:
        """Return the accuracy (%) of class features on some rows, by the stored image features unless given.

        Shape: text (classes, d), features (rows, d).
        """
        seen = self.features[rows] if features is None else features
        return 100 * (seen @ text.T).argmax(1).eq(self.labels[rows]).float().mean().item()


def encode(model: Backbone, data: ImageSet) -> EncodedData:
    """Encode a data set's images."""
    pixels = torch.stack([model.preprocess(data.read(i)) for i in range(len(data))])
    with torch.no_grad():
        features = torch.cat([model.embed_images(x) for x in pixels.split(256)])
    return EncodedData(data, pixels, nn.functional.normalize(features, dim=-1))


def classes(model: Backbone, data: ImageSet, template: str | None = None) -> Tensor:
    """Return class features of a template, of the data set's own unless given. Shape: -> (classes, d)."""
    return prompts.class_features(model, data.classes, template or data.template)


def prompt(model: Backbone, data: ImageSet) -> Callable[[Tensor], Tensor]:
    """Return class features of ``[SOS] context class . [EOT]``.

    Shape: ([classes,] n, width) -> (classes, d).
    """
    suffix = prompts.class_suffix(model, data.classes)

    def features(context: Tensor) -> Tensor:
        encoder = prompts.encode_class_context if context.ndim == 3 else prompts.encode_context
        return nn.functional.normalize(encoder(model, context[None], suffix)[0], dim=-1)

    return features


def random_context(model: Backbone, seen: EncodedData, rows: Tensor, length: int, draws: int = 8) -> float:
    """Return the mean accuracy under contexts drawn from N(0, 0.02)."""
    features, width = prompt(model, seen.data), model.spec.token_width
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        texts = [features(torch.randn(length, width, generator=g) * 0.02) for _ in range(draws)]
    return float(np.mean([seen.accuracy(t, rows) for t in texts]))


def train_context(
    model: Backbone,
    seen: EncodedData,
    rows: Tensor,
    per_class: bool,
    optimiser: str,
    epochs: int = 4,
    length: int = 16,
) -> tuple[float, float]:
    """Train a prompt centrally on cached features: training accuracy (%) of the template, and after it."""
    features, width = prompt(model, seen.data), model.spec.token_width
    g = torch.Generator().manual_seed(0)
    lead = (len(seen.data.classes),) if per_class else ()
    context = (torch.randn(*lead, length, width, generator=g) * 0.02).requires_grad_()
    steps = (
        torch.optim.Adam([context], 2e-3) if optimiser == "adam" else torch.optim.SGD([context], 0.01, 0.9)
    )
    x, y = seen.features[rows], seen.labels[rows]
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=g).split(32):
            loss = nn.functional.cross_entropy(model.logit_scale * x[part] @ features(context).T, y[part])
            steps.zero_grad()
            loss.backward()
            steps.step()
    with torch.no_grad():
        return seen.accuracy(classes(model, seen.data), rows), seen.accuracy(features(context), rows)


def train_lora(
    model: Backbone, seen: EncodedData, domain: str, rank: int = 4, rounds: int = 10
) -> tuple[float, float]:
    """Train LoRA on q, k, v of all layers of the ViT: accuracy (%) before and after, on 40 % held out."""
    g = torch.Generator().manual_seed(0)
    train, test = seen.divided(domain)
    visual, text = model.model.visual, classes(model, seen.data)
    weights = {k: v for k, v in visual.named_parameters() if k.endswith("in_proj_weight")}
    down = {
        k: (torch.randn(3, rank, v.shape[1], generator=g) / rank**0.5 * 0.5).requires_grad_()
        for k, v in weights.items()
    }
    up = {k: torch.zeros(3, v.shape[1], rank, requires_grad=True) for k, v in weights.items()}

    def adapted(x: Tensor) -> Tensor:
        changed = {k: v + 0.25 * (up[k] @ down[k]).reshape(v.shape) for k, v in weights.items()}
        return nn.functional.normalize(functional_call(visual, changed, (x,)), dim=-1)

    optimiser = torch.optim.Adam([*down.values(), *up.values()], 2e-3)
    for _ in range(rounds):
        for part in train[torch.randperm(len(train), generator=g)].split(32):
            loss = nn.functional.cross_entropy(
                model.logit_scale * adapted(seen.pixels[part]) @ text.T, seen.labels[part]
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        return seen.accuracy(text, test), seen.accuracy(text, test, adapted(seen.pixels[test]))


def probe(seen: EncodedData, domain: str) -> float:
    """Return the test accuracy of a linear classifier trained on 60 % of the domain's features."""
    from sklearn.linear_model import LogisticRegression

    train, test = seen.divided(domain)
    x, y = seen.features.numpy(), seen.labels.numpy()
    fitted = LogisticRegression(C=30, max_iter=500).fit(x[train], y[train])
    return 100 * fitted.score(x[test], y[test])


def check(name: str) -> dict[str, dict[str, float]]:
    """Print the values of one model and return its zero-shot accuracies, by data set and domain."""
    start = time.time()
    model = backbone.load(name)
    drawn = encode(model, shapes.load(domains=STYLE_DOMAINS + TURNED, per_class=PER_CLASS))
    real = encode(model, digits.load())
    print(f"\n## {name}: logit scale {model.logit_scale:.1f}, encoding took {time.time() - start:.0f} s")
    zero: dict[str, dict[str, float]] = {}
    for title, seen, domains in (("shapes", drawn, shapes.DOMAINS), ("rotated-digits", real, digits.DOMAINS)):
        text = classes(model, seen.data)
        zero[title] = {d: seen.accuracy(text, seen.rows(d)) for d in seen.data.domains}
        mean = np.mean(list(zero[title].values()))
        print(f"zero-shot {title}: {_by_domain(zero[title])}; mean {mean:.1f}")
        probes = {d: probe(seen, d) for d in domains if d in seen.data.domains}
        print(f"probe {title}: {_by_domain(probes)}")
    any_turn = real.accuracy(classes(model, real.data, "at any angle, a picture of the number: {}."))
    print(f"digits with 'at any angle': {any_turn:.1f}")
    photo = drawn.rows("photo")
    bare = drawn.accuracy(classes(model, drawn.data), photo)
    for length in (16, 63):
        noisy = random_context(model, drawn, photo, length)
        print(f"random context of {length} on photo: {noisy:.1f} of {bare:.1f}")
    gains = {
        f"{kind} context, {optimiser}, {title}": train_context(model, seen, rows, per_class, optimiser)
        for title, seen, rows in (
            ("digits", real, torch.arange(len(real.data))),
            ("rotated shapes", drawn, drawn.rows(*TURNED[:4])),
        )
        for kind, per_class in (("shared", False), ("class-specific", True))
        for optimiser in ("adam", "sgd")
    }
    if name == "mini-vit":
        for seen, domain in ((real, "rot45"), (drawn, "sketch+30")):
            gains[f"LoRA r=4, 10 rounds, {domain}"] = train_lora(model, seen, domain)
    for title, (before, after) in gains.items():
        print(f"{title}: {before:.1f} -> {after:.1f} ({after - before:+.1f})")
    print(f"took {time.time() - start:.0f} s")
    return zero


def _by_domain(values: dict[str, float]) -> str:
    return ", ".join(f"{domain} {value:.0f}" for domain, value in values.items())


def main() -> int:
    """Measure the models that are named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(weights.MINI_MODELS))
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    torch.set_num_threads(1)  # sequences this short gain nothing from a second thread
    torch.backends.cuda.enable_flash_sdp(False)  # the CPU kernel's backward is slow for them
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for name in options.models:
        stored[name] = {data: {d: round(a, 2) for d, a in f.items()} for data, f in check(name).items()}
    if not options.no_write:
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
