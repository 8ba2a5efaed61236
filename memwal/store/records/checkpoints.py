"""Checkpoints: a small document each under `_maintenance/checkpoints/`, and a tag of the base.

A document's name is the checkpoint's name with a random suffix, and its tag is named after it. So a
rewrite or delete by that name never touches another checkpoint, or a tag of somebody else's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from memwal.errors import (
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    Refused,
    StoreUnavailable,
    Usage,
)
from memwal.format import layout
from memwal.model import Checkpoint
from memwal.ports import DOCUMENT_BYTES_MAX, Objects
from memwal.store.records.documents import NEWER, put_document, read_document
from memwal.store.tables.lance_calls import Says, call_lance, says
from memwal.text import iso_time
from memwal.threads import side_by_side

if TYPE_CHECKING:
    from memwal.store.tables.datasets import LanceTables

_READERS_MAX = 16


class StoredCheckpoints:
    """The checkpoints of one table."""

    def __init__(self, objects: Objects, *, readers_max: int = _READERS_MAX) -> None:
        self._objects = objects
        self._readers_max = readers_max

    def list(self) -> Sequence[Checkpoint]:
        """All that are there, expired and unfinished ones too, by name.

        Raises Corruption for one that can't be read: nobody knows what it holds.
        """
        files = self._objects.list(layout.CHECKPOINTS)
        found = (layout.parse_checkpoint_path(file.path) for file in files)
        keys = sorted(key for key in found if key is not None)
        read = side_by_side(self.read, keys, self._readers_max)
        return [checkpoint for checkpoint in read if checkpoint is not None]

    def named(self, name: str) -> Sequence[Checkpoint]:
        """Checkpoints of a name, oldest first. Raises Usage, which lists all names, without any."""
        known = self.list()
        found = [checkpoint for checkpoint in known if checkpoint.name == name]
        if not found:
            names = ", ".join(sorted({checkpoint.name for checkpoint in known}))
            there = f"there are: {names}" if names else "the table has none"
            raise Usage(f"{self._objects.uri}: there is no checkpoint {name!r}; {there}")
        return sorted(found, key=lambda checkpoint: checkpoint.created_at_nanos)

    def find(self, name: str, now_nanos: int) -> Checkpoint:
        """The newest checkpoint of a name, to read from.

        Raises Usage when there is none, Refused when it is unfinished or expired.
        """
        newest = self.named(name)[-1]
        where = f"{self._objects.uri}: checkpoint {name!r}"
        if not newest.ready:
            raise Refused("MW-C02", f"{where} was never finished: make it again")
        if newest.is_expired(now_nanos):
            ended = iso_time(newest.expires_at_nanos)
            raise Refused("MW-C03", f"{where} expired {ended}: what it needs may be gone")
        return newest

    def put(self, checkpoint: Checkpoint) -> None:
        """Store the checkpoint, replacing what was stored under its key."""
        put_document(self._objects, layout.checkpoint_path(checkpoint.key), checkpoint)

    def is_tagged(self, checkpoint: Checkpoint) -> bool:
        """Whether its tag is there, and names its version of main."""
        try:
            path = layout.checkpoint_tag_path(checkpoint.key)
            tag = json.loads(self._objects.get(path, DOCUMENT_BYTES_MAX))
            return tag["branch"] is None and tag["version"] == checkpoint.version
        except (Missing, Corruption, ValueError, KeyError, TypeError, RecursionError):
            return False

    def remove(self, checkpoint: Checkpoint) -> None:
        """Mark the checkpoint as expired, then delete its tag and its record.

        What a kill leaves behind is garbage. If the mark can't be stored, as on a full disk, the
        checkpoint is deleted all the same; a kill then leaves a record that is still in force.
        Raises StoreUnavailable when some of it is left.
        """
        unexpired: StoreUnavailable | None = None
        try:
            self.put(replace(checkpoint, expires_at_nanos=0))
        except StoreUnavailable as error:
            unexpired = error
        tag = layout.checkpoint_tag_path(checkpoint.key)
        for path in (tag, layout.checkpoint_path(checkpoint.key)):
            for refused, why in self._objects.delete([path]).failed:
                raise unexpired or StoreUnavailable(
                    f"{self._objects.uri}: checkpoint {checkpoint.name!r} has ended, and {refused} "
                    f"can't be deleted: {why}; `memwal garbage --execute` tries again"
                )

    def read(self, key: str) -> Checkpoint | None:
        """One checkpoint; None if it was dropped. Raises Corruption for one that can't be read."""
        path = layout.checkpoint_path(key)
        error = Corruption(
            "MW-C04",
            f"{self._objects.uri}: {path} can't be read as a checkpoint, so nothing tells what it "
            f"holds: {NEWER}",
        )
        return read_document(
            self._objects, path, Checkpoint, lambda c: c.key == key and _is_sound(c), error
        )


class LanceTags:
    """The Tags port over Lance."""

    def __init__(self, tables: LanceTables) -> None:
        self._tables = tables

    def tag(self, name: str, version: int) -> None:
        """Tag a version of the base. Raises LostRace when that is gone, StoreUnavailable."""
        dataset = self._tables.base()
        try:
            call_lance(lambda: dataset.tags.create(name, version))
        except MemWalError as error:
            if says(error, Says.NO_VERSION):
                raise LostRace(f"{self._tables.uri}: {error}") from None
            raise


def _is_sound(found: Checkpoint) -> bool:
    """Whether it has values that a checkpoint can have. Raises Corruption for a path."""
    numbers = [found.version, found.created_at_nanos, found.expires_at_nanos or 0]
    for shard in found.shards:
        if not layout.is_shard_folder(shard.shard_id):
            return False
        numbers += [shard.merged_generation, shard.generation, shard.manifest_version]
        for generation in shard.pending:
            layout.check_generation_path(generation.path, generation.generation)
            if not shard.merged_generation < generation.generation <= shard.generation:
                return False
    return all(0 <= number <= layout.U64_MAX for number in numbers)
