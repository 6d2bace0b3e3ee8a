"""DomainNet: the images listed in txt files beside the domains' folders, or all images in the folders.

``clipart_train.txt`` and ``clipart_test.txt`` are its authors' split; ``clipart_list.txt`` lists the images
of DomainNet-126. A line is ``clipart/aircraft_carrier/clipart_001_000001.jpg 0``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedcore.data.entry import Entry
from fedcore.data.readers.files import NotInFolder, damaged, locate, read_lines
from fedcore.data.readers.layout import catalog_layout, chosen_domains, prompt_names, refuse_other_classes
from fedcore.data.readers.listing import Listing, list_images
from fedcore.records.codes import TEST, TRAIN

_LISTS: tuple[Mapping[str, int | None], ...] = (
    {"{}_list.txt": None},
    {"{}_train.txt": TRAIN, "{}_test.txt": TEST},
)
"""Alternative sets of lists for each domain: file -> the part of the official split that it lists."""


def load(entry: Entry, roots: Sequence[Path], domains: Sequence[str] | None) -> Listing:
    """List the images of the chosen domains: those in lists where there are any, else those of the folders.

    DomainNet's own lists are ignored where its folder also has DomainNet-126's, and the other way round.

    Raises:
        FedLensError: ``data.root`` or ``data.domains``.
    """
    wanted = chosen_domains(entry, domains)
    for parts in _LISTS if entry.subset else _LISTS[1:]:
        files = {(d, pattern.format(d)): part for d in wanted for pattern, part in parts.items()}
        try:
            root = locate(entry, roots, *(name for _, name in files))
        except NotInFolder:
            continue
        folders = {d: _folder(entry, root, roots, d) for d in wanted}
        return _listed(entry, root, folders, Listing(roots[0], (), wanted), files)
    layout = catalog_layout(entry, roots, domains)
    return list_images(layout, prompt_names(layout.root, layout.classes))


def _folder(entry: Entry, root: Path, roots: Sequence[Path], domain: str) -> Path:
    """Find the folder of a domain's classes: beside the lists, or where its archive was unpacked."""
    for base in (root, *roots):
        for folder in (base / domain / domain, base / domain):
            if folder.is_dir():
                return folder
    raise NotInFolder(
        f"{roots[0]}: no domain folder '{domain}' beside its list. {entry.how_to_get}", "data.root"
    )


def _listed(
    entry: Entry,
    root: Path,
    folders: Mapping[str, Path],
    result: Listing,
    files: Mapping[tuple[str, str], int | None],
) -> Listing:
    """Fill a listing with the images that the lists in ``root`` name."""
    rows: list[tuple[int, str, str, int | None]] = []
    number: dict[str, str] = {}
    for (domain, name), part in files.items():
        result.label_files.append(root / name)
        for line in read_lines(root / name):
            path, _, label = line.rpartition(" ")
            pieces = path.split("/")
            if len(pieces) < 3 or pieces[-3] != domain or ".." in pieces or not label.isdecimal():
                raise damaged(root / name, f"'{line}' is not '{domain}/class/image.jpg number'", "list")
            if entry.classes and pieces[-2] not in entry.classes:
                if part is None:
                    refuse_other_classes(entry, root / name, (*entry.classes, pieces[-2]))
                continue  # DomainNet's own lists name more classes than DomainNet-126 has
            if number.setdefault(pieces[-2], label) != label:
                why = f"class '{pieces[-2]}' has the numbers {number[pieces[-2]]} and {label}"
                raise damaged(root / name, why, "lists")
            rows.append((result.domains.index(domain), pieces[-2], pieces[-1], part))
    classes = entry.classes or tuple(sorted(number))
    refuse_other_classes(entry, root, tuple(number))
    result.classes = prompt_names(root, classes)
    label_of = {name: i for i, name in enumerate(classes)}
    for d, class_name, image, part in sorted(rows, key=lambda row: row[:3]):
        domain = result.domains[d]
        file = folders[domain] / class_name / image
        result.add(file, f"{domain}/{class_name}/{image}", label_of[class_name], d, part)
    return result
