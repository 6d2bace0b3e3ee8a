"""What authors publish, read as it is printed: LaTeX, Markdown, HTML, text from a page or a PDF."""

import pytest

from fedcore.base.errors import FedLensError
from fedcore.papers import adding, grids, pasted
from tests.support.papers import reading

LATEX = r"""
\newcommand{\ms}[2]{$#1_{\pm #2}$}
\def\best#1{\textbf{\underline{#1}}}
\begin{table*}[t]
\caption{Accuracy of \textbf{our} runs (\%)}
\resizebox{\linewidth}{!}{
\begin{tabular}{@{}l|ccc@{\hskip 2pt}cc@{}}
\toprule
\multirow{2}{*}{Method} & \multicolumn{3}{c}{DTD} & \multicolumn{2}{c}{\makecell{Food\\101}} \\
\cmidrule(lr){2-4}\cmidrule(lr){5-6}
 & Base & New & HM & Base & New \\
\midrule
% FedOld & 1.0 & 2.0 & 3.0 & 4.0 & 5.0 \\
\multicolumn{6}{l}{\textit{one client per domain}} \\
PromptFL~\cite{a} & \ms{77.01}{0.2} & $56.00 \pm 0.14$ & 64.85 & \cellcolor{gray!20}\best{90.10}
  & 91{\small$\pm$.5} \\
\rowcolor{blue!8} A\&B (ours)$^\dagger$ & 80.1 {\color{red}(+3.1)} & $\mathbf{60.2}_{\pm0.2}^{*}$
  & 68.7\tnote{a} & -- & \rotatebox{90}{$92.3\uparrow_{0.4}$} \\
\midrule
$\Delta$ & +3.1 & +4.2 & +3.9 & - & +1.3 \\
\bottomrule
\multicolumn{6}{l}{\footnotesize $^\dagger$ with more rounds}
\end{tabular}}
\end{table*}
"""


def read(text: str, **common: str) -> list[tuple[str, ...]]:
    """Return the values in a text: data set, setting, method, target, metric, value."""
    tables = (pasted.values(g, pasted.guess(g), {"table": "1", **common}, "mine") for g in pasted.read(text))
    found = (value for table in tables for value in table.values)
    return [(*v.line[1:3], *v.line[4:7], " ± ".join(filter(None, v.written))) for v in found]


def test_a_whole_latex_table_is_read_with_its_own_commands_and_spans() -> None:
    one = "one client per domain"
    assert read(LATEX) == [
        ("DTD", one, "PromptFL", "base", "base accuracy", "77.01 ± 0.2"),
        ("DTD", one, "PromptFL", "new", "new accuracy", "56.00 ± 0.14"),
        ("DTD", one, "PromptFL", "avg", "harmonic mean", "64.85"),
        ("Food 101", one, "PromptFL", "base", "base accuracy", "90.10"),
        ("Food 101", one, "PromptFL", "new", "new accuracy", "91 ± 0.5"),
        ("DTD", one, "A&B", "base", "base accuracy", "80.1"),
        ("DTD", one, "A&B", "new", "new accuracy", "60.2 ± 0.2"),
        ("DTD", one, "A&B", "avg", "harmonic mean", "68.7"),
        ("Food 101", one, "A&B", "new", "new accuracy", "92.3"),
    ]


def test_everything_that_is_dropped_or_taken_off_is_named() -> None:
    assert pasted.read(LATEX)[0].caption == "Accuracy of our runs (%)"
    said = "\n".join(reading(LATEX).dropped)
    for text in (
        r"commented out: FedOld & 1.0 & 2.0",
        "bold (",
        "underline (1)",
        "citations (1)",
        "colours (",
        "gains (2)",
        "footnote marks (",
        "(ours) (1)",
        "line 5, 'Δ': a difference",
        "line without values: with more rounds",
    ):
        assert text in said, text
    text = "Method,Venue,DTD,Food101\nA,CVPR 2024,70.1,OOM\nB,ICLR 2025,72.2,80.1\nC,x,none,-"
    assert [text.partition(";")[0] for text in reading(text).dropped] == [
        "column 'Venue'",
        "line 2, column 'Food101': 'OOM' is not a number",
        "line 4, column 'DTD': 'none' is not a number",
        "line 4, 'C': no value",
    ]


CELLS = {
    r"$91.0 \pm 0.2$": "91.0 ± 0.2",
    r"$91.0_{\pm0.2}$": "91.0 ± 0.2",
    r"91.0$_{\pm 0.2}$": "91.0 ± 0.2",
    r"91.0 {\scriptsize $\pm$ 0.2}": "91.0 ± 0.2",
    r"$\mathbf{91.0}_{(0.2)}$": "91.0 ± 0.2",
    r"\textbf{\underline{91.0}}": "91.0",
    r"{\bf 91.0}": "91.0",
    r"91.0\%": "91.0",
    r"91.0$^{\ddagger}$": "91.0",
    r"91.0\textsuperscript{a}": "91.0",
    r"91.0$_{\color{red}{+1.2}}$": "91.0",
    r"91.0 ($\uparrow$1.2)": "91.0",
    "\N{MINUS SIGN}3.0": "-3.0",
    "91.0 +/- 0.2": "91.0 ± 0.2",
    r"\unknown{91.0}": "91.0",
}


