"""Reads the table that is backed up, and the place of its backups, through Lance and objects."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from memwal.config import ResolvedTable
from memwal.errors import (
    Corruption,
    MemWalError,
    Missing,
    StoreUnavailable,
    Unsupported,
    Usage,
)
from memwal.format import layout
from memwal.format.replay import SENTINEL_BYTES_MAX
from memwal.jobs.backup.plan import (
    DestinationState,
    Needed,
    Phase,
    check_there,
    choose_entries,
    describe_shard,
)
from memwal.jobs.backup.request import Keep, read_keep
from memwal.jobs.checkpoint.apply import CheckpointMaker
from memwal.jobs.checkpoint.plan import CheckpointRequest
from memwal.model import (
    Backup,
    BackupObject,
    BackupShard,
    ShardId,
    ShardManifest,
    ShardView,
    StoredFile,
    TableView,
)
from memwal.ports import Objects, check_object_path
from memwal.run.stores import Stores
from memwal.store.objects.copying import copy_object, digest_object
from memwal.store.objects.opening import is_in_bucket
from memwal.store.records.backups import StoredBackups
from memwal.store.records.checkpoints import LanceTags
from memwal.store.records.process import this_holder
from memwal.store.tables.indexes import list_index_folders
from memwal.threads import side_by_side

_PIN_SECONDS = 7 * 86_400.0
_READERS_MAX = 16


class _RememberingViews:
    """Views, the last of which is remembered: a checkpoint has not all that its view had."""

    def __init__(self, stores: Stores) -> None:
        self._views = stores.views
        self.last: TableView | None = None

    def table(self, *, probed: bool = False) -> TableView:
        self.last = self._views.table(probed=probed)
        return self.last

    def table_version(self) -> int:
        return self._views.table_version()


@dataclass(kw_only=True)
class BackupSource:
    """The table of a name that is backed up. `dest` is named as the holder of the pin."""

    name: str
    stores: Stores
    dest: str

    @property
    def uri(self) -> str:
        """The table's address."""
        return self.stores.uri

    def version(self) -> int:
        """The latest version's number."""
        return self.stores.views.table_version()

    def view(self) -> TableView:
        """A fresh view, which pins nothing. Raises the error of a shard that can't be read."""
        view = self.stores.views.table(probed=True)
        for broken in view.broken:
            raise broken.error
        return view

    def pin(self, name: str) -> TableView:
        """Make a checkpoint that expires, and return its view. It works without the table's lease:
        that only saves work, and jobs need not wait for a backup.
        """
        seen = _RememberingViews(self.stores)
        stores = self.stores
        maker = CheckpointMaker(
            uri=stores.uri,
            views=seen,
            checkpoints=stores.checkpoints,
            tags=LanceTags(stores.tables),
            clock=stores.clock,
            take_lease=stores.prove_store,
            before_commit=lambda: None,
        )
        holder = f"backup to {self.dest} by {this_holder().partition(':')[0]}"[:200]
        made = maker.create(
            CheckpointRequest(name=name, holder=holder, expires_seconds=_PIN_SECONDS)
        )
        if seen.last is None or seen.last.version != made.version:
            raise MemWalError(f"{stores.uri}: the pinned version was not looked at")
        return seen.last

    def let_go(self, name: str) -> None:
        """Remove the checkpoint of that name, if it is there."""
        for found in self.stores.checkpoints.list():
            if found.name == name:
                self.stores.checkpoints.remove(found)

    def committed_at_nanos(self, version: int) -> int | None:
        """When a version was committed; None if it has expired."""
        try:
            return self.stores.table_manifests.committed_at_nanos(version)
        except Missing:
            return None

    def digest(self, path: str, size_bytes: int) -> BackupObject:
        """Read an object for its digest. Raises Missing if it is not of that size (any more)."""
        return digest_object(self.stores.objects, path, size_bytes=size_bytes)

    def cut(self, view: TableView, name: str) -> tuple[Backup, list[Needed]]:
        """All that a copy of the view needs, and the document of that backup, without its list's
        sums. Raises Refused for a hole, Corruption for a loss.
        """
        manifest_path, needed = self._list_base(view)
        parts = side_by_side(self._cut_shard, view.shards, _READERS_MAX)
        backup = Backup(
            name=name,
            source=self.uri,
            made_at_nanos=self.stores.clock.now_nanos(),
            version=view.version,
            version_at_nanos=view.manifest.timestamp_nanos,
            manifest_path=manifest_path,
            shards=tuple(shard for shard, _ in parts),
            memwal_version=str(import_module("memwal").__version__),
            mem_wal_since_nanos=self._find_since(view),
        )
        return backup, [*needed, *(one for _, part in parts for one in part)]

    def _find_since(self, view: TableView) -> int:
        """Since when the MemWAL index provably exists to which pending generations belong.

        A copy has no older versions to prove it by. Only shards that were never merged need that.
        """
        views = self.stores.views
        new = [s for s in view.shards if s.pending and not s.merged_generation]
        times = side_by_side(
            lambda s: views.flushed_at_nanos(s.shard_id, s.pending[0]), new, _READERS_MAX
        )
        since = views.mem_wal_since_nanos(view, min(times)) if times else None
        return since if since is not None and since <= min(times) else 0

    # ---- the base

    def _list_base(self, view: TableView) -> tuple[str, list[Needed]]:
        objects = self.stores.objects
        dataset = self.stores.tables.at(view.version)
        named = _list_named(dataset, view.uri)
        stems = {path.removesuffix(".lance") for path in named if path.startswith("data/")}
        indexes = {entry.uuid for entry in view.manifest.indexes} | {view.mem_wal.index_uuid}
        files = [
            *objects.list("data"),
            *(objects.list("_deletions") if any(p.startswith("_del") for p in named) else ()),
        ]
        stored = {file.path: file for file in files}
        check_there(view.uri, named, stored)
        found = [stored[path] for path in named]
        # Blobs that have files of their own lie in a folder named after their data file.
        found += [f for f in files if f.path.rpartition("/")[0] in stems]
        found += [f for f in objects.list("_indices") if f.path.split("/")[1] in indexes]
        check_there(view.uri, *_list_indexes(dataset, found))
        needed = [_need(file, Phase.DATA) for file in found]
        needed += self._list_records(view)
        transaction = self._find(f"_transactions/{view.manifest.transaction_file}")
        manifest = self._find_manifest(view.version)
        needed += [_need(transaction, Phase.DATA)] if transaction else []
        return manifest.path, [*needed, _need(manifest, Phase.BASE_MANIFEST)]

    def _list_records(self, view: TableView) -> Iterator[Needed]:
        """What memwal recorded of former MemWAL indexes: progress is read by it."""
        settled = {layout.settled_path(record_id) for record_id in view.settled_ids}
        for file in self.stores.objects.list(layout.SETTLED):
            if file.path in settled:
                yield _need(file, Phase.DATA)
        for file in self.stores.objects.list(layout.ADOPTED):
            yield _need(file, Phase.DATA)

    def _find_manifest(self, version: int) -> StoredFile:
        for name in layout.table_manifest_names(version):
            found = self._find(f"{layout.VERSIONS}/{name}")
            if found is not None:
                return found
        raise Missing(f"{self.uri}: the manifest of version {version} is gone")

    def _find(self, path: str) -> StoredFile | None:
        try:
            check_object_path(path)
            _, size = self.stores.objects.get_tail(path, 1)
        except (Missing, ValueError):
            return None
        return StoredFile(path=path, size_bytes=size, modified_at_nanos=0)

    # ---- shards

    def _cut_shard(self, shard: ShardView) -> tuple[BackupShard, list[Needed]]:
        manifest, objects = shard.manifest, self.stores.objects
        where = f"{self.uri}: shard {shard.shard_id}"
        needed: list[Needed] = []
        for generation in manifest.flushed_generations:
            folder = layout.generation_folder(
                shard.shard_id, generation.path, generation.generation
            )
            files = list(objects.list(folder))
            if not any(f.path.startswith(f"{folder}/{layout.VERSIONS}/") for f in files):
                check_there(where, [folder], ())
            if generation.generation > shard.merged_generation:
                opened = self.stores.tables.generation(shard.shard_id, generation)
                named = [f"{folder}/{path}" for path in _list_named(opened, where)]
                check_there(where, named, {file.path for file in files})
            needed += [_need(file, Phase.GENERATION) for file in files]
        # The WAL is read after the manifest: a flush in between leaves its entries there.
        stored = dict(self.stores.wal.list_settled(manifest))
        sentinels = self._find_sentinels(manifest, stored)
        positions = choose_entries(where, manifest, stored.keys(), sentinels)
        needed += [_need(stored[position], Phase.WAL) for position in positions]
        needed += self._list_manifests(shard)
        return describe_shard(shard, positions), needed

    def _find_sentinels(
        self, manifest: ShardManifest, stored: Mapping[int, StoredFile]
    ) -> dict[int, int]:
        """The sentinels down to the one of the manifest's epoch, with their epochs."""
        found: dict[int, int] = {}
        for position in sorted(stored, reverse=True):
            file = stored[position]
            if file.size_bytes > SENTINEL_BYTES_MAX:
                continue
            try:
                head = self.stores.wal.head(file.path, file.size_bytes)
            except Corruption:
                continue  # copied as it is; what it means is a reader's to judge
            if head.fence_sentinel:
                found[position] = head.writer_epoch
                if head.writer_epoch <= manifest.writer_epoch:
                    break
        return found

    def _list_manifests(self, shard: ShardView) -> Iterator[Needed]:
        """The shard's manifest; from the one on that a record cites, if that proves anything."""
        manifest = shard.manifest
        path = layout.shard_manifest_path(shard.shard_id, manifest.version)
        yield Needed(path=path, size_bytes=len(manifest.raw), phase=Phase.SHARD_MANIFEST)
        if shard.settled_by is not None:
            for version, file in self.stores.shard_manifests.list_files(shard.shard_id):
                if shard.settled_by <= version < manifest.version:
                    yield _need(file, Phase.SHARD_MANIFEST)


