"""The models of experiments and runs.

A user writes an ``Experiment``; ``experiment.expand`` turns it into one ``RunConfig`` per method, seed and
held-out domain. A run can be repeated from its stored ``RunConfig`` alone.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedcore.config.values import LARGEST_INTEGER, Part, PathText, field
from fedcore.methods.hyperparameters import SearchRange

LONGEST_NAME, LONGEST_NOTES = 500, 10_000
"""Longest name and notes of an experiment, in characters."""
Split = Literal["60/20/20", "80/20", "official", "swapped", "coop"]
"""The division of a data set's images into training, validation and test."""
Folder = Annotated[
    PathText | None,
    Field(title="folder", description="Folder of the data set on this machine; not needed for embedded data"),
]
Prompt = Annotated[
    str | None,
    Field(
        title="prompt",
        description="Prompt with one {} for the class, or coop for CoOp's; default: the data set's own",
        json_schema_extra={"empty": "the data set's own"},
    ),
]


class DataConfig(Part):
    """The images, how they are split, and the prompt that describes a class to CLIP."""

    name: str = field(
        "rotated-digits",
        "Name of the data set in the catalog, hf:owner/name for one of the Hugging Face Hub, or "
        "folder, manifest, hf-dataset or embeddings",
        title="data set",
    )
    root: Folder = None
    domains: tuple[str, ...] | None = field(None, "Domains to use; default: all", empty="all")
    classes: Literal["all", "coop"] = field(
        "all",
        "Classes of the data set; coop: those of CoOp, with its names (Caltech-101 without "
        "Faces_easy). The split of CoOp has them anyway",
        title="class list",
        words={"coop": "CoOp's"},
    )
    template: Prompt = None
    split: Split = field(
        "60/20/20",
        "Train / validation / test shares within each domain and class; official: the data set's "
        "own split; swapped: train on its test and validation parts, test on its training part (FedAlign's "
        "Flowers-102); coop: the images, classes and parts of CoOp's file split_zhou_... in the folder",
        title="train / validation / test",
        words={"coop": "CoOp's few-shot split"},
    )
    split_rounding: Literal["per_domain", "per_class"] = field(
        "per_domain",
        "How drawn shares are rounded; per_domain: test sets are the floor of their share of a "
        "domain (FedOT); per_class: training sets are the floor of their share of each class, and the test "
        "sets are the rest (FedDEAP)",
        title="rounding of the split",
        words={"per_domain": "by domain", "per_class": "by class"},
    )
    shots: int | None = field(
        None,
        "Training samples per class and client (few-shot); default: all",
        ge=1,
        title="shots per class",
        empty="all",
    )
    training_classes: Literal["all", "base", "own"] = field(
        "all",
        "Classes that the clients train on; base: the first half only, and models are tested on "
        "these and on the other half, the new classes, each half among its own names (base-to-new); own: the "
        "first half of each data set is dealt to clients, which predict among their own classes only "
        "(cross-class)",
        title="protocol",
        words={"all": "all classes", "base": "base-to-new classes", "own": "cross-class"},
    )
    class_order: Literal["label", "name"] = field(
        "label",
        "Order whose first half are the base classes; label: the data set's (CoCoOp); name: the alphabet's",
        title="order of the classes",
        words={"label": "the data set's", "name": "alphabetical"},
    )
    shots_scope: Literal["client", "federation"] = field(
        "client",
        "Whose images the shots count; client: those of each client; federation: those of all "
        "clients together, which the partition divides (FLiP, CoOp)",
        title="shots of",
        words={"client": "each client", "federation": "all clients together"},
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        title="column names",
        description="Column names of a manifest or Hugging Face data set, if they differ from path "
        "(image), label, domain, client, split",
    )

    decode: Literal["full", "draft"] = field(
        "full",
        "full: decode JPEG files at full size; draft: decode large ones at a reduced size, no "
        "smaller than the backbone's input, which is faster and gives slightly different pixels",
        title="JPEG decoding",
    )

    @field_validator("template")
    @classmethod
    def _one_slot(cls, value: str | None) -> str | None:
        if value not in (None, "coop") and str(value).count("{}") != 1:
            raise ValueError("write the prompt with exactly one {} where the class name goes, or coop")
        return value


