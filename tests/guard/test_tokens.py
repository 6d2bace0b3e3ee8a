"""The file of the token, and the cookie that stands for it."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import app
from fedcore.paths import state_folder
from pages.guard import visitors


def test_a_token_is_made_once_and_only_its_account_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "fedlens"
    token = visitors.token_of(folder)
    assert len(token) >= visitors.MIN_TOKEN_LENGTH
    assert visitors.token_of(folder) == token
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [file.name for file in folder.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o606])
def test_a_token_that_others_could_read_or_write_is_replaced(tmp_path: Path, mode: int) -> None:
    token = visitors.token_of(tmp_path)
    (tmp_path / "token").chmod(mode)
    assert visitors.token_of(tmp_path) != token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "short", "\n" * 40])
def test_a_broken_token_is_replaced(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(0o600)
    assert len(visitors.token_of(tmp_path)) >= visitors.MIN_TOKEN_LENGTH


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("x" * 50)
    target.chmod(0o600)
    (tmp_path / "token").symlink_to(target)
    assert visitors.token_of(tmp_path) != "x" * 50
    assert target.read_text() == "x" * 50


def test_a_token_that_cannot_be_stored_serves_one_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    token = visitors.token_of(tmp_path / "file" / "fedlens")
    assert len(token) >= visitors.MIN_TOKEN_LENGTH
    assert "each start makes a new one" in caplog.text


def test_the_cookie_does_not_reveal_the_token() -> None:
    name, value = visitors.cookie("secret token")
    assert "secret" not in name + value
    assert visitors.cookie("another token") != (name, value)


def test_strange_secrets_are_compared_without_an_error() -> None:
    assert not visitors.equal("\udcff\x00ä", "plain")
    assert visitors.equal("plain", "plain")
    assert not visitors.equal("", "plain")


def test_the_account_has_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path))
    visitors.account_token.cache_clear()
    token = visitors.account_token()
    assert (tmp_path / "token").read_text().strip() == token
    assert os.stat(tmp_path / "token").st_uid == os.getuid()
    visitors.account_token.cache_clear()


@pytest.mark.parametrize("to_terminal", [True, False])
def test_the_token_goes_to_a_terminal_and_never_into_a_log(
    to_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> None:
        async with app.announced(app.app):
            pass

    monkeypatch.setattr(sys.stdout, "isatty", lambda: to_terminal)
    monkeypatch.setattr(app.st, "get_option", {"server.port": 8501, "server.headless": True}.get)
    with ThreadPoolExecutor(1) as pool:  # Playwright leaves a running loop in the thread of its tests
        pool.submit(asyncio.run, start()).result()
    said = capsys.readouterr().out
    assert (visitors.account_token() in said) is to_terminal
    assert (str(state_folder() / visitors.TOKEN_FILE) in said) is not to_terminal
