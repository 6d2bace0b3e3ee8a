"""Training steps that torch fuses into few kernels, on a GPU into CUDA graphs (``compiled`` of a method)."""

import os
import sys
from dataclasses import replace
from functools import cache
from typing import Any

from fedcore.base.errors import FedLensError, first_line, is_gpu_memory
from fedcore.base.files import cache_folder
from fedcore.base.lazy import torch
from fedcore.methods.base import Batch, Method, Params, Phase, Step

COMPILER: dict[str, Any] = {"mode": "reduce-overhead"}
"""What ``torch.compile`` is asked for: CUDA graphs where there is a GPU."""


def ready(method: Method, shape: tuple[int, int], phase: Phase) -> Phase:
    """Return a phase as it trains: as it is, or compiled.

    Only full batches of all clients are compiled. Every other shape would take a minute or two as well, as do
    constants of another shape, and shapes left open take five to ten times as long. A step is compiled or not
    by its own shape alone, so that a resumed run has the same numbers.

    Args:
        shape: of a full batch of all clients, (clients, samples).

    Raises:
        FedLensError: in a step, if torch cannot compile it here, for example without a C++ compiler.
    """
    if not method.trains or not method.config.compiled:
        return phase
    _settle()
    from torch._dynamo.exc import TorchDynamoException

    compiled = torch.compile(phase, dynamic=False, **COMPILER)

    def phase_of_shape(params: Params, const: Params, batch: Batch) -> Step:
        if batch.mask.shape != shape:
            return phase(params, const, batch)
        try:
            step = compiled(params, const, batch)
        except RuntimeError as fault:
            cause = getattr(fault, "inner_exception", fault)
            if is_gpu_memory(cause):  # fewer are trained at once; these graphs need not stay
                torch.compiler.reset()
                raise cause from None
            if not isinstance(fault, TorchDynamoException):
                raise
            why = first_line(cause)
            message = f"its training step cannot be compiled here ({why}); set compiled = false"
            raise FedLensError(message, "compiled") from fault
        # the next call of a CUDA graph overwrites what this one returns, and moved values are kept
        return replace(step, moved={name: value.clone() for name, value in step.moved.items()})

    return phase_of_shape


@cache
def _settle() -> None:
    """Set what compiled steps need of torch, once for this process."""
    # torch's own folder of compiled code is one that another account can make first
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    import torch._dynamo.config as tracing
    import torch._functorch.config as gradients
    import torch._inductor.config as inductor

    # beyond the limit a step would be plain, which a resumed run compiles
    tracing.recompile_limit = tracing.accumulated_recompile_limit = sys.maxsize
    gradients.donated_buffer = False  # a second loss of the same graph would find its buffers gone
    inductor.compile_threads = 1  # no processes that could outlive a killed run
