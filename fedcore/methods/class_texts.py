"""Written descriptions of classes in place of the prompt: kept with a run, one drawn by seed.

A method has them by two fields of its config, ``style`` and ``descriptions``, and by its base, ``Described``.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, Field

from fedcore.clip import tokens
from fedcore.clip.prompts import spoken
from fedcore.errors import FedLensError
from fedcore.lazy import torch
from fedcore.methods.base import Method, RunContext

if TYPE_CHECKING:
    from fedcore.federation import Problem

Texts = Mapping[str, Sequence[str]]
EDITOR = "class texts"
"""Marks a field that the form shows as a table of classes and texts."""
_NAMED = 3


class Styled(Protocol):
    """A config whose class texts are written descriptions (gt) or the prompt (st)."""

    @property
    def style(self) -> Literal["gt", "st"]:
        """Which of the two."""

    @property
    def descriptions(self) -> Texts | None:
        """Class -> its descriptions; None for the data set's own."""


def _checked(value: object) -> object:
    """Class -> tuple of texts with single spaces, or None.

    Raises:
        ValueError: saying which class or text is wrong.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError('give every class a list of texts: {"dog" = ["a picture of a dog, ..."]}')
    found: dict[str, tuple[str, ...]] = {}
    twins: dict[str, str] = {}
    for name, texts in value.items():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"{name!r} is no name of a class")
        other = twins.setdefault(spoken(name), name)
        if other != name:
            raise ValueError(f"'{other}' and '{name}' are one class; name it once")
        found[name] = _texts(name, texts)
    return found


def _texts(name: str, texts: object) -> tuple[str, ...]:
    if not isinstance(texts, (list, tuple)):
        raise ValueError(f"class '{name}': give a list of texts, not {type(texts).__name__}")
    for i, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise ValueError(f"class '{name}': its text {i} is of type {type(text).__name__}")
        if not text.strip():
            raise ValueError(f"class '{name}': its text {i} is empty; write it or leave it out")
    return tuple(" ".join(text.split()) for text in texts)


Descriptions = Annotated[dict[str, tuple[str, ...]] | None, BeforeValidator(_checked)]


def style_field(default: Literal["gt", "st"], description: str) -> Any:
    """The field ``style`` of a config: whether classes are described (gt), or named by the prompt (st)."""
    words = {"gt": "written descriptions", "st": "from the prompt"}
    return Field(default, title="class texts", description=description, json_schema_extra={"words": words})


def descriptions_field() -> Any:
    """The field ``descriptions: Descriptions`` of a config that has ``style``."""
    return Field(
        None,
        title="written descriptions",
        description="Written descriptions of each class for style gt, one drawn by seed; default: the data "
        "set's own, kept with the run when it is planned",
        json_schema_extra={"editor": EDITOR, "when": {"style": "gt"}, "empty": "the data set's own"},
    )


def fields(config: type[BaseModel]) -> list[str]:
    """Names of a config's fields that hold class texts."""
    extras = {name: info.json_schema_extra for name, info in config.model_fields.items()}
    return [n for n, extra in extras.items() if isinstance(extra, dict) and extra.get("editor") == EDITOR]


def is_texts(value: object) -> bool:
    """Whether a plain value holds texts by class."""
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(texts, (list, tuple)) for texts in value.values())


def summary(written: Texts) -> str:
    """``30 texts for 10 of 10 classes (checksum 3fa2c1)``: short, and another one for other texts."""
    texts, described = sum(map(len, written.values())), sum(map(bool, written.values()))
    content = json.dumps({name: list(t) for name, t in written.items()}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:6]
    return f"{texts} text{'s' * (texts != 1)} for {described} of {len(written)} classes (checksum {digest})"


def of_classes(config: Styled, classes: Sequence[str], own: Texts) -> dict[str, tuple[str, ...]]:
    """What is written of each class, in the data set's order and spelling; () where the prompt is taken.

    Args:
        own: the data set's, looked into only where the config brings none.
    """
    if config.style == "st":
        return dict.fromkeys(classes, ())
    written = own if config.descriptions is None else config.descriptions
    found = {spoken(name): tuple(" ".join(t.split()) for t in texts) for name, texts in written.items()}
    return {name: found.get(spoken(name), ()) for name in classes}


