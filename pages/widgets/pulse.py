"""The pulse of experiments: the routes that the browser polls, and the fragment that reruns on a change.

``/pulse?experiment=3`` returns a short text that changes with the experiment (``all`` stands for all
experiments together), and ``/counts?experiment=3`` the number of its runs by state.

``st.fragment(run_every=2)`` would rerun a fragment every two seconds, and at each rerun the browser goes
through all widgets of the page (about 0.1 s of processor time). Polling a route is cheaper.
"""

from collections import Counter

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedcore.base.errors import FedLensError
from fedcore.results import progress
from fedcore.store import Store
from pages.widgets import browser, session

_clock = browser.script("clock")
PATH, COUNTS_PATH = "/pulse", "/counts"
NO_STORE = {"Cache-Control": "no-store"}
LONGEST = 18  # digits that always fit into an integer of SQLite
ALL = "all"


def address(experiment: int | None) -> str:
    """Return the address for the pulse of an experiment; None stands for all experiments."""
    return f"{session.base_path()}{PATH}?experiment={ALL if experiment is None else experiment}"


def counts_address(experiment: int) -> str:
    """Return the address that serves the runs of an experiment by state."""
    return f"{session.base_path()}{COUNTS_PATH}?experiment={experiment}"


def answer(request: Request) -> PlainTextResponse:
    """Return the pulse as text; 400 if no experiment is named, 503 if the database cannot be read."""
    asked = request.query_params.get("experiment", "")
    if asked != ALL and (not asked.isdecimal() or len(asked) > LONGEST):
        return PlainTextResponse("name an experiment by its number: /pulse?experiment=3", 400)
    try:
        text = progress.activity_digest(Store(), None if asked == ALL else int(asked))
    except FedLensError as error:
        return PlainTextResponse(str(error), 503)
    return PlainTextResponse(text, headers=NO_STORE)


def answer_counts(request: Request) -> Response:
    """Return the number of runs, in all and by state; 400 and 503 as ``answer``."""
    asked = request.query_params.get("experiment", "")
    if not asked.isdecimal() or len(asked) > LONGEST:
        return PlainTextResponse(f"name an experiment by its number: {COUNTS_PATH}?experiment=3", 400)
    try:
        states = Counter(run.state for run in Store().runs.of_experiments([int(asked)]))
    except FedLensError as error:
        return PlainTextResponse(str(error), 503)
    return JSONResponse({"total": states.total(), "states": states}, headers=NO_STORE)


def routes() -> list[Route]:
    """Return the routes, which are behind the guard like all others."""
    base = session.base_path()
    return [Route(base + PATH, answer), Route(base + COUNTS_PATH, answer_counts)]


def rerun_on_change(experiment: int | None, seen: str, every: float, longest: float | None) -> None:
    """Rerun the calling fragment as soon as an experiment has changed.

    Args:
        experiment: None for all experiments together.
        seen: the experiment's pulse, read before the data are drawn, so that a change while drawing counts.
        every: seconds between two polls.
        longest: seconds after which the fragment runs again even without a change; None: never.
    """
    data = {"address": address(experiment), "seen": seen, "every": every, "longest": longest}
    _clock("clock", data=data, on_news_change=browser.ignore)
