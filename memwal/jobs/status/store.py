"""What `status` reads of a table besides its view: run records, WAL entries, the last backup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError, Missing, StoreUnavailable
from memwal.model import Checkpoint, ShardManifest, StoredFile, TableView
from memwal.report import LastBackupReport, RunRecord
from memwal.run.stores import Stores
from memwal.store.objects.opening import normalise_uri, open_objects
from memwal.store.records.backups import StoredBackups
from memwal.text import count_of, iso_time, mask_address

_RECORDS_MAX = 8  # those of two rounds of maintenance, each of whose jobs may leave one


def read_records(stores: Stores, view: TableView) -> Sequence[RunRecord]:
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
        options = table.backup.storage_options
        objects = open_objects(normalise_uri(table.backup.uri), options, SystemClock())
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
    """The checkpoints, and what is to be said of them and of erasures that are open."""

    checkpoints: Sequence[Checkpoint]
    warnings: tuple[str, ...]


def read_kept(stores: Stores) -> Kept:
    """Read what is kept below `_maintenance/`; what can't be read is a warning."""
    checkpoints: Sequence[Checkpoint] = ()
    warnings: list[str] = []
    try:
        checkpoints = stores.checkpoints.list()
    except MemWalError as error:
        warnings.append(str(error))
    try:
        opened = [e for e in stores.erasures.list() if e.state == "open"]
    except MemWalError as error:
        return Kept(checkpoints=checkpoints, warnings=(*warnings, str(error)))
    for erasure in opened:
        left = "" if erasure.left is None else f": {count_of(erasure.left, 'object')} left"
        until = f", until {erasure.until} at least" if erasure.until else ""
        remedy = f"memwal erase TABLE --resume {erasure.erasure_id} --execute"
        warnings.append(f"erasure {erasure.erasure_id} is open{left}{until} ({remedy})")
    return Kept(checkpoints=checkpoints, warnings=tuple(warnings))
