"""The former place of ``Recorder``: scripts that import it from here still work."""

import warnings

from fedcore.store import Recorder

__all__ = ["Recorder"]

warnings.warn("fedcore.runs is now called fedcore.store; import it there", FutureWarning, stacklevel=2)
