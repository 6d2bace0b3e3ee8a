"""The data of the page Papers, read from the store again only when a run has changed."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from fedcore.jobs import forecast
from fedcore.papers import adding, choices, library
from fedcore.papers.cells import Availability, TableCell, find_available, seconds, table_cells
from fedcore.papers.layout import all_tables
from fedcore.papers.published import PublishedValue
from fedcore.papers.recorded import RecordedRuns
from fedcore.results import progress
from fedcore.store import Store
from pages.widgets import background

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
        return table_cells(self.recorded, values, self.available, self.rehearsal)

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
    recorded = choices.recorded_runs(store, rehearsal)
    return recorded, find_available(store), background.precedents(store)


@st.cache_resource(
    hash_funcs={Snapshot: lambda s: repr((s.store, s.digest, s.rehearsal, library.version()))},
    max_entries=4,
    ttl=SECONDS,
    show_spinner=False,
)
def every_cell(snapshot: Snapshot) -> dict[str, list[TableCell]]:
    """Return the cells of all papers by table."""
    cells = snapshot.cells([value for table in all_tables() for value in table.values])
    return {table.name: [cells[value] for value in table.values] for table in all_tables()}
