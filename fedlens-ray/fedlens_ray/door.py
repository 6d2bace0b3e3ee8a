"""What FedLens finds of this package: the functions of ``fedcore.jobs.launcher.Cluster``."""

from collections.abc import Callable, Mapping

from fedcore.store import Store
from fedlens_ray import connection, nodes
from fedlens_ray.on_node import over_nodes as spread
from fedlens_ray.runs import serve_chosen
from fedlens_ray.runs import serve_on_cluster as serve

__all__ = ["draw", "is_used", "serve", "serve_chosen", "spread"]


def is_used(store: Store) -> bool:
    """Return whether a worker serves a cluster, or will."""
    return nodes.read(store) is not None or connection.chosen(store.path) is not None


def draw(slots: Callable[[dict[str, str]], None]) -> Mapping[int, str] | None:
    """Draw the cluster on the page Experiments."""
    from fedlens_ray import page  # with Streamlit, which the worker need not load

    return page.section(slots)
