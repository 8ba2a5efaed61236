"""Shard manifests that this process has read, for who looks at a table again and again.

A manifest never changes, and still its name alone says little: the table may have been created
again, and its shards may have the same ids. So each is known by all that a listing says of its
file. What is remembered answers only for a file that was listed just now, so it can't show more
than the listing does, and nothing is deleted by it: there, manifests are read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Container, Sequence

from memwal.model import ShardId, ShardManifest, StoredFile

# Of all tables together, some 1.5 KB each; beyond that the tables go first that were last asked for
# the longest ago.
_MANIFESTS_MAX = 50_000


class ManifestMemory:
    """The newest manifest of each of a table's shards, as far as they were read.

    `unsaved` counts what was remembered since that was last stored elsewhere.
    """

    def __init__(self) -> None:
        self._found: dict[ShardId, tuple[StoredFile, ShardManifest]] = {}
        self.unsaved = 0

    def __len__(self) -> int:
        return len(self._found)

    def recall(self, shard_id: ShardId, file: StoredFile) -> ShardManifest | None:
        """What the file holds, if it was read as it is now."""
        found = self._found.get(shard_id)
        return found[1] if found is not None and found[0] == file else None

    def keep(self, file: StoredFile, manifest: ShardManifest) -> None:
        """Remember what the file holds, where a listing tells it from others of its name.

        Without an etag it need not: dates may be whole seconds, and sizes are often the same.
        """
        if file.etag:
            self._found[manifest.shard_id] = (file, manifest)
            self.unsaved += 1

    def list(self) -> Sequence[tuple[StoredFile, ShardManifest]]:
        """All that is remembered."""
        return tuple(self._found.values())

    def forget_others(self, shards: Container[ShardId]) -> None:
        """Keep only what is known of these shards."""
        for shard_id in tuple(self._found):  # other threads may look at the same table
            if shard_id not in shards:
                self._found.pop(shard_id, None)


class ManifestMemories:
    """What one process remembers of its tables."""

    def __init__(self, *, manifests_max: int = _MANIFESTS_MAX) -> None:
        self._manifests_max = manifests_max
        self._tables: OrderedDict[tuple[str, str], ManifestMemory] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, store: str, uri: str) -> ManifestMemory:
        """What is known of a table; the same address may be in two stores."""
        with self._lock:
            memory = self._tables.setdefault((store, uri), ManifestMemory())
            self._tables.move_to_end((store, uri))
            while len(self._tables) > 1 and self._count() > self._manifests_max:
                self._tables.popitem(last=False)
            return memory

    def _count(self) -> int:
        return sum(len(memory) for memory in self._tables.values())


MEMORIES = ManifestMemories()
"""This process's."""
