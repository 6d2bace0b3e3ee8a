"""An experiment as the form shows it, the TOML file writes it,
the store records it and the command line runs it.

``Experiment`` is what the user asks for; ``expand`` turns it into one ``RunConfig`` per method, seed and
held-out domain. A run is reproducible from its stored ``RunConfig`` alone.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedcore.errors import FedLensError


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Part):
    """Which images, and how they are described to CLIP."""

    name: str = Field("rotated-digits", description="Data set, by its name in the catalog, or 'folder'")
    root: str | None = Field(
        None, description="Folder of the data set on this machine (not for embedded data)"
    )
    domains: tuple[str, ...] | None = Field(None, description="Domains to use; default: all")
    template: str | None = Field(
        None, description="Prompt with one {} for the class; default: the data set's own"
    )
    split: Literal["60/20/20", "80/20", "official"] = Field(
        "60/20/20", description="Train / validation / test shares within each domain and class"
    )
    shots: int | None = Field(
        None, ge=1, description="Training samples per class and client (few-shot); default: all"
    )

    @field_validator("template")
    @classmethod
    def _one_slot(cls, value: str | None) -> str | None:
        if value is not None and value.count("{}") != 1:
            raise ValueError("write the prompt with exactly one {} where the class name goes")
        return value


class PartitionConfig(_Part):
    """Who gets which samples."""

    kind: Literal["domain", "iid", "dirichlet", "pathological"] = Field(
        "domain",
        description="domain: clients of one domain each; iid: at random; dirichlet: skewed class shares; "
        "pathological: disjoint classes",
    )
    clients: int | None = Field(
        None, ge=1, le=10_000, description="Clients; with 'domain' set by clients_per_domain"
    )
    clients_per_domain: int = Field(1, ge=1, le=1000, description="Clients of each domain (kind 'domain')")
    alpha: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Dirichlet alpha (smaller is more skewed); within a domain for kind 'domain'",
    )
    classes_per_client: int | None = Field(
        None, ge=1, description="Disjoint classes of each client (pathological)"
    )
    min_samples: int = Field(1, ge=1, description="Training samples that every client has at least")

    @model_validator(mode="after")
    def _complete(self) -> PartitionConfig:
        if self.kind != "domain" and self.clients is None:
            raise ValueError(f"a '{self.kind}' partition needs clients = a number")
        if self.kind == "dirichlet" and self.alpha is None:
            raise ValueError("a 'dirichlet' partition needs alpha, e.g. alpha = 0.3")
        if self.kind == "pathological" and self.classes_per_client is None:
            raise ValueError(
                "a 'pathological' partition needs classes_per_client, e.g. classes_per_client = 2"
            )
        return self


class BackboneConfig(_Part):
    """Which CLIP."""

    name: str = Field(
        "mini-vit", description="open_clip model name (ViT-B-32, RN50...), or mini-vit, mini-rn"
    )
    pretrained: str | None = Field(
        None, description="open_clip tag (openai, laion2b_s34b_b79k...) or path of a .pt/.safetensors file"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="Precision in which images are encoded"
    )


class MethodEntry(_Part):
    """One method of an experiment with its hyper-parameters."""

    name: str = Field(description="Registered method name, e.g. fedot")
    label: str | None = Field(None, description="Name in tables and figures; default: the method's title")
    config: dict[str, Any] = Field(
        default_factory=dict, description="Hyper-parameters that differ from the paper's"
    )
    file: str | None = Field(
        None, description="Python file that defines the method, where it is not FedLens' own"
    )
    sha256: str | None = Field(None, description="Contents of that file when the run was planned (filled in)")


class RunConfig(_Part):
    """One run, complete: what the job process reads and what makes the run repeatable."""

    data: DataConfig
    partition: PartitionConfig
    backbone: BackboneConfig
    method: MethodEntry
    rounds: int
    participation: float
    held_out: str | None
    seed: int
    evaluate_every: int = 1

    def group_hash(self) -> str:
        """Equal for runs that differ by seed or held-out domain only: what a table averages over.

        Where the data and the method's file lie does not matter; what is in the file does.
        """
        content = self.model_dump(mode="json", exclude={"seed", "held_out"})
        for part, name in (("method", "label"), ("method", "file"), ("data", "root")):
            content[part].pop(name)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class Reproduces(_Part):
    """Published figures that an experiment is set up to repeat: rows of ``fedcore/assets/published``."""

    paper: str = Field(description="File of the published figures, e.g. fedot")
    table: str = Field(description="Table as the paper numbers it, e.g. 1")
    dataset: str = Field("", description="Data set as printed; empty: whatever the table holds")
    setting: tuple[str, ...] = Field((), description="Settings as printed; empty: all of them")
    methods: tuple[str, ...] = Field((), description="Methods as printed; empty: all of them")


class Experiment(_Part):
    """A comparison: one data set, one partition, one backbone, several methods and seeds."""

    name: str = Field("Untitled", min_length=1, max_length=500, description="Name of the experiment")
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    backbone: BackboneConfig = BackboneConfig()
    methods: tuple[MethodEntry, ...] = Field(min_length=1, description="Methods to compare")
    rounds: int = Field(10, ge=0, le=100_000, description="Communication rounds (T)")
    participation: float = Field(
        1.0, gt=0, le=1, description="Share of the clients that take part in a round"
    )
    seeds: tuple[int, ...] = Field((1,), min_length=1, description="One run per seed and method")
    held_out: tuple[str, ...] = Field(
        (), description="Leave-one-domain-out: one run per domain named here ('each' for all); empty: none"
    )
    evaluate_every: int = Field(
        1, ge=1, description="Rounds between evaluations; the last round always is evaluated"
    )
    notes: str = Field("", max_length=10_000, description="Free text kept with the experiment")
    tags: tuple[str, ...] = Field((), description="Tags for filtering")
    reproduces: tuple[Reproduces, ...] = Field(
        (), description="Published figures to show beside its own; no part of its runs"
    )

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a seed is named twice; name each once")
        if any(s < 0 for s in value):
            raise ValueError("seeds are whole numbers from 0")
        return value

    def expand(self, domains: tuple[str, ...] = ()) -> list[RunConfig]:
        """One run per method, seed and held-out domain, in that
        nesting from the outside: held-out, seed, method.

        ``domains`` resolves ``held_out = ["each"]``.
        """
        held_out: tuple[str | None, ...] = domains if self.held_out == ("each",) else self.held_out or (None,)
        shared = self.model_dump(
            include={"data", "partition", "backbone", "rounds", "participation", "evaluate_every"}
        )
        return [
            RunConfig(**shared, method=entry, seed=seed, held_out=domain)
            for domain in held_out
            for seed in self.seeds
            for entry in self.methods
        ]


def parse(content: dict[str, Any]) -> Experiment:
    """An experiment from plain values.

    Raises:
        FedLensError: naming the first field that is wrong.
    """
    from fedcore.methods.registry import first_error

    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        raise first_error(error) from error


def load(path: str | Path) -> Experiment:
    """Read an experiment from a TOML file.

    Raises:
        FedLensError: when the file is missing, is not TOML, or has a wrong field.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FedLensError(
            f"cannot read {path}: {error.strerror}; give the path of an experiment file"
        ) from error
    return loads(text, str(path))


def loads(text: str, where: str = "the TOML text") -> Experiment:
    """Read an experiment from TOML text.

    Raises:
        FedLensError: when the text is not TOML or has a wrong field.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedLensError(f"{where} is not valid TOML: {error}") from error
    return parse(content)


def dumps(experiment: Experiment) -> str:
    """The experiment as TOML that ``loads`` reads back to an
    equal one; defaults of the top level are spelled out.
    """
    content = experiment.model_dump(mode="json", exclude_none=True)
    lists = {"methods": content.pop("methods"), "reproduces": content.pop("reproduces")}
    tables = {key: content.pop(key) for key in ("data", "partition", "backbone")}
    lines = [f"{key} = {_toml(value)}" for key, value in content.items()]
    for key, table in tables.items():
        lines += ["", f"[{key}]", *(f"{k} = {_toml(v)}" for k, v in table.items())]
    for key, entries in lists.items():
        for entry in entries:
            lines += ["", f"[[{key}]]", *(f"{k} = {_toml(v)}" for k, v in entry.items() if v != [])]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + " }"
            if value
            else "{}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):  # JSON strings are TOML basic strings, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
