"""``app``: the dashboard."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from fedcore.cli.options import DONE, Database, with_common_options
from fedcore.paths import PROJECT, user_path

commands = typer.Typer()


@commands.command("app")
@with_common_options
def app(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port to listen on (default: the first free one from 8501)"),
    ] = None,
    db: Database = None,
) -> int:
    """Start the dashboard.

    It listens on this machine only. Ctrl-C ends it; runs in training continue.
    """
    from streamlit.web import cli

    if db is not None:
        os.environ["FEDLENS_DB"] = str(user_path(db, "db").resolve())
    listen = [] if port is None else [f"--server.port={port}"]
    cli.main(["run", str(PROJECT / "app.py"), *listen], "streamlit", standalone_mode=False)
    return DONE
