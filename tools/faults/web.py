"""Foreign Host and Origin headers on every route of the running app, and requests that no browser sends."""

from __future__ import annotations

import atexit
import http.client
from functools import cache
from pathlib import Path

import numpy as np

from tests.support.web.browser import ROOT, Server, start_server
from tests.support.web.requests import AUDIT, ROUTES, WEBSOCKET, ask
from tools.faults.family import Family
from tools.faults.lab import Defect, Lab, copy
from tools.faults.mutate import TOKENS
from tools.faults.verdict import Outcome, Verdict

HOSTS = (
    "evil.example", "evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example:{port}",
    "127.0.0.1@evil", "evil.example#127.0.0.1", "localhost:{port}@evil.example", "[::1", "", "0.0.0.0:{port}",
    "169.254.169.254", "a b",
)  # fmt: skip
ORIGINS = (
    "http://evil.example", "https://localhost", "null", "http://127.0.0.1:1", "file://", "//", "http://[",
    "http://localhost:{port}.evil.example", "http://evil.example:{port}", "http://localhost@evil.example",
    "chrome-extension://x",
)  # fmt: skip
METHODS = ("HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@cache
def server(folder: Path, state: Path) -> Server:
    """Start the app, with a record of every connection that its process tries beyond loopback."""
    (folder / "sitecustomize.py").write_text(AUDIT)
    running = start_server(
        copy(state, folder),
        folder / "server.log",
        FEDLENS_STATE=str(folder / "state"),
        PYTHONPATH=f"{folder}:{ROOT}",
        CALLS_OUTSIDE=str(folder / "outside.log"),
    )
    atexit.register(running.stop)
    return running


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Send one request that must not be answered, or one that must be answered plainly."""
    (lab.folder / "web").mkdir(exist_ok=True)
    app = server(lab.folder / "web", lab.done)
    method, path = ROUTES[rng.integers(len(ROUTES))]
    headers = dict(WEBSOCKET) if path.endswith("/stream") and rng.random() < 0.7 else {}
    kind = str(rng.choice(["host", "origin", "both", "odd"], p=[0.35, 0.35, 0.1, 0.2]))
    if kind in ("host", "both"):
        headers["host"] = str(rng.choice(HOSTS)).format(port=app.port)
    if kind in ("origin", "both"):
        headers["origin"] = str(rng.choice(ORIGINS)).format(port=app.port)
    if kind == "odd":
        method = str(rng.choice(METHODS))
        token = "".join(c for c in str(rng.choice(TOKENS)) if c.isascii() and c.isprintable() and c != " ")
        path += f"{'&' if '?' in path else '?'}id={token}"
        headers["x-odd"] = token
    try:
        status = ask(app, (method, path), **headers).status
    except http.client.HTTPException as error:  # the connection was closed without an answer
        status, headers["error"] = 499, type(error).__name__
    asked = f"{method} {path[:60]} {headers}"
    if app.process.poll() is not None:
        raise Defect(f"{asked}: the server ended")
    if status >= 500:
        return Verdict(Outcome.RAW, f"{asked}: {status}")
    if kind != "odd" and status < 400:
        raise Defect(f"{asked}: answered with {status}")
    if (calls := app.db.with_name("outside.log")).exists():
        raise Defect(f"{asked}: {calls.read_text().splitlines()[0]}")
    return Verdict(Outcome.REFUSED if status >= 400 else Outcome.UNAFFECTED, f"{asked}: {status}")


FAMILIES = (Family("web", "foreign Host and Origin on every route, odd requests", 500, attempt),)
