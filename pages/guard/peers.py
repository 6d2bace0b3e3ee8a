"""The account at the other end of a loopback connection, which Linux knows."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

Address = tuple[str, int]
"""IP address and port."""
PROC = Path("/proc/net")
ESTABLISHED = 1
_SOCK_DIAG = 4  # of linux/netlink.h
_BY_FAMILY = 20  # of linux/sock_diag.h
_REQUEST = 1  # of linux/netlink.h
_ANY_COOKIE = 2**64 - 1
_HEADER, _ANSWER = struct.Struct("=IHHII"), struct.Struct("=BBBB48xIIIII")


def account(client: Address | None, server: Address | None) -> int | None:
    """Return the user id that owns the client's end of a loopback connection; None where it is unknown.

    Args:
        client, server: as the server sees the connection.
    """
    if client is None or server is None or sys.platform != "linux":
        return None
    try:
        here, there = _plain(client[0]), _plain(server[0])
    except ValueError:  # the path of a Unix socket
        return None
    if not here.is_loopback or here.version != there.version:
        return None
    ends = here.packed, client[1], there.packed, server[1]
    try:
        return _ask_kernel(*ends)
    except OSError:  # no netlink here, e.g. in a sandbox
        with suppress(OSError):
            return _read_table(*ends)
    return None


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address; an IPv4 one that a socket for both versions shows as IPv6 is IPv4 again."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _ask_kernel(here: bytes, port: int, there: bytes, server_port: int) -> int | None:
    """Ask the kernel for one socket; the time that this takes does not grow with the number of sockets.

    An orphan, whose process has closed it, has no inode and seems to belong to root: it is nobody's here.

    Raises:
        OSError: where the kernel does not answer such questions.
    """
    family = socket.AF_INET if len(here) == 4 else socket.AF_INET6
    ends = struct.pack("!HH16s16s", port, server_port, here, there) + struct.pack("=IQ", 0, _ANY_COOKIE)
    question = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 1 << ESTABLISHED) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1)
        kernel.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 0, 0) + question)
        answer = kernel.recv(8192)
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:  # an error: there is no such socket
        return None
    _, state, _, _, _, _, _, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return int(uid) if state == ESTABLISHED and inode else None


def _read_table(here: bytes, port: int, there: bytes, server_port: int) -> int | None:
    """Look the socket up in the table of all sockets."""

    def end(address: bytes, number: int) -> str:
        words = struct.unpack(f"={len(address) // 4}I", address)
        return "".join(f"{word:08X}" for word in words) + f":{number:04X}"

    wanted = [end(here, port), end(there, server_port), f"{ESTABLISHED:02X}"]
    table = PROC / ("tcp" if len(here) == 4 else "tcp6")
    for line in table.read_text().splitlines()[1:]:
        columns = line.split()
        if columns[1:4] == wanted and columns[9] != "0":
            return int(columns[7])
    return None