@pytest.mark.parametrize(("cell", "printed"), CELLS.items(), ids=CELLS)
def test_a_cell_of_latex_is_its_number(cell: str, printed: str) -> None:
    ((_, _, _, _, _, value),) = read(f"Method & DTD \\\\ \\hline\nA & {cell} \\\\", metric="score")
    assert value == printed


def test_an_undefined_command_with_two_numbers_gives_no_invented_one() -> None:
    found = reading("Method & DTD \\\\ \\hline\nA & \\ms{91.0}{0.2} \\\\ B & 80.0")
    assert [v.value for v in found.values] == [80.0]
    assert "line 2, column 'DTD': '91.0 0.2' is not a number; write 83.21 or 83.21 ± 0.14" in found.dropped
    (grid,) = pasted.read("Method & DTD \\\\ \\hline\nA & \\best{91.0} \\\\")
    assert any(r"\best, which the text does not define (1)" in note for note in grid.notes)


HTML = """<table><thead><tr><th rowspan="2">Method</th><th colspan="2">PACS</th><th rowspan="2">Avg</th></tr>
<tr><th>A</th><th>C</th></tr></thead>
<tr><td rowspan="2"><b>CLIP</b><sup>†</sup></td><td>80.1<sub>&plusmn;0.2</sub></td>
<td>70.2</td><td>75.15</td></tr>
<tr><td>81.1</td><td>-</td><td>&minus;</td></tr></table>"""


def test_html_keeps_spans_and_decimals() -> None:
    (grid,) = pasted.read(
        HTML.replace('rowspan="2"><b>', "><b>").replace("<tr><td>81.1", "<tr><td>B</td><td>81.1")
    )
    assert grid.titles == ["Method", "PACS > A", "PACS > C", "Avg"]
    assert grid.lines[0] == ("CLIP", "80.1 ± 0.2", "70.2", "75.15")
    assert pasted.read(HTML)[0].lines[1][:2] == ("CLIP", "81.1")
    assert pasted.read(HTML.replace("</td>", "").replace("</tr>", "")) == pasted.read(HTML)


def test_markdown_has_headings_of_two_lines_stacked_cells_and_rules_between_lines() -> None:
    stacked = (
        "#### Results\n\n| Dataset | Partition | FedAvg | FedProx |\n|---|:-:|---|---|\n"
        "| MNIST | IID<br>Dir(0.5) | **99.1** &#xB1; 0.1<br>98.2 | 97.0<br>96.5 |\n"
    )
    assert read(stacked) == [
        ("MNIST", "IID", "FedAvg", "avg", "accuracy", "99.1 ± 0.1"),
        ("MNIST", "IID", "FedProx", "avg", "accuracy", "97.0"),
        ("MNIST", "Dir(0.5)", "FedAvg", "avg", "accuracy", "98.2"),
        ("MNIST", "Dir(0.5)", "FedProx", "avg", "accuracy", "96.5"),
    ]
    assert pasted.read(stacked)[0].caption == "Results"
    two = "| | DTD | | EuroSAT | |\n|---|---|---|---|---|\n| | Base | New | Base | New |\n"
    two += "| [CoOp](http://a.b) | 1.5 | 2.5 | 3.5 | 4.5 |"
    assert [v[:1] + v[2:5] for v in read(two)] == [
        ("DTD", "CoOp", "base", "base accuracy"),
        ("DTD", "CoOp", "new", "new accuracy"),
        ("EuroSAT", "CoOp", "base", "base accuracy"),
        ("EuroSAT", "CoOp", "new", "new accuracy"),
    ]


def test_text_from_a_pdf_is_divided_by_its_numbers() -> None:
    text = "Method Stanford Cars DTD Avg.\nCoOp [45] 73.4 ± 0.2 63.6 68.5\nProxy Net † 70.1 - 70.1\n"
    assert [(v[0], v[2], v[5]) for v in read(text)] == [
        ("Stanford Cars", "CoOp", "73.4 ± 0.2"),
        ("DTD", "CoOp", "63.6"),
        ("avg", "CoOp", "68.5"),
        ("Stanford Cars", "Proxy Net", "70.1"),
        ("avg", "Proxy Net", "70.1"),
    ]
    with pytest.raises(
        FedLensError, match="line 1 has 5 words for 2 columns of numbers; put two spaces or a tab"
    ):
        read("Method Some Long Name B\nA 1.0 2.0\nB 3.0 4.0")
    with pytest.raises(FedLensError, match="line 3 has 1 numbers and others 2; write - where nothing"):
        read("Method A B\nA 1.0 2.0\nB 3.0\nC 1.0 2.0")


def test_methods_may_be_columns_and_data_sets_rows() -> None:
    text = "Dataset & & CLIP & CoOp \\\\ \\midrule\n"
    text += "DTD & Base & 53.2 & 79.4\\\\ & New & 59.9 & 41.2\\\\ & H & 56.4 & 54.2 \\\\"
    assert read(text)[::2] == [
        ("DTD", "", "CLIP", "base", "base accuracy", "53.2"),
        ("DTD", "", "CLIP", "new", "new accuracy", "59.9"),
        ("DTD", "", "CLIP", "avg", "harmonic mean", "56.4"),
    ]


