"""FedDEAP separates a shared semantic prompt from a private domain prompt by ETFs (Zheng et al., 2025).

V^s and V^d are fixed simplex ETFs, one column per class and per domain. A batch takes two steps:

    networks   L_s, L_d = CE(cos(Phi(h), V) / tau) of the images, by class and by domain          Eq. 3, 4
    prompts    text features of [SOS] p_s, mean(h) * p_d, "a photo of a {class}." [EOT]           Eq. 5, 6
               p_s moves by L_c + lambda L_sp, p_d by L_c + eta L_dp                              Eq. 8-11
    server     averages p_s, Phi_s and Phi_d; p_d never leaves its client

L_c is the cross-entropy of images and texts; L_sp and L_dp are L_s and L_d of the text features. Both
gradients are taken before either prompt moves.

Readings: the paper does not say which step comes first. Eq. 5 is read as the input of the text tower, so
that the product with mean(h) is never stored in p_d.
"""

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import model_validator

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Generator, Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip import specs
from fedcore.clip.backbone import Backbone
from fedcore.clip.prompts import (
    Suffix,
    check_prompts,
    check_room,
    class_suffix,
    draw_context,
    encode_class_context,
)

LAYERS = ("w1", "b1", "w2", "b2")
"""Parameters of a transformation network d -> d/2 -> d."""
NETWORKS = {"phi_s": "semantic", "phi_d": "domain"}
"""The two transformation networks and what they read."""
NO_NETWORK = {"semantic_alignment": (False,), "domain_alignment": (False,)}
"""Neither of them is trained."""


