"""A bundle holds what its numbers follow from, and a changed one is not accepted."""

import csv
import io
import json
import random
import re
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fedcore.base import consent
from fedcore.base.errors import FedLensError
from fedcore.base.progress import result_of
from fedcore.config import DataConfig, Experiment, MethodEntry, parse
from fedcore.engine.plan import plan
from fedcore.jobs.process import run_local
from fedcore.methods import registry
from fedcore.results import exports
from fedcore.results.comparison import compare
from fedcore.share import rerun
from fedcore.share.archive import BREAKDOWNS, EVIDENCE, RUNS, SUMMARY, Evidence, prediction_file, read_bundle
from fedcore.share.checked import ComparisonChoices, checked_comparison
from fedcore.share.content import read_report
from fedcore.share.make import Made, make
from fedcore.share.page import report_html
from fedcore.share.recipe import round_digests
from fedcore.share.rerun import Source, compare_runs, handler, read_source, trainable
from fedcore.share.verify import Verification, import_bundle, verify, verify_numbers
from fedcore.store import Store
from fedcore.store.damage import write_digests
from fedcore.store.database import writing
from tests.support import command_line, fill
from tests.support.encoded import DIGITS
from tests.support.jobs import execute_next
from tests.support.mutations import Files, changed_database, mutated, repacked

EXPERIMENT = parse(
    {
        "name": "to be checked",
        "methods": [
            {"name": "promptfl", "config": {"context_length": 2}},
            {"name": "feddeap"},
            {"name": "coop", "config": {"context_length": 2}},
        ],
        "data": DIGITS,
        "rounds": 1,
        "seeds": [1],
    }
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, encoded_digits: Callable[[Path], Path]) -> Path:
    """A database with a method of each way to predict: one model for all, own models, and in batches."""
    folder = tmp_path_factory.mktemp("trained")
    encoded_digits(folder / "artifacts")
    return train(folder / "runs.db", EXPERIMENT)


def train(db: Path, experiment: Experiment) -> Path:
    runs = plan(experiment).runs
    empty(db).experiments.create(experiment, runs)
    assert [execute_next(db) for _ in runs] == ["done"] * len(runs)
    return db


def bundle(db: Path, **choice: object) -> Made:
    with checked_comparison(Store(db), [1], ComparisonChoices(**choice)) as checked:
        return result_of(make(checked))


@pytest.fixture(scope="module")
def made(trained: Path) -> Made:
    return bundle(trained, baseline="PromptFL")


def source_of(content: bytes | str, folder: Path) -> Source:
    """Write a bundle or a page into a folder and read it, as `fedlens rerun` does."""
    file = folder / ("bundle.zip" if isinstance(content, bytes) else "report.html")
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_source(file)


def report_of(db: Path, **choice: object) -> str:
    with checked_comparison(Store(db), [1], ComparisonChoices(**choice)) as checked:
        return result_of(report_html(result_of(read_report(checked))))


def empty(db: Path) -> Store:
    store = Store(db)
    store.prepare()
    return store


def judged(content: bytes, with_data: bool = False) -> Verification:
    archive = read_bundle(content)
    return result_of(verify(archive)) if with_data else verify_numbers(archive)[1]


def test_every_number_of_the_report_follows_from_the_predictions(trained: Path, made: Made) -> None:
    verdict = judged(made.content, with_data=True)
    assert verdict.holds and not made.without_predictions, verdict
    assert "images" in verdict.checked[-1]
    archive = read_bundle(made.content)
    lines = list(csv.DictReader(io.StringIO(archive.text(SUMMARY))))
    choice = ComparisonChoices(baseline="PromptFL", as_launched=True)
    with checked_comparison(Store(trained), [1], choice) as checked:
        rows = exports.summary_rows(checked.summary)
    for name in ("label", "metric", "mean", "difference"):
        assert [line[name] for line in lines] == ["" if r[name] is None else str(r[name]) for r in rows]


