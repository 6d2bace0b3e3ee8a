"""The view Baselines of the page Papers: the values of all sources for a baseline on a data set."""

from collections import Counter

import streamlit as st

from fedcore.base.progress import counted, first_few
from fedcore.papers import library, literature
from fedcore.papers.cells import TableCell
from fedcore.papers.layout import tables
from fedcore.papers.literature import Pair
from fedcore.papers.published import WHOLE_SETS, PublishedValue, findings_of
from fedcore.results.charts.ranks import SourceValue, strip
from fedcore.results.charts.theme import Chart
from fedcore.results.statistics import group_by
from pages.papers_view import state
from pages.papers_view.table import draw_html, go_to_table, our_line
from pages.widgets import charts, markup, session
from pages.widgets.markup import esc

NO_AVERAGES = (
    "Sources measure different things even where their settings look alike, so nothing is averaged over "
    "them. A dash means that the source does not say."
)
COLUMNS = (
    "Source", "Table", "Printed", "Ours", "Backbone", "Training and clients", "Images per class", "Rounds",
    "Selection", "Runs", "Kind of source", "Audits",
)  # fmt: skip
SHOWN_VARIANTS = 8


def choose_pair() -> Pair:
    """Draw the choice of a baseline and a data set, kept in the URL; pairs of several sources come first."""
    every, several = literature.pairs(), literature.several()
    left, middle, right = st.columns([3, 3, 2], vertical_alignment="bottom")
    with right:
        only = st.toggle(
            "Several sources",
            value=True,
            key="pairs_several",
            help=f"{len(several)} of {len(every):,} pairs of baseline and data set have more than one source",
        )
    offered = several if only else every
    asked = (st.query_params.get("baseline", ""), st.query_params.get("dataset", ""))
    if asked in every and "pair_baseline" not in st.session_state:
        st.session_state["pair_baseline"], st.session_state["pair_dataset"] = asked
        offered = offered if asked in offered else every
    counts = Counter(b for b, _ in several)
    baselines = sorted({b for b, _ in offered}, key=lambda b: (-counts[b], b.lower()))
    if st.session_state.get("pair_baseline") not in baselines:
        st.session_state["pair_baseline"] = "PromptFL" if "PromptFL" in baselines else baselines[0]
    with left:
        baseline = st.selectbox("Baseline", baselines, key="pair_baseline")
    datasets = [d for b, d in offered if b == baseline]
    if st.session_state.get("pair_dataset") not in datasets:
        st.session_state["pair_dataset"] = "Food101" if "Food101" in datasets else datasets[0]
    with middle:
        dataset = st.selectbox(
            "Data set",
            datasets,
            key="pair_dataset",
            format_func=lambda d: f"{d} ({counted(len(every[baseline, d].works), 'source')})",
        )
    st.query_params["baseline"], st.query_params["dataset"] = baseline, dataset
    return every[baseline, dataset]


@markup.fragment
def watched_pair(pair: Pair) -> None:
    """Draw the values of a pair with their protocols, grouped by what they measure."""
    snapshot = state.now(session.store(), rehearsal=False)
    st.markdown(f"**{markup.md(pair.text)}**")
    kinds = ", ".join(
        counted(n, "third-party page" if kind == "third party" else kind) for kind, n in pair.kinds.items()
    )
    st.caption(f"Sources by kind: {markup.md(kinds)}. {NO_AVERAGES}")
    differ = literature.differences(pair.comparable_values)
    if differ:
        rows = [
            [esc(part.capitalize()), esc(first_few(variants, SHOWN_VARIANTS, " | "))]
            for part, variants in differ.items()
        ]
        with st.expander("Differences between the settings", icon=":material/difference:"):
            st.html(markup.table_html([("Part", "name"), ("Variants", "prose")], rows, "Differences"))
    if len(pair.comparable_values) > 1:
        charts.draw(_chart(pair), "pair_chart")
    cells = snapshot.cells(pair.values)
    chosen = draw_html(_table(pair, cells), "pair_table")
    if chosen is not None:
        go_to_table(chosen)


def _table(pair: Pair, cells: dict[PublishedValue, TableCell]) -> str:
    groups = group_by(dict.fromkeys(pair.values), literature.quantity)
    head = "".join(f'<th scope="col">{esc(column)}</th>' for column in COLUMNS)
    body = []
    for quantity, values in groups.items():
        sources = counted(len({library.find(v.paper).work for v in values}), "source")
        title = f"{quantity}: {sources}, {literature.span([v.value for v in values])}"
        body.append(f'<tr class="group"><th colspan="{len(COLUMNS)}" scope="colgroup">{esc(title)}</th></tr>')
        body += [_row(value, cells[value]) for value in values]
    return (
        f'<div class="scroll pairs" tabindex="0" role="region" aria-label="{esc(pair.text)}">'
        f'<table aria-label="{esc(pair.baseline)} on {esc(pair.dataset)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _row(value: PublishedValue, cell: TableCell) -> str:
    paper, stated = library.find(value.paper), literature.protocol(value)
    named = next((t.name for t in tables(paper.work) if t.paper == paper.key and t.table == value.table), "")
    target = "" if value.target in WHOLE_SETS else f" ({value.target})"
    clients = literature.protocol_text(stated.model_copy(update={"shots": "", "rounds": ""}))
    selection = stated.selection or (paper.rule_text if paper.reported_round else "")
    said = (
        value.backbone,
        clients,
        stated.shots,
        stated.rounds,
        selection,
        stated.seeds,
        paper.kind,
    )
    found = "<br>".join(f"{'⚠ ' * f.warns}{esc(f.kind)}: {esc(f.text)}" for f in findings_of(value))
    texts = [
        f'<td><button data-choice="table {esc(named)}" tabindex="-1">{esc(paper.title)}</button></td>',
        f"<td>{esc(paper.title_of(value.table))}{esc(target)}</td>",
        f'<td class="number"><b>{esc(value.text)}</b></td>',
        f'<td class="number">{our_line(cell) if cell.source is not None else "-"}</td>',
        *(f"<td>{esc(text or '-')}</td>" for text in said),
        f"<td>{found or '-'}</td>",
    ]
    return f"<tr>{''.join(texts)}</tr>"


def _chart(pair: Pair) -> Chart:
    points = [
        SourceValue(
            library.find(v.paper).title,
            literature.quantity(v),
            v.value,
            ", ".join(filter(None, (v.source, v.setting, v.backbone or "backbone not stated"))),
        )
        for v in pair.comparable_values
    ]
    alt = f"{pair.text} A mark per printed value, a row per source; the marker shows what is measured."
    return strip(points, "Printed accuracy (%)", session.theme(), alt)
