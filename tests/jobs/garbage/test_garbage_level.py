"""Rounds of put, flush and maintenance: what is stored besides the base is level."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from memwal import open_table
from memwal.format import layout
from tests.support import builders, garbage_runs
from tests.support.builders import Put, Table

pytestmark = pytest.mark.integration

FEW = {"numbered_kept_min": 2, "wal": True, "retention": 0}


def count(table: Table) -> Counter[str]:
    """Objects of the table's shard and of its lease, by folder."""
    below = Path(table.uri)
    folders = [layout.shard_folder(table.shards[0]), layout.LEASE]
    return Counter(
        path.relative_to(below / folder).parts[0] if folder != layout.LEASE else "lease"
        for folder in folders
        for path in (below / folder).rglob("*")
        if path.is_file()
    )


def sizes(table: Table) -> list[int]:
    folder = Path(table.uri) / layout.manifest_folder(table.shards[0])
    return [path.stat().st_size for path in folder.glob("*.binpb")]


def wait_for_flush(table: Table, generation: int) -> None:
    for _ in range(1000):
        if garbage_runs.manifest(table).current_generation > generation:
            return
        time.sleep(0.01)
    raise AssertionError(f"generation {generation} is not flushed")


def maintain(table: Table) -> None:
    table.merge_all()
    garbage_runs.garbage(table, **FEW)
    garbage_runs.garbage(table, **FEW)


def test_with_a_writer_that_stays_open_it_is_level(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    seen = []
    with table.writer(shard, max_memtable_rows=1) as writer:
        for number in range(8):
            builders.apply(table, writer, table.dataset.schema, Put([number], number), {})
            wait_for_flush(table, number + 1)
            maintain(table)
            seen.append(count(table))
    assert seen[4] == seen[-1]
    assert seen[-1]["lease"] <= 4
    assert seen[-1]["manifest"] <= 6


def test_a_writer_that_opens_anew_leaves_three_small_objects_a_claim(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    seen = []
    for number in range(7):
        table.flush(shard, Put([number], number))
        maintain(table)
        seen.append(count(table))
    rounds = len(seen) - 5
    assert dict(seen[-1] - seen[4]) == {"manifest": 2 * rounds, "wal": rounds}
    assert sorted(sizes(table))[: 2 * rounds] == [layout.STOPPER_BYTES] * 2 * rounds
    found = open_table(table.uri).status()
    assert found.storage is not None
    assert found.shards[0].manifests == len(sizes(table))
    assert found.storage.small_objects == len(sizes(table)) + seen[-1]["wal"]


def test_a_writer_of_pylance_that_stalled_is_fenced(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    schema = table.dataset.schema
    stalled = table.writer(shard)
    builders.apply(table, stalled, schema, Put([1], 10), {})
    for number in range(3):
        table.flush(shard, Put([2], number))
        maintain(table)
    assert layout.STOPPER_BYTES in sizes(table)
    with pytest.raises(OSError, match="fenced"):
        builders.apply(table, stalled, schema, Put([3], 10), {})
        stalled.close()
    table.flush(shard, Put([4], 7))
    maintain(table)
    rows = {row[table.kind.names[0]]: row["n"] for row in table.dataset.to_table().to_pylist()}
    (one,), (two,), (four,) = (table.kind.key(number) for number in (1, 2, 4))
    assert (rows[one], rows[two], rows[four]) == (10, 2, 7)


def test_a_hint_that_is_written_late_leads_pylance_to_the_latest_manifest_or_nowhere(
    tmp_path: Path,
) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    for number in range(3):
        table.flush(shard, Put([number], number))
        maintain(table)
    hint = Path(table.uri) / layout.version_hint_path(shard)
    latest = garbage_runs.manifest(table).version
    stored = {v for v in range(1, latest + 1) if is_stored(table, v)}
    gone, stopped = max(set(range(2, latest)) - stored), min(set(stopped_of(table)) - {1})
    for late in (gone, None):
        hint.write_text(f'{{"version":{late}}}')
        table.flush(shard, Put([5], 5))
        assert garbage_runs.manifest(table).version > latest
        latest = garbage_runs.manifest(table).version
    hint.write_text(f'{{"version":{stopped}}}')
    with pytest.raises(OSError, match="decode manifest"):
        table.flush(shard, Put([6], 6))
    assert garbage_runs.manifest(table).version == latest, "memwal lists"
    maintain(table)
    table.flush(shard, Put([7], 7))
    assert garbage_runs.manifest(table).version > latest


def is_stored(table: Table, version: int) -> bool:
    return (Path(table.uri) / layout.shard_manifest_path(table.shards[0], version)).exists()


def stopped_of(table: Table) -> list[int]:
    folder = Path(table.uri) / layout.manifest_folder(table.shards[0])
    paths = [p for p in folder.glob("*.binpb") if p.stat().st_size == layout.STOPPER_BYTES]
    return [layout.parse_shard_manifest_name(p.name) or 0 for p in paths]
