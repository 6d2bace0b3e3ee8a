"""Half-sent requests are closed after a while, and whole ones are answered however long they take."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from pages.guard import guard
from tests.support.jobs import wait_for
from tests.support.web.browser import end_workers, start_server

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-"
WHOLE = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse((await request.body()).decode())


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server that closes half-sent requests after half a second."""
    monkeypatch.setattr(guard, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(H11Protocol, "connection_made", H11Protocol.connection_made)  # to be put back
    guard.limit_header_time()
    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has ended a connection."""
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_half_sent_requests_are_closed(port: int) -> None:
    sent = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    for connection in sent[1:]:
        connection.sendall(HALF)
    assert all(is_closed(connection) for connection in sent), "the first has sent nothing at all"


def test_bytes_that_trickle_in_do_not_extend_the_time(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:

        def trickle() -> None:
            while True:
                connection.sendall(b"G")
                time.sleep(0.05)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            trickle()


def test_a_body_may_take_longer_and_the_next_request_has_its_own_time(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(2):
            connection.sendall(WHOLE)
            time.sleep(1.2)
            connection.sendall(b"ok")
            said = b""
            while not said.endswith(b"ok"):
                said += connection.recv(1000)
        connection.sendall(HALF)
        assert is_closed(connection)


@pytest.mark.slow
def test_the_dashboard_closes_400_half_sent_requests(tmp_path: Path) -> None:
    running = start_server(tmp_path / "runs.db", tmp_path / "server.log")
    try:
        sent = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(400)]
        for connection in sent:
            connection.sendall(HALF)
        started = time.monotonic()
        sent[0].settimeout(2 * guard.HEADER_SECONDS + 20)
        assert sent[0].recv(1) == b"" and time.monotonic() - started < 2 * guard.HEADER_SECONDS + 20
        assert all(is_closed(connection) for connection in sent[1:])
    finally:
        running.stop()
        end_workers(running.db)
