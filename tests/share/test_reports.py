"""A report holds the database's numbers, runs nothing of its users' text, and asks nobody for anything."""

import html
import io
import json
import shutil
import sqlite3
import xml.etree.ElementTree as ET
import zipfile
from dataclasses import replace
from pathlib import Path

import lxml.html
import pytest

from fedcore.base.consent import digest
from fedcore.base.errors import FedLensError
from fedcore.base.events import Notice
from fedcore.base.files import zipped
from fedcore.base.progress import Progress, result_of
from fedcore.config import MethodEntry
from fedcore.methods import registry
from fedcore.results import comparison
from fedcore.results.comparison import compare
from fedcore.results.finding import findings
from fedcore.results.rows import setting_paragraph
from fedcore.share import folder
from fedcore.share.checked import WRITERS, ComparisonChoices, checked_comparison
from fedcore.share.content import Report, Wording, notices, read_report
from fedcore.share.folder import figure_files, report_files, write_folder
from fedcore.share.page import draw, report_html
from fedcore.share.views import Figure
from fedcore.store import Recorder, RunRow, Store
from fedcore.store.damage import Integrity, write_identity
from fedcore.store.database import writing
from tests.support import fill
from tests.support.exported import exported

HOSTILE = '"><script>window.owned=1</script><img src=x onerror="window.owned=1">{{ 7*7 }} $(touch owned) `id`'
BASELINE = "$x_{$ & <b>%"


class Page:
    """The tags of a page, its scripts by type, and the cells of its tables by caption."""

    def __init__(self, text: str) -> None:
        page = lxml.html.document_fromstring(text)
        self.tags = [(e.tag, dict(e.attrib)) for e in page.iter() if isinstance(e.tag, str)]
        self.scripts = [(e.get("type") or "", e.text or "") for e in page.iter("script")]
        self.tables: dict[str, list[list[Cell]]] = {}
        for table in page.iter("table"):
            rows = ([Cell(cell) for cell in row.iter("td", "th")] for row in table.iter("tr"))
            self.tables.setdefault(table.findtext("caption") or "", []).extend(rows)