def test_a_wrong_folder_is_refused_before_the_numbers_are_checked(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcore.share.verify.verify_numbers", lambda archive: pytest.fail("too late"))
    with pytest.raises(FedLensError, match="FedLens has the images of this bundle itself"):
        result_of(verify(read_bundle(made.content), ["cars=/nowhere"]))


def test_a_metric_that_is_newer_than_a_bundle_makes_no_difference(made: Made) -> None:
    def change(files: Files) -> None:
        """As an earlier FedLens would have written it, which did not know a metric."""
        evidence = json.loads(files[EVIDENCE])
        evidence["metrics"].remove("weighted")
        files[EVIDENCE] = json.dumps(evidence).encode()
        lines = files[SUMMARY].decode().splitlines(keepends=True)
        files[SUMMARY] = "".join(line for line in lines if ",weighted,last," not in line).encode()

    assert judged(repacked(made.content, change)).holds


def test_a_bundle_opens_without_fedlens(made: Made) -> None:
    with zipfile.ZipFile(io.BytesIO(made.content)) as archive:
        names = archive.namelist()
        assert "verify" in archive.read("README.md").decode() and "bundle.json" in names
        splits = archive.read(next(n for n in names if n.startswith("splits/"))).decode().splitlines()
        assert splits[0] == "sample,sha256,domain,class,client,set,test_sets"
    assert made.content == repacked(made.content, lambda files: None), "equal content gives equal bytes"


def test_the_check_asks_for_no_torch(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor do the modules of the check when they are loaded (tests/test_imports.py)."""
    file = tmp_path / "a.zip"
    file.write_bytes(made.content)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert command_line.run("verify", file) == 0
    assert "verified: every number follows" in capsys.readouterr().out


def accepted_numbers(content: bytes, count: int, seed: int) -> list[list[object]]:
    """The numbers of those of many changed bundles that are accepted; a fault must be a plain error."""
    draw, accepted = random.Random(seed), []
    for _ in range(count):
        changed = mutated(content, draw)
        with suppress(FedLensError):
            verdict, numbers = checked_numbers(changed)
            if verdict.holds:
                accepted.append(numbers)
    return accepted


def checked_numbers(content: bytes) -> tuple[Verification, list[object]]:
    archive = read_bundle(content)
    read, verdict = verify_numbers(archive)
    return verdict, [archive.files[SUMMARY], archive.files[BREAKDOWNS], read.counts]


def test_no_changed_bundle_is_accepted_with_another_number(made: Made) -> None:
    accepted, (_, ours) = accepted_numbers(made.content, 30, seed=1), checked_numbers(made.content)
    assert len(accepted) < 15 and all(numbers == ours for numbers in accepted)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_none_of_a_thousand_changed_bundles_is_accepted_with_another_number(tmp_path: Path) -> None:
    """With three seeds, so that standard deviations and p are among the numbers."""
    db = train(tmp_path / "runs.db", EXPERIMENT.model_copy(update={"seeds": (1, 2, 3)}))
    content = bundle(db, baseline="PromptFL").content
    accepted, (_, ours) = accepted_numbers(content, 1000, seed=2), checked_numbers(content)
    assert len(accepted) < 500 and all(numbers == ours for numbers in accepted)


KINDS: dict[str, dict[str, object]] = {
    "base and new classes": {"data": {"name": "shapes", "shots": 1, "training_classes": "base"}},
    "a domain held out": {"data": {"name": "shapes", "shots": 1}, "held_out": ["each"]},
    "unseen clients": {
        "data": {"name": "shapes", "shots": 1},
        "partition": {"kind": "iid", "clients": 4, "unseen": 0.25},
    },
    "class sets": {
        "data": {"name": "shapes", "shots": 1},
        "partition": {"kind": "dirichlet", "clients": 3, "alpha": 0.3, "min_samples": 1},
    },
    "transfer": {"data": {"name": "shapes", "shots": 1}, "transfer": [{"name": "rotated-digits"}]},
    "cohorts": {
        "data": {"name": "rotated-digits", "shots": 1, "domains": ["rot0", "rot75"]},
        "cohorts": [
            {"clients": 1, "backbone": {"name": "mini-vit"}},
            {"clients": 1, "backbone": {"name": "mini-rn"}},
        ],
    },
    "cross-class": {
        "data": {"name": "shapes", "training_classes": "own", "shots": 1},
        "further_data": [{"name": "rotated-digits"}],
        "partition": {"kind": "blocks", "classes_per_client": 3},
    },
    "many clients": {
        "data": {"name": "rotated-digits", "shots": 2},
        "partition": {"kind": "iid", "clients": 20},
        "rounds": 2,
        "keep_checkpoints": "best",
        "rule": "best",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_test_set_has_its_predictions(kind: str, db: Path) -> None:
    settings = {"rounds": 1, **KINDS[kind]}
    rule = settings.pop("rule", "last")
    entries = [{"name": "promptfl", "config": {"context_length": 2}}, {"name": "zero-shot"}]
    if kind not in ("base and new classes", "cross-class"):
        entries.append({"name": "coop", "config": {"context_length": 2}})
    if kind == "base and new classes":
        entries.append({"name": "clip-fc"})  # has no value on new classes
    train(db, parse({"name": kind, "methods": entries, "seeds": [1], **settings}))
    verdict = judged(bundle(db, rule=rule).content, with_data=True)
    assert not verdict.differences, verdict.differences
    reason = {"unseen clients": "adapted models", "cross-class": "among their own classes only"}.get(kind)
    assert bool(verdict.unchecked) == (reason is not None)
    assert all(str(reason) in text for text in verdict.unchecked), verdict.unchecked


def executed(*statements: str) -> Callable[[Files], None]:
    """A change of a bundle's database, as a forger would make it who mends the digests."""

    def change(files: Files) -> None:
        with changed_database(files) as database:
            for statement in statements:
                database.execute(statement)

    return change


def change_prediction(files: Files) -> None:
    """A correct prediction of the global model becomes a wrong one."""
    name = next(n for n in sorted(files) if n.startswith("predictions/"))
    content = json.loads(files[name])
    row = content["rows"][0]["predicted"]
    row[:] = [(p + 1) % 10 for p in row]
    files[name] = json.dumps(content).encode()


def change_client(files: Files) -> None:
    """A training image moves to the other client."""
    name = next(n for n in sorted(files) if n.startswith("splits/"))
    files[name] = files[name].replace(b",rot0,train,", b",rot75,train,", 1)


def change_image(files: Files) -> None:
    name = next(n for n in sorted(files) if n.startswith("splits/"))
    line = files[name].decode().splitlines()[1]
    digest = line.split(",")[1]
    files[name] = files[name].replace(digest.encode(), b"0" * 64)


def change_number(files: Files) -> None:
    files[SUMMARY] = files[SUMMARY].replace(b"personal,last,1,", b"personal,last,1,1", 1)


ONE_COUNT = "run_id = 1 AND split = 2 AND stage = 1 AND round = 1 AND model = 1 AND test_set = 1"


change_count = executed(f"UPDATE accuracy SET correct = correct - 1 WHERE {ONE_COUNT}")


def exchange(column: str, codes: str = "1, 2") -> Callable[[Files], None]:
    def change(files: Files) -> None:
        with changed_database(files) as database:
            query = f"SELECT run_id, entity, {column} FROM entities WHERE entity IN ({codes})"
            values = database.execute(query).fetchall()
            for run, entity, _ in values:
                (other,) = (value for r, e, value in values if r == run and e != entity)
                update = f"UPDATE entities SET {column}=? WHERE run_id=? AND entity=?"
                database.execute(update, [other, run, entity])

    return change


exchange_domains, exchange_names = exchange("domain"), exchange("name")


def fill_from_others(files: Files) -> None:
    """The test set of one domain has a test image of the other; its clients and domains stay."""
    name = next(n for n in sorted(files) if n.startswith("splits/"))
    files[name] = re.sub(rb"(,rot75,test,)2\b", rb"\g<1>1", files[name], count=1)


def remove_predictions(files: Files) -> None:
    del files[prediction_file(2, 1)]


def add_predictions(files: Files) -> None:
    files[prediction_file(1, 0)] = files[prediction_file(1, 1)]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (change_prediction, "run 1, round 1: .* follows"),
        (change_count, "run 1, round 1: rot0 on rot0 has .* correct of .*, and .* correct of .* follows"),
        (change_number, "summary.csv: line 2"),
        (change_client, "training samples"),
        (change_image, "sha256 of"),
        (exchange_domains, "rot0 is of the domain rot75, and its test samples are not"),
        (exchange_names, "the test set of rot75 is not that of its test samples"),
        (fill_from_others, "the test set of rot0 is not that of its test samples"),
        (remove_predictions, "run 2, round 1: its predictions are missing"),
        (add_predictions, "predictions of a round that is not reported"),
    ],
)
def test_a_change_is_named(made: Made, change: Callable[[Files], None], where: str) -> None:
    verdict = judged(repacked(made.content, change), with_data=True)
    assert not verdict.holds and any(re.search(where, text) for text in verdict.differences), verdict


