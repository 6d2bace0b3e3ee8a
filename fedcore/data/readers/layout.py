"""Find the domains and classes of a data set from the names of its folders; no image is opened.

Upstream archives of one data set differ: another folder around it, ``train`` and ``test`` in the middle,
``Real World`` or ``real_world``. A data set of the catalog is recognised in all of these forms and gets the
same domains, classes and keys from each, on which its splits depend.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.base.errors import FedLensError
from fedcore.base.events import PARTS, SPLITS
from fedcore.data.images import ONE_DOMAIN, Entry, FolderError, select_domains, squash
from fedcore.data.readers.files import (
    MAX_DEPTH,
    SUFFIXES,
    Listing,
    NotInFolder,
    existing_folder,
    folders_in,
    holds_images,
    images_in,
)

WHOLE = "full"
"""A folder beside the parts that repeats all images, in VLCS' first release."""
NOT_CLASSES = ("BACKGROUND_Google",)
"""Folders beside Caltech-101's classes that are not classes."""


@dataclass(frozen=True)
class SplitFolder:
    """A folder, and the part of the official split that it belongs to (None: to none)."""

    path: Path
    part: int | None = None


@dataclass(frozen=True)
class FolderLayout:
    """Domains and classes, in the data set's order, and the folders with the images of each pair."""

    root: Path
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    folders: Mapping[tuple[str, str], Sequence[SplitFolder]]


def folder_layout(root: str | Path, domains: Iterable[str] | None = None) -> FolderLayout:
    """Find the domains and classes of a user's folder.

    The folder holds ``domain/class/image`` or ``class/image``, possibly within another folder. ``train`` and
    ``test`` (``val``) folders above the domains or the classes are pooled and become the official split.

    Args:
        domains: the domains to use; other folders beside them are then ignored.
    """
    root = existing_folder(root)
    wanted = None if domains is None else set(domains)
    top, tops = _top_level(root, wanted)
    if not tops:
        raise NotInFolder(f"{root}: no folders in it; expected domain/class/image or class/image")
    flat = [name for name, folders in tops.items() if any(holds_images(top, s.path) for s in folders)]
    if wanted is None and len(flat) == len(tops):
        by_cell = {(ONE_DOMAIN, name): tuple(folders) for name, folders in tops.items()}
        return FolderLayout(root, (ONE_DOMAIN,), tuple(tops), by_cell)
    if wanted == {ONE_DOMAIN} and flat and ONE_DOMAIN not in tops:
        return folder_layout(root)
    used = {name: tops[name] for name in select_domains(root, list(tops), wanted, "domain folder")}
    classes = {name: _classes(top, folders, {}) for name, folders in used.items()}
    return _joined(root, tuple(used), flat, classes)


def catalog_layout(entry: Entry, roots: Sequence[Path], domains: Sequence[str] | None) -> FolderLayout:
    """Find the layout of a data set whose domains hold class folders, or raise ``NotInFolder``."""
    wanted = chosen_domains(entry, domains)
    spelled = spellings(entry, entry.domains)
    tops = _search(roots, spelled)
    missing = [d for d in wanted if d not in tops]
    if missing:
        present = ", ".join(sorted(tops) or folders_in(roots[0], roots[0])[:12]) or "nothing"
        raise NotInFolder(
            f"{roots[0]}: no domain folder '{missing[0]}' ({present} found). {entry.how_to_get}"
        )
    base = {d: next(b for b in roots if tops[d][0].path.is_relative_to(b)) for d in wanted}
    spelled = spellings(entry, entry.classes)
    classes = {d: _classes(base[d], tops[d], spelled) for d in wanted}
    flat = [d for d in wanted if any(holds_images(base[d], s.path) for s in tops[d])]
    if entry.subset:
        classes = {d: {c: s for c, s in of.items() if c in entry.classes} for d, of in classes.items()}
    joined = _joined(roots[0], wanted, flat, classes)
    refuse_other_classes(entry, roots[0], joined.classes)
    return joined if not entry.classes else FolderLayout(roots[0], wanted, entry.classes, joined.folders)


