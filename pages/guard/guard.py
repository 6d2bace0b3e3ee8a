"""ASGI middleware that checks every request's host and origin, and whether the visitor may use the app."""

from __future__ import annotations

import os
from typing import cast
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config

from pages.guard import peers, tokens
from pages.guard.hosts import Names, is_loopback, parse_host
from pages.guard.logins import Logins
from pages.widgets import session

PARAMETER = "token"
COOKIE_SECONDS = 30 * 24 * 3600
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
"""Headers that a proxy adds; behind one, the account at the other end is not the visitor's."""
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


class Guard:
    """Admits the account that runs the server, visitors with its token, and users who have logged in.

    Streamlit's options are read when the server starts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.token = tokens.account_token()
        self.cookie, self.cookie_value = tokens.cookie(self.token)
        self.names = Names.configured()
        self.logins = Logins.configured()
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
            await self.app(as_same_origin(scope), receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before the handshake: the client sees 403
        else:
            await answer(scope, receive, _with_headers(send))

    def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a request for an unknown host or from another site's page; None for others.

        The host check stops DNS rebinding: a page of another site whose name resolves to this machine.
        """
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if len(hosts) != 1 or not self.names.answers_to(hosts[0]):
            return PlainTextResponse(
                "FedLens does not answer to this host name. Open it as localhost, or add the name to "
                "server.allowedHosts (docs/security.md).",
                400,
            )
        allowed = [origin for origin in origins if self.names.admits_origin(origin, hosts[0])]
        if len(origins) > 1 or len(allowed) < len(origins):
            return PlainTextResponse("FedLens does not answer pages of other origins.", 403)
        fetched_by = request.headers.get("sec-fetch-site", "none")
        # a followed link asks for a "document", a frame for an "iframe"
        followed = request.headers.get("sec-fetch-dest", "document") == "document"
        if not origins and fetched_by in ("cross-site", "same-site") and not followed:
            return PlainTextResponse("FedLens cannot be embedded in pages of other origins.", 403)
        return None

    def admission(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a visitor who must identify first; None for one who may pass."""
        given = request.query_params.get(PARAMETER)
        if given is not None and request.scope["type"] == "http" and tokens.equal(given, self.token):
            return self._welcome(request)
        if self.has_cookie(request) or self.is_same_account(request):
            return None
        if self.logins is not None:
            return self.logins.answer(request, session.base_path())
        wants_page = "text/html" in request.headers.get("accept", "")
        return HTMLResponse(PAGE.format(text=DENIED), 403) if wants_page else PlainTextResponse(DENIED, 403)

    def has_cookie(self, request: HTTPConnection) -> bool:
        """Return whether the visitor has shown the token before."""
        return tokens.equal(request.cookies.get(self.cookie, ""), self.cookie_value)

    def is_same_account(self, request: HTTPConnection) -> bool:
        """Return whether the visitor's end of the connection belongs to the account that runs the server.

        A forwarded request, or one for another host name, comes through a proxy: the proxy's account may be
        ours although the visitor's is not, so only a direct connection to localhost counts.
        """
        host = parse_host(request.headers["host"])
        if any(name in request.headers for name in FORWARDED) or host is None or not is_loopback(host[0]):
            return False
        client, server = request.scope.get("client"), request.scope.get("server")
        owner = peers.account(cast("peers.Address | None", client), cast("peers.Address | None", server))
        return owner is not None and owner == os.getuid()

    def _welcome(self, request: HTTPConnection) -> Response:
        """Exchange the token in the address for a cookie, so that the browser's history does not keep it."""
        query = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        rest = urlencode([(name, value) for name, value in query if name != PARAMETER])
        answer = Response(status_code=303, headers={"Location": f"?{rest}", "Cache-Control": "no-store"})
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


def as_same_origin(scope: Scope) -> Scope:
    """Return an admitted request's scope, changed so that Streamlit does not check its origin again.

    If Streamlit finds a host and an origin that differ, it looks up the machine's public address: a network
    request that blocks the event loop. So the Origin header of an HTTP request is removed. A WebSocket keeps
    it, because Streamlit needs it for logins, and gets the origin's host as its Host instead.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    origin = dict(headers).get(b"origin")
    if origin is None:
        return scope
    if scope["type"] == "http":
        return {**scope, "headers": [header for header in headers if header[0] != b"origin"]}
    host = origin.partition(b"://")[2]
    return {**scope, "headers": [(name, host if name == b"host" else value) for name, value in headers]}


def _with_headers(send: Send) -> Send:
    """Return a sender that adds headers against embedding in other sites and against leaking the address."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            headers.setdefault("X-Frame-Options", "SAMEORIGIN")
            headers.setdefault("Referrer-Policy", "same-origin")
        await send(message)

    return sent