class TransferConfig(Part):
    """Another data set whose classes the trained models are tested on, among their own names."""

    name: str = Field(
        title="data set", description="Name of the data set in the catalog, or folder, manifest"
    )
    root: Folder = None
    template: Prompt = None
    split: Split = field(
        "60/20/20",
        "Split whose test part is used; nothing is trained on the rest",
        title="train / validation / test",
    )

    @property
    def data(self) -> DataConfig:
        """The data set as a run's own would be described."""
        return DataConfig(name=self.name, root=self.root, template=self.template, split=self.split)


class FurtherDataConfig(TransferConfig):
    """Another data set that some of the clients train on, with ``training_classes = "own"``."""

    split: Split = field(
        "60/20/20",
        "Train / validation / test shares, or the data set's own split, as in [data]",
        title="train / validation / test",
    )


class PartitionConfig(Part):
    """The partition of the training samples among the clients."""

    kind: Literal["domain", "iid", "dirichlet", "pathological", "dealt", "blocks", "natural"] = field(
        "domain",
        "domain: each client has one domain; iid: at random; dirichlet: skewed class shares; "
        "pathological: disjoint classes; dealt: disjoint classes in equal blocks, the same for every seed "
        "(FedPGP); blocks: disjoint classes of one data set each, in label order (FedTPG; with "
        "training_classes = own); natural: clients named by the data set (its writers, or the client column "
        "of a manifest)",
        title="partition",
        words={"domain": "by domain", "iid": "IID", "dirichlet": "Dirichlet"},
    )
    clients: int | None = field(
        None,
        "Number of clients (kind 'domain' uses clients_per_domain instead); empty with kind "
        "'natural': all clients of the data set",
        ge=1,
        le=10_000,
    )
    clients_per_domain: int = field(1, "Number of clients of each domain (kind 'domain')", ge=1, le=1000)
    alpha: float | None = field(
        None,
        "Concentration of the Dirichlet distribution: smaller values skew the class shares more; "
        "kind 'domain' applies it within each domain",
        gt=0,
        le=1e6,
        title="Dirichlet alpha",
    )
    classes_per_client: int | None = field(
        None, "Number of classes per client; no two clients share one (pathological, blocks)", ge=1
    )
    unseen: float = field(
        0.0,
        "Share of the clients that never take part; they test the final model as it is, "
        "and after local training on their samples",
        ge=0,
        le=0.5,
        title="unseen clients",
    )
    min_samples: int = field(
        1, "Minimum number of training samples of every client", ge=1, title="minimum samples"
    )
    dirichlet_form: Literal["per_class", "per_client"] = field(
        "per_class",
        "per_class: each class is divided among the clients, whose sizes then differ (FedAlign, "
        "SDFed); per_client: each client draws its own class shares, and all have the same size",
        title="Dirichlet shares",
    )
    leftover: Literal["drop", "spread", "even", "last"] = field(
        "drop",
        "Classes left over by a pathological partition; drop: no client has them; spread: the "
        "images of each are divided among all clients; even: dealt to the clients in turn; last: the last "
        "client has all remaining classes, more or fewer. They always stay in the global test set",
        title="leftover classes",
        words={
            "drop": "dropped",
            "spread": "spread over all clients",
            "even": "dealt out in turn",
            "last": "to the last client",
        },
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind not in ("domain", "blocks", "natural") and self.clients is None:
            raise ValueError(f"a '{self.kind}' partition needs clients = a number")
        if self.kind == "dirichlet" and self.alpha is None:
            raise ValueError("a 'dirichlet' partition needs alpha, e.g. alpha = 0.3")
        if self.kind in ("pathological", "blocks") and self.classes_per_client is None:
            raise ValueError(
                f"a '{self.kind}' partition needs classes_per_client, e.g. classes_per_client = 2"
            )
        return self


PARTITION_FIELDS: dict[str, tuple[str, ...]] = {
    "domain": ("clients_per_domain", "alpha", "min_samples", "dirichlet_form", "unseen"),
    "iid": ("clients", "min_samples", "unseen"),
    "dirichlet": ("clients", "alpha", "min_samples", "dirichlet_form", "unseen"),
    "pathological": ("clients", "classes_per_client", "leftover", "min_samples", "unseen"),
    "dealt": ("clients", "min_samples", "unseen"),
    "blocks": ("classes_per_client", "min_samples"),
    "natural": ("clients", "min_samples", "unseen"),
}
"""Kind of partition -> the fields that it uses, in the order of the form."""


def kinds_using(field: str) -> tuple[str, ...]:
    """Return the kinds of partition that use a field of ``PartitionConfig``."""
    return tuple(kind for kind, fields in PARTITION_FIELDS.items() if field in fields)


Precision = Literal["fp32", "tf32", "bf16", "fp16"]


class BackboneConfig(Part):
    """The CLIP model: architecture, weights and precision."""

    name: str = field(
        "mini-vit",
        "open_clip model (ViT-B-32, RN50...), timm:MODEL, mini-vit, mini-rn, callable or given",
        title="CLIP backbone",
    )
    pretrained: PathText | None = field(
        None,
        "Tag (openai, laion2b_s34b_b79k...), or path of a .pt/.safetensors file or of a callable",
        title="weights",
        empty="built in",
    )
    precision: Precision = field(
        "fp32", "Precision of the image encoder; tf32 is of GPUs, and a CPU computes fp32 instead"
    )


class CohortConfig(Part):
    """Clients that share a backbone and a training budget; fields left out default to the experiment's."""

    clients: int = Field(ge=1, le=10_000, description="Number of clients, taken in client order")
    backbone: BackboneConfig | None = field(
        None, "CLIP of these clients; default: the experiment's", empty="the experiment's"
    )
    batch_size: int | None = field(
        None, "Samples in a local batch; default: the method's", ge=1, le=65536, empty="the method's"
    )
    local_epochs: int | None = field(
        None,
        "Passes over a client's data in one round; default: the method's",
        ge=1,
        le=1000,
        empty="the method's",
    )
    max_steps: int | None = field(
        None,
        "Maximum number of local steps of a client in one round; default: no limit",
        ge=1,
        title="step limit",
        empty="no limit",
    )

    @property
    def overrides(self) -> dict[str, int]:
        """Hyper-parameters of the method that this cohort sets for itself."""
        given = {"batch_size": self.batch_size, "local_epochs": self.local_epochs}
        return {name: value for name, value in given.items() if value is not None}


class Tuned(Part):
    """The search that selected a method's hyper-parameters, and all that it cost; FedLens fills it in."""

    draws: int = Field(
        ge=1, title="draws of the search", description="Draws made for this method, failed ones included"
    )
    sampler: Literal["random", "tpe"] = Field(
        title="sampler of the search", description="How the draws were made"
    )
    search: str = Field(title="search", description="UUID of the experiment with the draws")
    data: str | None = field(
        None, "Data set of the draws; none if not recorded", title="data set of the search"
    )
    seed: int = Field(ge=0, title="seed of the search", description="Seed of the draws and of their runs")
    draw: int = Field(
        ge=1, title="selected draw", description="Number of the selected draw; 1 is the method as written"
    )
    failed: int = field(0, "Draws among them that failed", ge=0, title="failed draws")
    validation: float = Field(
        ge=0,
        le=1,
        title="validation accuracy in the search",
        description="Validation accuracy of the selected draw in its last round, a share of one",
    )
    rounds: int = Field(ge=0, title="rounds of the search", description="Rounds of all draws together")
    bytes: int | None = field(
        None,
        "Traffic of all draws, up and down; none if not measured",
        ge=0,
        title="traffic of the search in bytes",
    )
    seconds: float | None = field(
        None,
        "Training and aggregation of all draws; none if not measured",
        ge=0,
        title="seconds of the search",
    )


class MethodEntry(Part):
    """One method of an experiment with its hyper-parameters."""

    name: str = Field(title="method", description="Name of the method, e.g. fedot")
    label: str | None = field(
        None, "Name in tables and plots; default: the method's title", title="name in tables"
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Hyper-parameters that differ from the paper's"
    )
    file: PathText | None = field(
        None, "Python file that defines the method; empty for built-in methods", title="method's file"
    )
    sha256: str | None = field(
        None,
        "SHA-256 of that file when the run was planned (filled in by FedLens)",
        title="checksum of the method's file",
    )
    draw: int | None = field(None, "Number of the draw in a search (filled in by FedLens)", ge=1)
    tuned: Tuned | None = field(
        None, "The search that selected these hyper-parameters (filled in by FedLens)"
    )


class TuningConfig(Part):
    """A search for hyper-parameters, which comes before the runs of an experiment."""

    draws: int = field(
        8, "Configurations tried for each method; the first is the method as written", ge=2, le=1000
    )
    seed: int = field(
        0,
        "Seed of the draws and of their runs; not one of the experiment's seeds, which are fresh",
        ge=0,
        le=LARGEST_INTEGER,
        title="seed of the search",
    )
    sampler: Literal["random", "tpe"] = field(
        "random",
        "random: independent draws; tpe: later draws look where earlier ones were good (Optuna's "
        "tree-structured Parzen estimator)",
        words={"tpe": "TPE (Optuna)"},
    )
    space: dict[str, dict[str, SearchRange]] = Field(
        default_factory=dict,
        description="Ranges by method (name or label, or * for all that have the field) and field, instead "
        "of those that the methods declare",
    )
    final: str | None = field(None, "UUID of the experiment with the selected values (filled in by FedLens)")


KeepCheckpoints = Literal["last", "best", "all", "none"]
"""Checkpoints that a finished run keeps on disk; an unfinished run keeps those that resuming needs."""


HeldOutShare = Literal["test", "all"]
"""Images of a held-out domain that models are tested on."""


class RunConfig(Part):
    """The complete config of one run, which a job process reads and from which the run can be repeated."""

    data: DataConfig
    partition: PartitionConfig
    backbone: BackboneConfig
    method: MethodEntry
    rounds: int
    participation: float
    held_out: str | None
    held_out_share: HeldOutShare = "test"
    seed: Annotated[int, Field(le=LARGEST_INTEGER)]
    evaluate_every: int = 1
    test_sample: Annotated[int, Field(ge=1, le=LARGEST_INTEGER)] | None = None
    cohorts: tuple[CohortConfig, ...] = ()
    transfer: tuple[TransferConfig, ...] = ()
    further_data: tuple[FurtherDataConfig, ...] = ()
    time_limit: float | None = None
    keep_checkpoints: KeepCheckpoints = "last"


Order = Literal["in turn", "one after another"]
"""In which order the runs of an experiment on one device train."""


class Reproduces(Part):
    """Published values that an experiment reproduces: lines of a paper's ``values.csv``."""

    paper: str = Field(description="Key of the paper, e.g. fedot")
    table: str = Field(description="Table as the paper numbers it, e.g. 1")
    dataset: str = field("", "Data set as printed; empty: all data sets of the table")
    setting: tuple[str, ...] = field((), "Settings as printed; empty: all of them")
    methods: tuple[str, ...] = field((), "Methods as printed; empty: all of them")


class Experiment(Part):
    """A comparison: one data set, one partition, one backbone (or cohorts), several methods and seeds."""

    name: str = field("Untitled", "Name of the experiment", min_length=1, max_length=LONGEST_NAME)
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    backbone: BackboneConfig = BackboneConfig()
    cohorts: tuple[CohortConfig, ...] = field(
        (), "Groups of clients with different backbones or training budgets; empty: all alike"
    )
    transfer: tuple[TransferConfig, ...] = field(
        (), "Other data sets that the trained models are tested on; empty: none", title="also tested on"
    )
    further_data: tuple[FurtherDataConfig, ...] = field(
        (),
        "Other data sets whose classes clients train on beside those of [data] (cross-class); empty: none",
        title="further data sets",
    )
    methods: tuple[MethodEntry, ...] = Field(min_length=1, description="Methods to compare")
    rounds: int = field(10, "Communication rounds (T)", ge=0, le=100_000)
    participation: float = field(1.0, "Share of the clients that take part in a round", gt=0, le=1)
    seeds: tuple[int, ...] = field((1,), "Random seeds; each method is run once per seed", min_length=1)
    held_out: tuple[str, ...] = field(
        (),
        "Leave-one-domain-out: one run per domain named here ('each' for all); empty: none",
        title="held-out domains",
    )
    held_out_share: HeldOutShare = field(
        "test",
        "Images of a held-out domain that models are tested on; test: its test split (FedOT); "
        "all: every one, since no client trains on them",
        title="images of a held-out domain",
        words={"test": "its test split", "all": "all of them"},
    )
    evaluate_every: int = field(
        1,
        "Rounds between evaluations; the last round is always evaluated",
        ge=1,
        title="rounds between evaluations",
    )
    test_sample: int | None = field(
        None,
        "Samples of each test set between the first and the last round, drawn once for the run; "
        "clients' own test sets and those of their classes are always used in full, and so is every test set "
        "in the first and last round; default: all",
        ge=1,
        title="test samples in between",
        empty="all",
    )
    time_limit: float | None = field(
        None,
        "Minutes after which a run is stopped; if resumed, it continues after its last round "
        "with the same limit; default: none",
        gt=0,
        title="time limit (minutes)",
        empty="none",
    )
    keep_checkpoints: KeepCheckpoints = field(
        "last",
        "Checkpoints that a finished run keeps: the last round, the best round on validation "
        "samples, all rounds, or none; analyses such as Grad-CAM need one",
        title="checkpoints kept",
    )
    order: Order = field(
        "in turn",
        "How the runs of one device train: in turn, a few rounds each, so that all heatmaps grow "
        "together, or one after another, as `fedlens run` does; no accuracy depends on it",
        title="runs on one device",
    )
    sweep: dict[str, tuple[Any, ...]] = Field(
        default_factory=dict,
        description="Fields that take several values, by their path (partition.alpha, methods.fedot.blocks); "
        "every combination is run",
    )
    tuning: TuningConfig | None = field(
        None, "Search for each method's hyper-parameters before its runs; empty: none", title="tuning"
    )
    notes: str = field("", "Free text kept with the experiment", max_length=LONGEST_NOTES)
    tags: tuple[str, ...] = field((), "Tags for filtering")
    reproduces: tuple[Reproduces, ...] = field(
        (), "Published values to show beside the results; they do not affect the runs"
    )

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a seed is named twice; name each once")
        if any(not 0 <= s <= LARGEST_INTEGER for s in value):
            raise ValueError(f"seeds are whole numbers from 0 to {LARGEST_INTEGER}")
        return value

    def shared(self) -> dict[str, Any]:
        """Return the fields that every run has in common with the experiment, before any sweep."""
        return self.model_dump(include=SHARED)


TABLES: dict[str, type[Part]] = {
    "": Experiment,
    "data": DataConfig,
    "partition": PartitionConfig,
    "backbone": BackboneConfig,
    "cohorts": CohortConfig,
    "transfer": TransferConfig,
    "further_data": FurtherDataConfig,
    "methods": MethodEntry,
    "reproduces": Reproduces,
    "tuning": TuningConfig,
}
"""Table of an experiment file -> the model of its fields; "" is the top of the file."""
SHARED = (RunConfig.model_fields.keys() & Experiment.model_fields.keys()) - {"held_out"}
"""Fields that a run copies from its experiment."""


WEIGHTS = "weights:"
"""Prefix that distinguishes a backbone's name and weights from a folder in a list of what a run reads."""


def backbones(run: RunConfig | Experiment) -> tuple[BackboneConfig, ...]:
    """Return the CLIP models that a run uses, each once, in client order."""
    used = [c.backbone or run.backbone for c in run.cohorts] or [run.backbone]
    return tuple(dict.fromkeys(used))


def backbone_names(run: RunConfig | Experiment) -> str:
    """Name a run's CLIP models: ``ViT-B-16``, or ``ViT-B-16 + RN50`` where cohorts differ."""
    return " + ".join(dict.fromkeys(b.name for b in backbones(run)))


def data_names(run: RunConfig | Experiment) -> tuple[str, ...]:
    """Return the names of all data sets on which a run trains or is tested."""
    return run.data.name, *(other.name for other in (*run.further_data, *run.transfer))
