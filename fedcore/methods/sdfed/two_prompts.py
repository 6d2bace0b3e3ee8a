"""The common part of SDFed and FedPHA: a shared prompt G_s, and a prompt G_c of any length for each client.

Only G_s is sent and averaged. A client predicts with G_c, the global model with G_s. The methods differ in
how the two prompts act on each other while they train.
"""

import math
import re
from dataclasses import replace
from typing import Any, Literal

from pydantic import field_validator

from fedcore import methods as fl
from fedcore.base.errors import FedLensError
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.clip import specs
from fedcore.clip.prompts import check_prompts, check_room, class_suffix, draw_context, encode_context

LONGEST = 75
"""[SOS] and [EOT] take two of CLIP's 77 places; class names need more (``check_room``)."""
LENGTH_FORMS = "fixed:8, random:4-64 (by seed), or one number per client, e.g. 4,8,64"
OVERLAP_CHART = fl.DiagnosticChart(
    "Subspace overlap of global and local prompt",
    {"subspace_overlap": ""},
    note="Mean squared cosine of the principal angles: 0 orthogonal, 1 one within the other.",
    default_visible=True,
)
LENGTH_CHART = fl.DiagnosticChart("Length of the local prompt", {"local_length": ""}, unit="tokens")
"""Charts of what ``TwoPrompts.diagnostics`` records."""


class TwoPromptsConfig(fl.MethodConfig):
    """Hyper-parameters of methods with a shared prompt and local prompts; each sets its paper's defaults."""

    weighting: fl.Weighting = fl.hyper(
        "samples", "Server mean over clients: weighted by sample counts (paper), or plain"
    )
    global_length: fl.PromptLength = fl.hyper(
        16, "Length of the shared prompt, tokens", title="global prompt length"
    )
    local_length: str = fl.hyper(
        "fixed:16",
        f"Length of each client's own prompt, tokens: {LENGTH_FORMS}",
        title="local prompt length",
    )
    untrained: Literal["global", "local"] = fl.hyper(
        "global",
        "Prompt used to evaluate clients that have never taken part",
        title="untrained clients use",
        words={"global": "the global prompt", "local": "their own prompt"},
    )

    @field_validator("local_length")
    @classmethod
    def _readable(cls, value: str) -> str:
        low, high, listed = parse_lengths(value)
        if not all(1 <= n <= LONGEST for n in (low, high, *listed)):
            raise ValueError(f"prompt lengths are 1 to {LONGEST} tokens")
        if low > high:
            raise ValueError("write the shorter length first, e.g. random:4-64")
        return value


def parse_lengths(text: str) -> tuple[int, int, tuple[int, ...]]:
    """Parse a text of lengths into the shortest, the longest and, for a list, the lengths themselves.

    Raises:
        ValueError: when the text is none of the three forms.
    """
    if match := re.fullmatch(r"fixed:(\d{1,4})", text):
        return int(match[1]), int(match[1]), ()
    if match := re.fullmatch(r"random:(\d{1,4})-(\d{1,4})", text):
        return int(match[1]), int(match[2]), ()
    if re.fullmatch(r"\d{1,4}( *, *\d{1,4})*", text):
        listed = tuple(int(n) for n in text.split(","))
        return min(listed), max(listed), listed
    raise ValueError("write fixed:8, random:4-64, or one length per client such as 4,8,64")


def client_lengths(text: str, problem: fl.Problem) -> Tensor:
    """Return each client's S_l; random ones are drawn by seed and client name. Shape: -> (clients,) int64."""
    low, high, listed = parse_lengths(text)
    if listed:
        return torch.tensor(listed, device=problem.device)
    return problem.draw_per_client(lambda g: torch.randint(low, high + 1, (), generator=g), "sdfed", "length")


def distances(one: Tensor, other: Tensor) -> Tensor:
    """Return |one_k - other_k| of each class. Shape: (clients, classes, d) each -> (clients, classes)."""
    # vector_norm has gradient 0 at 0; a square root's would not be a number
    distance: Tensor = torch.linalg.vector_norm(one - other, dim=-1)
    return distance


def removed_directions(truncation: float, width: int) -> int:
    """Return floor(share * directions), those that are removed (SDFed, Definition 1; FedPHA's c)."""
    return math.floor(truncation * width + 1e-9)  # 0.29 * 100 is 28.999999999999996


def weaker_directions(prompt: Tensor, removed: int) -> Tensor:
    """Return V_2, a prompt's own right-singular directions without the ``removed`` strongest.

    The economy SVD has no others, so that V_2 depends continuously on the prompt, and has a gradient.

    Shape: prompt (clients, S, m) -> (clients, m, min(S, m) - removed).  Source: FedPHA.
    """
    vh = torch.linalg.svd(prompt.double(), full_matrices=False).Vh
    directions: Tensor = vh[:, removed:].transpose(1, 2).to(prompt.dtype)
    return directions


