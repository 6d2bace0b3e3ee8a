"""The paragraph of a report about its setting."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from fedcore.config import DataConfig, PartitionConfig
from fedcore.data.assigners import Kind
from fedcore.results.comparison import compare
from fedcore.results.setting_text import setting_paragraph
from fedcore.store import Store
from tests.support import fill

NEEDED = {"clients": 6, "alpha": 0.3, "classes_per_client": 1}


def paragraph(db: Path, **changes: object) -> str:
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1)
    found = compare(Store(db), [fill.done(db, experiment.model_copy(update=changes))])
    return setting_paragraph(Store(db), found.rows)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_partition_is_described(tmp_path: Path, kind: Kind) -> None:
    text = paragraph(tmp_path / "runs.db", partition=PartitionConfig(kind=kind, **NEEDED))
    assert "The federation has 6 clients " in text


def test_protocol_and_shots_are_described(tmp_path: Path) -> None:
    data = DataConfig(training_classes="base", class_order="name", shots=4, shots_scope="federation")
    text = paragraph(tmp_path / "runs.db", data=data)
    assert "train on the base classes, the first half in alphabetical order." in text
    assert "All clients together train on 4 images of each class." in text
    text = paragraph(tmp_path / "runs.db", data=data.model_copy(update={"shots_scope": "client"}))
    assert "Each client trains on 4 images of each class." in text


def test_the_domains_without_a_client_are_named(tmp_path: Path) -> None:
    one = paragraph(tmp_path / "one.db", held_out=("0°",))
    assert "The domain 0° has no client and is the unseen test set." in one
    two = paragraph(tmp_path / "two.db", held_out=("0°", "15°"))
    assert "Each of the domains 0°, 15° in turn has no client and is the unseen test set." in two
