"""Tables in LaTeX, Markdown, HTML, CSV or plain text, as grids of cells without spans and marks."""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lxml.html
from markdown_it import MarkdownIt
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
_BREAK = "\N{LINE SEPARATOR}"
"""Between the lines of a cell."""
_SCRIPT = re.compile(r"([_^])(?:\{([^{}]*)\}|(\S))")
"""What stands below or above the line, as LaTeX writes it."""
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
_SCRIPTS = {"sub": "_{", "sup": "^{"}
_HTML_MARKS = {"b": "bold", "strong": "bold", "u": "underline", "ins": "underline"}
_MARKDOWN = MarkdownIt("commonmark").disable("escape")  # LaTeX has backslashes of its own
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
    notes: list[str] = []
    if re.search(r"(?<!\\)&", text) and re.search(r"\\\\|\\[a-z]+rule|\\hline", text):
        try:
            reader = _Latex(marks)
            found = reader.tables(text)
        except RecursionError:
            raise FedLensError("the LaTeX has too many braces within braces; simplify it", "table") from None
        notes += [f"commented out: {comment}" for comment in reader.comments]
    elif "<tr" in text.lower() or sum("|" in line for line in lines) > 1:
        found = [*_html(text, marks), *_markdown(text, marks)]
    else:
        found = [_Found(_delimited(lines, marks, is_name), has_spans=False)]
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
    lines: list[list[str]] = []
    for i in range(len(rows)):
        cells = [places.get((i, j), "").split(_BREAK) for j in range(width)]
        counts = [len(parts) for parts in cells if len(parts) > 1]
        if len(counts) > 1 and len({*counts}) == 1 and NUMBER.search(cells[-1][-1]):
            # cells of as many lines each are stacked rows
            lines += [[parts[i % len(parts)] for parts in cells] for i in range(counts[0])]
        else:
            lines.append([" ".join(parts) for parts in cells])
    return lines


def _parts(table: _Found, source: int, notes: Sequence[str]) -> list[Grid]:
    """Divide a table at headings between its lines, and give each line the title of its section."""
    lines = [line for line in table.lines if any(line)]
    starts = [0, *(i for i in range(1, len(lines)) if _is_heading(lines, i))]
    starts = [i for i in starts if i - 1 not in starts]
    found: list[tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]] = []
    left: list[str] = []
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
        if not body:
            following = [" ".join(dict.fromkeys(filter(None, line))) for line in part]
        left += [f"line without values: {title}" for title in following]
        if body and len(part[0]) > 1:
            first = 0 if any(line[0] for line in body) else 1
            named_heads = [["", *line][first:] for line in part[:heads]]
            for upper, lower in itertools.pairwise([] if table.has_spans else named_heads):
                for i in range(2, len(upper)):
                    upper[i] = upper[i] or (upper[i - 1] if lower[i] else "")
            found.append((tuple(map(tuple, named_heads)), tuple(tuple(line[first:]) for line in body)))
    return [Grid(source, table.caption, heads, cells, (*notes, *left)) for heads, cells in found]


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
    before = "" if "{" in text or "^" in text else text
    while before != text:
        before = text
        text = re.sub(r"(?<![_^])\{([^{}]*)\}", r"\1", text.replace("}{", "} {"))
        text = _SCRIPT.sub(script, text)
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


def _html(text: str, marks: Counter[str]) -> Iterator[_Found]:
    """Yield the tables of a page; the ends of cells need not be written."""
    page = lxml.html.fromstring(f"<div>{text}</div>".encode(), parser=lxml.html.HTMLParser(encoding="utf-8"))
    for table in page.iter("table"):
        lines = [line.xpath("./td|./th") for line in table.iter("tr")]
        heads = [i for i, line in enumerate(lines, start=1) if any(cell.tag == "th" for cell in line[1:])]
        rows = [[_html_cell(cell, marks) for cell in line] for line in lines]
        yield _Found(_filled(rows, has_empty=False), heads=max(heads, default=1))


def _html_cell(cell: Any, marks: Counter[str]) -> SourceCell:
    sizes = (cell.get(name) or "1" for name in ("colspan", "rowspan"))
    columns, rows = (int(size) if size.isdigit() else 1 for size in sizes)
    for part in cell.iter(*_SCRIPTS, *_HTML_MARKS, "br"):
        if part.tag == "br":
            part.tail = _BREAK + (part.tail or "")
        elif part.tag in _SCRIPTS:
            part.text = _SCRIPTS[part.tag] + (part.text or "")
            part.tail = "}" + (part.tail or "")
        else:
            marks[_HTML_MARKS[part.tag]] += 1
    lines = (_plain(line, marks) for line in cell.text_content().split(_BREAK))
    return SourceCell(_BREAK.join(lines), min(columns, 200) or 1, min(rows, LARGEST) or 1)


