"""A data set listed in a CSV file (manifest): a row per image with path, label, domain, client and split."""

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedcore.base.errors import first_repeated
from fedcore.base.events import PARTS
from fedcore.base.files import user_path
from fedcore.data.images import ONE_DOMAIN, FolderError, select_domains
from fedcore.data.readers.files import Listing, leaves
from fedcore.data.readers.layout import check_columns, prompt_names

COLUMNS = ("path", "label", "domain", "client", "split")
"""The columns of a manifest; the first two are required."""
_MAX_LISTED = 5
"""Bad rows that an error message lists; it counts the others."""


@dataclass(frozen=True)
class ManifestRow:
    """One image; ``line`` is its line in the file (the header is line 1)."""

    line: int
    path: str
    label: str
    domain: str
    client: str
    split: str


def read(
    path: str | Path, domains: Iterable[str] | None = None, columns: Mapping[str, str] | None = None
) -> Iterator[Listing]:
    """Read a manifest, UTF-8 text with commas and a header line; no image is opened.

    Yields the listing once its rows are valid, and then adds the images to it, sorted by path; missing files
    are left out, with their line.

    Args:
        domains: the domains to use, None for all; the classes are those of all domains.
        columns: other names of the columns, e.g. ``{"label": "species"}``.
    """
    path = _existing_file(path)
    rows, bad = [], []
    for row, problem in _rows(path, dict(columns or {})):
        rows.append(row)
        if problem:
            bad.append(f"line {row.line}: {problem}")
    bad += _repeated_files(path.parent, rows)
    if bad:
        more = f"; and {len(bad) - _MAX_LISTED} more" if len(bad) > _MAX_LISTED else ""
        raise FolderError(f"{path}: {'; '.join(bad[:_MAX_LISTED])}{more}; correct these lines")
    if not rows:
        raise FolderError(f"{path}: no rows under its header; add a line for each image")
    classes = tuple(sorted({row.label for row in rows}))
    chosen = select_domains(path, sorted({row.domain for row in rows}), domains)
    root = path.parent  # relative paths start here
    result = Listing(root, prompt_names(path, classes), chosen, label_files=[path])
    yield result
    rows = [row for row in rows if row.domain in chosen]
    label = {name: i for i, name in enumerate(classes)}
    domain = {name: i for i, name in enumerate(chosen)}
    marked = all(row.split for row in rows)
    owners = []
    for row in sorted(rows, key=lambda r: r.path):
        file = Path(os.path.normpath(root / row.path))
        if leaves(root, file):
            raise FolderError(
                f"{path}: line {row.line}: '{row.path}' leaves the manifest's folder; move the "
                "manifest above its images, or copy them into its folder"
            )
        if not file.is_file():
            result.left_out.append((file, f"no such file (line {row.line} of {path.name})"))
            continue
        part = PARTS[row.split.lower()] if marked else None
        result.add(file, file.relative_to(root).as_posix(), label[row.label], domain[row.domain], part)
        owners.append(row.client)
    result.owner = owners if any(owners) else None


def _existing_file(path: str | Path) -> Path:
    path = user_path(path, "data.root")
    if path.is_dir():
        files = sorted(p.name for p in path.glob("*.csv"))
        none = "it has no CSV file; write one with columns path and label"
        hint = f"give {path / files[0]}" if files else none
        raise FolderError(f"{path} is a folder; give the CSV file itself ({hint})")
    if not path.is_file():
        raise FolderError(f"no file {path}; give the CSV file that lists the images")
    return path.resolve()


def _rows(path: Path, columns: dict[str, str]) -> Iterator[tuple[ManifestRow, str]]:
    """Yield every row with its problem, "" if it has none."""
    check_columns(columns, COLUMNS, "manifest")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            place = _places(path, header, columns)
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    values = {
                        name: cells[place[name]].strip() if name in place and place[name] < len(cells) else ""
                        for name in COLUMNS
                    }
                    if "domain" not in place:
                        values["domain"] = ONE_DOMAIN
                    row = ManifestRow(reader.line_num, **values)
                    yield row, _problem(row, cells, header, place)
    except UnicodeDecodeError as error:
        raise FolderError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except csv.Error as error:
        raise FolderError(f"{path}: line {reader.line_num}: {error}; save it as CSV") from error


def _places(path: Path, header: list[str], columns: dict[str, str]) -> dict[str, int]:
    """Return the index of each column that the file has."""
    lower = [name.lower() for name in header]
    twice = first_repeated(lower)
    if twice is not None:
        raise FolderError(f"{path}: two columns are called '{twice}'; rename one")
    place = {}
    for name in COLUMNS:
        wanted = columns.get(name, name)
        if wanted.lower() in lower:
            place[name] = lower.index(wanted.lower())
        elif name in columns or name in COLUMNS[:2]:
            separator = next((s for s in (";", "\t") if any(s in h for h in header)), None)
            remedy = f"its columns are {', '.join(header) or 'none'}; rename one or name it in data.columns"
            if separator:
                remedy = f"its columns are separated by {separator!r}; save it with commas"
            raise FolderError(f"{path}: no column '{wanted}' in line 1; {remedy}")
    return place


def _problem(row: ManifestRow, cells: list[str], header: list[str], place: dict[str, int]) -> str:
    if len(cells) != len(header):
        return f"{len(cells)} values for {len(header)} columns (quote values that hold a comma)"
    empty = next((name for name in ("path", "label", "domain") if not getattr(row, name)), None)
    if empty:
        return f"no {empty}"
    if "\0" in row.path:
        return "its path holds a zero byte"
    if "split" in place and row.split.lower() not in PARTS:
        return f"split '{row.split}' is not one of train, validation, test"
    return ""


def _repeated_files(root: Path, rows: list[ManifestRow]) -> Iterator[str]:
    """Report files that are named twice, since a sample must not be in two clients or splits."""
    first: dict[Path, ManifestRow] = {}
    for row in rows:
        other = first.setdefault(Path(os.path.normpath(root / row.path)), row)
        if other is not row and row.path:
            yield f"line {row.line}: '{row.path}' is already in line {other.line}"
