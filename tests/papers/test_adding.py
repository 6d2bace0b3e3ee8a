"""Papers that a user adds: pasted tables, folders, and what is wrong with either."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.base.errors import FedLensError
from fedcore.cli.main import main
from fedcore.config import Experiment
from fedcore.papers import (
    adding,
    audits,
    experiments,
    library,
    literature,
    published,
)
from fedcore.papers.cells import source_of
from fedcore.papers.equivalents import NoEquivalent, equivalent, presets_of_values
from fedcore.papers.layout import all_tables, tables, tables_of
from tests.support.papers import HEAD, PAPER, paper_folder, reading

SPREADSHEET = "Method\tDTD\tFood101\tAvg\nPromptFL\t53.74 ± 0.31\t85.10\t69.42\nMade up\t**61.00**\t-\t61.00"
MARKDOWN = (
    "| Data set | Method | base accuracy | new accuracy |\n|---|:-:|---|---|\n"
    "| DTD | CoCoOp | 77.01 | 56.00 |"
)
LATEX = "Method & DTD & Food101 \\\\ \\midrule\nPromptFL & \\textbf{53.74} & 85.10\\% \\\\ \\bottomrule"
VALUES = HEAD + "1,Food101,,ViT-B-16,PromptFL,avg,accuracy,99.5,\n"


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A database without added papers; those of the test are forgotten at its end."""
    monkeypatch.delenv("FEDLENS_PAPERS", raising=False)
    yield tmp_path / "runs.db"
    shutil.rmtree(tmp_path / "runs.db.papers", ignore_errors=True)
    adding.use(tmp_path / "runs.db")
    assert len(published.load_all()) == 9213


def folder(
    tmp_path: Path, paper: str = PAPER, values: str = VALUES, runs: str | None = None, name: str = "mine"
) -> Path:
    return paper_folder(tmp_path / "elsewhere" / name, paper=paper, values=values, runs=runs)


def read(text: str, **common: str):
    return reading(text, **common).values


def test_a_pasted_table_is_read_as_it_is_printed() -> None:
    found = read(SPREADSHEET, backbone="RN50", metric="accuracy")
    assert [(v.method, v.dataset, v.value, v.std) for v in found] == [
        ("PromptFL", "DTD", 53.74, 0.31),
        ("PromptFL", "Food101", 85.10, None),
        ("PromptFL", "avg", 69.42, None),
        ("Made up", "DTD", 61.0, None),
        ("Made up", "avg", 61.0, None),
    ]
    assert {(v.backbone, v.target, v.metric) for v in found} == {("RN50", "avg", "accuracy")}
    halves = read(MARKDOWN)
    assert [(v.dataset, v.target, v.metric, v.value) for v in halves] == [
        ("DTD", "base", "base accuracy", 77.01),
        ("DTD", "new", "new accuracy", 56.0),
    ]
    assert [v.value for v in read(LATEX)] == [53.74, 85.10]
    assert [v.value for v in read(VALUES)] == [99.5], "the columns of values.csv need no mapping"


@pytest.mark.parametrize(
    "link",
    [
        "https://a.example) ![](https://b.example/i.png",
        "javascript:alert(1)",
        "arxiv.org/abs/1",
        "https://a.example/<b>",
        "https://a b",
    ],
)
def test_a_link_that_is_more_than_an_address_is_refused(tmp_path: Path, link: str) -> None:
    with pytest.raises(FedLensError, match="link: .*is not a plain address that begins with https"):
        library.read_paper(folder(tmp_path, f"{PAPER}link = {link!r}\n"))
    assert library.read_paper(folder(tmp_path, f"{PAPER}link = 'http://a.example/x_y?a=1&b=%20#c'\n")).link


WRONG = (
    ("Method\tDTD", "paste a line of headings and at least one line of values"),
    ("Method,DTD\nA,1,2", "line 2 has 3 cells and the headings 2"),
    (
        "Method,DTD\nA,80.1\nA,80.2",
        "line 3, column 'DTD': the same method, data set, target and metric as in line 2",
    ),
    ("DTD,Food\n80.1,70.2", "say which column names the method"),
    ("Method,DTD\n,80.1\nB,80.2", "line 2: the method is empty"),
)


def test_a_bad_table_gets_the_line_and_the_remedy() -> None:
    for text, said in WRONG:
        with pytest.raises(FedLensError, match="^" + said.replace("(", r"\(")):
            read(text)


