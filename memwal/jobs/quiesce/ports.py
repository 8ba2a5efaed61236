"""What `apply` asks for."""

from __future__ import annotations

from typing import Protocol

from memwal.model import TableView
from memwal.rows.settled import SettledRecord


class Proofs(Protocol):
    """The records of what a table at rest had merged."""

    def find(self, view: TableView) -> list[SettledRecord]:
        """Those that count for the view, newest first."""
        ...

    def name(self, view: TableView, record_id: str, kept: SettledRecord | None) -> None:
        """Commit the name of a record that is to come, and forget all that the view has but one.

        The commit may land on whatever is the latest version. Raises LostRace, StoreUnavailable.
        """
        ...

    def follows(self, view: TableView, record_id: str) -> bool:
        """Whether the version right after the view's is the commit of that name."""
        ...

    def put(self, record: SettledRecord) -> None:
        """Store the record."""
        ...