class Cell:
    """A cell's text, and the number behind it."""

    def __init__(self, element: lxml.html.HtmlElement) -> None:
        self.text = element.text or ""
        self.value = float(element.get("data-value") or "nan")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished experiment whose name, labels and environment try to become HTML, LaTeX or shell."""
    db = tmp_path_factory.mktemp("hostile") / "runs.db"
    entries = (MethodEntry(name="fedot", label=HOSTILE), MethodEntry(name="promptfl", label=BASELINE))
    experiment = fill.an_experiment(HOSTILE, ("fedot",), (1,), 2)
    fill.done(db, experiment.model_copy(update={"methods": entries}))
    environment = {"device": "cpu", "threads": "1; touch owned", "fedlens": f"{HOSTILE}\ntouch owned"}
    noted = [{"message": HOSTILE, "repeats_exactly": True}]
    with writing(db) as database:
        database.execute(
            "UPDATE runs SET environment=?, notices=?", [json.dumps(environment), json.dumps(noted)]
        )
        for (run,) in database.execute("SELECT id FROM runs").fetchall():
            write_identity(database, run)
    return db


def content(db: Path, **choice: object) -> Report:
    with checked_comparison(Store(db), [1], ComparisonChoices(**choice)) as checked:
        return result_of(read_report(checked))


OWN_CELLS = (
    "FROM accuracy a JOIN runs r ON r.id = a.run_id WHERE r.experiment_id = 1 AND r.label = ? "
    "AND a.split = 2 AND a.stage = 1 AND a.round = r.rounds_done"
)


def from_counts(db: Path, what: str, condition: str, *values: object) -> float:
    connection = sqlite3.connect(db)
    (value,) = connection.execute(f"SELECT {what} {OWN_CELLS} AND {condition}", values).fetchone()
    connection.close()
    return float(value)


def personal(db: Path, label: str) -> float:
    """Mean of own models on own samples over clients and seeds: all have equally many."""
    return from_counts(db, "avg(100.0 * a.correct / a.total)", "a.model = a.test_set", label)


def test_the_table_has_the_numbers_of_the_database(filled: Path) -> None:
    report = content(filled, baseline="PromptFL", metric="personal")
    text = result_of(report_html(report))
    (found,) = findings(report.summary).values()
    assert "is significantly worse than PromptFL" in found and html.escape(found) in text
    page = Page(text)
    header, *rows = next(rows for title, rows in page.tables.items() if title.startswith("Summary of"))
    titles = [cell.text for cell in header]
    column, gap = titles.index("Personal, %"), titles.index("Personal: difference, points")
    for row in rows:
        label, expected = row[0].text, personal(filled, row[0].text)
        assert row[column].value == pytest.approx(expected), label
        assert row[column].text.startswith(f"{expected:.2f} ± ")
        if label != "PromptFL":
            assert row[gap].value == pytest.approx(expected - personal(filled, "PromptFL"))
    summary = next(
        i for i, (_, a) in enumerate(t for t in page.tags if t[0] == "script") if a.get("id") == "summary"
    )
    means = {r["label"]: r["mean"] for r in json.loads(page.scripts[summary][1]) if r["metric"] == "personal"}
    assert means == {label: pytest.approx(personal(filled, label), abs=1e-5) for label in means}
    assert len(means) == len(rows) == 5


def test_the_heatmaps_have_the_cells_of_the_database(filled: Path) -> None:
    models = next(h for h in content(filled).sections[0].figures if h.name == "models")
    panel = next(p for p in models.panels if p.title == "FedOT")
    named = (
        "a.{0} = (SELECT entity FROM entities e WHERE e.run_id = r.id AND e.kind = 'client' AND e.name = ?)"
    )
    where = f"{named.format('model')} AND {named.format('test_set')}"
    for i, model in enumerate(panel.rows[1:], 1):  # the first row is the global model
        for j, test_set in enumerate(panel.columns):
            expected = from_counts(
                filled, "avg(100.0 * a.correct / a.total)", where, "FedOT", model, test_set
            )
            assert panel.values[i, j] == pytest.approx(expected)


def test_text_of_users_stays_text(hostile: Path) -> None:
    page = Page(result_of(report_html(content(hostile))))
    running = [text for kind, text in page.scripts if not kind]
    assert len(running) == 1, "the script that shows what the pointer is on"
    assert not any("window.owned" in text for text in running)
    assert not {tag for tag, _ in page.tags} & {"img", "iframe", "object", "link", "base", "form"}
    for _, attributes in page.tags:
        assert not any(name == "src" or name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith(("#", "data:image/png;", "data:text/plain;"))
    assert all(json.loads(text) for kind, text in page.scripts if kind)


def test_the_policy_names_the_script_and_forbids_all_else(filled: Path) -> None:
    page = Page(result_of(report_html(content(filled))))
    policy = next(a["content"] or "" for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    script = next(part for part in policy.split(";") if "script-src" in part)
    assert policy.startswith("default-src 'none'") and "http" not in policy
    assert script.count("'sha256-") == 1 and "unsafe" not in script


def test_the_author_gives_title_notes_and_parts(filled: Path) -> None:
    wording = Wording("Two <b>methods</b>", "First.\n\nSecond & last.", ("summary", "curves"))
    with checked_comparison(Store(filled), [1]) as checked:
        report, steps = result_of(read_report(checked, wording)), list[Progress]()
        text = result_of(report_html(report), steps.append)
        figures = sum(len(section.figures) for section in report.sections)
        assert [(s.done, s.total) for s in steps] == [(i, figures) for i in range(figures)] != []
        with pytest.raises(FedLensError, match="no part 'heatmaps'"):
            result_of(read_report(checked, Wording(parts=("heatmaps",))))
    page = Page(text)
    assert "<h1>Two &lt;b&gt;methods&lt;/b&gt;</h1>" in text
    assert '<p class="notes">First.</p>' in text and '<p class="notes">Second &amp; last.</p>' in text
    sections = [a.get("id") for tag, a in page.tags if tag == "section"]
    assert not {"configs", "environment", "runs", "reproduction", "citation"} & set(sections)
    titles = [title for title in page.tables if title]
    assert any(title.startswith("Summary of") for title in titles)
    assert "Personal accuracy by round" in titles and "Model by test set" not in text


def test_the_paragraph_says_what_was_run(filled: Path) -> None:
    (section,) = content(filled).sections
    assert section.paragraph.startswith("Data: Rotated digits (1,797 handwritten digits")
    assert "6 clients with the images of one domain each." in section.paragraph
    assert section.paragraph.endswith(
        "Zero-shot CLIP does not train; the other 4 methods trained for 10 rounds with all clients, with "
        "seeds 1 to 3."
    )


def test_the_paragraph_does_not_say_that_zero_shot_clip_trained(db: Path) -> None:
    fill.done(db, fill.an_experiment(methods=("zero-shot",), seeds=(1, 2), rounds=2))
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=2))
    alone, beside = (setting_paragraph(Store(db), compare(Store(db), ids).rows) for ids in ([1], [1, 2]))
    assert alone.endswith(". Zero-shot CLIP does not train and was tested with seeds 1 and 2.")
    assert beside.endswith(
        ". Zero-shot CLIP does not train; the other method trained for 2 rounds with all clients, with "
        "seeds 1 and 2."
    )


def test_the_paragraph_does_not_say_all_seeds_of_each_row_nor_methods_of_variants(db: Path) -> None:
    fill.done(db, fill.an_experiment(methods=("fedot", "sdfed"), seeds=(1, 2, 3), rounds=2))
    fill.done(db, fill.an_experiment(methods=("sdfed",), seeds=(4, 5), rounds=2))
    compared = compare(Store(db), [1, 2])
    assert setting_paragraph(Store(db), compared.rows).endswith(
        "Both methods trained for 2 rounds with all clients, with 3 to 5 of the seeds 1 to 5 each."
    )
    sweep = {"methods.fedot.blocks": (1, 4)}
    fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=2, sweep=sweep))
    assert "Both rows of the table trained" in setting_paragraph(Store(db), compare(Store(db), [3]).rows)


def test_one_command_repeats_runs_of_a_method_of_ones_own(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page and the folder hold the method's file, as long as it is the one that was planned with."""
    file = tmp_path / "shift é.py"
    shutil.copy(Path(__file__).parents[2] / "examples" / "text_shift.py", file)
    entry = MethodEntry(name="text-shift", file=str(file), sha256=digest(file.read_bytes()))
    for table in ("_METHODS", "_FILES"):  # so that no other test meets the method
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    registry.load_file(file)
    fill.done(
        db,
        fill.an_experiment(methods=("fedot",), seeds=(1,), rounds=1).model_copy(update={"methods": (entry,)}),
    )
    found = content(db).recipe
    place = "methods/shift _.py"
    assert found.methods[place].text == file.read_text("utf-8") and not found.missing
    assert found.runs[0].config.method.file == place and str(tmp_path) not in found.model_dump_json()

    file.write_text(file.read_text("utf-8") + "# changed\n", "utf-8")
    found = content(db).recipe
    assert found.missing == ("shift é.py",) and not found.methods