def other(old: str, new: str) -> str:
    return VALUES.replace(old, new)


BAD = (
    ({"paper": "title = "}, "paper.toml: Invalid value"),
    ({"paper": PAPER.replace('"paper"', '"blog"')}, "kind must be one of paper, README, results file"),
    ({"paper": PAPER + 'titel = "x"\n'}, "unknown field titel; did you mean 'title'"),
    ({"paper": PAPER + '[tables.1]\nrows = "colour"\n'}, "no heading is called 'colour'"),
    ({"paper": 'title = "Mine"\nlicence = "x"\nkind = "paper"\n'}, "citation is missing; add it"),
    ({"values": other("99.5", "ninety")}, "values.csv, line 2: value is 'ninety'; write a number"),
    ({"values": other(",99.5,", ",99.5,-1")}, "line 2: std is -1; a spread is not negative"),
    ({"values": other("PromptFL", "")}, "line 2: method is empty; write it as printed"),
    ({"values": other("metric,", "metrik,")}, "line 1: 'metric' is missing; the columns are"),
    ({"values": other("99.5,", "99.5")}, "line 2: it does not have 9 cells; quote a cell"),
    ({"name": "Mine Own"}, "use lower-case letters, digits and _"),
    ({"name": "fedot"}, "'fedot' comes with FedLens; rename the folder"),
    ({"paper": PAPER + '[tables."7"]\ncaption = "x"\n'}, "values.csv has no table '7'"),
    ({"values": other("99.5", "0.995")}, "so they seem to be shares; write them in per cent"),
    ({"values": other("99.5", "9950")}, "line 2: value is 9950, and accuracy is from 0 to 100"),
    ({"values": other("99.5", "99_5")}, "line 2: value is '99_5'; write a number"),
    ({"values": VALUES + VALUES.splitlines()[1].replace("99.5", "98")}, "line 3: the same cell as one above"),
    ({"values": other("std\n", "std,value\n").replace("99.5,", "99.5,,1")}, "two columns are called 'value'"),
    ({"values": other("PromptFL", "P" * 200_000)}, "line 2: field larger than field limit"),
    ({"paper": PAPER + "notes = " + "[" * 5000}, "paper.toml: lists within lists"),
    ({"paper": PAPER + 'edition_of = "ghost"\n'}, "edition_of is 'ghost', which must be another paper"),
    ({"paper": PAPER + 'edition_of = "mine"\n'}, "edition_of is 'mine', which must be another paper"),
    ({"paper": PAPER + 'edition_of = "plam"\n'}, "edition_of is 'plam', which must be another paper"),
)  # fmt: skip


PRESET = '[presets.p]\nname = "x"\ndata = { name = "food101" }\nmethods = [{ name = "promptfl" }]\n'
WRONG_RUNS = (
    (
        PRESET + 'notes = "{A}"\n[texts]\nA = "{B}"\nB = "{A}"',
        "{B} is neither in [texts], above the text that names it",
    ),
    (PRESET + 'notes = "{A}"\n[texts]\nA = "x{A}"', "{A} is neither in [texts]"),
    (PRESET + "notes = 3", "presets.p.notes: Input should be a valid string"),
    (PRESET.replace('[{ name = "promptfl" }]', "3"), "presets.p.methods: Input should be a valid tuple"),
    (PRESET.replace("promptfl", "promptlf"), "preset 'p': unknown method"),
    (PRESET + 'reproduces = ["1"]', "presets.p.reproduces.0: Input should be a valid dictionary"),
    (PRESET + 'reproduces = [{ table = "9" }]', "preset 'p': no value in table 9 of mine matches"),
    (PRESET + 'reproduces = [{ paper = "fedot", table = "1" }]', "it reproduces 'fedot', another paper"),
    (PRESET + 'held_out = ["each"]', "preset 'p': food101 has no domain 'each'; name its domains"),
    (PRESET.replace('"food101"', '"nosuch"'), "preset 'p': unknown data set 'nosuch'"),
    (PRESET + 'like = ["p"]', "presets.p.like: Input should be a valid string"),
    (PRESET.replace("presets.p", 'presets."p@1"'), "String should match pattern"),
)


def test_a_bad_folder_is_refused_with_the_file_the_line_and_the_remedy(db, tmp_path) -> None:
    for changes, said in (*BAD, *(({"runs": runs}, said) for runs, said in WRONG_RUNS)):
        with pytest.raises(FedLensError) as error:
            adding.add(folder(tmp_path, **changes), db)
        assert said in str(error.value) and not library.added_folder(db).exists()


