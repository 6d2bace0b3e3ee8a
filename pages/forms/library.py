"""The section Data sets of the page Data & models: own data and its check, built-in and supported sets."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.base.progress import counted
from fedcore.config import DataConfig
from fedcore.data import catalog
from fedcore.data.check import CheckReport
from fedcore.data.images import ONE_DOMAIN, Entry
from fedcore.data.readers.loaders import detect_format
from fedcore.papers import experiments
from fedcore.results.run_files import DataCounts
from fedcore.store import TaskRow
from pages.forms import drafts
from pages.forms.dataset import (
    OWN_DATA,
    FolderCheck,
    columns_field,
    counts_and_samples,
    is_own_data,
    note_typed,
)
from pages.forms.inputs import with_field_titles
from pages.widgets import background, markup, session


def section() -> None:
    """Draw the form for own data, the built-in and the supported data sets, and the download."""
    add_data()
    embedded_sets()
    supported_sets()
    download_data()


def add_data() -> None:
    """Draw the form, and the progress or report of the check."""
    st.header("Add a data set")
    st.caption("The files stay where they are; nothing is copied.")
    titles = {OWN_DATA: "My own data"} | {e.title: e.title for e in catalog_sets()}
    left, middle, right = st.columns([3, 6, 2], vertical_alignment="bottom")
    what = session.choose(left.selectbox, "Kind of data", titles, "what")
    root = middle.text_input(
        "Folder on this machine",
        key="folder",
        bind="query-params",
        placeholder="/data/my-pictures",
        help="A folder of `domain/class/image` or `class/image`, a CSV manifest, a saved Hugging Face data "
        "set, a file of embeddings, or one of the supported data sets below",
        on_change=note_typed,
        args=("folder",),
    ).strip()
    name = next((e.name for e in catalog_sets() if e.title == what), None)
    columns = column_names(root) if name is None else {}
    check = FolderCheck(name, root, columns)
    task = check.started() if root else None
    busy = task is not None and not task.ended
    missing = False
    with suppress(OSError):  # of a folder that cannot be looked at, the check says why
        missing = bool(root) and not busy and not user_path(root, "data.root").exists()
    label = "Check again" if task is not None and task.status == "done" else "Check"
    possible, look = bool(root) and not missing and not busy, "primary" if label == "Check" else "secondary"
    if markup.write_button(label, "fact_check", "check_folder", possible, right, type=look, width="stretch"):
        check.submit()
        st.rerun()
    if missing:  # also after a check, whose report is of a folder that has gone since
        markup.show_error(FedLensError(f"no folder {root}; give the folder or file of the data set"))
        return
    if task is not None:
        background.show_task(task, f"Checking {root}")
    if task is not None and task.status == "done" and task.result is not None:
        show_report(task, root)


def catalog_sets() -> list[Entry]:
    """Return the data sets of the catalog that are neither built in nor the user's own."""
    return [e for e in catalog.entries() if not e.embedded and not is_own_data(e)]


def fill_check_form(title: str, root: str) -> None:
    """Callback: enter a folder in the form, as if it had been typed."""
    st.session_state["what"], st.session_state["folder"] = title, root
    note_typed("folder")


def column_names(root: str) -> dict[str, str]:
    """Ask for the column names of a manifest or Hugging Face data set; a folder has none."""
    try:
        kind = detect_format(root) if root else "folder"
    except (OSError, FedLensError):  # for example a folder that may not be read, which the check reports
        return {}
    if kind == "folder":
        return {}
    path = str(user_path(root, "data.root"))
    last = next((t for t in session.store().tasks.recent("check") if t.args.get("root") == path), None)
    start = (last.args.get("columns") if last is not None else None) or {}
    return columns_field(start, f"check_columns {path}")


def show_report(task: TaskRow, root: str) -> None:
    """Show the report of a finished check."""
    result = task.result or {}
    report = CheckReport.model_validate(result["report"])
    if report.error:
        st.error(
            markup.md(f"This data set cannot be used as it is: {with_field_titles(report.error)}"),
            icon=":material/error:",
        )
    else:
        left_out = f"; {report.left_out:,} left out" if report.left_out else ""
        st.markdown(counts_text(report.images, report) + left_out)
    for line in report.notes:
        st.warning(markup.md(line), icon=":material/warning:")
    if report.findings:
        findings = {
            "Count": [f.count for f in report.findings],
            "Finding": [f.what for f in report.findings],
            "Treatment": [f.treatment for f in report.findings],
            "Files": ["; ".join(f.paths) for f in report.findings],
        }
        st.dataframe(findings, hide_index=True, key="check_findings")
    if report.error:
        return
    if markup.write_button("New experiment with this data", "add", type="primary"):
        name, columns = result["name"], dict(task.args.get("columns") or {})
        data = DataConfig(name=name, root=str(user_path(root, "data.root")), columns=columns)
        changes = {"name": Path(root).name[:500] or name, "data": data}
        drafts.fill(experiments.preset(experiments.DEMO).model_copy(update=changes), "folder")
        st.switch_page("pages/new.py", query_params={})
    sheet = task.arrays().get("sheet")
    layout = "One row per domain, one column per class"
    if len(report.classes) > 10 or len(report.domains) > 8:
        layout += "; the first eight domains and ten classes"
    draw_pictures_and_counts(report, sheet, layout, "check_counts")


