"""The real server: what it answers to foreign names, foreign pages, other accounts and proxies."""

import http.client
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pages.guard.guard import HostNames, parse_host
from tests.support.web.accounts import needs_root, start_as_nobody
from tests.support.web.browser import ROOT, Server, end_workers, start_server
from tests.support.web.requests import AUDIT, ROUTES, STREAM, WEBSOCKET, ask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guard")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """The app as a user starts it, with a record of what its process asks of the network."""
    (folder / "audit").mkdir()
    (folder / "audit" / "sitecustomize.py").write_text(AUDIT)
    running = start_server(
        folder / "runs.db",
        folder / "server.log",
        FEDLENS_STATE=str(folder / "state"),
        PYTHONPATH=f"{folder / 'audit'}:{ROOT}",
        CALLS_OUTSIDE=str(folder / "outside.log"),
    )
    yield running
    running.stop()
    end_workers(running.db)


@pytest.fixture(scope="module")
def proxied(folder: Path) -> Iterator[Server]:
    """The app on the loopback address of IPv6, below a path, as behind a proxy with a name."""
    running = start_server(
        folder / "proxied.db",
        folder / "proxied.log",
        [
            "--server.address=::1",
            "--server.baseUrlPath=fed/lens",
            "--server.allowedHosts=lens.example.org",
            "--server.corsAllowedOrigins=https://public.example",
        ],
        "http://[::1]:{port}/fed/lens/_stcore/health",
        FEDLENS_STATE=str(folder / "state"),
    )
    yield running
    running.stop()
    end_workers(running.db)


@pytest.fixture(scope="module")
def token(server: Server, folder: Path) -> str:
    return (folder / "state" / "token").read_text().strip()


@pytest.fixture(scope="module")
def cookie(server: Server, token: str) -> str:
    """The cookie that a browser has after the printed address was opened."""
    answer = ask(server, ("GET", f"/?token={token}"))
    return (answer.getheader("Set-Cookie") or "").partition(";")[0]


def test_no_route_answers_to_a_foreign_name(server: Server) -> None:
    for route in ROUTES:
        assert ask(server, route, host="evil.example").status == 400, route
        by_address = ask(server, route, host="192.0.2.7:8501")
        assert by_address.status == 400 and b"or IP address" in by_address.read(), route
        assert ask(server, route, host="localhost.evil.example:80").status == 400, route


def test_no_route_answers_a_foreign_page(server: Server) -> None:
    host = f"127.0.0.1:{server.port}"
    for route in ROUTES:
        for origin in ("http://evil.example", "null", f"http://{host}.evil.example", "http://127.0.0.1:1"):
            assert ask(server, route, host=host, origin=origin).status == 403, (route, origin)
        assert ask(server, route, sec_fetch_site="cross-site", sec_fetch_dest="image").status == 403, route
        assert ask(server, route, sec_fetch_site="same-site", sec_fetch_dest="iframe").status == 403, route


def test_a_foreign_websocket_is_refused_at_once(server: Server) -> None:
    """Streamlit would look up the machine's outside address first, while nothing else is served."""
    began = time.monotonic()
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        assert ask(server, STREAM, **WEBSOCKET, **headers).status == 403
    assert ask(server, ("GET", "/_stcore/health")).status == 200
    assert time.monotonic() - began < 5


def test_the_account_itself_is_asked_for_nothing(server: Server) -> None:
    host = f"localhost:{server.port}"
    answer = ask(server)
    assert answer.status == 200
    assert answer.getheader("X-Frame-Options") == "SAMEORIGIN"
    policy = (answer.getheader("Content-Security-Policy") or "").split("; ")
    assert {"default-src 'self'", "img-src 'self' data:"} <= set(policy) and "://" not in "".join(policy)
    assert "fedlens_" not in (answer.getheader("Set-Cookie") or "")
    assert ask(server, ("GET", "/_stcore/health"), host=host, origin=f"http://{host}").status == 200
    assert ask(server, sec_fetch_site="cross-site", sec_fetch_dest="document").status == 200  # a link
    assert ask(server, STREAM, **WEBSOCKET).status == 101
    assert ask(server, STREAM, **WEBSOCKET, host=host, origin=f"http://{host}").status == 101


def test_the_name_of_the_first_page_leads_there(server: Server, proxied: Server) -> None:
    answer = ask(server, ("GET", "/experiments?archived=true"))
    assert (answer.status, answer.getheader("Location")) == (307, "/?archived=true")
    answer = ask(proxied, ("GET", "/fed/lens/experiments"), "::1")
    assert (answer.status, answer.getheader("Location")) == (307, "/fed/lens/")