relabel = executed("UPDATE runs SET label='FedDEAP' WHERE id=3")


# without training, the baseline is weaker
drop_the_last_round = executed(
    "UPDATE runs SET rounds_done=0 WHERE id=1",
    *(
        f"DELETE FROM {table} WHERE run_id=1 AND round=1"
        for table in ("accuracy", "rounds", "scores", "client_rounds", "diagnostics", "digests")
    ),
)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (relabel, "it is labelled 'FedDEAP', and its method is coop"),
        (drop_the_last_round, "it has finished, but its last recorded round is 0 of 1"),
    ],
)
def test_a_bundle_that_contradicts_itself_is_refused(
    made: Made, change: Callable[[Files], None], where: str, tmp_path: Path
) -> None:
    content = repacked(made.content, change)
    with pytest.raises(FedLensError, match=where):
        judged(content)
    with pytest.raises(FedLensError, match=where):
        import_bundle(read_bundle(content), Store(tmp_path / "other.db"))


def test_runs_without_predictions_are_marked_wherever_they_are_imported(made: Made, tmp_path: Path) -> None:
    """As a forger would who invents accuracies and says that there is no checkpoint."""

    def change(files: Files) -> None:
        remove_predictions(files)
        evidence = json.loads(files[EVIDENCE])
        evidence["runs"][1]["counts_only"] = {"1": "it was recorded elsewhere, so there is no model"}
        files[EVIDENCE] = json.dumps(evidence).encode()

    content = repacked(made.content, change)
    assert judged(content).unchecked == (
        "run 2, round 1: it has counts only, since it was recorded elsewhere, so there is no model",
    )
    other = empty(tmp_path / "other.db")
    import_bundle(read_bundle(content), other)
    rows = {row.label: row for row in compare(other, [1]).rows}
    assert rows["FedDEAP"].mark == "†" and rows["FedDEAP"].remark.startswith("counts only: the bundle ")
    assert rows["PromptFL"].mark == "", "which has its predictions"