def counts_text(images: int, data: CheckReport | DataCounts) -> str:
    """Return the numbers of images, classes and domains as Markdown, with the names of the domains."""
    return (
        f"**{counted(images, 'image')}**, {counted(len(data.classes), 'class')}, "
        f"{counted(len(data.domains), 'domain')}: {markup.md(', '.join(data.domains))}"
    )


def draw_pictures_and_counts(data: CheckReport | DataCounts, pictures: Any, layout: str, key: str) -> None:
    """Draw the sample images of a data set, if there are any, and its images by domain and class."""
    left, right = st.columns([2, 3])
    if pictures is not None:
        left.image(pictures, caption=layout, width="content", alt=f"Sample images. {layout}")
    else:
        left.caption("There are no images to show.")
    table: dict[str, list[Any]] = {"domain": list(data.domains)}
    table |= {name: [int(row[j]) for row in data.counts] for j, name in enumerate(data.classes)}
    right.dataframe(table, hide_index=True, key=key)


def embedded_sets() -> None:
    """Show the pictures and counts of a data set that comes with FedLens."""
    st.header("Built-in data sets")
    titles = {e.name: e.title for e in catalog.entries() if e.embedded}
    first = next(iter(titles))
    chosen = session.choose(
        st.segmented_control, "Data set", titles, "data_shown", default=first, required=True
    )
    counts, pictures = counts_and_samples(chosen)
    st.markdown(counts_text(int(counts.counts.sum()), counts))
    layout = f"{titles[chosen]}: one row per domain, one column per class"
    draw_pictures_and_counts(counts, pictures, layout, f"counts_{chosen}")


def supported_sets() -> None:
    """List the data sets of the catalog."""
    st.header("Supported data sets")
    checked: dict[str, list[str]] = {}
    for task in session.store().tasks.recent("check"):
        if task.status == "done" and task.result and not task.result["report"]["error"]:
            checked.setdefault(task.result["name"], []).append(task.result["report"]["root"])
    built_in, others = [e for e in catalog.entries() if e.embedded], catalog_sets()
    here = ["✓ comes with FedLens"] * len(built_in)
    here += [f"✓ {', '.join(roots)}" if (roots := checked.get(e.name)) else e.how_to_get for e in others]
    entries = [*built_in, *others]
    columns = {
        "Name": [e.title for e in entries],
        "On this machine": here,
        "Domains": ["one" if e.domains == (ONE_DOMAIN,) else ", ".join(e.domains) or "any" for e in entries],
        "Classes": [str(len(e.classes) or e.class_count or "any") for e in entries],
        "Contents": [e.source for e in entries],
        "Licence": [e.licence for e in entries],
    }
    cells = {title: list(map(markup.md_with_code, texts)) for title, texts in columns.items()}
    markup.table(cells, "Data sets")


def download_data() -> None:
    """Draw the download of a data set through torchvision, which only a click starts."""
    st.header("Download a data set")
    entries = {e.title: e for e in catalog.entries() if e.torchvision}
    left, middle, right = st.columns([3, 6, 2], vertical_alignment="bottom")
    entry = entries[left.selectbox("Data set", list(entries), key="download")]
    root = middle.text_input("Target folder", key="download_to", placeholder="/data").strip()
    if markup.write_button("Download", "download", None, bool(root), right, width="stretch"):
        folder = str(user_path(root, "data.root"))
        background.submit("download", f"{entry.name} {folder}", {"name": entry.name, "root": folder})
        st.rerun()
    size = f"about {entry.megabytes:,} MB" if entry.megabytes else "size unknown"
    terms = entry.licence[:1].upper() + entry.licence[1:]
    st.caption(markup.md(f"Downloaded with torchvision, {size}. {terms}."))
    for task in session.store().tasks.recent("download", 3):
        title = catalog.entry(task.args["name"]).title
        background.show_task(task, title)
        if task.status == "done":
            st.success(markup.md(f"{title} is in {task.args['root']}."), icon=":material/check:")
            st.button(
                "Check it",
                icon=":material/fact_check:",
                key=f"check_{task.id}",
                on_click=fill_check_form,
                args=(title, task.args["root"]),
            )
