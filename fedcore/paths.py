"""The places of FedLens' own files: inside the package, and beside it."""

from pathlib import Path

ASSETS = Path(__file__).resolve().parent / "assets"
_BESIDE = Path(__file__).resolve().parent.parent
IN_CHECKOUT = (_BESIDE / "pyproject.toml").is_file()
"""Whether the package runs from a checkout; otherwise it was installed."""
PROJECT = _BESIDE if IN_CHECKOUT else _BESIDE / "fedlens_app"
"""The folder with ``app.py``, ``pages/`` and ``docs/``: the checkout, or the installed ``fedlens_app``."""
