"""The guard in front of the dashboard: ASGI middleware that decides which requests are answered.

It checks a request's host and origin, then whether the visitor may use the app: by the account that owns the
connection, or by the access token. A browser on this machine cannot prove its account over HTTP, but the
kernel knows who owns each end of a connection. So the account that runs the server needs no token, and other
accounts of the machine do. The guard also limits the time that the headers of a request may take.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import os
import secrets
import socket
import stat
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import h11
import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedcore.base.files import state_folder
from pages.widgets import session

PARAMETER = "token"
COOKIE_SECONDS = 30 * 24 * 3600
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
"""Headers that a proxy adds."""
DENIED = (
    "Access denied. Open the address with ?token= that FedLens printed to its terminal at the start. "
    "The token is also stored in the file token in the state folder (~/.local/state/fedlens) of the account "
    "that runs FedLens."
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>FedLens</title>
<style>body {{ font: 1rem/1.5 system-ui; max-width: 40rem; margin: 15vh auto; padding: 0 1rem }}</style>
</head><body><main><h1>FedLens</h1><p>{text}</p></main></body></html>
"""
DEFAULT_PORTS = {"http": 80, "https": 443}
EVERYWHERE = ("0.0.0.0", "::")
"""Addresses that make a server listen on all interfaces; they are not names of the machine."""
POLICY = (
    "default-src 'self'; img-src 'self' data:; font-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline' blob:; object-src 'none'; base-uri 'none'; form-action 'self'"
)
"""What a page may load: nothing of another server.

Streamlit needs inline styles, an inline script in its page and in ``st.html``, components as blobs, and fonts
and images as data (tables of the browser, pictures of pages, the icons of plotly).
"""
HEADER_SECONDS = 10.0
"""A connection may wait for headers this long, at most twice as long; a body may take any time."""
TOKEN_FILE = "token"
MIN_TOKEN_LENGTH = 32
Address = tuple[str, int]
"""IP address and port."""
PROC = Path("/proc/net")
ESTABLISHED = 1
_SOCK_DIAG = 4  # of linux/netlink.h
_BY_FAMILY = 20  # of linux/sock_diag.h
_REQUEST = 1  # of linux/netlink.h
_ANY_COOKIE = 2**64 - 1
_HEADER, _ANSWER = struct.Struct("=IHHII"), struct.Struct("=BBBB48xIIIII")


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
class HostNames:
    """The names that are configured in addition to localhost.

    Attributes:
        hosts: names; ``*.example.org`` matches all of its subdomains, ``*`` every name.
        origins: further origins from which pages may call the server, such as ``https://lens.example.org``.
    """

    hosts: tuple[str, ...] = ()
    origins: frozenset[str] = frozenset()

    @classmethod
    def configured(cls) -> Self:
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


class Guard:
    """Admits the account that runs the server and visitors with its token.

    Streamlit's options are read when the server starts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.token = account_token()
        self.cookie, self.cookie_value = cookie(self.token)
        self.names = HostNames.configured()
        # Streamlit would check the hosts again and, as soon as any is listed, refuse localhost
        config.set_option("server.allowedHosts", [])
        self.path = session.base_path() or "/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        answer = self.refusal(request) or self.admission(request)
        if answer is None:
            # Streamlit would compare origin and host again, and where they differ look up the machine's
            # public address: a network request that blocks the event loop
            headers = [header for header in scope["headers"] if header[0] != b"origin"]
            await self.app({**scope, "headers": headers}, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before the handshake the client sees 403
        else:
            await answer(scope, receive, _with_headers(send))

    def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a request for an unknown host or from another site's page; None for others.

        The host check stops DNS rebinding: a page of another site whose name resolves to this machine.
        """
        # getlist: of two Host headers, this check and Streamlit might read different ones
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if len(hosts) != 1 or not self.names.answers_to(hosts[0]):
            return PlainTextResponse(
                "FedLens does not answer to this host name or IP address. Open it as localhost, or add it to "
                "server.allowedHosts (docs/security.md).",
                400,
            )
        allowed = [origin for origin in origins if self.names.admits_origin(origin, hosts[0])]
        if len(origins) > 1 or len(allowed) < len(origins):
            return PlainTextResponse("FedLens does not answer pages of other origins.", 403)
        # Images, scripts and frames of a foreign page send no Origin; browsers mark them by Sec-Fetch-*.
        # A followed link asks for a "document", which is allowed; a frame asks for an "iframe".
        fetched_by = request.headers.get("sec-fetch-site", "none")
        followed = request.headers.get("sec-fetch-dest", "document") == "document"
        if not origins and fetched_by in ("cross-site", "same-site") and not followed:
            return PlainTextResponse("FedLens cannot be embedded in pages of other origins.", 403)
        return None

    def admission(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a visitor who must identify first; None for one who may pass."""
        given = request.query_params.get(PARAMETER)
        if given is not None and request.scope["type"] == "http" and equal(given, self.token):
            # a cookie takes the place of the token, which the browser's history would keep
            query = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
            rest = urlencode([(name, value) for name, value in query if name != PARAMETER])
            headers = {"Location": f"?{rest}", "Cache-Control": "no-store"}
            answer = Response(status_code=303, headers=headers)
            answer.set_cookie(
                self.cookie,
                self.cookie_value,
                max_age=COOKIE_SECONDS,
                path=self.path,
                secure=request.scope["scheme"] in ("https", "wss"),
                httponly=True,
                samesite="lax",
            )
            return answer
        if equal(request.cookies.get(self.cookie, ""), self.cookie_value) or is_same_account(request):
            return None
        wants_page = "text/html" in request.headers.get("accept", "")
        return HTMLResponse(PAGE.format(text=DENIED), 403) if wants_page else PlainTextResponse(DENIED, 403)


def is_same_account(request: HTTPConnection) -> bool:
    """Return whether the visitor's end of the connection belongs to the account that runs the server."""
    # Behind a proxy, the other end of the connection is the proxy's, which may run under our account
    # although the visitor does not: only a direct connection to localhost counts.
    host = parse_host(request.headers["host"])
    if any(name in request.headers for name in FORWARDED) or host is None or not is_loopback(host[0]):
        return False
    ends = (cast(Address | None, request.scope.get(end)) for end in ("client", "server"))
    owner = socket_owner(*ends)
    return owner is not None and owner == os.getuid()


def socket_owner(client: Address | None, server: Address | None) -> int | None:
    """Return the user id that owns the client's end of a loopback connection; None if it is unknown.

    Args:
        client, server: both ends as the server sees them.
    """
    if client is None or server is None or sys.platform != "linux":
        return None
    try:
        client_ip, server_ip = _plain(client[0]), _plain(server[0])
    except ValueError:  # the path of a Unix socket
        return None
    if not client_ip.is_loopback or client_ip.version != server_ip.version:
        return None
    ends = client_ip.packed, client[1], server_ip.packed, server[1]
    try:
        return _ask_kernel(*ends)
    except OSError:  # netlink is not available, as in some sandboxes
        with suppress(OSError):
            return _read_table(*ends)
    return None


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address; a socket for both versions shows an IPv4 address as ``::ffff:127.0.0.1``."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _ask_kernel(client: bytes, client_port: int, server: bytes, server_port: int) -> int | None:
    """Ask the kernel for the client's socket alone, in a time that does not grow with the number of sockets.

    Raises:
        OSError: if the kernel does not answer such questions.
    """
    family = socket.AF_INET if len(client) == 4 else socket.AF_INET6
    # the socket is named from its own side: the client's address is the local one
    ends = struct.pack("!HH16s16s", client_port, server_port, client, server)
    ends += struct.pack("=IQ", 0, _ANY_COOKIE)
    question = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 1 << ESTABLISHED) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1)
        kernel.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 0, 0) + question)
        answer = kernel.recv(8192)
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:  # an error: the socket does not exist
        return None
    _, state, _, _, _, _, _, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    # a socket that its process has closed has no inode, and its uid 0 does not mean that root owned it
    return int(uid) if state == ESTABLISHED and inode else None


