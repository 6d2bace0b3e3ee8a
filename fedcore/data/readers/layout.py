"""Where a data set's images lie: domains and classes from folder names alone; no image is opened.

Upstream archives of one data set differ: a folder more around it, ``train`` and ``test`` in the middle,
``Real World`` or ``real_world``. A named data set is found in all of these forms and gets the same domains,
classes and keys from each.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.data.entry import ONE_DOMAIN, Entry, squash
from fedcore.data.images import TEST, TRAIN, VALIDATION
from fedcore.data.readers.walk import DEPTH, SUFFIXES, NotHere, existing, folders_in, images_in
from fedcore.errors import FedLensError

PARTS = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION, "validation": VALIDATION,
    "crossval": VALIDATION, "test": TEST, "testing": TEST,
}  # fmt: skip
"""Folders that are no class and no domain but a part of the data set's own split."""

WHOLE = "full"
"""Beside the parts, VLCS' first release holds all images a second time."""


NO_CLASS = ("BACKGROUND_Google",)
"""Folder of images beside Caltech-101's classes that is none of them."""


@dataclass(frozen=True)
class Source:
    """A folder of images, and the part of the official split that it belongs to (None: no such part)."""

    path: Path
    part: int | None = None


@dataclass(frozen=True)
class Layout:
    """Domains and classes, in the data set's order, and where the images of each pair lie."""

    root: Path
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    sources: Mapping[tuple[str, str], Sequence[Source]]


def layout(root: str | Path, domains: Iterable[str] | None = None) -> Layout:
    """Which domains and classes a folder of one's own has (quick: no image is opened).

    The folder holds ``domain/class/image`` or ``class/image``, in a folder more or with ``train`` and
    ``test`` (``val``) folders above the domains or the classes: these are pooled, and are the official split.

    Args:
        root: the data set's folder.
        domains: the domains to use; other folders beside them are then not looked at.

    Raises:
        FedLensError: ``data.root`` or ``data.domains``, when the folder is missing, has no images or its
            domains differ in their classes.
    """
    root = existing(root)
    wanted = None if domains is None else set(domains)
    top, tops = _top(root, wanted)
    if not tops:
        raise NotHere(f"{root}: no folders in it; expected domain/class/image or class/image", "data.root")
    flat = [name for name, sources in tops.items() if any(_holds_images(top, s) for s in sources)]
    if wanted is None and len(flat) == len(tops):
        sources = {(ONE_DOMAIN, name): tuple(found) for name, found in tops.items()}
        return Layout(root, (ONE_DOMAIN,), tuple(tops), sources)
    if wanted == {ONE_DOMAIN} and flat and ONE_DOMAIN not in tops:
        return layout(root)
    used = {name: tops[name] for name in (tops if wanted is None else _chosen(root, list(tops), wanted))}
    classes = {name: _classes(top, sources, {}) for name, sources in used.items()}
    return _joined(root, tuple(used), flat, classes)


def named(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None = None) -> Layout:
    """The layout of a data set of the catalog that comes as domains of class folders.

    Args:
        bases: the folder given, and what was unpacked in it.
        domains: those to use, None for all.

    Raises:
        NotHere: ``data.root``, when a domain's folder is nowhere in it.
        FedLensError: ``data.domains`` for one that the data set has not; ``data.root`` for other classes than
            the data set's.
    """
    wanted = chosen_domains(found, domains)
    spelled = _spellings(found, found.domains)
    tops = _search(bases, spelled)
    missing = [d for d in wanted if d not in tops]
    if missing:
        seen = ", ".join(sorted(tops) or folders_in(bases[0], bases[0])[:12]) or "nothing"
        raise NotHere(f"{bases[0]}: no domain folder '{missing[0]}' ({seen} found). {found.how}", "data.root")
    base = {d: next(b for b in bases if tops[d][0].path.is_relative_to(b)) for d in wanted}
    known = _spellings(found, found.classes)
    classes = {d: _classes(base[d], tops[d], known) for d in wanted}
    flat = [d for d in wanted if any(_holds_images(base[d], s) for s in tops[d])]
    if found.subset:
        kept = set(found.classes)
        classes = {d: {c: s for c, s in of.items() if c in kept} for d, of in classes.items()}
    joined = _joined(bases[0], wanted, flat, classes)
    refuse_other_classes(found, bases[0], joined.classes)
    return joined if not found.classes else Layout(bases[0], wanted, found.classes, joined.sources)


