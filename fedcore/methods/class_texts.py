"""Written descriptions can replace the prompt of a class; they are stored with a run.

A method that uses one for each class derives from ``Described``, one that uses all of them from
``WithClassTexts``; its config derives from ``ClassTextConfig``.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.base.lazy import torch
from fedcore.clip.specs import count_tokens, spoken
from fedcore.methods.base import ConfigT, Method, RunContext
from fedcore.methods.federation import Problem
from fedcore.methods.hyperparameters import hyper

TextsByClass = Mapping[str, Sequence[str]]
EDITOR = "class texts"
"""Marks a field that the form shows as a table of classes and texts."""
_NAMED = 3


ClassText = Literal["description", "template"]


def _validated(value: object) -> object:
    """Return class -> tuple of texts with single spaces, or None.

    Raises:
        ValueError: naming the class or text that is wrong.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError('give every class a list of texts: {"dog" = ["a picture of a dog, ..."]}')
    texts_of: dict[str, tuple[str, ...]] = {}
    spellings: dict[str, str] = {}
    for name, texts in value.items():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"{name!r} is not a class name")
        other = spellings.setdefault(spoken(name), name)
        if other != name:
            raise ValueError(f"'{other}' and '{name}' are one class; name it once")
        if not isinstance(texts, (list, tuple)):
            raise ValueError(f"class '{name}': give a list of texts, not {type(texts).__name__}")
        for i, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise ValueError(f"class '{name}': its text {i} is of type {type(text).__name__}")
            if not text.strip():
                raise ValueError(f"class '{name}': its text {i} is empty; write it or leave it out")
        texts_of[name] = tuple(" ".join(text.split()) for text in texts)
    return texts_of


Descriptions = Annotated[dict[str, tuple[str, ...]] | None, BeforeValidator(_validated)]


class ClassTextConfig(BaseModel):
    """Fields of a method that can use written descriptions instead of the data set's prompt."""

    class_text: ClassText = hyper(
        "template",
        "Class texts: template, the data set's prompt, or description, a written one that is drawn by seed "
        "(the prompt if a class has none)",
        title="class texts",
        words={"description": "written descriptions", "template": "from the prompt"},
    )
    descriptions: Descriptions = Field(
        None,
        title="written descriptions",
        description="Written descriptions of each class for class_text = description; default: those of the "
        "data set, stored with the run when it is planned",
        json_schema_extra={
            "editor": EDITOR,
            "when": {"class_text": "description"},
            "empty": "the data set's own",
        },
    )


def fields(config: type[BaseModel]) -> list[str]:
    """Return the names of a config's fields that hold texts by class."""
    extras = {name: info.json_schema_extra for name, info in config.model_fields.items()}
    return [n for n, extra in extras.items() if isinstance(extra, dict) and extra.get("editor") == EDITOR]


def is_texts(value: object) -> bool:
    """Return whether a plain value holds texts by class."""
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(texts, (list, tuple)) for texts in value.values())


def summary(written: TextsByClass) -> str:
    """Summarise texts with a checksum: ``30 texts for 10 of 10 classes (checksum 3fa2c1)``."""
    texts, described = sum(map(len, written.values())), sum(map(bool, written.values()))
    content = json.dumps({name: list(t) for name, t in written.items()}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:6]
    return f"{texts} text{'s' * (texts != 1)} for {described} of {len(written)} classes (checksum {digest})"


def descriptions_by_class(
    config: ClassTextConfig, classes: Sequence[str], of_data_set: TextsByClass
) -> dict[str, tuple[str, ...]]:
    """Return the descriptions of each class, in the data set's order; () for a class that uses the prompt.

    Args:
        of_data_set: descriptions that come with the data; they are read only if the config has none.
    """
    if config.class_text == "template":
        return dict.fromkeys(classes, ())
    written = of_data_set if config.descriptions is None else config.descriptions
    tidy = {spoken(name): tuple(" ".join(t.split()) for t in texts) for name, texts in written.items()}
    return {name: tidy.get(spoken(name), ()) for name in classes}


