"""The table of an experiment's runs, with a row per method that unfolds into its runs."""

from collections import Counter
from collections.abc import Sequence

import streamlit as st

from fedcore.plots.theme import STATUS
from fedcore.results import progress
from fedcore.results.progress import ExperimentSummary, RunProgress
from fedcore.results.statistics import group_by, spread
from pages.widgets import markup, session

HEADER = [
    ("Status", ""), ("Method", "wide"), ("Runs", ""), ("Round", "num"), ("Last, %", "num"),
    ("Best on validation, %", "num"), ("Worst client, %", "num"), ("", "prose"),
]  # fmt: skip


def draw(chosen: Sequence[ExperimentSummary]) -> None:
    """Draw the table of the runs of every selected experiment."""
    folded = False
    for item in chosen:
        st.markdown(f"**Runs of {markup.md(item.row.name)}**")
        runs = progress.run_progress(session.store(), item.row.runs)
        methods = group_by(runs, lambda p: (p.run.label, p.run.group_hash)).values()
        folded = folded or any(len(of_method) > 1 for of_method in methods)
        st.html(
            markup.table_html(HEADER, [_row(of_method) for of_method in methods], f"Runs of {item.row.name}")
        )
    if folded:
        st.caption("Several runs are shown as mean ± standard deviation. Click their number to list them.")


def _row(runs: Sequence[RunProgress]) -> list[str]:
    """Return the row of the runs of one method as HTML; accuracies are means over those that have one."""
    first = runs[0].run
    only = runs[0] if len(runs) == 1 else None
    counts = Counter(p.run.state for p in runs)
    status = " ".join(
        markup.status_html(s) + (f" <b>{counts[s]}</b>" if only is None else "") for s in STATUS if counts[s]
    )
    name = markup.method_html(first.label, first.method)
    if only is not None:
        name = markup.run_link(first.id, name)
    best = _mean([p.run.best_test for p in runs])
    if only is not None and first.best_round is not None:
        best += f' <span class="fl-faint">round {first.best_round}</span>'
    return [
        status,
        name,
        markup.esc(markup.seed_text(only.run.seed, only.run.held_out)) if only is not None else _unfold(runs),
        f"{sum(p.run.rounds_done for p in runs)}/{sum(p.run.rounds_total for p in runs)}",
        _mean([p.run.last_test for p in runs]),
        best,
        _mean([p.run.worst_client for p in runs]),
        markup.esc(_attention(runs)),
    ]


def _unfold(runs: Sequence[RunProgress]) -> str:
    """Return the number of runs, which unfolds into a line with a link for each."""
    lines = [
        " ".join(
            [
                markup.status_html(p.run.state),
                markup.run_link(p.run.id, markup.esc(markup.seed_text(p.run.seed, p.run.held_out))),
                markup.per_cent(p.run.last_test),
                markup.faint(p.text) if p.text else "",
            ]
        )
        for p in runs
    ]
    return (
        f'<details class="fl-cell"><summary><u>{len(runs)} runs</u></summary>'
        f"<small>{'<br>'.join(lines)}</small></details>"
    )


def _mean(values: Sequence[float | None]) -> str:
    """Return the mean and spread of shares over runs, per cent, or a dash if none is known."""
    stat = spread(None if v is None else 100 * v for v in values)
    return "-" if stat is None else stat.text()


def _attention(runs: Sequence[RunProgress]) -> str:
    """Return the text of a single run, or of the first among several that needs attention."""
    if len(runs) == 1:
        return runs[0].text
    order = ("failed", "interrupted", "running", "stopping")
    texts = [p.text for state in order for p in runs if p.run.state == state and p.text]
    return texts[0] if texts else ""
