from __future__ import annotations

import time
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError

from fedcore.clip import tags
from fedcore.errors import FedLensError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A hub without a network: ``files`` maps names to contents, ``error`` is raised by every download."""
    state: dict = {"files": {}, "error": None, "asked": []}
    cache = tmp_path / "weights.bin"

    def download(repo: str, file: str, tqdm_class: type) -> str:
        state["asked"].append(file)
        if state["error"]:
            raise state["error"]
        if file not in state["files"]:
            raise EntryNotFoundError(f"404 {file}")
        bar = tqdm_class(total=len(state["files"][file]), desc=file, unit="B")
        for _ in state["files"][file]:
            bar.update(1)
            time.sleep(0.005)
        cache.write_bytes(state["files"][file])
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(tags, "cached", lambda name, tag: cache if cache.is_file() else None)
    monkeypatch.setattr(tags, "POLL_SECONDS", 0.01)
    return state


def test_weights_are_fetched_with_progress(hub):
    hub["files"] = {tags.repository("ViT-B-32", "openai")[1][1]: b"0" * 40}
    steps = list(tags.fetch("ViT-B-32", "openai"))
    assert len(hub["asked"]) == 2  # the safetensors file first, then the one that there is
    assert steps[-1] == (40, 40)
    counted = [done for done, total in steps if total == 40]
    assert counted == sorted(counted) and 0 < counted[0] < 40


def test_what_is_here_is_not_fetched(hub):
    hub["files"] = {tags.repository("ViT-B-32", "openai")[1][0]: b"0" * 7}
    list(tags.fetch("ViT-B-32", "openai"))
    hub["asked"].clear()
    assert list(tags.fetch("ViT-B-32", "openai")) == [(7, 7)]
    assert hub["asked"] == []


def test_without_a_network_it_says_what_to_do(hub):
    hub["error"] = OSError("no route to host")
    with pytest.raises(
        FedLensError, match="cannot be downloaded .OSError: no route to host.*hf download timm"
    ):
        list(tags.fetch("ViT-B-32", "openai"))


def test_an_unknown_tag_is_refused_before_anything_is_asked(hub):
    with pytest.raises(FedLensError, match="no weights called 'opanai'; did you mean 'openai"):
        list(tags.fetch("ViT-B-32", "opanai"))
    assert hub["asked"] == []