class Described(Method):
    """Base of methods whose config has ``style`` and ``descriptions``.

    Attributes:
        texts: what stands for every class, in their order: a description drawn by seed, or the prompt.
    """

    def __init__(self, config: Any, problem: Problem) -> None:
        super().__init__(config, problem)
        self.texts = [
            _drawn(name, written, problem)
            for name, written in of_classes(config, problem.classes, problem.descriptions).items()
        ]

    @classmethod
    def check(cls, config: Any, context: RunContext) -> None:
        """Refuse descriptions of classes that the data set has not, and such as the text tower would cut off.

        Raises:
            FedLensError: with field ``descriptions``.
        """
        if config.style == "st":
            return
        known = {spoken(name): name for name in context.classes}
        for name in config.descriptions or ():
            if spoken(name) not in known:
                near = difflib.get_close_matches(spoken(name), known, n=1)
                hint = f"did you mean '{known[near[0]]}'?" if near else f"it has {_listed(context.classes)}"
                raise FedLensError(f"the data set has no class '{name}'; {hint}", "descriptions")
        if context.facts.prompts is not None:
            return  # another tokenizer than CLIP's: a loaded backbone counts its tokens
        limit = context.facts.context_length
        for name, texts in of_classes(config, context.classes, context.descriptions).items():
            for text in texts:
                short = len(text.encode()) + 2 <= limit  # a token is a byte at least
                need = 0 if short else tokens.count(text) + 2
                if need > limit:
                    raise FedLensError(
                        f"class '{name}': the description '{text[:40]}...' needs {need} tokens, "
                        f"{context.facts.name} reads {limit}; shorten it",
                        "descriptions",
                    )

    @classmethod
    def freeze_config(cls, config: Any, context: RunContext) -> Any:
        """The config with its descriptions: those that may change are written out, idle ones are left out.

        Texts that come with FedLens are not written out: they stay as they are, and so do groups of older
        runs.
        """
        if config.style == "st":
            return config.model_copy(update={"descriptions": None})
        if config.descriptions is None and context.embedded:
            return config
        written = of_classes(config, context.classes, context.descriptions)
        return config.model_copy(update={"descriptions": written})

    @classmethod
    def plan_warnings(cls, config: Any, context: RunContext) -> list[str]:
        """Classes that take the prompt because nobody has described them; descriptions that nobody reads."""
        if config.style == "st":
            idle = config.descriptions is not None
            return [f"{cls.about.title}: descriptions are not used by style st, the prompt"] if idle else []
        written = of_classes(config, context.classes, context.descriptions)
        missing = [name for name, texts in written.items() if not texts]
        if not missing:
            return []
        return [
            f"{cls.about.title}, style gt: {len(missing)} of {len(written)} classes have no written "
            f"description ({_listed(missing)}) and take the prompt: describe them here (field descriptions) "
            "or in the data set's descriptions.json, or let all classes take the prompt (style st)"
        ]

    @classmethod
    def result_caveat(cls, config: Any, embedded: bool) -> str:
        """What a finished run of style gt lacks to be one; empty where every class was described.

        Args:
            embedded: whether its data come with FedLens, which describes all of their classes.
        """
        if config.style == "st" or (config.descriptions is None and embedded):
            return ""
        if config.descriptions is None:
            return (
                "recorded before written descriptions were kept with a run: which classes had one, and which "
                "took the prompt, is not known"
            )
        missing = sum(not texts for texts in config.descriptions.values())
        total = len(config.descriptions)
        return (
            f"{missing} of {total} classes had no written description and took the prompt" if missing else ""
        )

    def drawn_texts(self) -> dict[str, str]:
        """Of style gt."""
        return dict(zip(self.problem.classes, self.texts, strict=True)) if self.config.style == "gt" else {}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _drawn(name: str, written: Sequence[str], problem: Problem) -> str:
    """One of a class' descriptions, drawn by seed, or the prompt.

    Raises:
        FedLensError: for a description that the text tower would cut off, drawn or not: what a seed may draw
            must not decide whether a run fails.
    """
    for text in written:
        too_long = problem.backbone.too_long(text)
        if too_long:
            raise FedLensError(
                f"class '{name}': the description {too_long}; shorten it", "method.config.descriptions"
            )
    if not written:
        return problem.template.format(spoken(name))
    index = torch.randint(len(written), (), generator=problem.generator("description", name))
    return written[int(index)]
