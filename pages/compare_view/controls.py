"""The controls of the page Compare: two rows above the result, kept in the address, and the saved views."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fedcore.base.errors import FedLensError
from fedcore.config.field_names import field_title
from fedcore.papers.reproductions import printed_values
from fedcore.results.averages import over_data_sets
from fedcore.results.charts.theme import STATUS
from fedcore.results.comparison import Comparison, compare
from fedcore.results.metrics import METRICS, RULES, Metric, Rule
from fedcore.results.rows import ComparisonRow
from fedcore.results.settings import is_compared
from fedcore.results.statistics import TESTS, Test
from fedcore.results.summary import PrintedValues, Summary, summarise
from fedcore.share.checked import ComparisonChoices, available_metrics
from fedcore.share.views import ViewSource
from fedcore.store import ExperimentRow, Store
from pages.widgets import charts, markup, session

PAGE = "compare"
BASELINE = "baseline"
"""Key of the baseline's label in the address and in the session's state."""
PINNED = "baseline_pinned"
"""Label and keys of the baseline's rows as last chosen."""
SORT = "sort"
"""Parameter of the address: the column that rows are sorted by, with a minus for the largest first."""
MARKS = {"tags": "Tags", "notes": "Notes"}
"""Columns with the user's tags and notes on the runs of a row; hidden by default."""
OTHER_COLUMNS = {"difference": "Difference", "p": "p", "seeds": "Seeds (n)", "rounds": "Rounds"}
"""Other columns of the summary than metrics that can be hidden."""


@dataclass(frozen=True)
class ShownComparison:
    """The whole comparison, since hidden rows count in tests too, and the reader's choices above the tabs.

    Attributes:
        metric: of the differences.
        hidden_rows: labels of rows that no table or chart shows; they still count for best values and tests.
        fields: config fields, or ``MARKS``, to show as columns of the summary.
        group: config field that divides the summary's rows into sections; empty for none.
        left_out: the hidden rows, if the comparison is without them.
    """

    store: Store
    experiments: Sequence[ExperimentRow]
    comparison: Comparison
    choice: ComparisonChoices
    metric: Metric
    hidden_rows: Sequence[str]
    hidden_columns: Sequence[str]
    fields: Sequence[str]
    group: str
    left_out: Sequence[str] = ()

    @property
    def version(self) -> str:
        """Of the comparison and the order of its rows, as a key for caches of derived values."""
        choice, versions = self.choice, [e.version for e in self.experiments]
        order = "" if choice.as_launched else self.metric
        return repr((versions, choice.rule, choice.unfinished, choice.where, order, self.left_out))

    @property
    def visible(self) -> "ShownComparison":
        """The same without the hidden rows, and without settings that have no other, as charts draw it."""
        rows = tuple(row for row in self.comparison.rows if row.label not in self.hidden_rows)
        drawn = {row.setting for row in rows}
        settings = {key: title for key, title in self.comparison.settings.items() if key in drawn}
        comparison = replace(self.comparison, rows=rows, settings=settings)
        return replace(self, comparison=comparison, left_out=self.hidden_rows)

    @property
    def source(self) -> ViewSource:
        """The comparison and the choices that concern its charts."""
        return ViewSource(self.store, self.comparison, self.metric, self.choice.baseline)

    @property
    def printed(self) -> PrintedValues:
        return printed_values(self.comparison, [e.config for e in self.comparison.experiments])

    def summary(self, digits: int, with_printed: bool = True) -> Summary:
        """Decide what the summary shows; only the metric of the differences is tested."""
        return summarise(
            self.comparison,
            self.choice.baseline,
            self.choice.test,
            self.printed if with_printed else None,
            metric=self.metric,
            tested=[self.metric],
            digits=digits,
        )

    def means(self, digits: int) -> Summary:
        """Decide what the tables of means over data sets show; without any if no settings can be averaged."""
        return replace(self, comparison=over_data_sets(self.comparison)).summary(digits, with_printed=False)


BY_VERSION: dict[str | type[Any], Callable[[Any], Any]] = {
    ShownComparison: lambda shown: repr((shown.store, shown.version))
}
"""How caches tell comparisons apart: to hash all rows would take longer."""


# a resource, which is not copied: it is frozen; the versions are one text, which Streamlit hashes faster
@st.cache_resource(hash_funcs={Store: repr}, max_entries=32, show_spinner=False)
def comparison(
    store: Store, ids: Sequence[int], versions: str, rule: Rule, unfinished: bool, where: str
) -> Comparison:
    """Return the comparison; it is computed again when one of its runs has a new round."""
    return compare(store, ids, rule, unfinished=unfinished, where=where)