@pytest.fixture(scope="module")
def files(hostile: Path) -> dict[str, bytes]:
    """All files of a report, which are one comparison and one check of the database."""
    calls: list[str] = []

    def spied(owner: object, name: str) -> None:
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **options: calls.append(name) or real(*args, **options))

    kinds: set[tuple[type[Figure], bool]] = set()

    def drawn(figure: Figure) -> dict[str, bytes]:
        """One PDF of each kind is enough: most of its time goes into its fonts."""
        with pytest.MonkeyPatch.context() as patch:
            if (type(figure), figure.narrow) in kinds:
                patch.setattr(folder, "pdf_file", lambda picture: b"%PDF")
            kinds.add((type(figure), figure.narrow))
            return figure_files(figure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "figure_files", drawn)
        spied(Integrity, "findings")
        spied(comparison, "run_results")
        with checked_comparison(Store(hostile), [1], ComparisonChoices(baseline=BASELINE)) as checked:
            made = result_of(report_files(checked))
    assert calls == ["findings", "run_results"]
    return made


def test_the_folder_has_the_files_of_the_exports(
    hostile: Path, files: dict[str, bytes], tmp_path: Path
) -> None:
    store = Store(hostile)
    assert files["summary.csv"].decode() == exported(store, [1], baseline=BASELINE)
    assert files["configs.csv"].decode() == exported(store, [1], "configs")
    assert json.loads(files["summary.json"])["summary"]
    written = tmp_path / "report"
    write_folder(files, written)
    assert {p.relative_to(written).as_posix() for p in written.rglob("*") if p.is_file()} == set(files)
    readme = files["README.txt"].decode()
    assert all(f"\n{name.split('/')[0]}" in readme for name in files if name != "README.txt")
    assert {table for table, _ in WRITERS} - {name.partition(".")[0] for name in files} == {
        "experiment",  # experiments.json
        "leaderboard",  # not every comparison has one
    }
    with pytest.raises(FedLensError, match="not an empty folder"):
        write_folder(files, written)
    with zipfile.ZipFile(io.BytesIO(zipped(files, "a report"))) as archive:
        assert {n.removeprefix("a report/") for n in archive.namelist()} == set(files)