def test_a_run_without_its_checkpoint_has_counts_only(trained: Path, tmp_path: Path) -> None:
    db = shutil.copytree(trained.parent, tmp_path / "copy") / trained.name
    for path in Store(db).runs.folder(1).glob("*.safetensors"):
        path.unlink()
    made = bundle(db)
    assert len(made.without_predictions) == 1 and "run 1 (PromptFL, seed 1)" in made.without_predictions[0]
    verdict = judged(made.content)
    assert not verdict.differences and not verdict.holds and "run 1, round 1" in verdict.unchecked[0]
    with zipfile.ZipFile(io.BytesIO(made.content)) as archive:
        assert "run 1 (PromptFL, seed 1)" in archive.read("README.md").decode()


def test_predictions_that_do_not_give_the_counts_are_refused(trained: Path, tmp_path: Path) -> None:
    db = shutil.copytree(trained.parent, tmp_path / "copy") / trained.name
    store = Store(db)
    assert all(list(store.runs.folder(run).glob("*.safetensors")) for run in (1, 2))
    with writing(db) as database:
        database.execute(f"UPDATE accuracy SET correct = correct - 1 WHERE correct > 0 AND {ONE_COUNT}")
        database.execute("DELETE FROM digests WHERE run_id = 1 AND round = 1")
        write_digests(database, 1, [1])
    with pytest.raises(FedLensError, match="the checkpoint gives .* were recorded"):
        bundle(db)


