"""The configs of experiments and runs, shared by the form, TOML files, the store and the command line."""

from fedcore.config.experiment import dumps, expand, load, loads, parse
from fedcore.config.models import (
    PARTITION_FIELDS,
    SHARED,
    BackboneConfig,
    CohortConfig,
    DataConfig,
    Experiment,
    MethodEntry,
    PartitionConfig,
    Reproduces,
    RunConfig,
    TransferConfig,
    Tuned,
    TuningConfig,
    backbone_names,
    backbones,
    data_names,
)
