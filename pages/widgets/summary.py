"""The Summary tab of Compare: tables whose every number opens to the runs that it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from fedcore.results.comparison import (
    CAVEAT_MARK,
    Comparison,
    Group,
    difference,
    ranks,
    reason_not_comparable,
    shown_metrics,
    significance,
)
from fedcore.results.metrics import (
    BREAKDOWNS,
    METRIC_HEADINGS,
    METRIC_HELP,
    RULES,
    Breakdown,
    Metric,
    value_per_seed,
)
from fedcore.results.printed import PrintedValue, PrintedValues
from fedcore.results.statistics import TESTS, PairedTest, Stat, Test, signed
from pages.widgets import common

MANY_NAMES = 12
"""More domains or clients than this are a scrolling table of their own."""
MOST_NAMES = 6
"""Printed methods that are named where they have no row."""


def draw(
    found: Comparison, baseline: str | None, metric: Metric, test: Test, beside: PrintedValues | None = None
) -> None:
    """Mean and spread of every method, one table per setting; ``beside``: what papers print of them."""
    beside = beside or PrintedValues()
    for i, (setting, title) in enumerate(found.settings.items()):
        groups = found.groups_in(setting)
        pinned = next((g for g in groups if g.label == baseline), None)
        st.markdown(f"**{common.md(title)}**")
        st.html(_table(found, groups, pinned, metric, test, title, beside))
        if baseline is not None and pinned is None:
            st.caption(f"The baseline {common.md(common.clipped(baseline))} has no run in this setting.")
        _parts(groups, i)
    several = any(len(g.seeds) > 1 for g in found.groups)
    spread = (
        "mean ± sample standard deviation over seeds" if several else "one seed, so no standard deviation"
    )
    said = dict.fromkeys(m for s in found.settings for m in shown_metrics(found.groups_in(s)))
    st.caption(
        f"Test accuracy, {spread}; reported round: {RULES[found.rule]}. **Bold**: best; underlined: "
        "second best. Click a number for its runs. "
        + " ".join(f"*{METRIC_HEADINGS[m]}*: {METRIC_HELP[m]}." for m in said)
    )
    if baseline is not None:
        st.caption(
            f"\\* significant at 5 %: {TESTS[test]}, two-sided, over the seeds that both rows have; "
            "p is Holm-corrected for all tested rows of the table. With fewer than three seeds nothing is "
            "called significant. Rows with other rounds or participation, or with unfinished runs, are not "
            "compared with the baseline."
        )
    _what_is_printed(found, beside)
    sources(found)


def _what_is_printed(found: Comparison, beside: PrintedValues) -> None:
    """Where the printed figures come from, and which of them no row has."""
    if not beside.values and not beside.missing:
        return
    said = []
    if beside.sources:
        said.append(
            f"*Printed*: {common.md('; '.join(beside.sources))}, with the round that the paper reports in "
            f"brackets. Ours: {RULES[found.rule]}; the tab Published shows ours measured as in each paper."
        )
    for why in dict.fromkeys(beside.missing.values()):
        names = [name for name, reason in beside.missing.items() if reason == why]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        said.append(f"Printed, {why} here: {common.md(', '.join(names[:MOST_NAMES]))}{more}.")
    st.caption(" ".join(said))


def _table(
    found: Comparison,
    groups: Sequence[Group],
    pinned: Group | None,
    metric: Metric,
    test: Test,
    title: str,
    beside: PrintedValues,
) -> str:
    there = shown_metrics(groups)
    in_print = beside.metrics(groups)
    header = [("Method", "wide")]
    for m in there:
        header.append((f"{METRIC_HEADINGS[m]}, %", "num"))
        header += [(f"{METRIC_HEADINGS[m]} printed, %", "num")] if m in in_print else []
    header += [(f"{METRIC_HEADINGS[metric]}: difference, points", "num"), ("p", "num")] if pinned else []
    header += [("Seeds (n)", "num"), ("Rounds", "num")]
    marks = {m: ranks(groups, m) for m in there}
    tested = significance(groups, pinned, metric, test) if pinned else {}
    rows = []
    for group in groups:
        mark = f' <span title="{common.esc(group.caveat)}">{CAVEAT_MARK}</span>' if group.caveat else ""
        cells = [common.method_html(group.label, group.method) + mark]
        for m in there:
            cells.append(_cell(found, group, m, marks[m]))
            cells += [_printed_cell(found, group, m, beside.of(group, m))] if m in in_print else []
        if pinned:
            cells += _against(group, pinned, metric, tested.get(group.key))
        counts = sorted({s.n for m in there if (s := group.stats.get(m)) is not None}, reverse=True)
        rows.append([*cells, "/".join(map(str, counts)) or "0", _rounds(group)])
    return common.table_html(header, rows, f"Summary of {title}")


def _cell(found: Comparison, group: Group, metric: Metric, marks: tuple[set[str], set[str]]) -> str:
    """A number that opens to its seeds, runs, rounds and rule."""
    stat = group.stats.get(metric)
    if stat is None:
        return "-"
    text = stat.text()
    if group.key in marks[0]:
        text = f"<b>{text}</b>"
    elif group.key in marks[1]:
        text = f"<u>{text}</u>"
    lines = []
    for seed, value in value_per_seed(group.runs, metric).items():
        runs = [v for v in group.runs if v.run.seed == seed]
        links = ", ".join(
            _run_link(v.run.id) + (f" ({common.esc(v.run.held_out)})" if v.run.held_out else "") for v in runs
        )
        taken = " / ".join(dict.fromkeys(v.rounds_text for v in runs))
        lines.append(f"seed {seed}: <b>{value:.2f}</b>, run {links}, round {common.esc(taken)}")
    lines.append(f"{RULES[found.rule]}; the run's page has the command that repeats it")
    return f'<details class="fl-cell"><summary>{text}</summary><small>{"<br>".join(lines)}</small></details>'


def _printed_cell(found: Comparison, group: Group, metric: Metric, figures: Sequence[PrintedValue]) -> str:
    """What papers print; opens to their tables, and to the difference where the rounds are chosen alike."""
    if not figures:
        return common.faint("not printed")
    texts = dict.fromkeys(f.text(1) for f in figures)
    ours, lines = group.stats.get(metric), []
    for f in figures:
        line = f"{common.esc(f.source)}: {common.esc(f.method)} <b>{f.text()}</b>"
        if ours is not None and f.rule == found.rule:
            line += f", ours {signed(ours.mean - f.value, 2)}"
        lines.append(line if f.rule == found.rule else f"{line}, {RULES[f.rule]}")
    return (
        f'<details class="fl-cell"><summary>{" / ".join(texts)}</summary>'
        f"<small>{'<br>'.join(lines)}</small></details>"
    )


def _run_link(run_id: int) -> str:
    return f'<a href="/run?id={run_id}" target="_self">{run_id}</a>'


def _against(group: Group, pinned: Group, metric: Metric, tested: PairedTest | None) -> list[str]:
    gap = difference(group, pinned, metric)
    if group.key == pinned.key:
        return ["baseline", ""]
    why = reason_not_comparable(group, pinned)
    if why:
        return ["-", f'<span title="{common.esc(why)}">different protocol</span>']
    if gap is None or tested is None:
        return ["-", "-"]
    star = "&nbsp;<b>*</b>" if tested.significant else ""
    title = f"{TESTS[tested.test]} over {tested.n} seeds"
    title += (
        "" if tested.difference is None else f", difference on these {signed(tested.difference, 2)} points"
    )
    title += "" if tested.p is None else f"; uncorrected p {tested.p:.3g}"
    text = tested.text.removeprefix("p = ").removeprefix("p ")
    return [f"{signed(gap)}{star}", f'<span title="{common.esc(title)}">{common.esc(text)}</span>']


def _rounds(group: Group) -> str:
    done = {v.run.rounds_done for v in group.runs}
    asked = group.config.rounds
    return str(asked) if done == {asked} else f"{min(done)} of {asked}"


def _parts(groups: Sequence[Group], number: int) -> None:
    """What the means are made of: by domain, by client, by held-out domain."""
    there = [p for p in BREAKDOWNS if any(p in g.breakdowns for g in groups)]
    if not there:
        return
    box = st.expander(
        "By domain and client", icon=":material/table_rows:", key=f"compare_parts_{number}", on_change="rerun"
    )
    if not box.open:
        return
    with box:
        part: Breakdown = st.segmented_control(
            "Numbers", there, default=there[0], required=True, format_func=BREAKDOWNS.get,
            key=f"part_{number}", label_visibility="collapsed",
        )  # fmt: skip
        rows = {g.key: g.breakdowns.get(part, {}) for g in groups}
        names = list(dict.fromkeys(n for stats in rows.values() for n in stats))
        if len(names) > MANY_NAMES:
            table = {"Method": [g.label for g in groups]}
            table.update({n: [_text(rows[g.key].get(n)) for g in groups] for n in names})
            st.dataframe(table, hide_index=True, key=f"part_table_{number}")
        else:
            header = [("Method", "wide"), *((n, "num") for n in names)]
            cells = [_part_row(g, rows, names) for g in groups]
            st.html(common.table_html(header, cells, BREAKDOWNS[part]))


def _part_row(group: Group, rows: Mapping[str, Mapping[str, Stat]], names: Sequence[str]) -> list[str]:
    own = rows[group.key]
    return [common.method_html(group.label, group.method), *(_text(own.get(n)) for n in names)]


def _text(stat: Stat | None) -> str:
    return "-" if stat is None else stat.text()


def sources(found: Comparison) -> None:
    """All runs behind the tables."""
    box = st.expander(
        "All runs behind these numbers", icon=":material/fact_check:", key="compare_runs", on_change="rerun"
    )
    if not box.open:
        return
    held_out = any(v.run.held_out for g in found.groups for v in g.runs)
    header = [("Method", "wide"), ("Run", "num"), ("Experiment", "num"), ("Seed", "num")]
    header += [("Held out", "")] if held_out else []
    header += [("Reported round", ""), ("Personal accuracy, %", "num"), ("State", ""), ("Repeat", "name")]
    rows = [
        [
            common.method_html(group.label, group.method),
            _run_link(v.run.id),
            str(v.run.experiment_id),
            str(v.run.seed),
            *([common.esc(v.run.held_out or "-")] if held_out else []),
            common.esc(v.rounds_text),
            common.number(v.values["personal"], 2),
            common.status_html(v.run.state),
            f"<code>fedlens run run-{v.run.id}.toml</code>",
        ]
        for group in found.groups
        for v in group.runs
    ]
    with box:
        st.html(common.table_html(header, rows, "Runs behind the numbers"))
        st.caption("The run's page has the config file that the command needs.")
