"""What planned runs will take."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.engine.plan import Plan, plan
from fedcore.jobs import forecast
from fedcore.store import Store
from fedcore.store.damage import write_identity
from fedcore.store.runs import Runs
from tests.support import fill


def test_an_estimate_needs_a_precedent_for_every_run(filled: Path) -> None:
    finished = [r.id for r in Store(filled).runs.of_experiments([1])]
    configs = list(Store(filled).runs.configs(finished).values())
    seconds = forecast.seconds(forecast.precedents(filled), configs)
    took = sum(r.elapsed() or 0 for r in Store(filled).runs.of_experiments([1]))
    assert seconds is not None and sum(Store(filled).rounds.seconds(finished).values()) <= seconds <= took
    unknown = configs[0].model_copy(
        update={"backbone": configs[0].backbone.model_copy(update={"name": "RN50"})}
    )
    assert forecast.seconds(forecast.precedents(filled), [*configs, unknown]) is None


def test_what_a_run_does_once_is_not_multiplied_by_rounds_or_runs(db: Path) -> None:
    """Each run loads for 3 s, and the first encodes the images for 100 s more; a round takes 1.05 s."""
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=4)
    fill.done(db, experiment)
    seconds = Store(db).rounds.seconds([1, 2])
    assert seconds == {1: pytest.approx(4 * 1.05 + 0.25), 2: pytest.approx(4 * 1.05 + 0.25)}
    with closing(sqlite3.connect(db)) as connection, connection:
        for run, loading in ((1, 103), (2, 3)):
            took = loading + seconds[run]
            connection.execute("UPDATE runs SET started_at = finished_at - ? WHERE id = ?", [took, run])
    (run,) = Store(db).runs.configs([1]).values()
    past = forecast.precedents(db)
    longer = run.model_copy(update={"rounds": 100})
    assert forecast.seconds(past, [longer] * 3) == pytest.approx(3 * (3 + 100 * seconds[2] / 4), abs=0.01)
    assert forecast.seconds(past, [run.model_copy(update={"rounds": 0})]) == pytest.approx(3, abs=0.01)


def test_a_run_that_is_deleted_meanwhile_is_no_precedent(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two reads of the database, and between the database and the folder."""
    configs, everything = Runs.configs, forecast.precedents(filled)
    gone = max(Store(filled).runs.configs([r.id for r in Store(filled).runs.of_experiments([1])]))
    monkeypatch.setattr(
        Runs,
        "configs",
        lambda runs, ids, **options: {i: c for i, c in configs(runs, ids).items() if i != gone},
    )
    assert forecast.precedents(filled).seconds.keys() <= everything.seconds.keys()

    monkeypatch.setattr(Runs, "folders", lambda runs, ids: {i: Path(f"gone-{i}") for i in ids})
    assert forecast.precedents(filled).written == {}


def test_a_disk_without_room_for_the_runs_is_told_before_they_start(filled: Path, small_disk) -> None:
    db = small_disk.path / "runs.db"
    assert forecast.lack_of_room(db, forecast.Disk(10**6, True)) is None
    warning = forecast.lack_of_room(db, forecast.Disk(10**9, False))
    assert warning is not None and "at least 1.0 GB" in warning and "25 MB free" in warning


def database_size(planned: Plan) -> int:
    """What six clients and six domains record in every round, as this database has it: 7 x 12 + 30 cells."""
    return sum(36 * (r.rounds + 1) * (7 * 12 + 4 * 6 + 6) for r in planned.runs)


def test_the_disk_follows_the_number_of_runs_of_a_kind_that_never_ran(filled: Path) -> None:
    def size(seeds: int, keep: str = "last") -> int:
        changes = {"seeds": tuple(range(1, seeds + 1)), "keep_checkpoints": keep}
        planned = plan(Store(filled).experiments.get(1).config.model_copy(update=changes))
        other = tuple(
            r.model_copy(update={"backbone": r.backbone.model_copy(update={"name": "RN50"})})
            for r in planned.runs
        )
        found = forecast.disk(filled, past, replace(planned, runs=other))
        assert not found.complete
        return found.size - sum(e.size for e in planned.encodings)

    run = next(r for r in Store(filled).runs.of_experiments([1]) if r.state == "done")
    past = replace(forecast.precedents(filled), written={}, checkpoint={})
    assert size(6) == pytest.approx(1.2 * size(5)) and size(5) > 0, "results alone"
    kind = (run.method, "rotated-digits", "mini-vit")
    past = replace(past, checkpoint={kind: 5000})
    rounds = run.rounds_total
    assert size(5, "all") - size(5, "none") == 5 * 5000 * (rounds + 1), "checkpoints of the same method"


