"""A method of your own in one file.

fedlens run examples/text_shift.toml --methods examples/text_shift.py
"""

from fedcore.base.lazy import torch  # `import torch` would load it wherever a page reads this file
from fedcore.methods import (
    About,
    LearningRate,
    Method,
    MethodConfig,
    State,
    Step,
    cosine_logits,
    cross_entropy,
    hyper,
    method,
)


class TextShiftConfig(MethodConfig):
    lr: LearningRate = hyper(0.02, "Learning rate of local SGD")
    strength: float = hyper(
        0.5, "How far it moves a class feature", title="strength of the shift", ge=0, le=1
    )


@method
class TextShift(Method):
    """The class features of zero-shot CLIP plus a learned shift that all clients share."""

    name = "text-shift"
    about = About(
        title="Text shift",
        source="examples/text_shift.py",
        summary="Clients learn one shift of the class features together; the server averages it. "
        "CLIP stays frozen.",
    )
    Config = TextShiftConfig
    shared = ("shift",)  # what is uploaded and averaged

    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.text = problem.class_features  # (classes, d)

    def init(self, generator):
        return State(shared={"shift": torch.zeros_like(self.text)})

    def train_step(self, params, const, batch):
        logits = self.logits(params, const, batch.x)
        return Step({("shift",): cross_entropy(logits, batch.labels, batch.mask)})

    def logits(self, params, head, x):  # shift (models, classes, d), x (models, samples, d)
        return cosine_logits(
            x, self.text + self.config.strength * params["shift"], self.problem.backbone.logit_scale
        )
