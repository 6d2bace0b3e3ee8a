"""Tip-Adapter compares an image with a cache of the client's own training images (Zhang et al., ECCV 2022).

    F: normalised features of the training images (keys), Y: their labels, one-hot (values)
    scores  s h/|h| . z_k + alpha sum_n exp(-beta (1 - h/|h| . F_n)) Y_nk

z_k is the text feature of the class prompt. Tip-Adapter trains nothing; Tip-Adapter-F trains the keys F by
L = CE(scores). alpha and beta are searched on the client's validation samples.

The keys are features of training images, so they stay on their client: nothing is sent, and there is no
global model. Y has no column for a class that the client does not hold, such as one that nobody has trained
on; the cache then adds 0, and the class is scored as zero-shot CLIP does.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F

BETAS, ALPHAS = (200, 12.0), (20, 5.0)
"""Steps of the search from 0.1 on and its upper end, which is not reached (authors' code, Caltech-101)."""


def _steps(count: int, end: float) -> Tensor:
    """Return the values that a search tries. Shape: -> (count,)."""
    return 0.1 + torch.arange(count, dtype=torch.float64) * (end - 0.1) / count


def _refuse_sharing(value: object) -> object:
    """Refuse to send the cache.

    Raises:
        ValueError: if the value is another one than "local".
    """
    if value != "local":
        raise ValueError(
            "the cache cannot be shared: its keys are the features of the clients' training images, and "
            'sending them would send the images\' content; leave share = "local"'
        )
    return value


class CacheConfig(BaseModel):
    """The cache's own hyper-parameters, which Tip-Adapter and Tip-Adapter-F have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alpha: float = fl.hyper(
        1.17,
        "Weight of the cache beside CLIP's scores (authors' code: 1.17, 1 to 10 by data set)",
        ge=0,
        le=100,
    )
    beta: float = fl.hyper(
        1.0, "Sharpness of the cache: the larger, the fewer keys count (authors' code: 1)", ge=0, le=100
    )
    search: Literal["validation", "none"] = fl.hyper(
        "validation",
        "alpha and beta of each client: validation, the best on its own validation samples (paper), "
        "beginning with the values above; none, these values",
        title="search of alpha and beta",
        words={"validation": "on validation samples", "none": "as given"},
    )
    share: Annotated[Literal["local"], BeforeValidator(_refuse_sharing)] = fl.hyper(
        "local",
        "The cache stays with its client; a shared one would send features of training images and is refused",
        title="cache",
        words={"local": "stays with its client"},
    )


class TipAdapterFConfig(CacheConfig, fl.MethodConfig):
    optimiser: fl.Optimiser = fl.hyper("adamw", "Local optimiser (authors' code: AdamW with epsilon = 1e-4)")
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of the keys (authors' code: 0.001)")
    schedule: fl.RateSchedule = fl.hyper("cosine", fl.HALF_COSINE)
    weight_decay: fl.WeightDecay = fl.hyper(
        0.0, "Weight decay of the keys' change (authors' code: 0.01 of the keys, 1e-5 of them in a step)"
    )
    batch_size: fl.BatchSize = fl.hyper(256, "Samples in a local batch (authors' code: 256)")
    optimiser_state: Literal["fresh", "kept"] = fl.hyper(
        "kept", "State of the local optimiser: kept, so that R rounds are R epochs of one training, or fresh"
    )
    weighting: fl.Weighting = fl.hyper("uniform", "No effect: the server averages nothing")
    proximal: fl.LossWeight = fl.hyper(0.0, "No effect: clients receive nothing")

    @property
    def adam(self) -> tuple[float, float, float]:
        """beta_1, beta_2 and epsilon, the last one as in the authors' code."""
        return 0.9, 0.999, 1e-4


SOURCE = "Zhang et al., Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification, ECCV 2022"


@fl.method
class TipAdapter(fl.Method[Any]):
    """s h . z_k + alpha exp(-beta (1 - h F^T)) Y with a cache F, Y of each client's training images."""

    name = "tip-adapter"
    about = fl.About(
        source=SOURCE,
        summary="Both of CLIP's encoders stay frozen and nothing is trained. "
        "Each client keeps the features of its training images with their labels. "
        "An image is scored by CLIP's class prompts; in addition each stored image votes for its own "
        "class, with more weight the closer it is. "
        "How much the votes count is chosen on the client's validation samples. "
        "The stored features never leave the client: nothing is sent, and there is no global model. "
        "A class of which the client has no image is scored as by zero-shot CLIP, except that "
        "other classes get votes.",
    )
    trains = False
    Config = CacheConfig

    def init(self, generator: fl.Generators) -> fl.State:
        """Return nothing but the clients' numbers: their caches follow from their data.

        Shape: client (clients, 1).
        """
        return fl.State(local={"client": torch.arange(len(self.problem.clients))[:, None]})

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return the cache of each client, with alpha and beta.

        Shape: keys (clients, n, d), values (clients, n, classes), alpha and beta (clients, 1, 1).
        """
        assert data is not None, "there is no global model"
        cache = self._cache(params, data)
        alpha, beta = self._weights(cache, data)
        if data.problem.classes != self.problem.classes:
            places = {name: k for k, name in enumerate(self.problem.classes)}
            held = [(i, places[n]) for i, n in enumerate(data.problem.classes) if n in places]
            sources, targets = torch.tensor(held, dtype=torch.int64).view(-1, 2).unbind(1)
            trained = cache["values"]
            cache["values"] = trained.new_zeros(*trained.shape[:2], len(places))
            cache["values"][..., targets] = trained[..., sources]
        return {**cache, "alpha": alpha, "beta": beta}

    def _cache(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
        """Return keys and values; padding has no value and so no vote.

        Shape: keys (clients, n, d), values (clients, n, classes of training).
        """
        values = F.one_hot(data.labels, len(data.problem.classes)) * data.mask[..., None]
        return {"keys": F.normalize(data.x, dim=-1), "values": values.to(data.x.dtype)}

    def _weights(self, cache: fl.Params, data: fl.LocalData) -> tuple[Tensor, Tensor]:
        """Return alpha and beta: as given, or those that are right on most validation samples of the client.

        The given pair stays unless one of the grid is right on more; of several the first one counts, beta by
        beta. Training's class names are scored, whichever ones the model is asked about.

        Shape: -> (clients, 1, 1) each.
        """
        keys, rows = cache["keys"], data.validation
        alpha, beta = (keys.new_full((len(keys), 1, 1), v) for v in (self.config.alpha, self.config.beta))
        if self.config.search == "none" or rows is None or not rows.flat.numel():
            return alpha, beta
        h = F.normalize(data.pool.x(rows.index), dim=-1)
        labels, mask = data.pool.y(rows.index), rows.mask.to(keys.device)
        zero_shot = self.problem.backbone.logit_scale * (h @ data.problem.class_features.T)
        near = h @ keys.transpose(1, 2)

        def right(alphas: Tensor, beta: Tensor | float) -> Tensor:
            votes = torch.exp(-beta * (1 - near)) @ cache["values"]
            hits = (zero_shot + alphas * votes).argmax(-1) == labels
            return (hits & mask).sum(-1)

        most, grid = right(alpha, beta), _steps(*ALPHAS).to(keys)
        for step in _steps(*BETAS).tolist():
            count, place = right(grid.view(-1, 1, 1, 1), step).max(0)
            better = (count > most)[:, None, None]
            alpha, beta = (
                torch.where(better, new, old)
                for new, old in ((grid[place][:, None, None], alpha), (torch.full_like(beta, step), beta))
            )
            most = torch.maximum(most, count)
        return alpha, beta

    def logits(self, params: fl.Params, head: fl.Params, x: Tensor) -> Tensor:
        """Return CLIP's scores and the cache's votes.

        Shape: x (models, samples, d) -> (models, samples, classes).
        """
        h = F.normalize(x, dim=-1)
        near = h @ head["keys"].transpose(1, 2)
        votes = torch.exp(-head["beta"] * (1 - near)) @ head["values"]
        zero_shot = self.problem.backbone.logit_scale * (h @ self.problem.class_features.T)
        return zero_shot + head["alpha"] * votes

    def numbers_per_sample(self) -> int:
        """Return the similarities of a sample to the keys of the largest cache."""
        return int(self.problem.samples.max())


@fl.method
class TipAdapterF(TipAdapter):
    """Tip-Adapter with trained keys F + x, where x is what each client learns."""

    name = "tip-adapter-f"
    about = fl.About(
        source=SOURCE,
        summary="Tip-Adapter whose stored features are trained. "
        "They begin as the features of the client's training images, and cross-entropy on these images moves "
        "them; their labels and both of CLIP's encoders stay as they are. "
        "Each client trains its own cache alone, since sending it would send features of its images: nothing "
        "is sent, and there is no global model. "
        "With a learning rate of 0 it is Tip-Adapter.",
    )
    trains = True
    Config = TipAdapterFConfig

    def init(self, generator: fl.Generators) -> fl.State:
        """Return no change of any key; clients with fewer samples have unused rows.

        Shape: shift (clients, most samples of a client, d).
        """
        most = int(self.problem.samples.max())
        shift = torch.zeros(most, self.problem.backbone.spec.embed_dim, dtype=torch.float64)
        return fl.State(local=self.repeat(self.place({"shift": shift})))

    def _cache(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
        cache = super()._cache(params, data)
        return {**cache, "keys": cache["keys"] + params["shift"][:, : cache["keys"].shape[1]]}

    def round_constants(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
        """Return the cache as encoded, and alpha and beta as given: the search follows training.

        Shape: keys (clients, n, d), values (clients, n, classes), alpha and beta (clients, 1, 1).
        """
        cache = super()._cache(params, data)
        like = cache["keys"].new_ones(len(cache["keys"]), 1, 1)
        return {**cache, "alpha": self.config.alpha * like, "beta": self.config.beta * like}

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        keys = const["keys"] + params["shift"][:, : const["keys"].shape[1]]
        logits = self.logits(params, {**const, "keys": keys}, batch.x)
        return fl.Step({("shift",): fl.cross_entropy(logits, batch.labels, batch.mask)})
