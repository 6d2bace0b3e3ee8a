"""The table of bad inputs: a good data set, one way to break it, and what is to be said of it.

Refused: the message names the place and the remedy. Left out (``good`` images remain): the warning names the
image.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import datasets

from fedcore.data import catalog
from tests.support.data.spoilers import (
    DOMAINS,
    arrow,
    beside_train,
    bomb,
    broken_rows,
    cut,
    digits_only,
    femnist,
    first,
    folder,
    leafs_json,
    link,
    manifest,
    pacs,
    remove,
    rename,
    resave,
    row,
    saved,
    spoil_all,
    write,
    wrong_sum,
)


@dataclass(frozen=True)
class Bad:
    """One row. says: patterns that the message holds; good: images that still load, None where it refuses.

    at: the field that the error names.
    """

    given: Callable[[Path], Path]
    spoil: Callable[[Path], Path | None]
    says: tuple[str, ...]
    name: str
    good: int | None = None
    at: str = "data.root"
    options: dict[str, Any] = field(default_factory=dict)


def _bad(given: Callable[[Path], Path], name: str, spoil: Callable[[Path], object], *says: str, **more: Any):
    return Bad(given, spoil, says, name, **more)


_folder, _pacs = partial(_bad, folder, "folder"), partial(_bad, pacs, "pacs")
_csv, _hf = partial(_bad, manifest, "manifest"), partial(_bad, saved, "hf-dataset")
_femnist, _left_out = partial(_bad, femnist, "femnist"), partial(_bad, folder, "folder", good=12)


def unchanged(root: Path) -> None:
    """Nothing broken: the request itself is wrong."""


X = "photo/dog/x"
BAD = {
    # folders of one's own
    "a folder that is not there": _folder(lambda r: r / "nowhere", r"set/nowhere", "give the folder"),
    "a file": _folder(first, r"photo/dog/0\.png is a file", "give the folder"),
    "an empty folder": _folder(
        lambda r: (r / "hollow").mkdir() or r / "hollow",
        "hollow: no folders in it",
        "expected domain/class/image",
    ),
    "images at the top only": _folder(
        lambda r: r / "photo" / "dog", "photo/dog", "expected domain/class/image"
    ),
    "a class missing": _folder(
        remove("sketch/dog"), "set: domain 'sketch' has no class folder 'dog'", "add it"
    ),
    "a class misspelled": _folder(rename("sketch/dog", "sketch/dgo"), "'dgo'", r"rename it \('dog'\?\)"),
    "images beside class folders": _folder(
        write("stray/0.png", b"x"), "folder 'stray' holds images", "domain/class/image throughout"
    ),
    "a class without images that can be read": _folder(
        lambda r: [(r / "photo" / "bird").mkdir(), write("photo/bird/0.gif", b"x")(r)] and r / "photo",
        "folder 'bird' holds neither images",
        "nor class folders; remove it$",
    ),
    "a folder of lists": _folder(
        write("lists/train.txt", "x"), "folder 'lists'", "remove it or name the domains"
    ),
    "two classes of one name": _folder(
        lambda r: [(r / d / "snow owl").mkdir() for d in DOMAINS] and None,
        "'snow owl' and 'snow_owl' read the same",
        "rename one",
    ),
    "a link to a file outside": _folder(
        link("photo/dog/x.png", "../outside.png"),
        r"photo/dog/x\.png is a link that leaves the folder",
        "copy its target",
    ),
    "a link to a folder outside": _folder(
        link("more", "../elsewhere"), "set/more is a link that leaves", "copy its target"
    ),
    "a link to the folder itself": _folder(
        link("again", "."), "set/again is a link to a folder that it lies in", "remove the link"
    ),
    "no images at all": _folder(
        lambda r: [p.unlink() for p in r.rglob("*.png")] and None, r"no readable image of type \.jpg"
    ),
    "an unknown domain": _folder(
        unchanged,
        "no domain folder 'foto'",
        "did you mean 'photo'",
        options={"domains": ["foto"]},
        at="data.domains",
    ),
    "nothing readable": _folder(spoil_all, "no readable image", r"art/dog/0\.png: empty file"),
    # data sets of the catalog
    "a domain renamed beyond recognition": _pacs(
        rename("sketch", "pencil"), "kfold: no domain folder 'sketch'", "Give the folder"
    ),
    "a domain missing": _pacs(remove("photo"), "no domain folder 'photo'", "Give the folder"),
    "a class of the catalog's missing": _pacs(
        lambda r: [remove(f"{d}/horse")(r) for d in catalog.entry("pacs").domains] and None,
        "kfold: no class folder 'horse', which PACS has",
        "complete the folder",
    ),
    "a class of the catalog's renamed": _pacs(
        lambda r: [rename(f"{d}/horse", f"{d}/pony")(r) for d in catalog.entry("pacs").domains] and None,
        "'horse'|'pony'",
        "complete the folder",
    ),
    "a class too many": _pacs(
        lambda r: [write(f"{d}/zebra/0.jpg", b"")(r) for d in catalog.entry("pacs").domains] and None,
        "unknown class folder 'zebra', which PACS does not have",
        "load it as 'folder'",
    ),
    # images
    "a file of zero bytes": _left_out(write(f"{X}.jpg", b""), rf"1 image left out \({X}\.jpg: empty file\)"),
    "text": _left_out(write(f"{X}.png", "no image"), rf"{X}\.png: not an image"),
    "a web page": _left_out(write(f"{X}.jpg", "<html>404</html>"), rf"{X}\.jpg: not an image"),
    "a truncated JPEG": _left_out(cut(f"{X}.jpg", "JPEG"), rf"{X}\.jpg: unreadable: .*truncated"),
    "a truncated progressive JPEG": _left_out(
        cut(f"{X}.jpg", "JPEG", 0.9, progressive=True), rf"{X}\.jpg: unreadable: .*truncated"
    ),
    "a truncated PNG": _left_out(cut(f"{X}.png", "PNG"), rf"{X}\.png: unreadable: .*truncated"),
    "a truncated WebP": _left_out(
        cut(f"{X}.webp", "WEBP", lossless=True), rf"{X}\.webp: (unreadable|not an image)"
    ),
    "the head of a JPEG only": _left_out(
        cut(f"{X}.jpg", "JPEG", 0.01), rf"{X}\.jpg: (unreadable|not an image)"
    ),
    "a decompression bomb": _left_out(bomb, rf"{X}\.png: more than 89,478,485 pixels"),
    "a PNG with a flipped bit": _left_out(wrong_sum, rf"{X}\.png: unreadable"),
    "a link to nothing": _left_out(
        link(f"{X}.png", "photo/dog/gone.png"), rf"{X}\.png: unreadable: .*No such file"
    ),
    "a folder called like an image": _left_out(lambda r: (r / f"{X}.png").mkdir()),
    "what a Mac leaves behind": _left_out(write("photo/dog/._0.png", b"x")),
    # manifests
    "a list that is not there": _csv(
        lambda p: p.with_name("gone.csv"), r"no file .*gone\.csv", "give the CSV file"
    ),
    "the folder of the list": _csv(lambda p: p.parent, "is a folder", r"give .*set/list\.csv"),
    "an empty list": _csv(
        lambda p: p.write_text("") and None, r"list\.csv: no column 'path' in line 1", "rename one or name it"
    ),
    "a header only": _csv(
        lambda p: p.write_text("path,label\n") and None, r"list\.csv: no rows", "add a line for each image"
    ),
    "no label column": _csv(
        row(header="path,klass,domain,client,split"),
        r"list\.csv: no column 'label'",
        "its columns are path, klass",
    ),
    "semicolons": _csv(
        lambda p: p.write_text(p.read_text().replace(",", ";")) and None,
        "no column 'path'",
        "separated by ';'; save it with commas",
    ),
    "two columns of one name": _csv(
        row(header="path,label,domain,label,split"), "two columns are called 'label'", "rename one"
    ),
    "a list in another encoding": _csv(
        lambda p: p.write_bytes(p.read_bytes() + b"\xff\xfe") and None,
        r"list\.csv: not UTF-8",
        "save it as UTF-8",
    ),
    "an unclosed quote": _csv(
        row('"photo/dog/0.png,dog,photo,w,train'), r"list\.csv: line 14: ", "save it as CSV"
    ),
    "a comma too many": _csv(
        row("photo/dog/7.png,dog,big,photo,w,train"), "line 14: 6 values for 5 columns", "quote values"
    ),
    "a row without label": _csv(
        row("photo/dog/7.png,,photo,w,train"), "line 14: no label", "correct these lines"
    ),
    "an unknown split": _csv(
        row("photo/dog/7.png,dog,photo,w,dev"), "line 14: split 'dev' is not one of train, validation, test"
    ),
    "one image twice": _csv(
        row("./photo/dog/0.png,snow_owl,photo,w,train"),
        r"line 14: '\./photo/dog/0\.png' is already in line 6",
    ),
    "many bad rows": _csv(
        row(*[f"{i}.png,,photo,w,train" for i in range(9)]),
        "line 14: no label; line 15: no label",
        "and 4 more",
    ),
    "a path that leaves the folder": _csv(
        row("../outside.png,dog,photo,w,train"),
        r"line 14: '\.\./outside\.png' leaves the manifest's folder",
        "copy them into its folder",
    ),
    "an absolute path elsewhere": _csv(
        row("/etc/hostname,dog,photo,w,train"), "line 14: '/etc/hostname' leaves", "copy them into its folder"
    ),
    "a listed image that is gone": _csv(
        row("photo/dog/7.png,dog,photo,w,train"),
        r"photo/dog/7\.png: no such file \(line 14 of list\.csv\)",
        good=12,
    ),
    "a listed image of zero bytes": _csv(
        lambda p: write("x.png", b"")(p.parent) or row("x.png,dog,photo,w,train")(p),
        r"x\.png: empty file",
        good=12,
    ),
    "an unknown domain of a list": _csv(
        unchanged,
        r"list\.csv: no domain 'foto'; did you mean 'photo'",
        options={"domains": ["foto"]},
        at="data.domains",
    ),
    "a column that a list does not have": _csv(
        unchanged, r"list\.csv: no column 'species' in line 1", options={"columns": {"label": "species"}}
    ),
    # Hugging Face data sets
    "no saved data set": _hf(
        lambda r: r.parent / "set", "set: neither dataset_dict.json nor state.json", "save_to_disk"
    ),
    "an arrow file cut short": _hf(arrow(lambda b: b[:200]), "saved: a damaged data set", "save it again"),
    "an arrow file of something else": _hf(
        arrow(lambda b: b"x" * 100), "saved: a damaged data set", "save it again"
    ),
    "an arrow file missing": _hf(
        lambda r: next(r.glob("*.arrow")).unlink(), "saved: a damaged data set", "save it again"
    ),
    "a damaged state.json": _hf(write("state.json", "{"), "saved: a damaged data set", "save it again"),
    "labels without names": _hf(
        resave(label=([0, 1] * 6, datasets.Value("int64"))),
        "column 'label' holds neither a ClassLabel nor text",
        "cast_column",
        at="data.columns.label",
    ),
    "two image columns": _hf(
        resave(
            mask=([None] * 12, datasets.Image()),
            picture=([None] * 12, datasets.Image()),
            image=(["x"] * 12, datasets.Value("string")),
        ),
        "2 columns of type Image among .*mask",
        "name the one to use",
        at="data.columns",
    ),
    "a part beside train": _hf(
        beside_train, "parts: part 'photos' beside train and test", "one part per domain"
    ),
    "rows without a domain": _hf(
        resave(domain=([None] * 12, datasets.Value("string"))),
        "again: rows without a domain",
        "complete the column 'domain'",
    ),
    "an unknown column": _hf(
        unchanged,
        "saved: no column 'species'; there are .*image, label",
        options={"columns": {"label": "species"}},
        at="data.columns.label",
    ),
    "broken rows": _hf(
        broken_rows,
        r"3 images left out \(row/0000012: not an image; row/0000013: empty file; row/0000014: empty file\)",
        good=12,
    ),
    # FEMNIST
    "LEAF's own json": _femnist(
        leafs_json,
        "leaf: neither dataset_dict.json nor state.json is in it",
        r"docs/data\.md shows how to convert the json files that LEAF itself writes",
    ),
    "another data set than FEMNIST": _femnist(
        digits_only, r"digits: 10 classes instead of FEMNIST's 62\. .*fedlens data get femnist"
    ),
    "no writer": _femnist(unchanged, "no domain chosen", options={"domains": []}, at="data.domains"),
    "one writer twice": _femnist(
        unchanged,
        "'0' and 'f0000_14' are the same writer",
        options={"domains": ["0", "f0000_14"]},
        at="data.domains",
    ),
    "an unknown writer": _femnist(
        unchanged,
        "no writer 'f9'; name one as the data set does",
        options={"domains": ["f9"]},
        at="data.domains",
    ),
}
