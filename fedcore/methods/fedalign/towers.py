"""FedAlign trains low-rank updates of attention in both towers of CLIP, or all parts that its Table 4 counts.

Beside them stands the penalty that keeps the classes' features orthogonal.
"""

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip.adapters import Lora, LowerLayers, first_adapted_layer, init_lora
from fedcore.clip.backbone import Backbone
from fedcore.clip.prompts import EnteredTexts, encode_texts, enter_texts
from fedcore.clip.specs import BackboneSpec
from fedcore.methods.fedalign.config import FedAlignConfig, OrthogonalityNorm


def encoding(config: FedAlignConfig, spec: BackboneSpec) -> str:
    """Return the encoding that enters the lowest trained part of the image tower; it is made only once."""
    if config.trainable == "table4":
        return "patches"
    return f"layer:{first_adapted_layer(config.start_layer, spec.vision_layers)}"


def named(tower: str, parts: fl.Params) -> fl.Params:
    """Prefix the names of a tower's parts as a state does: a of the image tower is image_a."""
    return {f"{tower}_{part}": value for part, value in parts.items()}


def parts_of(tower: str, params: fl.Params) -> fl.Params:
    """Return the parts of one tower in a state, without the prefix."""
    prefix = f"{tower}_"
    return {name.removeprefix(prefix): v for name, v in params.items() if name.startswith(prefix)}


def orthogonality(
    features: Tensor,
    labels: Tensor,
    mask: Tensor,
    classes: int,
    renormalise: bool,
    norm: OrthogonalityNorm = "frobenius",
) -> Tensor:
    """Return L_orth = || Z Z^T - I ||, with Z the mean normalised features of the batch's classes.

    Shape: features (clients, batch, d), labels and mask (clients, batch) -> (clients,).  Source: Eq. 7.
    """
    means, counts = fl.class_means(features, labels, mask, classes)
    if renormalise:
        means = F.normalize(means, dim=-1)
    present = (counts > 0).to(features.dtype)
    difference = means @ means.transpose(1, 2) - torch.diag_embed(present)
    if norm == "mean_squares":
        size = difference.square().sum((1, 2)) / present.sum(1).clamp(min=1) ** 2
    elif norm == "spectral":
        size = torch.linalg.matrix_norm(difference, ord=2)
    else:
        size = torch.linalg.vector_norm(difference, dim=(1, 2))  # its gradient at 0 is 0, unlike sqrt(sum)'s
    return torch.where(present.sum(1) > 1, size, 0.0)


def gradient_share(term: Tensor, rest: Tensor, parameters: list[Tensor]) -> Tensor:
    """Return |grad of term| / (|grad of term| + |grad of rest|) for each client; 0 if both are zero.

    The graph is retained, so that the step's gradient can follow.

    Shape: term and rest (clients,), parameters (clients, ...) each -> (clients,).
    """
    sizes = []
    for loss in (term, rest):
        gradients = torch.autograd.grad(loss.sum(), parameters, retain_graph=True, materialize_grads=True)
        sizes.append(torch.cat([g.flatten(1) for g in gradients], 1).norm(dim=1))
    share: Tensor = sizes[0] / (sizes[0] + sizes[1]).clamp(min=torch.finfo(sizes[0].dtype).tiny)
    return share


class Towers:
    """Both towers as functions of their trainable parts.

    Image parts, with a client axis: a (clients, layers, 3, r, width) and b (clients, layers, 3, width, r);
    under table4 also class (clients, width), positions (clients, tokens, width) and projection (clients,
    width, d). Text parts, without: a, b; under table4 also positions (context_length, m) and the low-rank
    update of the token embedding, tokens_a (r, m) and tokens_b (vocabulary, r).
    """

    def __init__(self, config: FedAlignConfig, backbone: Backbone, low: int) -> None:
        """Prepare the towers; the ``low`` lowest adapted image layers take the global mean."""
        self.config, self.backbone = config, backbone
        self.everything = config.trainable == "table4"
        self.parts = ("a", "b", *(("class", "positions", "projection") if self.everything else ()))
        self.start = first_adapted_layer(config.start_layer, backbone.spec.vision_layers)
        self.text_start = first_adapted_layer(config.start_layer, backbone.spec.text_layers)
        self.lower = LowerLayers(backbone.image.between, self.start, self.start + low)
        self._entered: tuple[list[str], EnteredTexts] | None = None

    def first_image(self, generator: fl.Generators) -> fl.Params:
        """Return the initial parts, with which the image tower is CLIP's, without the client axis."""
        spec = self.backbone.spec
        parts = self._lora("image", spec.vision_layers - self.start, spec.vision_width, generator)
        if self.everything:
            visual = self.backbone.image.visual
            first = {
                "class": visual.class_embedding,
                "positions": visual.positional_embedding,
                "projection": visual.proj,
            }
            parts |= {name: value.detach().clone() for name, value in first.items()}
        return parts

    def first_text(self, generator: fl.Generators) -> fl.Params:
        """Return the initial parts, with which the text tower is CLIP's: every B is zero."""
        spec = self.backbone.spec
        parts = self._lora("text", spec.text_layers - self.text_start, spec.token_width, generator)
        if self.everything:
            model = self.backbone.text.model
            drawn = self._lora("tokens", 1, spec.token_width, generator)["a"]
            vocabulary = model.token_embedding.num_embeddings
            parts["positions"] = model.positional_embedding.detach().clone()
            parts["tokens_a"] = drawn[0, 0].clone()
            parts["tokens_b"] = drawn.new_zeros(vocabulary, self.config.rank)
        return parts

    def _lora(self, tower: str, layers: int, width: int, generator: fl.Generators) -> fl.Params:
        draws = generator("lora", tower)
        factors = init_lora(layers, width, self.config.rank, draws, self.backbone.dtype)
        return {name: value.to(self.backbone.device) for name, value in zip("ab", factors, strict=True)}

    def image(self, parts: fl.Params, x: Tensor) -> Tensor:
        """Return normalised features of encoded images.

        Shape: x (clients, samples, tokens or patches, width) -> (clients, samples, d).
        """
        tower, start = self.backbone.image, self.start
        if self.everything:
            x, start = tower.embed(x, parts["class"], parts["positions"]), 0
        lora = Lora(parts["a"], parts["b"], self.config.gamma, self.start)
        if torch.is_grad_enabled():
            self.lower.images = {}  # training changes the models
        elif not self.everything:
            above = self.lower(x, lora)
            x, start = (x, start) if above is None else (above, self.lower.stop)
        return F.normalize(tower.tail(x, start, lora, parts.get("projection")), dim=-1)

    def text(self, parts: fl.Params, texts: list[str]) -> Tensor:
        """Return normalised features of class texts. Shape: -> (K, d)."""
        tower, gamma = self.backbone.text, self.config.gamma
        lora = Lora(parts["a"][None], parts["b"][None], gamma, self.text_start)
        if not self.everything:  # the layers below the adapted ones never change
            if self._entered is None or self._entered[0] != texts:
                self._entered = texts, enter_texts(self.backbone, texts, self.text_start)
            of = self._entered[1]
            out = tower.tail(of.sequences, of.start, lora=lora)
            return F.normalize(out[0], dim=-1)

        def adapted(ids: Tensor) -> Tensor:
            return tower.embed(ids) + gamma * parts["tokens_b"][ids] @ parts["tokens_a"]

        out = encode_texts(self.backbone, texts, lora, adapted, parts["positions"])
        return F.normalize(out, dim=-1)
