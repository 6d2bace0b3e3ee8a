"""``python -m fedcore``, which is ``fedlens``: everything the browser does, without the browser."""

from __future__ import annotations

import os
import sys

from fedcore.cli.main import main
from fedcore.devices import PATIENT_THREADS


def fedlens() -> None:
    """Run the command of this process, and exit with its status."""
    for name, value in PATIENT_THREADS.items():
        os.environ.setdefault(name, value)
    sys.exit(main())


if __name__ == "__main__":
    fedlens()
