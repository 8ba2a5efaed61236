"""`memwal verify` on real tables: fine ones pass, and each kind of damage is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.format import layout
from memwal.format._generated import memwal_pb2 as pb
from memwal.jobs.snapshot.plan import Storage
from memwal.jobs.verify.job import run_verify
from memwal.jobs.verify.plan import CatchUpFacts, Check, check_catch_up
from memwal.model import FlushedGeneration, MemWalState, ShardId
from memwal.run.options import RunOptions
from tests.support import snapshot_files
from tests.support.builders import Delete, Put, Table, make_table
from tests.support.fencing import claim_epoch
from tests.support.indexed import resolved
from tests.support.nursery import run_memwal
from tests.support.progress import Quiet

pytestmark = pytest.mark.integration


def report_of(table: Table) -> tuple[int, dict]:
    done = run_memwal("verify", table.uri, "--json")
    (report,) = json.loads(done.stdout)["tables"]
    return done.returncode, report


def verify(table: Table) -> tuple[int, dict[str, dict]]:
    code, report = report_of(table)
    return code, {check["name"]: check for check in report["checks"]}


def broken(table: Table) -> list[str]:
    code, checks = verify(table)
    assert code == 8
    return [name for name, check in checks.items() if check["ok"] is False]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "t", rows=range(20), shards=2, indexed=True)
    for place, shard in enumerate(table.shards):
        first = 10 * place
        for number in range(3):
            put = Put([30 + first + number, 31 + first], number)
            table.flush(shard, put, Delete([first + number]))
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
    newest.write_bytes(b"")
    _, made = verify(table)
    assert "is empty" in made["shard manifests"]["detail"]
    # Of a shard that can't be read, they say nothing.
    undecided = [name for name, check in made.items() if check["ok"] is None]
    assert len(undecided) >= 7, undecided
    for name in undecided:
        assert "not of 1 shard that can't be read; of the others" in made[name]["detail"]


def test_a_manifest_that_leads_nowhere(table: Table) -> None:
    path = Path(table.uri) / layout.shard_manifest_path(table.shards[0], 2)
    path.unlink()
    code, checks = verify(table)
    assert code == 8
    found = checks["shard manifests"]
    assert found["ok"] is False
    assert table.shards[0] in found["detail"]
    assert "(version 1) leads nowhere, as the latest version is" in found["detail"]


def test_a_missing_generation(table: Table) -> None:
    first = sorted(shard_path(table, table.shards[0]).glob("*_gen_2"))[0]
    first.rename(Path(table.uri) / "elsewhere")
    assert broken(table) == ["listed generations"]


@pytest.mark.parametrize("other", [Put([31], 9), Delete([31])], ids=["put", "delete"])
def test_a_key_in_two_shards(table: Table, other: Put | Delete) -> None:
    """Nothing says which row is newer. Once they are merged, one of them stands."""
    first, second = table.shards
    table.flush(second, other)
    assert broken(table) == ["one key, one shard"]
    detail = verify(table)[1]["one key, one shard"]["detail"]
    assert detail.startswith("key k=") and first in detail and second in detail
    table.merge_all()
    assert verify(table)[0] == 0


def test_a_key_whose_shard_changed_is_found_after_the_merge(tmp_path: Path) -> None:
    """An order that goes from paid to shipped, by a spec on its status."""
    uri = str(tmp_path / "t")
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("status", pa.string())])
    base = lance.write_dataset(schema.empty_table(), uri)
    base.update_field_metadata({"id": {"lance-schema:unenforced-primary-key": "true"}})
    base.initialize_mem_wal(identity_column="status")
    for shard, status in enumerate(("paid", "shipped"), start=1):
        with base.mem_wal_writer(f"00000000-0000-4000-8000-{shard:012}") as writer:
            writer.put(pa.table({"id": [7], "status": [status]}, schema=schema))
    for _ in range(2):
        done = run_memwal("verify", uri, "--json")
        (check,) = (c for c in json.loads(done.stdout)["tables"][0]["checks"] if not c["ok"])
        assert (done.returncode, check["name"]) == (8, "one key, one shard")
        assert run_memwal("merge", uri, "--engine", "local").returncode == 0
    assert "key id=7 was merged from two shards" in check["detail"]


def test_more_pending_rows_than_are_compared(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.flush(table.shards[1], Put([31], 9))
    monkeypatch.setattr("memwal.jobs.verify.checks.KEYS_COMPARED_MAX", 5)
    (report,) = run_verify(RunOptions(tables=[resolved(table)]), Quiet()).tables
    [check] = [c for c in report.checks if c.name == "one key, one shard"]
    assert (report.exit_code, check.ok) == (0, None) and "too many to compare" in check.detail


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


def test_progress_that_fell(table: Table) -> None:
    table.merge_all()
    stores = table.stores
    version = stores.views.table_version()
    # What a careless snapshot refresh does: the entry of an older version is written back.
    stale = stores.views.mem_wal(version - 1)
    snapshot_files.store_of(stores).commit(
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


def test_a_snapshot_that_contradicts_the_manifests(table: Table) -> None:
    stores = table.stores
    snapshot_files.refresh(stores)
    table.flush(table.shards[0], Put([90], 1))
    assert check_of(table, "shard snapshot").ok, "older is no contradiction"
    manifests = [stores.shard_manifests.latest(shard) for shard in table.shards]
    first, second = (m for m in manifests if m is not None)
    wrong = replace(first, flushed_generations=first.flushed_generations[1:])
    data = snapshot_files.to_lance_bytes(snapshot_files.rows_of([wrong, second]))
    snapshot_files.store_snapshot(stores, data, num_shards=2)
    found = check_of(table, "shard snapshot")
    assert found.ok is False
    assert f"shard {first.shard_id}: flushed_generations is 2 (" in found.detail
    snapshot_files.store_snapshot(stores, b"torn", num_shards=2)
    assert check_of(table, "shard snapshot").ok is False
    snapshot_files.refresh(stores)
    assert check_of(table, "shard snapshot").ok


def test_a_reused_spec_id(table: Table) -> None:
    """The index comes to say something else of an id that it has given out."""
    stores = table.stores
    for column in ("n", "text"):
        version = stores.views.table_version()
        state = stores.views.mem_wal(version)
        details = pb.MemWalIndexDetails.FromString(state.raw)
        del details.shard_specs[:]
        spec = details.shard_specs.add(spec_id=1)
        spec.fields.add(field_id=column, source_ids=[1], transform="identity")
        snapshot_files.store_of(stores).commit(
            version=version,
            state=replace(state, raw=details.SerializeToString()),
            index_uuid=stores.clock.new_id(),
            data=b"",
            storage=Storage.INLINE,
            num_shards=0,
            taken_at_millis=0,
            merged={},
        )
    found = check_of(table, "shard spec ids")
    assert found.ok is False
    assert "gives spec id 1 to another spec" in found.detail


def check_of(table: Table, name: str) -> Check:
    (report,) = run_verify(RunOptions(tables=[resolved(table)]), Quiet()).tables
    [check] = [c for c in report.checks if c.name == name]
    assert (report.exit_code == 8) == (check.ok is False)
    return check


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


def test_what_an_operating_system_leaves_is_no_damage(table: Table) -> None:
    shard = shard_path(table, table.shards[0])
    left = [
        shard.parent / ".DS_Store",
        shard / ".nfs000000000012ab",
        shard / "manifest" / ".version_hint.json.swp",
        shard / "wal" / ".DS_Store",
    ]
    for path in left:
        path.touch()
    assert verify(table)[0] == 0
    (shard / "0a1b2c3d_gen_1~").touch()
    (shard.parent / ".nfs12").mkdir()
    (shard.parent / ".nfs12" / "x").touch()
    assert broken(table) == ["nothing foreign under _mem_wal"]


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
    entries = table.stores.wal.list_entries(table.shards[0])
    sentinels = [
        position
        for position, info in entries
        if table.stores.wal.read(table.shards[0], position, info).fence_sentinel
    ]
    wal_file(table, sentinels[-1]).unlink()
    assert broken(table) == ["newest fence sentinel"]


def test_a_writer_that_died_inside_its_claim(table: Table) -> None:
    """Rows of none of its epoch's entries are at risk, and nobody has anything to mend."""
    claim_epoch(table.stores.shard_manifests, table.shards[0])
    check = check_of(table, "newest fence sentinel")
    assert check.ok is None and "was claimed, without a sentinel so far" in check.detail
    with table.writer(table.shards[0]):
        pass
    assert check_of(table, "newest fence sentinel").ok


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


