"""Where each epoch's own manifests of a shard end, found in few reads."""

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
"""Reads another version of a manifest's shard; what was read once is remembered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestHistories:
    """Reads what decides about older manifests, where some might go."""

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
        """The evidence with the history; without one where nothing can go, or it can't be read.

        `rarely` reads it only where many may go: each of a few that changed costs several requests.
        Where something was collected, also whether the hint leads to a manifest.
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
    """A walk over the manifests that are stored one after the other, from `lowest` on."""

    latest: ShardManifest
    lowest: int
    read: Read

    def find_ends(self, top: int) -> list[EpochEnd]:
        """The ends of earlier epochs up to the one that `top` is of, ascending."""
        ends: list[EpochEnd] = []
        if top <= self.lowest:
            return ends
        if self._epoch(top) != self.latest.writer_epoch:
            after = top + 1
            while self._is_drop(after):
                after += 1
            if self._epoch(after) != self._epoch(top):
                ends.append(EpochEnd(last_own=self.go_down(top), next_first=after))
        # Epochs never fall: their first manifests are found by halves.
        first = self._find_first(top)
        while first > self.lowest:
            ends.append(EpochEnd(last_own=self.go_down(first - 1), next_first=first))
            first = self._find_first(first - 1)
        return ends[::-1]

    def go_down(self, version: int) -> int:
        """From a version over drops to the last one that the epoch's writer wrote itself.

        The lowest is one: nothing goes up to the middle of drops at the end of an epoch.
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
