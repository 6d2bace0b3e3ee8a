"""A hook of MkDocs that links the site to the repository it was built from."""

from __future__ import annotations

import re
import subprocess

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link the header to the git remote ``origin``; without one there is no link."""
    found = subprocess.run(["git", "remote", "get-url", "origin"], capture_output=True, text=True)
    address = re.match(r"(?:https://|git@)([\w.-]+)[/:](.+?)(?:\.git)?\s*$", found.stdout)
    if address:
        config.repo_url = f"https://{address[1]}/{address[2]}"
        config.repo_name = address[2]
    return config
