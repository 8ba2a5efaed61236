"""What lies in the shard folders, and their manifests from before the grace."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.jobs.garbage.kinds.shard_manifest import find_lowest, find_top, has_collectable, is_drop
from memwal.jobs.garbage.kinds.wal_entry import find_coverable, find_numbers
from memwal.jobs.garbage.model import (
    EpochEnd,
    GarbageLimits,
    GenerationFolder,
    ManifestHistory,
    ShardEvidence,
    StoredManifest,
    WalFile,
    past_version,
)
from memwal.model import ShardId, ShardManifest, StoredFile
from memwal.ports import Objects
from memwal.rows.progress import SettledRecord, find_proven
from memwal.store.shards.listing import ShardListing, list_shards
from memwal.store.shards.manifests import ShardManifests

Read = Callable[[ShardManifest, int], ShardManifest]
"""Reads another manifest version of the same shard; what was read once is remembered."""


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


class ShardFolders:
    """The folders of one table's shards."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._manifests = ShardManifests(objects)
        self._past: dict[tuple[str, int], ShardManifest] = {}
        self._lock = threading.Lock()

    def read(
        self,
        pool: Executor,
        manifests: Mapping[ShardId, ShardManifest],
        cutoff_nanos: int,
        *,
        limits: GarbageLimits,
        whole: bool,
        only: Iterable[ShardId] | None = None,
        listed_before: Mapping[ShardId, Sequence[StoredFile]] | None = None,
    ) -> list[ShardEvidence]:
        """The evidence of all shards, or of `only` some; an error is noted as a shard's `problem`.

        `whole` keeps the list of every file. `listed_before` are files that need no new listing.
        """
        known = listed_before or {}
        listing = (
            list_shards(self._objects)
            if only is None
            else ShardListing(self._objects, sorted(only), (), None)
        )

        def look(shard_id: ShardId) -> ShardEvidence:
            listed = ShardEvidence(shard_id=shard_id)
            try:
                files = known[shard_id] if shard_id in known else listing.files(shard_id)
                listed = _sort_files(shard_id, files, wal=limits.wal, whole=whole)
                listed = replace(listed, objects=len(files))
                manifest = manifests.get(shard_id)
                if manifest is None:
                    return listed
                numbered = (*listed.manifests, *listed.stoppers)
                sizes = {stored.version: stored.size_bytes for stored in numbered}
                self._manifests.check_unforked(shard_id, sizes)
                if (version := past_version(listed.manifests, cutoff_nanos)) is not None:
                    listed = replace(listed, past=self._read(manifest, version))
                listed = replace(listed, cover=self._find_cover(listed, manifest))
                return self._add_history(
                    listed, manifest, cutoff_nanos, limits, rarely=only is not None
                )
            except MemWalError as error:
                return replace(listed, problem=error)

        return list(pool.map(look, listing.shards))

    def list_files(
        self, pool: Executor, shards: Iterable[ShardId]
    ) -> dict[ShardId, Sequence[StoredFile]]:
        """List the files of these shards."""
        chosen = sorted(shards)
        folders = map(layout.shard_folder, chosen)
        found = pool.map(lambda folder: list(self._objects.list(folder)), folders)
        return dict(zip(chosen, found, strict=True))

    def _add_history(
        self,
        listed: ShardEvidence,
        latest: ShardManifest,
        cutoff_nanos: int,
        limits: GarbageLimits,
        *,
        rarely: bool,
    ) -> ShardEvidence:
        """The evidence with what decides about older manifests, if any can go and it can be read.

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
            hinted = self._manifests.hint(latest.shard_id)
            if listed.stoppers:
                target = hinted or 0
                is_there = any(m.version == target for m in listed.manifests)
                listed = replace(listed, astray=target <= latest.version and not is_there)
            if is_collectable:
                walk = _Walk(latest=latest, lowest=lowest, read=self._read)
                ends = (*walk.find_ends(top), EpochEnd(last_own=walk.go_down(latest.version)))
                listed = replace(listed, history=ManifestHistory(hinted=hinted, ends=ends))
        return listed

    def _find_cover(self, listed: ShardEvidence, latest: ShardManifest) -> ShardManifest | None:
        """The newest manifest from before the grace all of whose flushed generations are gone."""
        past = listed.past
        if past is None or not find_coverable([w.position for w in listed.wal], latest, past):
            return None
        lowest = min(find_numbers(latest, listed.folders), default=layout.U64_MAX)
        if past.current_generation <= lowest:
            return past
        versions = sorted(m.version for m in listed.manifests if m.version < past.version)

        def is_later(version: int) -> bool:
            return self._read_version(latest.shard_id, version).current_generation > lowest

        # Counters never fall, so a galloping search from the newest finds it; mostly at once.
        low, high, step = len(versions) - 1, len(versions), 1
        while low >= 0 and is_later(versions[low]):
            low, high, step = low - step, low, step * 2
        found = bisect_left(versions, True, max(low, 0), high, key=is_later)
        return self._read_version(latest.shard_id, versions[found - 1]) if found else None

    def _read(self, latest: ShardManifest, version: int) -> ShardManifest:
        same = version == latest.version
        return latest if same else self._read_version(latest.shard_id, version)

    def _read_version(self, shard_id: ShardId, version: int) -> ShardManifest:
        known = self._past.get((shard_id, version))
        if known is None:
            known = self._manifests.read(shard_id, version)
            with self._lock:
                self._past[shard_id, version] = known
        return known

    def find_settled(self, latest: ShardManifest, record: SettledRecord) -> int:
        """Up to which generation the record proves this very shard to be merged; 0 for none."""
        with suppress(MemWalError):
            return find_proven(latest, record, self._manifests.digest)
        return 0


def _sort_files(
    shard_id: ShardId, listed: Iterable[StoredFile], *, wal: bool, whole: bool
) -> ShardEvidence:
    """Sort the files of a shard into generations, manifests, stoppers, WAL entries and others."""
    below = layout.shard_folder(shard_id)
    folders: dict[str, list[StoredFile]] = {}
    others: dict[str, StoredFile] = {}
    manifests: list[StoredManifest] = []
    stoppers: list[StoredManifest] = []
    entries: list[WalFile] = []
    files: list[StoredFile] = []
    staged: list[StoredFile] = []
    for file in listed:
        top, _, rest = file.path.removeprefix(f"{below}/").partition("/")
        if top in ("manifest", "wal") and layout.is_staged(rest):
            staged.append(file)
        elif top == "manifest" and rest:
            version = layout.parse_shard_manifest_name(rest)
            if version is not None:
                found_as = stoppers if file.size_bytes == layout.STOPPER_BYTES else manifests
                found_as.append(
                    StoredManifest(
                        version=version,
                        modified_at_nanos=file.modified_at_nanos,
                        size_bytes=file.size_bytes,
                    )
                )
        elif top == "wal" and rest:
            position = layout.parse_wal_entry_name(rest)
            if position is not None and wal:
                entries.append(WalFile(position=position, file=file))
        elif rest and layout.parse_generation_folder(top) is not None:
            folders.setdefault(top, []).append(file)
        else:
            others[top] = _add_file(others.get(top), file, f"{below}/{top}")
            continue
        if whole:
            files.append(file)
    return ShardEvidence(
        shard_id=shard_id,
        folders=tuple(
            GenerationFolder(
                name=name,
                generation=layout.parse_generation_folder(name) or 0,
                files=tuple(found),
            )
            for name, found in sorted(folders.items())
        ),
        wal=tuple(sorted(entries, key=lambda e: e.position)),
        manifests=tuple(manifests),
        stoppers=tuple(stoppers),
        staged=tuple(staged),
        others=tuple(others.values()),
        files=tuple(files),
    )


def _add_file(before: StoredFile | None, file: StoredFile, path: str) -> StoredFile:
    """Add a file to an unknown folder, which is reported as one object."""
    if before is None:
        return replace(file, path=path)
    return StoredFile(
        path=path,
        size_bytes=before.size_bytes + file.size_bytes,
        modified_at_nanos=max(before.modified_at_nanos, file.modified_at_nanos),
    )
