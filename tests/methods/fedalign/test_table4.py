"""FedAlign's Table 4 and the upload example of its Appendix C.1, on a ViT-B-32 without weights."""

import json

import pytest
import torch

from fedcore.base import lazy
from fedcore.clip.backbone import Backbone
from fedcore.clip.specs import backbone_spec, config_files
from fedcore.engine.server import Transport, traffic
from fedcore.methods.base import State
from fedcore.methods.fedalign.config import FedAlignConfig
from fedcore.methods.fedalign.method import FedAlign
from fedcore.methods.federation import LocalData, Pool, Problem, Rows
from tests.support.tiny import tokenizer

M = 2**20
META = torch.device("meta")
CLASSES, HITS = 100, 10_000
PUBLISHED = [  # (rank, start layer, text tower, image tower), in M; the paper prints r = 4, l = 2 twice
    (2, 2, 0.191, 0.500),
    (6, 2, 0.499, 0.676),
    (4, 8, 0.275, 0.483),
    *(
        pytest.param(*row, marks=pytest.mark.slow)  # sizes grow evenly with rank and layers
        for row in (
            (3, 2, 0.268, 0.544),
            (4, 2, 0.345, 0.588),
            (5, 2, 0.422, 0.632),
            (4, 0, 0.369, 0.623),
            (4, 4, 0.322, 0.553),
            (4, 6, 0.298, 0.518),
        )
    ),
]


@pytest.fixture(scope="module")
def skeleton() -> Problem:
    """One client of CIFAR-100's size on a ViT-B-32 whose weights have shapes but no memory."""
    config = json.loads(config_files()["ViT-B-32"].read_text())
    with META:
        model = lazy.open_clip().CLIP(**config).eval().requires_grad_(False)
    backbone = Backbone(backbone_spec("ViT-B-32"), model, tokenizer(), None, META, "none", "fp32")
    return Problem(
        backbone=backbone,
        classes=tuple(f"class {i}" for i in range(CLASSES)),
        template="a photo of a {}.",
        clients=("only",),
        domains=("photo",),
        client_domain=torch.zeros(1, dtype=torch.int64),
        samples=torch.tensor([HITS]),
        class_counts=torch.full((1, CLASSES), HITS // CLASSES),
        seed=0,
        descriptions={},
    )


def numbers(params: dict[str, torch.Tensor], tower: str) -> int:
    return sum(v.numel() for n, v in params.items() if n.startswith(f"{tower}_"))


def start(problem: Problem, **values: object) -> tuple[FedAlign, State]:
    method = FedAlign(FedAlignConfig(**values), problem)
    return method, method.init(problem.generator)


@pytest.mark.parametrize(("rank", "layer", "text", "image"), PUBLISHED)
def test_table_4_counts_what_is_trained_and_what_is_uploaded(skeleton, rank, layer, text, image):
    _, state = start(skeleton, trainable="table4", rank=rank, start_layer=layer)
    assert round(numbers(state.server, "text") / M, 3) == text
    assert round(numbers(state.personal, "image") / M, 3) == image
    assert numbers(state.personal, "image") == numbers(state.server, "global")


def test_attention_alone_is_the_low_rank_part_of_the_table(skeleton):
    _, state = start(skeleton)
    assert set(state.personal) == {"image_a", "image_b"}
    assert numbers(state.personal, "image") == 10 * 4 * 3 * (768 + 768) == 184_320
    assert numbers(state.server, "text") == 10 * 4 * 3 * (512 + 512)


def local_data(problem: Problem) -> LocalData:
    labels = torch.arange(HITS) % CLASSES
    pool = Pool(torch.zeros(HITS, 1), labels, torch.device("cpu"), torch.float32)
    rows = Rows(torch.arange(HITS), torch.tensor([HITS]))
    return LocalData(pool, rows, torch.tensor([0]), problem)


def record() -> dict[str, torch.Tensor]:
    """Every sample predicted correctly; the features need no memory either."""
    return {
        "feature": torch.zeros(1, 1, 1).expand(1, HITS, 512),
        "correct": torch.ones(1, HITS, dtype=torch.bool),
    }


def test_upload_of_the_papers_example(skeleton):
    """CIFAR-100, all classes, 10,000 features: N_v + 512 C + 513 N = 5.529 M."""
    method, state = start(skeleton, trainable="table4")
    received = method.sends(state, torch.tensor([0]))
    sent = Transport().up(method.upload(received, record(), local_data(skeleton)))
    assert numbers(sent, "image") == 616_704
    total = int(traffic(sent, 1).scalars)
    assert total == 616_704 + 512 * CLASSES + 513 * HITS + CLASSES  # the paper leaves out the class counts
    assert round(total / M, 3) == 5.529
