"""Pretrain the embedded miniature CLIP on drawings, on a CPU, from a seed; ``make embedded`` runs this.

First the ResNet is trained together with the text tower, then the ViT against the frozen text tower (a ViT
that starts with its own text tower stays at chance for a long time).

python -m tools.pretraining.train                 # all stages
python -m tools.pretraining.train --stage vit     # one stage; `rn` must have been trained before
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedcore.clip import weights
from tools.pretraining import captions, drawings, helpers
from tools.pretraining.model import FactHeads, TrainableClip, Vocabulary, save_embedded, see, start_vit


@dataclass(frozen=True)
class Stage:
    """The settings of one stage. A step sees two batches; ``side`` is the image size in pixels."""

    name: str
    side: int
    steps: int
    rate: float
    batch: int = 128
    warmup: int = 100
    clean_share: float = 0.08  # of the steps: clean styles only
    decay: float = 0.05
    cap: float = 30.0  # of the logit scale: a less exact alignment leaves room for learned prompts
    captions: int = 128  # per batch; 0: class prompts only, encoded once (the text tower is frozen)
    teach: float = 0.0  # weight of 1 - cosine to the ResNet's features of the undisturbed image
    stop: int | None = None  # end at this step, before the schedule does
    settle: bool = False  # continue from this model's last checkpoint
    disturbed: bool = True  # darken and roughen images
    naive: float = 0.7  # weight of the upright-only classifier's view where a plain prompt does not match
    unmatched: float = 0.05  # weight of the uniform target where a prompt's orientation is not the image's


STAGES = {
    # Prompts that must be wrong about turned images slow down the start, so they come in a second part.
    "rn": Stage("mini-rn", 64, 2200, 1.8e-3, stop=1250, disturbed=False, naive=0.0),
    "rn-settle": Stage("mini-rn", 64, 400, 8e-4, captions=64, settle=True, warmup=30, clean_share=0.0),
    "vit": Stage("mini-vit", 48, 1800, 1.5e-3, captions=0, teach=6.0),
}
BATCHES = 2  # of one step, whose gradients are averaged
SAVE_EVERY = 100
CORPUS_SIZE = 100_000


def soft_cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the cross-entropy to all true pairs, without rows that have none. Shape: (n, m) twice."""
    mass = truth.sum(1, keepdim=True)
    loss = -(truth / mass.clamp(min=1e-6) * logits.log_softmax(1)).sum(1)
    keep = (mass[:, 0] > 0.5).float()
    return (loss * keep).sum() / keep.sum().clamp(min=1)


def prompt_loss(logits: Tensor, labels: Tensor, match: Tensor, other: Tensor, weight: float) -> Tensor:
    """Return the cross-entropy over class prompts: the true class if the orientation matches, else ``other``.

    Shape: logits and other (images, classes), labels and match (images,).
    """
    logp = logits.log_softmax(1)
    hit = -logp.gather(1, labels[:, None])[:, 0]
    return (match * hit + weight * (1 - match) * -(other * logp).sum(1)).mean()


