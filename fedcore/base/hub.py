"""Downloads from the Hugging Face Hub, with progress in bytes; its own cache resumes, locks and pins them."""

import errno
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.base.errors import FedLensError, first_line
from fedcore.base.progress import in_thread

POLL_SECONDS = 0.25
"""Time between two reports of a download's progress."""


@dataclass(frozen=True)
class Upstream:
    """What the Hub says of a data set's repository, before its first byte is downloaded.

    Attributes:
        revision: the commit that would be downloaded.
        newest: the commit of its main branch.
        licence: as its card names it; empty if it does not.
        size: bytes of the wanted files.
        gated: whether its terms have to be accepted first.
        here: whether all of it is in the Hub's cache on this machine.
    """

    repo: str
    revision: str
    newest: str
    licence: str
    size: int
    gated: bool
    here: bool

    @property
    def address(self) -> str:
        return address(self.repo)


def address(repo: str) -> str:
    """Return the address of a data set's page, for the user."""
    return f"huggingface.co/datasets/{repo}"


def ask(repo: str, revision: str | None, file: str = "") -> Upstream:
    """Ask the Hub about a data set, or its cache if the Hub does not answer.

    A token is used only if the Hub's own login (``hf auth login``) left one.

    Args:
        file: the only file that is wanted; empty for all.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        main = api.dataset_info(repo)
        wanted = main if revision in (None, main.sha) else api.dataset_info(repo, revision=revision)
        sizes = {
            file.path: file.size or 0
            for file in api.list_repo_tree(repo, recursive=True, revision=wanted.sha, repo_type="dataset")
            if hasattr(file, "size")
        }
    except Exception as error:  # the hub's client raises its own, the network library's and OSError
        folder = _cached(repo, revision, file)
        if folder is None:
            raise problem(repo, error, revision) from error
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return Upstream(repo, folder.name, folder.name, "", size, gated=False, here=True)
    licence = getattr(main.card_data, "license", None) or ""
    return Upstream(
        repo=repo,
        revision=str(wanted.sha),
        newest=str(main.sha),
        licence=licence if isinstance(licence, str) else ", ".join(licence),
        size=sizes.get(file, 0) if file else sum(sizes.values()),
        gated=bool(main.gated),
        here=_cached(repo, wanted.sha, file) is not None,
    )


def _cached(repo: str, revision: str | None, file: str) -> Path | None:
    """Return the folder of a commit if all that is wanted of it is in the Hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = file or None
    try:
        return Path(
            snapshot_download(
                repo,
                repo_type="dataset",
                revision=revision,
                allow_patterns=patterns,
                local_files_only=True,
            )
        )
    except LocalEntryNotFoundError:
        return None


def snapshot(repo: str, revision: str, file: str = "") -> Iterator[tuple[int, int]]:
    """Download a data set's files at one commit into the Hub's cache; yields (bytes, total)."""

    def download(counter: type) -> None:
        from huggingface_hub import snapshot_download

        snapshot_download(
            repo,
            repo_type="dataset",
            revision=revision,
            allow_patterns=file or None,
            tqdm_class=counter,
        )

    try:
        yield from counted_bytes(download)
    except Exception as error:  # as in ``ask``
        raise problem(repo, error, revision) from error


def snapshot_folder(repo: str, revision: str) -> Path:
    """Return the folder of one commit in the Hub's cache, which may not exist; nothing is downloaded."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=repo, repo_type="dataset")
    return Path(constants.HF_HUB_CACHE) / name / "snapshots" / revision


def counted_bytes(download: Callable[[type], object]) -> Iterator[tuple[int, int]]:
    """Call a function that downloads, in a thread; yields (bytes, total), total 0 at first.

    If the caller stops early, the download ends with this process; the Hub's cache resumes it next time.

    Args:
        download: takes the class of its progress bars.
    """
    from tqdm import tqdm

    counters: list[Any] = []

    class ByteCounter(tqdm):  # type: ignore[type-arg]  # tqdm is generic only in its stubs
        """A progress bar that counts the bytes of a download and draws nothing."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": False, "file": io.StringIO()})
            if options.get("unit") == "B":  # the others count files
                counters.append(self)

        def display(self, *args: Any, **options: Any) -> None:
            """Draw nothing."""

    for _ in in_thread(lambda: download(ByteCounter), POLL_SECONDS):
        done = max(((int(c.n), int(c.total or 0)) for c in counters), default=(0, 0))
        yield done


def problem(repo: str, error: Exception, revision: str | None = None) -> FedLensError:
    """Return what has gone wrong with a data set's download, and its remedy, in one sentence."""
    from huggingface_hub import errors

    where = address(repo)
    kept = "what was downloaded is kept"
    causes = [error, *filter(None, (error.__cause__, error.__context__))]

    def is_a(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if is_a(errors.OfflineModeIsEnabled):
        text = f"{where} is not asked, as HF_HUB_OFFLINE is set; unset it and try again"
    elif is_a(errors.GatedRepoError):
        text = (
            f"{where} asks for its terms to be accepted first: do so on that page, log in with "
            "`hf auth login`, and try again"
        )
    elif is_a(errors.RevisionNotFoundError):
        text = (
            f"{where} no longer has the revision {revision}; `--revision main` takes today's content, which "
            "is checked in the same way"
        )
    elif is_a(errors.RepositoryNotFoundError):
        text = (
            f"{where} does not exist, or only for others; check the name, or log in with `hf auth login` "
            "if it is private"
        )
    elif any(getattr(cause, "errno", None) == errno.ENOSPC for cause in causes):
        text = f"the disk is full while {where} is downloaded; free space and try again: {kept}"
    else:
        text = (
            f"{where} cannot be downloaded ({first_line(error)}); try again with a network connection: {kept}"
        )
    return FedLensError(text, "data.name")
