"""A leaderboard goes to another FedLens and follows its preset there; a result goes to a model hub."""

import json
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.base.events import Entity
from fedcore.base.progress import result_of
from fedcore.papers.experiments import DEMO, followed_by, names, preset
from fedcore.papers.reproductions import printed_values
from fedcore.results.comparison import compare
from fedcore.results.exports import summary_rows
from fedcore.results.sharing import eval_results, leaderboard_csv
from fedcore.results.summary import PrintedValues
from fedcore.share.checked import checked_comparison
from fedcore.share.content import Wording, read_report
from fedcore.store import Store
from tests.support import command_line, fill


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration with other seeds and another name, which still follows it."""
    path = tmp_path_factory.mktemp("board") / "runs.db"
    fill.done(path, preset(DEMO).model_copy(update={"name": "Mine", "seeds": (4, 5, 6), "rounds": 10}))
    return path


def exported(db: Path, file: Path) -> bool:
    return command_line.run("export", 1, "--table", "leaderboard", "--db", db, "-o", file) == 0


def imported(db: Path, file: Path, *options: str) -> int:
    return command_line.run("import", file, *options, "--db", db)


def test_an_imported_leaderboard_follows_its_preset(db: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "board.csv", tmp_path / "other.db"
    assert exported(db, file)
    assert file.read_text("utf-8").splitlines()[1].startswith("demo,FedOT,4,")
    assert imported(other, file, "--dataset", "pacs") == 2, "it is the preset's"
    assert imported(other, file) == 0
    ours, theirs = compare(Store(db), [1]), compare(Store(other), [1])
    assert list(ours.settings) == list(theirs.settings), "of the same setting, so that they can be ranked"
    assert {r.label: r.stats["personal"].mean for r in theirs.rows} == pytest.approx(
        {r.label: r.stats["personal"].mean for r in ours.rows}
    )
    assert not any(row.trained_by_fedlens or row.other_tests for row in theirs.rows)
    with checked_comparison(Store(other), [1]) as checked:
        assert {row["preset"] for row in summary_rows(checked.summary)} == {"demo"}
    assert imported(other, file) == 2, "once only"


def test_a_leaderboard_has_no_counts_of_sampled_domains(tmp_path: Path) -> None:
    """Another FedLens would take their sum, in which small domains weigh as much as large ones."""
    path = tmp_path / "runs.db"
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2, test_sample=10)
    _, (writer,) = fill.start(path, experiment)
    entities = (Entity(0, "global", "global"), Entity(1, "client", "a", domain="d", samples=9))
    entities += (Entity(2, "domain", "d", domain="d", samples=60),)
    rounds = {}
    for round_, total in ((1, 10), (2, 60)):
        validated = fill.cell(1, 1, 9 - round_, 9, split=1)
        tested = fill.cell(1, 1, 5, 9), fill.cell(0, 1, 4, 9), fill.cell(0, 2, 8, total)
        rounds[round_] = (*tested, validated)
    fill.record(writer, entities, rounds)
    for rule, domains in (("best", []), ("last", ["8,60,d"])):
        lines = leaderboard_csv(Store(path), compare(Store(path), [1], rule), PrintedValues()).splitlines()[
            1:
        ]
        assert [line.partition(",d,")[2] for line in lines if ",d," in line] == domains
        assert len(lines) == 2 + len(domains)


def test_the_presets_of_rows_are_named(db: Path, tmp_path: Path) -> None:
    with checked_comparison(Store(db), [1]) as checked:
        (section,) = result_of(read_report(checked, Wording(parts=()))).sections
    assert section.paragraph.endswith(". Preset demo: all rows.")
    file, other = tmp_path / "board.csv", tmp_path / "other.db"
    file.write_text(
        "preset,method,seed,round,model,test_set,correct,total\n"
        "fedmgp/table2-cifar10,FedTPG,1,100,global,a,9,10\n",
        "utf-8",
    )
    assert imported(other, file) == 0
    fill.done(other, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    compared = compare(Store(other), [1, 2])
    text = printed_values(compared, ()).presets_text(compared.rows)
    assert text == "Preset fedmgp/table2-cifar10: FedTPG.", "FedOT follows none"


def test_an_experiment_follows_a_preset_while_its_config_is_equal() -> None:
    for name in names():
        theirs = preset(name)
        entries = tuple(entry.model_copy(update={"label": "Mine"}) for entry in theirs.methods)
        free = {
            "seeds": (9,),
            "name": "x",
            "data": theirs.data.model_copy(update={"root": "/a"}),
            "methods": entries,
        }
        assert followed_by(theirs.model_copy(update=free), True) == (name,)
        assert followed_by(theirs.model_copy(update={"rounds": theirs.rounds + 1}), True) == ()


def test_a_second_leaderboard_hides_no_run_of_the_first(
    db: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "board.csv", tmp_path / "other.db"
    assert exported(db, file)
    assert imported(other, file) == 0
    lines = [line for line in file.read_text("utf-8").splitlines() if ",FedOT,4," in line or ",seed," in line]
    theirs = tmp_path / "theirs.csv"
    theirs.write_text("\n".join(lines), "utf-8")
    assert imported(other, theirs) == 2
    assert "has 'FedOT' with seed 4 from another leaderboard" in capsys.readouterr().err
    theirs.write_text("\n".join(lines).replace(",FedOT,", ",FedOT of B,"), "utf-8")
    assert imported(other, theirs) == 0
    assert {"FedOT", "FedOT of B"} <= {r.label for r in compare(Store(other), [1]).rows}


def test_names_that_a_spreadsheet_would_run_come_back_as_they_were(tmp_path: Path) -> None:
    demo, file = preset(DEMO), tmp_path / "board.csv"
    methods = tuple(m.model_copy(update={"label": f"+ {m.name}"}) for m in demo.methods[:2])
    fill.done(tmp_path / "runs.db", demo.model_copy(update={"methods": methods, "seeds": (1,)}))
    assert exported(tmp_path / "runs.db", file)
    assert "'+ " in file.read_text("utf-8")
    other = tmp_path / "other.db"
    assert imported(other, file, "--experiment", "x") == 0
    assert {r.label for r in compare(Store(other), [1]).rows} == {m.label for m in methods}


def test_a_csv_file_of_two_presets_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "board.csv"
    lines = ["preset,method,seed,round,model,test_set,correct,total"]
    lines += [f"{name},a,1,1,c,c,1,2" for name in ("demo", "fedot/table1-pacs")]
    file.write_text("\n".join(lines), "utf-8")
    assert imported(tmp_path / "runs.db", file) == 2
    assert "names 2 presets" in capsys.readouterr().err


def test_a_preset_must_exist_and_a_csv_file_needs_its_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "board.csv"
    for name, method, said in (
        ("demo@1", "a", "unknown preset 'demo@1'; did you mean 'demo'"),
        ("demo", "a" * 200_000, "line 2: field larger than field limit"),
    ):
        file.write_text(
            f"preset,method,seed,round,model,test_set,correct,total\n{name},{method},1,1,c,c,1,2\n",
            "utf-8",
        )
        assert imported(tmp_path / "runs.db", file) == 2
        assert said in capsys.readouterr().err
    assert imported(tmp_path / "runs.db", file, "--experiment", "mine") == 2
    assert said in capsys.readouterr().err


def test_a_tag_makes_no_preset_and_joined_results_follow_none(tmp_path: Path) -> None:
    """The first has other rounds than the demonstration; what joins the second may differ in all."""
    for name, rounds, tags, followed in (("other", 1, ("demo",), set()), ("demo", 10, (), {"demo"})):
        db, file = tmp_path / f"{name}.db", tmp_path / "own.csv"
        changes = {"rounds": rounds, "seeds": (1,), "tags": tags, "name": "one"}
        fill.done(db, preset(DEMO).model_copy(update=changes))
        file.write_text("method,seed,round,model,test_set,correct,total\nmine,1,3,c,c,1,2\n", "utf-8")
        assert imported(db, file, "--experiment", "one") == 0
        with checked_comparison(Store(db), [1]) as checked:
            rows = summary_rows(checked.summary)
        assert {r["preset"] for r in rows if r["label"] != "mine"} - {None} == followed
        if not tags:
            assert {r["preset"] for r in rows if r["label"] == "mine"} == {None}


def test_a_leaderboard_with_a_held_out_domain_is_refused(tmp_path: Path) -> None:
    held = tmp_path / "runs.db"
    fill.done(held, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1, held_out=("0°",)))
    with pytest.raises(FedLensError, match="write a bundle"):
        leaderboard_csv(Store(held), compare(Store(held), [1]), PrintedValues())


def test_without_a_finished_run_nothing_is_shared(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    store.prepare()
    store.experiments.create(fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    with checked_comparison(store, [1]) as checked:
        with pytest.raises(FedLensError, match="has finished; wait for one"):
            leaderboard_csv(store, checked.comparison, checked.printed)
        with pytest.raises(FedLensError, match="has finished; wait for one"):
            eval_results(checked.summary, "FedOT", "personal", "me/digits", "default")
    with pytest.raises(FedLensError, match="passes the filter"):
        leaderboard_csv(store, compare(store, [1], where="seed = 2"), PrintedValues())


def test_a_result_in_the_form_of_model_hubs(db: Path) -> None:
    with checked_comparison(Store(db), [1]) as checked:
        text = eval_results(
            checked.summary, "FedOT", "personal", "me/digits", "default", "https://x.org/b.zip"
        )
        mean = next(r.stats["personal"].mean for r in checked.comparison.rows if r.label == "FedOT")
        with pytest.raises(FedLensError, match="0 rows are called 'Nothing'.*FedOT"):
            eval_results(checked.summary, "Nothing", "personal", "me/digits", "default")
    lines = text.splitlines()
    assert lines[:4] == [
        "- dataset:",
        '    id: "me/digits"',
        '    task_id: "default"',
        f"  value: {round(mean, 4)}",
    ]
    assert lines[5:7] == ["  source:", '    url: "https://x.org/b.zip"']
    notes = json.loads(lines[-1].removeprefix("  notes: "))
    assert "mean over 3 seeds ±" in notes and "preset demo" in notes
