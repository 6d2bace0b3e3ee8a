import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.store import Recorder, Store, database, liveness
from fedcore.store.database import DatabaseFile, reading, writing
from fedcore.store.imports import experiments_json
from fedcore.store.jobs import JOB_TABLES, RUNS, TASKS
from fedcore.store.liveness import host_id, new_owner
from tests.support import fake_engine
from tests.support.jobs import execute_next

AT = {1: [3], 2: [3]}
ASKED: list[tuple[str, str, tuple[object, ...]]] = [
    ("experiments", "all listed titles tags data_folders", ()),
    ("experiments", "newest_with_runs", ("done",)),
    ("experiments", "find", ("@last",)),
    ("experiments", "get", (1,)),
    ("experiments", "several", ([1],)),
    ("runs", "active_experiments counts unfinished done digest_of_done newest_id peak_memory", ()),
    ("runs", "fitted count_after digest config environment error folder log_path checkpoints", (1,)),
    ("runs", "last_round", (1,)),
    ("runs", "get listed configs versions folders with_common_model of_experiments", ([1, 2],)),
    ("runs", "trained_on", (["rotated-digits"],)),
    ("runs", "trained_locally", (200,)),
    ("searches", "waiting", ()),
    ("searches", "draws", (1,)),
    ("searches", "by_uuid", ("a",)),
    ("queue", "ids runs slots needs", ()),
    ("queue", "in_turns", ([],)),
    ("queue", "memory_needs", ("cpu", 1)),
    ("jobs", "any_queued", ()),
    ("jobs", "next_run", (("auto",),)),
    ("jobs", "is_overtaken", ("somebody", ("auto",))),
    ("jobs", "owner_lives", ("somebody",)),
    ("tasks", "find", ("check", "a")),
    ("tasks", "get", (1,)),
    ("tasks", "recent listed", ("check",)),
    ("rounds", "seconds evaluated_of_runs mean_accuracy validated", ([1, 2],)),
    ("rounds", "clients evaluated", (1,)),
    ("rounds", "last_evaluated", ([1, 2], 10)),
    ("rounds", "mean_accuracy_at", (AT,)),
    ("rounds", "scores", ([1, 2], "personal_mean")),
    ("rounds", "measured totals", ([1, 2], "train_loss")),
    ("cells", "entities class_counts own_accuracy", (1,)),
    ("cells", "kinds of_runs", ([1, 2],)),
    ("cells", "at_rounds coded own_and_global", (AT,)),
    ("cells", "on_kinds", (AT, ["classes"])),
    ("diagnostics", "names", (1,)),
    ("diagnostics", "means", ([1, 2], "alpha")),
    ("diagnostics", "of_run", (1, "alpha")),
    ("diagnostics", "at_round", (1, "alpha", 3)),
    ("saved_views", "of_page", ("compare",)),
]
"""The subject, the queries, and what they are asked with."""


def asking(query: str, given: tuple[object, ...]) -> Callable[[Store], object]:
    def ask(store: Store) -> object:
        found = attrgetter(query)(store)(*given)
        return list(found) if isinstance(found, Iterator) else found

    return ask


QUERIES = {
    f"{of}.{name}": asking(f"{of}.{name}", given) for of, names, given in ASKED for name in names.split()
}
QUERIES |= {
    "experiments.to_json": lambda store: experiments_json(DatabaseFile(store.path), [1]),  # without its check
    "runs.twins": lambda store: store.runs.twins([store.runs.config(1)], ["a b"], "c"),
    "tasks.folder": lambda store: store.tasks.folder("check", "a", 1),
    "jobs.live": lambda store: [store.jobs.live(table) for table in JOB_TABLES],
    "jobs.orphans": lambda store: [store.jobs.orphans(table) for table in JOB_TABLES],
}
"""A call of every query."""