def test_every_file_is_of_the_moment_of_the_check(filled: Path, tmp_path: Path) -> None:
    """What is written or deleted while the files are made changes none of them."""
    db = shutil.copytree(filled.parent, tmp_path / "copy") / filled.name
    with checked_comparison(Store(db), [1]) as checked:
        before = ["".join(write(checked)) for write in WRITERS.values()]
        Store(db).experiments.delete(1)
        assert ["".join(write(checked)) for write in WRITERS.values()] == before
    with pytest.raises(FedLensError, match="no experiment 1"):
        exported(Store(db), [1])


def test_figures_have_the_width_of_a_column_and_text_that_is_text(files: dict[str, bytes]) -> None:
    figures = {name: made for name, made in files.items() if name.startswith("figures/")}
    assert len({name.rsplit(".", 1)[0] for name in figures}) * 2 == len(figures) >= 14
    for name, made in figures.items():
        if name.endswith(".svg"):
            drawing = ET.fromstring(made)
            width = float(drawing.attrib["width"].removesuffix("pt")) / 72
            assert width in (pytest.approx(3.33), pytest.approx(6.9)), name
            texts = [e.text or "" for e in drawing.iter("{http://www.w3.org/2000/svg}text")]
            assert BASELINE in texts or "difference" in name or "curves" in name, texts
        else:
            assert made.startswith(b"%PDF") and b"/Type3" not in made, name


def test_equal_content_gives_equal_figures(hostile: Path, files: dict[str, bytes]) -> None:
    (section,) = content(hostile, baseline=BASELINE).sections
    shown = next(figure for figure in section.figures if figure.name.startswith("curves-"))
    made = figure_files(shown)
    assert made == {suffix: files[f"figures/1-{shown.name}.{suffix}"] for suffix in made}


def test_the_recipe_has_the_runs_behind_the_numbers_only(db: Path) -> None:
    number = fill.done(db, fill.an_experiment(methods=("fedot",), seeds=(1, 2), rounds=1))
    run = Recorder(db, method="fedot", label="Mine", seed=1, experiment=number, rounds_total=1)
    run.round(1, {(client, client): (1, 10) for client in fill.CLIENTS})
    run.finish()
    with writing(db) as database:
        database.execute("UPDATE runs SET status='stopped' WHERE id = 2")
    (experiment,) = content(db).recipe.experiments
    assert [(r.number, r.origin, r.label) for r in experiment.runs] == [
        (1, "engine", "FedOT"),
        (2, "recorder", "Mine"),
    ]
    assert [r.config.seed for r in content(db, unfinished=True).recipe.runs if r.origin == "engine"] == [1, 2]


