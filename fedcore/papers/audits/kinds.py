"""A finding about a printed value, and the kinds of findings."""

from dataclasses import dataclass
from typing import Literal

from fedcore.papers.published import PublishedValue

FindingKind = Literal[
    "does not follow",
    "other rule",
    "printed twice",
    "perhaps swapped",
    "impossible share",
    "impossible ±",
    "identical",
    "perhaps chance",
    "shifted",
    "far apart",
]
KINDS: dict[FindingKind, str] = {
    "does not follow": "an average or harmonic mean that its printed parts do not give",
    "other rule": "an average that follows from its parts by another rule than the usual one",
    "printed twice": "the source prints another value for the same quantity and setting elsewhere",
    "perhaps swapped": "two columns are in the other order than everywhere else in the source",
    "impossible share": "no number of right answers on a test set of that size gives the value",
    "impossible ±": "a spread that the number of runs cannot have",
    "identical": "equal to the last digit to other sources in more cells than chance gives",
    "perhaps chance": "equal to another source to the last digit, as chance alone gives somewhere",
    "shifted": "differs by a constant from a source that is identical in all other rows",
    "far apart": "another source prints a much different value for the same stated setting",
}
"""Kind of finding, as cells name it -> its meaning."""


@dataclass(frozen=True)
class Finding:
    """The statement of an audit about a value, in a sentence that names the numbers."""

    value: PublishedValue
    kind: FindingKind
    text: str
