"""The section Data sets of the page Data & models: own data and its check, and a card for each data set."""

import base64
import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from PIL import Image

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.base.progress import counted
from fedcore.clip import tags
from fedcore.clip.specs import weights_source
from fedcore.config import BackboneConfig, DataConfig, Experiment, backbones
from fedcore.config.field_names import size_text
from fedcore.data import catalog, copies, getting
from fedcore.data.check import SIDE, CheckReport
from fedcore.data.copies import HUB, Copy
from fedcore.data.getting import Item
from fedcore.data.images import ONE_DOMAIN, Entry
from fedcore.data.readers.loaders import detect_format
from fedcore.papers import experiments
from fedcore.papers import library as papers
from fedcore.results.settings import worth
from fedcore.store import TaskRow
from pages.forms import drafts
from pages.forms.dataset import (
    OWN_DATA,
    FolderCheck,
    columns_field,
    counts_and_samples,
    get_button,
    note_typed,
    show_downloads,
)
from pages.forms.fields import suggested_weights
from pages.forms.inputs import with_field_titles
from pages.widgets import background, markup, session
from pages.widgets.browser import draw_html
from pages.widgets.markup import esc

OPEN = "data_dialog"
"""Key of the session for the data set whose dialog is open."""
PROPOSED = "ViT-B-32"
"""The backbone for photographs, of which the miniature ones know nothing."""
STATES = {
    "included": "✓ included",
    "here": "✓ here",
    "get": "can be got",
    "by hand": "by hand",
}


def section() -> None:
    """Draw the user's own data and the form that adds some, then the cards of all other data sets."""
    newest: dict[tuple[str, str], TaskRow] = {}  # check of each folder that can be used and is still there
    for task in session.store().tasks.recent("check"):
        if task.status == "done" and task.result is not None and not task.result["report"]["error"]:
            with suppress(OSError):  # of a folder that cannot be looked at
                if Path(task.args["root"]).exists():
                    newest.setdefault((task.result["name"], task.args["root"]), task)
    add_data([task for (name, _), task in newest.items() if catalog.entry(name).is_own])
    folders: dict[str, TaskRow] = {}
    for (name, _), task in newest.items():
        folders.setdefault((task.result or {}).get("known") or name, task)
    gallery(folders)
    if (chosen := st.session_state.get(OPEN)) is not None:
        details(chosen, folders.get(chosen))


def add_data(mine: Sequence[TaskRow]) -> None:
    """Draw the user's own data, the form that adds some, and the progress or report of a check."""
    st.header("My data", help="The files stay where they are; nothing is copied.")
    of_hub = [item for item in getting.shelf() if item.entry.name.startswith(HUB)]
    cards = [card_of_item(item, None) for item in of_hub] + [card_of_check(task) for task in mine]
    if cards and (chosen := draw_cards(cards, "my_cards")) is not None:
        number = chosen.removeprefix("check ")
        own = next((task for task in mine if str(task.id) == number), None)
        if own is not None:
            st.session_state["what"], st.session_state["folder"] = "My own data", own.args["root"]
            note_typed("folder")
        else:
            st.session_state[OPEN] = chosen
    titles = {OWN_DATA: "My own data"} | {e.title: e.title for e in catalog_sets()}
    left, middle, right = st.columns([3, 6, 2], vertical_alignment="bottom")
    what = session.choose(left.selectbox, "Kind of data", titles, "what")
    root = middle.text_input(
        "Folder on this machine",
        key="folder",
        bind="query-params",
        placeholder=f"/data/my-pictures, or {HUB}owner/name of the Hugging Face Hub",
        help="A folder of `domain/class/image` or `class/image`, a CSV manifest, a saved Hugging Face data "
        "set, a file of embeddings, or one of the data sets below. The files stay where they are.",
        on_change=note_typed,
        args=("folder",),
    ).strip()
    if root.startswith(HUB):
        with markup.errors_shown():
            catalog.entry(root)
            if markup.write_button("Get", "download", "get_from_hub", where=right, width="stretch"):
                background.submit("download", root, {"name": root})
                st.rerun()
        return
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
    return [e for e in catalog.entries() if not e.embedded and not e.is_own]


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
        why = f"This data set cannot be used as it is: {with_field_titles(report.error)}"
        st.error(markup.md(why), icon=":material/error:")
    else:
        left_out = f"; {report.left_out:,} left out" if report.left_out else ""
        st.markdown(counts_text(report) + left_out)
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
    known = result.get("known")
    if known is not None:
        title = markup.md(catalog.entry(known).title)
        st.success(f"This is {title}, by its domains, classes and counts.", icon=":material/verified:")
    if markup.write_button("New experiment with this data", "add", type="primary"):
        name, columns = known or result["name"], dict(task.args.get("columns") or {})
        data = DataConfig(name=name, root=str(user_path(root, "data.root")), columns=columns)
        new_experiment(data, Path(root).name or name)
    layout = "One row per domain, one column per class"
    if len(report.classes) > 10 or len(report.domains) > 8:
        layout += "; the first eight domains and ten classes"
    draw_pictures_and_counts(report, task.arrays().get("sheet"), layout, "check_counts")