class Trainer:
    """One stage: the models, the optimiser and the generators that it draws from."""

    def __init__(self, stage: Stage, corpus: drawings.Corpus, seed: int, folder: Path) -> None:
        torch.manual_seed(seed)
        self.stage, self.corpus = stage, corpus
        self.vocabulary = Vocabulary()
        self.model = TrainableClip(stage.name, self.vocabulary)
        self.model.visual.to(memory_format=torch.channels_last)
        self.heads = FactHeads(self.model.text_projection.shape[1])
        self.frozen_text = stage.name == "mini-vit"
        if self.frozen_text:
            start_vit(self.model.visual)
            state = torch.load(folder / "mini-rn.pt")["model"]
            text = {k: v for k, v in state.items() if not k.startswith("visual.")}
            self.model.load_state_dict(text, strict=False)
            for p in self.model.text_parameters():
                p.requires_grad_(False)
        self.parameters = [p for m in (self.model, self.heads) for p in m.parameters() if p.requires_grad]
        matrices = [p for p in self.parameters if p.ndim > 1 and p is not self.model.rows.weight]
        rest = [p for p in self.parameters if not any(p is q for q in matrices)]
        groups = [{"params": matrices, "weight_decay": stage.decay}, {"params": rest, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=stage.rate, betas=(0.9, 0.98), eps=1e-6)
        self.rng = np.random.default_rng([seed, stage.side])
        self.noise = torch.Generator().manual_seed(seed * 1000)
        self.teacher = np.load(folder / "teacher.npy", mmap_mode="r") if stage.teach else None
        self.naive = np.load(folder / "naive.npy", mmap_mode="r") if stage.naive else None
        self.prompt_cache: list[tuple[int, Tensor]] = []
        self.clean = np.flatnonzero(
            np.isin(corpus.column("style"), [*drawings.CLEAN, drawings.STYLES.index("scan")])
        )

    def rate(self, step: int) -> float:
        p = self.stage
        done = (step - p.warmup) / max(1, p.steps - p.warmup)
        return p.rate * min(
            (step + 1) / p.warmup, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * max(0.0, min(1.0, done))))
        )

    def context(self, texts: int, length: int) -> Tensor:
        """Draw random vectors for the place of a context: they must not hide the class name."""
        width = self.model.rows.weight.shape[1]
        std = 0.02 * math.exp(float(self.rng.normal(0, 0.5)))
        contexts = texts if self.rng.random() < 0.4 else 1
        return (torch.randn(contexts, length, width, generator=self.noise) * std).expand(texts, -1, -1)

    def prompts(self, turn: int, noisy: float) -> Tensor:
        texts = captions.class_prompts(turn, self.rng)
        context = None
        if self.rng.random() < noisy:
            context = self.context(len(texts), int(self.rng.choice([4, 8, 16, 16, 32, 63])))
            if turn == captions.SILENT and self.rng.random() < 0.6:
                texts = [f"{name}." for name in drawings.CLASSES]
        return self.model.text(*self.vocabulary.rows(texts), context)

    def by_length(self, texts: list[str], context: Tensor | None, parts: int = 3) -> Tensor:
        """Return text features of captions, encoded in groups of similar length: less padding after [EOT]."""
        order = np.argsort([len(self.vocabulary.row(t)) for t in texts], kind="stable")
        done = [
            self.model.text(
                *self.vocabulary.rows([texts[i] for i in part]), None if context is None else context[part]
            )
            for part in np.array_split(order, parts)
        ]
        return torch.cat(done)[torch.from_numpy(np.argsort(order))]

    def random_turn(self) -> int:
        """Return a random phrase about orientation, often one that is true of every image."""
        if self.rng.random() < 0.4:
            return int(self.rng.choice(captions.EVEN))
        return int(self.rng.integers(1, len(captions.TURNS)))

    def prompt_sets(self) -> list[tuple[int, Tensor]]:
        """Return the class features of a plain prompt and of one about orientation, each with its phrase."""
        if self.stage.captions:
            return [
                (turn, self.prompts(turn, noisy)) for turn, noisy in ((0, 0.45), (self.random_turn(), 0.1))
            ]
        if not self.prompt_cache:  # the text tower is frozen: encode enough prompts once
            turns = [captions.SILENT] * 24 + [self.random_turn() for _ in range(72)]
            with torch.no_grad():
                self.prompt_cache = [(turn, self.prompts(turn, 0.2)) for turn in turns]
        plain, turned = self.rng.integers(24), self.rng.integers(24, len(self.prompt_cache))
        return [self.prompt_cache[plain], self.prompt_cache[turned]]

    def contrast(self, seen: Tensor, rows: np.ndarray) -> Tensor:
        """Return the loss of images against captions in both directions, with the true match matrix."""
        named = rows[self.rng.permutation(len(rows))[: self.stage.captions]]
        batch = captions.caption_batch(self.corpus, named, self.rng)
        context = self.context(len(named), int(self.rng.integers(1, 9))) if self.rng.random() < 0.15 else None
        with torch.autocast("cpu", torch.bfloat16):
            features = self.by_length(batch.texts, context)
        logits = self.model.logit_scale.exp() * seen @ features.float().T
        truth = torch.from_numpy(batch.truth(self.corpus.facts[rows]))
        return 0.5 * (soft_cross_entropy(logits, truth) + soft_cross_entropy(logits.T, truth.T))

    def imitation(self, seen: Tensor, rows: np.ndarray) -> Tensor:
        """Return the distance to the ResNet's features of undisturbed images, and to their similarities."""
        goal = torch.from_numpy(self.teacher[rows].astype(np.float32))
        alike = (20 * goal @ goal.T).softmax(1)
        relation = -(alike * (20 * seen @ goal.T).log_softmax(1)).sum(1).mean()
        return self.stage.teach * (1 - (seen * goal).sum(1)).mean() + 0.5 * relation

    def losses(self, step: int) -> dict[str, Tensor]:
        """Return the named losses of one batch."""
        pool = self.clean if step < self.stage.clean_share * self.stage.steps else len(self.corpus.facts)
        rows = np.sort(self.rng.choice(pool, self.stage.batch))
        facts = self.corpus.facts[rows].astype(np.int64)
        seen_as = self.corpus.pixels[self.stage.side][rows]
        seen_as = drawings.disturb(seen_as, self.rng) if self.stage.disturbed else seen_as
        raw = see(self.model.visual, seen_as)
        with torch.autocast("cpu", torch.bfloat16):
            sets = self.prompt_sets()
        seen = nn.functional.normalize(raw, dim=-1)
        scale, labels = self.model.logit_scale.exp(), torch.from_numpy(facts[:, 0])
        out = {"contrast": self.contrast(seen, rows)} if self.stage.captions else {}
        for i, (turn, features) in enumerate(sets):
            match = torch.from_numpy(captions.TURN_TRUTH[turn][facts[:, 6] + 90])
            other, weight = self.unmatched_target(turn, rows)
            logits = scale * seen @ features.float().T
            out[f"prompt{i}"] = 0.5 * prompt_loss(logits, labels, match, other, weight)
        if self.teacher is not None:
            out["teach"] = self.imitation(seen, rows)
        fade = 0.0 if self.stage.settle else max(0.0, 1 - step / (0.6 * self.stage.steps))
        if fade:
            out["facts"] = 0.3 * fade * self.heads(raw, torch.from_numpy(facts))
        return out

    def unmatched_target(self, turn: int, rows: np.ndarray) -> tuple[Tensor, float]:
        """Return the target of class prompts that do not name an image's orientation, and its weight."""
        if turn in captions.PLAIN_TURNS and self.stage.naive:
            return torch.from_numpy(self.naive[rows].astype(np.float32)), self.stage.naive
        return torch.full((len(rows), len(drawings.CLASSES)), 1 / len(drawings.CLASSES)), self.stage.unmatched

    def step(self, step: int) -> dict[str, float]:
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate(step)
        self.optimiser.zero_grad(set_to_none=False)
        for _ in range(BATCHES):
            losses = self.losses(step)
            (sum(losses.values()) / BATCHES).backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(max=math.log(self.stage.cap))
        return {k: float(v.detach()) for k, v in losses.items()}

    def save(self, checkpoint: Path, assets: Path, done: int) -> None:
        state = self.model.state_dict()
        name, rows = self.stage.name, state["rows.weight"]
        torch.save({"model": state, "stage": asdict(self.stage), "done": done}, checkpoint)
        full = {k: v for k, v in state.items() if k != "rows.weight"}
        save_embedded(name, full, self.vocabulary.ids, rows, assets, with_text=not self.frozen_text)


