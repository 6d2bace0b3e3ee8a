"""``python -m fedcore``, which is ``fedlens``: the dashboard's functions without a browser."""

import sys
from pathlib import Path

# Python looks for modules first where it was started; those there would replace the ones that we need.
if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] != str(Path(__file__).parent.parent):
    del sys.path[0]

from fedcore.cli.main import fedlens

if __name__ == "__main__":
    fedlens()
