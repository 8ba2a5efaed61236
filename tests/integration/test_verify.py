"""`memwal verify` on real tables: fine ones pass, and each kind of damage is found."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import lance
import pytest
from builders import Delete, Put, Table, make_table

from memwal import layout
from memwal.model import MemWalState, ShardId
from memwal.plan.snapshot import Storage
from memwal.plan.verify import CatchUpFacts, check_catch_up

pytestmark = pytest.mark.integration


def verify(table: Table) -> tuple[int, dict[str, dict]]:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("memwal")), "verify", table.uri, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    (report,) = json.loads(done.stdout)["tables"]
    return done.returncode, {check["name"]: check for check in report["checks"]}


def broken(table: Table) -> list[str]:
    code, checks = verify(table)
    assert code == 8
    return [name for name, check in checks.items() if check["ok"] is False]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "t", rows=range(20), shards=2, indexed=True)
    for shard in table.shards:
        for number in range(3):
            table.flush(shard, Put([30 + number, 31], number), Delete([number]))
    return table


def shard_path(table: Table, shard: ShardId) -> Path:
    return Path(table.uri) / "_mem_wal" / shard


def test_a_healthy_table_passes_and_is_not_touched(table: Table) -> None:
    def everything() -> dict[str, tuple[int, int]]:
        return {
            str(p): (p.stat().st_size, p.stat().st_mtime_ns)
            for p in Path(table.uri).rglob("*")
            if p.is_file()
        }

    for _ in range(2):
        before = everything()
        code, checks = verify(table)
        assert code == 0, checks
        assert all(check["ok"] for check in checks.values())
        assert {c["invariant"] for c in checks.values()} >= {1, 2, 3, 6, 7, 9, 10}
        assert everything() == before
        table.merge_all()
        table.dataset.optimize.optimize_indices()


def test_a_torn_manifest(table: Table) -> None:
    folder = shard_path(table, table.shards[0]) / "manifest"
    newest = max(folder.glob("*.binpb"), key=lambda p: layout.from_bit_reversed(p.stem))
    newest.write_bytes(b"\xff" * 20)
    assert broken(table) == ["shard manifests"]


def test_a_missing_generation(table: Table) -> None:
    first = sorted(shard_path(table, table.shards[0]).glob("*_gen_2"))[0]
    first.rename(Path(table.uri) / "elsewhere")
    assert broken(table) == ["listed generations"]


def test_rows_that_a_manifest_claims_but_are_not_there(table: Table) -> None:
    stores = table.stores
    current = stores.shard_manifests.latest(table.shards[0])
    assert current is not None
    first, *rest = current.flushed_generations
    more = replace(first, physical_rows=(first.physical_rows or 0) + 1)
    stores.shard_manifests.commit(current, replace(current, flushed_generations=(more, *rest)))
    assert broken(table) == ["listed generations"]


def test_a_hole(table: Table) -> None:
    stores = table.stores
    current = stores.shard_manifests.latest(table.shards[0])
    assert current is not None
    kept = tuple(g for g in current.flushed_generations if g.generation != 2)
    stores.shard_manifests.commit(current, replace(current, flushed_generations=kept))
    code, checks = verify(table)
    assert code == 8
    assert checks["generations contiguous"]["ok"] is False
    assert checks["unreferenced generation folders"]["detail"].startswith("1")


def test_progress_that_fell(table: Table) -> None:
    table.merge_all()
    stores = table.stores
    version = stores.views.table_version()
    # What a careless snapshot refresh does: the entry of an older version is written back.
    stale = stores.views.mem_wal(version - 1)
    stores.snapshots.commit(
        version=version,
        state=stale,
        index_uuid=stores.clock.new_id(),
        data=b"",
        storage=Storage.INLINE,
        num_shards=0,
        taken_at_millis=1,
        merged={},
    )
    assert broken(table) == ["merge progress"]


def test_a_restore_is_no_damage(table: Table) -> None:
    before = int(table.dataset.version)
    table.merge_all()
    old = table.at(before)
    old.restore()
    code, checks = verify(table)
    assert code == 0, checks
    assert "turned back on purpose" in checks["merge progress"]["detail"]


def test_strangers_under_mem_wal(table: Table) -> None:
    (Path(table.uri) / "_mem_wal" / "lease.json").write_text("{}")
    (shard_path(table, table.shards[0]) / "plan").mkdir()
    (shard_path(table, table.shards[0]) / "plan" / "x").write_text("x")
    code, checks = verify(table)
    assert code == 8
    assert "_mem_wal/lease.json" in checks["nothing foreign under _mem_wal"]["detail"]
    assert f"{table.shards[0]}/plan" in checks["nothing foreign under _mem_wal"]["detail"]


def wal_file(table: Table, position: int) -> Path:
    return shard_path(table, table.shards[0]) / "wal" / f"{layout.bit_reversed(position)}.arrow"


def test_a_gap_in_the_wal_above_the_replay_position(table: Table) -> None:
    manifest = table.stores.shard_manifests.latest(table.shards[0])
    assert manifest is not None
    covered = manifest.replay_after_wal_entry_position
    some = wal_file(table, covered).read_bytes()
    wal_file(table, covered + 2).write_bytes(some)
    assert broken(table) == ["WAL continuous above the replay position"]


def test_a_missing_sentinel(table: Table) -> None:
    entries = table.stores.wal.listed(table.shards[0])
    sentinels = [
        position
        for position, info in entries
        if table.stores.wal.read(table.shards[0], position, info).fence_sentinel
    ]
    wal_file(table, sentinels[-1]).unlink()
    assert broken(table) == ["newest fence sentinel"]


def test_catch_up_above_the_merges(table: Table) -> None:
    view = table.stores.views.table()
    assert isinstance(view.mem_wal, MemWalState)
    shard = table.shards[0]
    facts = CatchUpFacts(
        index="key_idx", claim={shard: 2}, uncovered_fragments=(), claimed_at_fragment=None
    )
    assert check_catch_up(view, [facts]).ok is False
    table.merge_all()
    merged = table.stores.views.table()
    everything = dict(merged.mem_wal.merged)
    fine = CatchUpFacts(
        index="key_idx", claim=everything, uncovered_fragments=(9,), claimed_at_fragment=8
    )
    over = CatchUpFacts(
        index="key_idx", claim=everything, uncovered_fragments=(7,), claimed_at_fragment=8
    )
    assert check_catch_up(merged, [fine]).ok is True
    assert check_catch_up(merged, [over]).ok is False


def test_a_reinitialised_table(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows=range(5), shards=1)
    table.flush(table.shards[0], Put([1], 1))
    lance.write_dataset(table.dataset.to_table(), table.uri, mode="overwrite")
    table.dataset.initialize_mem_wal()
    assert "pending generations belong to this MemWAL index" in broken(table)
