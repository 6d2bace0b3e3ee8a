"""Names of fields and values for people."""

from __future__ import annotations

from typing import get_args

import pytest

from fedcore.config import BackboneConfig, CohortConfig, DataConfig, PartitionConfig
from fedcore.methods import registry
from fedcore.report.names import data_words, field_title, field_words, reason_words, value_text


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("partition.alpha", "Dirichlet alpha"),
        ("sweep.partition.alpha", "Dirichlet alpha"),
        ("partition.clients_per_domain", "Clients per domain"),
        ("method.config.lr", "Learning rate"),
        ("methods.fedot.lr", "Learning rate"),
        ("methods.*.lr", "Learning rate"),
        ("methods.3.config.lr", "Learning rate"),
        ("lr", "Learning rate"),
        ("rounds", "Rounds"),
        ("data.name", "Data set"),
        ("method.name", "Method"),
        ("cohorts", "Cohorts"),
        ("cohorts.0", "Cohort 1"),
        ("cohorts.1.local_epochs", "Cohort 2: local epochs"),
        ("cohorts.1.backbone.name", "Cohort 2: CLIP backbone"),
        ("cohorts.clients", "Cohorts: clients"),
    ],
)
def test_a_field_is_named_by_its_path(path: str, title: str) -> None:
    assert field_title(path) == title


def test_within_a_sentence_names_keep_their_capitals() -> None:
    assert field_words("methods.*.lr") == "learning rate"
    assert field_words("partition.alpha") == "Dirichlet alpha"
    assert field_words("backbone.name") == "CLIP backbone"


def test_no_field_shows_its_raw_name() -> None:
    parts = {"data": DataConfig, "partition": PartitionConfig, "backbone": BackboneConfig}
    paths = [f"{part}.{name}" for part, model in parts.items() for name in model.model_fields]
    paths += [f"cohorts.0.{name}" for name in CohortConfig.model_fields]
    paths += [f"methods.{n}.{f}" for n, m in registry.load_all().items() for f in m.Config.model_fields]
    for path in paths:
        assert "_" not in field_title(path), path
        assert field_title(path)[0].isupper(), path


def test_two_fields_of_one_form_have_two_titles() -> None:
    configs = [m.Config for m in registry.load_all().values()]
    for model in (DataConfig, PartitionConfig, BackboneConfig, CohortConfig, *configs):
        titles = [field_title(name) for name in model.model_fields]
        assert len(titles) == len(set(titles)), titles


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("partition.dirichlet_form", "per_class", "per class"),
        ("partition.kind", "iid", "IID"),
        ("methods.fedfx.optimiser", "adamw", "AdamW"),
        ("data.name", "my_pictures", "my_pictures"),
        ("data.template", "a_photo of {}", "a_photo of {}"),
        ("data.shots", None, "all"),
        ("data.shots", 16, "16"),
        ("cohorts.0.batch_size", None, "the method's"),
        ("methods.fedalign.ex_query", True, "yes"),
        ("lr", 5e-5, "5e-05"),
        ("partition.alpha", 0.3, "0.3"),
        ("partition.alpha", None, "none"),
        ("data.domains", ("photo", "art_painting"), "photo, art_painting"),
        ("method.config.betas", [0.9, 0.98], "0.9, 0.98"),
    ],
)
def test_values_in_words(path: str, value: object, text: str) -> None:
    assert value_text(path, value) == text


def test_no_option_shows_an_underscore() -> None:
    for method in registry.load_all().values():
        for name, info in method.Config.model_fields.items():
            for option in get_args(info.annotation):
                if isinstance(option, str):
                    assert "_" not in value_text(f"method.config.{name}", option)


def test_own_data_is_told_apart_by_its_folder() -> None:
    assert data_words(DataConfig(name="folder", root="/data/leaves")) == "leaves (folder)"
    assert data_words(DataConfig(name="rotated-digits")) == "rotated-digits"


def test_a_reason_names_its_field_as_the_form_does() -> None:
    assert reason_words("data.root: no folder /x") == "Folder: no folder /x"
    assert reason_words("RuntimeError: no memory") == "RuntimeError: no memory"
