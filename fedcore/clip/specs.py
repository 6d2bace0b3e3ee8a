"""The facts about a backbone before open_clip or torch are imported: sizes, files of weights, token counts.

Token counts are those of CLIP's tokenizer; they refuse class names that are too long early.
"""

import ast
import gzip
import html
import importlib.util
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, Self

from fedcore.base import consent
from fedcore.base.consent import CALLABLE
from fedcore.base.errors import FedLensError, did_you_mean
from fedcore.base.files import ASSETS, user_path
from fedcore.clip import tags
from fedcore.data import images
from fedcore.data.images import GIVEN
from fedcore.data.integrity import file_digest, stat_identity

MINI_MODELS = images.MINI_MODELS


@dataclass(frozen=True)
class BackboneSpec:
    """Sizes of an encoder; the defaults are those of one of which only embeddings are known.

    Attributes:
        embed_dim: d, width of the joint embedding.
        token_width: m, width of the text tower.
        context_length: longest token sequence, [SOS] and [EOT] included.
        vision: family of the image tower; only "vit" (CLIP's own, pooled at its class token) has attention
            layers to adapt, "other" only gives embeddings.
        vision_layers: attention layers of a "vit", 0 for the others.
        text_layers: layers of the text tower.
        vision_width: token width of the image tower.
        image_size: side of the input image, pixels.
        text: family of the text tower; "clip" is causal, pooled at [EOT] and has CLIP's tokenizer,
            "open_clip" is this transformer in another layout; the others take no learned prompts.
        clip_tokens: whether the tokenizer is CLIP's, whose tokens can be counted before a model is loaded.
        patches: patch tokens of an image, or positions of a "resnet"'s last feature map; 0 for "other".
        class_texts: where class vectors come from: any text can be "encoded", one of each class is "given",
            or there are "none".
    """

    name: str
    embed_dim: int
    token_width: int = 0
    context_length: int = 0
    vision: Literal["vit", "resnet", "other"] = "other"
    vision_layers: int = 0
    text_layers: int = 0
    vision_width: int = 0
    image_size: int = 0
    text: Literal["clip", "open_clip", "hugging_face", "unknown"] = "unknown"
    clip_tokens: bool = False
    patches: int = 0
    class_texts: Literal["encoded", "given", "none"] = "none"

    @property
    def is_black_box(self) -> bool:
        """Whether only embeddings are known, so that no method can learn inside of an encoder."""
        return self.text == "unknown"


def weights_source(name: str, pretrained: str | None) -> tuple[Path, ...] | str:
    """Return the files of a backbone's weights on this machine, or else its tag; raises ``NotAgreed``."""
    if backbone_spec(name, pretrained).name == GIVEN:  # unknown names are refused
        return ()
    if name == CALLABLE and pretrained is not None:
        return (consent.agreed(pretrained, field="backbone.pretrained")[0],)
    if name in tags.timm_models():
        text, pretrained = {}, pretrained or tags.tags(name)[0]
    else:
        text = json.loads(config_files()[name].read_text())["text_cfg"]
    needed = [key for key in ("hf_model_name", "hf_tokenizer_name") if key in text]
    if needed and importlib.util.find_spec("transformers") is None:
        part = "text tower" if "hf_model_name" in needed else "tokenizer"
        raise FedLensError(
            f"{name} has a Hugging Face {part} ({text[needed[0]]}), which needs a library that is not "
            "installed: `pip install transformers sentencepiece`",
            "backbone.name",
        )
    if name in MINI_MODELS:
        files = ASSETS / "mini-text.safetensors", ASSETS / f"{name}.safetensors"
        for path in files:
            if not path.is_file():
                raise FedLensError(
                    f"{path} is missing; `make embedded` trains and writes it", "backbone.name"
                )
        return files
    if pretrained is None:
        raise FedLensError(
            f"{name} needs weights; give an open_clip tag such as 'openai', or a weights file",
            "backbone.pretrained",
        )
    path = user_path(pretrained, "backbone.pretrained")
    if path.is_file():
        return (path,)
    if path.suffix or "/" in pretrained:
        raise FedLensError(
            f"no weights file at {pretrained}; check the path, or give an open_clip tag such as 'openai'",
            "backbone.pretrained",
        )
    tags.check(name, pretrained)
    return pretrained


@dataclass(frozen=True)
class WeightsFiles:
    """The files of a backbone's weights, as they were when they were read.

    Attributes:
        digest: of the bytes of all of them.
    """

    paths: tuple[Path, ...] = ()
    seen: tuple[tuple[int, ...] | None, ...] = ()
    digest: str = ""

    @classmethod
    def of(cls, name: str, pretrained: str | None) -> Self:
        """Read the files of a backbone's weights; none for a tag that is not on this machine."""
        source = weights_source(name, pretrained)
        cached = tags.cached(name, source) if isinstance(source, str) else None
        paths = source if isinstance(source, tuple) else (cached,) if cached is not None else ()
        seen = tuple(map(stat_identity, paths))
        return cls(paths, seen, _digest(paths))

    def changed(self) -> bool:
        """Return whether any file holds other bytes now; they are read only if size or times differ."""
        if tuple(map(stat_identity, self.paths)) == self.seen:
            return False
        return not all(path.is_file() for path in self.paths) or _digest(self.paths) != self.digest


def _digest(paths: tuple[Path, ...]) -> str:
    return "+".join(map(file_digest, paths))


@cache
def config_files() -> dict[str, Path]:
    """Return the open_clip JSON file of each model: the embedded models first, then all of open_clip's."""
    files = {name: ASSETS / f"{name}.json" for name in MINI_MODELS}
    listed = sorted((tags.open_clip_folder() / "model_configs").glob("*.json"))
    return files | {path.stem: path for path in listed}


