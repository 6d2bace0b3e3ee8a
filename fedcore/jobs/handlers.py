"""What the kinds of tasks do: each asks one other module, and hands its answer back as JSON values."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.jobs.tasks import Context, Steps
from fedcore.progress import Progress
from fedcore.store import Store

_log = logging.getLogger(__name__)


def check(args: dict[str, Any], context: Context) -> Steps:
    """Look through a data set before it is used. args: root; name, where it is one of the
    catalog's; domains; columns.

    Result: ``name`` and the ``report`` (``CheckReport.to_dict``); array ``sheet``: sample pictures, where it
    can be used. Shape: (height, width, 3).
    """
    from fedcore.data import catalog
    from fedcore.data.check.contact_sheet import contact_sheet
    from fedcore.data.check.dataset import check_dataset
    from fedcore.data.readers.loaders import detect_format

    root, domains, columns = args.get("root"), args.get("domains"), args.get("columns")
    name = args.get("name") or detect_format(root)
    report = yield from check_dataset(name, root, domains, columns)
    if report.error is None:
        yield Progress("drawing samples", report.images, report.images)
        images = catalog.load(name, root, domains, columns=columns)
        context.write_arrays(sheet=np.asarray(contact_sheet(images)))
    yield {"name": name, "report": report.to_dict()}


def encode(args: dict[str, Any], context: Context) -> Steps:
    """Encode a data set ahead of its runs.

    args: name, root, domains, columns, decode; backbone, pretrained, precision; reads.
    """
    from fedcore.clip import features
    from fedcore.clip.facts import facts
    from fedcore.config import DataConfig
    from fedcore.data.slow_work import prepare_then
    from fedcore.engine import setup
    from fedcore.engine.prepare import read_images

    yield Progress(f"reading {args['name']}", 0, 0)
    said = {k: args[k] for k in ("name", "root", "domains", "columns", "decode") if args.get(k) is not None}
    images, left_out = yield from prepare_then(
        lambda: read_images(DataConfig(**said), facts(args["backbone"]).image_size)
    )
    for line in left_out:
        _log.warning(line)
    yield Progress(f"loading {args['backbone']}", 0, 0)
    precision = args.get("precision") or "fp32"
    backbone = setup.load_backbone(args["backbone"], args.get("pretrained"), context.device, precision)
    yield Progress(f"encoding {images.name}", 0, len(images))
    folder, reads = context.artifacts / "encodings", args.get("reads") or "embedding"
    yield from setup.encode(backbone, images, reads, folder)
    path = features.cache_path(folder, backbone, images, reads)
    yield {"images": len(images), "file": path.name, "bytes": path.stat().st_size}


def download(args: dict[str, Any], context: Context) -> Steps:
    """Fetch a data set through torchvision. args: name, root."""
    from fedcore.data import catalog

    yield from catalog.download(args["name"], args["root"])
    yield {"name": args["name"], "root": args["root"]}


def weights(args: dict[str, Any], context: Context) -> Steps:
    """Fetch the weights of a backbone. args: name, tag."""
    from fedcore.clip import fetch

    done = 0
    for done, total in fetch.fetch(args["name"], args["tag"]):
        yield Progress(f"downloading {args['tag']}", done, total)
    yield {"bytes": done}


def import_file(args: dict[str, Any], context: Context) -> Steps:
    """Record results from a file. args: file, name (as the user knows it); experiment, dataset of a CSV file.

    Result: ``says``, what came of it.
    """

    yield Progress(f"recording {args['name']}", 0, 0)
    file, name = Path(args["file"]), args["name"]
    yield {"says": Store(context.db).imports.file(file, args["experiment"], args["dataset"], name)}
