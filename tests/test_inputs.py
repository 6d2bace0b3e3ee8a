"""Whatever a user gives: one clear line, or what was read can be written and reads back equal."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.base.errors import FedLensError
from fedcore.base.files import read_text, user_path
from fedcore.config import Experiment, dumps, expand, load, loads, parse
from fedcore.share.archive import open_bundle
from fedcore.store import Recorder, Store
from tests.support import fill
from tests.support.exported import exported as as_file

settings.register_profile("inputs", max_examples=25, deadline=None, derandomize=True, print_blob=True)
BOUNDED = settings(
    settings.get_profile("inputs"), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LONG = settings(BOUNDED, max_examples=1500, derandomize=False)
NAN, INFINITY = float("nan"), float("inf")
numbers = st.integers() | st.floats() | st.just(10**400) | st.sampled_from([2**63, -(2**63) - 1, 1e15, -0.0])
values = st.recursive(
    st.none()
    | st.booleans()
    | numbers
    | st.text(max_size=20)
    | st.sampled_from(["\ud800", "\0", "x" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
GOOD = {
    "name": "Good",
    "data": {"name": "rotated-digits", "shots": 4},
    "partition": {"kind": "dirichlet", "clients": 4, "alpha": 0.3},
    "methods": [{"name": "fedot", "config": {"blocks": 2}}, {"name": "promptfl"}],
    "seeds": [1, 2],
    "sweep": {"rounds": [1, 2]},
}
PATHS = [(k,) for k in GOOD] + [
    ("data", "root"),
    ("data", "template"),
    ("partition", "alpha"),
    ("methods", 0, "config"),
    ("methods", 0, "config", "blocks"),
    ("methods", 0, "file"),
    ("methods", 1, "label"),
    ("seeds", 0),
    ("sweep", "rounds"),
    ("sweep", "methods.*.lr"),
    ("held_out",),
    ("cohorts",),
    ("tags",),
    ("time_limit",),
]


def one_line(error: FedLensError) -> None:
    assert "\n" not in str(error).strip() and len(str(error)) < 2500, str(error)[:300]


def changed(content: Any, path: tuple[Any, ...], value: object) -> Any:
    """A copy with one value replaced."""
    copy = json.loads(json.dumps(content))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


def check_experiment(content: dict[str, Any]) -> None:
    try:
        experiment = parse(content)
        text = dumps(experiment)
    except FedLensError as error:
        one_line(error)
        return
    text.encode()
    again = loads(text)
    assert without_none(again) == without_none(experiment)
    assert dumps(again) == text
    assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment
    try:
        expand(experiment)
    except FedLensError as error:
        one_line(error)


def without_none(experiment: Experiment) -> dict[str, Any]:
    """What a TOML file can hold: it has no word for a hyper-parameter that is None by default."""
    content = experiment.model_dump()
    for entry in content["methods"]:
        entry["config"] = {k: v for k, v in entry["config"].items() if v is not None}
    return content


@BOUNDED
@given(st.sampled_from(PATHS), values)
def test_an_experiment_is_refused_or_reads_back_equal(path, value):
    check_experiment(changed(GOOD, path, value))


@pytest.mark.slow
@LONG
@given(st.sampled_from(PATHS), values)
def test_many_experiments_are_refused_or_read_back_equal(path, value):
    check_experiment(changed(GOOD, path, value))


@BOUNDED
@given(st.binary(max_size=60), st.integers(0, 400))
def test_toml_text_is_read_or_refused(tmp_path, junk, place):
    text = dumps(parse(GOOD)).encode()
    file = tmp_path / "experiment.toml"
    file.write_bytes(text[:place] + junk + text[place:])
    try:
        experiment = load(file)
    except FedLensError as error:
        one_line(error)
    else:
        assert loads(dumps(experiment)) == experiment


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 5000, "rounds = " + "9" * 5000, "seeds = [9223372036854775808]", "name = '\ud800'", "\0"],
)
def test_hostile_toml_is_refused(text):
    with pytest.raises(FedLensError) as caught:
        loads(text)
    one_line(caught.value)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), [1, float("nan")], "\ud800", 2**63]
)
def test_what_cannot_be_written_is_refused_when_it_is_given(value):
    """Our own ``dumps`` wrote NaN and infinity, which ``loads`` refused."""
    with pytest.raises(FedLensError, match="finite|not text|64 bits"):
        parse(
            changed(GOOD, ("methods", 0, "config", "lr"), None)
            | {"methods": [{"name": "x", "config": {"lr": value}}]}
        )


def test_none_is_written_only_where_it_is_the_default():
    plain = parse({"methods": [{"name": "own", "config": {"layers": [1, None]}}]})
    with pytest.raises(FedLensError, match="cannot hold None"):
        dumps(plain)


ODD_PATHS = [
    "/",
    "/proc",
    "x" * 5000,
    "a/" * 3000,
    "a\0b",
    "/dev/zero",
    "~no-such-user/x",
    "\ud800",
    "",
    " ",
    ".",
]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_odd_paths_are_one_line_at_every_reader(path, tmp_path):
    store = Store(tmp_path / "runs.db")
    readers = (
        lambda: load(path),
        lambda: read_text(path, "a text file"),
        lambda: store.imports.json(path),
        lambda: store.imports.csv(path, "e"),
        lambda: store.imports.database(path),
        lambda: open_bundle(path),
    )
    for read in readers:
        with pytest.raises(FedLensError) as caught:
            read()
        one_line(caught.value)


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", "~no-such-user/x"])
def test_what_cannot_be_a_path_is_refused(path):
    with pytest.raises(FedLensError, match="cannot be a path"):
        user_path(path)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small experiment as JSON."""
    db = tmp_path_factory.mktemp("theirs") / "runs.db"
    fill.done(db, fill.an_experiment("Theirs", methods=("fedot",), seeds=(1,), rounds=1))
    content: dict[str, Any] = json.loads(Store(db).experiments.to_json([1]))
    return content


