"""A node that cannot be reached for a minute: its run does not stay *running*, and keeps its rows.

The node is in a network namespace, whose link to the head is taken down. That needs root; where networks
cannot be made, the test fails, as one that did not run is none that passed.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fedlens_ray import nodes
from fedlens_ray.nodes import ClusterWatch

from tests.support.cluster import queue_fedot, ray_start, settings, step_until, supervisor_of, usable
from tests.support.jobs import execute_next, recorded, row, wait_for

ROUNDS = 60
LOST_SECONDS = 60.0
HEAD, FAR, PORT = "10.213.77.1", "10.213.77.2", 26379
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_connection_that_is_lost_for_a_minute_loses_no_row(db, tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "SILENT_SECONDS", 10.0)
    (run_id,) = queue_fedot(db, ROUNDS)
    with (
        head_and_link(tmp_path) as link,
        far_node(tmp_path) as far,
        watching() as watch,
        supervisor_of(db, watch) as supervisor,
    ):
        step_until(supervisor, lambda: row(db, run_id).rounds_done >= 2)
        lost = time.monotonic()
        ip("link", "set", link, "down")
        step_until(supervisor, lambda: "has not answered for 10 s" in problem_of(watch))
        step_until(supervisor, lambda: time.monotonic() - lost > LOST_SECONDS)
        ip("link", "set", link, "up")
        step_until(supervisor, lambda: row(db, run_id).ended or row(db, run_id).status == "queued")
        if row(db, run_id).state != "done":
            done = row(db, run_id).rounds_done
            assert 2 <= done < ROUNDS
            again = f"; after round {done} it was queued again by itself"
            (said,) = (n.message for n in row(db, run_id).notices if n.message.endswith(again))
            assert said.removesuffix(again) in (
                "the node far is gone",
                "the connection to the node far was lost, and with it what the node had sent",
            )
            far.wait(120)  # Ray ends a node that was thought dead as soon as it hears so
            with far_node(tmp_path):
                step_until(supervisor, lambda: row(db, run_id).ended)
    assert row(db, run_id).state == "done"

    (local_id,) = queue_fedot(db, ROUNDS)
    assert execute_next(db, number=local_id) == "done"
    assert recorded(db, run_id) == recorded(db, local_id)


def problem_of(watch: ClusterWatch) -> str:
    return "; ".join(state.problem or "" for state in watch.states())


@contextmanager
def watching() -> Iterator[ClusterWatch]:
    """A watch over the cluster, once runs may start on its node."""
    watch = ClusterWatch(f"{HEAD}:{PORT}")
    try:
        wait_for(lambda: usable(watch) == ["far"], 300)
        yield watch
    finally:
        watch.close()


@contextmanager
def head_and_link(cache: Path) -> Iterator[str]:
    """Start a head without CPUs and make the namespace of a node; yields this side of the link to it."""
    outside, inside, space = "fedlens-out", "fedlens-in", "fedlens-far"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings(cache).items():
            patch.setenv(name, value)
        try:
            ip("netns", "add", space)
            ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
            ip("address", "add", f"{HEAD}/30", "dev", outside)
            ip("link", "set", outside, "up")
            ip("-n", space, "address", "add", f"{FAR}/30", "dev", inside)
            ip("-n", space, "link", "set", inside, "up")
            ip("-n", space, "link", "set", "lo", "up")
            head = ["--head", "--node-ip-address", HEAD, "--port", str(PORT), "--num-cpus", "0"]
            with ray_start(cache / "head.log", *head, "--include-dashboard", "false"):
                yield outside
        finally:
            for command in (["link", "delete", outside], ["netns", "delete", space]):
                subprocess.run(["ip", *command], check=False, capture_output=True)


@contextmanager
def far_node(cache: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the node ``far``, with one CPU, behind the link."""
    far = ["--address", f"{HEAD}:{PORT}", "--node-ip-address", FAR, "--num-cpus", "1", "--node-name", "far"]
    before = ("ip", "netns", "exec", "fedlens-far")
    with ray_start(cache / "far.log", *far, before=before) as process:
        yield process


def ip(*arguments: str) -> None:
    """Call ``ip``, as root."""
    try:
        subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.fail(f"this test needs the command `ip` (Debian: iproute2), on Linux, not {os.name}")
    except subprocess.CalledProcessError as error:
        pytest.fail(f"this test needs root and namespaces: ip {' '.join(arguments)}: {error.stderr}")
