"""How visitors are recognised: the owner of a connection, the file of the token, its cookie."""

import asyncio
import os
import socket
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import app
from fedcore.base.files import state_folder
from pages.guard import guard
from tests.support.web.accounts import NOBODY, needs_root, start_as_nobody

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who owns a connection")


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


@on_linux
@pytest.mark.parametrize(("family", "address"), FAMILIES)
@pytest.mark.parametrize("with_netlink", [True, False])
def test_a_connection_of_this_account_is_known(
    family: socket.AddressFamily, address: str, with_netlink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_netlink:
        monkeypatch.setattr(guard, "_ask_kernel", _no_netlink)
    with connection(family, address) as (_, server):
        assert guard.socket_owner(server.getpeername()[:2], server.getsockname()[:2]) == os.getuid()


@on_linux
def test_an_address_that_shows_as_ipv6_is_looked_up_as_ipv4() -> None:
    with connection(socket.AF_INET, "127.0.0.1") as (_, server):
        (_, port), (_, ours) = server.getpeername(), server.getsockname()
        assert guard.socket_owner(("::ffff:127.0.0.1", port), ("::ffff:127.0.0.1", ours)) == os.getuid()


@on_linux
@pytest.mark.parametrize("with_netlink", [True, False])
def test_a_closed_connection_is_nobodys(with_netlink: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that its process has closed is listed as root's, which a server of root must not believe."""
    if not with_netlink:
        monkeypatch.setattr(guard, "_ask_kernel", _no_netlink)
    with connection(socket.AF_INET, "127.0.0.1") as (client, server):
        client.close()
        assert guard.socket_owner(server.getpeername(), server.getsockname()) is None


@on_linux
def test_other_ends_are_unknown() -> None:
    with connection(socket.AF_INET, "127.0.0.1") as (_, server):
        (host, port), ours = server.getpeername(), server.getsockname()
        assert guard.socket_owner((host, port ^ 1), ours) is None
        assert guard.socket_owner(("192.0.2.1", port), ours) is None
        assert guard.socket_owner(("not an address", port), ours) is None
        assert guard.socket_owner(None, ours) is None
        assert guard.socket_owner((host, port), None) is None
        assert guard.socket_owner((host, port), ("/run/lens.sock", 0)) is None


@on_linux
@needs_root
def test_a_connection_of_another_account_is_its_own() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        other = start_as_nobody(f"socket.create_connection(('127.0.0.1', {port})).recv(1)")
        server, _ = listener.accept()
        with server:
            assert guard.socket_owner(server.getpeername(), server.getsockname()) == NOBODY
            server.send(b"x")
        assert other.wait(30) == 0


@on_linux
def test_without_any_source_an_account_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_ask_kernel", _no_netlink)
    monkeypatch.setattr(guard, "PROC", tmp_path)
    with connection(socket.AF_INET, "127.0.0.1") as (_, server):
        assert guard.socket_owner(server.getpeername(), server.getsockname()) is None


def _no_netlink(*_: object) -> None:
    raise OSError("no netlink here")


def test_a_token_is_made_once_and_only_its_account_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "fedlens"
    token = guard.token_of(folder)
    assert len(token) >= guard.MIN_TOKEN_LENGTH
    assert guard.token_of(folder) == token
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [file.name for file in folder.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o606])
def test_a_token_that_others_could_read_or_write_is_replaced(tmp_path: Path, mode: int) -> None:
    token = guard.token_of(tmp_path)
    (tmp_path / "token").chmod(mode)
    assert guard.token_of(tmp_path) != token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "short", "\n" * 40])
def test_a_broken_token_is_replaced(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(0o600)
    assert len(guard.token_of(tmp_path)) >= guard.MIN_TOKEN_LENGTH


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("x" * 50)
    target.chmod(0o600)
    (tmp_path / "token").symlink_to(target)
    assert guard.token_of(tmp_path) != "x" * 50
    assert target.read_text() == "x" * 50


def test_a_token_that_cannot_be_stored_serves_one_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    token = guard.token_of(tmp_path / "file" / "fedlens")
    assert len(token) >= guard.MIN_TOKEN_LENGTH
    assert "each start makes a new one" in caplog.text


def test_the_cookie_does_not_reveal_the_token() -> None:
    name, value = guard.cookie("secret token")
    assert "secret" not in name + value
    assert guard.cookie("another token") != (name, value)


def test_strange_secrets_are_compared_without_an_error() -> None:
    assert not guard.equal("\udcff\x00ä", "plain")
    assert guard.equal("plain", "plain")
    assert not guard.equal("", "plain")


def test_the_account_has_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path))
    guard.account_token.cache_clear()
    token = guard.account_token()
    assert (tmp_path / "token").read_text().strip() == token
    assert os.stat(tmp_path / "token").st_uid == os.getuid()
    guard.account_token.cache_clear()


@pytest.mark.parametrize("to_terminal", [True, False])
def test_the_token_goes_to_a_terminal_and_never_into_a_log(
    to_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> None:
        async with app.announced(app.app):
            pass

    monkeypatch.setattr(sys.stdout, "isatty", lambda: to_terminal)
    monkeypatch.setattr(app, "load_pages", lambda: None)
    monkeypatch.setattr(app.st, "get_option", {"server.port": 8501, "server.headless": True}.get)
    with ThreadPoolExecutor(1) as pool:  # Playwright leaves a running loop in the thread of its tests
        pool.submit(asyncio.run, start()).result()
    said = capsys.readouterr().out
    assert (guard.account_token() in said) is to_terminal
    assert (str(state_folder() / guard.TOKEN_FILE) in said) is not to_terminal
