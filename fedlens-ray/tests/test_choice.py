"""The cluster that was chosen on the page: the dashboard's worker joins it, or says why it cannot."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fedlens_ray import connection, runs

from fedcore.base.errors import FedLensError
from fedcore.jobs.supervisor import SupervisorLock
from fedcore.store import Store

HEAD = "10.0.0.1:6379"


def test_a_choice_is_kept_until_it_is_left(db: Path):
    store = Store(db)
    assert connection.chosen(store.path) is None
    connection.choose(store.path, f" {HEAD} ")
    assert connection.chosen(Store(db).path) == (HEAD, None)
    connection.choose(store.path, "")
    assert connection.chosen(store.path) == ("auto", None)
    connection.choose(store.path, HEAD, 4)
    assert connection.chosen(store.path) == (HEAD, 4)
    assert connection.chosen(db.with_name("other.db")) is None, "it has the same folder of artifacts"
    connection.leave(store.path)
    assert connection.chosen(store.path) is None


def test_a_damaged_number_of_devices_is_one(db: Path):
    path = connection._file(db, connection.CHOICE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"address": "auto", "over": "many"}')
    assert connection.chosen(Store(db).path) == ("auto", None)


@pytest.mark.parametrize("address", ["head", ":6379", "head:99999", "ray://head:1"])
def test_an_address_that_is_none_is_refused(db: Path, address: str):
    with pytest.raises(FedLensError, match="host:port") as refused:
        connection.choose(Store(db).path, address)
    assert refused.value.field == "ray" and connection.chosen(Store(db).path) is None


@pytest.mark.parametrize("content", ["", "[1]", '{"address": 7, "over": "4"}'])
def test_a_damaged_choice_is_none(db: Path, content: str):
    path = connection._file(db, connection.CHOICE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    assert connection.chosen(Store(db).path) is None


def test_a_problem_belongs_to_its_address(db: Path):
    store = Store(db)
    connection.choose(store.path, HEAD)
    connection.record_problem(store.path, HEAD, "nothing answers")
    assert connection.problem_of(store.path) == "nothing answers"
    connection.record_problem(store.path, HEAD, None)
    assert connection.problem_of(store.path) is None
    connection.record_problem(store.path, HEAD, "nothing answers")
    connection.choose(store.path, "auto")
    assert connection.problem_of(store.path) is None


def test_a_head_that_is_not_there_is_named_at_once():
    with socket.socket() as taken:  # bound and not listening: its port refuses
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(FedLensError, match=f"no head of a Ray cluster answers at 127.0.0.1:{port}"):
            connection._look_for_head(f"127.0.0.1:{port}")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
def test_another_service_is_no_head_whether_it_answers_or_not(answer, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor() as pool:
        serving = pool.submit(other.accept)
        if answer is not None:
            serving.add_done_callback(lambda done: done.result()[0].sendall(answer))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(FedLensError, match=rf"{address} \((another service than Ray's|timed out)"):
            connection._look_for_head(address)
        serving.result()[0].close()


def test_while_the_chosen_cluster_cannot_be_joined_runs_wait_and_tasks_go_on(db, queued, monkeypatch):
    store = Store(db)
    (run_id,) = queued()
    connection.choose(store.path, HEAD)
    started: list[str] = []
    problems: list[str | None] = []

    def refuse(address: str) -> None:
        raise FedLensError(f"nothing answers at {address}", "ray")

    class Watched(runs.ThisMachine):
        def claim(self, store, pool, running):
            started.append(pool)
            problems.append(connection.problem_of(store.path))
            connection.leave(store.path)  # so that the worker retires
            return super().claim(store, pool, running)

    monkeypatch.setattr(connection, "connect", refuse)
    monkeypatch.setattr(runs, "ThisMachine", Watched)
    assert runs.serve_chosen(db, idle=600.0) == 0
    assert problems == [f"nothing answers at {HEAD}"]
    assert started == ["tasks"] and store.runs.get([run_id])[0].status == "queued"
    assert SupervisorLock(db).is_free()


def test_a_worker_with_an_own_number_of_devices_stays_until_another_cluster_is_chosen(db, monkeypatch):
    store, served = Store(db), {}
    connection.choose(store.path, HEAD, 2)
    monkeypatch.setattr(connection, "connect", lambda address: None)
    monkeypatch.setattr(runs, "serve_on_cluster", lambda db, address, **given: served.update(given) or 0)
    assert runs.serve_chosen(db, idle=600.0, over=4) == 0
    assert served["over"] == 4 and not served["retire"]()
    connection.leave(store.path)
    assert served["retire"]() and runs.serve_chosen(db, idle=600.0) is None
