"""Captions for the drawn images, and which caption is true of which image; their words are in words.toml.

A caption may leave anything open except the orientation: without a word about it, it describes an upright
image. So the text space gets directions ("turned by sixty degrees", "at any angle") along which a learned
context can move the class features to the federation's rotated domains, while a plain class prompt stays
tied to upright images.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.data.drawn import drawing
from fedcore.data.drawn.drawing import BACKGROUNDS, COLOURS
from tools.pretraining.drawings import CLASSES, STYLES, Corpus

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_PLACES, _SIZES = list(drawing.PLACES), list(drawing.SIZES)
UPRIGHT, _TURNED = 12, 25  # degrees up to which an image is upright, and from which it is not
_DEGREES = {15: "fifteen", 30: "thirty", 45: "forty-five", 60: "sixty", 75: "seventy-five", 90: "ninety"}
_ANGLES = np.arange(-90, 91)


def _between(low: float, high: float) -> np.ndarray:
    """Return the truth of low <= angle <= high with edges 6 degrees soft.

    Shape: (181,), -90 to 90 degrees.
    """
    return np.clip(1 - np.maximum(low - _ANGLES, _ANGLES - high) / 6, 0, 1)


def _turns() -> list[tuple[str, np.ndarray]]:
    """Return phrases about orientation with their truth at each angle; the first one is empty."""
    turned = np.clip((np.abs(_ANGLES) - UPRIGHT) / (_TURNED - UPRIGHT), 0, 1)
    truths = {
        "upright": 1 - turned,
        "every": np.ones(181),
        "turned": turned,
        "left": turned * (_ANGLES > 0),
        "right": turned * (_ANGLES < 0),
        "on_side": _between(66, 90) + _between(-90, -66),
        "slight": _between(9, 28) + _between(-28, -9),
        "halfway": _between(28, 62) + _between(-62, -28),
    }
    phrases = WORDS["turn"]
    out = [("", truths["upright"])]
    out += [(phrase, truth) for group, truth in truths.items() for phrase in phrases[group]]
    for d, word in _DEGREES.items():
        sides = {"left": _between(d - 9, d + 9), "right": _between(-d - 9, -d + 9)}
        both = np.maximum(*sides.values())
        out += [(p.format(word), both) for p in phrases["by_angle"]]
        out += [(p.format(word, s), near) for s, near in sides.items() for p in phrases["by_angle_and_side"]]
    return [(p, np.clip(t, 0, 1).astype(np.float32)) for p, t in out]


TURNS = _turns()
TURN_TRUTH = np.stack([t for _, t in TURNS])  # (phrases, 181)
SILENT = 0
EVEN = np.array([i for i, (p, _) in enumerate(TURNS) if p in WORDS["turn"]["every"]])
PLAIN_TURNS = frozenset(range(6))  # the empty phrase, and the words for upright
_PHRASES_AT = [np.flatnonzero(TURN_TRUTH[:, a] > 0.9) for a in range(181)]


@dataclass
class Captions:
    """Captions of a batch. ``wants`` holds, per caption, the fact it names, or -1.

    Shape: wants (captions, 6), for label, style, colour, background, size, place; turn (captions,),
    indices into TURNS.
    """

    texts: list[str]
    wants: np.ndarray
    turn: np.ndarray

    def truth(self, facts: np.ndarray) -> np.ndarray:
        """Return the truth of each caption for each image, 0 to 1.

        Shape: facts (images, 7) -> (images, captions).
        """
        agrees = (self.wants[None] < 0) | (self.wants[None] == facts[:, None, :6])
        return agrees.all(2) * TURN_TRUTH[self.turn][:, facts[:, 6] + 90].T


def _choose_turn(angle: int, rng: np.random.Generator) -> int:
    """Return a phrase about orientation that is true of an image at this angle."""
    if abs(angle) <= UPRIGHT and rng.random() < 0.7:
        return SILENT
    if rng.random() < 0.25:
        return int(rng.choice(EVEN))
    true = _PHRASES_AT[angle + 90]
    true = true[(true != SILENT) & ~np.isin(true, EVEN)]
    return int(rng.choice(true)) if len(true) else int(rng.choice(EVEN))


def _caption(fact: np.ndarray, rng: np.random.Generator) -> tuple[str, list[int], int]:
    label, style, colour, background, size, place, angle = (int(v) for v in fact)
    wants = [label, -1, -1, -1, -1, -1]
    is_shape = label < len(drawing.SHAPES)
    turn = _choose_turn(angle, rng)
    template = str(rng.choice(WORDS["templates"]))
    words = {"turn": TURNS[turn][0], "place": "", "ground": "", "aside": str(rng.choice(WORDS["asides"]))}
    names_style = rng.random() < 0.35 and "{kind}" in template
    words["kind"] = str(rng.choice(WORDS["kind"][STYLES[style] if names_style else "any"]))
    wants[1] = style if names_style else -1
    thing = CLASSES[label] if is_shape else str(rng.choice(WORDS["noun_digit"])).format(CLASSES[label])
    adjectives = []
    if rng.random() < 0.2:
        adjectives.append(str(rng.choice(WORDS["size"][_SIZES[size]])))
        wants[4] = size
    if rng.random() < 0.3 and STYLES[style] not in ("silhouette", "scan"):
        adjectives.append(list(COLOURS)[colour])
        wants[2] = colour
    if adjectives:
        thing = f"a {' '.join(adjectives)} {thing.removeprefix('the ').removeprefix('a ')}"
    elif is_shape:
        thing = f"{rng.choice(['a', 'the', 'one'])} {thing}"
    if rng.random() < 0.2 and "{place}" in template:
        words["place"], wants[5] = _PLACES[place], place
    if rng.random() < 0.25 and "{ground}" in template and STYLES[style] != "neon":
        words["ground"], wants[3] = f"on a {list(BACKGROUNDS)[background]} background", background
    return _tidy(template.format(np=thing, **words)), wants, turn


def _tidy(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\s*([,.:])(\s*[,.:])*", r"\1", text)
    return text.strip(" ,:")


def caption_batch(corpus: Corpus, rows: np.ndarray, rng: np.random.Generator) -> Captions:
    """Return one caption per image."""
    texts, wants, turns = zip(*(_caption(corpus.facts[r], rng) for r in rows), strict=True)
    return Captions(list(texts), np.array(wants), np.array(turns))


def class_prompts(turn: int, rng: np.random.Generator) -> list[str]:
    """Return one prompt per class, all of the same form, most often a template of the federation."""
    first = rng.random() < 0.5
    shape, digit = (str(w[0] if first else rng.choice(w)) for w in (WORDS["plain"], WORDS["plain_digit"]))
    texts = [(shape if i < len(drawing.SHAPES) else digit).format(name) for i, name in enumerate(CLASSES)]
    if turn == SILENT:
        return texts
    form = str(rng.choice(WORDS["with_turn"]))
    texts = [t if form.startswith("{turn}") else t.rstrip(".") for t in texts]
    return [_tidy(form.format(turn=TURNS[turn][0], text=t)) for t in texts]


def vocabulary_texts() -> list[str]:
    """Return every piece of text that a caption can contain: the words whose token rows are stored."""
    pieces = [*CLASSES, *STYLES, *COLOURS, *BACKGROUNDS, *_PLACES, *(p for p, _ in TURNS)]
    for key in ("templates", "asides", "plain", "plain_digit", "noun_digit"):
        pieces += WORDS[key]
    pieces += [w for words in (*WORDS["kind"].values(), *WORDS["size"].values()) for w in words]
    pieces += ["on a background", "a the one x . , :"]
    return [re.sub(r"[{}]", " ", p) for p in pieces]
