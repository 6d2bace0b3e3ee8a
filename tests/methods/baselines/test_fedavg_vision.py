import copy
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlparse

import pytest
import torch
import torchvision

from fedcore.base.errors import FedLensError
from fedcore.methods.baselines.fedavg_vision import WEIGHTS, weights_file
from tests.support.against import build, engine_batches, global_logits, samples
from tests.support.tiny import run_rounds, tiny_backbone, tiny_federation

SMALL = {"batch_size": 2, "lr": 0.02, "weighting": "samples"}


@pytest.fixture
def backbone():
    """The tiny CLIP, with images that a ResNet reduces to four positions."""
    tiny = tiny_backbone()
    return replace(tiny, spec=replace(tiny.spec, image_size=48))


def module_of(method, values):
    module = method._drawn(0).double()
    module.load_state_dict({**module.state_dict(), **values})
    return module


@pytest.mark.parametrize(
    ("network", "rounds"), [pytest.param("resnet18", 2, marks=pytest.mark.slow), ("vit_tiny", 2)]
)
def test_agrees_with_the_naive_implementation(backbone, network, rounds):
    """Copies of torchvision's module, torch's own optimiser, and a mean over whole state dicts."""
    federation = tiny_federation(backbone, "pixels", samples=(4, 2, 4))
    method = build("fedavg-vision", federation, **SMALL, network=network)
    first = method.init(federation.problem.generator).shared
    common = module_of(method, first)
    xs, labels = samples(federation)
    weights = [4 / 10, 2 / 10, 4 / 10]
    for steps_of in engine_batches(federation, method, rounds):
        trained = []
        for k, steps in enumerate(steps_of):
            local = copy.deepcopy(common).train()
            moves = torch.optim.SGD(local.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
            for chosen in steps:
                moves.zero_grad()
                torch.nn.functional.cross_entropy(local(xs[k][chosen]), labels[k][chosen]).backward()
                moves.step()
            trained.append(local.state_dict())
        mean = {n: sum(w * t[n] for w, t in zip(weights, trained, strict=True)) for n in first}
        common.load_state_dict({**common.state_dict(), **mean})

    state = run_rounds(method, federation, rounds).state
    for name, value in common.state_dict().items():
        if name in first:
            torch.testing.assert_close(state.shared[name], value, atol=1e-6, rtol=0, msg=name)
    moved = max(float((state.shared[n] - first[n]).abs().max()) for n in first)
    assert moved > 1e-3 and bool(method.statistics) == (network == "resnet18")
    common.eval()
    expected = common(federation.pool.values)
    torch.testing.assert_close(global_logits(method, state, federation), expected, atol=1e-6, rtol=0)


def test_pretrained_weights_come_from_torchs_cache_and_keep_a_fresh_classifier(
    backbone, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    backbone.model.visual.preprocess_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    federation = tiny_federation(backbone, "pixels")
    with pytest.raises(FedLensError, match="not on this machine .* download them once: python -c") as error:
        build("fedavg-vision", federation, weights="pretrained")
    assert error.value.field == "weights"
    monkeypatch.setitem(WEIGHTS, "resnet18", "resnet18-test.pth")
    path = weights_file("resnet18")
    path.parent.mkdir(parents=True)
    saved = torchvision.models.resnet18(weights=None).state_dict()
    torch.save(saved, path)
    method = build("fedavg-vision", federation, network="resnet18", weights="pretrained")
    first = method.init(federation.problem.generator).shared
    assert torch.equal(first["conv1.weight"], saved["conv1.weight"].double())
    assert first["fc.weight"].shape == (3, 512)
    plain = torch.rand(2, 3, 48, 48, dtype=torch.float64)
    seen = []
    method._network.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    method.logits({n: v[None] for n, v in first.items()}, {}, ((plain - 0.5) / 0.25)[None])
    imagenet = torchvision.transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    torch.testing.assert_close(seen[0], imagenet(plain), atol=1e-6, rtol=0)


def test_the_files_are_those_that_torchvision_downloads(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for network, name in WEIGHTS.items():
        url = torchvision.models.get_model_weights(network)["IMAGENET1K_V1"].url
        assert Path(urlparse(url).path).name == name
        assert weights_file(network) == Path(torch.hub.get_dir()) / "checkpoints" / name