def class_folders(found: Entry, bases: Sequence[Path]) -> Layout:
    """The layout of a data set of the catalog that is one domain of class folders (EuroSAT, Caltech101).

    Raises:
        FedLensError: as ``named``.
    """
    tops = _search(bases, _spellings(found, found.classes))
    if not tops:
        raise NotHere(f"{bases[0]}: no class folder of {found.title} in it. {found.how}", "data.root")
    refuse_other_classes(found, bases[0], (*tops, *_others(found, bases, tops)))
    sources = {(ONE_DOMAIN, name): tuple(tops[name]) for name in found.classes}
    return Layout(bases[0], (ONE_DOMAIN,), found.classes, sources)


def _others(found: Entry, bases: Sequence[Path], tops: Mapping[str, Sequence[Source]]) -> Iterable[str]:
    """Folders of images beside a data set's class folders that are none of them."""
    known = {*_spellings(found, found.classes), *map(squash, NO_CLASS)}
    for level in sorted({source.path.parent for sources in tops.values() for source in sources}):
        base = next(b for b in bases if level.is_relative_to(b))
        for name in folders_in(base, level):
            if squash(name) not in known and any(True for _ in images_in(base, level / name)):
                yield name


def chosen_domains(found: Entry, domains: Sequence[str] | None) -> tuple[str, ...]:
    """The chosen domains of a data set of the catalog, in its order; None for all.

    Raises:
        FedLensError: ``data.domains``.
    """
    known = found.domains or (ONE_DOMAIN,)
    if domains is None:
        return known
    unknown = sorted(set(domains) - set(known))
    if unknown or not domains:
        what = f"no domain '{unknown[0]}'" if unknown else "no domain chosen"
        near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.5) if unknown else []
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(known)}"
        raise FedLensError(f"{found.name}: {what}; {hint}", "data.domains")
    return tuple(d for d in known if d in domains)


def refuse_other_classes(found: Entry, root: Path, classes: Sequence[str]) -> None:
    """A named data set must have that set's classes, or figures are compared that are not comparable.

    Raises:
        FedLensError: ``data.root``.
    """
    missing = sorted(set(found.classes) - set(classes))
    extra = sorted(set(classes) - set(found.classes))
    if found.classes and (missing or extra):
        what = f"no class folder '{missing[0]}'" if missing else f"an unknown class folder '{extra[0]}'"
        raise FedLensError(
            f"{root}: {what}, which {found.title} {'has' if missing else 'has not'}; "
            "complete the folder or load it as 'folder'",
            "data.root",
        )


