"""DomainNet: images named in txt files beside the domains' folders, or all that is in the folders.

``clipart_train.txt`` and ``clipart_test.txt`` are its authors' split; ``clipart_list.txt`` lists the images
of DomainNet-126. A line is ``clipart/aircraft_carrier/clipart_001_000001.jpg 0``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedcore.data.entry import Entry
from fedcore.data.images import TEST, TRAIN
from fedcore.data.readers.layout import chosen_domains, named, prompt_names, refuse_other_classes
from fedcore.data.readers.listing import Listing, listing
from fedcore.data.readers.walk import NotHere, lines, locate
from fedcore.errors import FedLensError

_FORMS: tuple[Mapping[str, int | None], ...] = (
    {"{}_list.txt": None},
    {"{}_train.txt": TRAIN, "{}_test.txt": TEST},
)
"""Files of each domain -> the part of the official split that they hold."""


def load(found: Entry, bases: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """The images of the chosen domains: those listed where there are lists, else those of the folders.

    DomainNet's own lists are passed over where its folder also has DomainNet-126's, and the other way round.

    Raises:
        FedLensError: ``data.root`` or ``data.domains``.
    """
    wanted = chosen_domains(found, domains)
    for form in _FORMS if found.subset else _FORMS[1:]:
        files = {(d, pattern.format(d)): part for d in wanted for pattern, part in form.items()}
        try:
            root = locate(found, bases, *(name for _, name in files))
        except NotHere:
            continue
        folders = {d: _folder(found, root, bases, d) for d in wanted}
        return _listed(found, root, folders, Listing(bases[0], (), wanted), files)
    layout = named(found, bases, domains)
    return listing(layout, prompt_names(layout.root, layout.classes))


def _folder(found: Entry, root: Path, bases: Sequence[Path], domain: str) -> Path:
    """The folder of a domain's classes: beside the lists, or where it was unpacked, maybe into one more."""
    for base in (root, *bases):
        for folder in (base / domain / domain, base / domain):
            if folder.is_dir():
                return folder
    raise NotHere(f"{bases[0]}: no domain folder '{domain}' beside its list. {found.how}", "data.root")


def _listed(
    found: Entry,
    root: Path,
    folders: Mapping[str, Path],
    result: Listing,
    files: Mapping[tuple[str, str], int | None],
) -> Listing:
    """Fill a listing from the lists in ``root``."""
    rows: list[tuple[int, str, str, int | None]] = []
    number: dict[str, str] = {}
    for (domain, name), part in files.items():
        result.label_files.append(root / name)
        for line in lines(root / name):
            path, _, label = line.rpartition(" ")
            pieces = path.split("/")
            if len(pieces) < 3 or pieces[-3] != domain or ".." in pieces or not label.isdecimal():
                raise FedLensError(
                    f"{root / name}: '{line}' is not '{domain}/class/image.jpg number'; get the list again",
                    "data.root",
                )
            if found.classes and pieces[-2] not in found.classes:
                if part is None:
                    refuse_other_classes(found, root / name, (*found.classes, pieces[-2]))
                continue  # DomainNet's own lists, of which DomainNet-126 takes its classes
            if number.setdefault(pieces[-2], label) != label:
                raise FedLensError(
                    f"{root / name}: class '{pieces[-2]}' has the numbers {number[pieces[-2]]} and {label}; "
                    "get the lists again",
                    "data.root",
                )
            rows.append((result.domains.index(domain), pieces[-2], pieces[-1], part))
    classes = found.classes or tuple(sorted(number))
    refuse_other_classes(found, root, tuple(number))
    result.classes = prompt_names(root, classes)
    label_of = {name: i for i, name in enumerate(classes)}
    for d, class_name, file, part in sorted(rows, key=lambda row: row[:3]):
        domain = result.domains[d]
        path = folders[domain] / class_name / file
        result.add(path, f"{domain}/{class_name}/{file}", label_of[class_name], d, part)
    return result
