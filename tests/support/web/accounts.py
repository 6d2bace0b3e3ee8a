"""Run a small program as another account of this machine, which only root can."""

import os
import subprocess
import sys

import pytest

NOBODY = 65534
BECOME = f"""
import encodings.idna, http.client, json, os, socket, sys  # all that it needs while root may still read it
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another account"
)


def start_as_nobody(program: str) -> subprocess.Popen[str]:
    """Start a program that may use http.client, json, os, socket and sys."""
    return subprocess.Popen([sys.executable, "-c", BECOME + program], stdout=subprocess.PIPE, text=True)
