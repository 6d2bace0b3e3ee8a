"""Results from elsewhere: a small upload is recorded at once, a large one or a path in the background."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import streamlit as st

from fedcore.errors import FedLensError
from pages.widgets import background, common

KIND = "import_file"
AT_ONCE = 200_000
"""Bytes that a page records itself, within half a second; more is work for the background."""


def running() -> None:
    """Files that are being recorded, and what came of those that are done, once."""
    store = common.store()
    for task in store.tasks.recent(KIND):
        if task.status != "done":
            background.follow(task, f"Import of {task.args['name']}")
        elif task.result is not None and common.writable():
            try:
                store.tasks.delete(task.id)
            except FedLensError:
                continue  # another open page has told it and forgotten it
            st.toast(common.md(f"{task.args['name']}: {task.result['says']}"))


@st.dialog("Import results")
def dialog() -> None:
    """An experiment of another FedLens (JSON), or a table of one's own results (CSV)."""
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
    try:
        if upload is None:
            ask(there(typed), name, dataset)
        elif upload.size > AT_ONCE:
            ask_uploaded(upload.name, upload.getvalue(), name, dataset)
        else:
            st.toast(record(upload.name, upload.getvalue(), name, dataset))
    except FedLensError as error:
        common.show_error(error)
        return
    st.rerun()


def is_csv(file: str) -> bool:
    """Whether a file's name says that it is a table."""
    return file.lower().endswith(".csv")


def there(typed: str) -> Path:
    """The file that a path names.

    Raises:
        FedLensError: where there is none, or it is of another kind.
    """
    path = Path(typed).expanduser()
    try:
        found = path.is_file()
    except (OSError, ValueError):  # a name too long, a null byte
        found = False
    if not found:
        raise FedLensError(f"no file {typed}; give the full path of a file on this machine", "file")
    if path.suffix.lower() not in (".json", ".csv"):
        raise FedLensError(f"{typed} is neither .json nor .csv; give it the ending of its format", "file")
    return path.resolve()


def ask(file: Path, experiment: str, dataset: str) -> None:
    """Have a file recorded in the background.

    Args:
        experiment, dataset: of a CSV file, which does not say them.
    """
    args = {"file": str(file), "name": str(file), "experiment": experiment, "dataset": dataset}
    background.ask(KIND, json.dumps(args), args)


def ask_uploaded(name: str, content: bytes, experiment: str, dataset: str) -> None:
    """Have an upload recorded in the background; it lies with the task until that is forgotten.

    Raises:
        FedLensError: where it cannot be kept.
    """
    key = f"{hashlib.sha256(content).hexdigest()} {json.dumps([name, experiment, dataset])}"
    folder = common.store().tasks.folder(KIND, key)
    file = folder / ("upload.csv" if is_csv(name) else "upload.json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except OSError as error:
        raise FedLensError(f"cannot keep {name} in {folder}: {error.strerror}; make room there") from error
    args = {"file": str(file), "name": name, "experiment": experiment, "dataset": dataset}
    background.ask(KIND, key, args)


def record(file: str, content: bytes, experiment: str, dataset: str) -> str:
    """Write an uploaded file into the database; says what came of it.

    Args:
        experiment, dataset: of a CSV file, which does not say them.

    Raises:
        FedLensError: naming the file as the user knows it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("upload.csv" if is_csv(file) else "upload.json")
        path.write_bytes(content)
        return common.store().imports.file(path, experiment, dataset, file)
