"""Writers without pylance: claims and fencing by the spec, for the simulation and for tests.

The spec fences a writer when it next updates the manifest; until then its WAL entries are accepted
and replayed. pylance 14.0.2 goes further, and so does a claim here: an empty entry, the sentinel,
takes the next WAL position, so that the fenced writer's very next put fails. Without it a put could
be acknowledged after the new writer has read the WAL for the last time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from memwal.errors import (
    AlreadyExists,
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    Refused,
    StoreUnavailable,
)
from memwal.format import codec, layout
from memwal.model import ShardId, ShardManifest, ShardStatus
from memwal.ports import Objects
from memwal.store.shards.manifests import Fenced, ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.shards.writers import sentinel_bytes

_UPDATES_MAX = 16
_POSITIONS_MAX = 1_000_000


def claim_epoch(
    manifests: ShardManifests, shard_id: ShardId, attempts_max: int = 16
) -> ShardManifest:
    """Claim the shard as a writer: the next epoch, losers retry (spec: Writer Fencing).

    Racing claims propose the same bytes, so here a name that is taken is always lost, even when it
    may have been taken by our own create: an epoch that nobody holds does no harm, one that two
    writers hold would.
    """
    for _ in range(attempts_max):
        current = manifests.latest(shard_id)
        if current is not None and current.status is ShardStatus.SEALED:
            raise Refused("MW-M05", f"shard {shard_id} is SEALED: no writer may claim it")
        proposed = (
            ShardManifest(shard_id=shard_id, version=1, writer_epoch=1, current_generation=1)
            if current is None
            else replace(current, writer_epoch=current.writer_epoch + 1)
        )
        proposed = manifests._number(current, proposed)
        data = codec.encode_shard_manifest(proposed)
        try:
            manifests._create(proposed, data)
            return manifests._finish(current, proposed, data)
        except (AlreadyExists, LostRace):
            continue
    raise LostRace(f"shard {shard_id}: lost the race for its epoch {attempts_max} times")


def verify_epoch(manifests: ShardManifests, shard_id: ShardId, writer_epoch: int) -> ShardManifest:
    """The latest manifest, if `writer_epoch` is still the stored one; raises Fenced if not.

    A writer asks this before every manifest update (spec: Writer Fencing).
    """
    current = manifests.latest(shard_id)
    if current is None or writer_epoch > current.writer_epoch:
        raise Corruption("MW-M07", f"shard {shard_id}: epoch {writer_epoch} was never stored")
    if writer_epoch < current.writer_epoch:
        raise Fenced(
            f"shard {shard_id}: writer epoch {writer_epoch} was superseded by "
            f"{current.writer_epoch}"
        )
    return current


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardClaim:
    """A shard that is ours until somebody claims it anew.

    `manifest` is the last one we know of. `next_position` is where our first entry goes; all below
    it, back to the replay position, is to be replayed first.
    """

    manifest: ShardManifest
    next_position: int

    @property
    def writer_epoch(self) -> int:
        """Our fencing token: goes into every entry and every manifest that we write."""
        return self.manifest.writer_epoch


class ShardFencing:
    """Claims shards of one table, in a store that was proven (`memwal.store.objects.opening`)."""

    def __init__(
        self,
        objects: Objects,
        manifests: ShardManifests | None = None,
        *,
        updates_max: int = _UPDATES_MAX,
    ) -> None:
        self._objects = objects
        self._manifests = manifests or ShardManifests(objects)
        self._wal = WalEntries(objects)
        self._updates_max = updates_max

    def claim(self, shard_id: ShardId) -> ShardClaim:
        """Take the shard: the next epoch, then the sentinel at the tip of its WAL.

        Raises Refused for a SEALED shard, LostRace when other claims win again and again, Fenced
        when one of them came between our epoch and our sentinel.
        """
        manifest = claim_epoch(self._manifests, shard_id)
        # Nobody was there before the first epoch, so that nobody has to be fenced.
        position = 1 if manifest.writer_epoch == 1 else self._fence(manifest)
        return ShardClaim(manifest=manifest, next_position=position)

    def verify(self, claim: ShardClaim) -> ShardClaim:
        """The claim with the latest manifest. Raises Fenced when it is over."""
        latest = verify_epoch(self._manifests, claim.manifest.shard_id, claim.writer_epoch)
        return replace(claim, manifest=latest)

    def update(
        self, claim: ShardClaim, change: Callable[[ShardManifest], ShardManifest]
    ) -> ShardClaim:
        """Verify the epoch, then commit `change` of the latest manifest as the next version.

        A race that is lost to somebody with the same epoch (maintenance drops generations) is
        tried again from what they wrote; one that is lost to a claim raises Fenced. Raises LostRace
        after too many, OutcomeUnknown, StoreUnavailable.
        """
        for attempt in range(1, self._updates_max + 1):
            claim = self.verify(claim)
            try:
                committed = self._manifests.commit(claim.manifest, change(claim.manifest))
                return replace(claim, manifest=committed)
            except LostRace:
                if attempt == self._updates_max:
                    raise
        raise AssertionError("unreachable")

    def _fence(self, manifest: ShardManifest) -> int:
        """Write the sentinel at the first free position; the one after it."""
        shard, data = manifest.shard_id, sentinel_bytes(manifest.writer_epoch)
        first = manifest.replay_after_wal_entry_position + 1
        for position in range(first, first + _POSITIONS_MAX):
            if self._wal.exists(shard, position):
                continue
            # After the scan: a newer claim's sentinel is among what it passed over, or will meet
            # ours at this position. So no old sentinel ever stands above a newer one.
            verify_epoch(self._manifests, shard, manifest.writer_epoch)
            try:
                self._objects.put_if_absent(layout.wal_entry_path(shard, position), data)
            except (AlreadyExists, StoreUnavailable) as error:
                if not self._is_ours(shard, position, data, error):
                    continue  # somebody was faster: one whom we fence, or who fenced us
            return position + 1
        raise LostRace(f"{self._objects.uri}: shard {shard}: no free WAL position was found")

    def _is_ours(self, shard: ShardId, position: int, data: bytes, error: MemWalError) -> bool:
        """Whether a create that reported a fault landed after all.

        An epoch belongs to one claim, so equal bytes are our own.
        """
        try:
            stored = self._objects.get(layout.wal_entry_path(shard, position))
        except Missing:
            raise error from None
        return stored == data