def prompt_names(root: Path, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Class names as they enter a prompt: ``Alarm_Clock`` is written "Alarm Clock".

    Raises:
        FedLensError: when two folders would share a name.
    """
    names = tuple(" ".join(c.replace("_", " ").split()) for c in classes)
    twice = next((i for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        other = classes[names.index(names[twice])]
        raise FedLensError(
            f"{root}: classes '{other}' and '{classes[twice]}' read the same; rename one", "data.root"
        )
    return names


def _holds_images(root: Path, source: Source) -> bool:
    return any(True for _ in images_in(root, source.path))


def _spellings(found: Entry, names: Iterable[str]) -> dict[str, str]:
    """Squashed spelling -> the data set's own name."""
    own = {squash(name): name for name in names}
    others = {squash(alias): name for alias, name in found.aliases.items() if name in own.values()}
    return others | own


def _search(bases: Sequence[Path], spelled: Mapping[str, str]) -> dict[str, list[Source]]:
    """Folders with these names, all from the first level below the bases at which there is any."""
    level = [(base, Source(base)) for base in bases]
    for _ in range(DEPTH + 1):
        hits: dict[str, list[Source]] = {}
        below = []
        for base, source in level:
            for name in folders_in(base, source.path):
                child = Source(source.path / name, PARTS.get(name.lower(), source.part))
                own = spelled.get(squash(name))
                if own is not None:
                    hits.setdefault(own, []).append(Source(child.path, source.part))
                elif name.lower() != WHOLE:
                    below.append((base, child))
        if hits:
            return {name: _one_each(hits[name]) for name in sorted(hits)}
        level = below
    return {}


def _one_each(sources: list[Source]) -> list[Source]:
    """Of several folders of one name only parts of the official split count together.

    Else the first that holds images or folders: Caltech-101's annotations lie in class folders too.
    """
    marked = [s for s in sources if s.part is not None]
    if marked or len(sources) == 1:
        return marked or sources
    full = [s for s in sources if _holds_images(s.path, s) or folders_in(s.path, s.path)]
    return (full or sources)[:1]


def _top(root: Path, wanted: set[str] | None) -> tuple[Path, dict[str, list[Source]]]:
    """The level of a folder of one's own that names domains or classes, and what is on it."""
    for _ in range(DEPTH):
        names = folders_in(root, root)
        if wanted and wanted & set(names):
            break
        if len(names) > 1 and all(name.lower() in PARTS for name in names):
            found: dict[str, list[Source]] = {}
            for part in names:
                for name in folders_in(root, root / part):
                    found.setdefault(name, []).append(Source(root / part / name, PARTS[part.lower()]))
            return root, dict(sorted(found.items()))
        if len(names) != 1 or not _deep(root, root / names[0]):
            break
        root = root / names[0]
    return root, {name: [Source(root / name)] for name in folders_in(root, root)}


def _deep(root: Path, folder: Path) -> bool:
    """Whether a folder holds domains of classes rather than classes or images: one level too many above."""
    if any(True for _ in images_in(root, folder)):
        return False
    children = folders_in(root, folder)
    grandchildren = [folder / c / g for c in children for g in folders_in(root, folder / c)]
    images = any(True for c in children for _ in images_in(root, folder / c))
    return bool(grandchildren) and not images


def _classes(root: Path, sources: Sequence[Source], known: Mapping[str, str]) -> dict[str, list[Source]]:
    """The class folders of one domain, through ``images`` or ``train`` and ``test`` folders."""
    found: dict[str, list[Source]] = {}
    for source in sources:
        names = folders_in(root, source.path)
        parts = [n for n in names if n.lower() in PARTS]
        if parts and all(n in parts or n.lower() == WHOLE for n in names):
            inner = [Source(source.path / n, PARTS[n.lower()]) for n in parts]
        elif (
            len(names) == 1 and squash(names[0]) not in known and _only_folders(root, source.path / names[0])
        ):
            inner = [Source(source.path / names[0], source.part)]
        else:
            for name in names:
                own = known.get(squash(name), name)
                found.setdefault(own, []).append(Source(source.path / name, source.part))
            continue
        for name, more in _classes(root, inner, known).items():
            found.setdefault(name, []).extend(more)
    return found


def _only_folders(root: Path, folder: Path) -> bool:
    return bool(folders_in(root, folder)) and not any(True for _ in images_in(root, folder))


def _joined(
    root: Path, domains: tuple[str, ...], flat: list[str], classes: Mapping[str, dict[str, list[Source]]]
) -> Layout:
    _refuse_mixture(root, domains, flat, classes)
    agreed = _agreed(root, {d: set(of) for d, of in classes.items()})
    sources = {(d, c): tuple(classes[d][c]) for d in domains for c in agreed}
    return Layout(root, domains, agreed, sources)


def _chosen(root: Path, top: list[str], wanted: set[str]) -> list[str]:
    missing = sorted(wanted - set(top))
    if missing:
        near = difflib.get_close_matches(missing[0], top, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"its folders are {', '.join(top[:12])}"
        raise FedLensError(f"{root}: no domain folder '{missing[0]}'; {hint}", "data.domains")
    return [name for name in top if name in wanted]


def _refuse_mixture(
    root: Path, used: Sequence[str], flat: list[str], classes: Mapping[str, Mapping[str, object]]
) -> None:
    """Folders of images beside folders of folders: which level are the classes?"""
    images_only = next((d for d in used if d in flat), None)
    if images_only is not None:
        raise FedLensError(
            f"{root}: folder '{images_only}' holds images where the others hold class folders; expected "
            "domain/class/image throughout",
            "data.root",
        )
    bare = next((d for d in used if not classes[d]), None)
    if bare is not None:
        raise FedLensError(
            f"{root}: folder '{bare}' holds neither images ({', '.join(SUFFIXES)}) nor class folders; "
            "remove it or name the domains to use in data.domains",
            "data.root",
        )


def _agreed(root: Path, classes: dict[str, set[str]]) -> tuple[str, ...]:
    """The classes that all domains have.

    Raises:
        FedLensError: where a domain lacks a class that most others have, or has one that they lack.
    """
    every = sorted(set().union(*classes.values()))
    for name in every:
        holders = [d for d in classes if name in classes[d]]
        if len(holders) == len(classes):
            continue
        if len(holders) * 2 < len(classes):
            near = difflib.get_close_matches(name, [c for c in every if c != name], n=1, cutoff=0.6)
            hint = f"rename it ('{near[0]}'?)" if near else "remove it"
            raise FedLensError(
                f"{root}: domain '{holders[0]}' has a class folder '{name}' that the other domains lack; "
                f"{hint} or add it to them (an empty folder will do)",
                "data.root",
            )
        lacking = next(d for d in classes if name not in classes[d])
        raise FedLensError(
            f"{root}: domain '{lacking}' has no class folder '{name}' that the other domains have; "
            "add it (an empty folder will do) or leave the domain out of data.domains",
            "data.root",
        )
    return tuple(every)
