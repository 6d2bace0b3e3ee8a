"""The method and config of FedLens that correspond to a printed method, and the variants that have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

from fedcore.config import Experiment, RunConfig, expand, sweeps
from fedcore.methods import class_texts, registry
from fedcore.papers import library
from fedcore.papers.published import (
    BEST_BLOCKS,
    COCOOP_FORMS,
    COHORTS,
    PROMPT_LENGTHS,
    VISION_NETWORKS,
    VPT_FORMS,
    PublishedValue,
)
from fedcore.results.settings import unused_fields


@dataclass(frozen=True)
class Equivalent:
    """The method of FedLens that corresponds to a printed one, and the config fields to set."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NoEquivalent:
    """The reason why no run of FedLens can measure a published value.

    Attributes:
        kind: ``method`` if the method, or a variant or setting of it, is not implemented; ``no run`` if the
            value is not the result of one run.
    """

    kind: Literal["method", "no run"]
    reason: str


PRINTED_ONLY = {
    "UOPP": "printed only: neither paper nor code of UOPP is public",
    "Powder": "printed only: Powder learns a sequence of tasks, without CLIP, and SDFed does not say how it "
    "is adapted",
    "GPT-FL": "printed only: GPT-FL trains on images of a text-to-image generator, which FedLens lacks",
}
"""Methods that FedLens does not implement, although it stores their printed values -> the reason."""


def equivalent(value: PublishedValue) -> Equivalent | NoEquivalent:
    """Return the method and config that measure a published value, or the reason why none do."""
    reason = _reason_for_no_run(value)
    if reason:
        return NoEquivalent("no run", reason)
    if value.method in PRINTED_ONLY:
        return NoEquivalent("method", PRINTED_ONLY[value.method])
    paper = library.find(value.paper)
    if paper.work not in _BY_PAPER:
        return NoEquivalent("method", paper.why_not(value.table))
    ours = _BY_PAPER[paper.work](value)
    if ours is None or ours.name not in _method_names():
        return NoEquivalent("method", f"{value.method} is not implemented")
    return ours


@cache
def _method_names() -> frozenset[str]:
    return frozenset(registry.load_all())


def _reason_for_no_run(value: PublishedValue) -> str | None:
    if value.dataset.startswith("avg") or value.metric == "Performance (%)":
        return "a mean over several data sets"
    if "parameters" in value.metric:
        return "a count, not a run"
    if value.metric.startswith("Infer. Time"):
        return "a time on the authors' machine"
    return None


def _fedot(value: PublishedValue) -> Equivalent | None:
    plain = {"local_transform": "cayley", "share": "split", "init": "text", "blocks": 1}
    name = value.method.replace("FEDOT", "FedOT")
    if name in ("Zero-Shot CLIP", "Zero Shot", "CLIP (ZS)"):
        return Equivalent("zero-shot")
    if name in ("PromptFL", "CoOp (M=4)"):  # Table 1 prints the row of M = 4 as PromptFL
        return Equivalent("promptfl", {"context_length": 4})
    if name == "CoOp (M=16)":
        return Equivalent("promptfl", {"context_length": 16})
    if name == "FedCLIP":
        return Equivalent("fedclip")
    if name in ("FedGH(C)", "FedGH (CLIP)", "FedAKT(C)", "FedAKT (CLIP)"):
        return Equivalent("fedgh" if name.startswith("FedGH") else "fedakt")
    if name in VPT_FORMS:
        return Equivalent("vpt", dict(VPT_FORMS[name]))
    if name in COCOOP_FORMS:
        return Equivalent("cocoop", {"share": COCOOP_FORMS[name], "context_length": 4, "init": "words"})
    changes: dict[str, dict[str, Any]] = {
        "FedOT": {"init": "random"} if value.setting == "RandInit" else {},
        "FedOT+random init": {"init": "random"},
        "FedOT(+B)": {"blocks": BEST_BLOCKS.get(value.dataset, 1)},
        "FedOT+blockwise": {"blocks": BEST_BLOCKS.get(value.dataset, 1)},
        "FedOT(-o)": {"local_transform": "linear"},
        "FedLT": {"local_transform": "linear"},
        "FedAdapter": {"local_transform": "adapter"},
        "FedAVG": {"share": "all_global"},
        "FedOT(All Global)": {"share": "all_global"},
        "FedOT(All Local)": {"share": "all_local"},
    }
    return Equivalent("fedot", plain | changes[name]) if name in changes else None


def _sdfed(value: PublishedValue) -> Equivalent | None:
    if value.method in ("CoOp", "FedOTP"):
        return Equivalent(value.method.lower())
    name, _, rest = value.method.partition("[")
    mixed = name == "SDFed" and value.backbone in COHORTS  # "in heterogeneous environments", Section 4.1
    if mixed or name == "SDFed (S_l in 4..64)":
        return Equivalent("sdfed", {"components": "all", "local_length": "random:4-64"})
    if name not in ("SDFed", "SDFed (S_l=8)"):
        return None
    components = {"": "all", "pfhf+srlp+irdc]": "all"}.get(rest.lower(), rest.lower().rstrip("]"))
    return Equivalent("sdfed", {"components": components, "local_length": "fixed:8"})


