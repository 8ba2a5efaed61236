"""Finds where each epoch's own manifests of a shard end, in few reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from memwal.errors import MemWalError
from memwal.jobs.garbage.kinds.shard_manifest import (
    find_lowest,
    find_top,
    has_collectable,
    is_drop,
)
from memwal.jobs.garbage.model import EpochEnd, GarbageLimits, ManifestHistory, ShardEvidence
from memwal.model import ShardId, ShardManifest

Read = Callable[[ShardManifest, int], ShardManifest]
"""Reads another manifest version of the same shard; what was read once is remembered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestHistories:
    """Reads what decides about older manifests, where some of them might go."""

    hint: Callable[[ShardId], int | None]
    read: Read

    def add(
        self,
        listed: ShardEvidence,
        latest: ShardManifest,
        cutoff_nanos: int,
        limits: GarbageLimits,
        *,
        rarely: bool = False,
    ) -> ShardEvidence:
        """The evidence with the history, or without one if nothing can go or it can't be read.

        With `rarely`, it is read only where many manifests may go, since each shard costs several
        requests. Where manifests were collected before, `astray` is found out, too: whether the
        version hint leads to no manifest.
        """
        lowest = find_lowest(listed.manifests, latest.version)
        top = find_top(listed.manifests, latest.version, cutoff_nanos, limits.numbered_kept_min)
        is_collectable = has_collectable(listed, latest.version, top)
        if rarely and top - lowest < limits.numbered_kept_min:
            is_collectable = False
        if not is_collectable and not listed.stoppers:
            return listed
        with suppress(MemWalError):
            hinted = self.hint(latest.shard_id)
            if listed.stoppers:
                target = hinted or 0
                is_there = any(m.version == target for m in listed.manifests)
                listed = replace(listed, astray=target <= latest.version and not is_there)
            if is_collectable:
                walk = _Walk(latest=latest, lowest=lowest, read=self.read)
                ends = (*walk.find_ends(top), EpochEnd(last_own=walk.go_down(latest.version)))
                listed = replace(listed, history=ManifestHistory(hinted=hinted, ends=ends))
        return listed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Walk:
    """A walk over the gapless run of stored manifests from `lowest` to the latest."""

    latest: ShardManifest
    lowest: int
    read: Read

    def find_ends(self, top: int) -> list[EpochEnd]:
        """The ends of earlier epochs, ascending, up to the epoch of version `top`."""
        ends: list[EpochEnd] = []
        if top <= self.lowest:
            return ends
        if self._epoch(top) != self.latest.writer_epoch:
            after = top + 1
            while self._is_drop(after):
                after += 1
            if self._epoch(after) != self._epoch(top):
                ends.append(EpochEnd(last_own=self.go_down(top), next_first=after))
        # Epochs never fall, so the first manifest of each is found by bisection.
        first = self._find_first(top)
        while first > self.lowest:
            ends.append(EpochEnd(last_own=self.go_down(first - 1), next_first=first))
            first = self._find_first(first - 1)
        return ends[::-1]

    def go_down(self, version: int) -> int:
        """From a version down, past drops, to the last one that the epoch's own writer wrote.

        The lowest stored version counts as one: deletes never end amid the drops at the end of an
        epoch.
        """
        while version > self.lowest and self._is_drop(version):
            version -= 1
        return version

    def _find_first(self, version: int) -> int:
        """The first version of the same epoch."""
        epoch = self._epoch(version)
        span = range(self.lowest, version + 1)
        return span[bisect_left(span, True, key=lambda v: self._epoch(v) == epoch)]

    def _is_drop(self, version: int) -> bool:
        return is_drop(self._version(version - 1), self._version(version))

    def _epoch(self, version: int) -> int:
        return self._version(version).writer_epoch

    def _version(self, version: int) -> ShardManifest:
        return self.read(self.latest, version)
