"""A leaderboard goes to another FedLens and stands there in its protocol; a result goes to a model hub."""

import json
from pathlib import Path

import pytest

from fedcore.config import identity, parse
from fedcore.errors import FedLensError
from fedcore.papers.experiments import DEMO, preset
from fedcore.progress import result_of
from fedcore.records.events import Entity, RoundFinished, Started
from fedcore.reports.checked import checked_comparison
from fedcore.reports.content import Wording, read_report
from fedcore.results.comparison import compare
from fedcore.results.exports import summary_rows
from fedcore.results.setting_text import protocol_text
from fedcore.results.sharing import eval_results, leaderboard_csv
from fedcore.store import Store
from tests.support import command_line, fill


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration with other seeds and another name, which is still its protocol."""
    path = tmp_path_factory.mktemp("board") / "runs.db"
    fill.done(path, preset(DEMO).model_copy(update={"name": "Mine", "seeds": (4, 5, 6), "rounds": 10}))
    return path


def test_an_imported_leaderboard_stands_in_its_protocol(db: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "board.csv", tmp_path / "other.db"
    assert command_line.run("leaderboard", 1, "--db", db, "-o", file) == 0
    assert file.read_text("utf-8").splitlines()[1].startswith("demo@1,Zero-shot CLIP,4,")
    assert command_line.run("import", file, "--dataset", "pacs", "--db", other) == 2, "it is the protocol's"
    assert command_line.run("import", file, "--db", other) == 0
    ours, theirs = compare(Store(db), [1]), compare(Store(other), [1])
    assert list(ours.settings) == list(theirs.settings), "of the same setting, so that they can be ranked"
    assert {r.label: r.stats["personal"].mean for r in theirs.rows} == pytest.approx(
        {r.label: r.stats["personal"].mean for r in ours.rows}
    )
    assert not any(row.trained_by_fedlens or row.other_tests for row in theirs.rows)
    with checked_comparison(Store(other), [1]) as checked:
        assert {row["protocol"] for row in summary_rows(checked.summary)} == {"demo@1"}
    assert command_line.run("import", file, "--db", other) == 2, "once only"


def test_a_leaderboard_has_no_counts_of_sampled_domains(tmp_path: Path) -> None:
    """Another FedLens would take their sum, in which small domains weigh as much as large ones."""
    path = tmp_path / "runs.db"
    experiment = fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2, test_sample=10)
    _, (writer,) = fill.start(path, experiment)
    entities = (Entity(0, "global", "global"), Entity(1, "client", "a", domain="d", samples=9))
    writer.started(
        Started(
            entities=(*entities, Entity(2, "domain", "d", domain="d", samples=60)),
            rounds_total=2,
            environment={},
        )
    )
    for round_, total in ((1, 10), (2, 60)):
        cells = (fill.cell(1, 1, 5, 9), fill.cell(0, 1, 4, 9), fill.cell(0, 2, 8, total))
        writer.write_round(
            RoundFinished(round=round_, cells=(*cells, fill.cell(1, 1, 9 - round_, 9, split=1)))
        )
    writer.claim.finish("done")
    for rule, domains in (("best", []), ("last", ["8,60,d"])):
        lines = leaderboard_csv(Store(path), compare(Store(path), [1], rule)).splitlines()[1:]
        assert [line.partition(",d,")[2] for line in lines if ",d," in line] == domains
        assert len(lines) == 2 + len(domains)


def test_the_protocols_of_rows_are_named_with_their_errata(db: Path, tmp_path: Path) -> None:
    compared = compare(Store(db), [1])
    assert protocol_text(compared, compared.rows) == "Protocol demo@1: all rows."
    with checked_comparison(Store(db), [1]) as checked:
        (section,) = result_of(read_report(checked, Wording(parts=()))).sections
    assert section.paragraph.endswith(". Protocol demo@1: all rows.")
    file, other = tmp_path / "board.csv", tmp_path / "other.db"
    file.write_text(
        "protocol,method,seed,round,model,test_set,correct,total\n"
        "fedmgp/table2-cifar10@1,FedTPG,1,100,global,a,9,10\n",
        "utf-8",
    )
    assert command_line.run("import", file, "--db", other) == 0
    fill.done(other, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    compared = compare(Store(other), [1, 2])
    assert protocol_text(compared, compared.rows).startswith(
        "Protocol fedmgp/table2-cifar10@1 (@2 corrects it: FedMGP, the paper's own method, was missing"
    )
    assert protocol_text(compared, compared.rows).endswith("): FedTPG."), "FedOT follows none"


def test_a_second_leaderboard_hides_no_run_of_the_first(
    db: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "board.csv", tmp_path / "other.db"
    assert command_line.run("leaderboard", 1, "--db", db, "-o", file) == 0
    assert command_line.run("import", file, "--db", other) == 0
    lines = [line for line in file.read_text("utf-8").splitlines() if ",FedOT,4," in line or ",seed," in line]
    theirs = tmp_path / "theirs.csv"
    theirs.write_text("\n".join(lines), "utf-8")
    assert command_line.run("import", theirs, "--db", other) == 2
    assert "has 'FedOT' with seed 4 from another leaderboard" in capsys.readouterr().err
    theirs.write_text("\n".join(lines).replace(",FedOT,", ",FedOT of B,"), "utf-8")
    assert command_line.run("import", theirs, "--db", other) == 0
    assert {"FedOT", "FedOT of B"} <= {r.label for r in compare(Store(other), [1]).rows}


def test_names_that_a_spreadsheet_would_run_come_back_as_they_were(tmp_path: Path) -> None:
    demo, file = preset(DEMO), tmp_path / "board.csv"
    methods = tuple(m.model_copy(update={"label": f"+ {m.name}"}) for m in demo.methods[:2])
    fill.done(tmp_path / "runs.db", demo.model_copy(update={"methods": methods, "seeds": (1,)}))
    assert command_line.run("leaderboard", 1, "--db", tmp_path / "runs.db", "-o", file) == 0
    assert "'+ " in file.read_text("utf-8")
    other = tmp_path / "other.db"
    assert command_line.run("import", file, "--experiment", "x", "--db", other) == 0
    assert {r.label for r in compare(Store(other), [1]).rows} == {m.label for m in methods}


def test_a_csv_file_of_two_protocols_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "board.csv"
    lines = ["protocol,method,seed,round,model,test_set,correct,total"]
    lines += [f"{name},a,1,1,c,c,1,2" for name in ("demo@1", "fedot/table1-pacs@1")]
    file.write_text("\n".join(lines), "utf-8")
    assert command_line.run("import", file, "--db", tmp_path / "runs.db") == 2
    assert "names 2 protocols" in capsys.readouterr().err


def test_a_protocol_needs_its_number_and_a_csv_file_its_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "board.csv"
    for protocol, method, said in (
        ("demo", "a", "names the protocol 'demo' without its number, as in demo@1"),
        ("demo@1", "a" * 200_000, "line 2: field larger than field limit"),
    ):
        file.write_text(
            f"protocol,method,seed,round,model,test_set,correct,total\n{protocol},{method},1,1,c,c,1,2\n",
            "utf-8",
        )
        assert command_line.run("import", file, "--db", tmp_path / "runs.db") == 2
        assert said in capsys.readouterr().err
    assert command_line.run("import", file, "--experiment", "mine", "--db", tmp_path / "runs.db") == 2
    assert said in capsys.readouterr().err


def test_a_tag_makes_no_protocol_and_joined_results_follow_none(tmp_path: Path) -> None:
    """The first has other rounds than the demonstration; what joins the second may differ in all."""
    for name, rounds, tags, followed in (("other", 1, ("demo@1",), set()), ("demo", 10, (), {"demo@1"})):
        db, file = tmp_path / f"{name}.db", tmp_path / "own.csv"
        changes = {"rounds": rounds, "seeds": (1,), "tags": tags, "name": "one"}
        fill.done(db, preset(DEMO).model_copy(update=changes))
        file.write_text("method,seed,round,model,test_set,correct,total\nmine,1,3,c,c,1,2\n", "utf-8")
        assert command_line.run("import", file, "--experiment", "one", "--db", db) == 0
        with checked_comparison(Store(db), [1]) as checked:
            rows = summary_rows(checked.summary)
        assert {r["protocol"] for r in rows if r["label"] != "mine"} - {None} == followed
        if not tags:
            assert {r["protocol"] for r in rows if r["label"] == "mine"} == {None}


def test_a_leaderboard_with_a_held_out_domain_is_refused(tmp_path: Path) -> None:
    held = tmp_path / "runs.db"
    fill.done(held, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1, held_out=("0°",)))
    with pytest.raises(FedLensError, match="write a bundle"):
        leaderboard_csv(Store(held), compare(Store(held), [1]))


def test_without_a_finished_run_nothing_is_shared(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    store.prepare()
    store.experiments.create(fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1))
    with checked_comparison(store, [1]) as checked:
        with pytest.raises(FedLensError, match="has finished; wait for one"):
            leaderboard_csv(store, checked.comparison)
        with pytest.raises(FedLensError, match="has finished; wait for one"):
            eval_results(checked.summary, "FedOT", "personal", "me/digits", "default")
    with pytest.raises(FedLensError, match="passes the filter"):
        leaderboard_csv(store, compare(store, [1], where="seed = 2"))


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
    assert "mean over 3 seeds ±" in notes and "protocol demo@1" in notes


def test_every_preset_of_a_paper_is_as_it_was_frozen() -> None:
    """After a correction: `python -m tools.freeze NAME ERRATUM`; a new preset: `python -m tools.freeze`."""
    for name, versions in identity.protocol_versions().items():
        assert identity.protocol_digest(preset(name)) == versions[-1].digest, name
        assert preset(f"{name}@{versions[-1].number}") == preset(name)
        assert all(v.erratum for v in versions[1:]) and not versions[0].erratum


def test_a_corrected_protocol_keeps_its_former_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedcore.config import dumps

    corrected = preset(DEMO)
    before = parse({**corrected.model_dump(), "rounds": 9})
    listed = [
        {"digest": identity.protocol_digest(before)},
        {"digest": identity.protocol_digest(corrected), "erratum": "nine rounds instead of ten"},
    ]
    (tmp_path / "frozen.json").write_text(json.dumps({DEMO: listed}), "utf-8")
    (tmp_path / f"{DEMO}@1.toml").write_text(dumps(before), "utf-8")
    monkeypatch.setattr(identity, "PROTOCOLS", tmp_path / "frozen.json")
    monkeypatch.setattr(identity, "FORMER_PROTOCOLS", tmp_path)
    for cached in (identity.protocol_versions, identity._by_digest):
        cached.cache_clear()
    try:
        assert (preset("demo@1").rounds, preset("demo@2").rounds, preset("demo").rounds) == (9, 10, 10)
        assert identity.protocols_of(before) == ("demo@1",)
        assert identity.protocols_of(corrected) == ("demo@2",)
        with pytest.raises(FedLensError, match="unknown protocol 'demo@3'; there are: demo@1, demo@2"):
            preset("demo@3")
    finally:
        for cached in (identity.protocol_versions, identity._by_digest):
            cached.cache_clear()
