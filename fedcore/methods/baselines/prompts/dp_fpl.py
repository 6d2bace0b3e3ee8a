"""DP-FPL without its privacy: a shared prompt plus an own one with a low-rank gradient (Tran et al., 2025).

    p_i = p_g + p_l,i with p_l = U V + R, factored in each step with a new V_0 of normal numbers:
    U = orth(p_l V_0),  V = orth(p_l^T U)^T,  R = p_l - U V
    g_U, g_V: gradients of L = CE(s cos(h, t_k(p_i))) by U and V
    p_l moves by g_U V + U g_V - U U^T g_U V, its gradient projected onto what U and V reach
    server: p_g <- sum_i n_i p_g,i / sum_i n_i

p_l never leaves its client; the global model is p_g alone. The paper adds noise to g_U, g_V and the gradient
of p_g. None is added here and no privacy is claimed: its clipping does not give the guarantee it prints.

Changed: p_g is averaged after a round; the authors' code averages its gradient in each batch.
"""

from typing import Literal

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.methods.baselines.prompts import Prompted, PromptedConfig, most_steps


class DPFPLConfig(PromptedConfig):
    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of local SGD (authors' code: 0.001)")
    rank: fl.Rank = fl.hyper(
        8,
        "Rank r of the factors of a client's own prompt (authors' code: 8)",
        title="rank of the personal part",
    )
    gradient: Literal["projected", "published-code"] = fl.hyper(
        "projected",
        "Gradient of the own prompt: projected, onto what U and V reach, or published-code, with the last "
        "term added instead of subtracted and all divided by 10",
        title="gradient of the own prompt",
        words={"published-code": "as in the published code"},
    )


@fl.method
class DPFPL(Prompted):
    """[SOS] (p_g + p_l) class name . [EOT] with a shared p_g and an own p_l, whose gradient has rank 2 r."""

    name = "dp-fpl"
    about = fl.About(
        source="Tran et al., Privacy-Preserving Personalized Federated Prompt Learning for Multimodal Large "
        "Language Models, ICLR 2025, without its noise",
        summary="CLIP stays frozen. Every client learns the sum of two prompts: a shared one, which the "
        "server averages, and its own, which never leaves it. "
        "The own prompt is split into two factors of low rank and a rest in every step, and moves along the "
        "gradients of the two factors. "
        "The paper adds noise to these gradients; FedLens adds none and claims no privacy. "
        "The global model predicts with the shared prompt alone.",
        prompts={"context": "shared", "personal": "own"},
    )
    Config = DPFPLConfig
    backbones = "equal token widths"
    shared = ("context",)

    @classmethod
    def result_caveat(cls, config: DPFPLConfig, embedded: bool) -> str:
        return "trained without noise: nothing is differentially private, and no epsilon can be stated"

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw both prompts from N(0, 0.02), p_g as PromptFL does and p_l once for all clients.

        No step of any client is counted yet.

        Shape: context (M, m), own (clients, M, m), steps (clients,) int64.
        """
        local = self._draw(generator("dp-fpl", "own"))
        context = self._draw(generator("promptfl", "context"))
        steps = torch.zeros((), dtype=torch.int64, device=self.problem.device)
        return fl.State(shared={"context": context}, local=self.repeat({"own": local, "steps": steps}))

    def round_constants(self, params: fl.Params, data: fl.LocalData) -> fl.Params:
        """Draw V_0 for each step of the round. Shape: probes (clients, steps, m, r), begun (clients,)."""
        begun, most = params["steps"], most_steps(self.config, data)
        size = (self.problem.backbone.spec.token_width, self.config.rank)
        drawn = []
        for client, before in zip(data.clients.tolist(), begun.tolist(), strict=True):
            generator = self.problem.generator("dp-fpl", "probe", self.problem.clients[client], before)
            # Step by step, so that a client's draws do not depend on how many steps the others take.
            each = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(most)]
            drawn.append(torch.stack(each))
        return self.place({"probes": torch.stack(drawn)}) | {"begun": begun}

    def train_step(self, params: fl.Params, const: fl.Params, batch: fl.Batch) -> fl.Step:
        steps = params["steps"]
        probes = const["probes"][torch.arange(len(steps), device=steps.device), steps - const["begun"]]
        local = self._factored(params["own"], probes)
        text = self._text(params["context"] + local)
        logits = fl.cosine_logits(batch.x, text, self.problem.backbone.logit_scale)
        loss = fl.cross_entropy(logits, batch.labels, batch.mask)
        return fl.Step({("context", "own"): loss}, moved={"steps": steps + 1})

    def _factored(self, local: Tensor, probes: Tensor) -> Tensor:
        """Return p_l itself, with the gradient that its factors give it.

        With g the gradient by the sum U V + R, g_U = g V^T and g_V = U^T g. What p_l moves by is linear and
        symmetric in g, so it is the gradient through p_l -> that same map of (p_l - its value).

        Shape: local (clients, M, m), probes (clients, m, r) -> (clients, M, m).
        """
        value = local.detach()
        # In bf16 products are narrower than p_l, and a GPU has no QR decomposition of such numbers.
        u: Tensor = torch.linalg.qr((value @ probes).to(value.dtype)).Q
        v: Tensor = torch.linalg.qr((value.transpose(1, 2) @ u).to(value.dtype)).Q.transpose(1, 2)
        moved = local - value
        rows = u @ (u.transpose(1, 2) @ moved)
        columns = (moved @ v.transpose(1, 2)) @ v
        both = (rows @ v.transpose(1, 2)) @ v
        if self.config.gradient == "published-code":
            return value + (rows + columns + both) / 10
        return value + (rows + columns - both)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features of p_g + p_l; the global model has p_g alone. Shape: text (models, K, d)."""
        context = params["context"]
        return {"text": self._text(context + params["own"] if "own" in params else context)}

    def prompts(self, params: fl.Params, clients: Tensor | None) -> fl.Values:
        """Return p_g, and of a client p_g + p_l. Shape: (models, M, m) each."""
        prompts: fl.Values = {"context": params["context"]}
        return prompts | ({"personal": params["context"] + params["own"]} if "own" in params else {})
