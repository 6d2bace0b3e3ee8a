"""What FedLens finds of this package: the functions of ``fedcore.jobs.elsewhere.Cluster``.

Ray itself is imported on first use.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedcore.engine.parallel import Spread
from fedcore.store import Store
from fedlens_ray import choice, nodes


def serve(db: str | Path | None, address: str, **options: Any) -> int:
    """Be the database's supervisor with the devices of a cluster."""
    from fedlens_ray import runs

    return runs.serve_on_cluster(db, address, **options)


def serve_chosen(db: str | Path | None, *, over: int | None, **options: Any) -> int | None:
    """Be the supervisor on the cluster that was chosen on the page; None if none was."""
    from fedlens_ray import runs

    path = Store(db).path
    if (address := choice.chosen(path)) is None:
        return None
    return runs.serve_choice(db, address, over=choice.chosen_over(path) if over is None else over, **options)


def spread(address: str, count: int, device: str | None) -> Spread:
    """Return a ``Spread`` of runs of this process over devices of a cluster."""
    from fedlens_ray import on_node

    return on_node.over_nodes(address, count, device)


def is_used(store: Store) -> bool:
    """Return whether a worker serves a cluster, or will."""
    return nodes.read(store) is not None or choice.chosen(store.path) is not None


def draw(slots: Callable[[dict[str, str]], None]) -> Mapping[int, str] | None:
    """Draw the cluster on the page Experiments."""
    from fedlens_ray import page

    return page.section(slots)
