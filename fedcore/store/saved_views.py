"""Saved views: named addresses of a page that contain every choice made on it."""

import time
from dataclasses import dataclass

from fedcore.errors import FedLensError
from fedcore.store.database import Queries

LONGEST_NAME = 200
LONGEST_QUERY = 20_000


@dataclass(frozen=True)
class SavedView:
    """A saved view; ``query`` is the part of its address after the question mark."""

    id: int
    page: str
    name: str
    query: str


class SavedViews(Queries):
    """The saved views of a store (``Store.saved_views``).

    They refer to experiments by id, which is valid in one database only, so they are never exported.
    """

    def of_page(self, page: str) -> list[SavedView]:
        """Return the saved views of a page, by name."""
        rows = self._file.rows(
            "SELECT id, page, name, query FROM views WHERE page=:page ORDER BY name", {"page": page}
        )
        return [SavedView(**dict(row)) for row in rows]

    def save(self, page: str, name: str, query: str) -> None:
        """Save a view; one of the same name is replaced."""
        name = " ".join(name.split())
        if not 0 < len(name) <= LONGEST_NAME:
            raise FedLensError(f"a view needs a name of 1 to {LONGEST_NAME} characters", "name")
        if len(query) > LONGEST_QUERY:
            raise FedLensError("this view has too many choices to be saved; choose fewer experiments", "name")
        # no upsert: its way with conflicts would be that of the triggers, which replace second copies
        row = {"page": page, "name": name, "query": query}
        with self._file.writing() as database:
            changed = database.execute(
                "UPDATE views SET query=:query WHERE page=:page AND name=:name", row
            ).rowcount
            if not changed:
                database.execute(
                    "INSERT INTO views(page, name, query, created_at) VALUES (:page, :name, :query, :now)",
                    {**row, "now": time.time()},
                )

    def delete(self, view_id: int) -> None:
        with self._file.writing() as database:
            database.execute("DELETE FROM views WHERE id=:id", {"id": view_id})