def _fedalign(value: PublishedValue) -> Equivalent | None:
    plain = {"class_text": "description", "orthogonality": 0.1, "ex_query": True, "similarity": "cosine"}
    changes: dict[str, dict[str, Any]] = {
        "FedAlign": {},
        "FedAlign w/o GT": {"class_text": "template"},
        "FedAlign w/o L_orth": {"orthogonality": 0.0},
        "FedAlign w/o ex-query": {"ex_query": False},
    }
    if value.method in changes:
        similarity = value.setting.partition(", ")[2].removesuffix(" similarity") or "cosine"
        return Equivalent("fedalign", plain | changes[value.method] | {"similarity": similarity})
    class_text = "description" if value.setting.endswith("GT") else "template"
    zero_shot = Equivalent("zero-shot", {"class_text": class_text})
    if value.method == "Zero-Shot CLIP":
        return zero_shot
    return (
        Equivalent(value.method.lower())
        if value.method in ("PromptFL", "FedOTP", "FedPGP", "FedMaPLe")
        else None
    )


def _feddeap(value: PublishedValue) -> Equivalent | None:
    switches = ("personal_prompt", "semantic_alignment", "domain_alignment")
    if value.method in ("PromptFL", "FedDEAP [Baseline]"):  # Table 3's baseline prints Table 1's and 2's row
        return Equivalent("promptfl", {"class_specific": True, "suffix": "sentence", "context_length": 16})
    variants = {
        "FedDEAP": (True, True, True),
        "FedDEAP [FedDEAP]": (True, True, True),
        "FedDEAP [w/ Personalized Prompt]": (True, False, False),
        "FedDEAP [w/o Semantic Align.]": (True, False, True),
        "FedDEAP [w/o Domain Align.]": (True, True, False),
    }
    if value.method in variants:
        lengths = PROMPT_LENGTHS.get(value.setting, {"prompt_length": 16, "personal_length": None})
        return Equivalent("feddeap", dict(zip(switches, variants[value.method], strict=True)) | lengths)
    if value.method in VISION_NETWORKS:
        return Equivalent("fedavg-vision", dict(VISION_NETWORKS[value.method]))
    names = {
        "CLIP-zs": "zero-shot",
        "CLIP-FC": "clip-fc",
        "FedCLIP": "fedclip",
        "FACMIC": "facmic",
        "FedAPT": "fedapt",
    }
    return Equivalent(names[value.method]) if value.method in names else None


_BY_PAPER = {"fedot": _fedot, "sdfed": _sdfed, "fedalign": _fedalign, "feddeap": _feddeap}


@dataclass(frozen=True)
class VariantRun:
    """A run of a variant (``sweeps.Variant``) with the first seed and nothing held out.

    Attributes:
        index: of its method in the experiment.
        content: the fields that are equal in all runs of the variant (``content``).
    """

    index: int
    config: RunConfig
    content: dict[str, Any]

    @cached_property
    def key(self) -> str:
        return content_key(self.content)

    @property
    def title(self) -> str:
        """The method's name in its experiment."""
        return self.config.method.label or registry.get(self.config.method.name).about.title

    def is_printed(self, method: Equivalent) -> bool:
        """Return whether this is a printed method: it has its name and fields."""
        config = self.content["method"]["config"]
        return self.content["method"]["name"] == method.name and all(
            config[name] == value for name, value in method.config.items()
        )


def variant_runs(experiment: Experiment) -> list[VariantRun]:
    """Return a run of each variant of an experiment, in the order of ``sweeps.variants``."""
    runs = expand(experiment.model_copy(update={"held_out": (), "seeds": experiment.seeds[:1]}))
    indices = (variant.index for variant in sweeps.variants(experiment))
    pairs = zip(indices, runs, strict=True)
    return [VariantRun(index, run, content(run, f"methods.{index}")) for index, run in pairs]


def find_variant(among: Sequence[VariantRun], value: PublishedValue) -> VariantRun | NoEquivalent | None:
    """Return the variant that measures a published value, why no run can, or None without such a method.

    If several variants have its method and fields, it is the first: printed values come first in a sweep.
    """
    ours = equivalent(value)
    if isinstance(ours, NoEquivalent):
        return ours
    return next((variant for variant in among if variant.is_printed(ours)), None)


def content(config: RunConfig, field: str = "methods") -> dict[str, Any]:
    """Return the fields that are equal in all runs of one variant, with the defaults of its method resolved.

    Runs of one variant may differ in seed, held-out domain, data folder, time limit, kept checkpoints and
    class descriptions. They may also differ in fields that their kind of partition does not use, because a
    sweep over kinds sets the fields of all of them.

    Args:
        field: where an error names an unknown method or hyper-parameter.
    """
    may_differ: dict[str, Any] = {
        "seed": True,
        "held_out": True,
        "time_limit": True,
        "keep_checkpoints": True,
        "data": {"root"},
        "partition": unused_fields(config.partition),
    }
    content = config.model_dump(mode="json", exclude=may_differ)
    method = config.method
    full = registry.build_config(method.name, method.config, f"{field}.config")
    descriptions = {*class_texts.fields(type(full))}
    content["method"] = {"name": method.name, "config": full.model_dump(mode="json", exclude=descriptions)}
    return content


def content_key(content: dict[str, Any]) -> str:
    """Return a text that is equal for runs with this content."""
    return json.dumps(content, sort_keys=True)
