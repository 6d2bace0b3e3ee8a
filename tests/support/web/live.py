"""What pages tell the browser: of their charts, of the clock of Live; and their widgets."""

import json
from typing import Any

from streamlit.testing.v1 import AppTest


def clock(app: AppTest) -> dict[str, Any] | None:
    """Return what the page tells the browser about its next check; None where there is no clock."""
    found = [e.proto for e in app.get("bidi_component") if e.proto.component_name.endswith("clock")]
    return json.loads(found[0].json) if found else None


def charts(app: AppTest) -> list[dict[str, Any]]:
    """Return what the browser is told of each chart."""
    parts = [e.proto for e in app.get("bidi_component") if e.proto.component_name.endswith("chart")]
    return [json.loads(part.bytes) for part in parts]


def widget(found: list, key: str) -> Any:
    return next(w for w in found if w.key == key)
