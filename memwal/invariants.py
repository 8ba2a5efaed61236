"""The numbered invariants, as predicates over (current, proposed). Pure.

Each raises InvariantBroken, which means a bug in memwal or in a caller, never an operator's
mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memwal.model import ShardId, ShardManifest


class InvariantBroken(AssertionError):
    """A commit was about to break an invariant; it was not made."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}")
        self.number = number


def check_merge_order(merged: int, generations: Sequence[int], *, holes_allowed: bool) -> None:
    """Invariant 2: a commit folds ascending generations right above the watermark.

    `generations` are the numbers that one commit folds. A hole anywhere between the watermark and
    the last of them needs the explicit override.
    """
    if not generations:
        raise InvariantBroken(2, "a commit has to fold at least one generation")
    before = merged
    for generation in generations:
        if generation <= before:
            raise InvariantBroken(2, f"generation {generation} comes after {before}")
        if generation != before + 1 and not holes_allowed:
            raise InvariantBroken(2, f"generation {generation} leaves a hole after {before}")
        before = generation


def check_progress(
    current: Mapping[ShardId, int], proposed: Mapping[ShardId, int], what: str = "merged"
) -> None:
    """Invariant 3: no entry of `current` is lowered or lost in `proposed`."""
    for shard, generation in current.items():
        if proposed.get(shard, -1) < generation:
            raise InvariantBroken(
                3, f"{what} of shard {shard} falls from {generation} to {proposed.get(shard)}"
            )


def check_shard_manifest(current: ShardManifest | None, proposed: ShardManifest) -> None:
    """Invariants 3 and 4 for a shard manifest.

    Counters never fall, the version is the next one, and the shard and its spec stay the same.
    """
    if current is None:
        return
    if proposed.shard_id != current.shard_id or proposed.version != current.version + 1:
        raise InvariantBroken(3, f"version {proposed.version} does not follow {current.version}")
    if proposed.shard_spec_id != current.shard_spec_id:
        raise InvariantBroken(3, f"shard spec {current.shard_spec_id} is the shard's for good")
    for name in ("writer_epoch", "current_generation", "replay_after_wal_entry_position"):
        if getattr(proposed, name) < getattr(current, name):
            raise InvariantBroken(
                3, f"{name} falls from {getattr(current, name)} to {getattr(proposed, name)}"
            )


def check_writer_untouched(current: ShardManifest, proposed: ShardManifest) -> None:
    """Invariant 4: maintenance leaves the writer's epoch as it found it."""
    if proposed.writer_epoch != current.writer_epoch:
        raise InvariantBroken(4, "maintenance must not change the writer epoch")