def projectors(
    prompt: Tensor,
    removed: int,
    noise: Tensor | None = None,
    kind: Literal["leading", "economy", "rank", "random"] = "leading",
) -> Tensor:
    """Return R = X_2 X_2^T, without the ``removed`` leading right-singular directions of each prompt.

    Computed in float64 on the CPU: a prompt spans at most S_s directions and the SVD chooses the others,
    which should depend only on the prompt, not on the device. With ``noise`` (m, removed) that
    choice is a fixed Gaussian basis instead, projected off the prompt's own directions; reordering the
    prompt's rows leaves it alone.

    Three other kinds: "economy" keeps the prompt's own directions without the ``removed`` leading ones;
    "rank" removes the prompt's own directions alone (``removed`` of them at most), so that nothing is left to
    the SVD's choice; "random" removes the span of ``noise`` and ignores the prompt.

    Shape: prompt (clients, S, m) -> (clients, m, m).  Source: SDFed, Eq. 8-10 and Definition 1.
    """
    # In the first step of a round all clients hold the broadcast prompt: one decomposition serves them.
    work, place = prompt.detach().to("cpu", torch.float64).unique(dim=0, return_inverse=True)
    if kind == "random":
        assert noise is not None, "a random projector needs noise"
        r = _complement(torch.linalg.qr(noise).Q).expand(len(work), -1, -1)
    elif kind == "economy":
        directions = weaker_directions(work, removed)
        r = directions @ directions.transpose(1, 2)
    elif kind == "rank":
        r = torch.stack([_complement(_spanned_directions(one, removed)) for one in work])
    elif noise is None:
        x2 = torch.linalg.svd(work, full_matrices=True).Vh[:, removed:]  # rows are the columns of X_2
        r = x2.transpose(1, 2) @ x2
    else:
        r = torch.stack([_seeded_projector(one, removed, noise) for one in work])
    chosen: Tensor = r[place].to(prompt.device, prompt.dtype)
    return chosen


def _seeded_projector(prompt: Tensor, removed: int, noise: Tensor) -> Tensor:
    spanned = _spanned_directions(prompt, removed)
    rest = noise[:, : removed - spanned.shape[1]]
    rest = torch.linalg.qr(rest - spanned @ (spanned.T @ rest)).Q
    return _complement(torch.cat([spanned, rest], 1))


def _spanned_directions(prompt: Tensor, most: int) -> Tensor:
    """Return an orthonormal basis of a prompt's rows, the strongest first.

    Shape: prompt (S, m) -> (m, directions), at most S and ``most`` of them.
    """
    _, sigma, vh = torch.linalg.svd(prompt, full_matrices=False)
    tolerance = sigma.max() * max(prompt.shape) * torch.finfo(sigma.dtype).eps
    basis: Tensor = vh[: min(int((sigma > tolerance).sum()), most)].T
    return basis


def _complement(basis: Tensor) -> Tensor:
    """Return the projector off an orthonormal basis. Shape: (m, directions) -> (m, m)."""
    return torch.eye(len(basis), dtype=basis.dtype) - basis @ basis.T


