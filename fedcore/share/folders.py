"""The folders of a bundle's data sets on this machine, as its reader names them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from fedcore.base.errors import FedLensError
from fedcore.base.files import user_path
from fedcore.config import DataConfig, RunConfig, TransferConfig
from fedcore.config.field_names import data_title
from fedcore.data import catalog

Folders = Mapping[str, str]
"""Name of a data set, or of its folder in the bundle -> its folder on this machine."""
_Data = TypeVar("_Data", DataConfig, TransferConfig)


def read_folders(runs: Iterable[RunConfig], given: Sequence[str]) -> Folders:
    """Return the folder of each data set that a reader has named.

    Args:
        given: ``NAME=FOLDER``, or ``FOLDER`` of the only data set on which the runs' clients train.
    """
    every: dict[str, None] = {}
    trained_on: dict[str, None] = {}
    for run in runs:
        trained_on |= dict.fromkeys(without_folder([run.data], {}))
        every |= dict.fromkeys(without_folder(data_of(run), {}))
    folders: dict[str, str] = {}
    for text in given:
        names = [n for n in every if text.startswith(f"{n}=")]
        name, equals, folder = text.partition("=")
        if names:  # it may have an equals sign itself, as the author's folder had
            name = max(names, key=len)
            folder = text.removeprefix(f"{name}=")
        elif not equals or user_path(text, "data").exists():
            name, equals, folder = next(iter(trained_on or every), ""), "", text
        listed = ", ".join(every)
        if not every:
            raise FedLensError(f"leave out {text}: FedLens has the images of this bundle itself", "data")
        if name not in every:
            raise FedLensError(f"no data set of this bundle is called '{name}'; there are: {listed}", "data")
        if not equals and len(trained_on or every) > 1:
            raise FedLensError(
                f"name the data set of {text}, as in {name}={text}; there are: {listed}", "data"
            )
        if name in folders:
            raise FedLensError(f"two folders are given for {name}; leave out one", "data")
        if not user_path(folder, "data").exists():
            raise FedLensError(f"there is no folder {folder}; give that of {name}", "data")
        folders[name] = str(user_path(folder, "data"))
    return folders


def data_of(run: RunConfig) -> list[DataConfig]:
    """Return all data sets of a run, its own first."""
    return [run.data, *(other.data for other in (*run.further_data, *run.transfer))]


def without_folder(data: Iterable[DataConfig], folders: Folders) -> list[str]:
    """Return the names of those data sets whose images are files, and whose folder is not known."""
    names = [_name(d) for d in data if not catalog.entry(d.name).embedded]
    return [name for name in names if name not in folders]


def _name(data: DataConfig) -> str:
    """Return the name of a data set, or of the folder or file of the author's own data."""
    return data_title(data).removesuffix(f" ({data.name})")


def with_folders(run: RunConfig, folders: Folders) -> RunConfig:
    """Return a config whose data sets are on this machine, or have no folder."""

    def placed(data: _Data, name: str) -> _Data:
        return data.model_copy(update={"root": folders.get(name)})

    return run.model_copy(
        update={
            "data": placed(run.data, _name(run.data)),
            "further_data": tuple(placed(other, _name(other.data)) for other in run.further_data),
            "transfer": tuple(placed(other, _name(other.data)) for other in run.transfer),
        }
    )
