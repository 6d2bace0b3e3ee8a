"""Devices of other machines: what a package for a cluster offers, found through an entry point.

FedLens trains on this machine. A package may register a module in the group ``fedlens.cluster``, as
``fedlens-ray`` of this repository does; nothing here imports it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedcore.base.errors import FedLensError

if TYPE_CHECKING:
    from fedcore.engine.train import Spread
    from fedcore.store import Store

GROUP = "fedlens.cluster"
HOW_TO_INSTALL = "pip install ./fedlens-ray"


class Cluster(Protocol):
    """The module that a package registers."""

    def serve(self, db: str | Path | None, address: str, **options: Any) -> int:
        """Be the database's supervisor with the devices of a cluster, with the options of the worker."""

    def serve_chosen(self, db: str | Path | None, **options: Any) -> int | None:
        """Be the supervisor on the cluster that was chosen on the page; None if none was."""

    def spread(self, address: str, count: int, device: str | None) -> Spread:
        """Return a ``Spread`` of runs of this process over ``count`` devices of a cluster."""

    def is_used(self, store: Store) -> bool:
        """Return whether queued runs may wait for a device of a cluster."""

    def draw(self, slots: Callable[[dict[str, str]], None]) -> Mapping[int, str] | None:
        """Draw the cluster on the page Experiments, with ``slots`` the number of runs at once per device.

        Returns what the next queued runs wait for, by id; None while no cluster is joined.
        """


@cache
def cluster() -> Cluster | None:
    """Return what the installed package for a cluster offers; None without one."""
    module: Cluster | None = next((found.load() for found in entry_points(group=GROUP)), None)
    return module


def required() -> Cluster:
    """Return what the package offers, or say how to install it."""
    found = cluster()
    if found is None:
        message = f"the package for Ray clusters is missing; in a checkout of FedLens: {HOW_TO_INSTALL}"
        raise FedLensError(message, "ray")
    return found