def test_an_added_paper_is_one_like_those_that_ship(db, tmp_path, capsys) -> None:
    before = literature.pairs()["PromptFL", "Food101"].works
    assert main(["papers", "add", str(folder(tmp_path)), "--db", str(db)]) == 0
    assert "Mine: 1 value added" in capsys.readouterr().out
    assert (tmp_path / "runs.db.papers" / "mine" / "values.csv").exists()
    assert literature.pairs()["PromptFL", "Food101"].works == [*before[:4], "mine", *before[4:]]
    assert any(table.paper == "mine" for table in all_tables())
    assert main(["papers", "list", "--db", str(db)]) == 0
    assert str(tmp_path / "runs.db.papers" / "mine") in capsys.readouterr().out
    assert main(["papers", "remove", "mine", "--db", str(db)]) == 0
    assert literature.pairs()["PromptFL", "Food101"].works == before
    assert main(["papers", "remove", "fedot", "--db", str(db)]) == 2


RUNS = """
[data]
Food101 = "food101"
[[methods]]
method = ["PromptFL"]
dataset = ["Food1*"]
name = "promptfl"
config = { context_length = 8 }
[[methods]]
reason = "nobody has written it"
[texts]
WHY = "Because."
[entries]
"Prompt FL" = { name = "promptfl", config = { context_length = 8 } }
[presets.general]
rounds = 3
data = { name = "food101", split = "official" }
notes = "Mine. {WHY}"
methods = ["Prompt FL"]
[each]
tables = [{ table = "1", shots = 4, who = "Mi\\"ne" }]
[presets."table{table}"]
each = ["tables"]
like = "general"
name = "{who}, Food101"
data = { shots = "{shots}" }
backbone = { name = "ViT-B-16", pretrained = "openai" }
reproduces = [{ table = "{table}" }]
"""


def test_an_added_paper_sets_runs_as_those_that_ship(db, tmp_path, capsys) -> None:
    made = folder(tmp_path, values=VALUES + "1,Food101,,ViT-B-16,Other,avg,accuracy,70.1,\n", runs=RUNS)
    adding.add(made, db)
    preset = experiments.preset("mine/table1")
    assert preset.name == 'Mi"ne, Food101'
    assert (preset.rounds, preset.data.shots, preset.data.split, preset.notes) == (
        3,
        4,
        "official",
        "Mine. Because.",
    )
    prompt, other = published.load("mine")
    source = source_of(prompt)
    assert source.preset == "mine/table1" and source.config.method.config["context_length"] == 8
    assert source_of(other) == NoEquivalent("not implemented", "nobody has written it")
    assert main(["published", "--preset", "mine/table1", "--db", str(db)]) == 0
    assert "2 values: 1 not run, with a caveat, 1 not implemented" in capsys.readouterr().err
    for wrong, said in (
        (
            RUNS.replace('like = "general"', 'like = "table1"'),
            "'like' names 'table1', which is not another preset",
        ),
        (RUNS.replace('methods = ["Prompt FL"]', 'methods = ["X"]'), "no method 'X' in [entries]; add it"),
        (RUNS.replace('each = ["tables"]', 'each = ["rows"]'), "no list 'rows' in [each]; add it"),
        (RUNS.replace('table = "1", s', "s"), "{table} is neither in [texts]"),
        (RUNS.replace("rounds = 3", "rounds = -3"), "preset 'general'"),
        (RUNS.replace("[texts]", "[text]"), "runs.toml: "),
    ):
        (made / "runs.toml").write_text(wrong, encoding="utf-8")
        with pytest.raises(FedLensError) as error:
            adding.add(made, db)
        assert said in str(error.value)


def test_a_damaged_paper_hides_no_other_and_is_named(db, tmp_path) -> None:
    adding.add(folder(tmp_path), db)
    damaged = library.added_folder(db) / "other"
    shutil.copytree(library.added_folder(db) / "mine", damaged)
    (damaged / "values.csv").write_text("nothing\n", encoding="utf-8")
    (error,) = adding.use(db)
    assert "other/values.csv, line 1" in str(error) and "mine" in library.papers()