def choose_experiments(store: Store) -> list[ExperimentRow]:
    """Draw the choice of experiments, kept in the URL; archived ones are listed if a link names them."""
    asked = st.query_params.get_all("ids")
    wanted = {*asked, *map(str, st.session_state.get("last_ids", []))}
    listed = {e.id: e.text for e in store.experiments.titles() if not e.archived or str(e.id) in wanted}
    cleared = asked or st.session_state.get("compare_ids") == []
    first = [] if cleared else [*store.experiments.newest_with_runs("done"), *listed]
    rows = session.experiments_in_url("ids", listed, first)
    st.session_state["compare_ids"] = [row.id for row in rows]
    st.multiselect(
        "Experiments",
        list(listed),
        format_func=listed.__getitem__,
        key="compare_ids",
        placeholder="choose what to compare",
        on_change=lambda: session.remember_ids("ids", st.session_state["compare_ids"]),
        label_visibility="collapsed",
    )
    gone = [text[:20] for text in asked if text not in [str(row.id) for row in rows]]
    if gone:
        st.warning(
            f"The address names experiments that do not exist here: {markup.md(', '.join(gone[:5]))}. "
            "They may be deleted or damaged, or belong to another database.",
            icon=":material/search_off:",
        )
    return rows


def draw(store: Store, experiments: Sequence[ExperimentRow]) -> ShownComparison:
    """Draw the choices, kept in the URL, and return the resulting comparison.

    The page reports an unreadable filter, and compares all runs.
    """
    last: DeltaGenerator
    if session.is_narrow():
        last = st.popover("View", icon=":material/tune:", width="stretch")
        *places, view = [last.container() for _ in range(5)]
    else:
        *places, last = st.columns([3, 3, 3, 4, 2], vertical_alignment="bottom")
        view = last.popover("View", icon=":material/tune:")
    with view:
        unfinished = st.toggle("Include unfinished runs", key="unfinished", bind="query-params")
        as_launched = session.launch_order_switch()
        charts.table_switch()
    rule = session.choose(
        places[0].selectbox,
        "Reported round",
        RULES,
        "rule",
        help="The round is never chosen by test accuracy. Best on validation: the round with the highest "
        "mean validation accuracy, the earliest one if several are equal.",
    )
    where = places[3].text_input(
        "Filter",
        key="where",
        bind="query-params",
        placeholder="method = fedot and alpha < 0.5",
        help="Keeps the runs that match this expression: a field of a run or its config (the end of its "
        "name is enough), one of `=` `!=` `<` `<=` `>` `>=` `contains` `in (…)`, and a value; joined by "
        "`and`, `or`, `not` and brackets. Accuracy cannot be filtered on: runs would then be chosen by "
        "their result.",
    )
    where, problem = (where or "").strip(), None
    asked = store, [e.id for e in experiments], repr([e.version for e in experiments]), rule, unfinished
    try:
        shown = comparison(*asked, where)
    except FedLensError as error:
        if error.field != "where":
            raise
        shown, where, problem = comparison(*asked, ""), "", error
    metrics: Sequence[Metric] = available_metrics(shown) or ["personal"]
    metric: Metric = session.choose(
        places[1].selectbox,
        "Compare by",
        {m: METRICS[m].title for m in metrics},
        "by",
        help="The metric of the order, differences, costs and sweeps. The summary shows every metric.",
    )
    shown = shown if as_launched else shown.best_first(metric)
    with places[2]:
        pinned = choose_baseline(shown.rows)
    test: Test = "t"
    with view:
        if pinned is not None:
            test = session.choose(
                st.segmented_control, "Test over seeds", TESTS, "test", default="t", required=True
            )
        layout = choose_layout(shown)
        saved_views(store)
    if problem is not None:
        markup.show_error(problem, last)
    choice = ComparisonChoices(rule, metric, pinned, test, unfinished, where, as_launched=as_launched)
    return ShownComparison(store, experiments, shown, choice, metric, *layout)


def nothing_finished(experiments: Sequence[ExperimentRow], where: str) -> None:
    """Explain why nothing is shown: no run matches the filter, or no run has finished."""
    if where:
        st.info("No finished run matches the filter.", icon=":material/filter_alt:")
        return
    runs = [r for e in experiments for r in e.runs]
    states, active = [r.state for r in runs], any(not r.ended for r in runs)
    counts = ", ".join(f"{states.count(s)} {s}" for s in STATUS if s in states)
    word = "No run has finished yet" if active else "No run finished"
    st.info(
        f"{word}: {counts}. Turn on *Include unfinished runs* (View) to see what they have recorded.",
        icon=":material/hourglass:" if active else ":material/error:",
    )
    if st.button("Watch them" if active else "See why", icon=":material/monitoring:"):
        st.switch_page("pages/live.py", query_params={"id": str(experiments[0].id)})


