"""``data list``, ``get``, ``check``, ``encode`` and ``partition``: data sets."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from fedcore.base.devices import default_device, torch_name
from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.base.hub import address
from fedcore.base.progress import counted
from fedcore.cli import common
from fedcore.cli.terminal import AsJson, print_table, track, with_preparation
from fedcore.config import DataConfig
from fedcore.config.field_names import size_text
from fedcore.config.models import Precision
from fedcore.engine.plan import plan
from fedcore.store import Store

if TYPE_CHECKING:
    from fedcore.data.check import CheckReport

MAX_LINES = 40
"""A report lists at most this many classes of a domain, and only counts the others."""
data = typer.Typer(help="List, download, check, encode or partition data sets.")
common.application.add_typer(data, name="data")


Yes = Annotated[bool, Option("--yes", help="Download without a question")]


def _may_download(facts: Iterable[str], size: int | None, yes: bool) -> bool:
    """Show what a download takes, and ask for it."""
    size_line = f"size: {'unknown' if size is None else size_text(size)}"
    print("\n".join(filter(None, [*facts, size_line])), file=sys.stderr)
    return common.confirmed("Download it?", yes, "nothing was downloaded")


@common.command("list", data)
def list_data_sets(as_json: AsJson = False) -> None:
    """List the data sets that can be named, and where each is."""
    from fedcore.data import getting

    table = []
    for item in getting.shelf():
        size = size_text(item.size) if item.size else ""
        where = {"included": "comes with FedLens", "here": "on this machine", "get": f"data get {size}"}
        found = where.get(item.state, "by hand: docs/data.md").rstrip()
        table.append({"name": item.entry.name, "title": item.entry.title, "where": found})
    print_table(table, as_json)


@common.command("get", data)
def get(
    name: Annotated[
        str, Argument(metavar="NAME", help="A data set of the list, or hf:OWNER/NAME of the Hugging Face Hub")
    ],
    root: Annotated[
        str | None, Option(metavar="FOLDER", help="Folder for an authors' archive (default: FedLens' cache)")
    ] = None,
    columns: common.DataColumns = None,
    revision: Annotated[
        str | None, Option(help="Commit, tag or branch of the repository (default: the commit as before)")
    ] = None,
    yes: Yes = False,
) -> int:
    """Download a data set, count its images, and register it, so that experiments need no folder for it.

    Size, licence and address are shown before the first byte. An interrupted download goes on where it ended.
    """
    from fedcore.data import getting

    offer = getting.ask(name, revision)
    of_hub = offer.upstream is not None
    common.refuse_if(
        of_hub and root is not None, "it goes into the Hub's cache; set HF_HOME to move it", "root"
    )
    common.refuse_if(not of_hub and revision is not None, "an authors' archive has none; drop it", "revision")
    lines = [f"{offer.entry.title} from {offer.address}", f"licence: {offer.licence}", offer.remark]
    if not _may_download(lines, offer.size, yes):
        return common.NOT_DONE
    copy = track(getting.get(offer, root, _columns(columns)))
    where = f"revision {copy.revision[:7]} of {copy.repo}" if copy.repo else copy.root
    images = f"{counted(copy.images, 'image')} of {offer.entry.title} ({where})"
    print(f'{images}; in an experiment: name = "{name}"')
    return common.DONE


backbones = typer.Typer(help="Download the weights of backbones.")
common.application.add_typer(backbones, name="backbones")


@common.command("get", backbones)
def get_weights(
    name: Annotated[str, Argument(metavar="NAME", help="open_clip or timm model, e.g. ViT-B-32")],
    tag: Annotated[str, Argument(metavar="TAG", help="Tag of its weights, e.g. openai")],
    yes: Yes = False,
) -> int:
    """Download the weights of a backbone into the Hugging Face cache, before a run needs them."""
    from fedcore.clip import tags

    if (file := tags.cached(name, tag)) is None:
        found = tags.ask(name, tag)
        where = f"{found.file} of {address(found.repo, 'model')}"
        if not _may_download([where, f"licence: {found.licence or 'not stated'}"], found.size, yes):
            return common.NOT_DONE
        file = track(tags.fetch(name, tag))
    print(f'{file}; in an experiment: name = "{name}", pretrained = "{tag}"')
    return common.DONE


@common.command("check", data)
def check(
    path: Annotated[
        str,
        Argument(
            metavar="PATH|NAME", help="Folder, CSV list or saved data set, or a built-in one by its name"
        ),
    ],
    root: common.DataFolder = None,
    columns: common.DataColumns = None,
    json: Annotated[bool, Option("--json", help="Print the report as JSON")] = False,
) -> None:
    """Decode every image of a data set and list irregularities.

    A folder with the domains, classes and counts of a data set of the catalog is recognised as it. The exit
    status is 2 if the data set cannot be used as it is. Later runs leave broken images out.
    """
    from fedcore.data import catalog
    from fedcore.data.check import check_dataset, recognised
    from fedcore.data.copies import HUB
    from fedcore.data.readers.loaders import detect_format

    built_in = not user_path(path, "path").exists() and (path.startswith(HUB) or path in catalog.names())
    is_path = f"'{path}' is not a built-in data set; give its folder as PATH, without --root"
    common.refuse_if(root is not None and not built_in, is_path, "root")
    name, where = (path, root) if built_in else (detect_format(path), path)
    report = track(check_dataset(name, where, columns=_columns(columns)))
    print(report.model_dump_json() if json else report_text(report))
    if report.error:
        raise FedLensError(report.error, "data.root")
    if not json and not built_in and (known := recognised(report)):
        title = catalog.entry(known).title
        print(f'this is {title}, by its domains, classes and counts; in an experiment: name = "{known}"')


@common.command("encode", data)
def encode(
    name: Annotated[str, Argument(metavar="NAME", help="Data set, as an experiment names it")],
    root: common.DataFolder = None,
    columns: common.DataColumns = None,
    decode: Annotated[
        Literal["full", "draft"], Option(help="draft: decode large JPEG images at a lower resolution")
    ] = "full",
    backbone: Annotated[str, Option(help="open_clip model that encodes")] = "mini-vit",
    pretrained: Annotated[str | None, Option(help="open_clip tag, or weights file")] = None,
    precision: Annotated[Precision, Option(help="Precision of the encoder")] = "fp32",
    reads: Annotated[
        str, Option(help="What the method reads: embedding, layer:K or patches (FedAlign)")
    ] = "embedding",
    db: common.Database = None,
) -> None:
    """Encode a data set before any run needs it.

    An encoding depends on columns, decode, backbone and precision, so give those of the experiment.
    """
    from fedcore.jobs.handlers import encode_data

    wanted = DataConfig(name=name, root=root, columns=_columns(columns), decode=decode)
    model = backbone, pretrained, torch_name(default_device()), precision
    images, _ = track(encode_data(Store(db), wanted, model, reads, common.print_note))
    print(f"{counted(len(images), 'image')} of {images.name} encoded with {backbone}")


def _columns(pairs: Sequence[str] | None) -> dict[str, str]:
    """Parse ``label=diagnosis`` pairs into the field ``data.columns``."""
    columns = {}
    for pair in pairs or ():
        column, _, name = pair.partition("=")
        lacks = f"'{pair}' names no column; write it as label=diagnosis"
        common.refuse_if(not column or not name, lacks, "columns")
        columns[column] = name
    return columns


def report_text(report: CheckReport) -> str:
    """Return a report as text: counts first, then the findings."""
    lines = []
    if report.images:
        width = max(map(len, (*report.domains, "domain")))
        lines.append(f"{counted(report.images, 'image')}, {counted(len(report.classes), 'class')}")
        for domain, counts in zip(report.domains, report.counts, strict=True):
            listed = ", ".join(f"{c} {n:,}" for c, n in zip(report.classes, counts, strict=True))
            few = len(report.classes) <= MAX_LINES
            lines.append(f"  {domain:<{width}}  {sum(counts):>9,}" + (f"  {listed}" if few else ""))
        lines += [f"  e.g. {path}" for paths in report.samples.values() for path in paths[:1]]
    lines += [finding.line for finding in report.findings]
    lines += [f"note: {line}" for line in report.notes]
    if not report.findings and not report.error:
        lines.append("nothing odd was found")
    return "\n".join(lines)


@common.command("partition", data)
def partition(
    file: common.ExperimentFile = None, preset: common.PresetName = None, as_json: AsJson = False
) -> None:
    """Show how an experiment's data is divided among its clients, for each held-out domain.

    Entropies are in bits. Notes say how much the clients' labels differ.
    """
    experiment = common.load_experiment(file, preset)
    planned = with_preparation(lambda: plan(experiment))
    folds = list(dict.fromkeys(run.held_out for run in planned.runs))
    table = []
    for held_out in folds:
        fold = planned
        if held_out is not None:
            fold = plan(experiment.model_copy(update={"held_out": (held_out,)}))
        for name, samples, classes, entropy in fold.client_statistics():
            row = {"held_out": held_out, "client": name, "samples": samples, "classes": classes}
            table.append(row | {"entropy": round(entropy, 2)})
        common.print_note(
            f"{counted(len(fold.clients), 'client')}; label entropy {fold.entropy:.2f} of "
            f"{fold.max_entropy:.2f} bits; mean Jensen-Shannon distance "
            f"{fold.heterogeneity:.2f} (0 equal, 1 disjoint)",
            "clients" if held_out is None else f"without {held_out}",
        )
    print_table(table, as_json, under=("held_out",))
    for warning in planned.warnings:
        common.print_note(warning)
