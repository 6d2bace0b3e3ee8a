import time
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.events import MEASURES, RoundFinished
from fedcore.results.comparison import compare, significance
from fedcore.store import Recorder, Store, database
from tests.support import fake_engine, fill
from tests.support.jobs import execute_next, recorded

HEAD = "method,seed,round,model,test_set,correct,total"
GOOD = f"""\
{HEAD},split,domain
mine,1,1,a,a,5,10,validation,photo
mine,1,1,a,a,6,10,,photo
mine,1,1,b,b,2,10,,sketch
mine,1,2,a,a,7,10,,photo
mine,1,2,b,b,3,10,,sketch
mine,2,1,a,a,1,10,test,photo
fedavg,1,1,global,a,4,10,,photo
fedavg,1,1,global,b,8,10,,sketch
fedavg,1,1,global,photo,9,10,,photo
"""


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "results.csv"
    path.write_text(text)
    return path


def test_a_csv_becomes_an_experiment(db, tmp_path):
    created = Store(db).imports.csv(file(tmp_path, GOOD), "Mine", "pacs")
    (row,) = Store(db).experiments.all()
    assert (row.name, row.config.data.name) == ("Mine", "pacs")
    assert [(r.method, r.seed, r.state, r.origin, r.rounds_done) for r in row.runs] == [
        ("mine", 1, "done", "import", 2),
        ("mine", 2, "done", "import", 1),
        ("fedavg", 1, "done", "import", 1),
    ]
    mine, _, fedavg = created.run_ids
    assert [p.personal_mean for p in Store(db).rounds.mean_accuracy([mine])] == [
        pytest.approx(0.4),
        pytest.approx(0.5),
    ]
    assert Store(db).runs.get([mine])[0].best_test == pytest.approx(0.4)
    (point,) = Store(db).rounds.mean_accuracy([fedavg])
    assert (point.personal_mean, point.global_mean) == (pytest.approx(0.6), pytest.approx(0.6))
    assert [(e.entity, e.kind, e.name, e.domain) for e in Store(db).cells.entities(fedavg)] == [
        (0, "global", "global", None),
        (1, "client", "a", "photo"),
        (2, "client", "b", "sketch"),
        (3, "domain", "photo", "photo"),
    ]


def test_importing_twice_is_refused_and_changes_nothing(db, tmp_path):
    path = file(tmp_path, GOOD)
    Store(db).imports.csv(path, "Mine")
    with pytest.raises(FedLensError, match="imported already, as experiment 1"):
        Store(db).imports.csv(path, "Mine")
    assert len(Store(db).experiments.all()) == 1


BAD_LINES = [
    ("mine,1,1,a,a,6", "line 3: column total is missing"),
    ("mine,one,1,a,a,6,10", "line 3: column seed must be a whole number .got 'one'"),
    ("mine,1,-1,a,a,6,10", "line 3: column round must be greater than or equal to 0 .got '-1'"),
    ("mine,1,1.5,a,a,6,10", "line 3: column round must be a whole number .got '1.5'"),
    ("mine,1,1,a,a,nan,10", "line 3: column correct must be a whole number .got 'nan'"),
    ("mine,1,1,a,a,inf,10", "line 3: column correct must be a whole number .got 'inf'"),
    ("mine,1,1,a,a,11,10", "line 3: 11 correct of 10"),
    ("mine,1,1,a,a,0,0", "line 3: 0 correct of 0"),
    ("mine,1,1,b,b,6,10,dev", "line 3: column split must be 'train', 'validation' or 'test' .got 'dev'"),
    ("mine,1,1,b,b,6,10,test,later", "line 3: column stage must be 'before_aggregation' or .* .got 'later'"),
    ("mine,1,1,b,a,6,10", "line 3: repeats line 2"),
    ("mine,1,1,a,a,0_6,10", "line 3: column correct must be a whole number .got '0_6'"),
    ("mine,1,1,a,a,1,006,1,010,,", "line 3: more values than columns in line 1; .*write 1000"),
    ("mine,1,1,global,global,6,10", "line 3: a test set cannot be called 'global'"),
    ("mine,1,1,a,a,6,10,,,photo", "line 3: test set 'a' is of domain 'photo', and in line 2 .*'sketch'"),
]
BAD_FILES = [
    ("method,seed\nmine,1\n", "line 1: no column round, model, test_set, correct, total"),
    (HEAD + "\n", "no rows below its header"),
    (f"{HEAD},correct\nmine,1,1,a,a,6,10,9\n", "line 1: two columns are called 'correct'"),
    (f"{HEAD},Split\nmine,1,1,a,a,6,10,train\n", "unknown column 'Split'; did you mean 'split'"),
    (f"{HEAD},stages\nmine,1,1,a,a,6,10,\n", "unknown column 'stages'; did you mean 'stage'"),
    ("", "line 1: no column method"),
    ("m" * 200_000, "line 1: field larger than field limit"),
]


