"""The token that admits visitors whom the guard does not know, kept in a file that only its account reads."""

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
    """Return the token kept in a folder, made on first use; where none can be kept, one for this process."""
    file = folder / FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _read(file) or _make(file)
    except OSError as error:
        message = "the token cannot be kept in %s: %s; it changes at the next start"
        logging.getLogger(__name__).warning(message, file, error.strerror)
        return secrets.token_urlsafe()


def _read(file: Path) -> str:
    """Return the token of a file; empty where there is none that others could not read or write."""
    try:
        opened = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:  # none yet, a link, or a file of another account: it is replaced
        return ""
    with open(opened, encoding="ascii", errors="replace") as content:
        about = os.fstat(content.fileno())
        others = stat.S_IRWXG | stat.S_IRWXO
        private = os.name == "nt" or (about.st_uid == os.getuid() and not about.st_mode & others)
        token = content.read().strip()
    return token if private and len(token) >= MIN_LENGTH else ""


def _make(file: Path) -> str:
    """Write a new token and return it."""
    token = secrets.token_urlsafe()
    draft = file.with_name(f"{FILE}.{secrets.token_hex(4)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as content:
        content.write(token + "\n")
    draft.replace(file)
    return token


def same(given: str, expected: str) -> bool:
    """Compare two secrets in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def cookie(token: str) -> tuple[str, str]:
    """Return name and value of the cookie that stands for a token and does not reveal it."""
    name, value = (
        hmac.new(token.encode(), purpose, hashlib.sha256).hexdigest()
        for purpose in (b"name of the cookie", b"value of the cookie")
    )
    return f"fedlens_{name[:8]}", value
