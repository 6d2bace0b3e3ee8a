"""The recognition of a visitor: by the account that owns the connection, or by the access token.

A browser on this machine cannot prove its account over HTTP, but the kernel knows who owns each end of a
connection. So the account that runs the server needs no token, and other accounts of the machine do.
"""

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
from functools import cache
from pathlib import Path

from fedcore.base.files import state_folder

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
        return _read_token(file) or _make_token(file)
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


def _make_token(file: Path) -> str:
    token = secrets.token_urlsafe()
    draft = file.with_name(f"{TOKEN_FILE}.{secrets.token_hex(4)}")
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