def test_bad_lines_and_files_are_named_and_nothing_is_written(db, tmp_path):
    head = f"{HEAD},split,stage,domain\nmine,1,1,b,a,6,10,,,sketch\n"
    for text, message in [(f"{head}{line}\n", said) for line, said in BAD_LINES] + BAD_FILES:
        with pytest.raises(FedLensError, match=message) as caught:
            Store(db).imports.csv(file(tmp_path, text), "Mine")
        assert caught.value.field == "file"
        assert Store(db).experiments.all() == []
    with pytest.raises(FedLensError, match="cannot read"):
        Store(db).imports.csv(tmp_path / "none.csv", "Mine")


@pytest.fixture
def other(tmp_path, make) -> Path:
    """A database with a finished run, a queued one and an imported experiment."""
    path = tmp_path / "other" / "other.db"
    Store(path).prepare()
    Store(path).experiments.create(make(seeds=(1, 2)))
    execute_next(path, handler=fake_engine.training)
    Store(path).imports.csv(file(tmp_path, GOOD), "Mine")
    return path


def test_merge_copies_everything_and_twice_changes_nothing(db, other, queued):
    queued()  # so that ids differ
    merged = Store(db).imports.database(other)
    assert (merged.added, merged.present) == (("a test", "Mine"), ())
    after = Store(db).experiments.all()
    assert [e.name for e in after] == ["Mine", "a test", "a test"] or len(after) == 3
    copied = [r for e in after for r in e.runs if r.state == "done" and r.origin == "engine"]
    assert len(copied) == 1
    assert recorded(db, copied[0].id) == recorded(other, 1)
    stopped = [r for e in after for r in e.runs if r.state == "stopped"]
    assert [r.status_text for r in stopped] == ["merged from another database before it had ended"]

    again = Store(db).imports.database(other)
    assert (again.added, again.present) == ((), ("a test", "Mine"))
    assert Store(db).experiments.all() == after


def test_a_database_is_merged_as_it_was_at_one_moment(db, tmp_path, monkeypatch):
    """A round that was recorded between two of its tables was called damage."""
    other = tmp_path / "other.db"
    _, (writer,) = fill.start(other, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=3))
    writer.write_round(RoundFinished(round=1, cells=(fill.cell(1, 1, 1, 2),)))
    later = [RoundFinished(round=2, cells=(fill.cell(1, 1, 2, 2),))]

    def recorded_meanwhile(path):
        source = database.read_only(path)
        source.set_trace_callback(
            lambda text: writer.write_round(later.pop()) if later and "copy.digests" in text else None
        )
        return source

    monkeypatch.setattr("fedcore.store.imports.read_only", recorded_meanwhile)
    Store(db).imports.database(other)
    assert not later and Store(db).integrity.findings() == []
    assert [row["round"] for row in Store(db).rounds.measured([1])] == [1]


def test_a_run_that_was_merged_while_it_trained_rests_from_then_on(db, tmp_path):
    """Its clock had gone on, and the time until it was resumed stayed in its duration for good."""
    other = tmp_path / "other.db"
    _, (writer,) = fill.start(other, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=3))
    writer.write_round(RoundFinished(round=1, cells=(fill.cell(1, 1, 1, 2),)))
    (there,), _ = Store(other).runs.get([1]), Store(db).imports.database(other)
    (run,) = Store(db).runs.get([1])
    assert (there.state, run.state) == ("running", "stopped")
    assert run.elapsed(time.time() + 86400) == run.elapsed() < 600


def test_a_merged_unfinished_run_can_be_trained_here(db, other):
    Store(db).imports.database(other)
    (run,) = [r for e in Store(db).experiments.all() for r in e.runs if r.state == "stopped"]
    Store(db).runs.resume([run.id])
    assert execute_next(db, number=run.id, handler=fake_engine.training) == "done"


JOINING = f"""\
{HEAD}
mine,1,4,client-1,client-1,900,1000
mine,1,4,client-2,client-2,900,1000
mine,1,4,client-3,client-3,900,1000
"""


@pytest.fixture
def trained(db, queued) -> int:
    """The experiment 'a test', with one finished run."""
    queued()
    assert execute_next(db, handler=fake_engine.training) == "done"
    return 1