def counts_text(data: CheckReport | Copy) -> str:
    """Return the numbers of images, classes and domains as Markdown, with the names of the domains."""
    return (
        f"**{counted(data.images, 'image')}**, {counted(len(data.classes), 'class')}, "
        f"{counted(len(data.domains), 'domain')}: {markup.md(', '.join(data.domains))}"
    )


def draw_pictures_and_counts(data: CheckReport | Copy, pictures: Any, layout: str, key: str) -> None:
    """Draw the sample images of a data set, if there are any, and its images by domain and class."""
    left, right = st.columns([2, 3])
    if pictures is not None:
        left.image(pictures, caption=layout, width="content", alt=f"Sample images. {layout}")
    else:
        left.caption("There are no images to show.")
    table: dict[str, list[Any]] = {"domain": list(data.domains)}
    table |= {name: [row[j] for row in data.counts] for j, name in enumerate(data.classes)}
    right.dataframe(table, hide_index=True, key=key)


def gallery(folders: dict[str, TaskRow]) -> None:
    """Draw a card for each data set of the catalog; ``folders`` holds checked folders by data set."""
    title, left, right = st.columns([2, 3, 4], vertical_alignment="center")
    title.header("Data sets")
    used = {work: set(experiments.runs(work).data.values()) for work in papers.works()}
    titles = {"": "Used by any paper"}
    titles |= {work: papers.find(work).title for work, names in used.items() if names}
    paper = session.choose(left.selectbox, "Used by", titles, "used_by", label_visibility="collapsed")
    ways = {"all": "All", "here": "On this machine", "get": "To download", "by hand": "By hand"}
    options = {"default": "all", "required": True, "label_visibility": "collapsed"}
    way = session.choose(right.segmented_control, "Where", ways, "at", **options)
    show_downloads()
    shown = []
    for item in getting.shelf():
        name = item.entry.name
        state = "here" if item.state == "included" or name in folders else item.state
        if not name.startswith(HUB) and way in ("all", state) and (not paper or name in used[paper]):
            shown.append((state != "here", card_of_item(item, folders.get(name))))
    if not shown:
        st.caption("No data set is both.")
        return
    cards = [card for _, card in sorted(shown, key=lambda pair: pair[0])]
    if (chosen := draw_cards(cards, "data_cards")) is not None:
        st.session_state[OPEN] = chosen


def draw_cards(cards: Sequence[str], key: str) -> str | None:
    """Draw cards beside each other, and return the choice of the one that was clicked, if any."""
    return draw_html(f'<div class="cards">{"".join(cards)}</div>', key)


def content(item: Item, check: TaskRow | None) -> tuple[CheckReport | Copy | None, Any]:
    """Return the counts and the sample pictures of a data set that is on this machine, else nothing."""
    copy = item.copy
    if item.entry.embedded:
        return counts_and_samples(item.entry.name)
    if copy is not None:
        return copy, copies.sheet(copy)
    if check is not None:
        return CheckReport.model_validate((check.result or {})["report"]), check.arrays().get("sheet")
    return None, None


def card_of_item(item: Item, check: TaskRow | None) -> str:
    """Return the card of a data set as HTML; ``check`` is that of its folder on this machine, if any."""
    entry, state, action = item.entry, STATES["here" if check is not None else item.state], ""
    (data, sheet), got = content(item, check), session.store().tasks.find("download", entry.name)
    if got is not None and not got.ended:
        state = "on its way"
    elif data is None and item.address:
        action = "Get" if item.size is None else f"Get {size_text(item.size)}"
    numbers = numbers_text(sum(entry.counts.values()), len(entry.classes) or entry.class_count or 0)
    if data is not None:
        numbers = numbers_text(data.images, len(data.classes))
    about = entry.source if entry.domains in ((), (ONE_DOMAIN,)) else ", ".join(entry.domains)
    state = "" if action else state
    return card(entry.name, entry.title, sheet, about, numbers, entry.licence, state, action)


def card_of_check(task: TaskRow) -> str:
    """Return the card of the user's own data as HTML, from their check."""
    report = CheckReport.model_validate((task.result or {})["report"])
    sheet, numbers = task.arrays().get("sheet"), numbers_text(report.images, len(report.classes))
    title, about = Path(report.root).name, ", ".join(report.domains)
    return card(f"check {task.id}", title, sheet, about, numbers, report.root, "✓ yours")


def numbers_text(images: int, classes: int) -> str:
    """Return the numbers of images and classes in words; 0 is unknown."""
    known = [counted(n, noun) for n, noun in ((images, "image"), (classes, "class")) if n]
    return ", ".join(known) or "images not counted"


