"""Fetching through torchvision, from a server of our own that hands out the fixture's archive."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torchvision.datasets as tv

from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress, result_of
from fedcore.cli import main as cli
from fedcore.data import catalog, copies, getting
from tests.support.data.archives import fit_checksums, md5, pack
from tests.support.data.layouts import WRITE
from tests.support.data.loading import loaded


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    handler = functools.partial(Silent, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def cifar_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """CIFAR-10's archive as torchvision gets it, the fixture's; hands back the archive."""
    written = WRITE["cifar10"](tmp_path / "written")
    archive = pack(written, tmp_path / "served" / tv.CIFAR10.filename)
    fit_checksums(monkeypatch, written)
    monkeypatch.setattr(tv.CIFAR10, "tgz_md5", md5(archive))
    with serving(archive.parent) as address:
        monkeypatch.setattr(tv.CIFAR10, "url", f"{address}/{archive.name}")
        yield archive


def test_what_is_fetched_loads_and_is_not_fetched_twice(
    cifar_server: Path, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setenv("FEDLENS_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("FEDLENS_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "mine" / "cifar"
    assert cli.main(["data", "get", "cifar10", "--root", str(root), "--yes"]) != 0
    error = capsys.readouterr().err
    assert "CIFAR-10 from the authors' archive, through torchvision\nlicence: no licence" in error
    assert "60,000 images expected, 70 found" in error and copies.registered("cifar10") is None
    entry = replace(catalog.entry("cifar10"), counts={"all": 70})
    monkeypatch.setitem(catalog._ENTRIES, "cifar10", entry)
    assert cli.main(["data", "get", "cifar10", "--root", str(root), "--yes"]) == 0
    assert f'70 images of CIFAR-10 ({root}); in an experiment: name = "cifar10"' in capsys.readouterr().out
    cifar_server.unlink()
    steps: list[Progress] = []
    result_of(getting.get(getting.ask("cifar10"), str(root)), steps.append)
    assert {step.total for step in steps if step.in_bytes} <= {171_000_000}
    assert len(loaded("cifar10")) == 70


def test_a_failed_download_says_why_and_what_to_do(cifar_server: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(tv.CIFAR10, "tgz_md5", "0" * 32)
    with pytest.raises(FedLensError, match=r"cannot be downloaded into .*corrupted.*; try again") as caught:
        list(getting.get(getting.ask("cifar10"), str(tmp_path / "a")))
    assert caught.value.field == "data.root"
    cifar_server.unlink()
    assert cli.main(["data", "get", "cifar10", "--root", str(tmp_path / "b"), "--yes"]) != 0
    assert "404" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(FedLensError, match="cannot be downloaded into .*a folder that can be written"):
        list(getting.get(getting.ask("cifar10"), str(tmp_path / "file" / "below")))


def test_an_unknown_name_has_a_suggestion(capsys):
    assert cli.main(["data", "get", "fod101", "--root", "x"]) != 0
    assert "did you mean 'food101" in capsys.readouterr().err
