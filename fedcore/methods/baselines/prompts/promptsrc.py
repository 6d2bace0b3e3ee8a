"""PromptSRC is IVLP with three losses that hold its features near CLIP's (Khattak et al., ICCV 2023).

    h, t_k: normalised embedding and class features with IVLP's prompts,  p = softmax(s h . t)
    h0: the embedding without prompts,  z_k: mean text feature of 60 templates,  q = softmax(s h0 . z)
    client: L = CE + 25 mean |t_kj - z_kj| + 10 mean |h_ij - h0_ij| + mean q_ik log(q_ik / p_ik)
    server: mean of all prompts, with which clients continue
    predict: sum_r w_r theta_r / sum_r w_r over the server's means theta_r,  w_r ~ N(r; 0.75 R, (R/20)^2)

All means are over elements (classes, dimensions and images). The paper trains on one machine and aggregates
the prompts of its 20 epochs, w_e ~ N(e; 15, 1), once for inference. Here the R rounds take the place of the
epochs; in rounds before the last one the model that is tested is the mean so far.
"""

import math
from dataclasses import replace
from functools import cached_property
from typing import Literal

from fedcore import methods as fl
from fedcore.base.files import ASSETS
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.prompts import encode_texts
from fedcore.clip.specs import spoken
from fedcore.methods.baselines.prompts.ivlp import IVLP, IVLPConfig

PEAK, SPREAD = 15 / 20, 1 / 20
"""Mean and standard deviation of the weights over the rounds, in runs: the paper's 15 and 1 of 20 epochs."""
TEMPLATES = ASSETS / "templates.txt"
"""CLIP's plain template and the first 59 of the 80 that its authors published for ImageNet (Radford et al.,
2021, Prompt_Engineering_for_ImageNet.ipynb), in the order of PromptSRC's repository."""


class PromptSRCConfig(IVLPConfig):
    text_weight: fl.LossWeight = fl.hyper(
        25.0,
        "Weight of the distance of class features from those of 60 templates (paper: 25)",
        search=fl.TENFOLD,
    )
    image_weight: fl.LossWeight = fl.hyper(
        10.0, "Weight of the distance of embeddings from those without prompts (paper: 10)", search=fl.TENFOLD
    )
    logits_weight: fl.LossWeight = fl.hyper(
        1.0, "Weight of the divergence from the scores without prompts (paper: 1)", title="score weight"
    )
    gpa: Literal["none", "rounds"] = fl.hyper(
        "rounds",
        "Gaussian prompt aggregation: rounds, predictions use a weighted mean of the prompts of all rounds, "
        "which is mostly of those around three quarters of the run (paper, with epochs for rounds); none, "
        "the last round's",
        title="Gaussian prompt aggregation",
        words={"none": "off", "rounds": "over the rounds"},
    )