def choose_baseline(rows: Sequence[ComparisonRow]) -> str | None:
    """Draw the choice of a baseline, kept in the URL, and return its label.

    A label distinguishes rows, so it may change when experiments are added or removed; the baseline then
    stays the same row. If that row is not among these experiments, the page says so, and uses it again once
    it is back.
    """
    labels = list(dict.fromkeys(row.label for row in rows))
    lost = _follow_baseline(rows, labels)
    chosen: str | None = session.choose(
        st.selectbox,
        "Baseline",
        labels,
        BASELINE,
        index=None,
        placeholder="none",
        on_change=st.session_state.pop,
        args=(PINNED, None),
        help="Shows differences from this method in points, on the same data, clients and backbone",
    )
    if chosen is not None:
        st.session_state[PINNED] = chosen, tuple(row.key for row in rows if row.label == chosen)
    elif lost:
        st.caption(f":material/info: The baseline {markup.md(markup.clipped(lost))} has no row here.")
    return chosen


def _follow_baseline(rows: Sequence[ComparisonRow], labels: Sequence[str]) -> str:
    """Update the label to the baseline's present one; return the label of a baseline without a row."""
    asked = st.session_state.get(BASELINE) or st.query_params.get(BASELINE)
    pinned, keys = st.session_state.get(PINNED, (asked, ()))
    if asked in labels or not (asked or pinned):
        return ""
    now = dict.fromkeys(row.label for row in rows if row.key in keys)
    if not keys:  # the link was made when the row had another label
        now = dict.fromkeys(
            label for label in labels if asked and label.startswith((f"{asked} ", f"{asked},"))
        )
    if len(now) != 1:
        return str(pinned or asked)
    st.session_state[BASELINE] = next(iter(now))
    return ""


def choose_layout(compared: Comparison) -> tuple[list[str], list[str], list[str], str]:
    """Draw the choice of rows, columns and sections of the summary, as ``ShownComparison`` has them."""
    values: dict[str, list[str]] = {}
    for row in compared.rows:
        for name in filter(is_compared, row.fields):
            values.setdefault(name, []).append(str(row.fields[name]))
    rows = len(compared.rows)
    # fields that differ between rows come first, and equal titles are followed by the field's name
    names = sorted(values, key=lambda n: len(set(values[n])) == 1 and len(values[n]) == rows)
    plain = [field_title(name) for name in names]
    titles = {n: t if plain.count(t) == 1 else f"{t} ({n})" for n, t in zip(names, plain, strict=True)}
    metrics = {m: METRICS[m].heading for m in compared.metrics if not METRICS[m].on_request}
    fields = session.choose(st.multiselect, "More columns", MARKS | titles, "fields", placeholder="none")
    hidden_columns = session.choose(
        st.multiselect, "Hidden columns", metrics | OTHER_COLUMNS, "hidden_columns", placeholder="none"
    )
    hidden_rows = session.choose(
        st.multiselect,
        "Hidden rows",
        [row.label for row in compared.rows],
        "hidden_rows",
        placeholder="none",
        help="No table or chart shows them; they still count for best values, differences and the "
        "correction of p. The filter leaves runs out altogether.",
    )
    charts.colour_choice(row.method for row in compared.rows)
    group = session.choose(
        st.selectbox,
        "Sections by",
        titles,
        "sections",
        index=None,
        placeholder="none",
        help="Puts the rows of each value of a config field under a heading.",
    )
    return hidden_rows, hidden_columns, fields, group or ""


def saved_views(store: Store) -> None:
    """Draw the saved views, and a field to save this one."""
    query = urlencode([(name, v) for name in st.query_params for v in st.query_params.get_all(name)])
    st.markdown("**Saved views**")
    writable = session.writable()
    for view in store.saved_views.of_page(PAGE):
        with st.container(horizontal=True, vertical_alignment="center"):
            address = f"{session.base_path()}/{PAGE}?{view.query}"
            st.html(f'<a href="{markup.esc(address)}" target="_self">{markup.esc(view.name)}</a>')
            if writable and st.button(
                "Delete", icon=":material/delete:", type="tertiary", key=f"view_delete_{view.id}"
            ):
                store.saved_views.delete(view.id)
                st.rerun()
    if not writable:
        return
    with st.form("save_view", border=False):
        name = st.text_input("Save this view as", placeholder="name", max_chars=200)
        if st.form_submit_button("Save", icon=":material/bookmark:"):
            with markup.errors_shown():
                store.saved_views.save(PAGE, name, query)
                st.rerun()