def test_a_written_paper_reads_back_and_gains_a_second_table(db) -> None:
    fields = {"title": 'A "quoted" title', "citation": "Ä, 2026", "licence": "facts", "kind": "README"}
    first = read(SPREADSHEET, setting='s, "t"')
    paper, found = adding.write(
        "mine", fields, first, {"1": {"caption": "one"}}, {'s, "t"': {"clients": "10"}}, db
    )
    assert paper.title == 'A "quoted" title' and paper.protocol_of("1", 's, "t"').clients == "10"
    assert [f.kind for f in found] == [], "both averages follow"
    second = [replace(value, table="2") for value in read(MARKDOWN)]
    paper, _ = adding.write("mine", fields, second, {"2": {"caption": "two"}}, {}, db)
    assert {v.table for v in published.load("mine")} == {"1", "2"}
    assert [v.text for v in published.load("mine")] == [v.text for v in (*first, *second)]
    assert first[1].text == "85.10", "as pasted: the last zero is printed"
    assert paper.tables["1"].caption == "one" and paper.settings['s, "t"'].clients == "10"
    assert [t.title for t in tables_of(paper, published.load("mine"))] == ["Table 1", "Table 2"]
    with pytest.raises(FedLensError, match="exists; choose another title"):
        adding.write("fedot", fields, first, {}, {}, db)
    with pytest.raises(FedLensError, match="edition_of is 'ghost', which must be another paper"):
        adding.write("later", fields | {"edition_of": "ghost"}, first, {}, {}, db)
    assert not (library.added_folder(db) / "later").exists(), "nothing is written"


def test_an_added_table_is_audited(db, tmp_path) -> None:
    copied = "\n".join(
        f"1,{v.dataset},,ViT-B-16,CoCoOp,{v.target},{v.metric},{v.value},"
        for v in published.load("onpokd")
        if v.table == "1" and v.method == "CoCoOp" and v.dataset != "avg"
    )
    row = "1,DTD,,ViT-B-16,Mine"
    wrong = f"{row},base,base accuracy,80,\n{row},new,new accuracy,60,\n{row},avg,harmonic mean,71.57,\n"
    _, found = adding.add(folder(tmp_path, values=f"{HEAD}{copied}\n{wrong}"), db)
    kinds = [f.kind for f in found]
    assert kinds.count("quoted from") == 22 and kinds.count("does not follow") == 1
    assert "the harmonic mean of 80, 60 is 68.57" in next(
        f.text for f in found if f.kind == "does not follow"
    )


def test_findings_are_stored_and_nothing_is_audited_when_they_are_read(db, tmp_path, monkeypatch, capsys):
    row = "1,DTD,,ViT-B-16,Mine"
    wrong = f"{row},base,base accuracy,80,\n{row},new,new accuracy,60,\n{row},avg,harmonic mean,71.57,\n"
    _, found = adding.add(folder(tmp_path, values=HEAD + wrong), db)
    monkeypatch.delattr(audits, "findings")
    adding.use(tmp_path / "none.db")
    capsys.readouterr()
    assert main(["papers", "audit", "mine", "--db", str(db)]) == 1
    said = "does not follow: Mine, Table 1, DTD, Mine, avg, harmonic mean: Mine, Table 1 prints 71.57"
    assert capsys.readouterr().out.startswith(said)
    (value,) = published.of_paper("mine")
    assert published.findings_of(value) == found and not published.findings_of(published.load("mine")[0])
    place = library.added_folder(db) / "mine"
    stored = (place / "findings.csv").read_text(encoding="utf-8")
    (place / "values.csv").write_text(HEAD + wrong.replace("71.57", "68.57"), encoding="utf-8")
    assert adding.use(db) == [] and not published.of_paper("mine"), "it was about another value"
    (place / "findings.csv").write_text(stored.replace("does not follow", "is odd"), encoding="utf-8")
    (error,) = adding.use(db)
    assert "findings.csv, line 2: no audit is called 'is odd'; delete the file" in str(error)


def test_a_row_that_is_quoted_is_no_warning(db, capsys) -> None:
    assert main(["papers", "audit", "trip", "--db", str(db)]) == 0
    assert "quoted from: TRIP, Office-Home" in capsys.readouterr().out


def test_zeros_that_are_printed_are_digits_for_an_audit(db) -> None:
    """61.00 and 62.00 are not rounded to whole numbers, whose mean could be 61.80."""
    fields = {"title": "Mine", "citation": "x", "licence": "facts", "kind": "README"}
    values = read("Method\tDTD\tFood101\tAvg\nMine\t61.00\t62.00\t61.80", metric="accuracy")
    _, found = adding.write("mine", fields, values, {}, {}, db)
    assert [f.text for f in found] == [
        "Mine, Table 1 prints 61.80 for Mine, and the mean of the 2 data sets of its row is 61.50"
    ]