def places(content: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a JSON document; of long lists the first three."""
    items: Any = content.items() if isinstance(content, dict) else list(enumerate(content))[:3]
    found = []
    for key, value in items:
        found.append((*before, key))
        if isinstance(value, (dict, list)):
            found += places(value, (*before, key))
    return found


def carried_on(db: Path, file: Path) -> list[Any]:
    """What a database exports that imported a file, and what one exports that imported this; or nothing.

    A file is refused in one line; what is accepted can be listed and exported.
    """
    store = Store(db)
    try:
        store.imports.json(file)
    except FedLensError as error:
        one_line(error)
        return []
    assert store.experiments.listed()[1] == []
    assert store.integrity.findings() == []
    ids = [e.id for e in store.experiments.all(include_archived=True)]
    for table in ("summary", "rounds"):
        try:
            as_file(store, ids, table)
        except FedLensError as error:
            one_line(error)
    text = store.experiments.to_json(ids)
    file.write_text(text, encoding="utf-8")
    second = Store(db.with_name("second.db"))
    second.imports.json(file)
    again = second.experiments.to_json(e.id for e in second.experiments.all(include_archived=True))
    return [json.loads(text), json.loads(again)]


def changed_and_carried_on(data: st.DataObject, content: dict[str, Any], folder: Path) -> list[Any]:
    for db in folder.glob("*.db*"):
        db.unlink() if db.is_file() else None
    path = data.draw(st.sampled_from(places(content)))
    file = folder / "file.json"
    file.write_text(json.dumps(changed(content, path, data.draw(values))), encoding="utf-8")
    return carried_on(folder / "first.db", file)


@BOUNDED
@given(st.data())
def test_a_changed_json_file_is_refused_or_comes_over_equal(exported, tmp_path, data):
    found = changed_and_carried_on(data, exported, tmp_path)
    assert not found or found[0] == found[1]


@pytest.mark.slow
@LONG
@given(st.data())
def test_many_changed_json_files_are_refused_or_come_over_equal(exported, tmp_path, data):
    found = changed_and_carried_on(data, exported, tmp_path)
    assert not found or found[0] == found[1]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": NaN}', '{"a": ' * 5000, "9" * 5000, '{"format": 1e999}', "\ud800"]
)
def test_hostile_json_is_refused(tmp_path, text):
    file = tmp_path / "file.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(FedLensError) as caught:
        Store(tmp_path / "runs.db").imports.json(file)
    one_line(caught.value)
    assert str(caught.value).count(str(file)) == 1  # errors were wrapped twice


cells = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-1",
        "1e15",
        "1e400",
        "nan",
        "inf",
        "9" * 30,
        "1.5",
        "global",
        "a",
        "x" * 2000,
        "\ud800",
        '"',
        "\0",
    ]
) | st.text(max_size=8)


@BOUNDED
@given(st.lists(st.lists(cells, min_size=5, max_size=9), min_size=1, max_size=4))
def test_csv_files_are_refused_or_can_be_exported(tmp_path, rows):
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["method", "seed", "round", "model", "test_set", "correct", "total", "split"])
    writer.writerows(rows)
    file, db = tmp_path / "file.csv", tmp_path / "runs.db"
    file.write_bytes(out.getvalue().encode("utf-8", "surrogatepass"))
    try:
        created = Store(db).imports.csv(file, "mine")
    except FedLensError as error:
        one_line(error)
        return
    assert as_file(Store(db), [created.experiment_id], "rounds") and Store(db).integrity.findings() == []
    Store(db).experiments.delete(created.experiment_id)


@pytest.mark.parametrize(
    "line",
    ["m,1,1e15,a,a,1,2", "m,99999999999999999999,1,a,a,1,2", "m,1,1,a,a,1,1e18", f"{'m' * 2000},1,1,a,a,1,2"],
)
def test_numbers_and_names_beyond_all_use_are_refused(tmp_path, line):
    """A round 1e15 was accepted, and pages that count rounds stood still."""
    file = tmp_path / "file.csv"
    file.write_text(f"method,seed,round,model,test_set,correct,total\n{line}\n")
    with pytest.raises(FedLensError, match="line 2: column"):
        Store(tmp_path / "runs.db").imports.csv(file, "mine")


@pytest.mark.parametrize("name", ["", "x" * 600, "99999999999999999999"])
def test_any_name_of_an_experiment_is_taken_or_refused(tmp_path, name):
    file = tmp_path / "file.csv"
    file.write_text("method,seed,round,model,test_set,correct,total\nm,1,1,a,a,1,2\n")
    store = Store(tmp_path / "runs.db")
    try:
        store.imports.csv(file, name)
    except FedLensError as error:
        one_line(error)
    assert store.experiments.listed()[1] == []


@pytest.mark.parametrize(
    "given", [{"seed": -1}, {"seed": 2**63}, {"config": {"lr": float("inf")}}, {"experiment": "x" * 600}]
)
def test_the_recorder_refuses_in_one_line(tmp_path, given):
    with pytest.raises(FedLensError) as caught:
        Recorder(tmp_path / "runs.db", **{"method": "mine", "seed": 1} | given)
    one_line(caught.value)
    assert Store(tmp_path / "runs.db").experiments.all() == []


def test_a_loss_that_is_no_number_is_a_gap_and_can_be_exported(db):
    with Recorder(db, method="mine", seed=1, experiment="Diverged") as run:
        run.round(1, {("a", "a"): (1, 2)}, loss=float("inf"), diagnostics={"norm": float("nan")})
    (row,) = Store(db).rounds.measured([run.run_id])
    assert row["train_loss"] is None and "Infinity" not in Store(db).experiments.to_json([1])
