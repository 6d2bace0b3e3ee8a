"""The choices of the page Live: an experiment, and the seeds and held-out domains to show."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from fedcore.store import ExperimentRow, RunRow
from pages.widgets import background, markup, session


def choose() -> ExperimentRow | None:
    """Let the reader choose an experiment; preselect that of the URL, else a running one, else the newest.

    Returns None if the experiment of the URL does not exist: another one must not appear in its place.
    """
    asked = st.query_params.get_all("id")
    every = session.store().experiments.all(include_archived=True)
    # an archived one opens by its link
    offered = {e.id: e for e in every if not e.archived or str(e.id) in asked}
    if not offered:
        return None
    if asked and not any(str(i) in asked for i in offered):
        st.session_state["live_choice"] = None
    else:
        busy = [i for i, e in offered.items() if any(not r.ended for r in e.runs)]
        chosen = session.ids_in_url("id", offered, [(busy or list(offered))[0]])
        st.session_state["live_choice"] = chosen[0]
    st.selectbox(
        "Experiment",
        list(offered),
        format_func=lambda i: f"{offered[i].name} (no. {i})",  # Streamlit cannot tell equal texts apart
        key="live_choice",
        placeholder="Choose an experiment",
        on_change=lambda: session.remember_ids("id", [st.session_state["live_choice"]]),
    )
    return offered.get(st.session_state["live_choice"])


def no_experiment() -> None:
    """Explain that the page is empty because the experiment of the URL is missing, or none exists yet."""
    missing = st.query_params.get("id")
    if missing:
        st.info(
            f"Experiment {markup.md(missing[:20])} does not exist; it may have been deleted.",
            icon=":material/search_off:",
        )
        if st.button("Experiments", icon=":material/arrow_back:"):
            st.switch_page("pages/experiments.py", query_params={})
        return
    st.info(
        "No experiment has been started yet. Launched runs appear here while they train.",
        icon=":material/monitoring:",
    )
    with st.container(horizontal=True):
        background.demo_buttons()


def choose_variant(experiment: ExperimentRow) -> list[RunRow]:
    """Return the runs of the chosen seed and held-out domain, or of all of them."""
    offers = variant_offers(experiment.runs)
    if len(offers) <= 1:
        return list(experiment.runs)
    busy = next((r for r in experiment.runs if r.state in ("running", "stopping")), experiment.runs[0])
    chosen = st.selectbox(
        "Seed and held-out domain" if busy.held_out else "Seed",
        list(offers),
        index=list(offers).index(variant_text(busy.seed, busy.held_out)),
        key=f"live_variant_{experiment.id}",
        bind="query-params",
    )
    return offers[chosen]


def variant_text(seed: int, held_out: str | None) -> str:
    """Return the name of one seed, and of the domain that its runs held out, if any."""
    return f"seed {seed}" + (f", without {held_out}" if held_out else "")


def variant_offers(runs: Sequence[RunRow]) -> dict[str, list[RunRow]]:
    """Return the runs that can be shown together, by name: all or one seed, all or one held-out domain."""
    variants = list(dict.fromkeys((r.seed, r.held_out) for r in runs))
    seeds, domains = list(dict.fromkeys(r.seed for r in runs)), list(dict.fromkeys(r.held_out for r in runs))
    offers: dict[str, list[RunRow]] = {}
    if len(seeds) > 1 and len(domains) > 1:
        offers["all seeds, all held-out domains"] = list(runs)
    if len(domains) > 1:
        for seed in seeds:
            offers[f"seed {seed}, all held-out domains"] = [r for r in runs if r.seed == seed]
    if len(seeds) > 1:
        for domain in domains:
            name = "all seeds" + (f", without {domain}" if domain else "")
            offers[name] = [r for r in runs if r.held_out == domain]
    for seed, domain in variants:
        offers[variant_text(seed, domain)] = [r for r in runs if (r.seed, r.held_out) == (seed, domain)]
    return offers
