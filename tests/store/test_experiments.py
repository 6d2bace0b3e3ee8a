import pytest

from fedcore.base.errors import FedLensError
from fedcore.config import MethodEntry
from fedcore.methods import registry
from fedcore.store import Store, runs
from fedcore.store.damage import findings
from fedcore.store.database import reading
from fedcore.store.liveness import new_owner
from tests.support import fake_engine, fill
from tests.support.jobs import execute_next

OWN_METHOD = """
from fedcore.methods import About, Method, method

@method
class Mine(Method):
    name, about = "mine-for-the-store", About("Mine", "nowhere", "A test.")
"""


def states(db) -> list[str]:
    return [r.state for r in Store(db).runs.of_experiments([1])]


def train(db) -> str:
    return execute_next(db, handler=fake_engine.training)


def test_create_queues_every_run_with_its_label(db, make):
    experiment = make(methods=2, seeds=(1, 2))
    created = Store(db).experiments.create(experiment)
    (row,) = Store(db).experiments.all()
    assert (row.id, row.name, row.config) == (created.experiment_id, "a test", experiment)
    assert [(r.id, r.label, r.seed, r.state) for r in row.runs] == [
        (1, "FedOT", 1, "queued"),
        (2, "PromptFL", 1, "queued"),
        (3, "FedOT", 2, "queued"),
        (4, "PromptFL", 2, "queued"),
    ]
    assert row.runs[0].group_hash == row.runs[2].group_hash != row.runs[1].group_hash
    assert Store(db).queue.ids() == [1, 2, 3, 4]


def test_an_unknown_method_inserts_nothing(db, make):
    wrong = make().model_copy(update={"methods": (MethodEntry(name="fedott"),)})
    with pytest.raises(FedLensError, match="did you mean 'fedot'") as caught:
        Store(db).experiments.create(wrong)
    assert caught.value.field == "methods.0.name"
    assert Store(db).experiments.all() == []


def test_the_file_of_an_own_method_is_kept_with_the_run(db, make, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN_METHOD)
    registry.load_file(file)
    try:
        experiment = make().model_copy(update={"methods": (MethodEntry(name="mine-for-the-store"),)})
        (run_id,) = Store(db).experiments.create(experiment).run_ids
    finally:
        registry._METHODS.pop("mine-for-the-store")
        registry._FILES.pop("mine-for-the-store")
    assert Store(db).runs.config(run_id).method.file == str(file)
    assert Store(db).experiments.all()[0].config.methods[0].file == str(file)


def test_stop_of_a_queued_run_and_of_a_running_one(db, queued):
    a, b = queued(seeds=(1, 2))
    claimed = Store(db).jobs.claim(new_owner(), "cpu")
    assert claimed.id == a
    assert Store(db).runs.stop([a, b]) == [a, b]
    assert states(db) == ["stopping", "stopped"]
    assert Store(db).runs.stop([a, b]) == []
    claimed.finish("stopped")
    assert states(db) == ["stopped", "stopped"]


def test_resume_takes_what_has_ended_unfinished(db, queued):
    ids = queued(seeds=(1, 2, 3, 4))
    for outcome in ("done", "failed", "interrupted"):
        Store(db).jobs.claim("me", "cpu").finish(outcome, "a reason", "a traceback")
    Store(db).runs.stop([ids[3]])
    assert Store(db).runs.resume(ids) == ids[1:]
    assert states(db) == ["done", "queued", "queued", "queued"]
    assert Store(db).runs.get([ids[1]])[0].status_text is None
    assert Store(db).runs.error(ids[1]) is None


def test_retry_deletes_rounds_and_checkpoints(db, queued):
    (run_id,) = queued(rounds=3, fail_at=2)
    assert train(db) == "failed"
    folder = Store(db).runs.folder(run_id)
    assert (folder / "round-1.safetensors").exists()
    assert Store(db).runs.resume([run_id], restart=True) == [run_id]
    assert not folder.exists()
    (run,) = Store(db).runs.get([run_id])
    assert (run.state, run.rounds_done, run.last_test, run.started_at) == ("queued", 0, None, None)
    assert list(Store(db).cells.of_runs([run_id])) == [] and Store(db).cells.entities(run_id) == []


def test_retry_empties_the_folder_before_a_worker_can_take_the_run(db, queued, monkeypatch):
    (run_id,) = queued(rounds=3, fail_at=2)
    assert train(db) == "failed"
    seen, remove = [], runs.remove_folder

    def look(folder) -> None:
        seen.append(states(db))
        remove(folder)

    monkeypatch.setattr(runs, "remove_folder", look)
    assert Store(db).runs.resume([run_id], restart=True) == [run_id]
    assert (seen, states(db)) == ([["failed"]], ["queued"])


