"""What the kinds of tasks do: each asks one other module, and hands its answer back as JSON values."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcore.engine.events import Progress
from fedcore.runs.tasks import Context, Steps


def check(args: dict[str, Any], context: Context) -> Steps:
    """Look through a data set before it is used. args: root; name, where it is one of the catalog's.

    Result: ``name`` and the ``report`` (``CheckReport.to_dict``); array ``sheet``: sample pictures, where it
    can be used. Shape: (height, width, 3).
    """
    from fedcore.data import catalog, sheet
    from fedcore.data.check import Step, kind_of
    from fedcore.data.check import check as look_through

    root = args.get("root")
    name = args.get("name") or kind_of(root)
    report = None
    for step in look_through(name, root):
        if isinstance(step, Step):
            yield Progress(step.message, step.done, step.total)
        else:
            report = step
    assert report is not None, "the report comes last"
    if report.error is None:
        yield Progress("drawing samples", report.images, report.images)
        context.write_arrays(sheet=np.asarray(sheet.contact_sheet(catalog.load(name, root))))
    yield {"name": name, "report": report.to_dict()}


def encode(args: dict[str, Any], context: Context) -> Steps:
    """Encode a data set ahead of its runs.

    args: name, root, domains; backbone, pretrained, precision; reads.
    """
    from fedcore.clip import features
    from fedcore.data import catalog
    from fedcore.engine import setup

    yield Progress(f"reading {args['name']}", 0, 0)
    images = catalog.load(args["name"], args.get("root"), args.get("domains"))
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

    for step in catalog.download(args["name"], args["root"]):
        yield Progress(step.message, step.done, step.total)
    yield {"name": args["name"], "root": args["root"]}


def weights(args: dict[str, Any], context: Context) -> Steps:
    """Fetch the weights of a backbone. args: name, tag."""
    from fedcore.clip import fetch

    done = 0
    for done, total in fetch.fetch(args["name"], args["tag"]):
        yield Progress(f"downloading {args['tag']}", done, total)
    yield {"bytes": done}
