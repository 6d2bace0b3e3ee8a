"""Plans of experiments, made in the background, and what earlier runs say about their cost."""

from __future__ import annotations

from concurrent.futures import Future

import streamlit as st

from fedcore.config import Experiment
from fedcore.data import descriptions
from fedcore.engine.plan import Planner, PlanResult
from fedcore.errors import FedLensError
from fedcore.jobs import forecast
from fedcore.methods import consent
from fedcore.store import Store


@st.cache_resource(show_spinner=False)
def _planner() -> Planner:
    return Planner()


def request(experiment: Experiment, version: str = "") -> Future[PlanResult]:
    """Return the plan of an experiment, and start to make it if there is none for this version.

    Args:
        version: changes with whatever the caller knows to affect the plan, such as a check of the data. Class
            descriptions and agreed method files, which affect every plan, are added here.
    """
    try:
        texts = descriptions.version(experiment.data.name, experiment.data.root)
    except FedLensError:  # an unknown data set, which the plan reports
        texts = ""
    return _planner().request(experiment, f"{texts} {consent.version()} {version}")


@st.cache_data(show_spinner=False, ttl=20, hash_funcs={Store: repr})
def precedents(store: Store) -> forecast.Precedents:
    """Return what the runs recorded on this machine needed, from which a plan's cost is estimated."""
    return forecast.precedents(store.path)
