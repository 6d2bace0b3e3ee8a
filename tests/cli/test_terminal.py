"""Names in files of other people cannot control the terminal: clipboard, title, lines or colours."""

import io
import logging
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from fedcore.base.events import Notice
from fedcore.base.progress import Progress
from fedcore.cli.common import printable, printable_output, write_text
from fedcore.cli.terminal import RunBars, track
from fedcore.config import expand
from fedcore.store import Store
from tests.support import fill
from tests.support.command_line import run

EVIL = "\x1b]52;c;cm0gLXJm\x07 \x9b2J \u202egnp \r[red]name"
SHOWN = r"\x1b]52;c;cm0gLXJm\x07 \x9b2J \u202egnp \r[red]name"


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    fill.done(path, fill.an_experiment("Foreign", methods=("zero-shot",), seeds=(1,), rounds=1))
    store = Store(path)
    store.experiments.create(fill.an_experiment("Queued", methods=("zero-shot",), seeds=(1,)))
    store.tasks.submit("check", EVIL, {})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE experiments SET name=?", [EVIL])
        connection.execute("UPDATE runs SET label=?, status_text=?", [EVIL, EVIL])
    return path


@pytest.mark.parametrize(
    "command", [("list",), ("show", "1"), ("rank",), ("queue",), ("tasks",), (f"delete{EVIL}",)]
)
def test_control_characters_of_names_are_printed_as_text(db, capsys, command):
    run(*command, "--db", db)
    said = "".join(capsys.readouterr())
    assert r"\x1b]52;c;" in said and "[red]name" in said
    assert printable(said) == said


def test_logs_and_tracebacks_pass_the_same_place(capsys):
    with printable_output():
        handler = logging.StreamHandler()
        logging.getLogger("foreign").addHandler(handler)
        logging.getLogger("foreign").error("%s", EVIL)
    logging.getLogger("foreign").removeHandler(handler)
    assert capsys.readouterr().err == f"{SHOWN}\n"


def test_names_in_progress_bars_are_text():
    """Rich takes ``[red]`` for a colour, and its bars are control sequences themselves."""
    (config,) = expand(fill.an_experiment(methods=("zero-shot",), seeds=(1,)))
    config = config.model_copy(update={"method": config.method.model_copy(update={"label": EVIL})})
    for terminal in (True, False):
        drawn = io.StringIO()
        console = Console(file=drawn, force_terminal=terminal, width=300, color_system=None)
        with RunBars(console) as bars:
            bars.add_runs(1, {1: config})
            bars.show(1, Notice(EVIL))
            bars.show(1, Progress(EVIL, 1, 2))

        def work():
            yield Progress(EVIL, 1, 2)

        track(work(), console)
        assert f"{SHOWN}, seed 1: {SHOWN}" in drawn.getvalue()
        for command in ("\x1b]52", "\x07", "\x9b", "\u202e", "\r["):
            assert command not in drawn.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_are_drawn_and_what_is_printed_beside_them_is_text(monkeypatch):
    """Rich redirects output to its bars, which once hid from it the stream that takes control sequences."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", drawn := Terminal())
    (config,) = expand(fill.an_experiment(methods=("zero-shot",), seeds=(1,)))

    def work():
        yield Progress("encoding", 1, 2)
        sys.stderr.write(f"{EVIL}\n")
        yield Progress("encoding", 2, 2)

    with printable_output():
        before = sys.stderr
        with RunBars() as bars:
            bars.add_runs(1, {1: config})
            bars.show(1, Progress("loading", 1, 2))
            sys.stderr.write(f"{EVIL}\n")
        track(work())
        assert sys.stderr is before
    assert "\r\x1b[2K" in drawn.getvalue() and r"\x1b[2K" not in drawn.getvalue()
    assert "".join(drawn.getvalue().split()).count("".join(SHOWN.split())) == 2
    for command in ("\x1b]52", "\x07", "\x9b", "\u202e", "\r["):
        assert command not in drawn.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_an_export_is_printable_in_a_terminal_and_exact_elsewhere(capsys, monkeypatch, terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    with printable_output():
        write_text(None, ["a,b\r\n", f"{EVIL},1\r\n"])
    assert capsys.readouterr().out == f"a,b\r\n{SHOWN if terminal else EVIL},1\r\n"
