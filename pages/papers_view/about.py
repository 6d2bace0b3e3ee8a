"""The source of a table: citation, protocol and notes, and the audits' findings in the table."""

from collections import Counter

import streamlit as st

from fedcore.papers import library, literature
from fedcore.papers.cells import has_runs
from fedcore.papers.findings import KINDS, findings_of
from fedcore.papers.layout import PrintedTable
from fedcore.progress import counted
from pages.widgets import markup


def why_not_run(table: PrintedTable) -> None:
    """Say why FedLens cannot run a table whose source it cannot run."""
    if not has_runs(table.paper, table.table):
        reason = library.find(table.paper).why_not(table.table)
        st.info(f"FedLens cannot run this table: {markup.md(reason)}.", icon=":material/block:")


def notes(table: PrintedTable) -> None:
    """Draw the source, the protocol of the table's settings, notes and what was left out, folded."""
    paper = library.find(table.paper)
    with st.expander("Source, settings and notes", icon=":material/info:"):
        link = f" [{markup.md(paper.link)}]({paper.link})." if paper.link else ""
        source = f"{markup.md(paper.citation)}; read from {library.KINDS[paper.kind]}.{link}"
        st.markdown(f"**{markup.md(paper.full_title or paper.title)}.** {source}")
        if paper.read_from:
            st.markdown(f"Read from: {markup.md(paper.read_from)}.")
        st.markdown(f"Licence: {markup.md(paper.licence)}")
        rows = [
            [markup.esc(setting or "-"), markup.esc(text)]
            for setting in dict.fromkeys(value.setting for value in table.values)
            if (text := literature.protocol_text(paper.protocol_of(table.table, setting)))
        ]
        if rows:
            st.html(markup.table_html([("Setting", "name"), ("Protocol", "prose")], rows, "Settings"))
        if any(value.std is not None for value in table.values):
            st.markdown(f"±: {library.SPREADS[paper.spread_of(table.table)]}.")
        for note in paper.notes:
            st.markdown(f"- {markup.md(note)}")
        for note in paper.left_out:
            st.markdown(f"- Left out: {markup.md(note)}")


def found(table: PrintedTable) -> None:
    """List what the audits found in a table, each in a sentence."""
    findings = [f for value in dict.fromkeys(table.values) for f in findings_of(value)]
    if not findings:
        audited = (library.find(table.paper).folder / library.FINDINGS_FILE).exists()
        again = f"This table was not audited; add its folder again with `fedlens papers add {table.paper}`."
        st.caption("The audits found nothing in this table." if audited else again)
        return
    counts = Counter(finding.kind for finding in findings)
    text = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    with st.expander(f"Audits: {text}", icon=":material/rule:"):
        st.caption(" ".join(f"**{markup.md(k)}**: {markup.md(KINDS[k])}." for k in KINDS if counts[k]))
        rows = [
            [markup.esc(finding.value.cell), markup.esc(finding.kind), markup.esc(finding.text)]
            for finding in findings
        ]
        header = [("Cell", "prose"), ("Audit", "name"), ("Finding", "prose")]
        st.html(markup.table_html(header, rows, f"Findings of the audits: {counted(len(rows), 'row')}"))
