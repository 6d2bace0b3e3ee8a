"""An experiment and its runs: the form, the TOML file, the stored record and the command line share it."""

from fedcore.config.models import (
    SHARED,
    BackboneConfig,
    CohortConfig,
    DataConfig,
    Experiment,
    MethodEntry,
    PartitionConfig,
    Reproduces,
    RunConfig,
    backbone_names,
    backbones,
    dumps,
    load,
    loads,
    parse,
)

__all__ = [
    "SHARED",
    "BackboneConfig",
    "CohortConfig",
    "DataConfig",
    "Experiment",
    "MethodEntry",
    "PartitionConfig",
    "Reproduces",
    "RunConfig",
    "backbone_names",
    "backbones",
    "dumps",
    "load",
    "loads",
    "parse",
]
