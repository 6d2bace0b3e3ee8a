"""Whose the other end of a loopback connection is."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pages.guard import visitors
from tests.support.web.accounts import NOBODY, needs_root, start_as_nobody

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a connection is")


@contextmanager
def connection(family: socket.AddressFamily, address: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client and the server's end of its connection."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket(family))
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        listener.listen()
        client = opened.enter_context(socket.create_connection(listener.getsockname()[:2]))
        server = opened.enter_context(listener.accept()[0])
        yield client, server


FAMILIES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


@pytest.mark.parametrize(("family", "address"), FAMILIES)
@pytest.mark.parametrize("with_netlink", [True, False])
def test_a_connection_of_this_account_is_known(
    family: socket.AddressFamily, address: str, with_netlink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_netlink:
        monkeypatch.setattr(visitors, "_ask_kernel", _no_netlink)
    with connection(family, address) as (_, server):
        assert visitors.socket_owner(server.getpeername()[:2], server.getsockname()[:2]) == os.getuid()


def test_an_address_that_shows_as_ipv6_is_looked_up_as_ipv4() -> None:
    with connection(socket.AF_INET, "127.0.0.1") as (_, server):
        (_, port), (_, ours) = server.getpeername(), server.getsockname()
        assert visitors.socket_owner(("::ffff:127.0.0.1", port), ("::ffff:127.0.0.1", ours)) == os.getuid()


@pytest.mark.parametrize("with_netlink", [True, False])
def test_a_closed_connection_is_nobodys(with_netlink: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that its process has closed is listed as root's, which a server of root must not believe."""
    if not with_netlink:
        monkeypatch.setattr(visitors, "_ask_kernel", _no_netlink)
    with connection(socket.AF_INET, "127.0.0.1") as (client, server):
        client.close()
        assert visitors.socket_owner(server.getpeername(), server.getsockname()) is None


def test_other_ends_are_unknown() -> None:
    with connection(socket.AF_INET, "127.0.0.1") as (_, server):
        (host, port), ours = server.getpeername(), server.getsockname()
        assert visitors.socket_owner((host, port ^ 1), ours) is None
        assert visitors.socket_owner(("192.0.2.1", port), ours) is None
        assert visitors.socket_owner(("not an address", port), ours) is None
        assert visitors.socket_owner(None, ours) is None
        assert visitors.socket_owner((host, port), None) is None
        assert visitors.socket_owner((host, port), ("/run/lens.sock", 0)) is None


@needs_root
def test_a_connection_of_another_account_is_its_own() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        other = start_as_nobody(f"socket.create_connection(('127.0.0.1', {port})).recv(1)")
        server, _ = listener.accept()
        with server:
            assert visitors.socket_owner(server.getpeername(), server.getsockname()) == NOBODY
            server.send(b"x")
        assert other.wait(30) == 0


def test_without_any_source_an_account_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "_ask_kernel", _no_netlink)
    monkeypatch.setattr(visitors, "PROC", tmp_path)
    with connection(socket.AF_INET, "127.0.0.1") as (_, server):
        assert visitors.socket_owner(server.getpeername(), server.getsockname()) is None


def _no_netlink(*_: object) -> None:
    raise OSError("no netlink here")