CHANGES = {
    "experiments": {"create", "extend", "edit", "delete", "clone"},
    "runs": {"stop", "stop_others_of_method", "resume", "mark", "delete"},
    "queue": {"move", "set_slots"},
    "jobs": {"claim", "beat", "reconcile"},
    "tasks": {"submit", "stop", "delete", "claim"},
    "imports": {"csv", "json", "database", "file"},
    "integrity": {"findings", "require", "require_rounds", "warning", "watched"},
    "saved_views": {"save", "delete"},
    "searches": {"add_draws", "conclude"},
}
"""Methods that write: by experiment, run or task, found by its key; and those that read all to check it."""

LARGE = ("accuracy", "scores", "client_rounds", "diagnostics", "rounds", "entities")


@pytest.fixture
def trained(db, queued):
    for _ in queued(rounds=4, seeds=(1, 2)):
        assert execute_next(db, handler=fake_engine.training) == "done"
    Store(db).tasks.submit("check", "a", {})
    return db


def test_every_query_is_among_those_whose_plans_are_read(db):
    methods = {
        f"{subject}.{name}"
        for subject, part in vars(Store(db)).items()
        for name in dir(part)
        if not name.startswith("_")
        and subject not in ("path", "_file")
        and name not in CHANGES.get(subject, ())
    }
    assert methods == set(QUERIES)


