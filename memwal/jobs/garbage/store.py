"""Reads what the garbage job decides by: retained versions, shard folders, leftovers.

Everything here is read after the view was: a writer that goes on in between can only add folders
at or above the view's current generation, and versions that have merged more, or what a retained
version had.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from memwal.errors import MemWalError, Missing, StoreUnavailable
from memwal.format import layout
from memwal.jobs.garbage.model import (
    Evidence,
    GarbageLimits,
    GenerationFolder,
    ShardEvidence,
    SnapshotFolder,
    StoredManifest,
    WalFile,
    WriterClaim,
    coverable_wal_positions,
    cutoff_nanos,
    past_version,
)
from memwal.jobs.garbage.store_ingest import StoredIngests
from memwal.jobs.garbage.store_versions import RetainedVersions
from memwal.jobs.garbage.store_wal import WalHeads
from memwal.model import ShardId, ShardManifest, StoredFile
from memwal.ports import Objects, WalNeeded
from memwal.store.shard_listing import list_shards
from memwal.store.shard_manifests import ShardManifests

_READERS_MAX = 16
_INDICES = "_indices"
_STAGING = layout.STAGING
_SNAPSHOT_FILE = "index.lance"
_SNAPSHOT_TAIL_BYTES = 64 * 1024
# Column names of the spec's shard snapshot, as they stand in a Lance file's schema.
_SNAPSHOT_MARKS = (b"shard_id", b"flushed_generations", b"replay_after_wal_entry_position")

T = TypeVar("T")
R = TypeVar("R")


class StoredGarbageEvidence:
    """The GarbageEvidence port over an object store."""

    def __init__(
        self,
        objects: Objects,
        *,
        ingests: StoredIngests | None = None,
        readers_max: int = _READERS_MAX,
    ) -> None:
        """Without `ingests`, nothing is known of them, and nothing of theirs is garbage."""
        self._objects = objects
        self._shards = ShardManifests(objects)
        self._versions = RetainedVersions(objects, readers_max=readers_max)
        self._heads = WalHeads(objects, self._side_by_side)
        self._ingests = ingests
        self._readers_max = readers_max
        self._past: dict[tuple[str, int], ShardManifest] = {}
        self._lock = threading.Lock()

    def read(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        *,
        limits: GarbageLimits,
        now_nanos: int,
        verified: bool,
        whole_shards: bool = False,
        wal_needed: WalNeeded | None = None,
    ) -> Evidence:
        """Everything (see the port)."""
        versions, problems = self._versions.all(verified=verified)
        shards = self._shard_folders(manifests, limits, now_nanos, whole_shards)
        if limits.wal:
            stored = not verified or wal_needed is not None
            shards = self._with_heads(shards, manifests, limits, now_nanos, stored)
        evidence = Evidence(
            versions=versions,
            shards={s.shard_id: s for s in shards},
            leftovers=self._files(_STAGING),
            snapshots=self._snapshots(),
            ingests=() if self._ingests is None else self._ingests.read(),
            problems=tuple(problems),
        )
        if not limits.wal or not verified or wal_needed is None:
            return evidence
        return self._confirmed(evidence, wal_needed)

    def store_now_nanos(self, name: str) -> int:
        """The store's own time (see the port)."""
        path = f"{_STAGING}/{name}"
        self._objects.put(path, b"what time is it?")
        try:
            found = [i for i in self._objects.list(_STAGING) if i.path == path]
        finally:
            # What stays after a fault is a leftover like any other.
            with suppress(MemWalError):
                self._objects.delete([path])
        if not found:
            raise StoreUnavailable(
                f"{self._objects.uri}: {path} was written and is not listed: the store's time is "
                "not known, so nothing can be told to be out of its grace"
            )
        return found[0].modified_at_nanos

    def referenced_versions(self) -> frozenset[int]:
        """Versions of main that tags name or branches start from (see the port)."""
        return self._versions.referenced()

    def oldest_claim(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        evidence: Evidence,
        before_nanos: int,
    ) -> WriterClaim | None:
        """The oldest claim that still holds a shard (see the port)."""
        found: list[WriterClaim] = []

        def look(manifest: ShardManifest) -> None:
            listed = evidence.shards.get(manifest.shard_id)
            before = min((c.claimed_at_nanos for c in found), default=before_nanos)
            if listed is not None and manifest.writer_epoch > 0:
                with suppress(MemWalError):
                    found.extend(self._claim(manifest, listed.manifests, before))

        self._side_by_side(look, list(manifests.values()))
        return min(found, key=lambda c: c.claimed_at_nanos, default=None)

    def _claim(
        self, manifest: ShardManifest, stored: Sequence[StoredManifest], before_nanos: int
    ) -> Iterable[WriterClaim]:
        """The claim on a shard, if it is from before then. Epochs never fall: found by halves."""
        old = past_version(stored, before_nanos)
        ordered = sorted((m for m in stored if old and m.version <= old), key=lambda m: m.version)
        if not ordered or self._epoch(manifest, ordered[-1]) != manifest.writer_epoch:
            return
        low, high = 0, len(ordered) - 1
        while low < high:
            middle = (low + high) // 2
            if self._epoch(manifest, ordered[middle]) == manifest.writer_epoch:
                high = middle
            else:
                low = middle + 1
        yield WriterClaim(
            shard_id=manifest.shard_id,
            writer_epoch=manifest.writer_epoch,
            claimed_at_nanos=ordered[low].modified_at_nanos,
        )

    def _epoch(self, latest: ShardManifest, stored: StoredManifest) -> int:
        if stored.version == latest.version:
            return latest.writer_epoch
        return self._manifest(latest.shard_id, stored.version).writer_epoch

    def remember(self, before_write: Callable[[], None]) -> None:
        """Store what is known of versions and WAL entries, for the next run (see the port)."""
        self._versions.remember(before_write)
        self._heads.remember(before_write)

    # -- shards

    def _shard_folders(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        limits: GarbageLimits,
        now_nanos: int,
        whole: bool,
    ) -> list[ShardEvidence]:
        cutoff = cutoff_nanos(limits, now_nanos)
        listing = list_shards(self._objects)

        def look(shard_id: ShardId) -> ShardEvidence:
            listed = ShardEvidence(shard_id=shard_id)
            try:
                files = listing.files(shard_id)
                listed = _sorted_out(shard_id, files, wal=limits.wal, whole=whole)
                manifest = manifests.get(shard_id)
                return listed if manifest is None else self._dated(listed, manifest, cutoff)
            except MemWalError as error:
                return replace(listed, problem=error)

        return self._side_by_side(look, listing.shards)

    def _dated(self, listed: ShardEvidence, manifest: ShardManifest, cutoff: int) -> ShardEvidence:
        """With the manifest from before the grace, and what former manifests say of the folders."""
        version = past_version(listed.manifests, cutoff)
        if version is None:
            return listed
        named = {g.path for g in manifest.flushed_generations}
        unnamed = [folder for folder in listed.folders if folder.name not in named]
        were_listed = self._listed_once(listed, unnamed)
        return replace(
            listed,
            past=(
                manifest
                if version == manifest.version
                else self._manifest(listed.shard_id, version)
            ),
            folders=tuple(
                replace(folder, was_listed=folder.name in were_listed) for folder in listed.folders
            ),
        )

    def _listed_once(
        self, listed: ShardEvidence, folders: Sequence[GenerationFolder]
    ) -> frozenset[str]:
        """Which of the folders a stored manifest version names: their own flush listed them.

        Only the report's word for a folder hangs on it. Newest first: the version that names the
        newest names those before it too, unless they had been dropped by then.
        """
        versions = sorted(m.version for m in listed.manifests)
        named: set[str] = set()
        for folder in sorted(folders, key=lambda f: f.generation, reverse=True):
            if folder.name not in named:
                named |= self._names_around(listed.shard_id, versions, folder)
        return frozenset(named)

    def _names_around(
        self, shard_id: ShardId, versions: Sequence[int], folder: GenerationFolder
    ) -> set[str]:
        """What the versions name that are read on the way to the one that a folder's flush made.

        That was the first version whose current generation is above the folder's number. Counters
        never fall, so it is found by steps that double, then by halves; a version that names the
        folder ends the search.
        """
        names: set[str] = set()
        low, high, step = 0, len(versions), 1
        try:
            while low < high and folder.name not in names:
                middle = max(low, high - step) if step else (low + high) // 2
                found = self._manifest(shard_id, versions[middle])
                names |= {g.path for g in found.flushed_generations}
                if found.current_generation > folder.generation:
                    high, step = middle, step * 2
                else:
                    low, step = middle + 1, 0
        except MemWalError:
            pass  # it goes by the other word then
        return names

    def _manifest(self, shard_id: ShardId, version: int) -> ShardManifest:
        known = self._past.get((shard_id, version))
        if known is None:
            known = self._shards.read(shard_id, version)
            with self._lock:
                self._past[shard_id, version] = known
        return known

    def _with_heads(
        self,
        shards: Sequence[ShardEvidence],
        manifests: Mapping[ShardId, ShardManifest],
        limits: GarbageLimits,
        now_nanos: int,
        stored: bool,
    ) -> list[ShardEvidence]:
        """With the heads of the WAL entries that could go, as far as that is known without them."""
        cutoff = cutoff_nanos(limits, now_nanos)
        wanted: list[list[WalFile]] = []
        for shard in shards:
            manifest = manifests.get(shard.shard_id)
            if manifest is None or shard.problem is not None:
                continue
            entries = {w.position: w for w in shard.wal if w.file.modified_at_nanos <= cutoff}
            every = [w.position for w in shard.wal]
            chosen = coverable_wal_positions(every, manifest, shard.past)
            wanted.append([entries[p] for p in chosen if p in entries])
        heads = self._heads.looked_up(
            wanted, reads_max=limits.wal_entries_per_shard_max, stored=stored
        )
        return [
            replace(shard, wal=tuple(heads.get(w.file.path, w) for w in shard.wal))
            for shard in shards
        ]

    def _confirmed(self, evidence: Evidence, wal_needed: WalNeeded) -> Evidence:
        """With those heads only that this process has read; the others count as not looked at."""
        needed = wal_needed(evidence)
        wal = {
            entry.file.path: replace(entry, read=False)
            for shard in evidence.shards.values()
            for entry in shard.wal
            if entry.read and not self._heads.is_confirmed(entry)
        }
        wanted = [
            wal[entry.file.path]
            for shard_id, lowest in needed.items()
            for entry in evidence.shards[shard_id].wal
            if entry.position >= lowest and entry.file.path in wal
        ]
        wal.update((entry.file.path, entry) for entry in self._heads.read(wanted))
        shards = {
            shard_id: replace(shard, wal=tuple(wal.get(w.file.path, w) for w in shard.wal))
            for shard_id, shard in evidence.shards.items()
        }
        return replace(evidence, shards=shards)

    # -- leftovers

    def _files(self, folder: str) -> tuple[StoredFile, ...]:
        return tuple(_stored_file(info) for info in self._objects.list(folder))

    def _snapshots(self) -> tuple[SnapshotFolder, ...]:
        """Index folders that hold a shard snapshot and nothing else."""
        folders: dict[str, list[StoredFile]] = {}
        for info in self._objects.list(_INDICES):
            folders.setdefault(info.path.split("/")[1], []).append(info)
        lone = [
            SnapshotFolder(index_uuid=name, file=_stored_file(files[0]))
            for name, files in sorted(folders.items())
            if len(files) == 1
            and _is_uuid(name)
            and files[0].path == f"{_INDICES}/{name}/{_SNAPSHOT_FILE}"
        ]
        known = self._side_by_side(self._is_snapshot, lone)
        return tuple(found for found, ours in zip(lone, known, strict=True) if ours)

    def _is_snapshot(self, found: SnapshotFolder) -> bool:
        """Another index could keep a single file of that name; its columns tell."""
        try:
            tail, _ = self._objects.get_tail(found.file.path, _SNAPSHOT_TAIL_BYTES)
        except Missing:
            return False
        return all(mark in tail for mark in _SNAPSHOT_MARKS)

    def _side_by_side(self, work: Callable[[T], R], things: Sequence[T]) -> list[R]:
        if not things:
            return []
        with ThreadPoolExecutor(min(self._readers_max, len(things))) as pool:
            return list(pool.map(work, things))


