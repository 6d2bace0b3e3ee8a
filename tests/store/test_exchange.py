"""An experiment as one JSON file: what is written in one database is read in another."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.results.comparison import compare
from fedcore.store import Store
from fedcore.store.database import reading
from fedcore.store.schema import RUN_TABLES
from tests.support import fill

NAME = """=1+1 "quoted" <b>ä</b> 😀"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another FedLens: a finished experiment, and one in the middle of things."""
    db = tmp_path_factory.mktemp("theirs") / "runs.db"
    fill.done(
        db, fill.an_experiment(NAME, methods=("fedot", "zero-shot"), seeds=(1, 2), rounds=2, tags=("a",))
    )
    fill.mixed(db)
    return db


@pytest.fixture(scope="module")
def text(theirs: Path) -> str:
    return Store(theirs).experiments.to_json([1, 2])


@pytest.fixture
def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.json"
    path.write_text(text, encoding="utf-8")
    return path


def contents(db: Path, experiment: int) -> dict[str, list[tuple]]:
    with reading(db) as connection:
        ids = [r.id for r in Store(db).experiments.get(experiment).runs]
        return {
            table: [
                tuple(r)[1:]
                for i in ids
                for r in connection.execute(f"SELECT * FROM {table} WHERE run_id=?", [i])
            ]
            for table in RUN_TABLES
        }


def test_every_table_comes_over_unchanged(tmp_path, theirs, file):
    ours = tmp_path / "ours.db"
    fill.done(ours, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))  # so that ids differ
    merged = Store(ours).imports.json(file)
    assert merged.added == (NAME, "In the middle of things") and merged.present == ()
    for number in (1, 2):
        assert contents(ours, number + 1) == contents(theirs, number)
        old, new = Store(theirs).experiments.get(number), Store(ours).experiments.get(number + 1)
        assert (new.name, new.uuid, new.config, new.tags, new.notes) == (
            old.name,
            old.uuid,
            old.config,
            old.tags,
            old.notes,
        )
        for before, after in zip(old.runs, new.runs, strict=True):
            assert Store(ours).runs.config(after.id) == Store(theirs).runs.config(before.id)
            assert Store(ours).runs.environment(after.id) == Store(theirs).runs.environment(before.id)
    old, new = compare(Store(theirs), [1]), compare(Store(ours), [2])
    assert [(g.label, g.stats, g.breakdowns) for g in new.rows] == [
        (g.label, g.stats, g.breakdowns) for g in old.rows
    ]


def test_importing_twice_changes_nothing(tmp_path, file):
    db = tmp_path / "ours.db"
    Store(db).imports.json(file)
    before = contents(db, 1)
    assert Store(db).imports.json(file).present == (NAME, "In the middle of things")
    assert len(Store(db).experiments.all()) == 2 and contents(db, 1) == before


def test_what_had_not_ended_is_stopped(tmp_path, file):
    db = tmp_path / "ours.db"
    Store(db).imports.json(file)
    runs = {r.label: r for r in Store(db).experiments.get(2).runs}
    assert {label: r.state for label, r in runs.items()} == {
        "Zero-shot CLIP": "done",
        "FedOT": "stopped",
        "PromptFL": "failed",
        "SDFed": "stopped",
        "FedAlign": "stopped",
    }
    assert runs["FedOT"].status_text == "imported from a file before it had ended"
    assert runs["PromptFL"].status_text.startswith("CUDA out of memory")


def broken(change: Callable[[dict], object]) -> Callable[[str], str]:
    def changed(text: str) -> str:
        content = json.loads(text)
        change(content)
        return json.dumps(content)

    return changed


def one_more_hit(content: dict) -> None:
    """One count of one run changes, and its mean does not."""
    table = content["experiments"][1]["runs"][0]["tables"]["accuracy"]
    at = {name: table["columns"].index(name) for name in ("model", "test_set", "correct")}
    row = next(r for r in table["rows"] if r[at["model"]] == r[at["test_set"]])
    row[at["correct"]] -= 1


def another_lr(content: dict) -> None:
    """Two runs become one group, although their configs differ."""
    first, second = content["experiments"][1]["runs"][:2]
    second["group_hash"] = first["group_hash"]


DAMAGES = [
    (lambda text: text[:-20], "cannot read .*experiment.json"),
    (broken(lambda c: c.update(format="other")), "is not an experiment of FedLens"),
    (lambda text: "[1]", "is not an experiment of FedLens"),
    (broken(lambda c: c["experiments"][1]["runs"][0].pop("tables")), "damaged"),
    (broken(lambda c: c["experiments"][1].update(config={"name": "x"})), "damaged"),
    (broken(lambda c: c["experiments"][1]["config"].update(name=None)), "damaged"),  # unreadable here
    (broken(lambda c: c["experiments"][1]["runs"][0].update(status="odd")), "damaged"),
    (broken(lambda c: c["experiments"][1]["runs"][0].update({"id) VALUES (1); --": 1})), "has no column"),
    (
        broken(
            lambda c: c["experiments"][1]["runs"][0]["tables"]["rounds"]["columns"].__setitem__(1, "warmth")
        ),
        "table rounds has no column 'warmth'",
    ),
    (broken(lambda c: c["experiments"][1]["runs"][0]["tables"]["accuracy"]["rows"][0].pop()), "damaged"),
    (broken(lambda c: c["experiments"][1]["runs"][0]["tables"]["entities"]["rows"][0].clear()), "damaged"),
    (broken(lambda c: c.update(experiments=[None])), "damaged"),
    (broken(lambda c: c["experiments"][1].update(created_at=1e300)), "created_at is not a time"),
    (broken(lambda c: c["experiments"][1].update(id=2**63 - 1)), "id belongs to one database"),
    (
        broken(
            lambda c: c["experiments"][1]["runs"][0]["tables"]["rounds"]["columns"].__setitem__(1, "run_id")
        ),
        "rounds.run_id belongs to one database",
    ),
    (broken(one_more_hit), "the mean accuracies of round . are not those of its counts"),
    (broken(another_lr), "runs of one group, which tables average, have different configs"),
]


def test_a_damaged_file_is_one_line_and_records_nothing(tmp_path, file):
    db, text = tmp_path / "ours.db", file.read_text()
    Store(db).prepare()
    for change, message in DAMAGES:
        file.write_text(change(text))
        with pytest.raises(FedLensError, match=message) as caught:
            Store(db).imports.json(file)
        assert caught.value.field == "file" and str(file) in str(caught.value)
        assert Store(db).experiments.all() == []


def test_an_unknown_experiment_cannot_be_written(theirs):
    with pytest.raises(FedLensError, match="no experiment 9"):
        Store(theirs).experiments.to_json([9])
