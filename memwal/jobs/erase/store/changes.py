"""What an erasure does to the table besides its tombstones: indexes built anew, and what goes."""

from __future__ import annotations

from collections.abc import Sequence

from memwal.errors import LostRace, PartlyFailed, Refused
from memwal.format import layout
from memwal.jobs.erase.plan import Pin, Sighting
from memwal.jobs.index_catchup.apply import SegmentTask
from memwal.jobs.index_catchup.store import LanceIndexTable
from memwal.run.stores import Stores
from memwal.store.shards.writers import sentinel_bytes
from memwal.store.tables.indexes import describe_indexes, find_index, index_kind
from memwal.store.tables.lance_calls import call_lance


class TableChanges:
    """Changes one table."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._tables = stores.tables
        self._indexes = LanceIndexTable(stores.tables)

    def list_indexes(self) -> list[str]:
        """The indexes of the latest version, without Lance's own."""
        dataset = self._tables.base()
        return [str(index.name) for index in call_lance(lambda: describe_indexes(dataset))]

    def rebuild(self, name: str) -> None:
        """Build an index anew, of the rows that are there: nothing of the one before it stays.

        A vector index is trained again; a text index keeps its settings, as one segment over all
        fragments, which replaces every other. Raises MemWalError when that can't be done.
        """
        before, dataset = self._list_segments(name), self._tables.base()
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
        if kept := before & self._list_segments(name):
            raise PartlyFailed(f"{len(kept)} of its segments stayed as they were")

    def _list_segments(self, name: str) -> frozenset[str]:
        return frozenset(str(s.uuid) for s in find_index(self._tables.base(), name).segments)

    def commit_nothing(self) -> None:
        """Commit a version that changes nothing."""
        dataset = self._tables.base()
        call_lance(lambda: dataset.delete("false"))

    def drop_pin(self, pin: Pin) -> None:
        """Delete a tag, or a checkpoint. Raises LostRace for a tag that was moved."""
        if pin.checkpoint:
            for found in self._stores.checkpoints.named(pin.name):
                if layout.checkpoint_tag(found.key) == pin.tag:
                    self._stores.checkpoints.remove(found)
            return
        tags = self._tables.base().tags
        now = call_lance(lambda: tags.list().get(pin.tag))
        if now is None:
            return
        if int(now["version"]) != pin.version:
            raise LostRace(
                f"{self._stores.uri}: tag {pin.name!r} names version {now['version']} by now"
            )
        call_lance(lambda: tags.delete(pin.tag))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects that nothing depends on. Raises Refused when one can't be deleted."""
        for path, why in self._stores.objects.delete(paths).failed:
            raise Refused("MW-Z04", f"{self._stores.uri}: {path} can't be deleted: {why}")

    def empty(self, entry: Sighting) -> None:
        """Put a sentinel in place of a WAL entry."""
        self._stores.objects.put(entry.path, sentinel_bytes(entry.writer_epoch or 1))
