"""Captions for the drawn images, and which caption is true of which image.

A caption may leave anything open except the orientation: without a word about it, it describes an upright
image. So the text space gets directions ("turned by sixty degrees", "at any angle") along which a learned
context can move the class features to the federation's rotated domains, while a plain class prompt stays
tied to upright images.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fedcore.data.drawn import drawing
from fedcore.data.drawn.drawing_styles import BACKGROUNDS, COLOURS
from scripts.pretraining.drawings import CLASSES, STYLES, Corpus

_PLACES, _SIZES = list(drawing.PLACES), list(drawing.SIZES)
_UPRIGHT, _TURNED = 12, 25  # degrees up to which an image is upright, and from which it is not
_DEGREES = {15: "fifteen", 30: "thirty", 45: "forty-five", 60: "sixty", 75: "seventy-five", 90: "ninety"}
_ANGLES = np.arange(-90, 91)

_KIND = {
    "any": [
        "a picture of",
        "an image of",
        "a drawing of",
        "a depiction of",
        "a view of",
        "here is",
        "this is",
        "there is",
        "we see",
        "it shows",
        "an illustration of",
        "one more image of",
        "an example of",
        "a rendering of",
        "look at",
    ],
    "photo": ["a photo of", "a photograph of", "a snapshot of", "a shaded picture of"],
    "cartoon": ["a cartoon of", "a comic of", "an outlined drawing of"],
    "clipart": ["a clipart of", "a flat icon of", "a plain graphic of", "a simple symbol of"],
    "silhouette": ["a silhouette of", "a shadow of", "a dark outline of"],
    "painting": ["a painting of", "a canvas with", "a brushed picture of", "a textured painting of"],
    "neon": ["a neon sign of", "a glowing outline of", "a line of light in the form of"],
    "pixel": ["a pixel image of", "a coarse picture of", "a low resolution sprite of", "a blocky image of"],
    "scan": [
        "a scan of",
        "a blurry scan of",
        "a handwritten sign of",
        "a low resolution scan of",
        "a written",
    ],
}
_SIZE_WORDS = {
    "small": ["small", "little", "tiny"],
    "medium": ["medium", "middling"],
    "large": ["large", "big", "huge"],
}
_ASIDES = [
    "",
    "",
    "",
    "",
    "seen today",
    "from my own collection",
    "made by a student",
    "hung on the wall of the museum",
    "please look at it closely",
    "found in an old book",
    "which everybody knows",
    "as in the catalog",
    "drawn for a lesson",
    "kept for later",
    "on the first page",
    "sent by a friend",
    "from a long series of such pictures",
    "for the children",
    "shown again",
    "printed on paper",
    "that I like very much",
    "without any other thing",
    "in the usual manner",
    "taken from the data set",
    "from some domain",
    "of a new kind",
    "used for training",
    "as the client has it",
]
_TEMPLATES = [
    "{kind} {np} {turn} {place} {ground} {aside}.",
    "{turn} {kind} {np} {ground} {place}.",
    "{kind} {np} {place}, {turn}, {aside}.",
    "{aside} {ground} {place} {kind} {np}, {turn}.",
    "{turn}, {place}, {ground}: {kind} {np}.",
    "{aside}, {turn}, {kind} {np}.",
    "{kind} {np}. {turn}. {ground}.",
    "{turn} {np}.",
    "{turn} {np} {ground} {aside}.",
    "{np} {turn}.",
    "{kind} something {turn} {ground} {place}: {np}.",
    "in this picture, {aside}, {turn}, one can see {np} {place}.",
    "{kind} one thing {aside} {place} {ground} {turn}, namely {np}.",
    "what is {turn} {place} here {aside} is {np}.",
    "{kind} the class {np}, {turn}.",
    "{aside}: {turn} {np}, {ground}.",
]


def _between(low: float, high: float) -> np.ndarray:
    """Return the truth of low <= angle <= high with edges 6 degrees soft.

    Shape: (181,), -90 to 90 degrees.
    """
    return np.clip(1 - np.maximum(low - _ANGLES, _ANGLES - high) / 6, 0, 1)


def _turns() -> list[tuple[str, np.ndarray]]:
    """Return phrases about orientation with their truth at each angle; the first one is empty."""
    a = np.abs(_ANGLES)
    upright = np.clip((_TURNED - a) / (_TURNED - _UPRIGHT), 0, 1)
    turned = np.clip((a - _UPRIGHT) / (_TURNED - _UPRIGHT), 0, 1)
    left, right = turned * (_ANGLES > 0), turned * (_ANGLES < 0)
    out = [("", upright)]
    out += [(p, upright) for p in ("upright", "standing straight", "not turned", "level", "the right way up")]
    out += [(p, np.ones(181)) for p in _ANY]
    out += [(p, turned) for p in ("tilted", "rotated", "turned", "at an odd angle", "leaning", "askew")]
    out += [
        (p, left)
        for p in ("tilted to the left", "rotated to the left", "leaning left", "turned anticlockwise")
    ]
    out += [
        (p, right)
        for p in ("tilted to the right", "rotated to the right", "leaning right", "turned clockwise")
    ]
    out += [
        (p, _between(66, 90) + _between(-90, -66))
        for p in ("lying on its side", "fallen over", "turned on its side")
    ]
    out += [
        (p, _between(9, 28) + _between(-28, -9))
        for p in ("slightly tilted", "turned a little", "leaning a little")
    ]
    out += [(p, _between(28, 62) + _between(-62, -28)) for p in ("turned halfway", "strongly tilted")]
    for d, word in _DEGREES.items():
        near_left, near_right = _between(d - 9, d + 9), _between(-d - 9, -d + 9)
        both = np.maximum(near_left, near_right)
        out += [
            (p.format(word), both)
            for p in ("turned by {} degrees", "rotated by about {} degrees", "at {} degrees")
        ]
        for side, near in (("left", near_left), ("right", near_right)):
            out += [
                (p.format(word, side), near) for p in ("turned {} degrees to the {}", "tilted {} degrees {}")
            ]
    return [(p, np.clip(t, 0, 1).astype(np.float32)) for p, t in out]


_ANY = [
    "at any angle",
    "in any orientation",
    "turned in any way",
    "rotated or not",
    "however it is turned",
    "from any side",
]
TURNS = _turns()
TURN_TRUTH = np.stack([t for _, t in TURNS])  # (phrases, 181)
SILENT = 0
EVEN = np.array([i for i, (p, _) in enumerate(TURNS) if p in _ANY])  # phrases true of every image
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


def noun(label: int, rng: np.random.Generator) -> str:
    """Return the class as a noun: digits have several."""
    name = CLASSES[label]
    if label < len(drawing.SHAPES):
        return name
    return str(
        rng.choice(
            ["the number: {}", "the number {}", "number {}", "the digit {}", "{}", "a {}", "the figure {}"]
        )
    ).format(name)


def _choose_turn(angle: int, rng: np.random.Generator) -> int:
    """Return a phrase about orientation that is true of an image at this angle."""
    if abs(angle) <= _UPRIGHT and rng.random() < 0.7:
        return SILENT
    if rng.random() < 0.25:
        return int(rng.choice(EVEN))
    true = _PHRASES_AT[angle + 90]
    true = true[(true != SILENT) & ~np.isin(true, EVEN)]
    return int(rng.choice(true)) if len(true) else int(rng.choice(EVEN))


def _caption(fact: np.ndarray, rng: np.random.Generator) -> tuple[str, list[int], int]:
    label, style, colour, background, size, place, angle = (int(v) for v in fact)
    wants = [label, -1, -1, -1, -1, -1]
    turn = _choose_turn(angle, rng)
    template = str(rng.choice(_TEMPLATES))
    words = {
        "kind": "",
        "np": "",
        "turn": TURNS[turn][0],
        "place": "",
        "ground": "",
        "aside": str(rng.choice(_ASIDES)),
    }
    if rng.random() < 0.35 and "{kind}" in template:
        words["kind"], wants[1] = str(rng.choice(_KIND[STYLES[style]])), style
    else:
        words["kind"] = str(rng.choice(_KIND["any"]))
    thing = noun(label, rng)
    adjectives = []
    if rng.random() < 0.2:
        adjectives.append(str(rng.choice(_SIZE_WORDS[_SIZES[size]])))
        wants[4] = size
    if rng.random() < 0.3 and STYLES[style] not in ("silhouette", "scan"):
        adjectives.append(list(COLOURS)[colour])
        wants[2] = colour
    if adjectives:
        thing = f"a {' '.join(adjectives)} {thing.removeprefix('the ').removeprefix('a ')}"
    elif label < len(drawing.SHAPES):
        thing = f"{rng.choice(['a', 'the', 'one'])} {thing}"
    words["np"] = thing
    if rng.random() < 0.2 and "{place}" in template:
        words["place"], wants[5] = _PLACES[place], place
    if rng.random() < 0.25 and "{ground}" in template and STYLES[style] != "neon":
        words["ground"], wants[3] = f"on a {list(BACKGROUNDS)[background]} background", background
    return _tidy(template.format(**words)), wants, turn


def _tidy(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\s*([,.:])(\s*[,.:])*", r"\1", text)
    return text.strip(" ,:")


def caption_batch(corpus: Corpus, rows: np.ndarray, rng: np.random.Generator) -> Captions:
    """Return one caption per image."""
    made = [_caption(corpus.facts[r], rng) for r in rows]
    return Captions([m[0] for m in made], np.array([m[1] for m in made]), np.array([m[2] for m in made]))


_PLAIN = [
    "a picture of a {}.",
    "a picture of {}.",
    "an image of a {}.",
    "a {}.",
    "{}.",
    "a drawing of a {}.",
    "this is a {}.",
]
_PLAIN_DIGIT = [
    "a picture of the number: {}.",
    "the number {}.",
    "a picture of the digit {}.",
    "{}.",
    "an image of the number {}.",
]
_WITH_TURN = ["{turn}, {text}", "{text} {turn}.", "{turn} {text}", "{turn}: {text}"]


def class_prompts(turn: int, rng: np.random.Generator) -> list[str]:
    """Return one prompt per class, all of the same form, most often a template of the federation."""
    first = rng.random() < 0.5
    shape = _PLAIN[0] if first else str(rng.choice(_PLAIN))
    digit = _PLAIN_DIGIT[0] if first else str(rng.choice(_PLAIN_DIGIT))
    texts = [(shape if i < len(drawing.SHAPES) else digit).format(name) for i, name in enumerate(CLASSES)]
    if turn != SILENT:
        form = str(rng.choice(_WITH_TURN))
        texts = [
            _tidy(form.format(turn=TURNS[turn][0], text=t if form.startswith("{turn}") else t.rstrip(".")))
            for t in texts
        ]
    return texts


def vocabulary_texts() -> list[str]:
    """Return every piece of text that a caption can contain: the words whose token rows are stored."""
    pieces = [
        *CLASSES,
        *COLOURS,
        *BACKGROUNDS,
        *_PLACES,
        *_ASIDES,
        *_TEMPLATES,
        *_PLAIN,
        *_PLAIN_DIGIT,
        "on a background",
    ]
    pieces += [w for words in (*_KIND.values(), *_SIZE_WORDS.values()) for w in words] + [p for p, _ in TURNS]
    pieces += ["the number: number the digit {} a {} the figure one", "x . , :", *STYLES]
    return [re.sub(r"[{}]", " ", p) for p in pieces]
