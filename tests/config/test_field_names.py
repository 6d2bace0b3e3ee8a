"""Names of fields and values for people."""

from pathlib import Path
from typing import Literal, get_args

import pytest
from pydantic import Field

from fedcore.base.errors import FedLensError
from fedcore.config import BackboneConfig, CohortConfig, DataConfig, PartitionConfig
from fedcore.config.field_names import data_title, field_phrase, field_title, value_text
from fedcore.methods import About, Method, MethodConfig, registry


class ElsewhereConfig(MethodConfig):
    lr: float = Field(0.5, description="Another default")
    rank: int = Field(1, title="rank of somebody else")
    weighting: Literal["uniform", "samples"] = Field("samples", description="Another default")
    loss: Literal["ce", "only-here"] = Field(
        "ce", json_schema_extra={"words": {"ce": "mine", "only-here": "of mine alone"}}
    )
    tau: float | None = Field(None, json_schema_extra={"empty": "as wide as can be"})
    plain_name: int = 1
    only_here: int = Field(1, title="what nobody else has")


class Elsewhere(Method):
    name, about, Config = "elsewhere", About("Elsewhere"), ElsewhereConfig


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of somebody's own file, as ``load_file`` leaves it; it joins before all others."""
    registry.load_all()
    monkeypatch.setattr(registry, "_METHODS", {"elsewhere": Elsewhere, **registry._METHODS})
    monkeypatch.setattr(registry, "_FILES", {"elsewhere": "/elsewhere.py"})


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


def test_a_path_that_names_its_method_takes_that_method_s_words(elsewhere: None) -> None:
    assert field_title("methods.elsewhere.rank") == "Rank of somebody else"
    assert field_phrase("methods.elsewhere.lr") == "learning rate", (
        "an overriding field keeps its base's title"
    )
    assert value_text("methods.elsewhere.loss", "ce") == "mine"
    assert value_text("methods.elsewhere.weighting", "samples") == "by sample count"
    assert value_text("methods.elsewhere.tau", None) == "as wide as can be"
    assert field_title("methods.elsewhere.plain_name") == "Plain name"


@pytest.mark.parametrize(
    "before", ["", "method.config.", "methods.*.", "methods.nobody's.", "sweep.methods.*."]
)
def test_where_methods_differ_a_name_alone_is_fedlens_own(elsewhere: None, before: str) -> None:
    assert field_title(f"{before}rank") == "LoRA rank"
    assert value_text(f"{before}loss", "ce") == "cross-entropy"
    assert value_text(f"{before}loss", "only-here") == "of mine alone"
    assert field_title(f"{before}only_here") == "What nobody else has"


def test_a_title_does_not_depend_on_the_method_that_was_imported_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    titles = [field_title(name) for name in ("share", "alpha", "rank", "temperature")]
    monkeypatch.setattr(registry, "_METHODS", dict(reversed(registry._METHODS.items())))
    assert [field_title(name) for name in ("share", "alpha", "rank", "temperature")] == titles


def test_a_method_file_that_is_broken_takes_no_names_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLENS_METHODS", str(tmp_path / "gone.py"))
    registry.load_once.cache_clear()
    assert field_title("method.config.rank") == "LoRA rank"
    with pytest.raises(FedLensError):
        registry.load_all()


def test_words_are_for_options_that_there_are() -> None:
    configs = [m.Config for m in registry.load_all().values()]
    for model in (DataConfig, PartitionConfig, BackboneConfig, CohortConfig, MethodConfig, *configs):
        for name, info in model.model_fields.items():
            extra = info.json_schema_extra or {}
            assert set(extra) <= {"words", "empty", "editor", "when", "search"}, name
            options = {o for kind in (info.annotation, *get_args(info.annotation)) for o in get_args(kind)}
            assert set(extra.get("words", {})) <= options, name
            assert "empty" not in extra or type(None) in get_args(info.annotation), name


def test_within_a_sentence_names_keep_their_capitals() -> None:
    assert field_phrase("methods.*.lr") == "learning rate"
    assert field_phrase("partition.alpha") == "Dirichlet alpha"
    assert field_phrase("backbone.name") == "CLIP backbone"


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
    assert data_title(DataConfig(name="folder", root="/data/leaves")) == "leaves (folder)"
    assert data_title(DataConfig(name="rotated-digits")) == "rotated-digits"
