"""What `status` reads of a table besides its view: run records, WAL entries, the last backup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import Corruption, MemWalError, Missing, StoreUnavailable
from memwal.format import layout
from memwal.model import Checkpoint, Cursor, ShardManifest, StoredFile, TableView
from memwal.report import LastBackupReport, RunRecord
from memwal.run.stores import Stores
from memwal.store.objects.opening import normalise_uri, open_objects
from memwal.store.records.backups import StoredBackups
from memwal.store.records.runs import list_later_versions
from memwal.text import count_of, iso_time, mask_address

T = TypeVar("T")
_RECORDS_MAX = 8  # those of two rounds of maintenance, each of whose jobs may leave one


def _read_records(stores: Stores, view: TableView) -> Sequence[RunRecord]:
    """The newest run records, which may tell why something is pending; none if nothing is.

    None either if they can't be read, since nothing depends on them.
    """
    if not any(shard.pending for shard in view.shards):
        return ()
    try:
        return stores.run_records.newest(_RECORDS_MAX).records
    except MemWalError:
        return ()


def read_last_backup(table: ResolvedTable) -> LastBackupReport | None:
    """The newest backup, in two requests; None where the configuration names no place for any."""
    if table.backup is None:
        return None
    place = mask_address(table.backup.uri)
    try:
        found = table.find_backup_place()
        objects = open_objects(normalise_uri(found.uri), found.storage_options, SystemClock())
        newest = StoredBackups(objects).newest()
    except MemWalError as error:
        return LastBackupReport(uri=place, error=str(error))
    if newest is None:
        return LastBackupReport(uri=place)
    return LastBackupReport(
        uri=place,
        name=newest.name,
        version=newest.version,
        made_at=iso_time(newest.made_at_nanos),
        objects=newest.num_objects,
        bytes=newest.num_bytes,
    )


def is_covered(stores: Stores, manifest: ShardManifest, position: int, entry: StoredFile) -> bool:
    """Whether a WAL entry is in a generation, by its own head, in one request."""
    try:
        head = stores.wal.head(entry.path, entry.size_bytes)
    except (Missing, StoreUnavailable):
        return False
    return head.generation is not None and head.generation < manifest.current_generation


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Checkpoints and cursors, and what is to be said of them and of erasures that are open.

    `lost` is there if the newest version was lost. `records` are read where something is pending.
    """

    records: Sequence[RunRecord]
    checkpoints: Sequence[Checkpoint]
    cursors: Sequence[Cursor]
    warnings: tuple[str, ...]
    lost: Corruption | None = None


def read_kept(stores: Stores, view: TableView) -> Kept:
    """Read what is kept below `_maintenance/`; what can't be read is a warning."""
    warnings: list[str] = []

    def read(folder: str, find: Callable[[], Sequence[T]]) -> Sequence[T]:
        try:
            return find() if folder in there else ()
        except MemWalError as error:
            warnings.append(str(error))
            return ()

    there = {f"{layout.MAINTENANCE}/{f}" for f in stores.objects.list_folders(layout.MAINTENANCE)}
    checkpoints = read(layout.CHECKPOINTS, stores.checkpoints.list)
    cursors = read(layout.CURSORS, stores.cursors.list)
    for erasure in read(layout.ERASURES, stores.erasures.list):
        if erasure.state == "open":
            left = "" if erasure.left is None else f": {count_of(erasure.left, 'object')} left"
            until = f", until {erasure.until} at least" if erasure.until else ""
            remedy = "memwal erase resume TABLE --execute"
            warnings.append(f"erasure {erasure.erasure_id} is open{left}{until} ({remedy})")
    records, lost = _read_records(stores, view), None
    try:
        told = list_later_versions(view.manifest, records, checkpoints, cursors)
        stores.views.check_newest(view.version, told)
    except Corruption as error:
        lost = error
    return Kept(
        records=records, checkpoints=checkpoints, cursors=cursors, warnings=tuple(warnings),
        lost=lost,
    )  # fmt: skip