HEADINGS = (
    ("A - W,W - A,A - D,Avg", {"target"}),
    ("IN-V2,IN-A,IN-R,OOD Average", {"dataset"}),
    ("0,15,30,Avg", {"target"}),
    ("0.1,0.5,1.0", {"setting"}),
    ("ViT-B/16,RN50", {"backbone"}),
    ("DTD Acc.,EuroSAT Acc.,Epochs", {"dataset", "metric"}),
    ("Cifar10 IID,Cifar10 Non-IID", {"dataset", "setting"}),
    ("FedAvg,FedProx,Base", {"method"}),
)


@pytest.mark.parametrize(("heads", "fields"), HEADINGS, ids=[heads for heads, _ in HEADINGS])
def test_a_line_of_headings_names_one_field(heads: str, fields: set[str]) -> None:
    label = "Dataset" if fields == {"method"} else "Method"
    (grid,) = pasted.read(f"{label},{heads}\nA{',80.1' * (heads.count(',') + 1)}")
    columns = pasted.guess(grid)
    assert {name for column in columns for name in column.names} == fields
    assert columns[0].role == label.lower()
    assert [c.role for c in columns if c.role != "value"][1:] == (["setting"] if "Epochs" in heads else [])


def test_a_title_between_lines_is_a_setting_and_an_inner_one_replaces_the_inner_one() -> None:
    row = "{} & 1.5 & 2.5 \\\\\n"
    title = "\\multicolumn{{3}}{{l}}{{{}}} \\\\\n"
    lines = [
        ("Zero-shot", 0),
        ("A", 1),
        ("1 shot", 0),
        ("training-free", 0),
        ("A", 1),
        ("trained", 0),
        ("B", 1),
    ]
    text = "".join((row if is_row else title).format(name) for name, is_row in lines)
    found = read("Method & DTD & EuroSAT \\\\ \\midrule\n" + text)
    assert [v[1:3] for v in found[::2]] == [
        ("Zero-shot", "A"),
        ("1 shot, training-free", "A"),
        ("1 shot, trained", "B"),
    ]


def test_blocks_of_one_table_have_headings_of_their_own() -> None:
    text = (
        r"& \multicolumn{2}{c}{DTD} \\ & Base & New \\ \midrule CoOp & 1.5 & 2.5 \\ \midrule"
        r"& \multicolumn{2}{c}{EuroSAT} \\ & Base & New \\ \midrule CoOp & 3.5 & 4.5 \\"
    )
    assert [(v[0], v[3], v[5]) for v in read(text)] == [
        ("DTD", "base", "1.5"),
        ("DTD", "new", "2.5"),
        ("EuroSAT", "base", "3.5"),
        ("EuroSAT", "new", "4.5"),
    ]
    assert [grid.source for grid in pasted.read(text)] == [0, 0]
    (grid,) = pasted.read(text.replace(r"\midrule CoOp & 3.5 & 4.5 \\", ""))
    assert [note for note in grid.notes if "without values" in note] == [
        "line without values: EuroSAT",
        "line without values: Base New",
    ]


def test_a_planted_wrong_mean_is_found_in_what_was_pasted(tmp_path, monkeypatch) -> None:
    """``Method | Base | New | HM`` became a data set "HM", and a wrong mean passed the audits."""
    monkeypatch.delenv("FEDLENS_PAPERS", raising=False)
    fields = {"title": "Mine", "citation": "x", "licence": "facts", "kind": "README"}

    def findings(text: str) -> list[str]:
        values = reading(text, dataset="DTD").values
        _, found = adding.write("mine", fields, values, {}, {}, tmp_path / "runs.db")
        adding.remove("mine", tmp_path / "runs.db")
        return [finding.kind for finding in found]

    right = "| Method | Base | New | HM |\n|---|---|---|---|\n| A | 80.00 | 60.00 | 68.57 |"
    assert findings(right) == []
    assert findings(right.replace("68.57", "71.57")) == ["does not follow"]
    domains = "Method\tPhoto\tSketch\tAvg\nA\t80.00\t60.00\t70.00"
    assert findings(domains) == []
    assert findings(domains.replace("70.00", "71.00")) == ["does not follow"]


def test_a_command_that_stands_for_itself_is_refused() -> None:
    with pytest.raises(FedLensError, match="stands for itself"):
        read("\\newcommand{\\a}{\\a\\a}\nMethod & DTD \\\\ \\hline\nA & \\a \\\\")


@pytest.mark.parametrize(
    "text",
    [
        "\\begin{tabular}{l",
        "& \\\\ &",
        "<table><tr>",
        "| |\n| |",
        "\\hline & {",
        "$&\\\\",
        "\\\\ & " + "{" * 5000,
    ],
)
def test_a_broken_text_is_an_error_in_words(text: str) -> None:
    with pytest.raises(FedLensError):
        read(text)
    assert grids.NUMBER.fullmatch("80.1 ± 0.2")
