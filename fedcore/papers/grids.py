"""Tables in LaTeX, Markdown, HTML, CSV or plain text, as grids of cells without spans and marks."""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

from pylatexenc import latex2text, latexwalker, macrospec

from fedcore.base.errors import FedLensError

LARGEST = 2_000
"""Lines of a pasted table."""
EMPTY = ("", "-", "\N{EN DASH}", "\N{EM DASH}", "n/a", "N/A", "--", "---")
_ONE = r"(?:\d+(?:[.,]\d+)?|\.\d+)"
NUMBER = re.compile(rf"(?P<value>[-+]?{_ONE}) ?%?(?: ?[±(] ?(?P<std>{_ONE}) ?%?\)?)?")
_ARROWS = "↑↓▲▼△"
_GAIN = re.compile(
    rf"([-+]?{_ONE}%?(?: ?± ?{_ONE})?)"
    rf"( ?\( ?[-+{_ARROWS}] ?{_ONE} ?%?\)| ?\( ?{_ONE} ?%? ?[{_ARROWS}]\)"
    rf"| [-+]{_ONE}%?| ?[{_ARROWS}] ?[-+]?{_ONE}%?)"
)
_SYMBOLS = re.compile(f"[†‡§¶\N{ASTERISK OPERATOR}⋆★☆♠♣♦♥◇{_ARROWS}]")
_BREAK = "\x03"
"""Between the lines of a cell."""
_OPEN, _CLOSE = "\x01", "\x02"
"""Around what stands below or above the line, behind ``_`` or ``^``."""
_SCRIPT = re.compile(f"([_^])(?:{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}|(\\S))")
_TAKEN_OFF = {
    "footnote marks": _SYMBOLS,
    "citations": re.compile(r" ?\[\d+(?:, ?\d+)*\]$"),
    "venues": re.compile(r"(?<=\S) ?[(\[][A-Z]\w+\W{0,2}(?:\w+ )?(?:20)?[12]\d[)\]]$"),
    "(ours)": re.compile(r"(?<=\S) *(?:\([Oo]urs\)| [Oo]urs)$"),
}
"""Mark of a cell -> what of its text it is."""
_BRACES = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_DEFINITION = re.compile(
    r"\\(?:(?:new|renew|provide)command\*?|def)\s*\{?\\([A-Za-z]+)\}?\s*(?:\[(\d)\])?"
    rf"(?:\[([^\]]*)\])?((?:#\d)*)\s*({_BRACES})"
)
"""Definition of a command: name, number of arguments, default of the first, arguments of ``def``, body."""
_TABULAR = {"tabular": "[{", "tabular*": "{[{", "tabularx": "{[{", "tabulary": "{[{", "longtable": "[{"}
"""Environments that are tables, with the form of their arguments."""


@dataclass(frozen=True)
class SourceCell:
    """A cell as written; ``rows`` is negative if it spans lines above."""

    text: str
    columns: int = 1
    rows: int = 1


@dataclass(frozen=True)
class Grid:
    """A table with one text per place; what spans several places stands in each.

    Attributes:
        source: number of its table in the text; a table with headings between its lines has several grids.
        heads: the lines of headings.
        notes: what was taken off or left out.
    """

    source: int
    caption: str
    heads: tuple[tuple[str, ...], ...]
    lines: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    @property
    def titles(self) -> list[str]:
        """The heading of each column; that of several lines as ``PACS > base``."""
        return [" > ".join(filter(None, dict.fromkeys(column))) for column in zip(*self.heads, strict=True)]


@dataclass
class _Found:
    lines: list[list[str]]
    caption: str = ""
    heads: int = 1
    has_spans: bool = True


