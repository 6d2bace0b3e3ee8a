"""The route ``/pulse?experiment=3``, at which the browser asks whether an experiment has changed."""

from __future__ import annotations

import streamlit as st
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fedcore.errors import FedLensError
from fedcore.results import progress
from fedcore.store import Store

PATH = "/pulse"
LONGEST = 18  # digits that SQLite takes for a number


def address(experiment: int) -> str:
    """Return the address that serves the pulse of an experiment."""
    return f"{PATH}?experiment={experiment}"


def answer(request: Request) -> PlainTextResponse:
    """Return the pulse as text; 400 if no experiment is named, 503 if the database cannot be read."""
    asked = request.query_params.get("experiment", "")
    if not asked.isdecimal() or len(asked) > LONGEST:
        return PlainTextResponse("name an experiment by its number: /pulse?experiment=3", 400)
    try:
        text = progress.activity_digest(Store(), int(asked))
    except FedLensError as error:
        return PlainTextResponse(str(error), 503)
    return PlainTextResponse(text, headers={"Cache-Control": "no-store"})


def route() -> Route:
    """Return the route, restricted to the hosts that Streamlit accepts."""
    hosts = st.get_option("server.allowedHosts") or ["*"]
    return Route(PATH, answer, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)])