def known_names() -> list[str]:
    """Return the names of all backbones that encode images: the embedded ones, open_clip's, then others."""
    return [*config_files(), CALLABLE, *tags.timm_models()]


def backbone_spec(name: str, pretrained: str | None = None) -> BackboneSpec:
    """Return the sizes of a backbone (of one without towers, by file or tag); refuse an unknown name."""
    if name == GIVEN:
        return BackboneSpec(GIVEN, 0)  # the data set knows more
    if name == CALLABLE:
        return _own_spec(pretrained)
    if name in tags.timm_models():
        width, sides = tags.timm_models()[name]
        of_tag = sides.get(pretrained or "") or next(iter(sides.values()))
        return BackboneSpec(name, width, image_size=of_tag[0])
    return _clip_spec(name)


def _own_spec(pretrained: str | None) -> BackboneSpec:
    """Return what the file of an encoder says of itself; it is read here, and does not run."""
    field = "backbone.pretrained"
    if pretrained is None:
        raise FedLensError("give the Python file that defines encode(images)", field)
    file, content = consent.read(pretrained, field)
    with consent.faults_named(file, "cannot be read:", field):
        body = ast.parse(content, file).body
    functions = {part.name for part in body if isinstance(part, ast.FunctionDef)}
    numbers = {
        ast.unparse(part.target if isinstance(part, ast.AnnAssign) else part.targets[0]): part.value.value
        for part in body
        if isinstance(part, ast.Assign | ast.AnnAssign) and isinstance(part.value, ast.Constant)
    }
    width, side = numbers.get("embed_dim"), numbers.get("image_size", 224)
    if "encode" not in functions or not (isinstance(width, int) and isinstance(side, int)):
        raise FedLensError(
            f"{file} is not an encoder: write def encode(images), and outside of it two whole numbers, "
            "embed_dim = the width of what it returns and image_size = the side of its images (default 224)",
            field,
        )
    encoded = "encode_text" in functions
    return BackboneSpec(CALLABLE, width, image_size=side, class_texts="encoded" if encoded else "none")


@cache
def _clip_spec(name: str) -> BackboneSpec:
    files = config_files()
    if name not in files:
        hint = did_you_mean(name, known_names(), "e.g. ViT-B-32, RN50, mini-vit", number=3)
        raise FedLensError(f"unknown backbone '{name}'; {hint}", "backbone.name")
    config = json.loads(files[name].read_text())
    vision, text = config["vision_cfg"], config["text_cfg"]
    family, side = _family(vision), vision.get("image_size", 224)
    side = side if isinstance(side, int) else side[0]
    steps = {"vit": vision.get("patch_size", 16), "resnet": 32}
    return BackboneSpec(
        name=name,
        embed_dim=config["embed_dim"],
        token_width=text.get("width", 512),
        context_length=text.get("context_length", 77),
        vision=family,
        vision_layers=vision.get("layers", 12) if family == "vit" else 0,
        text_layers=text.get("layers", 12),
        vision_width=vision.get("width", 768) if family != "other" else 0,
        image_size=side,
        text=_text_family(text),
        clip_tokens="hf_tokenizer_name" not in text,
        patches=(side // steps[family]) ** 2 if family in steps else 0,
        class_texts="encoded",
    )


def _family(vision: dict[str, Any]) -> Literal["vit", "resnet", "other"]:
    # "vit" is only open_clip's own transformer, pooled at [CLS], which ``ImageTower`` can split into halves.
    if isinstance(vision.get("layers"), list):
        return "resnet"
    pooled_elsewhere = vision.get("attentional_pool") or vision.get("pool_type", "tok") != "tok"
    return "other" if "timm_model_name" in vision or pooled_elsewhere else "vit"


def _text_family(text: dict[str, Any]) -> Literal["clip", "open_clip", "hugging_face"]:
    if "hf_model_name" in text:
        return "hugging_face"
    other = text.get("no_causal_mask") or text.get("embed_cls") or "hf_tokenizer_name" in text
    return "open_clip" if other else "clip"


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
    if need > room and spec.clip_tokens:
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
    if need + 2 <= spec.context_length or not spec.clip_tokens:
        return []
    return [
        f"class '{worst}' in the prompt '{template}' needs {need + 2} tokens, {spec.name} reads "
        f"{spec.context_length}: methods that use this prompt will refuse it; shorten one of the two"
    ]


def count_tokens(text: str) -> int:
    """Count the tokens of a text without [SOS] and [EOT], as open_clip's ``SimpleTokenizer`` does."""
    import ftfy
    import regex

    clean = " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split()).lower()
    return sum(_pieces(word.encode()) for word in regex.findall(_PATTERN, clean, regex.IGNORECASE))


def spoken(name: str) -> str:
    """Return a class name as it enters a prompt."""
    return name.replace("_", " ")


@lru_cache(maxsize=64)  # called again for every run of a plan
def _longest(classes: tuple[str, ...], pattern: str, room: int) -> tuple[str, int]:
    """Return the class with the most tokens and their number; 0 if all names are obviously short enough.

    A token has at least one byte, so that most lists of classes can be judged without the vocabulary.
    """
    texts = {name: pattern.format(spoken(name)) for name in classes}
    doubtful = [name for name, text in texts.items() if len(text.encode()) > room]
    return max(
        ((name, count_tokens(texts[name])) for name in doubtful), key=lambda pair: pair[1], default=("", 0)
    )


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
    path = tags.open_clip_folder() / "bpe_simple_vocab_16e6.txt.gz"
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[_MERGES]
    return {tuple(line.split()): rank for rank, line in enumerate(lines)}


@cache
def _symbols() -> tuple[str, ...]:
    """Return each byte's character in the vocabulary; printable bytes stand for themselves."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in shown else next(others)) for byte in range(256))
