"""What the page Papers knows of the store, read again only when a run has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from fedcore.papers.names import CATALOG
from fedcore.papers.published import PublishedValue
from fedcore.papers.tables import rehearsal as rehearsals
from fedcore.papers.tables.filling import seconds
from fedcore.papers.tables.here import Here, look
from fedcore.papers.tables.layout import PrintedTable, all_tables
from fedcore.papers.tables.recorded import Recorded
from fedcore.papers.tables.standing import CellStanding, Memory, measure, standings
from fedcore.results.runs import forecast, progress
from fedcore.store import Store
from pages.forms import planning

MEMORY_SECONDS = 3600
SECONDS = 20
"""For so long what is not in the runs is not looked at again: folders, weights, processes that died."""


@dataclass(frozen=True)
class Known:
    """The state of a store at one moment."""

    store: Store
    digest: str
    rehearsal: bool
    recorded: Recorded
    here: Here
    past: forecast.Precedents

    def cells(self, table: PrintedTable) -> dict[PublishedValue, CellStanding]:
        """Return the standing of each value of a table."""
        return self.standings(table.values)

    def standings(self, values: Sequence[PublishedValue]) -> dict[PublishedValue, CellStanding]:
        """Return the standings of some values."""
        measured = measure(self.recorded, values, self.rehearsal, _memory(self.store))
        return standings(self.recorded, values, measured, self.here, self.rehearsal)

    def cost(self, cell: CellStanding) -> float | None:
        """Return the seconds that a cell's missing runs take; None while this machine has no pace of them."""
        if cell.source is None:
            return None
        return seconds(self.past, {cell.source: list(cell.missing)})


def now(store: Store, rehearsal: bool) -> Known:
    """Return the state of a store."""
    digest = progress.activity_digest(store)
    return Known(store, digest, rehearsal, *_read(store, digest, rehearsal))


@st.cache_resource(hash_funcs={Store: repr}, max_entries=8, ttl=SECONDS, show_spinner=False)
def _read(store: Store, digest: str, rehearsal: bool) -> tuple[Recorded, Here, forecast.Precedents]:
    data = {rehearsals.DATA} if rehearsal else set(CATALOG.values())
    return Recorded(store, data), look(store), planning.precedents(store)


@st.cache_resource(hash_funcs={Store: repr}, max_entries=2, ttl=MEMORY_SECONDS, show_spinner=False)
def _memory(store: Store) -> Memory:
    """Return the memory of a store, which all sessions share and which is forgotten from time to time."""
    return {}


def every_cell(known: Known) -> dict[str, list[CellStanding]]:
    """Return the standings of all values of all papers, in their order, by table."""
    return _every_cell(known.store, known.digest, known.rehearsal, known)


@st.cache_resource(hash_funcs={Store: repr}, max_entries=4, ttl=SECONDS, show_spinner=False)
def _every_cell(store: Store, digest: str, rehearsal: bool, _known: Known) -> dict[str, list[CellStanding]]:
    found = {}
    for table in all_tables():
        cells = _known.cells(table)
        found[table.name] = [cells[value] for value in table.values]
    return found