@pytest.mark.parametrize(
    "name", ["../escape.csv", "/etc/x", "a\\b", "a/../b", "con\x1btrol", "", "a//b", ".hidden"]
)
def test_names_that_escape_are_refused(made: Made, name: str) -> None:
    buffer = io.BytesIO(made.content)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(name or "x/", b"")
    with pytest.raises(FedLensError, match="not a sound bundle"):
        read_bundle(buffer.getvalue())


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def begins_beyond_any_file(archive: bytes) -> bytes:
    """An archive whose only entry begins at 2**64 - 1, as its ZIP64 field says."""
    entry, end = archive.index(b"PK\1\2"), archive.index(b"PK\5\6")
    field = struct.pack("<HHQ", 1, 8, 2**64 - 1)
    changed = bytearray(archive[:end] + field + archive[end:])
    struct.pack_into("<H", changed, entry + 30, len(field))
    struct.pack_into("<L", changed, entry + 42, 2**32 - 1)
    struct.pack_into("<L", changed, end + len(field) + 12, end + len(field) - entry)
    return bytes(changed)


def test_hostile_archives_get_a_plain_error(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = b"[" * 100_000
    bomb = zipped({"bundle.json": b"{}", "x": b"\0" * 3_000_000})
    monkeypatch.setattr("fedcore.share.archive.MOST_BYTES", 2_000_000)
    cases = {
        "unpacks to": bomb,
        "bundle.json": zipped({"bundle.json": deep}),
        "no file bundle.json": zipped({"other": b""}),
        "UTF-8": zipped({"bundle.json": "{}".encode("utf-16")}),
        "not a number in JSON": zipped({"bundle.json": b'{"format": NaN}'}),
        "format": zipped({"bundle.json": b'{"format": "fedlens-bundle-99"}'}),
        "zip": b"PK no archive",
        "OverflowError": begins_beyond_any_file(zipped({"bundle.json": b"{}"})),
    }
    for what, content in cases.items():
        with pytest.raises(FedLensError, match=f"not a sound bundle.*{what}"):
            read_bundle(content)

    def nested(files: Files) -> None:
        files[EVIDENCE] = deep

    def numbers(files: Files) -> None:
        content = Evidence.model_validate_json(files[EVIDENCE]).model_dump(mode="json")
        content["runs"][0]["space_of"] = {str(2**70): 0}
        files[EVIDENCE] = json.dumps(content).encode()

    for change in (nested, numbers):
        with pytest.raises(FedLensError, match="not a sound bundle"):
            judged(repacked(made.content, change))


FOREIGN = {
    "a trigger": "CREATE TRIGGER other AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
    "a view": "CREATE VIEW other AS SELECT randomblob(1000000000) AS x",
    "a generated column": "ALTER TABLE runs ADD COLUMN other TEXT AS (hex(zeroblob(100000000)))",
    "an index of an expression": "CREATE INDEX other ON runs(json_extract(config, '$'))",
    "a virtual table": "CREATE VIRTUAL TABLE other USING fts5(x)",
    "a table": "CREATE TABLE other(x CHECK(x > 0))",
    "a table less": "DROP TABLE views",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_database_with_more_than_our_tables_is_refused(made: Made, what: str) -> None:
    """None of it is executed; integrity checks would execute constraints and generated columns."""
    with pytest.raises(
        FedLensError, match="the tables of runs.db are not those that FedLens makes|unsafe use"
    ):
        judged(repacked(made.content, executed(FOREIGN[what])))


def test_a_database_that_is_none_or_newer_or_circular_gets_a_plain_error(made: Made) -> None:
    # the first page of one table is that of another, so that pages have two owners
    circular = executed(
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_master SET rootpage=(SELECT rootpage FROM sqlite_master WHERE name='rounds') "
        "WHERE name='scores'",
    )
    cases: dict[str, Callable[[Files], None]] = {
        "runs.db: DatabaseError: file is not a database": lambda files: files.update(
            {RUNS: b"no database" * 1000}
        ),
        "the tables of runs.db": lambda files: files.update({RUNS: b""}),
        "it has no file runs.db": lambda files: files.pop(RUNS) and None,
        "a newer FedLens made this bundle": executed("PRAGMA user_version=99"),
        "not those that FedLens makes": executed("PRAGMA user_version=-1"),
        "runs.db: ": circular,
    }
    for said, change in cases.items():
        with pytest.raises(FedLensError, match=said):
            judged(repacked(made.content, change))


def change_evidence(change: Callable[[dict], None]) -> Callable[[Files], None]:
    def changed(files: Files) -> None:
        content = json.loads(files[EVIDENCE])
        change(content["runs"][0])
        files[EVIDENCE] = json.dumps(content).encode()

    return changed


def empty_test_set(files: Files) -> None:
    """A test set without samples, on which a model predicts nothing."""
    content = json.loads(files[EVIDENCE])
    run = content["runs"][0]
    with changed_database(files) as database:
        database.execute("INSERT INTO entities(run_id, entity, kind, name) VALUES (1, 99, 'domain', 'none')")
    run["space_of"]["99"] = 0
    place = prediction_file(1, 1)
    predictions = json.loads(files[place])
    predictions["rows"].append({"models": [0], "test_sets": [99], "predicted": []})
    files |= {EVIDENCE: json.dumps(content).encode(), place: json.dumps(predictions).encode()}


def other_samples(files: Files) -> None:
    content = json.loads(files[EVIDENCE])
    spaces = content["runs"][0]["spaces"]
    files["splits/other.csv"] = files[spaces[0]["samples"]]
    spaces.append({"classes": ["a"], "samples": "splits/other.csv"})
    files[EVIDENCE] = json.dumps(content).encode()


unknown_model = executed("UPDATE accuracy SET model = -1 WHERE run_id = 1 AND model = 0")
fewer_rounds = executed("UPDATE runs SET config = json_set(config, '$.rounds', 0)")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (empty_test_set, "no sample is in the test set 'none'"),
        (other_samples, "run 1 has samples of more data sets than its config names"),
        (fewer_rounds, "its last recorded round is 1 of 0"),
        (unknown_model, "run 1 has counts of models or test sets that it does not name"),
        (change_evidence(lambda run: run["space_of"].update({"1": 7})), "the test sets of run 1 contradict"),
        (lambda files: files.update({EVIDENCE: b'{"runs": []}'}), "evidence.json"),
    ],
)
def test_evidence_that_contradicts_itself_gets_a_plain_error(made: Made, change, said: str) -> None:
    with pytest.raises(FedLensError, match=f"not a sound bundle.*{said}"):
        judged(repacked(made.content, change), with_data=True)


