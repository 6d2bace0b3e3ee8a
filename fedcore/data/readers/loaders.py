"""Read a data set from disk with the reader that its catalog entry names."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fedcore.base.files import user_path
from fedcore.base.progress import NotPrepared, require_slow_work
from fedcore.data.images import Entry, ImageSet
from fedcore.data.readers import archives, ddr, embeddings, hf, label_files, manifest, torchvision_sets
from fedcore.data.readers.files import LeftOut, Listing, NotInFolder, existing_folder, usable_images, warnings
from fedcore.data.readers.layout import catalog_layout, chosen_domains, folder_layout, list_images

_Result = TypeVar("_Result")


BY_DOMAIN: dict[str, Callable[[Entry, Sequence[Path], Sequence[str] | None], Iterator[Listing]]] = {
    "folder": lambda entry, roots, domains: list_images(folder_layout(roots[-1], domains)),
    "domains": lambda entry, roots, domains: list_images(catalog_layout(entry, roots, domains)),
    "lists": label_files.domainnet,
    "ddr": ddr.load,
}
"""Name in ``Entry.loader`` -> reader(entry, roots, domains); the given folder is the first root."""
LOADERS: dict[str, Callable[[Entry, Sequence[Path]], Iterator[Listing | ImageSet]]] = {
    "classes": torchvision_sets.classes,
    "cifar": torchvision_sets.cifar,
    "pets": torchvision_sets.pets,
    "food": torchvision_sets.food,
    "flowers": torchvision_sets.flowers,
    "dtd": torchvision_sets.dtd,
    "cars": torchvision_sets.cars,
    "aircraft": torchvision_sets.aircraft,
    "ucf": label_files.ucf101,
    "sun": label_files.sun397,
    "tiny": label_files.tiny_imagenet,
    "imagenet": label_files.imagenet,
    "imagenet-v2": label_files.imagenet_test,
    "imagenet-test": label_files.imagenet_test,
    "coop": label_files.coop,
}
"""Name in ``Entry.loader`` -> reader(entry, roots) of a data set with one domain."""


def _reading(
    entry: Entry, roots: Sequence[Path], domains: Sequence[str] | None
) -> Iterator[Listing | ImageSet]:
    """Yield the data set once, as soon as its classes and domains are known, and then add the images to it.

    A caller that needs only those takes this item, and no large folder is listed.
    """
    if entry.loader in BY_DOMAIN:
        return BY_DOMAIN[entry.loader](entry, roots, domains)
    chosen_domains(entry, domains)
    return LOADERS[entry.loader](entry, roots)


def detect_format(path: str | Path) -> str:
    """Return the catalog name of a user's data: folder, manifest, hf-dataset or embeddings."""
    path = user_path(path, "data.root")
    if path.is_file() and path.suffix.lower() in embeddings.SUFFIXES:
        return "embeddings"
    if path.suffix.lower() == ".csv" and path.is_file():
        return "manifest"
    return "hf-dataset" if path.is_dir() and hf.is_saved(path) else "folder"


def read_source(
    entry: Entry, root: str, domains: Sequence[str] | None, columns: Mapping[str, str] | None = None
) -> Listing | tuple[ImageSet, list[str]]:
    """Read a data set as far as possible without opening image files.

    Returns: a listing of image files; or, for pixels that are stored in arrays, the images and warnings.
    """
    if is_table(entry, root):
        images, left_out = read_saved(entry, root, domains, columns)
        return images, warnings(existing_folder(root), images, left_out)
    if entry.loader == "manifest":
        (listing,) = manifest.read(root, domains, columns)
        return listing
    if entry.loader == "embeddings":
        images = embeddings.read(entry, root, domains, columns)
        return images, warnings(Path(root), images, ())

    def attempt(roots: Sequence[Path]) -> Listing | ImageSet:
        (found,) = _reading(entry, roots, domains)
        return found

    source = search_folder(entry, root, attempt)
    return source if isinstance(source, Listing) else (source, [])


def is_table(entry: Entry, root: str | Path) -> bool:
    """Return whether a folder is read with Hugging Face's ``datasets``: saved by it, or a copy of the Hub."""
    if entry.loader in ("hf", "femnist"):
        return True
    return entry.hub is not None and not entry.hub.archive and hf.is_snapshot(Path(root))


def read_saved(
    entry: Entry, root: str | Path, domains: Sequence[str] | None, columns: Mapping[str, str] | None = None
) -> tuple[ImageSet, list[LeftOut]]:
    """Return the usable images of such a folder, and those that are left out."""
    with _command_in_error(entry, str(root)):
        if entry.loader == "femnist":
            return hf.femnist(entry, root, domains)
        if entry.loader == "hf":
            return hf.read(root, name=entry.name, template=entry.template, domains=domains, columns=columns)
        return hf.catalog_copy(entry, Path(root), torchvision_sets.prompts(entry), domains)


def load(
    entry: Entry, root: str, domains: Sequence[str] | None, columns: Mapping[str, str] | None = None
) -> tuple[ImageSet, list[str]]:
    """Load a data set from its folder or archive, with warnings about images that are left out."""
    source = read_source(entry, root, domains, columns)
    if not isinstance(source, Listing):
        return source
    with _command_in_error(entry, root):
        images, left_out = usable_images(source, name=entry.name, template=entry.template)
    return images, warnings(source.root, images, left_out)


def class_names(
    entry: Entry, root: str, domains: Sequence[str] | None, columns: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return classes, as they enter a prompt, as ``load`` would, without listing images or opening one."""
    if entry.classes:
        return torchvision_sets.prompts(entry)
    if is_table(entry, root):
        return hf.class_names(root, columns)
    if entry.loader == "manifest":
        return next(manifest.read(root, domains, columns)).classes
    if entry.loader == "embeddings":
        return embeddings.read(entry, root, domains, columns).classes
    return search_folder(entry, root, lambda roots: next(_reading(entry, roots, domains)).classes)


def search_folder(entry: Entry, root: str, attempt: Callable[[Sequence[Path]], _Result]) -> _Result:
    """Call a function with a data set's folder and, if that fails, also with its unpacked archives.

    Args:
        attempt: takes the folders to search; raises ``NotInFolder`` if the data set is not in them.

    Raises:
        NotPrepared: ``data.root``, within ``defer_slow_work``, with the command that does the slow work.
    """
    with _command_in_error(entry, root):
        path = user_path(root, "data.root")
        if archives.is_archive(path):
            return attempt((_unpacked([path.resolve()]),))
        folder = existing_folder(root)
        try:
            return attempt((folder,))
        except NotInFolder:
            packed = archives.archives_in(folder)
            if not packed:
                raise
        return attempt((folder, _unpacked(packed)))


@contextmanager
def _command_in_error(entry: Entry, root: str) -> Iterator[None]:
    """Add to a ``NotPrepared`` error the command that prepares this data set."""
    try:
        yield
    except NotPrepared as missing:
        name = "" if entry.loader in ("folder", "manifest", "hf") else f"{entry.name} --root "
        command = f"data check {name}{shlex.quote(root)}"
        raise NotPrepared(missing.task, missing.work, command) from None


def _unpacked(packed: Sequence[Path]) -> Path:
    folder = archives.unpacked_folder(packed)
    if not folder.is_dir():
        more = f" and {len(packed) - 1} more" if len(packed) > 1 else ""
        require_slow_work(
            f"{packed[0]}{more} has to be unpacked into {folder}", lambda: archives.unpack(packed)
        )
    return folder
