"""The access token for other accounts and machines, stored in a file that only its owner can read."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
from functools import cache
from pathlib import Path

from fedcore.paths import state_folder

FILE = "token"
MIN_LENGTH = 32


@cache
def account_token() -> str:
    """Return the token of the account that runs this process."""
    return token_of(state_folder())


def token_of(folder: Path) -> str:
    """Return the token stored in a folder, which is created on first use.

    If it cannot be stored, the token lasts as long as this process.
    """
    file = folder / FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _read(file) or _make(file)
    except OSError as error:
        message = (
            "the token cannot be stored in %s: %s; only a terminal shows it, and each start makes a new one"
        )
        logging.getLogger(__name__).warning(message, file, error.strerror)
        return secrets.token_urlsafe()


def _read(file: Path) -> str:
    """Return the token in a file; empty if it does not exist, or if other accounts can read or write it."""
    try:
        opened = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:  # it does not exist, is a link or belongs to another account: a new one replaces it
        return ""
    with open(opened, encoding="ascii", errors="replace") as content:
        # asked of the open file: its name could mean another file by now
        owner = os.fstat(content.fileno())
        others = stat.S_IRWXG | stat.S_IRWXO
        private = os.name == "nt" or (owner.st_uid == os.getuid() and not owner.st_mode & others)
        token = content.read().strip()
    return token if private and len(token) >= MIN_LENGTH else ""


def _make(file: Path) -> str:
    token = secrets.token_urlsafe()
    draft = file.with_name(f"{FILE}.{secrets.token_hex(4)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as content:
        content.write(token + "\n")
    draft.replace(file)
    return token


def equal(given: str, expected: str) -> bool:
    """Compare two secrets in a time that does not depend on the position of a difference."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def cookie(token: str) -> tuple[str, str]:
    """Return the name and value of the cookie for a token, which do not reveal the token."""
    name, value = (
        hmac.new(token.encode(), purpose, hashlib.sha256).hexdigest()
        for purpose in (b"name of the cookie", b"value of the cookie")
    )
    return f"fedlens_{name[:8]}", value