@fl.method
class PromptSRC(IVLP):
    """IVLP held near CLIP's own features, whose prompts are averaged over the rounds for inference."""

    name = "promptsrc"
    about = fl.About(
        source="Khattak et al., Self-regulating Prompts: Foundational Model Adaptation without Forgetting, "
        "ICCV 2023",
        summary="CLIP stays frozen; prompts are learned in the first layers of both encoders, as in IVLP. "
        "Three further losses keep what the prompted model computes near what CLIP computes without prompts: "
        "class features near the mean over 60 templates, image embeddings, and class scores. "
        "The server averages the prompts of the clients. "
        "Predictions use a weighted mean of the server's prompts over the rounds, in which those near "
        "three quarters of the run count most; clients do not train from it. "
        "Training passes through both encoders; images pass through the frozen one once in a run.",
        charts=(
            fl.DiagnosticChart(
                "PromptSRC's loss terms",
                {
                    "cross_entropy": "cross-entropy",
                    "text": "distance of class features",
                    "image": "distance of embeddings",
                    "scores": "divergence of scores",
                },
                better="lower",
                note="Distances before they are weighted.",
            ),
        ),
    )
    Config = PromptSRCConfig

    @cached_property
    def _frozen(self) -> fl.OncePerSample:
        return fl.OncePerSample(lambda x: F.normalize(self.tower.tail(x, 0), dim=-1))

    @cached_property
    def _anchors(self) -> Tensor:
        """The normalised mean of the templates' unnormalised features. Shape: (classes, d)."""
        backbone, names = self.problem.backbone, [spoken(name) for name in self.problem.classes]
        templates = TEMPLATES.read_text(encoding="utf-8").splitlines()
        with torch.no_grad():
            each = [encode_texts(backbone, [t.format(name) for name in names]) for t in templates]
            return F.normalize(torch.stack(each).mean(0), dim=-1)

    def init(self, generator: fl.Generators) -> fl.State:
        """Return IVLP's prompts, and on the server their mean over the rounds, gpa_NAME for each NAME."""
        state = super().init(generator)
        if self.config.gpa == "none":
            return state
        return replace(state, server={f"gpa_{name}": value.clone() for name, value in state.shared.items()})

    def round_constants(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
        """Return the anchors, and the samples' normalised embeddings without prompts.

        Shape: anchors (clients, classes, d), frozen (clients, longest, d).
        """
        return {"anchors": self._anchors.expand(len(data.clients), -1, -1), "frozen": self._frozen(data)}

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        scale, config, anchors = self.problem.backbone.logit_scale, self.config, const["anchors"]
        h, text = self.features(params, self.head(params, None), batch.x)
        frozen = const["frozen"].take_along_dim(batch.places[..., None], 1)
        log_q = (scale * frozen @ anchors.mT).log_softmax(-1)
        # Before the cross-entropy, as in KgCoOp: with all weights 0 the sums of gradients have IVLP's bits.
        text_term = (F.normalize(text, dim=-1) - anchors).abs().mean((1, 2))
        image_term = fl.masked_mean((F.normalize(h, dim=-1) - frozen).abs().mean(-1), batch.mask)
        logits = fl.cosine_logits(h, text, scale)
        divergence = (log_q.exp() * (log_q - logits.log_softmax(-1))).mean(-1)
        terms = {
            "text": text_term,
            "image": image_term,
            "scores": fl.masked_mean(divergence, batch.mask),
            "cross_entropy": fl.cross_entropy(logits, batch.labels, batch.mask),
        }
        weights = (config.text_weight, config.image_weight, config.logits_weight, 1.0)
        loss = sum(weight * term for weight, term in zip(weights, terms.values(), strict=True))
        return fl.Step({self.shared: loss}, terms=terms)

    @property
    def needs_only_means(self) -> bool:
        return True

    def aggregate(self, state: fl.State, uploads: fl.Uploads, generator: fl.Generators) -> fl.State:
        """Average the prompts over the clients, and add them to the mean over the rounds."""
        after = super().aggregate(state, uploads, generator)
        if self.config.gpa == "none":
            return after
        so_far = [gaussian(round_ / uploads.rounds) for round_ in range(1, uploads.round + 1)]
        # A mean so far instead of a sum: the first weights are as small as 1e-49, which a sum would lose.
        share = so_far[-1] / sum(so_far)
        means = {
            f"gpa_{name}": (1 - share) * state.server[f"gpa_{name}"] + share * value
            for name, value in after.shared.items()
        }
        return replace(after, server=means)

    def models(self, state: fl.State) -> fl.Models:
        """Return one model for all: the mean over the rounds, or the last round's."""
        if self.config.gpa == "rounds":
            state = replace(state, shared={name: state.server[f"gpa_{name}"] for name in state.shared})
        return super().models(state)


def gaussian(time: float) -> float:
    """Return the weight of a round's prompts; time is its number as a share of all rounds."""
    return math.exp(-(((time - PEAK) / SPREAD) ** 2) / 2)
