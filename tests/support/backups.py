"""Backups for tests: what `memwal backup` stores of a table at rest."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from memwal.clock import SystemClock
from memwal.format import layout
from memwal.model import Backup, BackupObject, BackupShard
from memwal.run.stores import open_stores
from memwal.store.records.backups import StoredBackups
from tests.support.builders import Table


def make_backup(table: Table, dest: Path, name: str = "b1") -> Backup:
    """Copy a local table whose writers are at rest."""
    root, stores = Path(table.uri), table.stores
    version = int(table.dataset.version)
    view = stores.views.table()
    manifest = layout.table_manifest_names(version)
    path = next(
        f"{layout.VERSIONS}/{n}" for n in manifest if (root / layout.VERSIONS / n).exists()
    )
    found = []
    for file in sorted(root.rglob("*")):
        inside = file.relative_to(root).as_posix()
        is_hint = file.name in ("latest_version_hint.json", "version_hint.json")
        if not file.is_file() or is_hint or not layout.is_backed_up(inside):
            continue
        if inside.startswith(f"{layout.VERSIONS}/") and inside != path:
            continue
        data = file.read_bytes()
        digest = hashlib.sha256(data).digest()
        found.append(BackupObject(path=inside, size_bytes=len(data), sha256=digest))
        (dest / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, dest / inside)
    shards = []
    for shard in view.shards:
        m = shard.manifest
        positions = [p for p, _ in stores.wal.list_entries(shard.shard_id)] or [0]
        shards.append(
            BackupShard(
                shard_id=shard.shard_id,
                manifest_version=m.version,
                writer_epoch=m.writer_epoch,
                replay_after_wal_entry_position=m.replay_after_wal_entry_position,
                current_generation=m.current_generation,
                merged_generation=shard.merged_generation,
                wal_first=positions[0],
                wal_last=positions[-1],
            )
        )
    backup = Backup(
        name=name,
        source=table.uri,
        made_at_nanos=SystemClock().now_nanos(),
        version=version,
        version_at_nanos=view.manifest.timestamp_nanos,
        manifest_path=path,
        shards=tuple(shards),
    )
    return StoredBackups(open_stores(str(dest), {}).objects).put(backup, found)