def statements_of(query: Callable[[Store], object], db: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The SELECTs that a query sends, with their parameters filled in."""
    sent: list[str] = []
    connect = database.read_only

    def traced(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_trace_callback(sent.append)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(database, "read_only", traced)
        query(Store(db))
    return sent


@pytest.mark.parametrize("analysed", [False, True])
def test_no_query_scans_a_large_table(trained, analysed, monkeypatch):
    """SEARCH uses an index or a primary key; SCAN reads everything."""
    if analysed:  # the planner decides otherwise once it has seen the sizes
        with writing(trained) as connection:
            connection.execute("ANALYZE")
    found = [fault for name in QUERIES for fault in faults_of_plans(name, trained, monkeypatch)]
    assert not found, "\n".join(found)


def faults_of_plans(name: str, db: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What is wrong with the plans of one query's statements."""
    statements = statements_of(QUERIES[name], db, monkeypatch)
    if not statements:
        yield f"{name} asks nothing"
    aliases = {"a": "accuracy", "m": "entities", "t": "entities"}
    for statement in statements:
        with reading(db) as connection:
            plan = [row["detail"] for row in connection.execute("EXPLAIN QUERY PLAN " + statement)]
        scanned = {aliases.get(step.split()[1], step.split()[1]) for step in plan if step.startswith("SCAN")}
        searched = "accuracy" not in statement or any("SEARCH a" in step for step in plan)
        if not plan or scanned & set(LARGE) or not searched:
            yield f"{name}: {plan}"


def test_the_check_of_plans_would_catch_a_scan(trained):
    with reading(trained) as connection:
        plan = connection.execute("EXPLAIN QUERY PLAN SELECT * FROM accuracy WHERE round=3").fetchall()
    assert plan[0]["detail"].startswith("SCAN accuracy")


@pytest.mark.parametrize(("table", "index"), [(RUNS, "runs_live"), (TASKS, "tasks_status")])
def test_looking_for_live_work_uses_its_index(trained, table, index):
    with reading(trained) as connection:
        (plan,) = connection.execute("EXPLAIN QUERY PLAN " + table.live).fetchall()
    assert index in plan["detail"]


def test_the_pulse_of_one_experiment_reads_no_others(trained, monkeypatch):
    (statement,) = statements_of(QUERIES["runs.digest"], trained, monkeypatch)
    with reading(trained) as connection:
        (plan, *_) = connection.execute("EXPLAIN QUERY PLAN " + statement).fetchall()
    assert plan["detail"].startswith("SEARCH r ")


def test_curves_agree_with_the_cells(trained):
    for point in Store(trained).rounds.mean_accuracy([1, 2]):
        cells = Store(trained).cells.coded({point.run_id: [point.round]})
        accuracies = [c.correct / c.total for c in cells if c.model == c.test_set]
        assert point.personal_mean == pytest.approx(sum(accuracies) / 3)
        assert point.personal_worst == min(accuracies)
        assert point.global_mean == pytest.approx(sum(c.correct / c.total for c in cells if c.model == 0) / 3)
    assert [(p.run_id, p.round) for p in Store(trained).rounds.mean_accuracy([1, 2])] == [
        (r, t) for r in (1, 2) for t in range(5)
    ]


def test_own_accuracy_is_the_diagonal(trained):
    rows = Store(trained).cells.own_accuracy(1)
    assert [(r.round, r.client) for r in rows] == [(t, c) for t in range(5) for c in (1, 2, 3)]
    diagonal = [c for c in Store(trained).cells.coded({1: [2]}) if c.model == c.test_set]
    assert [r.correct for r in rows if r.round == 2] == [c.correct for c in diagonal]
    with writing(trained) as connection:  # client 2 takes no part in round 3, and nobody knows of round 4
        connection.execute("DELETE FROM client_rounds WHERE run_id=1 AND (round=4 OR round=3 AND client=2)")
    took_part = Store(trained).cells.own_accuracy(1, participants=True)
    assert took_part == [r for r in rows if (r.round, r.client) != (3, 2)]


def test_cells_by_name_and_at_chosen_rounds(trained):
    everything = Store(trained).cells.at_rounds({1: range(5), 2: range(5)})
    chosen = Store(trained).cells.at_rounds({1: [2], 2: [4]})
    assert chosen == [c for c in everything if (c.run_id, c.round) in {(1, 2), (2, 4)}]
    diagonal = Store(trained).cells.own_and_global({1: [2], 2: [4]})
    assert diagonal == [c for c in chosen if c.model in (c.test_set, "global")]
    codes = {r: {e.name: e.entity for e in Store(trained).cells.entities(r)} for r in (1, 2)}
    assert Store(trained).cells.coded({2: [4], 1: [2]}).tolist() == [
        (c.run_id, codes[c.run_id][c.model], codes[c.run_id][c.test_set], c.correct, c.total) for c in chosen
    ]
    assert [cell for part in Store(trained).cells.of_runs([1, 2]) for cell in part] == [
        (c.run_id, c.round, codes[c.run_id][c.model], codes[c.run_id][c.test_set], c.correct, c.total, c.loss)
        for c in everything
    ]
    assert {(c.model, c.model_kind) for c in chosen} == {
        ("global", "global"),
        *((f"client-{i}", "client") for i in (1, 2, 3)),
    }
    assert {c.domain for c in chosen} == {"photo"}


def test_diagnostics_and_participants(trained):
    assert Store(trained).diagnostics.names(1) == ["alpha", "drift"]
    assert [(d.round, d.client_a, d.client_b) for d in Store(trained).diagnostics.of_run(1, "alpha")] == [
        (t, 1, 2) for t in range(5)
    ]
    assert [(r.round, r.client) for r in Store(trained).rounds.clients(1)] == [
        (t, c) for t in range(1, 5) for c in (1, 2, 3)
    ]
    assert [r["round"] for r in Store(trained).rounds.measured([2])] == [0, 1, 2, 3, 4]


def test_round_tokens_change_with_every_round(db, queued):
    (run_id,) = queued(rounds=3)
    tokens = [Store(db).runs.versions([run_id])]

    def look(event: object) -> None:
        tokens.append(Store(db).runs.versions([run_id]))

    execute_next(db, handler=fake_engine.training, listen=look)
    tokens.append(Store(db).runs.versions([run_id]))
    counts = [t[run_id][1] for t in tokens]
    assert counts == sorted(counts) and set(counts) == {0, 1, 2, 3}
    assert tokens[-1][run_id][:2] == ("done", 3)


def set_row(db, run_id: int, **values: object) -> None:
    with writing(db) as connection:
        connection.execute(
            f"UPDATE runs SET {', '.join(f'{k}=:{k}' for k in values)} WHERE id={run_id}", values
        )


FUTURE = 4e9
"""A time long after any test."""


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"status_text": "just claimed"}, "running"),
        ({"heartbeat_at": 0}, "interrupted"),  # claimed, no process, long ago
        ({"heartbeat_at": 0, "status": "stopping"}, "stopped"),
        ({"heartbeat_at": FUTURE}, "interrupted"),  # written before the clock was set back
        ({"owner": "elsewhere/1", "pid": 2**22 + 1}, "running"),  # on another machine
        ({"owner": "elsewhere/1", "pid": 2**22 + 1, "heartbeat_at": 0}, "interrupted"),
        ({"owner": "elsewhere/1", "pid": 2**22 + 1, "heartbeat_at": FUTURE}, "interrupted"),
    ],
)
def test_state_is_the_truth_and_status_what_was_written(db, queued, values, state):
    (run_id,) = queued()
    Store(db).jobs.claim(new_owner(), "cpu")
    set_row(db, run_id, **values)
    (run,) = Store(db).runs.get([run_id])
    assert run.state == state
    assert run.status == values.get("status", "running")


