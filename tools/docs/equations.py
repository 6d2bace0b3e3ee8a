"""A hook of MkDocs that writes equations as MathML, so that the site needs no script from elsewhere."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""An equation as pymdownx.arithmatex marks it: ``\\(...\\)`` in a line, ``\\[...\\]`` in its own block."""


def on_page_content(content: str, **_: object) -> str:
    """Return the page with its equations as MathML.

    Raises:
        latex2mathml.exceptions.InvalidTokenError: for LaTeX that cannot be converted; the build then stops.
    """
    return MARKED.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    return str(convert(html.unescape(match[2]).strip(), display="inline" if match[1] == "span" else "block"))
