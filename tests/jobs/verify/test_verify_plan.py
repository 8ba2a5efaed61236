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
    ShardId,
    ShardManifest,
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
    broken = BrokenShard(shard_id=SHARD, error=Corruption("torn"))
    assert verify.check_manifests(replace(view(), broken=(broken,))).ok is False


def test_progress_that_fell_or_got_lost() -> None:
    check = verify.check_progress_history
    assert check([version(1, None), version(2, 1), version(3, 1), version(4, 3)], ()).ok
    fell = [version(2, 2), version(3, 1)]
    assert check(fell, ()).ok is False
    assert check(fell, (3,)).ok
    lost = check([version(2, 2), version(3, None), version(4, 3)], ())
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


def wal(*positions: int, sentinels: tuple[int, ...] = (2,), broken: str = "") -> WalFacts:
    return WalFacts(
        shard_id=SHARD,
        positions=positions,
        sentinel_epochs=frozenset(sentinels),
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
    def ok(epoch: int, *sentinels: int) -> bool | None:
        found = {SHARD: wal(sentinels=sentinels)}
        return verify.check_sentinels([shard(epoch=epoch)], found).ok

    assert ok(1)
    assert ok(3, 2, 3)
    assert ok(3, 2) is False


def test_one_key_one_shard() -> None:
    other = ShardId("7f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
    found = verify.check_one_shard(SharedKey(key="id=3", shards=(SHARD, other)), 9, 10)
    assert (
        found.ok is False and f"key id=3 waits in two shards, {SHARD} and {other}" in found.detail
    )
    assert verify.check_one_shard(None, 10, 10).ok
    too_many = verify.check_one_shard(None, 11, 10)
    assert too_many.ok is None and "11 pending rows are too many" in too_many.detail


def test_strangers() -> None:
    inside = {SHARD: ["manifest", "wal", "0a1b2c3d_gen_1"]}
    assert verify.check_strangers((), inside).ok
    assert verify.check_strangers(("tmp",), inside).ok is False
    assert verify.check_strangers((), {SHARD: ["0a1b2c3d_gen_x"]}).ok is False
