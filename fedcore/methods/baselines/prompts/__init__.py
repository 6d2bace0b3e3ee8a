"""The methods that learn prompts, and the base of those that learn a context before every class name."""

import math
from typing import Any, Literal, Self

from pydantic import model_validator

from fedcore import methods as fl
from fedcore.base.lazy import Generator, Tensor
from fedcore.clip import specs
from fedcore.clip.prompts import (
    check_prompts,
    check_room,
    class_suffix,
    draw_context,
    encode_context,
    word_context,
)
from fedcore.clip.specs import BackboneSpec

WORDS = "a photo of a"
"""Words from which the contexts of CoCoOp and its successors start."""
HELD_PER_TOKEN = 12
"""Numbers that a prediction holds for each token of a text, in token widths: q, k, v, the MLP and sums."""


class PromptedConfig(fl.MethodConfig):
    """Hyper-parameters of methods that learn a context, as CoOp does."""

    context_length: fl.PromptLength = fl.hyper(
        16, "Learned context vectors before the class name, tokens (M; paper: 16)"
    )
    weighting: fl.Weighting = fl.hyper(
        "samples", "Server mean over clients: weighted by sample counts (paper), or plain"
    )


class WordedConfig(PromptedConfig):
    """Hyper-parameters of methods whose context starts as words."""

    context_length: fl.PromptLength = fl.hyper(
        4, "Learned context vectors before the class name, tokens (M; paper: 4)"
    )
    init: Literal["words", "random"] = fl.hyper(
        "words",
        f"Initial context: words, '{WORDS}' (paper), or random vectors, as PromptFL's",
        title="initial context",
        words={"words": f"'{WORDS}'", "random": "random vectors"},
    )

    @model_validator(mode="after")
    def _words_fit(self) -> Self:
        words = len(WORDS.split())
        if self.init == "words" and self.context_length != words:
            raise ValueError(
                f"'{WORDS}' has {words} tokens, not {self.context_length}; choose "
                f"context_length = {words}, or init = random"
            )
        return self


class Prompted(fl.Method[Any]):
    """Base of methods that learn a context; a ``PromptedConfig`` declares its length.

    A subclass draws its first context with ``_draw`` and computes class features with ``_text``. ``head``,
    ``logits`` and ``prompts`` serve a state with one shared parameter called "context".

    Attributes:
        suffix: the token embeddings that follow the context, for every class.
    """

    def __init__(self, config: Any, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        self.suffix = class_suffix(problem.backbone, problem.classes, self._pattern(config))
        check_room(problem.backbone, config.context_length, self.suffix, "context_length")

    @classmethod
    def check(cls, config: Any, context: fl.RunContext) -> None:
        """Refuse text towers without prompts, and contexts that leave a class name no room."""
        check_prompts(context.spec)
        length, pattern = config.context_length, cls._pattern(config)
        specs.check_room(context.spec, context.classes, length, "context_length", pattern)

    plan_warnings = classmethod(fl.rate_warnings)

    @classmethod
    def _pattern(cls, config: Any) -> str:
        """Return the text behind the context, with one {} for the class name."""
        return "{}."

    def _draw(self, generator: Generator) -> Tensor:
        """Draw a context from N(0, 0.02). Shape: -> (M, m)."""
        backbone = self.problem.backbone
        drawn = draw_context(self.config.context_length, backbone.spec.token_width, generator)
        return drawn.to(backbone.device, backbone.dtype)

    def _first_context(self, drawn_by: Generator) -> Tensor:
        """Return the context with which a ``WordedConfig`` starts. Shape: -> (M, m)."""
        if self.config.init == "words":
            return word_context(self.problem.backbone, WORDS)
        return self._draw(drawn_by)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features. Shape: text (models, classes, d)."""
        return {"text": self._text(params["context"])}

    def prompts(self, params: fl.Params, clients: Tensor | None) -> fl.Values:
        """Return the shared context, and a client's own where it has one.

        Shape: (models, M, m), or (models, classes, M, m).
        """
        return {name: params[name] for name in ("context", "own") if name in params}

    def _text(self, contexts: Tensor) -> Tensor:
        """Return unnormalised class features. Shape: contexts (n, M, m) -> (n, classes, d)."""
        return encode_context(self.problem.backbone, contexts, self.suffix)


def most_steps(config: fl.MethodConfig, data: fl.LocalData) -> int:
    """Return how many steps the client with the most samples takes in a round."""
    return config.local_epochs * math.ceil(int(data.rows.counts.max()) / config.batch_size)


class PromptedTowers(Prompted):
    """Base of methods that learn prompts of both encoders: a context, and tokens beside those of an image.

    The context takes the place of the first words of a photo prompt. Training passes through both towers, so
    images are read as the activations that enter the first layer of theirs.
    """

    @classmethod
    def _pattern(cls, config: Any) -> str:
        """Return the text behind the context, which takes the place of the first words of 'a photo of a'."""
        return " ".join([*WORDS.split()[config.context_length :], "{}."])

    @classmethod
    def reads(cls, config: Any, spec: BackboneSpec) -> str:
        """Return the encoding that enters the first layer, which prompts join."""
        return "layer:0"

    def _first_words(self) -> Tensor | None:
        """Return the words whose place the context takes; None if it is longer. Shape: -> (M, m)."""
        words = word_context(self.problem.backbone, WORDS)
        return words[: self.config.context_length] if self.config.context_length <= len(words) else None

    def _norm(self, prompts: Tensor) -> Tensor:
        """Apply the embedding's norm, which the prompts of the first image layer pass as patches do."""
        normed: Tensor = self.problem.backbone.image.visual.ln_pre(prompts)
        return normed
