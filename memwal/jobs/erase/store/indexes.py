"""Builds an index anew, of the rows that are there: nothing of the one before it stays."""

from __future__ import annotations

from memwal.jobs.index_catchup.apply import SegmentTask
from memwal.jobs.index_catchup.store import LanceIndexTable
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.indexes import describe_indexes, find_index, index_kind
from memwal.store.tables.lance_calls import call_lance


class LanceRebuild:
    """The Rebuild port over Lance."""

    def __init__(self, tables: LanceTables) -> None:
        self._tables = tables
        self._indexes = LanceIndexTable(tables)

    def list_names(self) -> list[str]:
        """The indexes of the latest version, without Lance's own."""
        dataset = self._tables.base()
        return [str(index.name) for index in call_lance(lambda: describe_indexes(dataset))]

    def rebuild(self, name: str) -> None:
        """Build one anew (see the port).

        A vector index is trained again; a text index keeps its settings, as one segment over all
        fragments, which replaces every other.
        """
        dataset = self._tables.base()
        described = find_index(dataset, name)
        kind = index_kind(described)
        if kind.startswith("IVF_"):
            self._indexes.retrain(name, 0)
        elif kind in ("INVERTED", "BTREE"):
            facts = self._indexes.facts(int(dataset.version))
            task = SegmentTask(
                version=facts.version, index=name, kind=kind, fragments=facts.fragments
            )
            self._indexes.commit_segments(facts.version, name, [self._indexes.build(task)])
        else:
            column = described.field_names[0]
            call_lance(lambda: dataset.create_scalar_index(column, kind, name=name, replace=True))

    def segments(self, name: str) -> frozenset[str]:
        """The folders of an index's segments in the latest version."""
        dataset = self._tables.base()
        return frozenset(str(s.uuid) for s in find_index(dataset, name).segments)

    def commit_nothing(self) -> None:
        """Commit a version that changes nothing."""
        dataset = self._tables.base()
        call_lance(lambda: dataset.delete("false"))