@pytest.mark.parametrize("beat", [0, FUTURE], ids=["a sleeping laptop", "a clock set back"])
def test_a_run_lives_while_its_process_holds_its_lock_whatever_the_clock_says(db, queued, beat):
    (run_id,) = queued()
    claimed = Store(db).jobs.claim(new_owner(), "cpu")
    liveness.hold(db, claimed.owner)
    set_row(db, run_id, pid=os.getpid(), heartbeat_at=beat)
    assert Store(db).runs.get([run_id])[0].state == "running"
    set_row(db, run_id, heartbeat_at=time.time())
    liveness.let_go(db, claimed.owner, keep_file=True)
    assert Store(db).runs.get([run_id])[0].state == "interrupted"  # however fresh the heartbeat is
    assert Store(db).jobs.reconcile() == [run_id]
    assert not liveness.lock_path(db, claimed.owner).exists()
    assert new_owner().startswith(host_id() + "/")


def test_unknown_ids_are_named_or_left_out(db, queued):
    queued()
    assert [r.id for r in Store(db).runs.get([1, 77])] == [1]
    with pytest.raises(FedLensError, match="no run 77"):
        Store(db).runs.config(77)
    with pytest.raises(FedLensError, match="no experiment 77"):
        Store(db).experiments.get(77)


def test_a_damaged_text_hides_no_other_experiment_from_menus(trained):
    with writing(trained) as database:
        database.execute("UPDATE experiments SET tags=CAST(x'5B226D696E65222C22FF225D' AS TEXT)")
    assert Store(trained).experiments.tags() == ["mine"]


def test_a_thousand_ids_are_one_parameter(trained):
    assert len(json.dumps(list(range(5000)))) > 999
    assert [r.id for r in Store(trained).runs.get(range(5000))] == [1, 2]


def test_the_named_view_for_other_tools_tells_a_client_from_the_domain_of_the_same_name(db):
    with Recorder(db, method="mine", seed=1, domain_sets=["rot0"]) as run:
        run.round(1, {("global", "rot0"): (3, 4)}, split="validation")
        run.round(1, {("client", "client"): (1, 4)})
    with writing(db) as database:
        database.execute("UPDATE entities SET name='rot0' WHERE name='client'")
    with reading(db) as connection:
        rows = connection.execute(
            "SELECT split, stage, model, model_kind, test_set, test_set_kind, correct FROM accuracy_named "
            "WHERE run_id=? ORDER BY correct",
            [run.run_id],
        ).fetchall()
    assert [tuple(row) for row in rows] == [
        ("test", "after_aggregation", "rot0", "client", "rot0", "client", 1),
        ("validation", "after_aggregation", "global", "global", "rot0", "domain", 3),
    ]
