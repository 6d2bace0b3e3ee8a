"""What a queued run asks of Ray, and which run starts on the devices that Ray has reserved."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fedlens_ray import nodes, on_node
from fedlens_ray.nodes import NodeState
from fedlens_ray.reservations import RESERVED_SECONDS, Request, Reservations
from fedlens_ray.runs import POOL, Cluster, request_of

from fedcore.base.errors import Elsewhere, FedLensError
from fedcore.jobs.launcher import ThisMachine
from fedcore.store import Store
from tests.support.cluster import CARD, GIB, LARGE, RUN, SMALL, Ray

TINY = replace(SMALL, node=replace(SMALL.node, id="4", name="tiny", memory=GIB))
TWIN = replace(SMALL, node=replace(SMALL.node, id="3", name="twin"))


class Watch:
    """A stand-in for the thread that watches a cluster; ``look`` is what it does every half second."""

    def __init__(self, *states: NodeState, room: int = 99) -> None:
        self._states = states
        self.ray = Ray(states, room)
        self.rested: list[str] = []

    def states(self) -> Sequence[NodeState]:
        return self._states

    def rest(self, node_id: str, reason: str) -> None:
        self.rested.append(node_id)

    def look(self) -> None:
        self.listen(self._states)


def cluster(db: Any, *states: NodeState, room: int = 99, over: int | None = None) -> tuple[Cluster, Watch]:
    watch = Watch(*states, room=room)
    made = Cluster(Store(db), watch, over)
    watch.look()
    return made, watch


def set_config(db: Any, name: str, value: str) -> None:
    with Store(db).queue._file.writing() as database:
        database.execute("UPDATE runs SET config=json_set(config, ?, ?)", [name, value])


@pytest.mark.parametrize(
    ("changes", "states", "expected"),
    [
        ({}, [SMALL, TWIN], Request(4, memory=16 * GIB)),
        (
            {},
            [SMALL, LARGE],
            Request(32, 1.0, without=frozenset("1")),
        ),  # the CPU is for those that ask for it
        ({"requested_device": "cpu"}, [SMALL, LARGE], Request(4, memory=16 * GIB)),
        ({"requested_device": "small"}, [SMALL, LARGE], Request(4, memory=16 * GIB, without=frozenset("2"))),
        (
            {"requested_device": "large/cpu"},
            [SMALL, LARGE],
            Request(32, memory=32 * GIB, without=frozenset("1")),
        ),
        ({"requested_device": "GPU-1"}, [SMALL, LARGE], Request(32, 1.0, without=frozenset("1"))),
        ({"requested_device": "GPU-9"}, [SMALL, LARGE], "a node with the device GPU-9"),
        ({"needed_memory": 5 * GIB}, [SMALL, TWIN], Request(4, memory=5 * GIB)),
        ({"needed_memory": 5 * GIB + 1}, [SMALL, TWIN], Request(4, memory=5 * GIB + 2**28)),
        ({"needed_memory": 99 * GIB}, [SMALL], Request(4, memory=32 * GIB)),  # it may fit after all
        ({"needed_memory": 5 * GIB}, [SMALL, TINY], Request(4, memory=5 * GIB, without=frozenset("4"))),
        ({"needs": ("/data/pacs",)}, [SMALL, LARGE], Request(32, 1.0, without=frozenset("1"))),
        ({"needs": ("/data/pacs",)}, [SMALL], "a node that has the folder /data/pacs"),
        ({"needs": ("/data/new",)}, [LARGE], "a node that has the folder /data/new"),  # not yet looked for
        # an autoscaler learns from these that a node is missing
        ({}, [replace(SMALL, problem="it rests")], Request(1, without=frozenset("1"))),
        ({"requested_device": "gpu"}, [SMALL], Request(1, 1.0, without=frozenset("1"))),
    ],
)
def test_what_a_run_asks_of_ray(changes: dict[str, Any], states: list[NodeState], expected: object) -> None:
    assert request_of(RUN._replace(**changes), states, {}) == expected


def test_runs_at_once_and_their_memory_divide_a_device():
    four = replace(LARGE, node=replace(LARGE.node, gpus=4))
    assert request_of(RUN, [four], {"nodes/gpu": 2}) == Request(4, 0.5)
    assert request_of(RUN._replace(needed_memory=60 * GIB), [four], {"nodes/gpu": 2}) == Request(4, 0.75)
    assert request_of(RUN._replace(needed_memory=5 * GIB), [four], {"nodes/gpu": 8}) == Request(1, 0.125)
    on_cpu = RUN._replace(requested_device="cpu", needed_memory=GIB)
    assert request_of(on_cpu, [SMALL, LARGE], {"nodes/cpu": 2}) == Request(2, memory=GIB)


def test_a_run_over_several_devices_asks_for_them_at_once():
    assert request_of(RUN, [SMALL, LARGE], {}, over=4) == Request(32, 1.0, parts=4, without=frozenset("1"))
    assert request_of(RUN, [SMALL, TWIN], {}, over=4) == Request(1, parts=4)
    assert str(Request(32, 1.0, parts=4)) == "4 times 1 GPU and 32 CPUs"
    assert str(Request(4, 0.5, 2 * 10**9)) == "0.5 of a GPU and 4 CPUs and 2.0 GB of memory"


def test_a_run_is_claimed_once_ray_has_reserved_its_devices(db, queued):
    first, second = queued(seeds=(1, 2))
    made, watch = cluster(db, SMALL, TWIN, room=1)
    claimed = made.claim(Store(db), POOL, 0)
    assert claimed is not None and claimed.id == first
    assert Store(db).runs.get([first])[0].device == "small/cpu"
    assert made.claim(Store(db), POOL, 1) is None
    (waiting,) = Store(db).runs.get([second])
    assert waiting.status == "queued", "another job of the cluster may hold the rest for hours"
    watch.look()
    held = "4 CPUs and 17.2 GB of memory, which other runs or jobs of the cluster hold"
    assert nodes.read(Store(db)).waits == {second: held}

    made.reservations.give_back(made._taken.pop(claimed.owner))
    watch.look()
    assert len(watch.ray.groups) == 1, "the reservation of the first run serves the second"
    claimed = made.claim(Store(db), POOL, 0)
    assert claimed is not None and claimed.id == second


def test_a_reservation_that_no_run_needs_is_withdrawn(db, queued):
    (run_id,) = queued()
    made, watch = cluster(db, SMALL)
    assert len(watch.ray.groups) == 1
    Store(db).runs.stop([run_id])
    assert made.claim(Store(db), POOL, 0) is None, "it was stopped after the last look"
    watch.look()
    assert watch.ray.groups == []


def test_a_supervisor_that_starts_nothing_holds_nothing(db, queued):
    """It hands over to another one, or its disk is full; the devices are then free for others."""
    queued()
    made, watch = cluster(db, SMALL)
    made._asked -= 10
    watch.look()
    assert watch.ray.groups == []
    assert made.claim(Store(db), POOL, 0) is None
    watch.look()
    assert made.claim(Store(db), POOL, 0) is not None


@pytest.mark.parametrize("seconds", [0, RESERVED_SECONDS + 1])
def test_other_jobs_of_the_cluster_get_their_turn_after_a_minute(db, queued, seconds):
    queued(seeds=(1, 2))
    made, watch = cluster(db, SMALL)
    reservation = made._taken.pop(made.claim(Store(db), POOL, 0).owner)
    reservation.since -= seconds
    made.reservations.give_back(reservation)
    watch.look()
    (left,) = watch.ray.groups
    assert (left is reservation.group) is (seconds == 0)


def test_a_reservation_that_another_job_removes_is_asked_for_again(db, queued):
    queued()
    made, watch = cluster(db, SMALL)
    watch.ray.remove(watch.ray.groups[0])
    watch.look()
    assert made.claim(Store(db), POOL, 0) is None
    watch.look()
    assert made.claim(Store(db), POOL, 0) is not None and len(watch.ray.groups) == 1


def test_pages_say_what_ray_answers(db, queued):
    (run_id,) = queued()
    cluster(db, SMALL, over=2, room=0)
    said = nodes.read(Store(db)).waits[run_id]
    assert said == "2 times 1 CPU, which other runs or jobs of the cluster hold"
    cluster(db, SMALL, over=5)
    said = nodes.read(Store(db)).waits[run_id]
    assert said == "5 times 1 CPU; the nodes that can train it have 4"
    _, watch = cluster(db, SMALL)
    watch.ray.nodes = []  # for example, all of them are smaller
    set_config(db, "$.seed", "1")
    reservations = Reservations(watch.ray)
    reservations.reconcile([Request(64)])
    assert reservations.waits_for(Request(64)) == "64 CPUs, which no node has that can train it"
    cluster(db, replace(SMALL, problem="it rests"))
    assert nodes.read(Store(db)).waits[run_id] == "a node that can be used"


def test_a_run_whose_data_no_node_has_holds_up_none(db, queued):
    set_for, other = queued(rounds=1), queued(rounds=2)
    with Store(db).queue._file.writing() as database:
        database.execute(
            "UPDATE runs SET config=json_set(config, '$.data.root', '/data/new') WHERE id=?", set_for
        )
    made, _ = cluster(db, SMALL)
    claimed = made.claim(Store(db), POOL, 0)
    assert claimed is not None and claimed.id == other[0]
    assert nodes.read(Store(db)).waits[set_for[0]] == "a node that has the folder /data/new"


def test_only_so_many_reservations_wait_at_once(db, queued):
    queued(seeds=tuple(range(1, 25)))
    _, watch = cluster(db, SMALL, room=0)
    assert len(watch.ray.groups) == 16
    assert len(nodes.read(Store(db)).waits) == 16, "the others wait for these"


def test_experiments_of_one_priority_take_turns(db, queued):
    first, second = queued(seeds=(1, 2, 3)), queued(seeds=(4, 5, 6))
    with Store(db).queue._file.writing() as database:
        database.execute("UPDATE runs SET priority=1 WHERE id=?", [first[2]])
    made, watch = cluster(db, SMALL)
    claimed = []
    while claim := made.claim(Store(db), POOL, 0):
        claimed.append(claim.id)
        watch.look()
    assert claimed == [first[2], second[0], first[0], second[1], first[1], second[2]]


def test_a_run_goes_back_to_the_node_that_failed_only_if_no_other_can_train_it(db, make):
    store = Store(db)
    anywhere, on_small = (
        store.experiments.create(make(), device=device).run_ids[0] for device in ("auto", "small")
    )
    made, watch = cluster(db, SMALL, TWIN)
    for run in (anywhere, on_small):
        made._failed(run, SMALL.node, Elsewhere("the node small is gone"))
    watch.look()
    claims = {claim.id: claim for _ in range(2) if (claim := made.claim(store, POOL, 0))}
    assert store.runs.get([anywhere])[0].device == "twin/cpu" and watch.rested == ["1", "1"]
    assert store.runs.get([on_small])[0].device == "small/cpu" and set(claims) == {anywhere, on_small}


def test_no_run_starts_on_a_node_that_rests_since_the_last_look(db, queued):
    queued()
    made, watch = cluster(db, SMALL)
    watch._states = (replace(SMALL, problem="rests after a fault: its disk is full"),)
    assert made.claim(Store(db), POOL, 0) is None


def test_a_node_that_leaves_between_claim_and_start_gives_the_run_back(db, queued):
    queued()
    made, watch = cluster(db, SMALL)
    claimed = made.claim(Store(db), POOL, 0)
    watch._states = ()
    with pytest.raises(OSError, match="has left"):
        made.launch(claimed, POOL)
    watch.look()
    assert watch.ray.groups == []


def test_a_run_of_this_process_over_more_devices_than_the_cluster_has_is_refused(monkeypatch):
    monkeypatch.setattr(on_node, "connect", lambda address: None)
    monkeypatch.setattr(on_node, "list_nodes", lambda ray: [SMALL.node, TWIN.node])
    spread = on_node.over_nodes("auto", 6)
    assert (spread.width, spread.sharers, spread.memory) == (6, 4, 32 * GIB)
    with pytest.raises(FedLensError, match="the cluster has 8 CPUs, not 9; give --over 8"):
        on_node.over_nodes("auto", 9)


def test_a_run_over_more_gpus_than_this_machine_has_is_refused(monkeypatch):
    monkeypatch.setattr("fedcore.base.devices.list_devices", lambda: [CARD, *SMALL.report.devices])
    with pytest.raises(FedLensError, match="this machine has 1 GPU, not 2; choose whole runs") as refused:
        ThisMachine(over=2)
    assert refused.value.field == "over"
