"""The object side of a restore: the backup that is read, and the place that is written.

This and `memwal.store.shards.writers` are where a shard's epoch is raised without pylance; here its
counters may fall, too, behind the new epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from memwal.errors import (
    AlreadyExists,
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    StoreUnavailable,
)
from memwal.format import codec, layout, restores
from memwal.jobs.restore.plan import (
    Place,
    ShardRestore,
    ShardState,
    find_version_path,
    is_first_scheme,
    list_unflushed,
)
from memwal.model import (
    Backup,
    BackupObject,
    RestoreMark,
    ShardId,
    ShardManifest,
)
from memwal.ports import TABLE_MANIFEST_BYTES_MAX, Clock, Objects
from memwal.store.objects.copying import copy_object, digest_object
from memwal.store.records.backups import StoredBackups
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.shards.writers import sentinel_bytes
from memwal.store.tables.generations import name_restored
from memwal.store.tables.manifests import (
    RESTORE_MARK_BYTES_MAX,
    TableManifests,
    read_restore_mark,
)
from memwal.threads import side_by_side

_READERS_MAX = 16
_POSITIONS_MAX = 1_000_000
_HINT = f"{layout.VERSIONS}/latest_version_hint.json"


class StoredBackupSource:
    """The BackupSource port."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._backups = StoredBackups(objects)
        self._manifests = ShardManifests(objects)
        self._wal = WalEntries(objects)

    def list(self) -> Sequence[Backup]:
        """All backups (see the port)."""
        return self._backups.list()

    def objects_of(self, backup: Backup) -> Sequence[BackupObject]:
        """The backup's list."""
        return self._backups.objects_of(backup)

    def shards(self, backup: Backup) -> Mapping[ShardId, ShardManifest]:
        """The shards' manifests, each compared with the document."""

        def read(number: int) -> ShardManifest:
            shard = backup.shards[number]
            try:
                found = self._manifests.read(shard.shard_id, shard.manifest_version)
            except Missing as error:
                raise Corruption("MW-A07", str(error)) from None
            if (found.writer_epoch, found.current_generation) != (
                shard.writer_epoch,
                shard.current_generation,
            ):
                raise Corruption(
                    "MW-A07",
                    f"{self._objects.uri}: shard {shard.shard_id}: manifest version "
                    f"{found.version} is not the one that backup {backup.name!r} names",
                )
            return found

        found = side_by_side(read, range(len(backup.shards)), _READERS_MAX)
        return {manifest.shard_id: manifest for manifest in found}

    def rows(
        self, backup: Backup, objects: Sequence[BackupObject]
    ) -> Mapping[ShardId, Sequence[BackupObject]]:
        """The WAL's rows (see the port)."""
        by_path = {found.path: found for found in objects}

        def is_row(found: BackupObject) -> bool:
            return not self._wal.head(found.path, found.size_bytes).fence_sentinel

        rows = {}
        for shard in backup.shards:
            listed = [
                by_path[layout.wal_entry_path(shard.shard_id, position)]
                for position in list_unflushed(shard)
            ]
            holding = side_by_side(is_row, listed, _READERS_MAX)
            rows[shard.shard_id] = [
                f for f, has_rows in zip(listed, holding, strict=True) if has_rows
            ]
        return rows


