"""A visitor by another name than localhost: stopped at the door, let in by the token, known from then on."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.web.browser import NewPage, Server, end_workers, start_server

NAME = "lens.localhost"
"""Browsers take every name below localhost to this machine; the server asks such visitors for the token."""


@pytest.fixture(scope="module")
def named_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("token")
    running = start_server(
        folder / "runs.db",
        folder / "server.log",
        ["--server.allowedHosts", NAME],
        FEDLENS_STATE=str(folder / "state"),
    )
    yield running
    running.stop()
    end_workers(running.db)


@pytest.mark.browser
@pytest.mark.slow
def test_a_visitor_enters_with_the_token_and_is_known_afterwards(
    named_server: Server, new_page: NewPage
) -> None:
    page = new_page()
    address = f"http://{NAME}:{named_server.port}/"

    refused = page.goto(address)
    assert refused is not None
    assert refused.status == 403
    expect(page.get_by_text("Access denied.")).to_be_visible()

    log = named_server.db.with_name("server.log")
    named = re.search(r"\?token= followed by the token in (\S+)", log.read_text())
    assert named is not None, "the server names the token's file when it starts"
    token = Path(named[1]).read_text().strip()
    page.goto(f"{address}?token={token}")
    expect(page.get_by_role("button", name="Try it").first).to_be_visible()  # the WebSocket is admitted too
    assert "token" not in page.url

    assert page.evaluate("fetch('/').then(answer => answer.status)") == 200, (
        "the cookie speaks for the visitor now"
    )
    [cookie] = [c for c in page.context.cookies() if token in c["value"] or "fedlens" in c["name"]]
    assert cookie["httpOnly"] is True
    assert token not in cookie["value"], "the cookie does not hold the token itself"
    assert token not in log.read_text(), "others may read a log"
