"""Operations are counted as they are executed: a linear head has those of its two matrix products."""

from collections.abc import Callable
from pathlib import Path

from fedcore.base.progress import result_of
from fedcore.clip.specs import backbone_spec
from fedcore.config import Experiment, expand
from fedcore.data import catalog
from fedcore.engine.train import FlopCount, count_flops
from tests.support.encoded import DIGITS


def counted(folder: Path, method: dict[str, object], rounds: int = 2) -> FlopCount:
    experiment = Experiment(
        data=DIGITS,
        methods=[method],
        rounds=rounds,
    )
    return result_of(count_flops(expand(experiment)[0], folder, "cpu"))


def test_a_linear_head_has_the_operations_of_its_two_products(
    tmp_path: Path, encoded_digits: Callable[[Path], Path]
):
    """Two clients take one step: the scores, and the gradient of the head, 2 n d K each."""
    classes, width = len(catalog.class_names(DIGITS["name"])), backbone_spec("mini-vit").embed_dim
    samples = DIGITS["shots"] * classes
    encoded_digits(tmp_path)
    found = counted(tmp_path, {"name": "clip-fc", "config": {"batch_size": samples, "local_epochs": 1}})
    assert (found.clients, found.steps) == (2, 2)
    assert found.total == sum(found.by_operation.values()) == 2 * 2 * (2 * samples * width * classes)
    nothing = counted(tmp_path, {"name": "zero-shot"})
    assert (nothing.total, nothing.steps) == (0, 0)