def test_a_manifest_has_plain_text_and_files_have_one_compression() -> None:
    def manifest(**changes: object) -> bytes:
        fields = {
            "format": "fedlens-bundle-2",
            "title": "a",
            "fedlens": "",
            "commit": "",
            "digest": "",
            "files": {},
        }
        return zipped({"bundle.json": json.dumps({**fields, **changes}).encode()})

    for changes in ({"title": "\x1b[2J"}, {"title": "\ud800"}, {"files": {"\ud800": ""}}):
        with pytest.raises(FedLensError, match="is not one line of text"):
            read_bundle(manifest(**changes))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("bundle.json", b"{}")
    with pytest.raises(FedLensError, match="compressed in another way"):
        read_bundle(buffer.getvalue())


def test_a_run_without_recorded_rounds_is_no_repeat_and_harmful_choices_are_refused(
    trained: Path, made: Made, tmp_path: Path
) -> None:
    """As an edited report gives it."""
    source = source_of(made.content, tmp_path)
    emptied = source.recipe.runs[0].model_copy(update={"rounds": {}})
    (said,) = result_of(compare_runs(Store(trained), source, {1: emptied})).differences
    assert "no round of it was recorded" in said
    (experiment,) = source.recipe.experiments
    hostile = source.recipe.runs[0].model_copy(update={"environment": {"threads": 10**9}})
    changed = experiment.model_copy(update={"runs": (hostile,)})
    with pytest.raises(FedLensError, match="its threads are 1000000000, not a number up to 1,024"):
        trainable(source.recipe.model_copy(update={"experiments": (changed,)}), {})


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_runs_are_trained_again_to_the_last_bit(
    made: Made, tmp_path: Path, count: int, encoded_digits: Callable[[Path], Path]
) -> None:
    """From a bundle, into a new database; with all of its runs, the evidence is compared too."""
    again, source = empty(tmp_path / "again.db"), source_of(made.content, tmp_path)
    encoded_digits(tmp_path / "artifacts")
    (part,) = trainable(source.recipe, {})
    runs = [run.config for run in part.runs[:count]]
    _, outcomes = run_local(again, part.config, runs, device="cpu", handler=handler(part.runs))
    repeated = result_of(compare_runs(again, source, dict(zip(outcomes, part.runs, strict=False))))
    assert (repeated.differences, repeated.runs) == ((), count)
    with writing(again.path) as database:
        database.execute("UPDATE accuracy SET loss = loss + 1e-9 WHERE run_id = 1 AND round = 1")
    recipes = {1: part.runs[0]}
    changed = result_of(compare_runs(again, source, recipes))
    assert changed.differences == ("run 1 (PromptFL, seed 1): differs from round 1 of 1 on",)


