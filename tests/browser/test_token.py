"""A visitor by another name than localhost: stopped at the door, let in by the token, known from then on."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
def test_a_visitor_enters_with_the_printed_token_and_is_known_afterwards(
    named_server: Server, new_page: NewPage
) -> None:
    page = new_page()
    address = f"http://{NAME}:{named_server.port}/"

    refused = page.goto(address)
    assert refused is not None
    assert refused.status == 403
    expect(page.get_by_text("FedLens does not know you.")).to_be_visible()

    printed = re.search(r"\?token=(\S+)", named_server.db.with_name("server.log").read_text())
    assert printed is not None, "the server prints the address with the token when it starts"
    page.goto(f"{address}?token={printed[1]}")
    expect(page.get_by_role("button", name="Try it").first).to_be_visible()  # the WebSocket is admitted too
    assert "token" not in page.url

    page.goto(address)  # the cookie speaks for the visitor now
    expect(page.get_by_role("button", name="Try it").first).to_be_visible()
    [cookie] = [c for c in page.context.cookies() if printed[1] in c["value"] or "fedlens" in c["name"]]
    assert cookie["httpOnly"] is True
    assert printed[1] not in cookie["value"], "the cookie does not hold the token itself"


@pytest.mark.browser
def test_a_wrong_token_opens_nothing(named_server: Server, new_page: NewPage) -> None:
    page = new_page()
    refused = page.goto(f"http://{NAME}:{named_server.port}/?token=guess")
    assert refused is not None
    assert refused.status == 403
    assert page.context.cookies() == []
