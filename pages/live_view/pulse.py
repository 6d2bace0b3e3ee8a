"""The route ``/pulse?experiment=3``, at which the browser asks whether an experiment has changed.

``/pulse?experiment=all`` answers for all experiments together.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fedcore.errors import FedLensError
from fedcore.results.runs import progress
from fedcore.store import Store
from pages.widgets import session

PATH = "/pulse"
LONGEST = 18  # digits that SQLite takes for a number
ALL = "all"


def address(experiment: int | None) -> str:
    """Return the address that serves the pulse of an experiment; None: of all."""
    return f"{session.base_path()}{PATH}?experiment={ALL if experiment is None else experiment}"


def answer(request: Request) -> PlainTextResponse:
    """Return the pulse as text; 400 if no experiment is named, 503 if the database cannot be read."""
    asked = request.query_params.get("experiment", "")
    if asked != ALL and (not asked.isdecimal() or len(asked) > LONGEST):
        return PlainTextResponse("name an experiment by its number: /pulse?experiment=3", 400)
    try:
        text = progress.activity_digest(Store(), None if asked == ALL else int(asked))
    except FedLensError as error:
        return PlainTextResponse(str(error), 503)
    return PlainTextResponse(text, headers={"Cache-Control": "no-store"})


def route() -> Route:
    """Return the route; as all routes, it is behind the guard."""
    return Route(session.base_path() + PATH, answer)