def _read_table(client: bytes, client_port: int, server: bytes, server_port: int) -> int | None:
    """Find the client's socket in the table of all sockets, which takes longer on a busy machine."""

    def end(address: bytes, number: int) -> str:
        words = struct.unpack(f"={len(address) // 4}I", address)
        return "".join(f"{word:08X}" for word in words) + f":{number:04X}"

    wanted = [end(client, client_port), end(server, server_port), f"{ESTABLISHED:02X}"]
    table = PROC / ("tcp" if len(client) == 4 else "tcp6")
    for line in table.read_text().splitlines()[1:]:
        columns = line.split()
        if columns[1:4] == wanted and columns[9] != "0":
            return int(columns[7])
    return None


@cache
def account_token() -> str:
    """Return the token of the account that runs this process."""
    return token_of(state_folder())


def token_of(folder: Path) -> str:
    """Return the token stored in a folder, which is created on first use.

    If it cannot be stored, the token lasts as long as this process.
    """
    file = folder / TOKEN_FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if token := _read_token(file):
            return token
        token, draft = secrets.token_urlsafe(), file.with_name(f"{TOKEN_FILE}.{secrets.token_hex(4)}")
        private = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(private, "w", encoding="ascii") as content:
            content.write(token + "\n")
        draft.replace(file)
        return token
    except OSError as error:
        message = (
            "the token cannot be stored in %s: %s; only a terminal shows it, and each start makes a new one"
        )
        logging.getLogger(__name__).warning(message, file, error.strerror)
        return secrets.token_urlsafe()


def _read_token(file: Path) -> str:
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
    return token if private and len(token) >= MIN_TOKEN_LENGTH else ""


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


def _with_headers(send: Send) -> Send:
    """Return a sender that adds headers against embedding in other sites and against leaking the address."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            headers.setdefault("X-Frame-Options", "SAMEORIGIN")
            headers.setdefault("Content-Security-Policy", POLICY)
            headers.setdefault("Referrer-Policy", "same-origin")
        await send(message)

    return sent


def limit_header_time() -> None:
    """Let the server of this process close connections with unfinished headers.

    uvicorn limits only the time between two requests, so a client that opens many connections and never
    finishes a request could use up all file descriptors of the server.
    """
    # The class is patched: Streamlit passes no options to uvicorn, which has chosen its protocol before it
    # imports our app.
    connected = H11Protocol.connection_made

    def connection_made(self: H11Protocol, transport: asyncio.Transport) -> None:
        connected(self, transport)
        self.loop.call_later(HEADER_SECONDS, _close_if_waiting, self, None)

    H11Protocol.connection_made = connection_made  # type: ignore[method-assign]


def _close_if_waiting(connection: H11Protocol, last_request: Any) -> None:
    """Close a connection that has waited for headers since the last check, or check again later.

    Args:
        last_request: the last complete request at the previous check; None if there was none.
    """
    if connection not in connection.connections:  # it was closed, or became a WebSocket
        return
    waiting = connection.conn.their_state is h11.IDLE
    if waiting and connection.cycle is last_request:
        connection.transport.close()
    else:
        awaited_since = connection.cycle if waiting else connection
        connection.loop.call_later(HEADER_SECONDS, _close_if_waiting, connection, awaited_since)
