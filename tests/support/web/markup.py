"""Read the HTML that a page shows: its tables as a reader sees them, and its elements."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

CELLS = ("td", "th")


@dataclass
class Table:
    """A table's label, and the text of its cells row by row (a number's details, in ``small``, left out)."""

    label: str
    rows: list[list[str]] = field(default_factory=list)


@dataclass
class Element:
    """A start tag with its attributes."""

    tag: str
    attributes: dict[str, str | None]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self.elements: list[Element] = []
        self.text: list[str] = []
        self._in_cell = False
        self._details = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs)))
        if tag == "table":
            self.tables.append(Table(dict(attrs).get("aria-label") or ""))
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag in CELLS:
            self.tables[-1].rows[-1].append("")
            self._in_cell = True
        elif tag == "small":
            self._details += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in CELLS:
            self._in_cell = False
        elif tag == "small":
            self._details -= 1

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._in_cell and not self._details:
            self.tables[-1].rows[-1][-1] += data


def _read(markup: str) -> _Reader:
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    return reader


def tables(markup: str) -> list[Table]:
    return _read(markup).tables


def elements(markup: str) -> list[Element]:
    return _read(markup).elements


def text(markup: str) -> str:
    return "".join(_read(markup).text)
