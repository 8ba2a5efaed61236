"""The checks of `memwal verify`, each on facts that break it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memwal.errors import Corruption
from memwal.jobs.verify import plan as verify
from memwal.jobs.verify.plan import CatchUpFacts, GenerationFacts, PrivateIndexFacts, WalFacts
from memwal.model import (
    BrokenShard,
    FlushedGeneration,
    MemWalState,
    ShardField,
    ShardId,
    ShardManifest,
    ShardSpec,
    ShardView,
    SharedKey,
    TableView,
    VersionManifest,
)

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")


def state(merged: int, **catchup: int) -> MemWalState:
    return MemWalState(
        index_uuid="",
        created_at_millis=None,
        merged={SHARD: merged},
        index_catchup={name: {SHARD: reached} for name, reached in catchup.items()},
    )


def version(number: int, merged: int | None) -> VersionManifest:
    mem_wal = None if merged is None else state(merged)
    return VersionManifest(version=number, timestamp_nanos=0, mem_wal=mem_wal)


def shard(*listed: int, merged: int = 1, epoch: int = 2, current: int | None = None) -> ShardView:
    manifest = ShardManifest(
        shard_id=SHARD,
        version=3,
        writer_epoch=epoch,
        current_generation=current or max([*listed, merged]) + 1,
        replay_after_wal_entry_position=4,
        flushed_generations=tuple(
            FlushedGeneration(generation=n, path=f"0a1b2c3d_gen_{n}") for n in listed
        ),
    )
    return ShardView(manifest=manifest, merged_generation=merged)


def view(merged: int = 3) -> TableView:
    mem_wal = state(merged)
    return TableView(
        uri="memory://t",
        version=5,
        primary_key=("id",),
        columns=(),
        rows=0,
        manifest=version(5, merged),
        mem_wal=mem_wal,
        shards=(shard(),),
    )


def test_manifests_that_can_not_be_read() -> None:
    assert verify.check_manifests(view()).ok
    broken = BrokenShard(shard_id=SHARD, error=Corruption("MW-M01", "torn"))
    assert verify.check_manifests(replace(view(), broken=(broken,))).ok is False


def test_progress_that_fell_or_got_lost() -> None:
    check = verify.check_progress_history
    assert check([version(1, None), version(2, 1), version(3, 1), version(4, 3)], (), ()).ok
    fell = [version(2, 2), version(3, 1)]
    assert check(fell, (), ()).ok is False
    assert check(fell, (3,), ()).ok
    # A version that is gone may have been a restore.
    fell_meanwhile = check([version(2, 2), version(4, 1)], (), ())
    assert fell_meanwhile.ok is None and "falls from 2 to 1" in fell_meanwhile.detail
    lost = check([version(2, 2), version(3, None), version(4, 3)], (), ())
    assert lost.ok is False
    assert "version 3 lost the MemWAL index" in lost.detail


def test_private_indexes_that_lack_rows() -> None:
    def warnings(physical_rows: int | None, indexed_rows: int | None) -> tuple[str, ...]:
        facts = PrivateIndexFacts(
            shard_id=SHARD, generation=4, physical_rows=physical_rows, indexed_rows=indexed_rows
        )
        return verify.warn_of_private_indexes([facts])

    for whole_or_unknown in ((3, 3), (0, 0), (None, 3), (3, None), (None, None)):
        assert warnings(*whole_or_unknown) == ()
    (short,) = warnings(3, 2)
    assert f"shard {SHARD} generation 4" in short
    assert "2 of 3 rows" in short
    assert "older rows beside newer" in short
    (missing,) = warnings(3, 0)
    assert "0 of 3 rows" in missing
    assert "LSM reads fail" in missing
    assert all("memwal merge" in text for text in (short, missing))


def test_holes_above_the_watermark() -> None:
    assert verify.check_contiguous([shard(1, 2, 3), shard()]).ok
    for holed in (shard(3), shard(2, 4), shard(2, current=4), shard(current=3)):
        check = verify.check_contiguous([shard(1, 2, 3), holed])
        assert (check.ok, check.invariant) == (False, 2)
        assert "neither merged nor listed" in check.detail


@pytest.mark.parametrize(
    ("claimed", "physical", "error", "ok"),
    [
        (5, 5, None, True),
        (None, 5, None, True),
        (5, 4, None, False),
        (5, None, "gone", False),
        (None, None, "gone", False),
    ],
)
def test_listed_generations(
    claimed: int | None, physical: int | None, error: str | None, ok: bool
) -> None:
    facts = GenerationFacts(
        shard_id=SHARD, generation=1, claimed_rows=claimed, physical_rows=physical, error=error
    )
    assert verify.check_generations([facts]).ok is ok


def catch_up(claim: int, uncovered: tuple[int, ...], at: int | None) -> bool | None:
    facts = CatchUpFacts(
        index="a", claim={SHARD: claim}, uncovered_fragments=uncovered, claimed_at_fragment=at
    )
    return verify.check_catch_up(view(merged=3), [facts]).ok


def test_catch_up_claims() -> None:
    assert catch_up(3, (), 7) is True
    assert catch_up(3, (8,), 7) is True
    assert catch_up(3, (7,), 7) is False
    assert catch_up(2, (7,), 7) is True
    assert catch_up(4, (), 7) is False
    assert catch_up(3, (7,), None) is None


def wal(
    *positions: int,
    sentinels: tuple[int, ...] = (2,),
    rows: tuple[int, ...] = (),
    broken: str = "",
) -> WalFacts:
    return WalFacts(
        shard_id=SHARD,
        positions=positions,
        sentinel_epochs=frozenset(sentinels),
        row_epochs=frozenset(rows),
        broken=(broken,) if broken else (),
    )


def test_the_wal_above_the_replay_position() -> None:
    def ok(found: WalFacts) -> bool | None:
        return verify.check_wal([shard()], {SHARD: found}).ok

    assert ok(wal(1, 3, 5, 6))
    assert ok(wal(6)) is False
    assert ok(wal(5, 7)) is False
    assert ok(wal(5, broken="position 5 is torn")) is False


def test_the_newest_sentinel() -> None:
    def ok(epoch: int, *sentinels: int, rows: tuple[int, ...] = ()) -> bool | None:
        found = {SHARD: wal(sentinels=sentinels, rows=rows)}
        return verify.check_sentinels([shard(epoch=epoch)], found).ok

    assert ok(1)
    assert ok(3, 2, 3)
    assert ok(3, 2, rows=(2, 3)) is False
    assert ok(3, 2, rows=(2,)) is None


def test_keys_that_the_base_holds_twice() -> None:
    broken = verify.check_double_keys([f"k={n}" for n in range(30)], 99)
    assert broken.ok is False
    assert "30 keys more than once: k=0; k=1" in broken.detail
    assert "and 10 more of them" in broken.detail
    assert verify.check_double_keys([], 99).ok
    assert verify.check_double_keys(None, 99).ok is None


def test_one_key_one_shard() -> None:
    other = ShardId("7f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
    found = verify.check_one_shard(SharedKey(key="id=3", shards=(SHARD, other)), 9, 10)
    assert (
        found.ok is False and f"key id=3 waits in two shards, {SHARD} and {other}" in found.detail
    )
    assert verify.check_one_shard(None, 10, 10).ok
    too_many = verify.check_one_shard(None, 11, 10)
    assert too_many.ok is None and "11 rows are too many" in too_many.detail


def test_strangers() -> None:
    inside = {SHARD: ["manifest", "wal", "0a1b2c3d_gen_1"]}
    assert verify.check_strangers((), inside).ok
    assert verify.check_strangers(("tmp",), inside).ok is False
    assert verify.check_strangers((), {SHARD: ["0a1b2c3d_gen_x"]}).ok is False


# ---- shard specs


def with_specs(number: int, *specs: ShardSpec) -> VersionManifest:
    mem_wal = replace(state(0), shard_specs=specs)
    return VersionManifest(version=number, timestamp_nanos=0, mem_wal=mem_wal)


def spec(spec_id: int, field: str) -> ShardSpec:
    return ShardSpec(spec_id=spec_id, fields=(ShardField(field_id=field, source_ids=(1,)),))


def test_a_spec_id_that_is_kept_for_its_spec() -> None:
    kept = [with_specs(1, spec(1, "a")), with_specs(2, spec(1, "a"), spec(2, "b"))]
    assert verify.check_spec_ids(kept, [shard(1)]).ok
    # Another MemWAL index counts anew.
    remade = [*kept, version(3, None), with_specs(4, spec(1, "c"))]
    assert verify.check_spec_ids(remade, []).ok


@pytest.mark.parametrize(
    ("specs", "told"),
    [
        ([spec(1, "b")], "version 3 gives spec id 1 to another spec"),
        ([spec(1, "a"), spec(1, "b")], "version 3 has spec id 1 twice"),
        ([spec(1, "a"), spec(1, "a")], "version 3 has spec id 1 twice"),
    ],
)
def test_a_reused_spec_id(specs: list[ShardSpec], told: str) -> None:
    history = [with_specs(1, spec(1, "a")), with_specs(2), with_specs(3, *specs)]
    found = verify.check_spec_ids(history, [])
    assert found.ok is False
    assert found.detail.startswith(told)


def test_a_shard_of_the_spec_that_had_the_id_before() -> None:
    """The versions that had that spec are expired."""
    one = shard(1)
    manifest = replace(one.manifest, shard_spec_id=1, shard_field_entries=(("a", b"x"),))
    bound = replace(one, manifest=manifest)
    assert verify.check_spec_ids([with_specs(9, spec(1, "a"))], [bound]).ok
    found = verify.check_spec_ids([with_specs(9, spec(1, "b"))], [bound])
    assert found.ok is False
    assert f"shard {SHARD} has values of a" in found.detail


# ---- the shard snapshot


def snapshot_of(*shards: ShardView) -> TableView:
    seen = view()
    mem_wal = replace(seen.mem_wal, num_shards=1, snapshot_ts_millis=1_000)
    return replace(seen, mem_wal=mem_wal, shards=shards)


def test_a_snapshot_that_says_what_manifests_said() -> None:
    now = shard(2, 3)
    older = replace(
        now.manifest, version=2, flushed_generations=now.manifest.flushed_generations[:1]
    )
    seen = snapshot_of(now)
    assert verify.check_snapshot(seen, None, {}).detail == "none was taken"
    assert verify.check_snapshot(seen, [now.manifest], {SHARD: now.manifest}).ok
    assert verify.check_snapshot(seen, [older], {SHARD: older}).ok
    assert verify.check_snapshot(seen, [older], {}).ok, "its manifest was collected"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"version": 4}, "it has manifest 4, the newest is 3"),
        ({"writer_epoch": 9}, "writer_epoch is 9, manifest 3 says 2"),
        ({"current_generation": 9}, "current_generation is 9, manifest 3 says 4"),
        ({"shard_spec_id": 9}, "shard_spec_id is 9, manifest 3 says 0"),
        ({"replay_after_wal_entry_position": 9}, "position is 9, manifest 3 says 4"),
        ({"wal_entry_position_last_seen": 9}, "last_seen is 9, manifest 3 says 0"),
        ({"flushed_generations": ()}, "flushed_generations is none, manifest 3 says 2 (0a1b2c3d"),
    ],
)
def test_a_snapshot_that_contradicts_a_manifest(changes: dict[str, object], told: str) -> None:
    now = shard(2, 3)
    row = replace(now.manifest, **changes)  # type: ignore[arg-type]
    found = verify.check_snapshot(snapshot_of(now), [row], {SHARD: now.manifest})
    assert found.ok is False
    assert told in found.detail


def test_a_snapshot_of_shards_that_are_not_there() -> None:
    row = shard(2).manifest
    found = verify.check_snapshot(snapshot_of(), [row], {})
    assert found.ok is False
    assert found.detail == f"shard {SHARD} is in it, and has no manifest"
    assert verify.check_snapshot(snapshot_of(shard(2)), [], {}).ok is False
    torn = replace(
        snapshot_of(), broken=(BrokenShard(shard_id=SHARD, error=Corruption("MW-M01", "torn")),)
    )
    assert verify.check_snapshot(torn, [row], {}).ok, "the manifest is what is broken"
