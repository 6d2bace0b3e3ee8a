"""Products with packed weights: equal to the plain ones within single precision, chosen by a measurement."""

from dataclasses import replace
from itertools import accumulate

import pytest
import torch

from fedcore import config
from fedcore.clip import packed, prefixed, products, speed
from fedcore.clip.encodings import parse_reads
from fedcore.clip.prompts import sentences
from fedcore.engine import setup
from fedcore.engine.clients.local import train_clients
from fedcore.engine.clients.optimisers import ClientOptimiser
from fedcore.engine.environment import check_versions, resolve_environment
from fedcore.engine.train import train
from fedcore.errors import FedLensError
from fedcore.methods import registry
from fedcore.records.events import RoundFinished, Started
from fedcore.results.run_files import repeat_command
from tests.support.against import build
from tests.support.tiny import drawn_backbone, tiny_backbone, tiny_federation

pytestmark = pytest.mark.skipif(not speed.can_pack(), reason="this build of torch has no oneDNN")


@pytest.fixture
def made(monkeypatch) -> list[tuple[int, ...]]:
    """Pack towers of any width; returns the shapes of the packed products, in order."""
    monkeypatch.setattr(packed, "MIN_WIDTH", 8)
    monkeypatch.setattr(speed, "MIN_WIDTH", 8)
    shapes: list[tuple[int, ...]] = []
    product = packed.Copies.product

    def noted(copies, x, weight, bias):
        shapes.append(tuple(weight.shape))
        return product(copies, x, weight, bias)

    monkeypatch.setattr(packed.Copies, "product", noted)
    return shapes


def three_ways(made, compute):
    """Return what a function of a backbone gives in float64, float32, and float32 with packed weights."""
    exact, plain = compute(tiny_backbone()), compute(tiny_backbone(dtype=torch.float32))
    assert not made
    backbone = tiny_backbone(dtype=torch.float32)
    packed.pack(backbone.model)
    return exact, plain, compute(backbone)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("reads", ["embedding", "regions", "layer:2"])
def test_packed_towers_encode_images_as_single_precision_allows(made, reads):
    pixels = torch.randn(5, 3, 16, 16)

    def encode(backbone) -> torch.Tensor:
        with torch.no_grad():
            return parse_reads(reads)(backbone, pixels.to(backbone.dtype))

    exact, plain, ours = three_ways(made, encode)
    assert made and error(ours, exact) < 3 * error(plain, exact) + 1e-6


def test_a_packed_tower_encodes_sentences_as_its_model_does(made):
    texts = ["a cat", "a much longer text"]
    exact, plain, ours = three_ways(made, lambda backbone: sentences(backbone, texts))
    assert made and error(ours, exact) < 3 * error(plain, exact) + 1e-6
    backbone = tiny_backbone(dtype=torch.float32)
    packed.pack(backbone.model)
    with torch.no_grad():
        ids = backbone.tokenize(texts)
        by_model = torch.nn.functional.normalize(backbone.model.encode_text(ids), dim=-1)
    assert error(by_model, exact) < 3 * error(plain, exact) + 1e-6


@pytest.mark.parametrize("name", ["promptfl", "feddeap", "sdfed", "fedalign"])
def test_a_step_with_packed_towers_moves_as_single_precision_allows(made, monkeypatch, name):
    monkeypatch.setattr(prefixed, "_FEWEST_NUMBERS", 0)

    def step(backbone) -> torch.Tensor:
        cls = registry.get(name)
        reads = cls.reads(registry.build_config(name, {}), backbone.spec)
        federation = tiny_federation(backbone, reads, samples=(4, 3))
        method = build(name, federation, batch_size=4)
        with torch.no_grad():
            state = method.init(federation.problem.generator)
        shared = {n: v.expand(2, *v.shape).clone() for n, v in state.shared.items()}
        given = {**shared, **state.personal, **state.local}
        data = federation.local_data(torch.arange(2))
        params = train_clients(method, given, data, 1, ClientOptimiser(method.config, 2), max_steps=1).params
        return torch.cat(
            [
                (params[n] - given[n]).flatten().double()
                for n in sorted(params)
                if params[n].is_floating_point()
            ]
        )

    exact, plain, ours = three_ways(made, step)
    assert made, "the towers of the step are packed"
    assert error(ours, exact) < 3 * error(plain, exact) + 1e-6


def test_parts_of_a_weight_and_its_transpose_have_copies_of_their_own_and_gradients(made):
    weight = torch.nn.Parameter(torch.randn(12, 5), requires_grad=False)
    weight.packed = packed.Copies()
    for part in (weight, weight[:4], weight[4:], weight.T, weight[4:].T):
        x = torch.randn(3, 2, part.shape[1], requires_grad=True)
        y = products.linear(x, part)
        torch.testing.assert_close(y, x @ part.T)
        back = torch.randn_like(y)
        torch.testing.assert_close(torch.autograd.grad(y, x, back)[0], back @ part)
    assert len(made) == 10
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.linear(torch.ones(1, 5), weight).dtype == torch.bfloat16
    assert len(made) == 10, "under autocast the product is torch's"