def class_folder_layout(entry: Entry, roots: Sequence[Path]) -> FolderLayout:
    """Find the layout of a data set of the catalog with class folders and one domain, such as EuroSAT."""
    tops = _search(roots, spellings(entry, entry.classes))
    if not tops:
        raise NotInFolder(f"{roots[0]}: no class folder of {entry.title} in it. {entry.how_to_get}")
    expected = {*spellings(entry, entry.classes), *map(squash, NOT_CLASSES)}
    unknown = []  # folders of images beside the class folders
    for level in sorted({folder.path.parent for folders in tops.values() for folder in folders}):
        base = next(b for b in roots if level.is_relative_to(b))
        names = (name for name in folders_in(base, level) if squash(name) not in expected)
        unknown += [name for name in names if holds_images(base, level / name)]
    refuse_other_classes(entry, roots[0], (*tops, *unknown))
    folders = {(ONE_DOMAIN, name): tuple(tops[name]) for name in entry.classes}
    return FolderLayout(roots[0], (ONE_DOMAIN,), entry.classes, folders)


def list_images(layout: FolderLayout, classes: tuple[str, ...] | None = None) -> Iterator[Listing]:
    """List the images of a layout, sorted within each class; keys are ``[part/][domain/]class/file``.

    Keys use the data set's names instead of the folders', so that splits, which are keyed by them, are equal
    for all upstream forms of a data set.

    Args:
        classes: the class names as they enter a prompt, if they are not those of the folders.
    """
    listing = Listing(layout.root, prompt_names(layout.root, classes or layout.classes), layout.domains)
    yield listing
    marked = all(s.part is not None for folders in layout.folders.values() for s in folders)
    for d, domain in enumerate(layout.domains):
        for c, name in enumerate(layout.classes):
            folders = layout.folders.get((domain, name), ())
            for folder in sorted(folders, key=lambda s: -1 if s.part is None else s.part):
                parts = () if folder.part is None else (SPLITS[folder.part],)
                above = () if domain == ONE_DOMAIN else (domain,)
                # sorted by name, since the order of a folder's entries differs between file systems
                for path in sorted(images_in(layout.root, folder.path), key=lambda p: p.name):
                    key = "/".join((*parts, *above, name, path.name))
                    listing.add(path, key, c, d, folder.part if marked else None)


def chosen_domains(entry: Entry, domains: Sequence[str] | None) -> tuple[str, ...]:
    """Return the chosen domains of a data set of the catalog in its order; all of them for None."""
    return select_domains(entry.name, entry.domains or (ONE_DOMAIN,), domains)


def refuse_other_classes(entry: Entry, root: Path, classes: Sequence[str]) -> None:
    """Refuse a data set of the catalog with other classes: its accuracies would not be comparable."""
    missing = sorted(set(entry.classes) - set(classes))
    extra = sorted(set(classes) - set(entry.classes))
    if entry.classes and (missing or extra):
        what = f"no class folder '{missing[0]}'" if missing else f"an unknown class folder '{extra[0]}'"
        raise FolderError(
            f"{root}: {what}, which {entry.title} {'has' if missing else 'does not have'}; "
            "complete the folder or load it as 'folder'"
        )


def check_columns(named: Mapping[str, str], known: Sequence[str], what: str) -> None:
    """Refuse ``data.columns`` that name other columns than those of a kind of data."""
    if unknown := sorted(set(named) - set(known)):
        raise FedLensError(
            f"a {what} has no column '{unknown[0]}'; it may have {', '.join(known)}",
            f"data.columns.{unknown[0]}",
        )