def _need(file: StoredFile, phase: Phase) -> Needed:
    return Needed(path=file.path, size_bytes=file.size_bytes, phase=phase)


def _list_named(dataset: Any, uri: str) -> list[str]:
    """The data and deletion files that a version's manifest names.

    Raises Unsupported for files outside of the table's folder.
    """
    others = [str(base.path) for base in dataset.base_paths().values()]
    if others:
        raise Unsupported(
            "MW-A08",
            f"{uri}: some of its files are in another folder ({others[0]}): it is a shallow clone, "
            "or has bases, and can't be backed up",
        )
    paths = []
    for fragment in dataset.get_fragments():
        parts = fragment.metadata
        if parts.overlays:
            raise Unsupported("MW-A08", f"{uri}: it has data overlays, which can't be backed up")
        paths += [f"data/{_check_name(uri, file.path)}" for file in parts.files]
        if parts.deletion_file is not None:
            paths.append(_check_name(uri, parts.deletion_file.path(parts.id)))
    return paths


def _list_indexes(dataset: Any, files: Sequence[StoredFile]) -> tuple[list[str], list[str]]:
    """The folders of a version's indexes, and those of them that have all their bytes."""
    sizes: dict[str, int] = {}
    for file in files:
        folder = "/".join(file.path.split("/")[:2])
        sizes[folder] = sizes.get(folder, 0) + file.size_bytes
    wanted = list_index_folders(dataset)
    whole = [f for f, size in wanted.items() if f in sizes and (not size or sizes[f] == size)]
    return list(wanted), whole