def test_a_damaged_database_gives_no_report(hostile: Path, tmp_path: Path) -> None:
    copy = tmp_path / "runs.db"
    with sqlite3.connect(hostile) as source, sqlite3.connect(copy) as target:
        source.backup(target)
        target.execute("UPDATE accuracy SET correct = correct + 1 WHERE run_id = 2 AND model = 1")
    with pytest.raises(FedLensError, match="is damaged"):
        content(copy)


def test_a_baseline_is_also_known_by_its_methods_name(filled: Path) -> None:
    by_name, by_label = (content(filled, baseline=given) for given in ("promptfl", "PromptFL"))
    assert by_name.choice == by_label.choice


def test_what_cannot_be_reported_is_said(filled: Path) -> None:
    with pytest.raises(FedLensError, match="no method 'nobody'"):
        content(filled, baseline="nobody")
    with pytest.raises(FedLensError, match="no row has the metric 'generalisation'"):
        content(filled, metric="generalisation")


def test_a_notice_of_several_runs_names_them_in_the_plural(filled: Path) -> None:
    report = content(filled)
    noted = [replace(run, notices=(Notice("same for all"),)) for run in report.comparison.runs[:2]]

    def said(runs: list[RunRow]) -> list[str]:
        changed = replace(report.comparison, runs=tuple(runs))
        return notices(replace(report, summary=replace(report.summary, comparison=changed)))

    assert "Runs 1 to 2: same for all" in said(noted)
    assert "Run 1: same for all" in said(noted[:1])


@pytest.mark.parametrize("exists", [False, True])
def test_a_report_that_is_cut_off_leaves_nothing_and_can_be_repeated(tmp_path: Path, exists: bool) -> None:
    """A process that was killed left half of the files, and the next one refused to write beside them."""

    class CutOff(dict[str, bytes]):
        def items(self):  # type: ignore[no-untyped-def, override]
            yield "report.html", b"page"
            raise KeyboardInterrupt

    folder = tmp_path / "new" / "report"
    if exists:
        folder.mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        write_folder(CutOff(), folder)
    assert not folder.exists() or not any(folder.iterdir())
    write_folder({"figures/a.svg": b"a", "README.txt": b"b"}, folder)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        "new/report/figures/a.svg",
        "new/report/README.txt",
    }


def test_a_report_says_which_runs_did_not_finish(filled: Path) -> None:
    with checked_comparison(Store(filled), [2], ComparisonChoices(unfinished=True)) as checked:
        report = result_of(read_report(checked))
    assert any("failed: CUDA out of memory" in text for text in notices(report))
    rows = compare(Store(filled), [2], unfinished=True).best_first("personal").rows
    assert [g.label for g in report.comparison.rows] == [g.label for g in rows]
    listed = Page(result_of(report_html(report))).tables["All runs"][1:]
    assert [int(row[0].text) for row in listed] == [r.id for r in Store(filled).runs.of_experiments([2])]


def test_every_chart_says_what_it_shows(filled: Path) -> None:
    drawings = [draw(shown) for section in content(filled).sections for shown in section.figures]
    assert len(drawings) >= 7
    for drawing in drawings:
        assert drawing.alt.endswith(".") and "no data yet" not in drawing.alt, drawing.title
        assert all(table.rows for table in drawing.numbers), drawing.title


def test_a_folder_of_the_users_with_a_similar_name_stays(tmp_path: Path) -> None:
    """The name of the unfinished report was one that a user may choose, and was cleared first."""
    (tmp_path / "results.part").mkdir()
    (tmp_path / "results.part" / "notes.txt").write_text("mine")
    write_folder({"README.txt": b"b"}, tmp_path / "results")
    assert (tmp_path / "results.part" / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "results.part"]
