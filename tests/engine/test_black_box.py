"""Encoders without towers: which methods run with them, and how the others are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedcore import config
from fedcore.base.errors import FedLensError
from fedcore.base.progress import result_of
from fedcore.clip.backbone import Backbone
from fedcore.clip.specs import BackboneSpec
from fedcore.engine.plan import plan
from fedcore.engine.prepare import check_encoder
from fedcore.engine.train import set_up_again
from fedcore.methods import registry
from fedcore.methods.base import RunContext
from tests.support.against import build
from tests.support.data.embedding_file import CLASSES as NAMES
from tests.support.data.embedding_file import TOML, embedding_file
from tests.support.method_cases import BUILT_IN
from tests.support.tiny import CLASSES, DOMAINS, run_rounds, tiny_federation

NO_VECTORS = {"fedot", "clip-fc", "fedgh", "fedakt"}
CLASS_VECTORS = {"zero-shot", "fedclip", "facmic", "taskres", "clip-adapter", "tip-adapter", "tip-adapter-f"}


def _context(class_texts: str) -> RunContext:
    spec = BackboneSpec("given", 16, class_texts=class_texts)
    return RunContext(spec, CLASSES, 3, DOMAINS, "a {}.")


def _runs(name: str, class_texts: str, **values: object) -> bool:
    try:
        check_encoder(registry.get(name), registry.build_config(name, values), _context(class_texts))
    except FedLensError:
        return False
    return True


def test_methods_that_need_embeddings_alone_can_run():
    assert {name for name in BUILT_IN if _runs(name, "given")} == NO_VECTORS | CLASS_VECTORS
    without = {name: {"init": "random"} if name == "fedot" else {} for name in BUILT_IN}
    assert {name for name in BUILT_IN if _runs(name, "none", **without[name])} == NO_VECTORS


def test_a_refusal_names_the_methods_that_can_run():
    with pytest.raises(FedLensError) as refused:
        check_encoder(registry.get("promptfl"), registry.build_config("promptfl", {}), _context("none"))
    assert str(refused.value) == (
        "PromptFL cannot run with the backbone 'given': it learns inside CLIP's towers, or reads more of "
        "an image than its embedding; these can: FedOT (init = class_means), CLIP-FC, FedAKT(C), FedGH(C)"
    )
    with pytest.raises(FedLensError, match="FedCLIP cannot run .*: it needs a vector of each class"):
        check_encoder(registry.get("fedclip"), registry.build_config("fedclip", {}), _context("none"))


class Encoder(torch.nn.Module):
    """A scale and an embedding: all that an encoder without towers has."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64), requires_grad=False)

    def encode_image(self, pixels: torch.Tensor, normalize: bool) -> torch.Tensor:
        return pixels.flatten(1)[:, :16]


@pytest.mark.parametrize("name", sorted(NO_VECTORS | CLASS_VECTORS))
def test_they_touch_no_tower(name):
    draws = torch.randn(len(CLASSES), 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spec = BackboneSpec("drawn", 16, image_size=4, class_texts="given")
    backbone = Backbone(spec, Encoder(), None, None, torch.device("cpu"), "drawn", "fp32")
    known = {} if name in NO_VECTORS else dict(zip(CLASSES, draws, strict=True))
    federation = tiny_federation(replace(backbone, class_vectors=known))
    method = build(name, federation, **{"init": "random"} if name == "fedot" else {})
    first, _, last = run_rounds(method, federation, 2).finished
    assert first.cells and last.cells
    if name in CLASS_VECTORS:
        assert torch.equal(federation.problem.class_features, torch.nn.functional.normalize(draws, dim=-1))


def test_class_means_are_those_of_the_clients_training_samples(tmp_path):
    """Which no test or validation sample, nor a held-out domain, can change."""

    def means(held_out: str | None) -> torch.Tensor:
        written = TOML.format(root=embedding_file(tmp_path)) + '[[methods]]\nname = "fedot"\n'
        (run,) = plan(config.loads(written)).runs
        run = run.model_copy(update={"held_out": held_out})
        method = result_of(set_up_again(run, tmp_path / "artifacts", "cpu")).method
        return method.problem.class_means.double()

    arrays = np.load(embedding_file(tmp_path))
    unit = torch.nn.functional.normalize(torch.from_numpy(arrays["embedding"]).double(), dim=-1)
    for held_out in (None, "sketch"):
        used = (arrays["split"] == "train") & (arrays["domain"] != held_out)
        rows = [torch.from_numpy(np.flatnonzero(used & (arrays["label"] == name))) for name in NAMES]
        expected = torch.stack([unit[of_class].mean(0) for of_class in rows])
        torch.testing.assert_close(
            means(held_out), torch.nn.functional.normalize(expected, dim=-1), atol=1e-6, rtol=0
        )