def read(text: str, is_name: Callable[[str], bool]) -> list[Grid]:
    """Return the tables in a text.

    Args:
        is_name: whether several words are one name, which plain text does not tell.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > LARGEST:
        raise FedLensError(
            f"the table has {len(lines):,} lines; divide it into tables of {LARGEST:,}", "table"
        )
    marks: Counter[str] = Counter()
    latex = re.search(r"(?<!\\)&", text) and re.search(r"\\\\|\\[a-z]+rule|\\hline", text)
    if latex:
        try:
            found, comments = _Latex(marks).tables(text)
        except RecursionError:
            raise FedLensError("the LaTeX has too many braces within braces; simplify it", "table") from None
    elif "<tr" in text.lower() or sum("|" in line for line in lines) > 1:
        found, comments = [*_html(text, marks), *_markdown(text, marks)], []
    else:
        found, comments = [_Found(_delimited(lines, marks, is_name), has_spans=False)], []
    notes = [f"commented out: {comment}" for comment in comments]
    if marks:
        notes.append("taken off: " + ", ".join(f"{mark} ({count})" for mark, count in marks.most_common()))
    grids = [grid for i, table in enumerate(found) for grid in _parts(table, i, notes)]
    if not grids:
        raise FedLensError("paste a line of headings and at least one line of values", "table")
    return grids


def _filled(rows: Sequence[Sequence[SourceCell]], has_empty: bool) -> list[list[str]]:
    """Return lines of equal length, in which a spanning cell stands in all of its places.

    Args:
        has_empty: whether an empty cell is written below one that spans lines, as in LaTeX.
    """
    places: dict[tuple[int, int], str] = {}
    for i, row in enumerate(rows):
        j = 0
        for cell in row:
            while not has_empty and (i, j) in places:
                j += 1
            down = range(cell.rows) if cell.rows > 0 else range(cell.rows + 1, 1)
            for place in [(i + d, j + right) for d in down for right in range(cell.columns)]:
                if not places.get(place) or (cell.text and place[0] == i):
                    places[place] = cell.text
            j += cell.columns
    width = max((column for _, column in places), default=-1) + 1
    lines = [[places.get((i, j), "").split(_BREAK) for j in range(width)] for i in range(len(rows))]
    return [line for cells in lines for line in _stacked(cells)]


def _stacked(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return a line for each line of its cells, if those of two lines or more agree in their number."""
    counts = {len(parts) for parts in cells} - {1}
    if len(counts) == 1 and sum(len(parts) > 1 for parts in cells) > 1 and NUMBER.search(cells[-1][-1]):
        return [[parts[i % len(parts)] for parts in cells] for i in range(counts.pop())]
    return [[" ".join(parts) for parts in cells]]


def _parts(table: _Found, source: int, notes: Sequence[str]) -> Iterator[Grid]:
    """Divide a table at headings between its lines, and give each line the title of its section."""
    lines = [line for line in table.lines if any(line)]
    starts = [0, *(i for i in range(1, len(lines)) if _is_heading(lines, i))]
    starts = [i for i in starts if i - 1 not in starts]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        part = lines[start:end]
        heads = table.heads if start == 0 else 1
        while heads < len(part) and (
            _is_heading(part, heads) or (table.has_spans and part[heads][0] in ("", part[0][0]))
        ):
            heads += 1
        body: list[list[str]] = []
        titles: list[str] = []
        following: list[str] = []  # titles without a line yet; they replace as many of the inner ones
        for line in part[heads:]:
            named = set(filter(None, line))
            if len(named) == 1 and (len(line) > 2 or not line[1]) and not NUMBER.fullmatch(min(named)):
                following += named
            else:
                titles, following = [*titles[: max(len(titles) - len(following), 0)], *following], []
                body.append([", ".join(titles), *line])
        left = [f"line without values: {title}" for title in following]
        if body and len(part[0]) > 1:
            first = 0 if any(line[0] for line in body) else 1
            named_heads = [["", *line][first:] for line in part[:heads]]
            for upper, lower in itertools.pairwise([] if table.has_spans else named_heads):
                for i in range(2, len(upper)):
                    upper[i] = upper[i] or (upper[i - 1] if lower[i] else "")
            cells = tuple(tuple(line[first:]) for line in body)
            yield Grid(source, table.caption, tuple(map(tuple, named_heads)), cells, (*notes, *left))


