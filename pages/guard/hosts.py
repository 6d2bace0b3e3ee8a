"""The host names that the server answers to, and the origins from which pages may call it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

import streamlit as st

DEFAULT_PORTS = {"http": 80, "https": 443}
EVERYWHERE = ("0.0.0.0", "::")
"""Addresses that make a server listen on all interfaces; they are not names of the machine."""


def parse_host(value: str) -> tuple[str, int | None] | None:
    """Return the name and port of a Host header, or None if it is not a plain ``name:port``."""
    try:
        parts = urlsplit(f"//{value}")
        port = parts.port
    except ValueError:
        return None
    if parts.netloc != value or "@" in value or not parts.hostname:
        return None
    return parts.hostname.rstrip("."), port


def is_loopback(name: str) -> bool:
    """Return whether a host name or address can only mean this machine."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


@dataclass(frozen=True)
class Names:
    """The names that are configured in addition to localhost.

    Attributes:
        hosts: names; ``*.example.org`` matches all of its subdomains, ``*`` every name.
        origins: further origins from which pages may call the server, such as ``https://lens.example.org``.
    """

    hosts: tuple[str, ...] = ()
    origins: frozenset[str] = frozenset()

    @classmethod
    def configured(cls) -> Names:
        """Read Streamlit's options: the server's address, the allowed hosts and the allowed origins."""
        address = st.get_option("server.address")
        listening = [address] if address and address not in EVERYWHERE and "/" not in address else []
        hosts = [*listening, *(st.get_option("server.allowedHosts") or ())]
        origins = st.get_option("server.corsAllowedOrigins") or ()
        return cls(
            tuple(host.strip().strip("[]").rstrip(".").lower() for host in hosts),
            frozenset(origin.strip().rstrip("/").lower() for origin in origins),
        )

    def answers_to(self, host: str) -> bool:
        parsed = parse_host(host)
        if parsed is None:
            return False
        name = parsed[0]
        return is_loopback(name) or any(
            pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))
            for pattern in self.hosts
        )

    def admits_origin(self, origin: str, host: str) -> bool:
        """Return whether pages of an origin may call the server under the name in this Host header."""
        if origin.lower() in self.origins:
            return True
        scheme, _, rest = origin.lower().partition("://")
        default = DEFAULT_PORTS.get(scheme)
        theirs, ours = parse_host(rest), parse_host(host)
        if default is None or theirs is None or ours is None:
            return False
        return (theirs[0], theirs[1] or default) == (ours[0], ours[1] or default)
