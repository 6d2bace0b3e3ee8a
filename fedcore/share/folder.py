"""The report as files: the HTML page, figures, LaTeX, CSV, JSON, and the files of the user's own methods."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fedcore.base.errors import FedLensError
from fedcore.base.progress import Progress, Work
from fedcore.results.charts.vector import PIXELS_PER_INCH, pdf_file, svg_file
from fedcore.results.sharing import bibtex, slug
from fedcore.share import SUFFIXES
from fedcore.share.checked import WRITERS, CheckedComparison
from fedcore.share.content import Report, Wording, read_report, sources
from fedcore.share.page import PAGE_WIDTH, picture, report_html
from fedcore.share.recipe import METHODS
from fedcore.share.views import Figure

PAGE = "report.html"
FIGURES = "figures"
COLUMN_WIDTH = 3.33 * PIXELS_PER_INCH
"""Width of one column of a paper."""
CONTENTS = {
    PAGE: "the whole comparison; opens from disk. `fedlens rerun report.html` trains its runs again",
    f"{FIGURES}/": "charts as PDF and SVG at the width of one or two columns",
    "summary.tex": "the table for a paper, with booktabs",
    "summary.csv": "a row per method and metric, with the test against the baseline",
    "domains.csv": "a row per method, a column per domain",
    "configs.csv": "a row per method, a column per field of its config",
    "breakdowns.csv": "a row per method and domain or client",
    "costs.csv": "what each method and seed needed to reach a share of the best: rounds, MB, seconds",
    "rounds.csv": "every recorded accuracy, with counts",
    "clients.csv": "a row per run, round and client",
    "diagnostics.csv": "a row per run, round, diagnostic and client or pair of clients",
    "summary.json": "the summary, with config and environment of every run",
    "experiments.json": "everything recorded; `fedlens import` reads it",
    f"{METHODS}/": "files of your own methods and encoders, as in the page",
    "citation.bib": "how to cite FedLens, the methods, the data and the model",
}
"""What a report's README says of its files. A report has only the tables that are named here: a leaderboard,
for example, is not of every comparison."""


def report_files(checked: CheckedComparison, wording: Wording | None = None) -> Work[dict[str, bytes]]:
    """Return all files of a report by path in the folder."""
    report = yield from read_report(checked, wording)
    texts = {PAGE: (yield from report_html(report))}
    for done, ((table, format), write) in enumerate(WRITERS.items()):
        yield Progress("writing the tables", done, len(WRITERS))
        name = f"{'experiments' if table == 'experiment' else table}.{SUFFIXES[format]}"
        if name in CONTENTS:
            texts[name] = "".join(write(checked))
    texts |= {path: method.text for path, method in report.recipe.methods.items()}
    files = {name: text.encode() for name, text in texts.items()}
    files |= yield from paper_files(checked, report)
    files["README.txt"] = _readme(report, files).encode()
    return files


def paper_files(checked: CheckedComparison, report: Report) -> Work[dict[str, bytes]]:
    """Return those files of a report that a paper needs: the table in LaTeX, BibTeX, and the figures."""
    table = "".join(WRITERS["summary", "latex"](checked))
    files = {"summary.tex": table.encode(), "citation.bib": bibtex(report.comparison.rows).encode()}
    figures = [
        (f"{FIGURES}/{number}-{slug(figure.name) or 'figure'}", figure)
        for number, section in enumerate(report.sections, 1)
        for figure in section.figures
    ]
    for done, (name, figure) in enumerate(figures):
        yield Progress("writing the figures", done, len(figures))
        files |= {f"{name}.{suffix}": content for suffix, content in figure_files(figure).items()}
    return files


def figure_files(figure: Figure) -> dict[str, bytes]:
    """Return one figure in every format by suffix; equal content gives equal bytes.

    LaTeX includes it without scaling.
    """
    drawn, alt = picture(figure, COLUMN_WIDTH if figure.narrow else PAGE_WIDTH)
    return {"pdf": pdf_file(drawn), "svg": svg_file(drawn, alt)}


def _readme(report: Report, files: Mapping[str, bytes]) -> str:
    settings = [f"{i}: {s.table.title}" for i, s in enumerate(report.sections, 1)]
    papers = [f"{title}: {source}" for title, source in sources(report)]
    parts = [
        [f"Report of {report.name}"],
        [
            f"{name:<18}{text}"
            for name, text in CONTENTS.items()
            if any(each.startswith(name) for each in files)
        ],
        ["The number at the beginning of a figure's name is its setting:", *settings],
        ["Papers of the methods:", *papers] if papers else [],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def check_new(folder: Path) -> None:
    """Refuse a folder for a report that has content, or is a file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedLensError(f"{folder} is not an empty folder; name a new one", "output")


def write_folder(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a report into a folder that is new or empty; after an error nothing of them is left.

    They get their place together, so that the end of this process leaves no half of a report there.
    """
    place = folder.resolve()
    part = place.with_name(f".{place.name}.fedlens-part")  # no folder of the user's has this name
    try:
        check_new(folder)
        new_folders = [parent for parent in place.parents if not parent.exists()]
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        try:
            for name, content in files.items():
                path = part / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if place.exists():  # it may be the working folder of a shell, so it is not replaced
                for made in part.iterdir():
                    made.rename(place / made.name)
                part.rmdir()
            else:
                part.rename(place)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            with suppress(OSError):  # others may have put files there meanwhile
                for parent in new_folders:
                    parent.rmdir()
            raise
    except OSError as error:
        raise FedLensError(
            f"cannot write {folder}: {error.strerror}; choose another folder", "output"
        ) from error