def test_names_of_an_added_paper_change_no_other_paper(db, tmp_path) -> None:
    made = folder(tmp_path, runs='[data]\nPACS = "food101"\n[domains.PACS]\nA = "sketch"\n')
    before = experiments.data_names("fedot")["PACS"], experiments.domain_names("fedot")["PACS"]
    adding.add(made, db)
    assert (experiments.data_names("fedot")["PACS"], experiments.domain_names("fedot")["PACS"]) == before
    assert experiments.data_names("mine")["PACS"] == "food101"
    assert experiments.domain_names("mine")["PACS"]["A"] == "sketch"


def test_values_that_nothing_measures_name_the_reason(db, tmp_path) -> None:
    lines = (
        "1,Food101,,ViT-B-16,PromptFL,avg,wisdom,70.1,\n1,Food101,,ViT-B-16,PromptFL,Mars,accuracy,70.1,\n"
    )
    adding.add(folder(tmp_path, values=VALUES + lines, runs=RUNS), db)
    _, wisdom, mars = published.load("mine")
    assert source_of(wisdom) == NoEquivalent("no single run", "FedLens measures no 'wisdom'")
    assert source_of(mars) == NoEquivalent(
        "no single run", "no domain of Food101 is called 'Mars' in a runs.toml"
    )


def match(db: Path, table: str, setting: str, blocks: int) -> None:
    """Match FedOT on Digits in a table with an experiment of so many blocks."""
    methods = [{"name": "fedot", "config": {"blocks": blocks}}]
    experiment = Experiment(data={"name": "rotated-digits"}, methods=methods)
    printed = next(one for one in tables("mine") if one.table == table)
    adding.match(printed, "Digits", setting, experiment, {"FedOT": 0}, db)


def blocks_of_values() -> list[int | None]:
    """The blocks with which each value of the added paper is measured, None where it is not matched."""
    found = [(equivalent(value), presets_of_values().get(value, [])) for value in published.load("mine")]
    assert all(len(presets) == (not isinstance(ours, NoEquivalent)) for ours, presets in found)
    return [None if isinstance(ours, NoEquivalent) else ours.fields["blocks"] for ours, _ in found]


def test_each_table_is_matched_by_itself_until_it_is_deleted(db, tmp_path) -> None:
    lines = "1,Digits,,,FedOT,avg,accuracy,80.1,\n2,Digits,,,FedOT,avg,accuracy,70.1,\n"
    adding.add(folder(tmp_path, values=HEAD + lines), db)
    match(db, "1", "", 2)
    assert blocks_of_values() == [2, None]
    match(db, "2", "", 4)
    assert blocks_of_values() == [2, 4], "matching the second table unmatched the first"
    match(db, "1", "", 8)
    assert blocks_of_values() == [8, 4]
    former = adding.remove_table("mine", "1", db)
    assert [rule.table for rule in experiments.runs("mine").methods] == [("2",)]
    assert blocks_of_values() == [4]
    adding.put("mine", former, db)
    assert blocks_of_values() == [8, 4]


def test_settings_that_begin_alike_or_have_no_name_are_matched_by_themselves(db, tmp_path) -> None:
    settings = ("", "10 clients, Dirichlet partition 0.1", "10 clients, Dirichlet partition 0.5")
    lines = [f'1,Digits,"{name}",,FedOT,avg,accuracy,8{i}.1,\n' for i, name in enumerate(settings)]
    adding.add(folder(tmp_path, values=HEAD + "".join(lines)), db)
    match(db, "1", settings[0], 2)
    assert blocks_of_values() == [2, None, None], "no name stood for every setting"
    match(db, "1", settings[1], 4)
    match(db, "1", settings[2], 8)
    assert blocks_of_values() == [2, 4, 8], "the first 40 characters are equal"


def test_a_paper_that_replaces_another_keeps_none_of_its_files(db, tmp_path) -> None:
    adding.add(folder(tmp_path, runs=RUNS), db)
    adding.add(folder(tmp_path), db)
    assert "mine/table1" not in experiments.published()