def test_a_name_that_is_not_plain_is_refused(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest("GET", "/", skip_host=True)
    connection.putheader("Host", "localhost")
    connection.putheader("Host", "evil.example")
    connection.endheaders()
    assert connection.getresponse().status == 400
    assert ask(server, host="localhost@evil.example").status == 400


def test_the_token_in_the_address_becomes_a_cookie(server: Server, token: str) -> None:
    answer = ask(server, ("GET", f"/live?id=3&token={token}&view=a%20b"), via="1.1 proxy")
    assert answer.status == 303
    assert answer.getheader("Location") == "?id=3&view=a+b"
    assert answer.getheader("Cache-Control") == "no-store"
    set_cookie = answer.getheader("Set-Cookie") or ""
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(set_cookie.split("; "))
    assert token not in set_cookie
    assert (
        ask(server, ("GET", "/live?id=3"), via="1.1 proxy", cookie=set_cookie.partition(";")[0]).status == 200
    )


def test_a_token_leads_to_no_other_site(server: Server, token: str) -> None:
    answer = ask(server, ("GET", f"//evil.example/?token={token}"))
    assert (answer.getheader("Location") or "?").startswith("?")


@pytest.mark.parametrize(
    "headers",
    [
        {"x_forwarded_for": "192.0.2.7"},
        {"x_forwarded_for": "127.0.0.1"},
        {"forwarded": "for=127.0.0.1"},
        {"x_real_ip": "127.0.0.1"},
        {"via": "1.1 proxy"},
    ],
    ids=str,
)
def test_a_visitor_through_a_proxy_needs_the_token(
    server: Server, token: str, cookie: str, headers: dict[str, str]
) -> None:
    refused = ask(server, accept="text/html", **headers)
    assert refused.status == 403
    page = refused.read().decode()
    assert "?token=" in page
    assert token not in page
    wrong = ask(server, ("GET", "/?token=wrong"), **headers)
    assert (wrong.status, wrong.getheader("Set-Cookie")) == (403, None)
    assert ask(server, cookie="fedlens_00000000=x", **headers).status == 403
    assert ask(server, STREAM, **WEBSOCKET, **headers).status == 403
    assert ask(server, cookie=cookie, **headers).status == 200
    assert ask(server, STREAM, **WEBSOCKET, cookie=cookie, **headers).status == 101


@needs_root
def test_another_account_needs_the_token(server: Server, token: str, cookie: str) -> None:
    """Also where it claims to be a proxy whose visitor's connection is the account's own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/_stcore/health")
    assert connection.getresponse().read() == b"ok"
    own_port = connection.sock.getsockname()[1]
    requests: list[tuple[str, dict[str, str]]] = [
        ("/", {}),
        ("/_stcore/health", {}),
        ("/_stcore/stream", WEBSOCKET),
        ("/", {"X-Forwarded-For": f"127.0.0.1:{own_port}"}),
        ("/?token=" + token[:-1], {}),
        ("/?token=" + token, {}),
        ("/", {"Cookie": cookie}),
        ("/_stcore/stream", {**WEBSOCKET, "Cookie": cookie}),
    ]
    program = f"""
for path, headers in {requests!r}:
    connection = http.client.HTTPConnection("127.0.0.1", {server.port}, timeout=30)
    connection.request("GET", path, headers=headers)
    print(connection.getresponse().status)
"""
    output, _ = start_as_nobody(program).communicate(timeout=120)
    assert [int(line) for line in output.split()] == [403, 403, 403, 403, 403, 303, 200, 101]


def test_the_server_answers_on_ipv6_and_below_a_path(proxied: Server) -> None:
    for host in (f"[::1]:{proxied.port}", f"localhost:{proxied.port}"):
        for path in ("/fed/lens/", "/fed/lens/live", "/fed/lens/_stcore/health"):
            assert ask(proxied, ("GET", path), "::1", host=host, origin=f"http://{host}").status == 200
        answer = ask(proxied, ("GET", "/fed/lens/pulse?experiment=1"), "::1", host=host)
        assert answer.status in (200, 503)  # there is no database before the first visit
        stream = ("GET", "/fed/lens/_stcore/stream")
        assert ask(proxied, stream, "::1", **WEBSOCKET, host=host, origin=f"http://{host}").status == 101


def test_a_configured_name_needs_the_token(proxied: Server, token: str) -> None:
    """Nobody reaches a public name through loopback but a proxy, whoever runs it."""
    page, stream = ("GET", "/fed/lens/"), ("GET", "/fed/lens/_stcore/stream")
    public = {"host": "lens.example.org", "origin": "https://lens.example.org"}
    assert ask(proxied, page, "::1", **public).status == 403
    answer = ask(proxied, ("GET", f"/fed/lens/?token={token}"), "::1", x_forwarded_proto="https", **public)
    attributes = set((answer.getheader("Set-Cookie") or "").split("; "))
    assert {"Path=/fed/lens", "HttpOnly", "SameSite=lax"} <= attributes
    admitted = (answer.getheader("Set-Cookie") or "").partition(";")[0]
    assert ask(proxied, page, "::1", cookie=admitted, **public).status == 200
    assert ask(proxied, stream, "::1", **WEBSOCKET, cookie=admitted, **public).status == 101
    assert ask(proxied, stream, "::1", **WEBSOCKET, cookie=admitted, host="other.example").status == 403


def test_a_configured_origin_may_come_with_another_name(proxied: Server, cookie: str) -> None:
    """A proxy that does not pass the name on."""
    stream = ("GET", "/fed/lens/_stcore/stream")
    for headers in ({"x_forwarded_for": "192.0.2.7"}, {}):
        admitted = {**WEBSOCKET, **headers, "cookie": cookie}
        assert ask(proxied, stream, "::1", **admitted, origin="https://public.example").status == 101
        assert ask(proxied, stream, "::1", **admitted, origin="https://other.example").status == 403


def test_nothing_was_asked_of_the_network(server: Server, folder: Path) -> None:
    """No connection and no look-up beyond loopback, whatever the tests above have sent."""
    ask(server, ("PUT", "/_stcore/upload_file/a/b"), origin=f"http://127.0.0.1:{server.port}")
    outside = folder / "outside.log"
    assert not outside.exists(), outside.read_text()
    assert "Traceback" not in (folder / "server.log").read_text()


CONFIGURED = HostNames(("lens.example.org", "*.uni.example"), frozenset({"https://proxy.example"}))


ANSWERED = [
    "localhost",
    "localhost:8501",
    "LOCALHOST.:8501",
    "127.0.0.1:8501",
    "127.0.0.2",
    "[::1]:8501",
    "[::1]",
    "lens.example.org",
    "lens.example.org:443",
    "a.uni.example",
]
REFUSED = [
    "",
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "10.0.0.1:8501",
    "0.0.0.0",
    "evil.example@localhost",
    "localhost@evil.example",
    "localhost/evil",
    "localhost:x",
    "localhost:99999",
    "localhost evil",
    "uni.example",
    "notlens.example.org",
    "[::2]",
    "::1",
    "[::1",
    "localhost\tx",
    "2130706433",
    "a.uni.example.evil",
]


def test_loopback_and_configured_names_are_answered_and_no_others() -> None:
    assert [host for host in ANSWERED if not CONFIGURED.answers_to(host)] == []
    assert [host for host in REFUSED if CONFIGURED.answers_to(host)] == []


def test_a_star_answers_to_every_name_but_not_to_garbage() -> None:
    assert HostNames(("*",)).answers_to("evil.example")
    assert not HostNames(("*",)).answers_to("a@b")


OWN_PAGES = [
    ("http://localhost:8501", "localhost:8501"),
    ("http://LOCALHOST:8501", "localhost:8501"),
    ("http://[::1]:8501", "[::1]:8501"),
    ("https://lens.example.org", "lens.example.org"),
    ("https://lens.example.org", "lens.example.org:443"),
    ("http://lens.example.org:80", "lens.example.org"),
    ("https://proxy.example", "127.0.0.1:8501"),
]
FOREIGN_PAGES = [
    ("http://localhost:8888", "localhost:8501"),  # somebody's notebook on the same machine
    ("http://127.0.0.1:8501", "localhost:8501"),
    ("https://localhost", "localhost:8501"),
    ("http://evil.example", "localhost:8501"),
    ("http://localhost:8501.evil.example", "localhost:8501"),
    ("http://localhost:8501/", "localhost:8501"),
    ("null", "localhost:8501"),
    ("", "localhost:8501"),
    ("file://", "localhost:8501"),
    ("chrome-extension://localhost:8501", "localhost:8501"),
    ("https://proxy.example:444", "127.0.0.1:8501"),
]


def test_pages_of_the_server_itself_and_of_configured_origins_may_call_it_and_no_others() -> None:
    assert [pair for pair in OWN_PAGES if not CONFIGURED.admits_origin(*pair)] == []
    assert [pair for pair in FOREIGN_PAGES if CONFIGURED.admits_origin(*pair)] == []


def test_a_host_is_parsed_only_where_it_is_plain() -> None:
    assert parse_host("[::1]:8501") == ("::1", 8501)
    assert parse_host("Lens.example.") == ("lens.example", None)
    assert parse_host("user@lens.example") is None


def test_the_log_does_not_hold_the_token_of_a_visitor_s_address(
    folder: Path, token: str, cookie: str
) -> None:
    assert cookie and token not in (folder / "server.log").read_text()