def _inline(text: str, marks: Counter[str]) -> str:
    """Return the text of a cell in Markdown, which may contain HTML and LaTeX."""
    if not re.search(r"[*_`\[<&]", text):
        return _plain(text, marks)
    cell = lxml.html.fragment_fromstring(_MARKDOWN.renderInline(text), create_parent="td")
    return _html_cell(cell, marks).text


def _plain(text: str, marks: Counter[str]) -> str:
    return _Latex(marks).cell(text) if "$" in text or "\\" in text else _clean(text, marks)


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
    try:
        rows = list(csv.reader(lines, delimiter=separator)) if separator else _spaced(lines, is_name)
    except csv.Error as error:
        raise FedLensError(f"the table cannot be read: {error}; mend that line", "table") from error
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
    counts: list[int] = []  # of the numbers at the end of each line
    for line in words:
        plain = [_SYMBOLS.sub("", word).strip("*") for word in reversed(line)]
        numbers = itertools.takewhile(lambda word: word and (word in EMPTY or NUMBER.fullmatch(word)), plain)
        counts.append(sum(1 for _ in numbers))
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


def _joined(words: list[str], most: int, is_name: Callable[[str], bool]) -> list[str]:
    """Join neighbours that form a name, until there are at most this many."""
    i = 0
    while len(words) > most and i < len(words) - 1:
        if is_name(" ".join(words[i : i + 2])):
            words = [*words[:i], " ".join(words[i : i + 2]), *words[i + 2 :]]
        else:
            i += 1
    return words


_COMMANDS = (
    ("{", "%s", "bm boldsymbol mathbf mathit mathsf uline ul fbox hbox num"),
    ("{", "^{%s}", "textsuperscript"),
    ("{", "_{%s}", "textsubscript"),
    ("*[{", "%(3)s", "makecell thead shortstack"),
    ("[{{", "%(3)s", "rotatebox parbox"),
    ("{[{", "%(3)s", "scalebox"),
    ("*{{{", "%(4)s", "resizebox"),
    ("{[[{", "%(4)s", "raisebox"),
    ("{{{", "%(3)s", "multicolumn"),
    ("[{[{[{", "%(6)s", "multirow"),
    ("[{", "%(2)s", "subfloat"),
    ("", "‡", "ddagger ddag spadesuit clubsuit bigstar"),
    ("", "✓", "checkmark cmark"),
    ("", "✗", "xmark"),
    ("*[{", "", "caption"),
    ("*[[{", "", "cite citep citet citealp"),
    ("[{", "", "cellcolor color columncolor rowcolor footnote"),
    ("{", "", "phantom noalign arrayrulecolor cline hhline Xhline fontsize tablefootnote tnote"),
    ("[", "", "addlinespace footnotemark"),
    ("{{{", "", "specialrule"),
    ("[{{", "", "rule"),
    ("", "", "bf bfseries it itshape em rm rmfamily sf sffamily tt ttfamily sc scshape mdseries upshape"),
    ("", "", "normalfont tiny scriptsize footnotesize normalsize small large Large centering raggedright"),
    ("", "", "arraybackslash xspace enspace strut noindent hline toprule midrule bottomrule hfill left"),
    ("", "", "right big Big endhead endfoot endfirsthead endlasthead endlastfoot displaystyle textstyle"),
    ("", "", "scriptstyle linewidth textwidth columnwidth"),
)
"""Form of the arguments, what is printed, and the commands that pylatexenc does not know so."""
_MARKS = {
    **dict.fromkeys(("textbf", "mathbf", "bm", "boldsymbol", "bf", "bfseries"), "bold"),
    **dict.fromkeys(("underline", "uline", "ul"), "underline"),
    **dict.fromkeys(("cite", "citep", "citet", "citealp"), "citations"),
    **dict.fromkeys(("cellcolor", "color", "textcolor", "colorbox", "rowcolor"), "colours"),
    **dict.fromkeys(("footnote", "tablefootnote", "tnote", "footnotemark"), "footnote marks"),
}


