"""What WAL entries say of themselves is remembered, and lets nothing go by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwal.format import layout
from memwal.jobs.garbage.model import WalFile
from memwal.jobs.garbage.store import versions, wal_heads
from memwal.jobs.garbage.store.cache import CacheFile
from memwal.model import ShardId, StoredFile
from memwal.store.shards.wal import WalEntries
from memwal.store.shards.writers import sentinel_bytes
from memwal.testing import MemoryObjects
from tests.support import garbage_runs as runs
from tests.support.builders import Put, Table
from tests.support.fencing import claim_epoch
from tests.support.s3server import S3Server

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each position was read; and a cache that is worth its while from one entry on."""
    monkeypatch.setattr(wal_heads, "_CACHED_ENTRIES_MIN", 1)
    found: Counter[int] = Counter()
    head = WalEntries.head

    def counted(self: WalEntries, path: str, size_bytes: int) -> Any:
        found[layout.parse_wal_entry_name(path.rsplit("/", 1)[-1]) or 0] += 1
        return head(self, path, size_bytes)

    monkeypatch.setattr(WalEntries, "head", counted)
    return found


def all_but_sentinels_went(table: Table) -> bool:
    positions = runs.positions(table)
    return set(positions) == {*runs.sentinels(table), max(positions)}


def test_an_idle_run_reads_no_entry_again(tmp_path: Path, reads: Counter[int]) -> None:
    table = runs.collectable(tmp_path / "t", generations=6)
    runs.collect(table, wal=True)
    assert all_but_sentinels_went(table)
    assert reads
    reads.clear()

    assert runs.garbage(table, wal=True).outcome == "nothing_to_do"

    assert reads == Counter()


def test_an_idle_run_on_a_store_with_etags_reads_nothing_again(
    make_s3_uri: Callable[[], str],
    s3_server: S3Server,
    reads: Counter[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(versions, "_CACHED_VERSIONS_MIN", 1)
    table = runs.collectable(make_s3_uri(), generations=2, options=s3_server.storage_options)
    runs.collect(table, wal=True)
    assert runs.sentinels(table)
    for number in range(2):
        table.dataset.update_config({"n": str(number)})
    runs.run(table, wal=True)
    reads.clear()
    first, second = (runs.run(table, wal=True).requests for _ in range(2))
    assert (reads, first.get("put", 0), first) == (Counter(), 0, second)
    table.stores.objects.delete([f"{layout.MAINTENANCE}/cache/retained_versions.json"])
    again = runs.run(table, wal=True).requests
    assert again["get"] - second["get"] >= 2


def test_sentinels_do_not_starve_older_rows(tmp_path: Path) -> None:
    """Each of ten sessions leaves one sentinel for good, and a run looks at six new entries."""
    table = runs.collectable(tmp_path / "t", generations=10)
    for _ in range(8):
        runs.garbage(table, wal=True, wal_entries_per_shard_max=6)
    assert len(runs.sentinels(table)) >= 9
    assert all_but_sentinels_went(table)


def forged_heads(table: Table) -> Path:
    """A cache by which every entry is a row of the first generation, past all claims."""
    shard, epoch = table.shards[0], runs.manifest(table).writer_epoch
    entries = [
        WalFile(position=position, file=info, read=True, generation=1, writer_epoch=epoch)
        for position, info in table.stores.wal.list_entries(shard)
    ]
    file: CacheFile[list[WalFile]] = CacheFile(table.stores.objects, "wal_heads", list[WalFile])
    file.write(entries, lambda: None)
    return Path(table.uri) / file.path


def test_a_forged_cache_lets_nothing_go(tmp_path: Path) -> None:
    table = runs.collectable(tmp_path / "t", generations=4)
    shard = table.shards[0]
    claim_epoch(table.stores.shard_manifests, shard)  # stalled before its sentinel
    table.flush(shard, Put([600], 1))
    table.flush(shard, Put([601], 2))
    table.merge_all()
    runs.catch_up(table)
    runs.expire(table)
    runs.collect(table, wal=True)
    before = runs.positions(table)
    file = forged_heads(table)
    foreseen = runs.garbage(table, wal=True, execute=False)
    assert any(i.kind == "wal_entry" and i.action == "delete" for i in foreseen.items)

    runs.garbage(table, wal=True)

    assert runs.positions(table) == before
    # What the run read itself is what it remembers.
    assert runs.garbage(table, wal=True, execute=False).outcome == "nothing_to_do"
    file.write_text("{")
    assert runs.garbage(table, wal=True).outcome == "nothing_to_do"


def test_a_head_is_that_of_one_file(tmp_path: Path, reads: Counter[int]) -> None:
    """One of another age, or size, is read."""
    table = runs.collectable(tmp_path / "t", generations=3)
    runs.collect(table, wal=True)
    position = runs.sentinels(table)[0]
    file = Path(table.uri) / layout.wal_entry_path(table.shards[0], position)
    file.unlink()
    file.write_bytes(sentinel_bytes(1))
    reads.clear()
    runs.garbage(table, wal=True)
    assert set(reads) == {position}


def test_a_head_of_another_position_than_its_file_is_passed_over() -> None:
    objects = MemoryObjects()
    shard = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
    path = layout.wal_entry_path(shard, 3)
    forged, right = (
        WalFile(
            position=position,
            file=StoredFile(path=path, size_bytes=position, modified_at_nanos=1),
            read=True,
        )
        for position in (9, 3)
    )
    file: CacheFile[list[WalFile]] = CacheFile(objects, "wal_heads", list[WalFile])
    file.write([forged, right], lambda: None)
    assert wal_heads.WalHeads(objects)._stored == {right.file: right}