@pytest.mark.parametrize("key", ["a test", "1", 1])
def test_an_import_joins_an_experiment_and_compares_there(db, tmp_path, trained, key, caplog):
    path = file(tmp_path, JOINING)
    created = Store(db).imports.csv(path, key)
    assert created.experiment_id == trained
    compared = compare(Store(db), [trained])
    assert list(compared.settings.values()) == ["rotated-digits · by domain · mini-vit"]
    baseline, mine = compared.rows
    assert (baseline.method, mine.method, mine.label) == ("fedot", "mine", "mine")
    assert mine.stats["personal"].mean == pytest.approx(90)
    (found,) = significance([mine], baseline, "personal").values()
    assert found.difference == pytest.approx(90 - baseline.stats["personal"].mean)
    assert caplog.messages == []
    with pytest.raises(FedLensError, match="imported already, as experiment 1"):
        Store(db).imports.csv(path, key)
    Store(db).experiments.delete(trained)
    Store(db).imports.csv(path, "a test")  # what was deleted may come again


def test_an_import_on_other_data_is_refused(db, tmp_path, trained):
    with pytest.raises(FedLensError, match="'pacs', but experiment 'a test' is on 'rotated-digits'"):
        Store(db).imports.csv(file(tmp_path, JOINING), "a test", "pacs")
    assert len(Store(db).runs.of_experiments([trained])) == 1
    Store(db).imports.csv(file(tmp_path, JOINING), "a test", "rotated-digits")


def test_names_that_the_experiment_does_not_have_are_kept_and_said(db, tmp_path, trained, caplog):
    text = JOINING.replace("client-3,client-3", "elsewhere,elsewhere")
    created = Store(db).imports.csv(file(tmp_path, text), "a test")
    (run,) = Store(db).runs.get(created.run_ids)
    (notice,) = run.notices
    assert notice.message.startswith("results.csv names 'elsewhere', which the runs of experiment 'a test'")
    assert caplog.messages == [notice.message]
    assert (run.state, run.last_test) == ("done", pytest.approx(0.9))


def test_an_imported_fedot_does_not_replace_the_trained_one(db, tmp_path, trained):
    Store(db).imports.csv(file(tmp_path, JOINING.replace("mine,", "fedot,")), "a test")
    assert len(compare(Store(db), [trained]).rows) == 2


def test_an_imported_round_claims_no_traffic_and_no_seconds(db, tmp_path):
    created = Store(db).imports.csv(file(tmp_path, JOINING), "Mine")
    (row,) = Store(db).rounds.measured(created.run_ids)
    assert {row[measure] for measure in MEASURES} == {None}


def test_what_comes_from_elsewhere_takes_no_number_of_what_was_deleted(db, tmp_path, queued):
    """A file of a whole experiment, another database, a table, an own script: none follows a deleted one."""
    other, exported = tmp_path / "other.db", tmp_path / "experiment.json"
    for number, bring in enumerate(
        (
            lambda: Store(db).imports.json(exported),
            lambda: Store(db).imports.database(other),
            lambda: Store(db).imports.csv(file(tmp_path, GOOD), "Mine", "pacs"),
            lambda: Recorder(db, method="mine", seed=1, experiment="Own").finish(),
        ),
        start=1,
    ):
        fill.done(other, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
        exported.write_text(Store(other).experiments.to_json([number]))
        highest = max(queued())
        (newest, *_) = Store(db).experiments.all()
        Store(db).experiments.delete(newest.id)
        bring()
        found = [e for e in Store(db).experiments.all() if e.id >= newest.id]
        assert found and all(e.id > newest.id and e.runs[0].id > highest for e in found)


def test_names_and_totals_of_a_file_that_do_not_fit_are_said_and_kept(db, tmp_path, caplog):
    file = tmp_path / "own.csv"
    head = "method,seed,round,model,test_set,correct,total\n"
    file.write_text(head + "m,1,1,Global,a,1,2\nm,1,1,b,a,1,20\nn,1,1,a,a,1,2\n")
    created = Store(db).imports.csv(file, "Own", "rotated-digits")
    first, second = Store(db).runs.get(created.run_ids)
    assert [notice.message.partition(":")[0] for notice in first.notices] == [
        "no model has the name of a test set, so there is no personal accuracy",
        "round 1",
    ]
    assert "test set 'a' has 2 samples for model 'Global' and 20 for 'b'" in first.notices[1].message
    assert not second.notices and "m, seed 1: no model has the name of a test set" in caplog.text
