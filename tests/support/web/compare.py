"""What a reader sees on a tab of the page Compare."""

from streamlit.testing.v1 import AppTest

from tests.support.web.markup import tables
from tests.support.web.pages import html


def show(app: AppTest, tab: str, **state: object) -> AppTest:
    app.session_state["tab"] = tab
    for key, value in state.items():
        app.session_state[key] = value
    app = app.run()
    assert not app.exception, app.exception
    return app


def table(app: AppTest, label: str) -> list[list[str]]:
    """The cells of a table as a reader sees them (a number's details left out)."""
    return next(t.rows for t in tables(html(app)) if t.label.startswith(label))
