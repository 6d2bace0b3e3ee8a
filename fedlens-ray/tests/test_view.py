"""Pages read the state of the nodes, without Ray, from a file that the worker writes."""

from pathlib import Path

from fedlens_ray import nodes

from fedcore.store import Store
from tests.support.cluster import CARD, LARGE, PROCESSOR, SMALL


def test_pages_read_what_the_worker_wrote(db: Path):
    store = Store(db)
    assert nodes.read(store) is None
    nodes.write(store, nodes.ClusterView([SMALL, LARGE]))
    small, large = nodes.read(store).nodes
    assert small.pools == ("small/cpu",)
    assert large.pools == ("large/gpu", "large/cpu") and large.notes == ("torch 2.9.0 instead of 2.8.0",)
    assert large.devices_of("large/gpu") == [CARD] and large.devices_of("large/cpu") == [PROCESSOR]
    nodes.clear(store)
    assert nodes.read(store) is None


def test_an_old_file_says_nothing_as_its_worker_is_gone(db: Path):
    store = Store(db)
    nodes.write(store, nodes.ClusterView([SMALL], over=2, waits={7: "4 CPUs"}))
    view = nodes.read(store)
    assert (view.over, view.waits) == (2, {7: "4 CPUs"})
    written = nodes._path(store).stat().st_mtime
    assert nodes.read(store, now=written + 1) is not None
    assert nodes.read(store, now=written + 60) is None