def subspace_overlap(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean squared cosine of the principal angles between two prompts' row spaces, in [0, 1].

    With orthonormal bases Q_1, Q_2 of the row spaces it is |Q_1 Q_2^T|_F^2 / min(rank, rank): 1 if one
    space lies within the other, 0 if they are orthogonal; two random prompts of S and L <= m tokens have
    about max(S, L)/m. A prompt of zeros has no row space: not a number. Rows of zeros (padding) do not count.

    Shape: one (prompts, S, m), other (prompts, L, m) -> (prompts,) float64 on the CPU.
    """
    (q_1, rank_1), (q_2, rank_2) = _row_space(one), _row_space(other)
    return (q_1 @ q_2.transpose(1, 2)).square().sum((1, 2)) / torch.minimum(rank_1, rank_2)


def _row_space(prompts: Tensor) -> tuple[Tensor, Tensor]:
    """Return orthonormal rows that span the rows of a prompt, zero beyond the rank, and the rank.

    Shape: (prompts, S, m) -> (prompts, min(S, m), m), (prompts,).
    """
    _, sigma, vh = torch.linalg.svd(prompts.detach().to("cpu", torch.float64), full_matrices=False)
    tolerance = sigma[:, :1] * max(prompts.shape[1:]) * torch.finfo(prompts.dtype).eps
    spanned = sigma > tolerance
    return vh * spanned[..., None], spanned.sum(1)


class TwoPrompts(fl.Method[Any]):
    """Base of methods with a shared prompt G_s and a private G_c per client; a subclass trains them.

    Attributes:
        lengths: each client's S_l. Shape: (clients,) int64.
        has_local: whether there are private prompts at all; an ablation of SDFed has none.
    """

    shared = ("global_prompt",)
    backbones = "equal token widths"

    def __init__(self, config: Any, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        backbone = problem.backbone
        self.suffix = class_suffix(backbone, problem.classes)
        check_room(backbone, config.global_length, self.suffix, "global_length")
        self.has_local = self._has_local(config)
        self.lengths = client_lengths(config.local_length, problem)
        self.equal_lengths = bool((self.lengths == self.lengths.max()).all())
        if self.has_local:
            check_room(backbone, int(self.lengths.max()), self.suffix, "local_length")

    @classmethod
    def _has_local(cls, config: Any) -> bool:
        return True

    @classmethod
    def check(cls, config: Any, context: fl.RunContext) -> None:
        """Refuse a list of lengths that does not fit the clients, and text towers without prompts."""
        check_prompts(context.spec)
        listed = parse_lengths(config.local_length)[2]
        if len(listed) not in (0, context.clients) and cls._has_local(config):
            raise FedLensError(
                f"{len(listed)} lengths for {context.clients} clients; give one per client, "
                f"or fixed:{listed[0]}",
                "local_length",
            )
        specs.check_room(context.spec, context.classes, config.global_length, "global_length")
        if cls._has_local(config):  # random lengths may all be the shortest
            surely = max(listed, default=parse_lengths(config.local_length)[0])
            specs.check_room(context.spec, context.classes, surely, "local_length")

    def init(self, generator: fl.Generators) -> fl.State:
        """Draw prompts from N(0, 0.02); local ones are padded with zeros, which are never read or moved.

        The draws are the same for all methods with two prompts.

        Shape: global_prompt (S_s, m), local_prompt (clients, longest S_l, m).
        """
        width = self.problem.backbone.spec.token_width
        first = draw_context(self.config.global_length, width, generator("sdfed", "global"))
        state = fl.State(shared=self.place({"global_prompt": first}))
        if not self.has_local:
            return state
        longest = int(self.lengths.max())
        prompts = [
            F.pad(draw_context(length, width, generator("sdfed", "local", name)), (0, 0, 0, longest - length))
            for name, length in zip(self.problem.clients, self.lengths.tolist(), strict=True)
        ]
        return replace(state, local=self.place({"local_prompt": torch.stack(prompts)}))

    def _encode(self, *contexts: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Return normalised class features of several batches of prompts in one pass of the text tower.

        Shape: (prompts (clients, longest, m), lengths (clients,)) each -> (clients, K, d) each.
        """
        longest = max(prompt.shape[1] for prompt, _ in contexts)
        prompts = torch.cat([F.pad(p, (0, 0, 0, longest - p.shape[1])) for p, _ in contexts])
        lengths = torch.cat([n for _, n in contexts])
        full = self.equal_lengths and all(prompt.shape[1] == longest for prompt, _ in contexts)
        text = encode_context(self.problem.backbone, prompts, self.suffix, None if full else lengths)
        return F.normalize(text, dim=-1).chunk(len(contexts))

    def _common_lengths(self, prompts: Tensor) -> Tensor:
        return torch.full((len(prompts),), self.config.global_length, device=prompts.device)

    def models(self, state: fl.State) -> fl.Models:
        """Return G_s as the global model; a client predicts with its own prompt, or as ``untrained`` says.

        Shape: untrained (clients,) bool.
        """
        common = {"global_prompt": state.shared["global_prompt"][None]}
        clients = {**self.repeat(state.shared), **state.local}
        if self.has_local and self.config.untrained == "global" and state.rounds_trained is not None:
            clients["untrained"] = (state.rounds_trained == 0).to(self.problem.device)
        return fl.Models(common, clients)

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features of the predicting prompt. Shape: text (models, K, d)."""
        common = params["global_prompt"]
        if data is None or not self.has_local:
            return {"text": self._encode((common, self._common_lengths(common)))[0]}
        owners = data.clients.to(self.lengths.device)
        (text,) = self._encode((self._predicting(params), self.lengths[owners]))
        if "untrained" in params and bool(params["untrained"].any()):
            global_text = self._encode((common[:1], self._common_lengths(common[:1])))[0]
            text = torch.where(params["untrained"][:, None, None], global_text, text)
        return {"text": text}

    def _predicting(self, params: fl.Params) -> Tensor:
        """Return the prompts with which clients predict. Shape: -> (models, longest S_l, m)."""
        return params["local_prompt"]

    def prompts(self, params: fl.Params, clients: Tensor | None) -> fl.Values:
        """Return G_s and G_c. Shape: (models, S_s, m) and (models, S_l, m)."""
        prompts: fl.Values = {"global prompt": params["global_prompt"]}
        if self.has_local and clients is not None:
            prompts["local prompt"] = fl.Ragged(
                params["local_prompt"], self.lengths[clients.to(self.lengths.device)]
            )
        return prompts

    def diagnostics(
        self, before: fl.State, trained: fl.Params, uploads: fl.Uploads, data: fl.LocalData
    ) -> dict[str, Tensor]:
        """Return the length of each participant's prompt, and how much of it lies in the span of its G_s.

        Both prompts are those after local training; SDFed's Figure 6 shows accuracy by length.
        """
        if not self.has_local:
            return {}
        return {
            "local_length": self.lengths[data.clients.to(self.lengths.device)],
            "subspace_overlap": subspace_overlap(trained["global_prompt"], trained["local_prompt"]),
        }