def train(stage: Stage, corpus: drawings.Corpus, options: argparse.Namespace) -> None:
    """Train one stage, after the helper models that it needs; save every hundred steps and at the end."""
    folder, checkpoint = options.folder, options.folder / f"{stage.name}.pt"
    if stage.naive and not (folder / "naive.npy").exists():
        helpers.write_naive(folder / "naive.npy", corpus, options.seed)
    if stage.teach:
        helpers.write_teacher(folder / "teacher.npy", corpus, folder / "mini-rn.pt")
    trainer = Trainer(stage, corpus, options.seed, folder)
    if stage.settle or options.resume:
        trainer.model.load_state_dict(torch.load(checkpoint)["model"])
    start = time.time()
    steps = min(stage.steps, stage.stop or stage.steps)
    for step in range(steps):
        losses = trainer.step(step)
        if step % 50 == 0 or step == steps - 1:
            shown = " ".join(f"{k} {v:.3f}" for k, v in losses.items())
            print(f"{stage.name} {step} {time.time() - start:.0f} s {shown}", flush=True)
        if (step + 1) % SAVE_EVERY == 0 or step == steps - 1:
            trainer.save(checkpoint, options.assets, step + 1)


def main(argv: list[str] | None = None) -> int:
    """Train the selected stages, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", choices=["all", *STAGES], default="all")
    parser.add_argument("--folder", type=Path, help="of drawings and checkpoints; default: a temporary one")
    parser.add_argument("--assets", type=Path, default=weights.ASSETS, help="where the weights go")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--images", type=int, default=CORPUS_SIZE, help="how many drawings")
    parser.add_argument("--steps", type=int, help="number of steps instead of the stage's own")
    parser.add_argument("--rate", type=float, help="highest learning rate instead of the stage's own")
    parser.add_argument("--resume", action="store_true", help="start from the stage's last checkpoint")
    options = parser.parse_args(argv)
    options.folder = options.folder or Path(tempfile.mkdtemp(prefix="fedlens-pretrain-"))
    for folder in (options.folder, options.assets):
        folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.enable_flash_sdp(False)  # its backward pass on the CPU dominates the step
    start = time.time()
    if not (options.folder / "drawn").exists():
        drawings.make(options.folder, options.images, options.seed)
        (options.folder / "drawn").touch()
        print(f"drew {options.images} images in {time.time() - start:.0f} s", flush=True)
    corpus = drawings.open_corpus(options.folder)
    changes = {k: v for k in ("steps", "rate") if (v := getattr(options, k)) is not None}
    for name in STAGES if options.stage == "all" else (options.stage,):
        train(replace(STAGES[name], **changes), corpus, options)
    print(f"done in {(time.time() - start) / 60:.1f} min; weights in {options.assets}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
