"""Names records in the base table's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.errors import Missing
from memwal.model import TableView
from memwal.rows.settled import SettledRecord
from memwal.store.lance_calls import call_lance
from memwal.store.settled import SettledRecords, list_named, name_in_config
from memwal.store.table import LanceTables
from memwal.store.table_manifests import TableManifests


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredProofs:
    """The Proofs port over Lance and the object store."""

    records: SettledRecords
    tables: LanceTables
    manifests: TableManifests

    def find(self, view: TableView) -> list[SettledRecord]:
        """Those that count."""
        return self.records.find(view)

    def name(self, view: TableView, record_id: str, kept: SettledRecord | None) -> None:
        """Commit the name from the view's version."""
        kept_id = None if kept is None else kept.record_id
        change = name_in_config(record_id, (i for i in view.settled_ids if i != kept_id))
        dataset = self.tables.at(view.version)
        call_lance(lambda: dataset.update_config(change))

    def follows(self, view: TableView, record_id: str) -> bool:
        """Whether the version after the view's is that commit, and the view's still the same."""
        try:
            stood = self.manifests.read(view.version).timestamp_nanos
            named = list_named(self.tables.base(view.version + 1).config())
        except Missing:
            return False
        return stood == view.manifest.timestamp_nanos and record_id in named

    def put(self, record: SettledRecord) -> None:
        """Store the record."""
        self.records.put(record)
