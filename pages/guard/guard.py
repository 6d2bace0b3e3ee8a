"""The middleware in front of every route checks host, origin and the visitor's right to be here."""

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
WHO_ARE_YOU = (
    "FedLens does not know you. Open the address with ?token= that it printed when it started. The token "
    "also stands in the file token in the state folder (~/.local/state/fedlens) of the account that runs it."
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>FedLens</title>
<style>body {{ font: 1rem/1.5 system-ui; max-width: 40rem; margin: 15vh auto; padding: 0 1rem }}</style>
</head><body><main><h1>FedLens</h1><p>{text}</p></main></body></html>
"""


class Guard:
    """ASGI middleware that answers the account that runs the server, and visitors with its token.

    It reads Streamlit's options when it is made, which is when the server starts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.token = tokens.account_token()
        self.cookie, self.cookie_value = tokens.cookie(self.token)
        self.names = Names.configured()
        self.logins = Logins.configured()
        config.set_option("server.allowedHosts", [])  # Streamlit would refuse localhost beside them
        self.path = session.base_path() or "/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the app, or answer it here."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        answer = self.refusal(request) or self.admission(request)
        if answer is None:
            await self.app(as_same_origin(scope), receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # not accepted yet: the status is 403
        else:
            await answer(scope, receive, _with_headers(send))

    def refusal(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a request by a foreign name or from a foreign page; None for any other."""
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
        followed = request.headers.get("sec-fetch-dest", "document") == "document"  # a link, not a frame
        if not origins and fetched_by in ("cross-site", "same-site") and not followed:
            return PlainTextResponse("FedLens cannot be embedded in pages of other origins.", 403)
        return None

    def admission(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a visitor who has to identify first; None for one who may pass."""
        given = request.query_params.get(PARAMETER)
        if given is not None and request.scope["type"] == "http" and tokens.same(given, self.token):
            return self._welcome(request)
        if self.has_cookie(request) or self.is_same_account(request):
            return None
        if self.logins is not None:
            return self.logins.answer(request, session.base_path())
        wants_page = "text/html" in request.headers.get("accept", "")
        return (
            HTMLResponse(PAGE.format(text=WHO_ARE_YOU), 403)
            if wants_page
            else PlainTextResponse(WHO_ARE_YOU, 403)
        )

    def has_cookie(self, request: HTTPConnection) -> bool:
        """Return whether the visitor has shown the token before."""
        return tokens.same(request.cookies.get(self.cookie, ""), self.cookie_value)

    def is_same_account(self, request: HTTPConnection) -> bool:
        """Return whether the visitor's end of the connection belongs to the account that runs the server."""
        host = parse_host(request.headers["host"])
        if any(name in request.headers for name in FORWARDED) or host is None or not is_loopback(host[0]):
            return False
        client, server = request.scope.get("client"), request.scope.get("server")
        owner = peers.account(cast("peers.Address | None", client), cast("peers.Address | None", server))
        return owner is not None and owner == os.getuid()

    def _welcome(self, request: HTTPConnection) -> Response:
        """Exchange the token in the address for a cookie, so that it stays in no history."""
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
    """Return the scope of an admitted request as the app may see it.

    Streamlit compares origins once more, and where names differ it looks up the machine's outside address: on
    the event loop, and in the network. An admitted request gives it nothing to compare: without an Origin, or
    for a WebSocket, whose origin signs logins, with the host that the browser means.
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
    """Return a sender that forbids other sites to frame the answer and to learn its address."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            headers.setdefault("X-Frame-Options", "SAMEORIGIN")
            headers.setdefault("Referrer-Policy", "same-origin")
        await send(message)

    return sent