def test_disk_is_what_is_not_there_yet_and_what_such_runs_wrote(filled: Path) -> None:
    planned = plan(Store(filled).experiments.get(1).config)
    methods = {r.method.name for r in planned.runs}
    finished = [r for r in Store(filled).runs.of_experiments([1]) if r.state == "done"]
    for run in finished:
        folder = Store(filled).runs.folder(run.id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "round-1.safetensors").write_bytes(b"x" * 1000)
    found = forecast.disk(filled, forecast.precedents(filled), planned)
    encoded = sum(e.size for e in planned.encodings)
    results = database_size(planned)
    assert encoded > 0 and len(methods) > 1
    assert found == forecast.Disk(encoded + results + 1000 * len(planned.runs), True)
    first = planned.encodings[0]
    cache = Store(filled).artifacts / "encodings"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "a.npy").write_bytes(b"")
    about = {"data": first.data, "backbone": first.backbone, "reads": first.reads}
    about |= {"shape": [first.images, 64]}
    (cache / "a.json").write_text(json.dumps(about))
    assert forecast.disk(filled, forecast.precedents(filled), planned).size == found.size - first.size
    (cache / "a.json").write_text(json.dumps(about | {"shape": [first.images - 1, 64]}))
    assert forecast.disk(filled, forecast.precedents(filled), planned).size == found.size
    (cache / "a.json").write_text(json.dumps(about))
    experiment = Store(filled).experiments.get(1).config
    for keep, each in (("none", 0), ("best", 1), ("all", experiment.rounds + 1)):
        keeping = plan(experiment.model_copy(update={"keep_checkpoints": keep}))
        size = found.size - first.size + (each - 1) * 1000 * len(keeping.runs)
        assert forecast.disk(filled, forecast.precedents(filled), keeping) == forecast.Disk(size, True)
    unknown = plan(fill.an_experiment(methods=("zero-shot", "clip-fc"), seeds=(1,)))
    assert not forecast.disk(filled, forecast.precedents(filled), unknown).complete


def test_only_runs_that_were_trained_here_are_precedents(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer runs from another machine neither displace our own nor tell how long a run takes here."""
    with closing(sqlite3.connect(filled)) as connection, connection:
        connection.execute("UPDATE runs SET peak_memory=1000 WHERE status='done'")
    monkeypatch.setattr(forecast, "NEWEST", 20)
    before = forecast.precedents(filled)
    theirs = tmp_path / "theirs.db"
    fill.done(theirs, fill.an_experiment(methods=("zero-shot",), seeds=(1,)))
    with closing(sqlite3.connect(theirs)) as connection, connection:  # 21 runs of 1 s with 10 TB
        connection.execute("UPDATE runs SET started_at=finished_at-1, peak_memory=10000000000000")
        (columns,) = connection.execute(
            "SELECT group_concat(name) FROM pragma_table_info('runs') WHERE name != 'id'"
        ).fetchone()
        connection.execute(
            f"INSERT INTO runs({columns}) SELECT {columns} FROM runs r, "
            "(SELECT value FROM json_each(?)) WHERE r.id=1",
            [json.dumps(list(range(forecast.NEWEST + 1)))],
        )
        connection.execute("UPDATE runs SET rounds_done=0 WHERE id NOT IN (SELECT run_id FROM rounds)")
        for (number,) in connection.execute("SELECT id FROM runs").fetchall():
            write_identity(connection, number)
    assert len(Store(filled).imports.database(theirs).added) == 1
    assert forecast.precedents(filled) == before and before.seconds and before.memory
