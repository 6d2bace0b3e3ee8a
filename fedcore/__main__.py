"""``python -m fedcore``: everything the browser does, without the browser."""

from __future__ import annotations

import sys

from fedcore.cli import main

if __name__ == "__main__":
    sys.exit(main())
