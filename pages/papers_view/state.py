"""The data of the page Papers, read from the store again only when a run has changed."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from fedcore.jobs import forecast
from fedcore.papers import adding, library
from fedcore.papers.published import PublishedValue
from fedcore.papers.recorded import RecordedRuns
from fedcore.papers.tables import multiverse
from fedcore.papers.tables.filling import seconds
from fedcore.papers.tables.printed_layout import all_tables
from fedcore.papers.tables.sources import Availability, find_available
from fedcore.papers.tables.status import Memory, TableCell, measure, table_cells
from fedcore.results import progress
from fedcore.store import Store
from pages.widgets import background

MEMORY_SECONDS = 3600
SECONDS = 20
"""Cache lifetime of checks outside the runs: folders, weights, processes that died."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a store at one moment."""

    store: Store
    digest: str
    rehearsal: bool
    recorded: RecordedRuns
    available: Availability
    past: forecast.Precedents

    def cells(self, values: Sequence[PublishedValue]) -> dict[PublishedValue, TableCell]:
        measured = measure(self.recorded, values, self.rehearsal, _memory(self.store))
        return table_cells(self.recorded, values, measured, self.available, self.rehearsal)

    def cost(self, cell: TableCell) -> float | None:
        """Estimate the seconds that a cell's missing runs take; None without similar runs on this machine."""
        if cell.source is None:
            return None
        return seconds(self.past, {cell.source: list(cell.missing)})


def now(store: Store, rehearsal: bool) -> Snapshot:
    """Read the current state of a store, and the papers that were added to it."""
    adding.use(store.path)
    digest = progress.activity_digest(store)
    return Snapshot(store, digest, rehearsal, *_read(store, digest, rehearsal))


@st.cache_resource(hash_funcs={Store: repr}, max_entries=8, ttl=SECONDS, show_spinner=False)
def _read(
    store: Store, digest: str, rehearsal: bool
) -> tuple[RecordedRuns, Availability, forecast.Precedents]:
    recorded = multiverse.recorded_runs(store, rehearsal)
    return recorded, find_available(store), background.precedents(store)


@st.cache_resource(hash_funcs={Store: repr}, max_entries=2, ttl=MEMORY_SECONDS, show_spinner=False)
def _memory(store: Store) -> Memory:
    """Return the cache of a store's measurements, shared by all sessions."""
    return {}


def caveat_weights(snapshot: Snapshot, value: PublishedValue) -> dict[str, str]:
    """Return how much each caveat of a value matters, by runs of its readings, else by their rehearsals."""
    return multiverse.caveat_weights(snapshot.recorded, value, False) or multiverse.caveat_weights(
        now(snapshot.store, True).recorded, value, True
    )


def _version(snapshot: Snapshot) -> str:
    """Return what decides a snapshot's cells."""
    return repr((snapshot.store, snapshot.digest, snapshot.rehearsal, library.version()))


@st.cache_resource(hash_funcs={Snapshot: _version}, max_entries=4, ttl=SECONDS, show_spinner=False)
def every_cell(snapshot: Snapshot) -> dict[str, list[TableCell]]:
    """Return the cells of all papers by table."""
    cells = snapshot.cells([value for table in all_tables() for value in table.values])
    return {table.name: [cells[value] for value in table.values] for table in all_tables()}
