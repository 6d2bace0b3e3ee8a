"""A small Hugging Face Hub on this machine: repositories as the real ones are laid out, and their server.

``write_pacs`` and ``write_table`` write the files of a repository; ``in_cache`` puts them where the Hub's
library would have left them, and ``serving`` answers the requests of that library for them.
"""

import hashlib
import io
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedcore.data import catalog

README = """---
license: {licence}
configs:
- config_name: default
  data_files:
{files}---
# {title}
"""


def photograph(key: int, side: int = 48) -> bytes:
    """Return a JPEG file whose pixels are drawn by a number."""
    rng = np.random.default_rng(key)
    coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(content, "JPEG", quality=80)
    return content.getvalue()


def write_table(
    folder: Path,
    parts: Mapping[str, Sequence[tuple[bytes, Mapping[str, str | int]]]],
    classes: Mapping[str, Sequence[str]],
    *,
    paths: Sequence[str] | None = None,
    licence: str = "unknown",
    title: str = "A data set",
) -> Path:
    """Write a repository as ``push_to_hub`` does: a README and a parquet file with an image column per part.

    Args:
        parts: name of a part -> its rows: a JPEG file and the values of the other columns.
        classes: column -> the names of its ``ClassLabel``.
        paths: file name of each image, over all parts; default: none is stored.
    """
    from datasets import ClassLabel, Features, Value
    from datasets import Image as ImageFeature

    (folder / "data").mkdir(parents=True)
    names = iter(paths or ())
    for part, rows in parts.items():
        columns = {name: [values[name] for _, values in rows] for name in rows[0][1]}
        images = [{"bytes": content, "path": next(names, None)} for content, _ in rows]
        image_type = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        features = Features(
            {"image": ImageFeature()}
            | {
                name: ClassLabel(names=list(classes[name]))
                if name in classes
                else Value("string" if isinstance(values[0], str) else "int64")
                for name, values in columns.items()
            }
        )
        table = pa.table({"image": pa.array(images, image_type), **columns})
        info = json.dumps({"info": {"features": features.to_dict()}})
        pq.write_table(
            table.replace_schema_metadata({"huggingface": info}),
            folder / "data" / f"{part}-00000-of-00001.parquet",
            row_group_size=100,
        )
    files = "".join(f"  - split: {part}\n    path: data/{part}-*\n" for part in parts)
    text = README.format(licence=licence, files=files, title=title)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return folder


PHOTOGRAPHS = 400


def write_pacs(folder: Path, counts: Mapping[str, int] | None = None) -> Path:
    """Write ``flwrlabs/pacs`` from 400 photographs: the real columns, domains, classes and file names.

    Args:
        counts: images of each domain, for which photographs repeat; default: 100 each, none twice. Those
            of the catalog make a copy that is accepted as PACS.
    """
    entry = catalog.entry("pacs")
    counts = counts or dict.fromkeys(entry.domains, PHOTOGRAPHS // len(entry.domains))
    photographs = [photograph(key) for key in range(PHOTOGRAPHS)]
    rows, paths = [], []
    for domain, number in counts.items():
        for i in range(number):
            label = i * len(entry.classes) // number
            rows.append((photographs[len(rows) % PHOTOGRAPHS], {"domain": domain, "label": label}))
            paths.append(f"pic_{i:04d}.jpg")
    return write_table(folder, {"train": rows}, {"label": entry.classes}, paths=paths, title="PACS")


def commit_of(folder: Path) -> str:
    """Return a commit's hash, which changes with the files of a repository."""
    content = hashlib.sha1(usedforsecurity=False)
    for file in _files(folder):
        content.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return content.hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def in_cache(files: Path, repo: str, hf_home: Path) -> Path:
    """Lay a repository out as the Hub's library caches it; returns the folder of its commit."""
    storage = hf_home / "hub" / f"datasets--{repo.replace('/', '--')}"
    commit = commit_of(files)
    snapshot = storage / "snapshots" / commit
    for file in _files(files):
        blob = storage / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(file.read_bytes())
        link = snapshot / file.relative_to(files)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (storage / "refs").mkdir(exist_ok=True)
    (storage / "refs" / "main").write_text(commit)
    return snapshot


class HubServer(ThreadingHTTPServer):
    """Answers the requests that the Hub's library makes to read data sets and models.

    Attributes:
        repos: name -> the folder of its files and its commit; another commit "main" may be set by ``push``.
        gated: repositories whose files nobody here may read.
        cut_after: bytes of a file after which the connection breaks, once.
        sent: bytes of files that were sent.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, Path]] = {}
        self.heads: dict[str, str] = {}
        self.licences: dict[str, str] = {}
        self.gated: set[str] = set()
        self.cut_after: int | None = None
        self.sent = 0
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def push(self, repo: str, files: Path, commit: str = "", licence: str = "unknown") -> str:
        """Make the files the newest commit of a repository."""
        commit = commit or commit_of(files)
        self.repos.setdefault(repo, {})[commit] = files
        self.heads[repo], self.licences[repo] = commit, licence
        return commit


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        if found := re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            repo, revision = found.groups()
            if (commit := self._commit(repo, revision or "main")) is not None:
                card = {"license": self.server.licences[repo]}
                gated = "auto" if repo in self.server.gated else False
                self._json({"id": repo, "sha": commit, "cardData": card, "gated": gated, "siblings": []})
        elif found := re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)/tree/([^/]+)", path):
            if (commit := self._commit(*found.groups())) is not None:
                folder = self.server.repos[found[1]][commit]
                self._json(
                    [
                        {
                            "type": "file",
                            "path": file.relative_to(folder).as_posix(),
                            "size": file.stat().st_size,
                            "oid": _oid(file),
                        }
                        for file in _files(folder)
                    ]
                )
        elif found := re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if (commit := self._commit(found[1], found[2])) is not None:
                self._file(found[1], commit, found[3])
        else:
            self._refuse(404, "EntryNotFound")

    def _commit(self, repo: str, revision: str) -> str | None:
        """Return the commit of a revision; None once its absence has been answered."""
        commits = self.server.repos.get(repo)
        commit = self.server.heads.get(repo) if revision == "main" else revision
        if commits is None or commit not in commits:
            self._refuse(404, "RepoNotFound" if commits is None else "RevisionNotFound")
            return None
        return commit

    def _file(self, repo: str, commit: str, name: str) -> None:
        file = self.server.repos[repo][commit] / name
        if repo in self.server.gated:
            return self._refuse(403, "GatedRepo")
        if not file.is_file():
            return self._refuse(404, "EntryNotFound")
        content = file.read_bytes()
        begin = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(begin[1]) if begin else 0
        self.send_response(206 if begin else 200)
        self.send_header("ETag", f'"{_oid(file)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        if begin:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return None
        part = content[start:]
        if self.server.cut_after is not None and len(part) > self.server.cut_after:
            part, self.server.cut_after = part[: self.server.cut_after], None
            self.close_connection = True
        self.server.sent += len(part)
        self.wfile.write(part)
        return None

    def _json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _oid(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()


@contextmanager
def serving() -> Iterator[HubServer]:
    """Run a Hub; processes that are started with ``HF_ENDPOINT`` set to its address use it."""
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def use_here(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process use the server as its Hub, with empty caches and no copies registered."""
    import datasets.config
    from huggingface_hub import constants

    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
    monkeypatch.setenv("FEDLENS_STATE", str(folder / "state"))
    monkeypatch.setenv("FEDLENS_CACHE", str(folder / "cache"))