def _check_name(uri: str, path: str) -> str:
    try:
        return check_object_path(path)
    except ValueError:
        raise Corruption("MW-F02", f"{uri}: the path {path!r} leads out of its folder") from None


@dataclass(kw_only=True)
class StoredDestination:
    """A place of backups, by its name. `source` is None where nothing is copied."""

    name: str
    objects: Objects
    source: Objects | None = None

    @cached_property
    def backups(self) -> StoredBackups:
        """The documents."""
        return StoredBackups(self.objects)

    @property
    def uri(self) -> str:
        """The place's address."""
        return self.objects.uri

    def look(self) -> DestinationState:
        """All that is there. Older backups' lists are read only for what newer ones don't name."""
        sizes = {file.path: file.size_bytes for file in self.objects.list("")}
        found = self.backups.list()
        known: dict[str, BackupObject] = {}
        for backup in reversed(found):
            if known.keys() >= {p for p in sizes if not p.startswith(f"{layout.MAINTENANCE}/")}:
                break
            known = {one.path: one for one in self.backups.objects_of(backup)} | known
        mark = self.backups.read_mark()
        names = self.backups.left_lists()
        left = {one.path: one for name in names for one in self.backups.objects_of_left(name)}
        return DestinationState(
            uri=self.uri,
            backups=found,
            known=left | known,
            ours=frozenset([*left, *(() if mark is None else mark.paths)]),
            sizes=sizes,
            marked_for=None if mark is None else mark.source,
        )

    def copy(self, path: str, size_bytes: int) -> BackupObject:
        """Copy an object of the table. Raises Missing, Refused where another one is there."""
        if self.source is None:
            raise ValueError("nothing is copied from nowhere")
        return copy_object(self.source, self.objects, path, size_bytes=size_bytes)

    def digest(self, path: str) -> BackupObject:
        """Read an object for its digest. Raises Missing."""
        return digest_object(self.objects, path)

    def find_problem(self, listed: BackupObject) -> str | None:
        """What is wrong with an object that a list has; None if nothing is."""
        try:
            digest_object(self.objects, listed.path, expected=listed)
        except Missing:
            return "it is gone"
        except Corruption as error:
            return error.text.rpartition(" is damaged: ")[2]
        return None

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, in that order as far as batches go. Raises StoreUnavailable."""
        for refused, why in self.objects.delete(paths).failed:
            raise StoreUnavailable(f"{self.uri}: {refused} can't be deleted: {why}")

    def sweep(self, before_nanos: int) -> None:
        """Delete what killed runs staged on a local disk: garbage never comes here."""
        staged = self.objects.list(layout.STAGING)
        self.delete([file.path for file in staged if file.modified_at_nanos < before_nanos])

    def put_hints(self, hints: Mapping[ShardId, int], gone: Sequence[ShardId]) -> None:
        """Say which manifest of each shard is the newest; remove the hints of those that went."""

        def put(pair: tuple[ShardId, int]) -> None:
            path, data = layout.version_hint_path(pair[0]), layout.encode_version_hint(pair[1])
            self.objects.put(path, data)

        side_by_side(put, list(hints.items()), _READERS_MAX)
        if gone:
            self.delete([layout.version_hint_path(shard) for shard in gone])


def check_apart(table: Objects, dest: Objects) -> None:
    """Raise Usage where one folder is the other, or lies inside it; links are followed."""
    if is_in_bucket(table.uri) and is_in_bucket(dest.uri) and table.store != dest.store:
        return
    first, second = (
        uri if is_in_bucket(uri) else os.path.realpath(uri) for uri in (table.uri, dest.uri)
    )
    if first == second:
        raise Usage(f"{dest.uri} is the table itself: a backup needs another place")
    for inner, outer in ((first, second), (second, first)):
        if inner.startswith(f"{outer}/"):
            raise Usage(f"{inner} lies inside {outer}: a backup and its table lie apart")


def choose_place(
    dest: ResolvedTable | None, keep: str | None, table: ResolvedTable
) -> tuple[ResolvedTable, Keep | None]:
    """Where backups go and which stay, by default as configured. Raises Usage."""
    if dest is None:
        dest = table.find_backup_place()
        keep = keep or (None if table.backup is None else table.backup.keep)
    return dest, None if keep is None else read_keep(keep)