@pytest.fixture(scope="module")
def page(trained: Path) -> str:
    return report_of(trained, baseline="PromptFL")


def test_a_page_holds_the_recipe_of_its_runs(trained: Path, page: str, tmp_path: Path) -> None:
    source = source_of(page, tmp_path)
    assert source.bundle is None and len(source.recipe.runs) == 3
    assert source.recipe.runs[0].config == Store(trained).runs.config(1)
    with pytest.raises(FedLensError, match="holds no recipe"):
        source_of(page.replace('"fedlens-recipe-1"', '"fedlens-recipe-9"'), tmp_path)


def first_cell(page: str) -> str:
    """Another accuracy in the summary, as it is seen."""
    return re.sub(r'(<td class="num[^>]*>)\d', r"\g<1>9", page, count=1)


FORGED: dict[str, tuple[Callable[[str], str], str]] = {
    "a cell of the summary": (first_cell, "Summary of .*: 1 difference, first: .* was printed"),
    "all cells": (lambda page: re.sub(r"(<td[^>]*>)\d", r"\g<1>9", page), "setting-1: Summary"),
    "the numbers for programs": (lambda p: re.sub(r'"mean": \d', '"mean": 9', p), "summary: "),
    "a number under the pointer": (
        lambda p: p.replace(' title="seed 1: ', ' title="seed 1: 9'),
        "Summary of",
    ),
    "a run": (
        lambda p: re.sub(r'(data-value="\d+\.\d+">)\d(\d\.\d\d</td></tr>)', r"\g<1>9\2", p),
        "runs: All runs",
    ),
    "a table elsewhere": (
        lambda p: p.replace("<main>", "<main><table><tr><td>FedOT</td><td>99</td></tr></table>"),
        "a table: 2 differences",
    ),
    "its sections have another name": (lambda p: p.replace('id="setting-1"', 'id="x"'), "setting-1: "),
    "digests of all rounds but one are removed": (
        lambda p: re.sub(r'("rounds":\{)"0":"\w+",', r"\1", p),
        "no digest of round 0 was recorded",
    ),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_page_is_not_certified(trained: Path, page: str, tmp_path: Path, forgery: str) -> None:
    """The recorded runs stand for those that were trained again; 43 changed numbers were certified."""
    forge, said = FORGED[forgery]
    assert forge(page) != page
    source = source_of(forge(page), tmp_path)
    repeated = result_of(compare_runs(Store(trained), source, dict(enumerate(source.recipe.runs, 1))))
    assert any(re.search(said, line) for line in repeated.differences), repeated


def test_an_honest_page_is_certified_and_what_was_not_compared_is_said(
    trained: Path, page: str, tmp_path: Path
) -> None:
    source = source_of(page, tmp_path)
    runs = dict(enumerate(source.recipe.runs, 1))
    repeated = result_of(compare_runs(Store(trained), source, runs))
    assert not repeated.differences and repeated.rounds == 6
    assert any("against time" in line for line in repeated.uncompared), repeated
    assert any("shapes in drawings" in line for line in repeated.uncompared)
    (said,) = result_of(compare_runs(Store(trained), source, {1: runs[1]})).uncompared
    assert said.startswith("all numbers but the accuracies of the rounds")


def test_an_imported_bundle_has_the_numbers_and_the_setting_of_its_runs(
    trained: Path, made: Made, tmp_path: Path
) -> None:
    other = empty(tmp_path / "other.db")
    merged = import_bundle(read_bundle(made.content), other)
    assert merged.added == ("to be checked",)
    assert import_bundle(read_bundle(made.content), other).present == merged.added, "once only"
    ours, theirs = (compare(store, [1]) for store in (Store(trained), other))
    assert list(ours.settings) == list(theirs.settings)
    assert [(r.key, r.label, r.stats) for r in ours.rows] == [(r.key, r.label, r.stats) for r in theirs.rows]
    assert made.manifest.digest in other.runs.get([1])[0].notices[-1].message
    assert round_digests(other, 1) == round_digests(Store(trained), 1), (
        "all rounds, and not only reported ones"
    )
    with pytest.raises(FedLensError, match="run 1, round 1: rot0 on rot0 has"):
        import_bundle(read_bundle(repacked(made.content, change_count)), other)


@pytest.fixture
def own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a method with a recorded run in ``runs.db``, whose images are not here."""
    registry.get("fedot")
    source = tmp_path / "mine" / "text_shift.py"
    source.parent.mkdir()
    shutil.copy(Path(__file__).parents[2] / "examples" / source.name, source)
    for table in ("_METHODS", "_FILES"):  # so that no other test meets the method
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    monkeypatch.setattr(consent, "_THIS_PROCESS", set())
    registry.load_file(source)
    entry = MethodEntry(name="text-shift", file=str(source), sha256=consent.digest(source.read_bytes()))
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1)
    data = DataConfig(name="folder", root=str(tmp_path / "not here"))
    changes = {"methods": (entry,), "data": data}
    fill.done(tmp_path / "runs.db", experiment.model_copy(update=changes))
    return source


def test_a_bundle_says_nothing_of_its_machine(own_method: Path, tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    with writing(db) as database:
        database.execute("UPDATE runs SET notes='private', tags='[\"private\"]', error='/home/private'")
        database.execute("UPDATE experiments SET notes='private', tags='[\"private\"]'")
    made = bundle(db)
    files = read_bundle(made.content).files
    assert files["methods/text_shift.py"] == own_method.read_bytes()
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    assert b"private" not in files[RUNS]
    verdict = judged(made.content)
    assert verdict.unchecked and not verdict.differences, verdict


def test_method_files_of_a_report_run_only_after_consent(
    own_method: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, page, there = own_method, tmp_path / "report.html", tmp_path / "there"
    page.write_text(report_of(tmp_path / "runs.db"), "utf-8")
    assert command_line.run("rerun", page, "--db", there / "runs.db") == 2
    told = capsys.readouterr().err
    assert "you have not agreed" in told and consent.digest(source.read_bytes()) in told
    assert (there / "methods" / source.name).read_bytes() == source.read_bytes(), "to be read"
    assert not Store(there / "runs.db").experiments.all()
    (there / "methods" / source.name).write_text("other = 1\n", "utf-8")
    assert command_line.run("rerun", page, "--db", there / "runs.db") == 2
    assert "has another content" in capsys.readouterr().err
    page.write_text(page.read_text("utf-8").replace("methods/text_shift.py", "methods/../x.py"), "utf-8")
    with pytest.raises(FedLensError, match="is not the method file"):
        read_source(page)


def test_rows_that_only_one_of_two_summaries_has_differ() -> None:
    """A row that only the new one had was not said."""
    head = "label,metric,data,held_out,mean\n"
    both, only_then, only_now = (
        f"{name},personal,digits,,{mean}\n" for name, mean in (("A", 1), ("B", 2), ("C", 3))
    )
    assert rerun._number_differences(head + both + only_then, head + both + only_now) == [
        "B, personal: 2 was recorded, nothing now",
        "C, personal: nothing was recorded, 3 now",
    ]
