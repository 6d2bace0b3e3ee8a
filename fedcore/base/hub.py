"""Downloads from the Hugging Face Hub, with progress in bytes; its library resumes, locks and pins them."""

import errno
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedcore.base.errors import FedLensError, disk_usage, first_line
from fedcore.base.progress import Progress, Work, in_thread

Kind = Literal["dataset", "model"]
FIELDS: dict[Kind, str] = {"dataset": "data.name", "model": "backbone.pretrained"}
"""The field of an experiment that names a repository of this kind, for errors."""


@dataclass(frozen=True)
class Upstream:
    """What the Hub says of a repository before its first byte is downloaded.

    Attributes:
        file: the only file that is wanted; empty for all.
        revision: the commit that would be downloaded.
        newest: the commit of its main branch.
        licence: as its card names it; empty if it does not.
        size: bytes of what is wanted.
        gated: whether its terms have to be accepted first.
        here: whether all that is wanted is in the Hub's cache on this machine.
    """

    kind: Kind
    repo: str
    file: str
    revision: str
    newest: str
    licence: str
    size: int
    gated: bool
    here: bool


def address(repo: str, kind: Kind = "dataset") -> str:
    """Return the address of a repository's page, for the user."""
    return f"huggingface.co/{'datasets/' * (kind == 'dataset')}{repo}"


def ask(
    repo: str, revision: str | None = None, files: Sequence[str] = (), kind: Kind = "dataset"
) -> Upstream:
    """Ask the Hub about a repository, or its cache if the Hub does not answer.

    A token is used only if the Hub's own login (``hf auth login``) left one.

    Args:
        files: names of the one file that is wanted, the best first; empty for all files.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        main = api.repo_info(repo, repo_type=kind)
        found = (
            main if revision in (None, main.sha) else api.repo_info(repo, repo_type=kind, revision=revision)
        )
        tree = api.list_repo_tree(repo, recursive=True, revision=found.sha, repo_type=kind)
        sizes = {file.path: file.size or 0 for file in tree if hasattr(file, "size")}
    except Exception as error:  # the hub's client raises its own, the network library's and OSError
        folder = _cached(kind, repo, revision, files)
        if folder is None:
            raise _problem(kind, repo, revision, error) from error
        sizes = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
        commits, licence, gated, here = (folder.name, folder.name), "", False, True
    else:
        commits, gated = (str(found.sha), str(main.sha)), bool(main.gated)
        here = _cached(kind, repo, found.sha, files) is not None
        licence = getattr(getattr(main, "card_data", None), "license", None) or ""
        licence = licence if isinstance(licence, str) else ", ".join(licence)
    file = next((name for name in files if name in sizes), files[0] if files else "")
    size = sizes.get(file, 0) if file else sum(sizes.values())
    return Upstream(kind, repo, file, *commits, licence, size, gated, here)


def _cached(kind: Kind, repo: str, revision: str | None, files: Sequence[str]) -> Path | None:
    """Return the folder of a commit if all that is wanted of it is in the Hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(
            repo,
            repo_type=kind,
            revision=revision,
            allow_patterns=list(files) or None,
            local_files_only=True,
        )
    except LocalEntryNotFoundError:
        return None
    folder = Path(found)
    return folder if not files or any((folder / file).is_file() for file in files) else None


def download(wanted: Upstream, title: str) -> Work[Path]:
    """Download what ``ask`` has found into the Hub's cache; returns the commit's folder.

    If the caller stops early, the download ends with this process; the Hub's cache resumes it next time.
    """
    from huggingface_hub import constants, snapshot_download
    from tqdm.asyncio import tqdm_asyncio

    cache = Path(constants.HF_HUB_CACHE)
    if not wanted.here and (free := disk_usage(cache)[1]) < wanted.size:
        raise FedLensError(
            f"{address(wanted.repo, wanted.kind)} has {wanted.size / 1e9:,.1f} GB, and the disk of {cache} "
            f"has room for {free / 1e9:,.1f} GB; free space, or set HF_HOME to a folder on a larger disk",
            FIELDS[wanted.kind],
        )
    counters: list[Any] = []
    folders: list[str] = []

    class ByteCounter(tqdm_asyncio):  # type: ignore[type-arg]  # tqdm is generic only in its stubs
        """A progress bar that counts the bytes of a download and draws nothing."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": False, "file": io.StringIO()})
            if options.get("unit") == "B":  # the others count files
                counters.append(self)

        def display(self, *args: Any, **options: Any) -> None:
            """Draw nothing."""

    def fetch() -> None:
        folder = snapshot_download(
            wanted.repo,
            repo_type=wanted.kind,
            revision="main" if wanted.kind == "model" else wanted.revision,  # tags name no commit
            allow_patterns=wanted.file or None,
            tqdm_class=ByteCounter,
        )
        folders.append(folder)

    try:
        for _ in in_thread(fetch):
            done = max((int(counter.n) for counter in counters), default=0)
            yield Progress(f"downloading {title}", min(done, wanted.size), wanted.size, in_bytes=True)
    except Exception as error:  # as in ``ask``
        raise _problem(wanted.kind, wanted.repo, wanted.revision, error) from error
    yield Progress(f"downloading {title}", wanted.size, wanted.size, in_bytes=True)
    return Path(folders[0])


def _problem(kind: Kind, repo: str, revision: str | None, error: Exception) -> FedLensError:
    """Return what has gone wrong and its remedy, in one sentence."""
    from huggingface_hub import errors

    where, kept = address(repo, kind), "what was downloaded is kept"
    causes = [error, *filter(None, (error.__cause__, error.__context__))]
    texts: dict[type[Exception], str] = {
        errors.OfflineModeIsEnabled: "is not asked, as HF_HUB_OFFLINE is set; unset it and try again",
        errors.GatedRepoError: "asks for its terms to be accepted first: do so on that page, log in with "
        "`hf auth login`, and try again",
        errors.RevisionNotFoundError: f"no longer has the revision {revision}; `--revision main` takes "
        "today's content, which is checked in the same way",
        errors.RepositoryNotFoundError: "does not exist, or only for others; check the name, or log in with "
        "`hf auth login` if it is private",
    }
    for type_, text in texts.items():  # in this order: a gated repository is not found either
        if any(isinstance(cause, type_) for cause in causes):
            return FedLensError(f"{where} {text}", FIELDS[kind])
    text = f"{where} cannot be downloaded ({first_line(error)}); try again with a network connection: {kept}"
    if any(getattr(cause, "errno", None) == errno.ENOSPC for cause in causes):
        text = f"the disk is full while {where} is downloaded; free space and try again: {kept}"
    return FedLensError(text, FIELDS[kind])
