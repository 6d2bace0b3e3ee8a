"""Token counts as CLIP's tokenizer makes them, without torch, to refuse long class names early."""

from __future__ import annotations

import gzip
import html
import importlib.util
import itertools
import math
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from fedcore.clip.specs import BackboneSpec
from fedcore.errors import FedLensError

_MERGES = slice(1, 49_152 - 256 - 2 + 1)
"""Lines of the vocabulary file that CLIP uses."""
_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def check_room(
    spec: BackboneSpec, classes: Sequence[str], longest: int, field: str, pattern: str = "{}."
) -> None:
    """Refuse a context of ``longest`` tokens that pushes a class name's [EOT] beyond the text tower.

    ``prompts.check_room`` checks the same once a backbone is loaded, for other tokenizers than CLIP's too.
    """
    room = spec.context_length - longest - 2  # [SOS] and [EOT]
    worst, need = _longest(tuple(classes), pattern, room)
    if need > room and spec.prompts is None:
        raise no_room(longest, worst, need + 2, spec.context_length, field)


def no_room(longest: int, name: str, used: int, limit: int, field: str) -> FedLensError:
    """Return the error for a context before a class name of ``used`` tokens, with [SOS] and [EOT]."""
    return FedLensError(
        f"a context of {longest} leaves no room for class '{name}' ({longest} + {used} tokens > {limit}); "
        f"use at most {max(0, limit - used)} or a shorter name",
        field,
    )


def template_note(spec: BackboneSpec, classes: Sequence[str], template: str) -> list[str]:
    """Return a warning if the data set's prompt is too long; not an error, since some methods ignore it."""
    worst, need = _longest(tuple(classes), template, spec.context_length - 2)
    if need + 2 <= spec.context_length or spec.prompts is not None:
        return []
    return [
        f"class '{worst}' in the prompt '{template}' needs {need + 2} tokens, {spec.name} reads "
        f"{spec.context_length}: methods that use this prompt will refuse it; shorten one of the two"
    ]


def count(text: str) -> int:
    """Count the tokens of a text without [SOS] and [EOT], as open_clip's ``SimpleTokenizer`` does."""
    import ftfy
    import regex

    clean = " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split()).lower()
    return sum(_pieces(word.encode()) for word in regex.findall(_PATTERN, clean, regex.IGNORECASE))


@lru_cache(maxsize=64)  # called again for every run of a plan
def _longest(classes: tuple[str, ...], pattern: str, room: int) -> tuple[str, int]:
    """Return the class with the most tokens and their number; 0 if all names are obviously short enough.

    A token has at least one byte, so that most lists of classes can be judged without the vocabulary.
    """
    texts = {name: pattern.format(name.replace("_", " ")) for name in classes}
    doubtful = [name for name, text in texts.items() if len(text.encode()) > room]
    return max(((name, count(texts[name])) for name in doubtful), key=lambda pair: pair[1], default=("", 0))


def _pieces(word: bytes) -> int:
    """Count the pieces of a word in byte pair encoding, which joins the pair of the lowest rank first."""
    ranks, symbols = _ranks(), _symbols()
    parts = [symbols[byte] for byte in word]
    parts[-1] += "</w>"
    while len(parts) > 1:
        pairs = [ranks.get(pair, math.inf) for pair in itertools.pairwise(parts)]
        first = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[first] == math.inf:
            break
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return len(parts)


@cache
def _ranks() -> dict[tuple[str, ...], int]:
    """Return the rank of each pair, which decides the order of joining, from open_clip's vocabulary file."""
    spec = importlib.util.find_spec("open_clip")
    assert spec is not None and spec.origin is not None, "open_clip is a requirement of FedLens"
    path = Path(spec.origin).with_name("bpe_simple_vocab_16e6.txt.gz")
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[_MERGES]
    return {tuple(line.split()): rank for rank, line in enumerate(lines)}


@cache
def _symbols() -> tuple[str, ...]:
    """Return each byte's character in the vocabulary; printable bytes stand for themselves."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in shown else next(others)) for byte in range(256))
