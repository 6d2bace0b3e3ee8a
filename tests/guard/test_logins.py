"""Logins by OpenID Connect: the guard's part of them, on the real server."""

import http.client
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from streamlit.web.server.starlette import starlette_websocket
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value

from tests.support.web.browser import ROOT, Server, end_workers, start_server

SECRET = "a secret of the tests, long enough"
VISITOR = {"X-Forwarded-For": "192.0.2.7", "Accept": "text/html"}
SECRETS = f"""
[auth]
redirect_uri = "https://lens.example.org/oauth2callback"
cookie_secret = "{SECRET}"
client_id = "fedlens"
client_secret = "x"
server_metadata_url = "http://127.0.0.1:9/.well-known/openid-configuration"

[fedlens]
users = ["Marie@example.org", "@lab.example.org"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("logins")
    (folder / "secrets.toml").write_text(SECRETS)
    options = ["--secrets.files", str(folder / "secrets.toml"), "--server.baseUrlPath", "lens"]
    running = start_server(
        folder / "runs.db",
        folder / "server.log",
        options,
        "http://127.0.0.1:{port}/lens/_stcore/health",
        FEDLENS_STATE=str(folder / "state"),
    )
    yield running
    running.stop()
    end_workers(running.db)


def ask(server: Server, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers={**VISITOR, **headers})
    return connection.getresponse()


def cookie(secret: str = SECRET, **user: object) -> str:
    """The cookie that Streamlit sets once the provider has said who somebody is."""
    value = json.dumps({"is_logged_in": True, "origin": "https://lens.example.org", **user})
    return "_streamlit_user=" + create_signed_value(secret, "_streamlit_user", value).decode()


def test_a_stranger_is_sent_to_the_provider(server: Server) -> None:
    answer = ask(server, "/lens/live?id=1")
    assert answer.status == 302
    target = urlsplit(answer.getheader("Location") or "")
    assert target.path == "/lens/auth/login" and parse_qs(target.query)["provider"]
    assert ask(server, "/lens/pulse?experiment=1", Accept="*/*").status == 403
    assert ask(server, "/lens/oauth2callback").status != 403
    assert ask(server, "/oauth2callback/../lens/live").status != 200


@pytest.mark.parametrize("email", ["marie@example.org", "MARIE@example.org", "paul@lab.example.org"])
def test_named_users_pass(server: Server, email: str) -> None:
    assert ask(server, "/lens/", Cookie=cookie(email=email)).status == 200


@pytest.mark.parametrize(
    "user",
    [
        {"email": "eve@example.org"},
        {"email": "marie@example.org.evil.example"},
        {"email": "marie@lab.example.org", "email_verified": False},
        {"email": ""},
        {},
    ],
    ids=str,
)
def test_others_do_not(server: Server, user: dict[str, object]) -> None:
    assert ask(server, "/lens/", Cookie=cookie(**user)).status == 403


def test_an_unsigned_or_ended_login_is_none(server: Server) -> None:
    forged = cookie("another secret", email="marie@example.org")
    ended = cookie(email="marie@example.org", is_logged_in=False)
    assert ask(server, "/lens/", Cookie=forged).status == 302
    assert ask(server, "/lens/", Cookie=ended).status == 302


def test_the_account_itself_need_not_log_in(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/lens/")
    assert connection.getresponse().status == 200


def test_the_guard_is_made_without_the_internal_functions_of_a_login_that_nobody_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("pages.guard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(starlette_websocket, "_get_signed_cookie_with_chunks")
    guard = importlib.import_module("pages.guard.guard")
    assert guard.Guard(lambda *_: None).logins is None


@pytest.mark.slow
def test_the_app_starts_without_the_internal_functions_of_a_login_that_nobody_configured(
    tmp_path: Path,
) -> None:
    code = (
        "from streamlit.web.server.starlette import starlette_websocket as internal\n"
        "del internal._get_signed_cookie_with_chunks\n"
        "import app\n"
        "from pages.guard.guard import Guard\n"
        "assert Guard(app.app).logins is None"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "FEDLENS_STATE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