def with_texts(config: ConfigT, context: RunContext) -> ConfigT:
    """Return a config with changeable descriptions written out and without unused ones.

    So stored, the run can be repeated from its config alone. Texts that come with FedLens never change and
    are not written out.
    """
    if not isinstance(config, ClassTextConfig):
        return config
    if config.class_text == "template":
        return config.model_copy(update={"descriptions": None})
    if config.descriptions is None and context.embedded:
        return config
    written = descriptions_by_class(config, context.classes, context.descriptions)
    return config.model_copy(update={"descriptions": written})


class WithClassTexts(Method[Any]):
    """Base of methods with a ``ClassTextConfig``.

    Attributes:
        written: the descriptions of every class, in their order; () for a class that uses the prompt.
    """

    def __init__(self, config: Any, problem: Problem) -> None:
        """Refuse a description that is too long for the text tower, whether or not it is used."""
        super().__init__(config, problem)
        self.written = descriptions_by_class(config, problem.classes, problem.descriptions)
        for name, texts in self.written.items():
            for too_long in filter(None, map(problem.backbone.too_long, texts)):
                raise FedLensError(
                    f"class '{name}': the description {too_long}; shorten it", "method.config.descriptions"
                )

    @classmethod
    def check(cls, config: Any, context: RunContext) -> None:
        """Refuse descriptions of unknown classes, and those too long for the text tower."""
        if config.class_text == "template":
            return
        if context.spec.class_texts != "encoded":
            raise FedLensError(
                f"{context.spec.name} encodes no texts; set class_text = template", "class_text"
            )
        classes = {spoken(name) for name in context.classes}
        for name in config.descriptions or ():
            if spoken(name) not in classes:
                hint = did_you_mean(spoken(name), context.classes, f"it has {_listed(context.classes)}")
                raise FedLensError(f"the data set has no class '{name}'; {hint}", "descriptions")
        if not context.spec.clip_tokens:
            return  # a loaded backbone counts its tokens
        limit = context.spec.context_length
        for name, texts in descriptions_by_class(config, context.classes, context.descriptions).items():
            for text in texts:
                short = len(text.encode()) + 2 <= limit  # a token is a byte at least
                need = 0 if short else count_tokens(text) + 2
                if need > limit:
                    raise FedLensError(
                        f"class '{name}': the description '{text[:40]}...' needs {need} tokens, "
                        f"{context.spec.name} reads {limit}; shorten it",
                        "descriptions",
                    )

    @classmethod
    def plan_warnings(cls, config: Any, context: RunContext) -> list[str]:
        """Name the classes that use the prompt for lack of a description, or descriptions that are unused."""
        if config.class_text == "template":
            if config.descriptions is None:
                return []
            return ["descriptions are not used with class_text = template"]
        written = descriptions_by_class(config, context.classes, context.descriptions)
        missing = [name for name, texts in written.items() if not texts]
        if not missing:
            return []
        return [
            f"with class_text = description, {len(missing)} of {len(written)} classes have no "
            f"written description ({_listed(missing)}) and use the prompt: describe them here (field "
            "descriptions) or in a descriptions.json in the data set's folder, or let all classes use the "
            "prompt (class_text = template)"
        ]

    @classmethod
    def result_caveat(cls, config: Any, embedded: bool) -> str:
        """Say which classes of a finished run used the prompt for lack of a description.

        Args:
            embedded: whether its data come with FedLens, which describes all of their classes.
        """
        if config.class_text == "template" or (config.descriptions is None and embedded):
            return ""
        if config.descriptions is None:
            return (
                "recorded before written descriptions were kept with a run: which classes had one, and which "
                "used the prompt, is not known"
            )
        missing = sum(not texts for texts in config.descriptions.values())
        if not missing:
            return ""
        total = len(config.descriptions)
        return f"{missing} of {total} classes had no written description and used the prompt"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


class Described(WithClassTexts):
    """Base of methods with one text for each class.

    Attributes:
        texts: the text of every class, in their order: a description drawn by seed, or the prompt.
    """

    def __init__(self, config: Any, problem: Problem) -> None:
        super().__init__(config, problem)
        self.texts = [_draw_text(name, written, problem) for name, written in self.written.items()]


def _draw_text(name: str, written: Sequence[str], problem: Problem) -> str:
    """Draw one of a class's descriptions by seed; the prompt if it has none."""
    if not written:
        return problem.template.format(spoken(name))
    index = torch.randint(len(written), (), generator=problem.generator("description", name))
    return written[int(index)]
