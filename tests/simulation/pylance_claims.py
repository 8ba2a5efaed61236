"""Claims of a shard as pylance 14 makes them, with less care than memwal's own.

Its tip is the first free position above the last one seen, or the first of all when the WAL is
empty; no epoch is asked for before its sentinel; a replay goes up to the first position that is
missing, and is fenced by a newer epoch on the way (tests/store/test_fencing.py
and the model hold the real one against this).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from memwal.errors import AlreadyExists, Missing
from memwal.format import layout
from memwal.model import ShardId, ShardManifest
from memwal.ports import Objects
from memwal.store.shards.manifests import Fenced, ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.shards.writers import sentinel_bytes
from tests.support.fencing import ShardClaim, claim_epoch

Stall = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class PylanceClaims:
    """`stall` is called where a writer may sleep for long."""

    objects: Objects
    manifests: ShardManifests
    stall: Stall

    def claim(self, shard: ShardId) -> ShardClaim:
        """The epoch, then the sentinel. The replay, and its end, are the session's."""
        manifest = claim_epoch(self.manifests, shard)
        if manifest.writer_epoch == 1:
            return ShardClaim(manifest=manifest, next_position=1)
        self.stall()
        return ShardClaim(manifest=manifest, next_position=self._fence(manifest) + 1)

    def _fence(self, manifest: ShardManifest) -> int:
        shard, data = manifest.shard_id, sentinel_bytes(manifest.writer_epoch)
        wal = WalEntries(self.objects)
        position = manifest.wal_entry_position_last_seen + 1 if wal.list_entries(shard) else 1
        while True:
            if not wal.exists(shard, position):
                try:
                    self.objects.put_if_absent(layout.wal_entry_path(shard, position), data)
                except AlreadyExists:
                    pass
                else:
                    return position
            position += 1

    def replayed(self, claim: ShardClaim) -> tuple[list[bytes], int]:
        """Entries from the claim's replay position on, and the position of the first put."""
        found: list[bytes] = []
        position = claim.manifest.replay_after_wal_entry_position + 1
        while True:
            path = layout.wal_entry_path(claim.manifest.shard_id, position)
            try:
                data = self.objects.get(path)
            except Missing:
                return found, position
            if epoch_of(data) > claim.writer_epoch:
                raise Fenced(f"position {position} holds a newer epoch")
            found.append(data)
            position += 1


def epoch_of(data: bytes) -> int:
    """The writer epoch in an entry's schema."""
    with pa.ipc.open_stream(io.BytesIO(data)) as stream:
        return int(stream.schema.metadata[b"writer_epoch"])
