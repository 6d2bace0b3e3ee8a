"""A method with two phases in one file: Ditto on the class features of CLIP.

fedlens run examples/personal.toml --methods examples/fedper.py --methods examples/ditto.py
"""

from fedcore.base.lazy import torch
from fedcore.methods import (
    About,
    LearningRate,
    LossWeight,
    Method,
    MethodConfig,
    Models,
    State,
    Step,
    cosine_logits,
    cross_entropy,
    hyper,
    method,
)


class DittoConfig(MethodConfig):
    lr: LearningRate = hyper(0.02, "Learning rate of local SGD (eta)")
    lam: LossWeight = hyper(0.1, "Holds a personal model near the common one", title="lambda")


@method
class Ditto(Method):
    """Besides the common model w, every client k trains its own model v_k, held near w.

    Source: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
    Algorithm 1.
    """

    name = "ditto"
    about = About(
        title="Ditto",
        source="examples/ditto.py, after Li et al. 2021",
        summary="The server averages a shift of the class features; each client predicts with its own shift, "
        "which a proximal term holds near the common one.",
    )
    Config = DittoConfig
    shared = ("w",)

    def init(self, generator):
        w = torch.zeros_like(self.problem.class_features)
        return State(shared={"w": w}, local=self.repeat({"v": w}))

    @property
    def phases(self):  # in each batch, one step of w, then one step of v
        return self._train_common, self._train_personal

    def round_constants(self, params, data):
        return {"w_t": params["w"]}  # as the server sent it

    def _train_common(self, params, const, batch):
        """w_k <- w_k - eta grad F_k(w_k)."""
        return Step({("w",): self._risk(params["w"], batch)})

    def _train_personal(self, params, const, batch):
        """v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))."""
        distance = (params["v"] - const["w_t"]).square().sum((1, 2))  # (clients,)
        return Step({("v",): self._risk(params["v"], batch) + self.config.lam / 2 * distance})

    def _risk(self, shift, batch):  # F_k: (clients,)
        return cross_entropy(self.logits({"w": shift}, {}, batch.x), batch.labels, batch.mask)

    def models(self, state):
        """Return w as the global model, and v_k as client k's."""
        return Models({"w": state.shared["w"][None]}, {"w": state.local["v"]})

    def before_aggregation(self, trained, received):
        """Return v_k as what client k has trained: it never predicts with its w_k."""
        return {"w": trained["v"]}

    def logits(self, params, head, x):  # w (models, classes, d), x (models, samples, d)
        text = self.problem.class_features + params["w"]
        return cosine_logits(x, text, self.problem.backbone.logit_scale)