# ---- private key indexes (lance issue 9035)


def flushed_at(uri: object) -> Table:
    """Two generations, of 1 and of 4 rows; with a maintained index pylance indexes all of them."""
    table = make_table(uri, rows=range(5), indexed=True, maintained=True)
    (shard,) = table.shards
    table.flush(shard, Put([0], 50))
    table.flush(shard, Put([0, 1, 2], 100), Delete([3]))
    return table


def listed(table: Table) -> tuple[FlushedGeneration, ...]:
    (view,) = table.stores.views.table().shards
    return view.manifest.flushed_generations


def sidecar(table: Table, generation: FlushedGeneration) -> str:
    (shard,) = table.shards
    return layout.private_index_path(shard, generation.path, generation.generation)


def shorten(table: Table) -> None:
    """The second generation gets the first one's private index, with 1 row."""
    objects = table.stores.objects
    one, four = (sidecar(table, generation) for generation in listed(table))
    objects.delete([four])
    objects.put_if_absent(four, objects.get(one))


def warnings(table: Table) -> tuple[str, ...]:
    """What an otherwise healthy table is warned of."""
    report = run_verify(RunOptions(tables=[resolved(table)]), Quiet())
    (checked,) = report.tables
    assert (report.exit_code, checked.outcome, checked.error) == (0, "done", None)
    return tuple(checked.warnings)


def test_a_private_index_that_lacks_rows_until_it_is_merged(tmp_path: Path) -> None:
    table = flushed_at(tmp_path / "t")
    assert warnings(table) == ()
    shorten(table)
    code, report = report_of(table)
    assert code == 0
    (warning,) = report["warnings"]
    assert f"shard {table.shards[0]} generation 2: " in warning
    assert "1 of 4 rows" in warning
    assert all(check["ok"] for check in report["checks"])
    table.merge_all()
    assert warnings(table) == ()


def test_a_private_index_that_is_not_there(tmp_path: Path) -> None:
    table = flushed_at(tmp_path / "t")
    one, four = listed(table)
    (Path(table.uri) / sidecar(table, one)).unlink()
    (warning,) = warnings(table)
    assert "generation 1: " in warning
    assert "0 of 1 rows" in warning
    # The generation itself is gone: another check tells that, and merging would not mend it.
    (Path(table.uri) / "_mem_wal" / table.shards[0] / four.path).rename(tmp_path / "elsewhere")
    code, report = report_of(table)
    assert code == 8
    assert list(report["warnings"]) == [warning]


@pytest.mark.parametrize("data", [b"", b"no Lance file", bytes(5000)])
def test_a_private_index_that_can_not_be_read_tells_nothing(tmp_path: Path, data: bytes) -> None:
    table = flushed_at(tmp_path / "t")
    (Path(table.uri) / sidecar(table, listed(table)[1])).write_bytes(data)
    assert warnings(table) == ()
