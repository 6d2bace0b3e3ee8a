"""FedAvg (ResNet, ViT) trains a whole network without CLIP, from scratch or from ImageNet weights.

    client: L = CE(f_theta(image)) on pixels;  server: theta <- mean of theta_i, with the running statistics

Each client normalises by its own batches; predictions use the averaged statistics (McMahan et al., 2017).
Reading: FedDEAP's comparison does not say which ViT; ViT-B/16 is that of the work it cites.
"""

import os
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.specs import BackboneSpec

PATCH = 16
STRIDE = 32
"""Pixels of a side that a ResNet reduces to one position."""
PRETRAINED_SIDE = 224
WEIGHTS = {"resnet50": "resnet50-0676ba61.pth", "vit_b_16": "vit_b_16-c867db91.pth"}
"""Network -> torchvision's file of its first ImageNet weights (IMAGENET1K_V1)."""
STATISTICS = ("running_mean", "running_var")
"""Buffers of batch normalisation, which are averaged like all weights."""
CLASSIFIERS = ("fc.", "heads.")
"""Beginnings of the names of the last layer's weights in torchvision's networks."""


class FedAvgVisionConfig(fl.MethodConfig):
    network: Literal["resnet50", "vit_b_16", "resnet18", "vit_tiny"] = fl.hyper(
        "resnet50",
        "Network of torchvision: ResNet-50 or ViT-B/16 (FedDEAP's comparison), or a small one to "
        "try things out: ResNet-18, or a ViT of 2 layers, width 24",
        words={
            "resnet50": "ResNet-50",
            "vit_b_16": "ViT-B/16",
            "resnet18": "ResNet-18",
            "vit_tiny": "tiny ViT",
        },
    )
    weights: Literal["scratch", "pretrained"] = fl.hyper(
        "scratch",
        "Initial weights: scratch, random ('full' in FedDEAP's tables); pretrained, ImageNet "
        "weights of ResNet-50 or ViT-B/16 ('tuning'), which have to be on this machine",
        title="initial weights",
        words={"scratch": "random", "pretrained": "ImageNet"},
    )
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of local SGD (FedDEAP's comparison: 0.001)")


@fl.method
class FedAvgVision(fl.Method[FedAvgVisionConfig]):
    """A network of torchvision; all of its weights and running statistics are averaged."""

    name = "fedavg-vision"
    about = fl.About(
        source="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, "
        "AISTATS 2017, with the networks of FedDEAP's comparison",
        summary="A ResNet or a Vision Transformer takes the place of CLIP and is trained as a whole. "
        "It starts from random weights, or from ImageNet weights that have been downloaded before. "
        "Every client trains all weights by cross-entropy; the server averages them, together with the "
        "running statistics of batch normalisation. "
        "The CLIP backbone only says how large the images are. "
        "All weights travel in every round: 25.6 million for ResNet-50, 86 million for ViT-B/16.",
    )
    clients_use_global = True
    Config = FedAvgVisionConfig

    def __init__(self, config: FedAvgVisionConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        drawn = self._drawn(0).state_dict()
        names = [n for n in drawn if not n.endswith("num_batches_tracked")]
        self.statistics = tuple(n for n in names if n.endswith(STATISTICS))
        self.weights = tuple(n for n in names if n not in self.statistics)
        self.shared = (*self.weights, *self.statistics)
        last = [name for name in self.weights if name.startswith(CLASSIFIERS)]
        self.class_axes = {name: -2 if name.endswith("weight") else -1 for name in last}

    @classmethod
    def bound_to_classes(cls, config: FedAvgVisionConfig) -> str:
        return "its classifier is not made of class names"

    @classmethod
    def check(cls, config: FedAvgVisionConfig, context: fl.RunContext) -> None:
        side, network = context.spec.image_size, config.network
        if network.startswith("vit") and side % PATCH:
            raise FedLensError(
                f"{network} reads patches of {PATCH} pixels, and images for {context.spec.name} have {side}; "
                "choose a ResNet, or a backbone with another image size",
                "backbone.name",
            )
        if network.startswith("resnet") and side <= STRIDE:
            raise FedLensError(
                f"{network} reduces the {side} pixels of {context.spec.name} to one position, and "
                f"cannot normalise a batch of one image; choose a backbone with more than {STRIDE} pixels",
                "backbone.name",
            )
        if config.weights == "scratch":
            return
        if network not in WEIGHTS:
            raise FedLensError(
                f"{network} has no ImageNet weights; choose resnet50, vit_b_16 or weights = scratch",
                "network",
            )
        if network.startswith("vit") and side != PRETRAINED_SIDE:
            raise FedLensError(
                f"the weights of {network} are for images of {PRETRAINED_SIDE} pixels, and those for "
                f"{context.spec.name} have {side}; choose e.g. ViT-B-32, or weights = scratch",
                "backbone.name",
            )
        path = weights_file(network)
        if not path.is_file():
            raise FedLensError(
                f"the ImageNet weights of {network} are not on this machine ({path}); download them once: "
                f"python -c \"import torchvision; torchvision.models.get_model('{network}', "
                "weights='IMAGENET1K_V1')\", or choose weights = scratch",
                "weights",
            )

    @classmethod
    def reads(cls, config: FedAvgVisionConfig, spec: BackboneSpec) -> str:
        """Return the encoding: the pixels themselves."""
        return "pixels"

    def init(self, generator: fl.Generators) -> fl.State:
        """Return the network's first weights and statistics; the classifier is drawn in any case."""
        network = self._drawn(generator("fedavg-vision", "weights").initial_seed())
        values = network.state_dict()
        if self.config.weights == "pretrained":
            loaded = torch.load(weights_file(self.config.network), weights_only=True)
            values |= {n: v for n, v in loaded.items() if n in values and v.shape == values[n].shape}
        return fl.State(shared=self.place({name: values[name] for name in self.shared}))

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """Return the losses, and the running statistics as each client's own batch moves them."""
        self._network.train()
        losses, moved = [], []
        for i, mask in enumerate(batch.mask):
            values = {name: value[i] for name, value in params.items()}
            values |= {name: values[name].detach().clone() for name in self.statistics}
            scores = self._scores(values, batch.x[i][mask])
            losses.append(F.cross_entropy(scores, batch.labels[i][mask]))
            moved.append(values)
        statistics = {name: torch.stack([values[name] for values in moved]) for name in self.statistics}
        return fl.Step({self.weights: torch.stack(losses)}, moved=statistics)

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return class scores. Shape: x (models, samples, 3, side, side) -> (models, samples, classes)."""
        self._network.eval()
        models = [{name: value[i] for name, value in params.items()} for i in range(len(x))]
        return torch.stack([self._scores(model, images) for model, images in zip(models, x, strict=True)])

    def _scores(self, values: fl.Params, x: Tensor) -> Tensor:
        """Return one model's scores. Shape: x (samples, 3, side, side) -> (samples, classes)."""
        if self.config.weights == "pretrained":
            scale, shift = self._to_imagenet
            x = x * scale + shift
        scores: Tensor = torch.func.functional_call(self._network, values, (x,))
        return scores

    @cached_property
    def _network(self) -> Any:
        """The network's code; its own weights are never used."""
        return self._drawn(0).to(self.problem.device)

    @cached_property
    def _to_imagenet(self) -> tuple[Tensor, Tensor]:
        """Factor and summand that turn pixels normalised for CLIP into those for ImageNet weights."""
        clip = self.problem.backbone.model.visual.preprocess_cfg
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        pair = torch.tensor(clip["std"]) / std, (torch.tensor(clip["mean"]) - mean) / std
        target = (self.problem.device, self.problem.backbone.dtype)
        scale, shift = (value.view(3, 1, 1).to(*target) for value in pair)
        return scale, shift

    def _drawn(self, seed: int) -> Any:
        """Return a network with torchvision's random weights, drawn from a seed."""
        import torchvision.models as vision

        classes, side = len(self.problem.classes), self.problem.backbone.spec.image_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.config.network == "vit_tiny":
                sizes = {"num_layers": 2, "num_heads": 3, "hidden_dim": 24, "mlp_dim": 48}
                return vision.VisionTransformer(side, PATCH, **sizes, num_classes=classes)
            size = {"image_size": side} if self.config.network == "vit_b_16" else {}
            return vision.get_model(self.config.network, weights=None, num_classes=classes, **size)


def weights_file(network: str) -> Path:
    """Return the path of a network's ImageNet weights in torch's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("TORCH_HOME") or f"{cache}/torch"
    return Path(home).expanduser() / "hub" / "checkpoints" / WEIGHTS[network]
