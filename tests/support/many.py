"""A store of thousands of experiments, copied by SQLite from one."""

from pathlib import Path

from fedcore.store import Store
from fedcore.store.database import writing
from fedcore.store.schema import columns
from tests.support import fill


def copies(db: Path, number: int) -> int:
    """Fill a store with a finished experiment and copies of a stopped one; returns the first one's number."""
    methods = ("fedot", "promptfl")
    first = fill.done(db, fill.an_experiment("The first", methods=methods, seeds=(1,), rounds=2))
    stopped = fill.an_experiment("Copy", methods=methods, seeds=(1,), rounds=2)
    created = Store(db).experiments.create(stopped)
    Store(db).runs.stop(created.run_ids)
    of_experiment = ", ".join(name for name in columns("experiments") if name not in ("id", "uuid", "name"))
    of_run = ", ".join(name for name in columns("runs") if name not in ("id", "experiment_id"))
    with writing(db) as database:
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :number) "
            f"INSERT INTO experiments(uuid, name, {of_experiment}) "
            f"SELECT 'copy ' || i, name || ' ' || i, {of_experiment} FROM n, experiments WHERE id=:of",
            {"number": number, "of": created.experiment_id},
        )
        database.execute(
            f"INSERT INTO runs(experiment_id, {of_run}) SELECT e.id, "
            f"{', '.join(f'r.{name}' for name in of_run.split(', '))} "
            "FROM experiments e, runs r WHERE r.experiment_id=:of AND e.uuid LIKE 'copy %'",
            {"of": created.experiment_id},
        )
        database.execute(
            "INSERT INTO digests(run_id, round, digest) SELECT r.id, -1, d.digest FROM runs r "
            "JOIN runs o ON o.experiment_id=:of AND o.method=r.method JOIN digests d ON d.run_id=o.id "
            "AND d.round=-1 WHERE r.experiment_id>:of",
            {"of": created.experiment_id},
        )
    return first