def open_evidence(objects: Objects) -> StoredGarbageEvidence:
    """A table's evidence, that of its ingests included."""
    return StoredGarbageEvidence(objects, ingests=StoredIngests(objects))


def _sorted_out(
    shard_id: ShardId, listed: Iterable[StoredFile], *, wal: bool, whole: bool
) -> ShardEvidence:
    """What the files of a shard are."""
    below = layout.shard_folder(shard_id)
    folders: dict[str, list[StoredFile]] = {}
    others: dict[str, StoredFile] = {}
    manifests: list[StoredManifest] = []
    entries: list[WalFile] = []
    files: list[StoredFile] = []
    for info in listed:
        top, _, rest = info.path.removeprefix(f"{below}/").partition("/")
        file = _stored_file(info)
        if top == "manifest" and rest:
            version = layout.parse_shard_manifest_name(rest)
            if version is not None:
                manifests.append(
                    StoredManifest(version=version, modified_at_nanos=info.modified_at_nanos)
                )
        elif top == "wal" and rest:
            position = layout.parse_wal_entry_name(rest)
            if position is not None and wal:
                entries.append(WalFile(position=position, file=file))
        elif rest and layout.parse_generation_folder(top) is not None:
            folders.setdefault(top, []).append(file)
        else:
            others[top] = _together(others.get(top), file, f"{below}/{top}")
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
        others=tuple(others.values()),
        files=tuple(files),
    )


def _stored_file(info: StoredFile) -> StoredFile:
    return StoredFile(
        path=info.path, size_bytes=info.size_bytes, modified_at_nanos=info.modified_at_nanos
    )


def _together(before: StoredFile | None, file: StoredFile, path: str) -> StoredFile:
    """A whole unknown folder as one thing."""
    if before is None:
        return replace(file, path=path)
    return StoredFile(
        path=path,
        size_bytes=before.size_bytes + file.size_bytes,
        modified_at_nanos=max(before.modified_at_nanos, file.modified_at_nanos),
    )


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
