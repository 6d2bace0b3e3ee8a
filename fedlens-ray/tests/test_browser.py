"""Try it on a Ray cluster of two nodes: the same clicks, the nodes in sight, the cells of a local run."""

from pathlib import Path

import pytest
from fedlens_ray import nodes
from playwright.sync_api import expect

from fedcore.jobs import launcher
from fedcore.jobs.process import run_local
from fedcore.store import Store
from tests.support.cluster import two_nodes
from tests.support.jobs import recorded, wait_for
from tests.support.web.browser import Server, Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(3600)]
DEADLINE = 1500


def problems(store: Store) -> list[str | None]:
    """Why runs cannot start, for each node that the page knows."""
    view = nodes.read(store)
    return [node.problem for node in view.nodes] if view else []


def test_try_it_on_a_cluster(empty_server: Server, tab: Tab, tmp_path: Path) -> None:
    page, store = tab.page, Store(empty_server.db)
    with two_nodes(tmp_path) as cluster:
        arguments = ["fedcore", "worker", "--ray", cluster.address, "--db", str(store.path)]
        worker = launcher.start_detached(arguments, tmp_path / "worker.log")
        try:
            wait_for(lambda: problems(store) == [None, None], DEADLINE)
            page.goto(empty_server.url)
            page.get_by_role("button", name="Try it").click()
            page.wait_for_url("**/live?id=*")
            page.goto(f"{empty_server.url}/?queue=true")
            nodes = page.get_by_role("table", name="Nodes")
            for name in ("alpha", "beta"):
                row = nodes.get_by_role("row").filter(has_text=name)
                expect(row).to_contain_text("ready")
                expect(row).to_contain_text("run ", timeout=1000 * DEADLINE)
            runs = store.runs.of_experiments([1])
            wait_for(lambda: all(r.ended for r in store.runs.of_experiments([1])), DEADLINE)
            ended = store.runs.of_experiments([1])
            assert {(r.state, r.status_text) for r in ended} == {("done", None)}
            assert {r.device for r in ended} == {"alpha/cpu", "beta/cpu"}
            page.goto(f"{empty_server.url}/run?id={runs[0].id}")
            expect(page.get_by_text(f"attempt 1, {ended[0].device}")).to_be_visible()
        finally:
            worker.terminate()
            worker.wait(60)

    local_store = Store(tmp_path / "here.db")
    local_store.prepare()
    configs = store.runs.configs([r.id for r in runs])
    _, outcomes = run_local(
        local_store, store.experiments.get(1).config, list(configs.values()), device="cpu"
    )
    assert set(outcomes.values()) == {"done"}
    for there, local in zip(configs, outcomes, strict=True):
        assert recorded(local_store.path, local) == recorded(store.path, there), configs[there].method.name