class StoredRestorePlace:
    """The RestorePlace port."""

    def __init__(self, objects: Objects, source: Objects, clock: Clock) -> None:
        self._objects = objects
        self._source = source
        self._clock = clock
        self._manifests = ShardManifests(objects)
        self._tables = TableManifests(objects)

    def look(self, backup: Backup) -> Place:
        """What is there; the mark, if any, is the latest version (see the port)."""
        files = {file.path: file for file in self._objects.list("")}
        versions = {number: path for path in files if (number := _parse_version(path)) is not None}
        attached = [version for version in versions if not layout.is_detached(version)]
        mark, marked = None, max(attached, default=0)
        if marked:
            mark = read_restore_mark(self._objects, files[versions[marked]])
        scheme = is_first_scheme(backup.manifest_path)
        return Place(
            uri=self._objects.uri,
            files=files,
            version=max((v for v in attached if mark is None or v < marked), default=0),
            mark=mark,
            marked_version=marked if mark else 0,
            other_names=any(
                is_first_scheme(path) != scheme
                for version, path in versions.items()
                if not layout.is_detached(version)
            ),
        )

    def mark(self, path: str, mark: RestoreMark, *, over: bool) -> None:
        """Put the mark (see the port)."""
        put = self._objects.put if over else self._objects.put_if_absent
        put(path, restores.encode_restore_mark(mark))

    def is_whole(self, found: BackupObject) -> bool:
        """Whether the object has the backup's bytes (see the port)."""
        try:
            there = digest_object(self._objects, found.path)
        except Missing:
            return False
        return there.sha256 == found.sha256

    def copy(self, found: BackupObject, to: str | None = None) -> None:
        """Copy an object (see the port)."""
        try:
            copy_object(self._source, self._objects, found.path, to=to, expected=found)
        except Missing:
            raise Corruption(
                "MW-A07", f"{self._source.uri}/{found.path} is gone, and the backup needs it"
            ) from None

    def put_aside(self, path: str, restore_id: str) -> None:
        """Keep a copy (see the port)."""
        with suppress(Missing):
            to = f"{layout.replaced_folder(restore_id)}/{path}"
            copy_object(self._objects, self._objects, path, to=to)

    def remove(self, path: str) -> None:
        """Delete an object."""
        for refused, why in self._objects.delete([path]).failed:
            raise StoreUnavailable(f"{self._objects.uri}: {refused} can't be deleted: {why}")

    def find_unreadable(self, place: Place) -> Sequence[str]:
        """Versions that can't be read (see the port)."""

        def is_readable(pair: tuple[str, int]) -> bool:
            try:
                self._tables.read_file(*pair)
            except Corruption:
                return False
            except Missing:
                return True  # expired meanwhile
            return True

        listed = [
            (path, version)
            for path in place.files
            if (version := _parse_version(path)) and version != place.marked_version
        ]
        readable = side_by_side(is_readable, listed, _READERS_MAX)
        return [path for (path, _), fine in zip(listed, readable, strict=True) if not fine]

    def read_shard(self, shard_id: ShardId) -> tuple[ShardState, Sequence[int]]:
        """A shard as it is now (see the port)."""
        versions = sorted(self._manifests.versions(shard_id), reverse=True)
        positions = [
            position
            for file in self._objects.list(layout.wal_folder(shard_id))
            if (position := layout.parse_wal_entry_name(file.path.rpartition("/")[2])) is not None
        ]
        manifest, unreadable = None, list[int]()
        for version in versions:
            try:
                manifest = self._manifests.read(shard_id, version)
                break
            except Missing:
                continue  # a stopper, or collected
            except MemWalError as error:
                if isinstance(error, StoreUnavailable):
                    raise
                unreadable.append(version)
        covered = manifest.replay_after_wal_entry_position if manifest else 0
        state = ShardState(
            shard_id=shard_id,
            manifest=manifest,
            version=max(versions, default=0),
            position=max(positions, default=0),
            waiting=tuple(sorted(position for position in positions if position > covered)),
        )
        return state, unreadable

    def claim(self, planned: ShardRestore) -> None:
        """Create the first manifest (see the port)."""
        self._create(planned.claimed)

    def finish(self, planned: ShardRestore, entries: int) -> None:
        """Create the second, and lead the hint there (see the port)."""
        manifest = planned.finish(entries)
        self._create(manifest)
        self._objects.put(
            layout.version_hint_path(manifest.shard_id),
            layout.encode_version_hint(manifest.version),
        )

    def _create(self, manifest: ShardManifest) -> None:
        """Not `ShardManifests.commit`, by which counters never fall."""
        path = layout.shard_manifest_path(manifest.shard_id, manifest.version)
        try:
            self._objects.put_if_absent(path, codec.encode_shard_manifest(manifest))
        except AlreadyExists:
            raise LostRace(
                f"{self._objects.uri}: shard {manifest.shard_id}: manifest version "
                f"{manifest.version} was written by someone else"
            ) from None

    def fence(self, planned: ShardRestore) -> Sequence[str]:
        """Put the sentinels (see the port)."""
        late = list[str]()
        shard_id, data = planned.claimed.shard_id, sentinel_bytes(planned.claimed.writer_epoch)
        tips = () if planned.tip is None else range(planned.tip, planned.tip + _POSITIONS_MAX)
        for path in (layout.wal_entry_path(shard_id, position) for position in tips):
            try:
                self._objects.put_if_absent(path, data)
                break
            except AlreadyExists:  # its writer was faster
                late.append(path)
        try:
            self._objects.put_if_absent(layout.wal_entry_path(shard_id, planned.sentinel), data)
        except AlreadyExists:
            raise LostRace(
                f"{self._objects.uri}: shard {shard_id}: position {planned.sentinel} is taken"
            ) from None
        return late

    def put_row(self, planned: ShardRestore, number: int, found: BackupObject) -> None:
        """Put a WAL entry (see the port)."""
        self.copy(found, layout.wal_entry_path(planned.claimed.shard_id, planned.sentinel + number))

    def stop_up(self, shard_id: ShardId, version: int, restore_id: str) -> None:
        """Replace a manifest with a stopper (see the port)."""
        path = layout.shard_manifest_path(shard_id, version)
        self.put_aside(path, restore_id)
        self._objects.put(path, layout.encode_stopper(self._clock.now_nanos()))

    def commit(self, backup: Backup, mark: RestoreMark, version: int) -> None:
        """Replace the mark with the version (see the port)."""
        path = find_version_path(backup, version)
        if self._objects.get(path, RESTORE_MARK_BYTES_MAX) != restores.encode_restore_mark(mark):
            raise LostRace(f"{self._objects.uri}: {path} is no longer the mark of this restore")
        transaction_id = self._clock.new_id()
        file = f"{version - 1}-{transaction_id}.txn"
        data = restores.encode_restored_manifest(
            self._source.get(backup.manifest_path, TABLE_MANIFEST_BYTES_MAX),
            version=version,
            now_nanos=self._clock.now_nanos(),
            transaction_file=file,
            config=name_restored(version, backup.mem_wal_since_nanos),
            fragment_id_min=self._max_fragment_id(find_version_path(backup, version - 1)),
        )
        transaction = restores.encode_restore_transaction(
            read_version=version - 1, transaction_id=transaction_id, restored=backup.version
        )
        self._objects.put_if_absent(f"{layout.TRANSACTIONS}/{file}", transaction)
        if self._objects.exists(_HINT):
            self._objects.put(_HINT, layout.encode_version_hint(version))
        self._objects.put(path, data)

    def _max_fragment_id(self, path: str) -> int:
        try:
            data = self._objects.get(path, TABLE_MANIFEST_BYTES_MAX)
            return restores.max_fragment_id(data[codec.decode_footer(data) :])
        except (Missing, Corruption):
            return 0


def _parse_version(path: str) -> int | None:
    """The version whose manifest has that path; None for any other path."""
    folder, _, name = path.rpartition("/")
    return layout.parse_table_manifest_name(name) if folder == layout.VERSIONS else None