def prompt_names(root: Path, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return class names as they enter a prompt: ``Alarm_Clock`` is written "Alarm Clock"."""
    names = tuple(" ".join(c.replace("_", " ").split()) for c in classes)
    twice = next((i for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        other = classes[names.index(names[twice])]
        raise FolderError(f"{root}: classes '{other}' and '{classes[twice]}' read the same; rename one")
    return names


def spellings(entry: Entry, names: Iterable[str]) -> dict[str, str]:
    """Map each squashed spelling to the name that the data set uses."""
    plain = {squash(name): name for name in names}
    aliases = {squash(alias): name for alias, name in entry.aliases.items() if name in plain.values()}
    return aliases | plain


def _search(roots: Sequence[Path], spelled: Mapping[str, str]) -> dict[str, list[SplitFolder]]:
    """Find the folders with these names on the first level below the roots that has any."""
    level = [(root, SplitFolder(root)) for root in roots]
    for _ in range(MAX_DEPTH + 1):
        hits: dict[str, list[SplitFolder]] = {}
        below = []
        for root, folder in level:
            for name in folders_in(root, folder.path):
                child = SplitFolder(folder.path / name, PARTS.get(name.lower(), folder.part))
                official = spelled.get(squash(name))
                if official is not None:
                    hits.setdefault(official, []).append(SplitFolder(child.path, folder.part))
                elif name.lower() != WHOLE:
                    below.append((root, child))
        if hits:
            return {name: _without_repetitions(hits[name]) for name in sorted(hits)}
        level = below
    return {}


def _without_repetitions(folders: list[SplitFolder]) -> list[SplitFolder]:
    """Keep all parts of the official split of several folders with one name, or else only one folder.

    This is the first that holds images or folders: Caltech-101's annotations are in class folders too.
    """
    marked = [s for s in folders if s.part is not None]
    if marked or len(folders) == 1:
        return marked or folders
    full = [s for s in folders if holds_images(s.path, s.path) or folders_in(s.path, s.path)]
    return (full or folders)[:1]


def _top_level(root: Path, wanted: set[str] | None) -> tuple[Path, dict[str, list[SplitFolder]]]:
    """Find the level of a user's folder that names domains or classes, and the folders on it."""
    for _ in range(MAX_DEPTH):
        names = folders_in(root, root)
        if wanted and wanted & set(names):
            break
        if len(names) > 1 and all(name.lower() in PARTS for name in names):
            pooled: dict[str, list[SplitFolder]] = {}
            for part in names:
                for name in folders_in(root, root / part):
                    pooled.setdefault(name, []).append(SplitFolder(root / part / name, PARTS[part.lower()]))
            return root, dict(sorted(pooled.items()))
        if len(names) != 1:
            break
        inner = root / names[0]
        children = folders_in(root, inner)
        around_domains = (
            not holds_images(root, inner)
            and any(folders_in(root, inner / child) for child in children)
            and not any(holds_images(root, inner / child) for child in children)
        )
        if not around_domains:
            break
        root = inner
    return root, {name: [SplitFolder(root / name)] for name in folders_in(root, root)}


def _classes(
    root: Path, folders: Sequence[SplitFolder], spelled: Mapping[str, str]
) -> dict[str, list[SplitFolder]]:
    """Find the class folders of one domain, also below ``images`` or ``train`` and ``test`` folders."""
    classes: dict[str, list[SplitFolder]] = {}
    for folder in folders:
        names = folders_in(root, folder.path)
        inner_path = folder.path / names[0] if len(names) == 1 and squash(names[0]) not in spelled else None
        parts = [n for n in names if n.lower() in PARTS]
        if parts and all(n in parts or n.lower() == WHOLE for n in names):
            inner = [SplitFolder(folder.path / n, PARTS[n.lower()]) for n in parts]
        elif inner_path and folders_in(root, inner_path) and not holds_images(root, inner_path):
            inner = [SplitFolder(inner_path, folder.part)]
        else:
            for name in names:
                official = spelled.get(squash(name), name)
                classes.setdefault(official, []).append(SplitFolder(folder.path / name, folder.part))
            continue
        for name, more in _classes(root, inner, spelled).items():
            classes.setdefault(name, []).extend(more)
    return classes


def _joined(
    root: Path, domains: tuple[str, ...], flat: list[str], classes: Mapping[str, dict[str, list[SplitFolder]]]
) -> FolderLayout:
    """Return the layout of some domains; refuse them unless all have the same class folders."""
    bare = next((d for d in domains if d not in flat and not classes[d]), None)
    if bare is not None:
        remedy = "remove it" if flat else "remove it or name the domains to use in data.domains"
        raise FolderError(
            f"{root}: folder '{bare}' holds neither images ({', '.join(SUFFIXES)}) nor class folders; "
            + remedy
        )
    images_only = next((d for d in domains if d in flat), None)  # all classes must be on one level
    if images_only is not None:
        raise FolderError(
            f"{root}: folder '{images_only}' holds images, but the others hold class folders; expected "
            "domain/class/image throughout"
        )
    every = sorted(set().union(*classes.values()))
    for name in every:
        holders = [d for d in classes if name in classes[d]]
        if len(holders) == len(classes):
            continue
        if len(holders) * 2 < len(classes):
            near = difflib.get_close_matches(name, [c for c in every if c != name], n=1, cutoff=0.6)
            hint = f"rename it ('{near[0]}'?)" if near else "remove it"
            raise FolderError(
                f"{root}: domain '{holders[0]}' has a class folder '{name}' that the other domains lack; "
                f"{hint} or add it to them (an empty folder is enough)"
            )
        lacking = next(d for d in classes if name not in classes[d])
        raise FolderError(
            f"{root}: domain '{lacking}' has no class folder '{name}' that the other domains have; "
            "add it (an empty folder is enough) or leave the domain out of data.domains"
        )
    folders = {(d, c): tuple(classes[d][c]) for d in domains for c in every}
    return FolderLayout(root, domains, tuple(every), folders)
