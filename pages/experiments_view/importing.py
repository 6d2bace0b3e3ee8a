"""The import of results from files: small uploads at once, large ones and paths in the background."""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Final

import streamlit as st

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from pages.widgets import background, markup, session

KIND: Final = "import_file"
IMMEDIATE_BYTES = 200_000
"""Size up to which the page itself imports an upload, which takes up to half a second."""


def show_imports() -> None:
    """Show running imports, and the result of each finished one once."""
    store = session.store()
    for task in store.tasks.recent(KIND):
        if task.status != "done":
            background.show_task(task, f"Import of {task.args['name']}")
        elif task.result is not None and session.writable():
            try:
                store.tasks.delete(task.id)
            except FedLensError:
                continue  # another open page has shown and deleted it
            st.toast(markup.md(f"{task.args['name']}: {task.result['says']}"))


@markup.dialog("Import results")
def dialog() -> None:
    """Ask for an exported experiment (JSON) or a table of the user's own results (CSV)."""
    st.write(
        "Choose the JSON file of an experiment (exported on *Compare*), or a CSV file with the columns "
        "`method, seed, round, model, test_set, correct, total`."
    )
    upload = st.file_uploader("File", type=["json", "csv"], key="import_file")
    typed = st.text_input(
        "Or a path on this machine",
        key="import_path",
        placeholder="/data/results.csv",
        help="For files of any size; the file is read in place",
        disabled=upload is not None,
    ).strip()
    chosen = upload.name if upload is not None else typed
    name = dataset = ""
    if is_csv(chosen):
        name = st.text_input(
            "Experiment", key="import_name", placeholder="an existing experiment to add to, or a new name"
        ).strip()
        dataset = st.text_input("Data set of these results", value="own data", key="import_data").strip()
    ready = bool(chosen) and (not is_csv(chosen) or bool(name))
    if not st.button("Import", type="primary", disabled=not ready, key="import_confirmed"):
        return
    if upload is None:
        submit_path(existing_file(typed), name, dataset)
    elif upload.size > IMMEDIATE_BYTES:
        submit_upload(upload.name, upload.getvalue(), name, dataset)
    else:
        st.toast(import_now(upload.name, upload.getvalue(), name, dataset))
    st.rerun()


def is_csv(file: str) -> bool:
    """Return whether a file's name ends in .csv."""
    return file.lower().endswith(".csv")


def existing_file(typed: str) -> Path:
    """Return the absolute path of a JSON or CSV file that the user typed."""
    path = user_path(typed, "file")
    if not path.is_file():
        raise FedLensError(f"no file {typed}; give the full path of a file on this machine", "file")
    if path.suffix.lower() not in (".json", ".csv"):
        raise FedLensError(f"{typed} is neither .json nor .csv; give it the ending of its format", "file")
    return path.resolve()


def submit_path(file: Path, experiment: str, dataset: str) -> None:
    """Import a file in the background, a CSV file under the names of an experiment and a data set."""
    args = {"file": str(file), "name": str(file), "experiment": experiment, "dataset": dataset}
    background.submit(KIND, json.dumps(args), args)


def submit_upload(name: str, content: bytes, experiment: str, dataset: str) -> None:
    """Import an upload in the background, from a copy in the folder of the task."""
    key = f"{hashlib.sha256(content).hexdigest()} {json.dumps([name, experiment, dataset])}"
    folder = session.store().tasks.folder(KIND, key)
    file = folder / ("upload.csv" if is_csv(name) else "upload.json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except OSError as error:
        raise FedLensError(
            f"cannot store {name} in {folder}: {error.strerror}; free some space there"
        ) from error
    args = {"file": str(file), "name": name, "experiment": experiment, "dataset": dataset}
    background.submit(KIND, key, args)


def import_now(file: str, content: bytes, experiment: str, dataset: str) -> str:
    """Import an uploaded file into the database, and return a sentence on the result."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("upload.csv" if is_csv(file) else "upload.json")
        path.write_bytes(content)
        return session.store().imports.file(path, experiment, dataset, file)
