"""Hyper-parameters of FedDEAP."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedcore.methods.base import BatchSize, LearningRate, MethodConfig, WeightDecay


class FedDEAPConfig(MethodConfig):
    """Hyper-parameters of FedDEAP."""

    lr: LearningRate = Field(
        1e-3, description="Learning rate of the clients (paper: 1e-3; DomainNet-126: 1e-2)"
    )
    weight_decay: WeightDecay = Field(
        1e-5, description="Weight decay (authors' code: 1e-5; the paper names none)"
    )
    batch_size: BatchSize = Field(64, description="Samples in a local batch (paper: 64; DomainNet-126: 256)")
    prompt_length: int = Field(
        16, ge=1, le=75, description="Vectors L of each of the two prompts, tokens (paper: 16)"
    )
    personal_length: int | None = Field(
        None,
        ge=1,
        le=75,
        title="domain prompt length",
        description="Vectors of the domain prompt, tokens (paper's Table 5: 12 beside 20, 20 beside 12); "
        "default: prompt_length",
        json_schema_extra={"empty": "the prompt length"},
    )
    personal_prompt: bool = Field(
        True, description="Learn a domain prompt that stays on its client (off: the paper's baseline)"
    )
    semantic_alignment: bool = Field(
        True, description="Align text features with the semantic ETF (L_sp, Eq. 8)"
    )
    domain_alignment: bool = Field(True, description="Align text features with the domain ETF (L_dp, Eq. 10)")
    semantic_weight: float = Field(
        1.0, ge=0, le=1000, description="lambda, weight of L_sp for the shared prompt"
    )
    domain_weight: float = Field(1.0, ge=0, le=1000, description="eta, weight of L_dp for the domain prompt")
    etf_temperature: Literal["1/s", "1"] = Field(
        "1/s",
        title="ETF temperature",
        description="Temperature of the ETF losses: CLIP's own, as in the equations, or 1 (authors' code)",
        json_schema_extra={"words": {"1/s": "CLIP's own"}},
    )
    phi_input: Literal["raw", "normalised"] = Field(
        "raw",
        title="transformation input",
        description="Input of the transformation networks: embeddings as they are (paper), or of unit length",
        json_schema_extra={"words": {"raw": "as it is", "normalised": "of unit length"}},
    )
    domain_etf: Literal["domain", "client"] = Field(
        "domain",
        title="domain ETF columns",
        description="Columns of the domain ETF: one per domain, or one per client",
        json_schema_extra={"words": {"domain": "one per domain", "client": "one per client"}},
    )
    image_context: Literal["train_mean", "batch"] = Field(
        "train_mean",
        description="Mean embedding that scales the domain prompt in prediction: of the client's training "
        "images, or of the test batch (authors' code; a prediction then depends on its neighbours)",
        json_schema_extra={"words": {"train_mean": "mean training image", "batch": "mean of the test batch"}},
    )
    test_order: Literal["shuffled", "sorted"] = Field(
        "shuffled",
        title="order of test images",
        description="Order in which test images form batches where a batch's mean enters the prediction; "
        "sorted: by class (authors' code), so that the mean can tell the classes",
        json_schema_extra={"words": {"sorted": "sorted by class"}},
    )
    unseen: Literal["semantic_only", "mean_image"] = Field(
        "semantic_only",
        title="global model's context",
        description="Global model, which has no domain prompt: leave it out, or put the test batch's mean "
        "embedding in its place",
        json_schema_extra={"words": {"semantic_only": "left out", "mean_image": "mean of the test batch"}},
    )

    @model_validator(mode="after")
    def _consistent(self) -> FedDEAPConfig:
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
        """Whether the mean of a test batch takes part in the prediction."""
        return self.personal_prompt and (self.image_context == "batch" or self.unseen == "mean_image")

    @property
    def lengths(self) -> dict[str, int]:
        """Lengths of p_s and, where there is one, p_d in tokens, by the field that sets them."""
        lengths = {"prompt_length": self.prompt_length}
        if self.personal_prompt:
            lengths["personal_length"] = self.personal_length or self.prompt_length
        return lengths

    @property
    def longer(self) -> str:
        """The field to shorten where the prompts are too long."""
        return max(self.lengths, key=self.lengths.__getitem__)