def test_edit_archive_and_delete(db, queued):
    queued(rounds=2)
    assert train(db) == "done"
    Store(db).experiments.edit(1, name="better", notes="why", tags=["x", "y"])
    (row,) = Store(db).experiments.all()
    assert (row.name, row.notes, row.tags) == ("better", "why", ("x", "y"))
    Store(db).experiments.edit(1, archived=True)
    assert Store(db).experiments.all() == []
    assert [e.archived for e in Store(db).experiments.all(include_archived=True)] == [True]
    Store(db).experiments.edit(1, archived=False)
    folder = Store(db).runs.folder(1)
    assert folder.exists()
    Store(db).experiments.delete(1)
    assert Store(db).experiments.all(include_archived=True) == []
    assert not folder.exists()
    with reading(db) as connection:
        for table in ("runs", "accuracy", "rounds", "scores", "entities", "client_rounds", "diagnostics"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0, table


def test_edit_refuses_an_empty_name_and_an_unknown_experiment(db, queued):
    queued()
    with pytest.raises(FedLensError, match="needs a name"):
        Store(db).experiments.edit(1, name="  ")
    with pytest.raises(FedLensError, match="no experiment 9"):
        Store(db).experiments.edit(9, notes="x")


def test_delete_refuses_while_a_run_is_running(db, queued):
    queued()
    Store(db).jobs.claim(new_owner(), "cpu")
    with pytest.raises(FedLensError, match="has 1 running run; stop first"):
        Store(db).experiments.delete(1)
    assert len(Store(db).experiments.all()) == 1


def test_a_number_is_given_once(db, queued):
    """A link or a note that names a deleted run must not show a later one, nor must that find its files."""
    before = queued(seeds=(1, 2))
    folder = Store(db).runs.folder(before[-1])
    folder.mkdir(parents=True)
    Store(db).experiments.delete(1)
    assert not folder.exists()
    after = queued(seeds=(1, 2))
    assert [e.id for e in Store(db).experiments.all()] == [2] and after == [3, 4]
    assert Store(db).runs.get(before) == []
    with pytest.raises(FedLensError, match="no run 2"):
        Store(db).runs.log_path(before[-1])
    with pytest.raises(FedLensError, match="no experiment 1"):
        Store(db).experiments.get(1)


def test_two_stores_in_one_folder_do_not_share_files(db, make):
    other = db.with_name("other.db")
    Store(other).prepare()
    folders = [Store(d).runs.folder(Store(d).experiments.create(make()).run_ids[0]) for d in (db, other)]
    assert folders[0].parent == folders[1].parent and folders[0] != folders[1]


def test_a_run_that_exists_is_taken_over_with_all_that_it_has_recorded(db):
    experiment = fill.an_experiment(methods=("fedot", "promptfl"), seeds=(1, 2), rounds=2)
    first, writers = fill.start(db, experiment)
    for writer in writers[:3]:
        fill.train(writer, environment={"code": "abc", "data": "d", "pixels": "p", "transfer": "t q"})
    writers[3].claim.finish("failed", "no reason")
    file = Store(db).runs.folder(1) / "round-2.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"state")
    store, configs = Store(db), list(Store(db).runs.configs(first.run_ids).values())
    renamed = configs[0].model_copy(
        update={"method": configs[0].method.model_copy(update={"label": "Mine", "config": {}})}
    )
    others = [c.model_copy(update={"keep_checkpoints": "all"}) for c in configs[:1]]
    others += [c.model_copy(update={"data": c.data.model_copy(update={"root": "/x"})}) for c in configs[:1]]
    assert store.runs.twins([renamed, *configs[1:], *others], ["d p t q"] * 6, "abc") == {0: 1, 1: 2, 2: 3}
    assert store.runs.twins(configs, ["d p t q", "d other t q", "d p", "d p t q"], "abc") == {0: 1}
    assert store.runs.twins(configs, ["d p t q"] * 4, "other code") == {}
    again = store.experiments.create(experiment, [renamed, *configs[1:]], twins={0: 1, 1: 2, 2: 3})
    rows = store.experiments.get(again.experiment_id).runs
    assert [(r.label, r.state, r.rounds_done) for r in rows] == [
        ("Mine", "done", 2),
        ("PromptFL", "done", 2),
        ("FedOT", "done", 2),
        ("PromptFL", "queued", 0),
    ]
    assert (
        rows[0].notices[-1].message
        == "taken over from run 1, which has the same config, seed, code and images"
    )
    with reading(db) as connection:
        assert findings(connection) == []
        for table in ("accuracy", "scores", "rounds", "client_rounds", "diagnostics", "entities"):
            theirs, ours = (
                [tuple(row)[1:] for row in connection.execute(f"SELECT * FROM {table} WHERE run_id={i}")]
                for i in (1, rows[0].id)
            )
            assert ours and ours == theirs, table
    copy = store.runs.folder(rows[0].id) / file.name
    store.experiments.delete(first.experiment_id)
    assert copy.read_bytes() == b"state", "the other one's files may go"
