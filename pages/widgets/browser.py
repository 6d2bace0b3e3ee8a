"""Scripts that run in the browser: Streamlit components, most of them invisible, with files in ``assets``.

One of them, the clock, asks the server for the pulse of an experiment: ``/pulse?experiment=3`` returns a
short text that changes with the experiment (``all`` stands for all experiments together), and
``/counts?experiment=3`` the number of its runs by state. ``st.fragment(run_every=2)`` would rerun a fragment
every two seconds, and at each rerun the browser goes through all widgets of the page (about 0.1 s of
processor time). Polling a route is cheaper.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import streamlit as st
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from fedcore.base.errors import FedLensError
from fedcore.store import Store
from pages.widgets import session

PULSE, COUNTS = "/pulse", "/counts"
POLL_SECONDS, LONGEST_SECONDS = 2, 15
"""Seconds between two polls, and until a page is drawn again without a change."""
NO_STORE = {"Cache-Control": "no-store"}
MAX_DIGITS = 18
"""Digits of an experiment's number that always fit into an integer of SQLite."""
ALL = "all"


def script(name: str) -> Callable[..., Any]:
    """Return a function that loads ``assets/NAME.js`` into the page, without anything to see.

    Its arguments are those of a Streamlit component: ``data`` for the script, ``on_X_change`` for its events.
    """
    code = (session.ASSETS / f"{name}.js").read_text(encoding="utf-8")
    component = st.components.v2.component(name, html="<i></i>", js=code)

    def load(key: str, **arguments: Any) -> None:
        with st.container(key=f"{key}_place"):  # style.css hides it
            component(key=key, **arguments)

    return load


def ignore() -> None:
    """Do nothing: Streamlit reports a component's event, and reruns the page, only if it has a callback."""


_share = st.components.v2.component(
    "share",
    html='<button type="button" title="Copies the address, which opens this view again">Share</button>',
    css=(session.ASSETS / "button.css").read_text(encoding="utf-8"),
    js="""export default function ({ parentElement }) {
  const button = parentElement.querySelector("button");
  button.onclick = async () => { // browsers have a clipboard on this machine and over https only
    if (!navigator.clipboard) return window.prompt("The address of this view:", location.href);
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Share"; }, 2000);
  };
}""",
)
_viewport, _shortcuts = script("viewport"), script("shortcuts")
_window, _clock = script("window"), script("clock")


def scripts_of_every_page() -> None:
    """Load what every page has: history, window, theme, shortcuts, the button *Share*."""
    with st.container(key="share_bar"):
        _share(key="share")
    _window("window")
    widths = {
        "narrow": (f"(max-width: {session.NARROW_WINDOW}px)", session.is_narrow()),
        "wide": (f"(min-width: {session.WIDE_WINDOW}px)", session.is_wide()),
    }
    seen, events = {"widths": widths, "dark": session.theme().dark}, ("narrow", "wide", "dark")
    _viewport(session.VIEWPORT, data=seen, **{f"on_{event}_change": ignore for event in events})
    base, listed = session.base_path(), [page for page in session.PAGES if page.key]
    pages = [{"key": p.key, "title": p.title, "path": f"{base}/{p.address}"} for p in listed]
    _shortcuts("shortcuts", data={"pages": pages})


_grid = st.components.v2.component(
    "grid",
    html='<div class="grid"></div>',
    css=(session.ASSETS / "grid.css").read_text(encoding="utf-8"),
    js=(session.ASSETS / "grid.js").read_text(encoding="utf-8"),
)


def draw_html(html: str, key: str) -> str | None:
    """Draw HTML with buttons, such as a table of them, whose arrow keys and clicks a component handles.

    ``st.dataframe`` draws on a canvas, where a cell has one line and one colour, and a link would load the
    whole page again. New HTML replaces the old in place, so that scroll position and focus stay.

    Args:
        html: not escaped again; the caller has escaped all text of users.

    Returns: the ``data-choice`` of the button that caused this rerun, if any.
    """
    chosen = _grid(key=key, data={"html": html}, on_chosen_change=ignore).get("chosen")
    return str(chosen["choice"]) if chosen else None


def address(path: str, experiment: int | None) -> str:
    """Return the address of PULSE or COUNTS for an experiment; None stands for all experiments."""
    return f"{session.base_path()}{path}?experiment={ALL if experiment is None else experiment}"


def answer(request: Request) -> Response:
    """Answer a poll with the pulse as text, or with the number of runs, in all and by state.

    Returns: 400 if no experiment is named, 503 if the database cannot be read. The routes are behind the
    guard like all others.
    """
    path = PULSE if request.url.path.endswith(PULSE) else COUNTS
    asked = request.query_params.get("experiment", "")
    of_all = path == PULSE and asked == ALL
    if not of_all and (not asked.isdecimal() or len(asked) > MAX_DIGITS):
        return PlainTextResponse(f"name an experiment by its number: {path}?experiment=3", 400)
    try:
        if path == PULSE:
            text = Store().runs.digest(None if of_all else int(asked))
            return PlainTextResponse(text, headers=NO_STORE)
        states = Counter(run.state for run in Store().runs.of_experiments([int(asked)]))
        return JSONResponse({"total": states.total(), "states": states}, headers=NO_STORE)
    except FedLensError as error:
        return PlainTextResponse(str(error), 503)


def rerun_on_change(experiment: int | None, seen: str, every: float, longest: float | None) -> None:
    """Rerun the calling fragment as soon as an experiment has changed.

    Args:
        experiment: None for all experiments together.
        seen: the experiment's pulse, read before the data are drawn, so that a change while drawing counts.
        every: seconds between two polls.
        longest: seconds after which the fragment runs again even without a change; None: never.
    """
    data = {"address": address(PULSE, experiment), "seen": seen, "every": every, "longest": longest}
    _clock("clock", data=data, on_news_change=ignore)