def _is_heading(lines: Sequence[Sequence[str]], i: int) -> bool:
    """Return whether a line is one of headings: texts alone, under a first cell that is one or empty."""
    texts = {text for text in lines[i][1:] if text not in EMPTY}
    own = lines[i][0] in ("", lines[0][0]) or lines[i][0].lower() in ("method", "methods", "dataset")
    return own and bool(texts) and not any(map(NUMBER.fullmatch, texts)) and len({*texts, lines[i][0]}) > 1


def _clean(text: str, marks: Counter[str]) -> str:
    """Return a cell without marks; what stands below or above the line is a spread, a mark or a name."""

    def script(match: re.Match[str]) -> str:
        inner = (match[2] if match[2] is not None else match[3]).strip()
        behind_number = text[: match.start()].rstrip("% ")[-1:].isdigit()
        if text[: match.start()].rstrip().endswith(tuple(_ARROWS)):
            return inner
        spread = re.fullmatch(rf"\(?(±|\+/?-)? ?({_ONE}) ?%?\)?", inner)
        if spread and (spread[1] or (match[1] == "_" and behind_number)):
            return f" ± {spread[2]}"
        if behind_number and re.fullmatch(rf"\(?[-+{_ARROWS}] ?{_ONE} ?%? ?[{_ARROWS}]?\)?", inner):
            marks["gains"] += 1
            return ""
        if match[1] == "^" and (not inner[1:] if behind_number else not re.search(r"\w", inner)):
            marks["footnote marks"] += bool(inner)
            return ""
        return match[1] + inner

    text = text.replace("\N{MINUS SIGN}", "-")
    before = ""
    while before != text:
        before, text = text, _SCRIPT.sub(script, text) if _OPEN in text or "^" in text else text
    text = re.sub(r"(?<=[\d%]) *(?:\+/-|\+-|±) *(?=[\d.])", " ± ", " ".join(text.split()))
    if gain := _GAIN.fullmatch(text):
        marks["gains"] += 1
        text = gain[1]
    for mark, pattern in _TAKEN_OFF.items():
        text, count = pattern.subn("", text)
        marks[mark] += count
    bare = text.strip().strip("*").strip()
    marks["footnote marks"] += bare != text.strip()
    marks -= Counter()  # without those that were not found
    return bare


class _Html(HTMLParser):
    """Collects the rows of tables, or the text of a cell; the ends of cells need not be written."""

    def __init__(self, marks: Counter[str]) -> None:
        super().__init__()
        self.marks = marks
        self.tables: list[list[list[SourceCell]]] = []
        self.heads: list[int] = []
        self.spans: tuple[int, int] | None = None
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("table", "tr", "td", "th"):
            self.end_cell()
        if tag == "table":
            self.tables.append([])
            self.heads.append(0)
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th") and self.tables and self.tables[-1]:
            given = dict(attrs)
            sizes = (given.get(name) or "1" for name in ("colspan", "rowspan"))
            columns, rows = (int(size) if size.isdigit() else 1 for size in sizes)
            self.text, self.spans = "", (min(columns, 200) or 1, min(rows, LARGEST) or 1)
            if tag == "th" and self.tables[-1][-1]:  # not the name of a line
                self.heads[-1] = len(self.tables[-1])
        elif tag in ("sub", "sup"):
            self.text += {"sub": "_", "sup": "^"}[tag] + _OPEN
        elif tag == "br":
            self.text += _BREAK
        elif mark := {"b": "bold", "strong": "bold", "u": "underline", "ins": "underline"}.get(tag):
            self.marks[mark] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in ("table", "tr", "td", "th"):
            self.end_cell()
        elif tag in ("sub", "sup"):
            self.text += _CLOSE

    def handle_data(self, data: str) -> None:
        self.text += data

    def end_cell(self) -> None:
        if self.spans is not None:
            self.tables[-1][-1].append(SourceCell(_inline(self.text, self.marks, html=False), *self.spans))
        self.spans = None


