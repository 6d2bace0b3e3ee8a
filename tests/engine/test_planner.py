"""The planner without a page: what it keeps, and for how long."""

from __future__ import annotations

import pytest

from fedcore.config import DataConfig, Experiment, MethodEntry
from fedcore.data.images import ImageSet
from fedcore.engine import plan as planner
from fedcore.engine.plan import Plan
from fedcore.engine.prepare import read_images
from fedcore.errors import FedLensError


def experiment(rounds: int = 1, data: str = "shapes") -> Experiment:
    return Experiment(methods=(MethodEntry(name="zero-shot"),), rounds=rounds, data=DataConfig(name=data))


def test_equal_requests_share_a_plan_until_the_texts_change() -> None:
    made = planner.Planner()
    first = made.request(experiment())
    assert made.request(experiment()) is first
    other = made.request(experiment(), "another file of descriptions")
    assert other is not first
    for future in (first, other):  # neither thread outlives its test
        assert isinstance(future.result(60).answer, Plan)


def test_an_error_is_an_answer_that_holds_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planner.Planner()
    first = made.request(experiment(data="nothing"))
    assert isinstance(first.result(60).answer, FedLensError)
    assert made.request(experiment(data="nothing")) is first
    monkeypatch.setattr(planner, "ERROR_SECONDS", 0.0)
    again = made.request(experiment(data="nothing"))
    assert again is not first
    assert isinstance(again.result(60).answer, FedLensError)  # its thread must not outlive this test


def test_a_data_set_that_takes_long_to_read_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def read(data: DataConfig, side: int) -> tuple[ImageSet, list[str]]:
        reads.append(data.name)
        return read_images(data, side)

    monkeypatch.setattr(planner, "read_images", read)
    monkeypatch.setattr(planner, "SLOW_SECONDS", 0.0)
    made = planner.Planner()
    for rounds in (1, 2):
        assert isinstance(made.request(experiment(rounds)).result(60).answer, Plan)
    assert reads == ["shapes"]
