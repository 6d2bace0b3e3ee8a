"""FedLens' engine: federated adaptation of CLIP, usable without the browser.

Importing fedcore is cheap: torch is loaded when something is computed (``fedcore.base.lazy``).
"""

__version__ = "1.0.0"