def card(
    choice: str,
    title: str,
    sheet: Any,
    about: str,
    numbers: str,
    below: str,
    state: str,
    action: str = "",
) -> str:
    """Return a card as HTML.

    Args:
        choice: what a click on it returns; empty if it has no more to show.
        sheet: sample pictures; without them ``about`` is shown.
        below: small print.
    """
    seen = f"<p>{esc(about)}</p>"
    if sheet is not None:
        seen = f'<img src="{picture_strip(np.asarray(sheet))}" alt="" title="{esc(about)}">'
    name = f'<b class="name">{esc(title)}</b>'
    if choice:
        name = f'<button class="name" data-choice="{esc(choice)}">{esc(title)}</button>'
    foot = f'<span class="state">{esc(state)}</span>' if state else ""
    if action:
        foot += f'<button class="get" data-choice="{esc(choice)}">{esc(action)}</button>'
    return (
        f'<div class="card">{name}{seen}'
        f"<span>{esc(numbers)}</span>"
        f'<div class="foot">{foot}<span class="terms" title="{esc(below)}">{esc(below)}</span></div></div>'
    )


@st.cache_data(show_spinner=False, max_entries=200)
def picture_strip(sheet: np.ndarray) -> str:
    """Return four images of a sheet beside each other as an address for HTML."""
    rows, columns = sheet.shape[0] // SIDE, sheet.shape[1] // SIDE
    places = [(i % rows, (i * max(1, columns // 4)) % columns) for i in range(4)]
    tiles = [sheet[r * SIDE : (r + 1) * SIDE, c * SIDE : (c + 1) * SIDE] for r, c in places]
    content = io.BytesIO()
    Image.fromarray(np.concatenate(tiles, axis=1)).save(content, "WEBP", quality=80)
    return f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}"


def closed() -> None:
    """Callback: forget the dialog, so that a rerun does not open it again."""
    st.session_state.pop(OPEN, None)


@markup.dialog("Data set", width="large", on_dismiss=closed)
def details(name: str, check: TaskRow | None) -> None:
    """Show a data set: its images, origin and terms, and how to get it or what to do with it."""
    item = getting.item(name)
    entry = item.entry
    st.subheader(markup.md(entry.title), anchor=False)
    st.markdown(f"{markup.md(markup.sentence(entry.source))}. {markup.md(entry.citation)}".rstrip())
    data, pictures = content(item, check)
    if data is not None:
        st.markdown(counts_text(data))
        draw_pictures_and_counts(data, pictures, "One row per domain, one column per class", f"counts_{name}")
    elif not item.address:
        st.markdown(f"**Domains:** {markup.md(', '.join(entry.domains))}")
    if item.copy is not None:
        st.caption(markup.md(f"In {item.copy.root}"))
    if data is not None or not item.address:
        st.caption(markup.md(f"Licence: {entry.licence}."))
    if data is not None:
        root = None if check is None or item.copy is not None else check.args["root"]
        if markup.write_button("New experiment with this data", "add", type="primary"):
            new_experiment(DataConfig(name=name, root=root), entry.title)
        return
    if item.address and get_button(item, f"get_{name}"):
        closed()
        st.rerun()
    st.markdown(markup.md_with_code(entry.how_to_get))
    st.caption("Files that are here already need no download: enter their folder under My data.")


def new_experiment(data: DataConfig, name: str) -> None:
    """Fill the form with an experiment on some data, and open it."""
    demo = experiments.preset(experiments.DEMO)
    draft = demo.model_copy(update={"name": name[:500], "data": data})
    drafts.fill(for_photographs(draft) if worth(draft) else draft, "folder")
    closed()
    st.switch_page("pages/new.py", query_params={})


def for_photographs(experiment: Experiment) -> Experiment:
    """Return an experiment with a CLIP model that knows photographs, and the papers' hyper-parameters.

    Those of the demonstration suit its miniature model alone.
    """
    methods = tuple(entry.model_copy(update={"config": {}}) for entry in experiment.methods)
    backbone = BackboneConfig(name=PROPOSED, pretrained=suggested_weights(PROPOSED))
    return experiment.model_copy(update={"backbone": backbone, "cohorts": (), "methods": methods})


def offer_model(experiment: Experiment) -> None:
    """Draw, where they are missing, the ways to a model that knows such images and to its weights."""
    if worth(experiment) and st.button(f"Use {PROPOSED} with the papers' settings", icon=":material/tune:"):
        drafts.fill(for_photographs(experiment), drafts.form().origin)
        st.rerun()
    for model in backbones(experiment):
        tag = weights_source(model.name, model.pretrained)
        if not isinstance(tag, str) or tags.cached(model.name, tag) is not None:
            continue
        key = f"{model.name} {tag}"
        task = session.store().tasks.find("weights", key)
        if task is not None:
            background.show_task(task, f"Weights {key}")
        ended = task is None or task.ended
        if ended and markup.write_button(f"Get the weights of {model.name}", "download", f"get_{key}"):
            background.submit("weights", key, {"name": model.name, "tag": tag})
            st.rerun()