class _Latex(latex2text.LatexNodes2Text):  # type: ignore[misc]  # it has no types
    """Prints LaTeX with the commands that it defines itself, and collects its tables.

    Attributes:
        comments: lines of cells that are commented out.
    """

    def __init__(self, marks: Counter[str]) -> None:
        texts = [
            latex2text.MacroTextSpec(name, printed, discard=not printed)
            for _, printed, names in _COMMANDS
            for name in names.split()
        ]
        context = latex2text.get_default_latex_context_db()
        specials = [latex2text.SpecialsTextSpec("&", "&")]
        context.add_context_category("tables", macros=texts, specials=specials, prepend=True)
        super().__init__(context, math_mode="text", keep_braced_groups=True, keep_braced_groups_minlen=0)
        self.marks = marks
        self.macros: dict[str, tuple[int, str, str]] = {}
        self.depth = 0
        self.comments: list[str] = []
        self.found: list[_Found] = []
        self.caption = ""
        self.in_cell = False
        self.columns = self.rows = 1

    def nodes(self, text: str) -> list[Any]:
        self.known = latexwalker.get_default_latex_context_db()
        macros = [macrospec.MacroSpec(name, form) for form, _, names in _COMMANDS for name in names.split()]
        macros += [
            macrospec.std_macro(name, bool(default), count)
            for name, (count, default, _) in self.macros.items()
        ]
        tables = [macrospec.EnvironmentSpec(name, form) for name, form in _TABULAR.items()]
        self.known.add_context_category("tables", macros=macros, environments=tables, prepend=True)
        walker = latexwalker.LatexWalker(text, latex_context=self.known, tolerant_parsing=True)
        try:
            return list(walker.get_latex_nodes()[0])
        except latexwalker.LatexWalkerError as error:
            raise FedLensError(f"the LaTeX cannot be read: {error}; complete it", "table") from error

    def cell(self, text: str) -> str:
        return self.spanning(self.nodes(text)).text

    def tables(self, text: str) -> list[_Found]:
        text = re.sub(r"\\cmidrule *(\([^)]*\))? *\{[^}]*\}", "", text)
        for name, count, default, numbered, body in _DEFINITION.findall(text):
            self.macros[name] = int(count or len(numbered) // 2), default, body
        text = _DEFINITION.sub("", text)
        self.nodelist_to_text(self.nodes(text))
        if not self.found:
            body = re.sub(r"\\(begin|end)\{(table|tabular)[*xy]?\}(\[[^\]]*\])?", "", text)
            self.nodelist_to_text(self.nodes(f"\\begin{{tabular}}{{}}{body}\\end{{tabular}}"))
        return self.found

    def environment_node_to_text(self, node: Any) -> str:
        if self.in_cell or node.environmentname not in _TABULAR:
            before, self.caption = len(self.found), ""
            printed: str = super().environment_node_to_text(node)
            for table in self.found[before:]:
                table.caption = table.caption or self.caption
            return printed
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
        self.found.append(_Found(lines, heads=heads if 0 < heads <= 3 and heads < len(lines) - 1 else 1))
        return ""

    def spanning(self, nodes: Sequence[Any]) -> SourceCell:
        """Return a cell with the places that it spans."""
        self.in_cell, self.columns, self.rows = True, 1, 1
        text = _clean(self.nodelist_to_text(nodes), self.marks)
        self.in_cell = False
        return SourceCell(text, abs(self.columns), self.rows)

    def macro_node_to_text(self, node: Any) -> str:
        name = node.macroname
        arguments = node.nodeargd.argnlist if node.nodeargd else []
        if name == "caption":
            self.caption = self.spanning(arguments[-1:]).text
        elif self.in_cell and name in _MARKS:
            self.marks[_MARKS[name]] += 1
        if name in self.macros:
            return self.own(name, arguments)
        printed: str = super().macro_node_to_text(node)
        if name in ("multicolumn", "multirow"):
            size = self.node_arg_to_text(node, name == "multirow").strip()
            count = int(size) if re.fullmatch(r"-?\d{1,3}", size) and int(size) else 1
            setattr(self, "columns" if name == "multicolumn" else "rows", count)
        if not printed and self.in_cell and self.known.get_macro_spec(name) is None:
            self.marks[f"\\{name}, which the text does not define"] += 1
            is_before_group = node.parsing_state.s[node.pos + node.len :].startswith("{")
            return "" if is_before_group else name
        return printed + (" " if node.macro_post_space and printed.isalnum() else "")

    def own(self, name: str, arguments: Sequence[Any]) -> str:
        _, default, body = self.macros[name]
        for i, argument in enumerate(arguments, start=1):
            body = body.replace(f"#{i}", default if argument is None else argument.latex_verbatim())
        if self.depth > 20:
            raise FedLensError(f"the command \\{name} stands for itself; replace it by its text", "table")
        self.depth += 1
        printed: str = self.nodelist_to_text(self.nodes(body))
        self.depth -= 1
        return printed