def clock_of(*durations: float):
    """A clock that is read before and after each piece of work, which takes these seconds in turn."""
    times = accumulate((0.0, *(part for seconds in durations for part in (seconds, 0.0))))
    return lambda: next(times)


def test_the_measurement_decides(monkeypatch):
    assert speed.packing_gain(clock_of(*(3, 9) * 6, 2, 9, 9, 1)) == 2.0, "the fastest of each"
    for gain, pays in ((1.39, False), (1.41, True)):
        speed.pays.cache_clear()
        monkeypatch.setattr(speed, "packing_gain", lambda found=gain: found)
        assert speed.pays() == pays
        assert speed.way([("ViT-B-32", "fp32")], "cpu") == ("packed" if pays else "plain")
    monkeypatch.setattr(speed, "packing_gain", lambda: 1 / 0)
    speed.pays.cache_clear()
    assert speed.way([("mini-vit", "fp32"), ("ViT-B-32", "bf16")], "cpu") == "plain", "nothing is measured"
    assert speed.way([("ViT-B-32", "fp32")], "cuda:0") == "plain"


def test_the_user_may_ask_for_a_way(monkeypatch):
    monkeypatch.setattr(speed, "pays", lambda: 1 / 0)
    for given in ("plain", "packed"):
        monkeypatch.setenv("FEDLENS_PRODUCTS", given)
        assert speed.way([("ViT-B-32", "fp32")], "cpu") == given
        assert speed.way([("mini-vit", "fp32")], "cpu") == "plain"
    assert repeat_command("run.toml", {"device": "cpu", "threads": 2, "products": "packed"}) == (
        "FEDLENS_THREADS=2 FEDLENS_PRODUCTS=packed fedlens run run.toml --device cpu"
    )
    monkeypatch.setenv("FEDLENS_PRODUCTS", "fast")
    with pytest.raises(FedLensError, match="FEDLENS_PRODUCTS is 'fast'; give plain or packed"):
        speed.way([("mini-vit", "fp32")], "cpu")


RUN = """
rounds = 1
[data]
name = "rotated-digits"
domains = ["rot0", "rot15"]
shots = 2
[[methods]]
name = "fedclip"
"""


def test_new_runs_choose_and_others_keep_their_products(made, monkeypatch):
    (run,) = config.expand(config.loads(RUN))
    monkeypatch.setattr(speed, "pays", lambda: True)
    recorded = resolve_environment(run, "cpu", None)
    assert recorded["products"] == "packed"
    loaded = setup.load_backbones((run.backbone,), "cpu", recorded["products"])[run.backbone]
    assert loaded.packed and not setup.load_backbones((run.backbone,), "cpu")[run.backbone].packed
    older = {"threads": recorded["threads"], "chunk": recorded["chunk"]}
    assert resolve_environment(run, "cpu", older)["products"] == "plain"
    monkeypatch.setattr(speed, "pays", lambda: False)
    assert resolve_environment(run, "cpu", recorded)["products"] == "packed"
    assert resolve_environment(run, "cpu", None)["products"] == "plain"


@pytest.mark.slow
def test_a_run_records_its_products_and_goes_on_as_it_began(made, monkeypatch, tmp_path):
    (run,) = config.expand(config.loads(RUN))
    monkeypatch.setattr(setup, "_LOADED", {})
    places = {"artifacts": tmp_path, "folder": tmp_path / "run"}

    def trained(pays: bool, **options):
        monkeypatch.setattr(speed, "pays", lambda: pays)
        made.clear()
        events = list(train(run, **places, **options))
        (recorded,) = (e.environment for e in events if isinstance(e, Started))
        return recorded, [e for e in events if isinstance(e, RoundFinished)], len(made)

    recorded, rounds, count = trained(pays=True)
    assert recorded["products"] == "packed" and count and recorded["device"] == "cpu"
    again, (last,), count = trained(pays=False, resume_from=rounds[0].checkpoint, environment=recorded)
    assert again["products"] == "packed" and count and last.cells == rounds[1].cells
    older = {"threads": recorded["threads"], "chunk": recorded["chunk"]}
    plain, _, count = trained(pays=True, environment=older)
    assert plain["products"] == "plain" and not count, "a run that did not record it goes on with plain ones"
    assert len(list((tmp_path / "encodings").glob("*.npy"))) == 2, "images are encoded in both ways"


def test_a_machine_without_the_packed_way_says_so_or_trains_no_part(monkeypatch):
    (run,) = config.expand(config.loads(RUN))
    recorded = resolve_environment(run, "cpu", {"threads": 1, "products": "packed"})
    assert recorded["products"] == "packed"
    monkeypatch.setattr("fedcore.engine.environment.can_pack", lambda: False)
    resolved = resolve_environment(run, "cpu", recorded)
    assert resolved["products"] == "plain"
    with pytest.raises(FedLensError, match="a torch without the packed products"):
        check_versions(recorded, resolved)


def test_only_frozen_blocks_of_wide_towers_are_packed():
    backbone = replace(drawn_backbone(), model=tiny_backbone().model)
    packed.pack(backbone.model)
    assert not any(hasattr(p, "packed") for p in backbone.model.parameters()), "its towers are narrow"