def _html(text: str, marks: Counter[str]) -> list[_Found]:
    reader = _Html(marks)
    reader.feed(text if "<tr" in text.lower() else "")
    return [
        _Found(_filled(rows, has_empty=False), heads=max(heads, 1))
        for rows, heads in zip(reader.tables, reader.heads, strict=True)
    ]


def _inline(text: str, marks: Counter[str], html: bool = True) -> str:
    """Return the text of a cell in Markdown, which may contain HTML and LaTeX."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", text)
    text, bold = re.subn(r"\*\*(?=\S)(.+?)\*\*|__(?=\S)(.+?)__", lambda m: m[1] or m[2], text)
    marks["bold"] += bold
    text = re.sub(r"(?<![\w*])([*_])(?=\S)([^*_]+)\1(?![\w*])|`([^`]*)`", lambda m: m[2] or m[3] or "", text)
    if html and re.search(r"<\w|&#?\w+;", text):
        reader = _Html(marks)
        reader.feed(text)
        reader.close()
        return _BREAK.join(_inline(part, marks, html=False) for part in reader.text.split(_BREAK))
    if _BREAK in text:
        return _BREAK.join(_inline(part, marks, html=False) for part in text.split(_BREAK))
    if "$" in text or "\\" in text:
        return _Latex(marks).cell(text)
    return _clean(text, marks)


def _markdown(text: str, marks: Counter[str]) -> list[_Found]:
    """Return the tables of lines with ``|``; the line above a table is its caption."""
    found: list[_Found] = []
    above = ""
    in_table = False
    for line in text.splitlines():
        if re.fullmatch(r"[-+=: ]{3,}", line):
            continue
        if "|" not in line:
            above = re.sub(r"<[^>]*>|[#*_]", "", line).strip() or (above if not in_table else "")
            in_table = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if not in_table:
            found.append(_Found([], above, has_spans=False))
        in_table, above = True, ""
        if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            found[-1].lines.append([_inline(cell, marks) for cell in cells])
    for table in found:
        table.lines = _filled([[*map(SourceCell, row)] for row in table.lines], has_empty=True)
    return found


def _delimited(lines: Sequence[str], marks: Counter[str], is_name: Callable[[str], bool]) -> list[list[str]]:
    first = lines[0] if lines else ""
    separator = next(
        (s for s in "\t;," if s in first and sum(s in line for line in lines) * 2 > len(lines)), ""
    )
    if separator in (",", ";"):
        try:
            rows = list(csv.reader(lines, delimiter=separator))
        except csv.Error as error:
            raise FedLensError(f"the table cannot be read: {error}; mend that line", "table") from error
    else:
        rows = (
            [line.rstrip("\r\n").split(separator) for line in lines] if separator else _spaced(lines, is_name)
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise FedLensError(
                f"line {number} has {len(row)} cells and the headings {len(rows[0])}; add or remove a "
                "separator, or quote a cell that contains one",
                "table",
            )
    if rows and len(rows[0]) < 2:
        raise FedLensError("the table has one column; separate cells by tabs, commas, | or &", "table")
    return [[_inline(cell, marks) for cell in row] for row in rows]


def _spaced(lines: Sequence[str], is_name: Callable[[str], bool]) -> list[list[str]]:
    """Return the columns between spaces, as text from a PDF has them: a name, then one number per column."""
    lines = [re.sub(r"(?<=\d) ?(±|\+/?-) ?(?=\d)|(?<=\d) (?=\(\d)", r"\1", line.strip()) for line in lines]
    wide = [re.split(r" {2,}", line) for line in lines]
    if wide and len(wide[0]) > 1 and all(len(row) == len(wide[0]) for row in wide):
        return wide
    words = [line.split() for line in lines]
    counts = [_numbers_at_end(line) for line in words]
    width = Counter(filter(None, counts)).most_common(1)[0][0] if any(counts) else 0
    rows = []
    for number, (line, count) in enumerate(zip(words, counts, strict=True), start=1):
        if count == width:
            rows.append([" ".join(line[:-width]), *line[-width:]])
        elif width not in counts[: number - 1]:  # headings
            row = _joined(line, width + 1, is_name)
            if len(row) not in (width, width + 1):
                raise FedLensError(
                    f"line {number} has {len(line)} words for {width} columns of numbers; put two spaces or "
                    "a tab between columns, on every line",
                    "table",
                )
            rows.append(["", *row][-width - 1 :])
        elif count:
            raise FedLensError(
                f"line {number} has {count} numbers and others {width}; write - where nothing is printed",
                "table",
            )
        else:
            rows.append([" ".join(line), *[""] * width])
    return rows


def _numbers_at_end(words: Sequence[str]) -> int:
    plain = [_SYMBOLS.sub("", word).strip("*") for word in words]
    numbers = [NUMBER.fullmatch(word) is not None or (word in EMPTY and word != "") for word in plain]
    return next((i for i, is_number in enumerate(reversed(numbers)) if not is_number), len(numbers))


def _joined(words: list[str], most: int, is_name: Callable[[str], bool]) -> list[str]:
    """Join neighbours that form a name, until there are at most this many."""
    i = 0
    while len(words) > most and i < len(words) - 1:
        if is_name(" ".join(words[i : i + 2])):
            words = [*words[:i], " ".join(words[i : i + 2]), *words[i + 2 :]]
        else:
            i += 1
    return words


_SHOWN: dict[str, tuple[str, int | None]] = {
    name: (form, shown)
    for form, shown, names in (
        ("{", 0, "textbf mathbf bm boldsymbol underline uline ul textit emph mbox text textrm textsc textsf"),
        ("{", 0, "texttt mathrm mathit mathsf ensuremath fbox hbox num textsuperscript textsubscript"),
        ("*[{", 2, "makecell thead shortstack"),
        ("[{{", 2, "textcolor rotatebox parbox"),
        ("{{", 1, "colorbox"),
        ("{[{", 2, "scalebox"),
        ("*{{{", 3, "resizebox"),
        ("{[[{", 3, "raisebox"),
        ("{{{", 2, "multicolumn"),
        ("[{[{[{", 5, "multirow"),
        ("[{", 1, "subfloat"),
        ("*[{", None, "caption"),
        ("*[[{", None, "cite citep citet citealp"),
        ("[{", None, "cellcolor color columncolor rowcolor"),
        (
            "{",
            None,
            "label vspace hspace phantom hphantom vphantom noalign arrayrulecolor cline hhline Xhline",
        ),
        ("{", None, "fontsize footnote tablefootnote tnote"),
        ("[", None, "addlinespace footnotemark"),
        ("{{", None, "setlength"),
        ("{{{", None, "specialrule"),
        ("[{{", None, "rule"),
    )
    for name in names.split()
}
"""Command -> the form of its arguments, and the position of the one that is printed in the table."""
_MARKS = {
    **dict.fromkeys(("textbf", "mathbf", "bm", "boldsymbol", "bf", "bfseries"), "bold"),
    **dict.fromkeys(("underline", "uline", "ul"), "underline"),
    **dict.fromkeys(("cite", "citep", "citet", "citealp"), "citations"),
    **dict.fromkeys(("cellcolor", "color", "textcolor", "colorbox", "rowcolor"), "colours"),
    **dict.fromkeys(("footnote", "tablefootnote", "tnote", "footnotemark"), "footnote marks"),
}
_SYMBOL_MACROS = {
    **dict.fromkeys(("ddagger", "ddag", "dag", "spadesuit", "clubsuit", "bigstar"), "‡"),
    "checkmark": "✓",
    "cmark": "✓",
    "xmark": "✗",
    "\\": " ",
    "tabularnewline": " ",
    "cr": " ",
}
_DECLARATIONS = re.compile(
    "bf(series)?|it(shape)?|em|rm(family)?|sf(family)?|tt(family)?|sc(shape)?|mdseries|upshape|normalfont|tiny|"
    "(script|footnote|normal)size|small|[lL]arge|centering|raggedright|arraybackslash|(x|en)space|strut|noindent|"
    "(h|top|mid|bottom)(line|rule)|end(first|last)?(head|foot)|hfill|left|right|[bB]ig|"
    "(display|text|script)style|(line|text|column)width"
)
"""Commands that change how something looks."""


class _Latex:
    """Reads LaTeX with the commands that it defines itself."""

    def __init__(self, marks: Counter[str]) -> None:
        self.marks = marks
        self.macros: dict[str, tuple[int, str, str]] = {}
        self.depth = 0
        self.comments: list[str] = []
        self.plain = latex2text.LatexNodes2Text(math_mode="text")

    def nodes(self, text: str) -> list[Any]:
        context = latexwalker.get_default_latex_context_db()
        macros = [macrospec.MacroSpec(name, form) for name, (form, _) in _SHOWN.items()]
        macros += [
            macrospec.std_macro(name, bool(default), count)
            for name, (count, default, _) in self.macros.items()
        ]
        tables = [macrospec.EnvironmentSpec(name, form) for name, form in _TABULAR.items()]
        context.add_context_category("tables", macros=macros, environments=tables, prepend=True)
        walker = latexwalker.LatexWalker(text, latex_context=context, tolerant_parsing=True)
        try:
            return list(walker.get_latex_nodes()[0])
        except latexwalker.LatexWalkerError as error:
            raise FedLensError(f"the LaTeX cannot be read: {error}; complete it", "table") from error

    def cell(self, text: str) -> str:
        return _clean(self.text(self.nodes(text)), self.marks)

    def tables(self, text: str) -> tuple[list[_Found], list[str]]:
        """Return the tables of a source, and its lines of cells that are commented out."""
        text = re.sub(r"\\cmidrule *(\([^)]*\))? *\{[^}]*\}", "", text)
        for name, count, default, numbered, body in _DEFINITION.findall(text):
            self.macros[name] = int(count or len(numbered) // 2), default, body
        text = _DEFINITION.sub("", text)
        found = list(self.collected(self.nodes(text), ""))
        if not found:
            body = re.sub(r"\\(begin|end)\{(table|tabular)[*xy]?\}(\[[^\]]*\])?", "", text)
            found = list(self.collected(self.nodes(f"\\begin{{tabular}}{{}}{body}\\end{{tabular}}"), ""))
        return found, self.comments

    def collected(self, nodes: Sequence[Any], caption: str) -> Iterator[_Found]:
        for node in nodes:
            name = getattr(node, "environmentname", "")
            if name in _TABULAR:
                yield self.table(node, caption)
            elif arguments := getattr(getattr(node, "nodeargd", None), "argnlist", None):
                inner = self.text([arguments[0]]) if getattr(node, "macroname", "") == "subfloat" else caption
                yield from self.collected([a for a in arguments if a is not None], inner)
            if name not in _TABULAR and (inside := getattr(node, "nodelist", None)):
                own = [a for a in inside if getattr(a, "macroname", "") == "caption"]
                yield from self.collected(
                    inside, self.cell_of(own[0].nodeargd.argnlist[-1:]) if own else caption
                )

    def cell_of(self, nodes: Sequence[Any]) -> str:
        return _clean(self.text(nodes), self.marks)

    def table(self, node: Any, caption: str) -> _Found:
        rows: list[list[list[Any]]] = [[[]]]
        heads = 0
        for part in node.nodelist:
            macro = getattr(part, "macroname", "")
            if getattr(part, "specials_chars", "") == "&":
                rows[-1].append([])
            elif macro in ("\\", "tabularnewline", "cr"):
                rows.append([[]])
            elif macro in ("midrule", "hline", "Xhline", "specialrule"):
                heads = heads or len(rows) - 1
            elif comment := getattr(part, "comment", ""):
                self.comments += [comment.strip()] if "&" in comment else []
            else:
                rows[-1][-1].append(part)
        lines = _filled([[self.spanning(cell) for cell in row] for row in rows], has_empty=True)
        return _Found(lines, caption, heads if 0 < heads <= 3 and heads < len(lines) - 1 else 1)

    def spanning(self, nodes: Sequence[Any]) -> SourceCell:
        """Return a cell with the places that it spans."""
        columns = rows = 1
        inner = list(nodes)
        while span := next(
            (n for n in inner if getattr(n, "macroname", "") in ("multicolumn", "multirow")), None
        ):
            arguments = span.nodeargd.argnlist
            size = self.text(arguments[:1] if span.macroname == "multicolumn" else arguments[1:2]).strip()
            count = int(size) if re.fullmatch(r"-?\d{1,3}", size) and int(size) else 1
            if span.macroname == "multicolumn":
                columns = abs(count)
            else:
                rows = count
            content = getattr(arguments[-1], "nodelist", None) or arguments[-1:]
            inner = [*inner[: inner.index(span)], *content, *inner[inner.index(span) + 1 :]]
        return SourceCell(self.cell_of(inner), columns, rows)

    def text(self, nodes: Sequence[Any]) -> str:
        """Return what is printed."""
        out = ""
        for node, following in zip(nodes, [*nodes[1:], None], strict=False):
            if node is None or node.isNodeType(latexwalker.LatexCommentNode):
                continue
            if node.isNodeType(latexwalker.LatexCharsNode):
                out += node.chars
            elif node.isNodeType(latexwalker.LatexGroupNode):
                inner = self.text(node.nodelist)
                if out[-1:].isdigit() and inner[:1].isdigit():
                    out += " "  # two arguments of a command that is not known
                out += f"{_OPEN}{inner}{_CLOSE}" if out[-1:] in ("_", "^") else inner
            elif node.isNodeType(latexwalker.LatexMacroNode):
                out += self.macro(node, following)
            elif getattr(node, "nodelist", None) is not None:
                out += self.text(node.nodelist)
            else:
                out += "&" if node.specials_chars == "&" else self.plain.nodelist_to_text([node])
        return out

    def own(self, name: str, arguments: Sequence[Any]) -> str:
        """Return what a command that the text defines prints."""
        _, default, body = self.macros[name]
        for i, argument in enumerate(arguments, start=1):
            body = body.replace(f"#{i}", default if argument is None else argument.latex_verbatim())
        if self.depth > 20:
            raise FedLensError(f"the command \\{name} stands for itself; replace it by its text", "table")
        self.depth += 1
        printed = self.text(self.nodes(body))
        self.depth -= 1
        return printed

    def macro(self, node: Any, following: Any) -> str:
        name = node.macroname
        if mark := _MARKS.get(name):
            self.marks[mark] += 1
        if name in _SYMBOL_MACROS:
            return _SYMBOL_MACROS[name]
        arguments = node.nodeargd.argnlist if node.nodeargd else []
        if name in self.macros:
            return self.own(name, arguments)
        if name in ("textsuperscript", "textsubscript"):
            return ("^" if name == "textsuperscript" else "_") + _OPEN + self.text(arguments) + _CLOSE
        if name in _SHOWN:
            shown = _SHOWN[name][1]
            return "" if shown is None else self.text(arguments[shown : shown + 1])
        if _DECLARATIONS.fullmatch(name):
            return ""
        printed: str = self.plain.nodelist_to_text([node])
        if printed:
            return printed + (" " if node.macro_post_space and printed.isalnum() else "")
        known = latexwalker.get_default_latex_context_db().get_macro_spec(name)
        if known is None:
            self.marks[f"\\{name}, which the text does not define"] += 1
            return "" if getattr(following, "nodelist", None) is not None else name
        return ""
