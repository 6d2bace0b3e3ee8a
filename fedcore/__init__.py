"""FedLens' engine: federated adaptation of CLIP, usable without the browser.

Importing fedcore costs nothing: torch is loaded only by what computes (see ``fedcore.base.lazy``).
"""

__version__ = "1.0.0"