def test_a_link_to_nothing_beside_a_paper_stops_no_page(db, tmp_path) -> None:
    adding.add(folder(tmp_path), db)
    (library.added_folder(db) / "mine" / ".#values.csv").symlink_to("somebody@host.1")
    assert adding.use(db) == [] and "mine" in library.papers()


def test_an_edition_whose_paper_was_removed_is_named(db, tmp_path) -> None:
    adding.add(folder(tmp_path), db)
    adding.add(folder(tmp_path, PAPER + 'edition_of = "mine"\n', name="second"), db)
    adding.remove("mine", db)
    (error,) = adding.use(db)
    assert "edition_of is 'mine'" in str(error)


def test_a_comma_before_three_digits_is_no_decimal_comma() -> None:
    assert read("Method\tDTD\nA\t83,21")[0].value == 83.21
    with pytest.raises(
        FedLensError, match="no cell holds a value: line 2.*'1,234' may have thousands or decimals after"
    ):
        read("Method\tDTD\nA\t1,234")
    with pytest.raises(FedLensError, match="field larger than field limit"):
        read("Method,DTD\n" + "A" * 200_000 + ",3")
    (value,) = read("Data\tMethod\t\nDTD\tA\t83.2")
    assert (value.dataset, value.value) == ("DTD", 83.2), "a column of values may have no heading"


CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir"}


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do work in a process that dies before its ``step``-th change of a file; False if it came to its end."""
    child = os.fork()
    if child == 0:
        left = [step]

        def count(event: str, arguments: tuple[object, ...]) -> None:
            written = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
            if written or event in CHANGES:
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)

        sys.addaudithook(count)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("saved", [False, True], ids=["papers add", "a pasted table"])
@pytest.mark.parametrize("exists", [False, True], ids=["a new paper", "another edition"])
def test_a_kill_at_any_step_leaves_the_former_paper_or_the_new_one(db, tmp_path, monkeypatch, exists, saved):
    """A second edition's titles stood beside the first one's numbers."""
    monkeypatch.setattr(audits, "findings", lambda papers: {"mine": []})
    place = library.added_folder(db) / "mine"
    if exists:
        adding.add(folder(tmp_path, runs='[data]\nFood101 = "food101"\n'), db)
        (place / "notes.md").write_text("my own", encoding="utf-8")
    fields = {"title": "Second", "citation": "Me, 2027", "licence": "facts", "kind": "paper"}
    second = folder(tmp_path, PAPER.replace("Mine", "Second"), VALUES.replace("99.5", "12.25"))
    values = [replace(value, value=12.25, decimals=None) for value in read(VALUES)]

    def change() -> None:
        if saved:
            adding.write("mine", fields, values, {}, {}, db)
        else:
            adding.add(second, db)

    def edition() -> dict[str, str]:
        assert adding.use(db) == []
        files = (place / name for name in (*library.FILES, "notes.md"))
        found = {f.name: f.read_text(encoding="utf-8") for f in files if f.exists()}
        assert ("mine" in library.papers()) == bool(found)
        return found

    former = edition()
    shutil.copytree(tmp_path / "runs.db.papers", tmp_path / "before") if exists else None
    change()
    new = edition()
    assert ("Second" in new["paper.toml"], "12.25" in new["values.csv"]) == (True, True)
    assert (new.get("notes.md"), former.get("notes.md")) == (("my own",) * 2 if exists else (None, None))
    seen, step, killed = set(), 0, True
    while killed:
        shutil.rmtree(tmp_path / "runs.db.papers")
        shutil.copytree(tmp_path / "before", tmp_path / "runs.db.papers") if exists else None
        adding.use(db)
        step += 1
        killed = killed_at(step, change)
        left = edition()
        assert left in (former, new), step
        seen.add(left == new)
        change()
        assert edition() == new, "what a kill leaves behind is in nobody's way"
    assert step > 5 and seen == {False, True}


def test_a_save_that_is_refused_at_last_leaves_the_paper(db, tmp_path) -> None:
    adding.add(folder(tmp_path, runs=RUNS), db)
    values = [replace(value, backbone="RN50") for value in read(VALUES)]
    fields = {"title": "Mine", "citation": "Me", "licence": "facts", "kind": "paper"}
    with pytest.raises(FedLensError, match="no value in table 1 of mine matches") as error:
        adding.write("mine", fields, values, {}, {}, db)
    assert str(library.added_folder(db) / "mine" / "runs.toml") in str(error.value)
    assert adding.use(db) == [] and published.load("mine")[0].backbone == "ViT-B-16"
