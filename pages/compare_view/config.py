"""The tab Config of the page Compare: the fields in which its rows differ."""

from collections.abc import Mapping

import streamlit as st

from fedcore.config.field_names import field_title
from fedcore.progress import first_few
from fedcore.results.comparison import Comparison, config_differences, partial_fields
from pages.compare_view.controls import ShownComparison
from pages.widgets import markup

PARTIAL = "Fields that only some methods have"


def draw(shown: ShownComparison) -> None:
    """Draw the config fields that differ, and those that only some methods have."""
    compared = shown.comparison
    differing, partial = config_differences(compared.rows), partial_fields(compared.rows)
    if not differing and not partial:
        st.info("All rows have the same config.")
        return
    if differing:
        several = len(compared.settings) > 1  # labels are unique within a setting only
        where = {s: f" ({title})" if several else "" for s, title in compared.settings.items()}
        names = [markup.clipped(g.label) + where[g.setting] for g in compared.rows]
        header = [("Field", "name"), *((name, "wide") for name in names)]
        rows = [[field_html(f), *(markup.esc(v) or "-" for v in row)] for f, row in differing.items()]
        st.html(markup.table_html(header, rows, "Config fields that differ"))
        if not all(all(row) for row in differing.values()):
            or_not = "" if all(g.trained_by_fedlens for g in compared.rows) else ", or it was not recorded"
            st.caption(f"A dash: the method has no such field{or_not}.")
    if partial:
        with st.expander(PARTIAL, icon=":material/tune:", expanded=not differing):
            st.html(partial_table(compared, partial))
    st.caption(
        "Hyper-parameters left at their defaults are included. Hover over a field for its name in TOML files."
    )


def partial_table(compared: Comparison, partial: Mapping[tuple[str, ...], Mapping[str, str]]) -> str:
    """Return the fields that only some rows have as an HTML table."""
    labels = {g.key: g.label for g in compared.rows}
    rows = []
    for keys, fields in partial.items():
        methods = list(dict.fromkeys(markup.clipped(labels[k]) for k in keys))
        names = [markup.esc(first_few(methods, 3)), *[""] * (len(fields) - 1)]
        rows += [
            [name, field_html(f), markup.esc(v)] for name, (f, v) in zip(names, fields.items(), strict=True)
        ]
    return markup.table_html([("Method", "wide"), ("Field", "name"), ("Value", "wide")], rows, PARTIAL)


def field_html(path: str) -> str:
    """Return a field's title as HTML; its name in TOML files shows on hover."""
    return f'<span title="{markup.esc(path)}">{markup.esc(field_title(path))}</span>'