class FedDEAPConfig(fl.MethodConfig):
    left_open = (
        fl.OPTIMISER_STATE,
        fl.LeftOpen(
            "optimiser of the prompts",
            "the paper names none",
            "momentum and decay of the authors' code",
            {"plain SGD": {"momentum": 0.0, "weight_decay": 0.0}},
        ),
        fl.LeftOpen(
            "mean image embedding",
            "the paper does not say of which images it is in prediction; the authors' public code takes the "
            "test batch, sorted by class, whose mean can tell the classes",
            "of the client's training images",
            {"of the sorted test batch": {"image_context": "batch", "test_order": "sorted"}},
            unless={"personal_prompt": (False,)},
        ),
        fl.LeftOpen(
            "alignment losses",
            "by the equations they train the prompts; in the authors' public code they have no gradient",
            "they train the prompts",
            {"train nothing": {"semantic_alignment": False, "domain_alignment": False}},
            values=(True, False),
        ),
        fl.LeftOpen(
            "temperature of the ETF losses",
            "the equations share CLIP's; Appendix B and the authors' public code have 1",
            "CLIP's",
            {"1": {"etf_temperature": "1"}},
            unless=NO_NETWORK,
        ),
        fl.LeftOpen(
            "input of the networks",
            "the paper does not say whether embeddings are normalised first",
            "as they are",
            {"of unit length": {"phi_input": "normalised"}},
            unless=NO_NETWORK,
        ),
        fl.LeftOpen(
            "columns of the domain ETF",
            "the paper does not say whether clients of one domain share a column",
            "one per domain that trains",
            {"one per client": {"domain_etf": "client"}},
            unless={"client_per_domain": (True,)},
        ),
        fl.LeftOpen(
            "domain prompt of the global model",
            "the paper does not say what stands for the prompt of a domain that has no client",
            "nothing",
            {"the mean test image": {"unseen": "mean_image"}},
            unless={"held_out": (False,)},
        ),
    )

    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of the clients (paper: 1e-3; DomainNet-126: 1e-2)")
    weight_decay: fl.WeightDecay = fl.hyper(1e-5, "Weight decay (authors' code: 1e-5; the paper names none)")
    batch_size: fl.BatchSize = fl.hyper(64, "Samples in a local batch (paper: 64; DomainNet-126: 256)")
    prompt_length: fl.PromptLength = fl.hyper(16, "Vectors L of each of the two prompts, tokens (paper: 16)")
    personal_length: int | None = fl.hyper(
        None,
        "Vectors of the domain prompt, tokens (paper's Table 5: 12 beside 20, 20 beside 12); "
        "default: prompt_length",
        title="domain prompt length",
        ge=1,
        le=75,
        empty="the prompt length",
    )
    personal_prompt: bool = fl.hyper(
        True, "Learn a domain prompt that stays on its client (off: the paper's baseline)"
    )
    semantic_alignment: bool = fl.hyper(True, "Align text features with the semantic ETF (L_sp, Eq. 8)")
    domain_alignment: bool = fl.hyper(True, "Align text features with the domain ETF (L_dp, Eq. 10)")
    semantic_weight: fl.LossWeight = fl.hyper(
        1.0, "lambda, weight of L_sp for the shared prompt", search=fl.TENFOLD
    )
    domain_weight: fl.LossWeight = fl.hyper(
        1.0, "eta, weight of L_dp for the domain prompt", search=fl.TENFOLD
    )
    etf_temperature: Literal["1/s", "1"] = fl.hyper(
        "1/s",
        "Temperature of the ETF losses: CLIP's own, as in the equations, or 1 (authors' code)",
        title="ETF temperature",
        words={"1/s": "CLIP's own"},
    )
    phi_input: Literal["raw", "normalised"] = fl.hyper(
        "raw",
        "Input of the transformation networks: embeddings as they are (paper), or of unit length",
        title="transformation input",
        words={"raw": "as it is", "normalised": "of unit length"},
    )
    domain_etf: Literal["domain", "client"] = fl.hyper(
        "domain",
        "Columns of the domain ETF: one per domain, or one per client",
        title="domain ETF columns",
        words={"domain": "one per domain", "client": "one per client"},
    )
    image_context: Literal["train_mean", "batch"] = fl.hyper(
        "train_mean",
        "Mean embedding that scales the domain prompt in prediction: of the client's training "
        "images, or of the test batch (authors' code; a prediction then depends on its neighbours)",
        words={"train_mean": "mean training image", "batch": "mean of the test batch"},
    )
    test_order: Literal["shuffled", "sorted"] = fl.hyper(
        "shuffled",
        "Order in which test images form batches if a batch's mean enters the prediction; "
        "sorted: by class (authors' code), so that the mean can tell the classes",
        title="order of test images",
        words={"sorted": "sorted by class"},
    )
    unseen: Literal["semantic_only", "mean_image"] = fl.hyper(
        "semantic_only",
        "Global model, which has no domain prompt: leave it out, or put the test batch's mean "
        "embedding in its place",
        title="global model's context",
        words={"semantic_only": "left out", "mean_image": "mean of the test batch"},
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.domain_alignment and not self.personal_prompt:
            raise ValueError(
                "domain_alignment moves the domain prompt, which personal_prompt = false removes; "
                "turn both off"
            )
        if self.personal_length is not None and not self.personal_prompt:
            raise ValueError(
                "personal_length is that of the domain prompt, which personal_prompt = false removes; "
                "leave it out"
            )
        if self.test_order == "sorted" and not self.batch_mean_in_tests:
            raise ValueError(
                "test_order matters only if a test batch's mean enters the prediction; "
                "choose image_context = batch with it, or leave it out"
            )
        return self

    @property
    def batch_mean_in_tests(self) -> bool:
        """True if the mean of a test batch takes part in the prediction."""
        return self.personal_prompt and (self.image_context == "batch" or self.unseen == "mean_image")

    @property
    def lengths(self) -> dict[str, int]:
        """Lengths of p_s and, if there is one, p_d in tokens, by the field that sets them."""
        lengths = {"prompt_length": self.prompt_length}
        if self.personal_prompt:
            lengths["personal_length"] = self.personal_length or self.prompt_length
        return lengths

    @property
    def longer(self) -> str:
        """The field to shorten if the prompts are too long."""
        return max(self.lengths, key=self.lengths.__getitem__)


def domain_columns(config: FedDEAPConfig, client_domain: Sequence[int]) -> list[int]:
    """Return each client's column of the domain ETF, counted over the domains that train.

    Raises:
        FedLensError: for a client of several domains, with field ``domain_etf``.
    """
    if config.domain_etf == "client":
        return list(range(len(client_domain)))
    if -1 in client_domain:
        raise FedLensError(
            f"client number {client_domain.index(-1) + 1} mixes domains and has no column in the domain ETF; "
            "choose domain_etf = client, or a partition by domain",
            "domain_etf",
        )
    training = sorted(set(client_domain))
    return [training.index(domain) for domain in client_domain]


def check_frames(config: FedDEAPConfig, classes: int, domains: int, width: int) -> None:
    """Refuse ETFs that do not exist: fewer than two columns, or more than the embedding has dimensions.

    Raises:
        FedLensError: with field ``semantic_alignment`` or ``domain_etf``.
    """
    other = "choose domain_etf = client, or " if config.domain_etf == "domain" else ""
    wanted = []
    if config.semantic_alignment:
        wanted.append((classes, "classes", "semantic_alignment", "turn semantic_alignment off"))
    if config.domain_alignment:
        what = f"{config.domain_etf}s to train on"
        wanted.append((domains, what, "domain_etf", other + "turn domain_alignment off"))
    for columns, what, field, remedy in wanted:
        if columns < 2:
            raise FedLensError(f"an ETF takes two or more {what}, not {columns}; {remedy}", field)
        if columns > width:
            raise FedLensError(
                f"an ETF in {width} dimensions takes at most {width} {what}, not {columns}; {remedy}", field
            )


def simplex_etf(columns: int, width: int, generator: Generator) -> Tensor:
    """Return unit vectors with pairwise cosine -1/(n - 1): V = sqrt(n/(n-1)) U (I - 11^T/n), U^T U = I.

    Shape: -> (columns, width), one vector per row, float64.  Source: Section 3.2.
    """
    u, _ = torch.linalg.qr(torch.randn(width, columns, generator=generator, dtype=torch.float64))
    centred = torch.eye(columns, dtype=torch.float64) - 1 / columns
    vectors: Tensor = math.sqrt(columns / (columns - 1)) * (u @ centred).T
    return vectors


def frame(problem: fl.Problem, net: str, columns: int) -> Tensor:
    """Return the ETF of a network: a constant, drawn by seed and never sent. Shape: -> (columns, d)."""
    backbone = problem.backbone
    vectors = simplex_etf(columns, backbone.spec.embed_dim, problem.generator("etf", net))
    return vectors.to(backbone.device, backbone.dtype)


def transform(params: fl.Params, net: str, h: Tensor) -> Tensor:
    """Return Phi(h), a ReLU between two linear layers. Shape: h (clients, n, d) -> (clients, n, d)."""
    w1, b1, w2, b2 = (params[f"{net}_{part}"] for part in LAYERS)
    return fl.linear(torch.relu(fl.linear(h, w1, b1)), w2, b2)


def etf_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of text features, averaged over the classes (Eq. 8, 10).

    Shape: logits (clients, K, columns), target (clients, K) -> (clients,).
    """
    return fl.cross_entropy(logits, target, torch.ones_like(target, dtype=torch.bool))


def distance_bound(classes: int) -> float:
    """Return delta, the distance of two unit vectors at half the angle between ETF vectors (Eq. 23)."""
    return math.sqrt(2 - math.sqrt((2 * classes - 4) / (classes - 1)))


def entropy_bound(classes: int) -> float:
    """Return B(K), the entropy in nats of softmax(cos(v_k, V)) at an ETF vector v_k (Eq. 17 and 34)."""
    other = math.exp(-1 / (classes - 1))
    total = math.e + (classes - 1) * other
    return math.log(total) - (math.e - other) / total


class PromptedTexts:
    """The sequences [SOS] p_s[c, k] p_d[c, k] suffix[k], with classes of equally long names together.

    Under a causal mask [SOS] p_s is the same whatever follows it. It is a separate sequence in the text
    tower, so that the backward pass of p_d's loss does not enter it.
    """

    def __init__(self, backbone: Backbone, suffix: Suffix) -> None:
        self.backbone, self.suffix = backbone, suffix
        ends = suffix.eot.tolist()
        members = [[k for k, place in enumerate(ends) if place == end] for end in sorted(set(ends))]
        device = suffix.eot.device
        self.groups = [torch.tensor(classes, device=device) for classes in members]
        self.ends = sorted(set(ends))
        self.place = torch.cat(self.groups).argsort()

    def encode(self, shared: Tensor, private: Tensor) -> Tensor:
        """Return unnormalised text features.

        Shape: shared (clients, K, L, m), private (clients, K, L_d, m) -> (clients, K, d).
        """
        text, clients = self.backbone.text, len(shared)
        if not torch.is_grad_enabled() and torch.equal(shared, shared[:1].expand_as(shared)):
            shared = shared[:1]  # as evaluated after a broadcast
        with torch.no_grad():
            sos = text.embed(self.backbone.start_id)
        features = []
        for classes, end in zip(self.groups, self.ends, strict=True):
            first, second = (prompt[:, classes].flatten(0, 1) for prompt in (shared, private))
            after = self.suffix.embeddings[classes, : end + 1 + text.behind].repeat(clients, 1, 1)
            prefix = torch.cat([sos.expand(len(first), -1, -1), first], 1)
            pooled = torch.full((1,), private.shape[2] + end, device=private.device)
            out = text.encode(prefix, torch.cat([second, after], 1)[:, None], pooled)
            features.append(out.view(clients, len(classes), -1))
        return torch.cat(features, 1)[:, self.place]


@fl.method
class FedDEAP(fl.Method[FedDEAPConfig]):
    """FedDEAP: [SOS] p_s (mean(h) * p_d) "a photo of a {class}." [EOT], with p_s shared and p_d private."""

    name = "feddeap"
    about = fl.About(
        source="Zheng et al., FedDEAP: Adaptive Dual-Prompt Tuning for Multi-Domain Federated Learning, 2025",
        summary="CLIP stays frozen; every class gets two learned prompts, one shared by all clients and "
        "one of the client's own, which is scaled by the mean image embedding of its domain. "
        "Two small networks read semantics and domain out of CLIP's embeddings: each is trained to turn "
        "images towards fixed directions with maximal angles (a simplex ETF), one per class or domain. "
        "The same networks then align the text features: the shared prompt learns the classes, the private "
        "one the domain. "
        "Clients send the shared prompt and both networks, which the server averages. "
        "A domain without a client is served by the shared prompt alone.",
        charts=(
            fl.DiagnosticChart(
                "ETF alignment of the networks",
                {"semantic_etf_cosine": "semantic", "domain_etf_cosine": "domain"},
                unit="cosine",
                better="higher",
                note="Cosine between an image's feature after the network and the fixed direction "
                "of its class or domain.",
                default_visible=True,
            ),
            fl.DiagnosticChart(
                "How well the networks tell classes and domains",
                {
                    "semantic_shared_accuracy": "semantic",
                    "domain_shared_accuracy": "domain",
                    "semantic_network_accuracy": "semantic, as a client trained it",
                    "domain_network_accuracy": "domain, as a client trained it",
                },
                unit="%",
                note="The averaged networks, on the clients' training images. "
                "A client trains its networks on one domain only.",
            ),
            fl.DiagnosticChart(
                "FedDEAP's loss terms",
                {
                    "contrastive": "contrastive",
                    "text_semantic": "text, semantic",
                    "text_domain": "text, domain",
                    "image_semantic": "image, semantic",
                    "image_domain": "image, domain",
                },
                better="lower",
            ),
            fl.DiagnosticChart(
                "Distance within a class beside its bound (Section 2.8)",
                {"class_distance": "text to image of a class", "class_distance_bound": "delta"},
                better="lower",
                note="|Phi_s(text) - Phi_s(image)| of unit length, in the clients' training steps. The paper "
                "expects it below delta = sqrt(2 - sqrt((2K-4)/(K-1))) once images and texts are aligned.",
            ),
            fl.DiagnosticChart(
                "Entropy of the class texts beside its bound (Section 2.8)",
                {"text_entropy": "of softmax(cos(Phi_s(text), V))", "text_entropy_bound": "B(K)"},
                unit="nats",
                note="At temperature 1, as in Appendix B. B(K) is the entropy of a text that lies on the "
                "vector of its class. The bound of the mutual information adds constants that the paper "
                "does not give.",
            ),
        ),
        prompts={"p_s": "shared", "p_d": "domain"},
    )
    Config = FedDEAPConfig
    class_axes = {"p_s": -3, "p_d": -3}

    def __init__(self, config: FedDEAPConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        backbone = problem.backbone
        self.scale = backbone.logit_scale
        if config.batch_mean_in_tests:
            self.batch_order = config.test_order
        self.etf_scale = self.scale if config.etf_temperature == "1/s" else 1.0
        self.suffix = class_suffix(backbone, problem.classes, "a photo of a {}.")
        self.lengths = config.lengths
        check_room(backbone, sum(self.lengths.values()), self.suffix, config.longer)
        self.texts = PromptedTexts(backbone, self.suffix)
        sizes = {}
        if config.semantic_alignment:
            sizes["phi_s"] = len(problem.classes)
        if config.domain_alignment:
            columns = domain_columns(config, problem.client_domain.tolist())
            self.domain_of = torch.tensor(columns, device=problem.device)
            sizes["phi_d"] = int(self.domain_of.max()) + 1
        check_frames(config, len(problem.classes), sizes.get("phi_d", 0), backbone.spec.embed_dim)
        self.etf = {net: F.normalize(frame(problem, net, n), dim=-1) for net, n in sizes.items()}
        self.shared = ("p_s", *(f"{net}_{part}" for net in self.etf for part in LAYERS))

    plan_warnings = classmethod(fl.rate_warnings)

    @classmethod
    def check(cls, config: FedDEAPConfig, context: fl.RunContext) -> None:
        spec = context.spec
        check_prompts(spec)
        if config.personal_prompt and spec.embed_dim != spec.token_width:
            raise FedLensError(
                f"FedDEAP multiplies image embeddings (width {spec.embed_dim}) with prompt tokens (width "
                f"{spec.token_width}), which differ in {spec.name}; choose a backbone such as ViT-B-32",
                "personal_prompt",
            )
        vectors = sum(config.lengths.values())
        specs.check_room(spec, context.classes, vectors, config.longer, "a photo of a {}.")
        domains = 0
        if config.domain_alignment:
            first = context.client_domain or tuple(range(context.clients))
            domains = len(set(domain_columns(config, first)))
        check_frames(config, len(context.classes), domains, spec.embed_dim)

    @classmethod
    def bound_to_clients(cls, config: FedDEAPConfig) -> str:
        return "it aligns with the domains of the clients that take part" if config.domain_alignment else ""

    @classmethod
    def bound_to_classes(cls, config: FedDEAPConfig) -> str:
        return "it learns a prompt for each class"

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw prompts from N(0, 0.02) and networks as torch.nn.Linear does, the same for every client.

        Shape: p_s (K, L, m), p_d (clients, K, L_d, m), phi_*_w1 (d/2, d), _b1 (d/2,), _w2 (d, d/2), _b2 (d,).
        """
        backbone, classes = self.problem.backbone, len(self.problem.classes)

        def draw(name: str, length: str) -> Tensor:
            vectors, width = self.lengths[length], backbone.spec.token_width
            drawn = draw_context(classes * vectors, width, generator("prompt", name))
            return drawn.view(classes, vectors, width)

        shared, local = {"p_s": draw("p_s", "prompt_length")}, {}
        for net in self.etf:
            draws = generator("network", net)
            d = backbone.spec.embed_dim
            layers = (*fl.draw_linear(d // 2, d, draws), *fl.draw_linear(d, d // 2, draws))
            shared |= {f"{net}_{part}": value for part, value in zip(LAYERS, layers, strict=True)}
        if self.config.personal_prompt:
            local["p_d"] = draw("p_d", "personal_length")
        return fl.State(shared=self.place(shared), local=self.repeat(self.place(local)))

    @property
    def phases(self) -> tuple[fl.Phase, ...]:
        """First the networks on images, then, with the networks as they now are, the prompts."""
        return (self._train_networks, self._train_prompts) if self.etf else (self._train_prompts,)

    def _train_networks(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """L_s moves Phi_s, L_d moves Phi_d (Eq. 3, 4)."""
        losses, terms = {}, {}
        for net in self.etf:
            loss = fl.cross_entropy(
                self._etf_logits(params, net, batch.x), self._target(net, batch), batch.mask
            )
            losses[tuple(f"{net}_{part}" for part in LAYERS)] = loss
            terms["image_" + NETWORKS[net]] = loss
        return fl.Step(losses, terms=terms)

    def _train_prompts(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        """Train p_s by L_c + lambda L_sp (Eq. 9) and p_d by L_c + eta L_dp (Eq. 11)."""
        text = self._text(params, fl.masked_mean(batch.x, batch.mask[..., None]))
        contrast = fl.cross_entropy(fl.cosine_logits(batch.x, text, self.scale), batch.labels, batch.mask)
        losses: dict[tuple[str, ...], Tensor] = {("p_s",): contrast}
        terms = {"contrastive": contrast}
        if self.config.personal_prompt:
            losses[("p_d",)] = contrast
        if "phi_s" in self.etf:
            classes = torch.arange(text.shape[1], device=text.device).expand(text.shape[:2])
            moved = self._transformed(params, "phi_s", text)
            logits = self._cosines("phi_s", moved)
            terms["text_semantic"] = etf_loss(logits, classes)
            losses[("p_s",)] = contrast + self.config.semantic_weight * terms["text_semantic"]
            terms |= self._within_classes(params, moved.detach(), logits.detach(), batch)
        if "phi_d" in self.etf:
            domain = self.domain_of[batch.clients][:, None].expand(text.shape[:2])
            terms["text_domain"] = etf_loss(self._etf_logits(params, "phi_d", text), domain)
            losses[("p_d",)] = contrast + self.config.domain_weight * terms["text_domain"]
        return fl.Step(losses, terms=terms)

    def _within_classes(self, params: fl.Params, text: Tensor, logits: Tensor, batch: fl.Batch) -> fl.Params:
        """Return how near the images are to the text of their class, and the texts' entropy (Eq. 14, 32).

        Shape: text Phi_s(text) (clients, K, d), logits of the texts (clients, K, K) -> (clients,) each.
        """
        with torch.no_grad():
            images = F.normalize(self._transformed(params, "phi_s", batch.x), dim=-1)
            own = F.normalize(text, dim=-1).gather(1, batch.labels[..., None].expand_as(images))
            distance = torch.linalg.vector_norm(images - own, dim=-1)
            p = (logits / self.etf_scale).softmax(-1)
            return {
                "class_distance": fl.masked_mean(distance, batch.mask),
                "text_entropy": torch.special.entr(p).sum((-2, -1)) / p.shape[1],
            }

    @classmethod
    def result_caveat(cls, config: FedDEAPConfig, embedded: bool) -> str:
        if config.test_order == "shuffled":
            return ""
        return "tested on images sorted by class: the mean of a batch can reveal their class"

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return text features, unless they depend on the test batch. Shape: text (models, K, d)."""
        if not self.config.personal_prompt or (data is None and self.config.unseen == "semantic_only"):
            return {"text": encode_class_context(self.problem.backbone, params["p_s"], self.suffix)}
        if data is None or self.config.image_context == "batch":
            return {}
        return {"text": self._text(params, fl.masked_mean(data.x, data.mask[..., None]))}

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return s cos(image, text). Shape: x (models, samples, d) -> (models, samples, K).

        Without text features in the head, each ``batch_size`` samples in the given order make theirs.
        """
        if "text" in head:
            return fl.cosine_logits(x, head["text"], self.scale)
        parts = x.split(self.config.batch_size, dim=1)
        return torch.cat(
            [fl.cosine_logits(p, self._text(params, p.mean(1)), self.scale) for p in parts], dim=1
        )

    def features(self, params: fl.Params, head: fl.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and the prompted classes; the batch that a context depends on is all given samples.

        Shape: x (models, samples, d) -> (models, samples, d), (models, K, d).
        """
        return x, head["text"] if "text" in head else self._text(params, x.mean(1))

    def gradcam_scores(self, params: fl.Params, head: fl.Params, x: Tensor) -> dict[str, Tensor]:
        """Return the cosine of each network's output with its nearest ETF vector (Figure 5)."""
        return {NETWORKS[net]: self._etf_logits(params, net, x).amax(-1) for net in self.etf}

    def prompts(self, params: fl.Params, clients: Tensor | None) -> fl.Values:
        """Return p_s and p_d of every class. Shape: (models, K, L, m), (models, K, L_d, m)."""
        return {name: params[name] for name in ("p_s", "p_d") if name in params}

    def diagnostics(
        self, before: fl.State, trained: fl.Params, uploads: fl.Uploads, data: fl.LocalData
    ) -> dict[str, Tensor]:
        """Measure how closely the networks turn training images towards their ETF vectors.

        ``*_etf_cosine`` and ``*_network_accuracy`` measure the networks that a client trained. Its domain
        network saw one domain only and may predict it for any image, so ``*_shared_accuracy`` measures the
        averaged networks, which have to distinguish all clients' images.
        """
        values = {}
        if "phi_s" in self.etf:
            classes = len(self.problem.classes)
            bounds = {"class_distance": distance_bound(classes), "text_entropy": entropy_bound(classes)}
            values = {f"{name}_bound": torch.tensor(bound) for name, bound in bounds.items()}
        batch = fl.Batch.whole(data)
        weights = uploads.weights(self.config.weighting)
        for net in self.etf:
            target = self._target(net, batch)
            cosine = self._etf_logits(trained, net, batch.x) / self.etf_scale
            of_target = cosine.gather(2, target[..., None])[..., 0]
            values[f"{NETWORKS[net]}_etf_cosine"] = fl.masked_mean(of_target, data.mask)
            names = [f"{net}_{part}" for part in LAYERS]
            shared = {n: fl.weighted_mean(uploads.dense(n), weights).expand_as(trained[n]) for n in names}
            nearest = {"network": cosine, "shared": self._etf_logits(shared, net, batch.x)}
            for kind, scores in nearest.items():
                right = (scores.argmax(-1) == target).double()
                values[f"{NETWORKS[net]}_{kind}_accuracy"] = fl.masked_mean(right, data.mask)
        return values

    def _text(self, params: fl.Params, mean: Tensor) -> Tensor:
        """Return text features of the full prompt (Eq. 5, 6). Shape: mean(h) (clients, d) -> (clients, K, d).

        Without p_d (a domain without a client) mean(h) itself takes its place.
        """
        context = params["p_s"]
        if self.config.personal_prompt:
            second = mean[:, None, None]
            size = (-1, context.shape[1], self.lengths["personal_length"], -1)
            second = second * params["p_d"] if "p_d" in params else second.expand(size)
            return self.texts.encode(context, second)
        return encode_class_context(self.problem.backbone, context, self.suffix)

    def _etf_logits(self, params: fl.Params, net: str, h: Tensor) -> Tensor:
        """Return the logits cos(Phi(h), v) / tau.

        Shape: h (clients, n, d) -> (clients, n, columns of the ETF).
        """
        return self._cosines(net, self._transformed(params, net, h))

    def _cosines(self, net: str, out: Tensor) -> Tensor:
        vectors = self.etf[net].expand(len(out), -1, -1)
        return self.etf_scale * (F.normalize(out, dim=-1) @ vectors.transpose(-1, -2))

    def _transformed(self, params: fl.Params, net: str, h: Tensor) -> Tensor:
        """Return Phi(h), of embeddings as ``phi_input`` says. Shape: h (clients, n, d) -> (clients, n, d)."""
        return transform(params, net, F.normalize(h, dim=-1) if self.config.phi_input == "normalised" else h)

    def _target(self, net: str, batch: fl.Batch) -> Tensor:
        """Return the ETF vector that each image belongs to. Shape: (clients, batch)."""
        if net == "phi_s":
            return batch.labels
        return self.domain_of[batch.clients][:, None].expand_as(batch.labels)
