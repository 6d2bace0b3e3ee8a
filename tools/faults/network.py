"""Connections and name look-ups that leave this machine."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from streamlit.testing.v1 import AppTest

from fedcore.cli.main import main as fedlens
from fedcore.config import dumps, parse
from tests.support.web.browser import ROOT
from tools.faults.family import Family
from tools.faults.forked import Forked
from tools.faults.lab import EXPERIMENT, Defect, Lab, copy, train
from tools.faults.verdict import Outcome, Verdict

PAGES = ("new", "live", "compare", "data", "run")
NAMED = {"socket.connect": 1, "socket.sendto": 1, "socket.getaddrinfo": 0, "socket.gethostbyname": 0}
"""Python's audit events -> which argument names the other side."""


def record(file: Path) -> None:
    """Record every connection and look-up of this process beyond loopback."""

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if event in NAMED and not is_here(host := _host(arguments[NAMED[event]], event)):
            with file.open("a") as log:
                log.write(f"{event} {host}\n")

    sys.addaudithook(listen)


def _host(named: object, event: str) -> str:
    if isinstance(named, tuple):
        return str(named[0])
    if "connect" in event or "sendto" in event:  # the path of a Unix socket
        return "localhost"
    return named.decode(errors="replace") if isinstance(named, bytes) else str(named or "localhost")


def is_here(host: str) -> bool:
    """Return whether a name or an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _page(db: Path, name: str) -> int:
    """Draw a page, without the browser's part."""
    with mock.patch.dict("os.environ", FEDLENS_DB=str(db)):
        app = AppTest.from_file(str(ROOT / "dashboard.py"), default_timeout=120).run()
        app.switch_page(f"pages/{name}.py")
        for key in ("id", "ids"):
            app.query_params[key] = "1"
        app.run()
        return 1 if app.exception else 0


def attempt(lab: Lab, folder: Path, rng: np.random.Generator) -> Verdict:
    """Do one thing that a user does, and check which hosts it contacts."""
    db, calls = copy(lab.done, folder), folder / "outside.log"
    file = folder / "experiment.toml"
    file.write_text(dumps(parse(EXPERIMENT)))
    commands = {
        "run": ["run", str(file), "--db", str(folder / "other.db")],
        "export": ["export", "1", "--db", str(db)],
        "list": ["list", "--db", str(db)],
        "methods": ["methods"],
        "presets": ["presets"],
    }
    what = str(rng.choice([*commands, *PAGES, "job"]))

    def act() -> int:
        record(calls)
        return fedlens(commands[what]) if what in commands else _page(db, what)

    if what == "job":
        db = copy(lab.queued, folder / "job")
        process = train(db, before=lambda: record(calls))
    else:
        process = Forked(act, folder / "process.log")
    code = process.wait(300)
    if calls.exists():
        raise Defect(f"{what}: {calls.read_text().splitlines()[0]}")
    if code:
        return Verdict(Outcome.RAW, f"{what}: exit status {code}: {process.log.read_text()[-200:]}")
    return Verdict(Outcome.UNAFFECTED, what)


FAMILIES = (Family("network", "connections beyond this machine: commands, jobs, pages", 24, attempt),)
