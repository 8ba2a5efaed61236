"""What a restore decides."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import Corruption, Refused, StoreUnavailable
from memwal.format import codec, layout, restores
from memwal.jobs.restore.plan import (
    check_end,
    check_list,
    check_place,
    find_version_path,
    is_copied,
    plan_claim,
    plan_end,
)
from memwal.model import (
    Backup,
    BackupObject,
    BackupShard,
    FlushedGeneration,
    RestoreMark,
    ShardId,
    ShardManifest,
    StoredFile,
)

SHARD, OTHER = (
    ShardId("0" * 8 + "-0000-4000-8000-" + "0" * 12),
    ShardId("1" * 8 + "-0000-4000-8000-" + "0" * 12),
)
AT = 10**18
BACKUP = Backup(
    name="b1",
    source="/t",
    made_at_nanos=AT + 10**9,
    version=7,
    version_at_nanos=AT,
    manifest_path=f"_versions/{layout.table_manifest_names(7)[0]}",
    shards=(
        BackupShard(
            shard_id=SHARD,
            manifest_version=4,
            writer_epoch=2,
            replay_after_wal_entry_position=3,
            current_generation=3,
            merged_generation=1,
            wal_first=2,
            wal_last=5,
        ),
    ),
    objects_sha256=b"\0" * 32,
)
PATHS = (
    BACKUP.manifest_path,
    "data/a.lance",
    layout.shard_manifest_path(SHARD, 4),
    layout.version_hint_path(SHARD),
    *(layout.wal_entry_path(SHARD, position) for position in (2, 3, 4, 5)),
    f"{layout.shard_folder(SHARD)}/abcdef01_gen_2/data/x.lance",
)
OBJECTS = tuple(BackupObject(path=p, size_bytes=1, sha256=b"\1" * 32) for p in PATHS)
GENERATION = FlushedGeneration(generation=2, path="abcdef01_gen_2")
KEPT = ShardManifest(
    shard_id=SHARD,
    version=4,
    writer_epoch=2,
    current_generation=3,
    replay_after_wal_entry_position=3,
    flushed_generations=(GENERATION,),
)


@given(st.tuples(*[st.integers(0, 10**6)] * 6), st.booleans(), st.sampled_from([0, 5 * 10**8, AT]))
def test_a_shard_goes_on_above_all_that_was_given(
    numbers: tuple[int, ...], there: bool, now_nanos: int
) -> None:
    epoch, version, position, seen, replayed, entries = numbers
    old = ShardManifest(
        shard_id=SHARD,
        version=version,
        writer_epoch=epoch,
        current_generation=9,
        replay_after_wal_entry_position=replayed,
        wal_entry_position_last_seen=seen,
        flushed_generations=(replace(GENERATION, generation=8, path="abcdef01_gen_8"),),
    )
    claimed = plan_claim(KEPT, old if there else None, position, now_nanos)
    after = plan_end(claimed, entries)
    given_out = [KEPT, *([old] if there else [])]
    leapt = max(m.writer_epoch for m in given_out) + layout.LEAP_MIN
    assert claimed.writer_epoch == max(leapt, now_nanos // 1000)
    seen_last = [m.wal_entry_position_last_seen for m in given_out]
    covered = [m.replay_after_wal_entry_position for m in given_out]
    # Before the WAL stands, nothing of the old one is replayed either.
    sentinel = claimed.replay_after_wal_entry_position
    leapt = max([position, *seen_last, *covered]) + layout.LEAP_MIN
    assert sentinel == max(leapt, now_nanos // 1000)
    assert after.replay_after_wal_entry_position == sentinel
    assert after.wal_entry_position_last_seen == sentinel + entries
    first = max(m.version for m in given_out) + 1
    assert (claimed.version, after.version) == (first, first + 1)
    assert after.flushed_generations == KEPT.flushed_generations
    assert after.current_generation == KEPT.current_generation


def test_a_later_restore_of_the_same_backup_goes_on_above_the_first() -> None:
    made, later = plan_claim(KEPT, None, 0, AT), plan_claim(KEPT, None, 0, AT + 10**9)
    assert later.writer_epoch - made.writer_epoch == layout.LEAP_MIN
    first, second = (m.replay_after_wal_entry_position for m in (made, later))
    assert second - first == layout.LEAP_MIN
    assert min(made.writer_epoch, first) > 10**12


OURS = RestoreMark(backup="b1", objects_sha256=b"\0" * 32)


@pytest.mark.parametrize(
    ("paths", "mark", "said"),
    [
        ([f"{layout.LEASE}/1.json", f"{layout.RUNS}/1.json", layout.RESERVE], None, None),
        (["_versions/x", "data/x"], OURS, None),
        (["data/x"], None, "something already"),
        ([f"{layout.INGESTS}/a/1.json"], None, "something already"),
        ([layout.backup_path("b1")], None, "something already"),
        (["_versions/x"], replace(OURS, backup="b0"), "'b0' was not finished"),
        (["_versions/x"], replace(OURS, objects_sha256=b"\1" * 32), "'b1' was not finished"),
    ],
)
def test_where_it_may_go(paths: list[str], mark: RestoreMark | None, said: str | None) -> None:
    with nullcontext() if said is None else pytest.raises(Refused, match=said):
        check_place("/t", paths, mark, BACKUP)


def test_at_the_end_all_is_there_and_nothing_of_an_old_table() -> None:
    def check(*more: str) -> None:
        paths = [*PATHS, *more]
        files = {p: StoredFile(path=p, size_bytes=1, modified_at_nanos=AT) for p in paths}
        check_end("/t", files, OBJECTS, BACKUP)

    check(layout.wal_entry_path(SHARD, 9))  # below the replay position
    for strange in (f"{layout.INGESTS}/a/1.json", layout.wal_entry_path(OTHER, 1)):
        with pytest.raises(Refused, match="from before"):
            check(strange)
    larger = replace(OBJECTS[1], size_bytes=2)
    for found in ({}, {larger.path: StoredFile(path=PATHS[1], size_bytes=1, modified_at_nanos=1)}):
        with pytest.raises(StoreUnavailable, match="gone again"):
            check_end("/t", found, [larger], BACKUP)


def test_the_next_version_is_named_as_the_backups_is() -> None:
    second, first = layout.table_manifest_names(8)
    assert find_version_path(BACKUP) == f"_versions/{second}"
    old = replace(BACKUP, manifest_path="_versions/7.manifest")
    assert find_version_path(old) == f"_versions/{first}"


def test_what_is_put_again_is_not_copied() -> None:
    copied = [found.path for found in OBJECTS if is_copied(found)]
    assert copied == [*PATHS[:3], PATHS[-1]]


def test_a_list_has_what_the_document_names() -> None:
    check_list(PATHS, BACKUP, "/b")
    for path in (BACKUP.manifest_path, PATHS[2], layout.wal_entry_path(SHARD, 4)):
        with pytest.raises(Corruption, match="lacks"):
            check_list({*PATHS} - {path}, BACKUP, "/b")
    # What is covered is not replayed.
    covered = layout.wal_entry_path(SHARD, 2)
    check_list({*PATHS} - {covered}, BACKUP, "/b")


def test_a_document_that_names_positions_without_end_is_refused_at_once() -> None:
    (shard, *others) = BACKUP.shards
    forged = replace(BACKUP, shards=(replace(shard, wal_last=2**63), *others))
    with pytest.raises(Corruption, match="lacks"):
        check_list(PATHS, forged, "/b")


def test_the_mark_is_no_manifest() -> None:
    data = restores.encode_restore_mark(OURS)
    assert restores.decode_restore_mark(data) == OURS
    assert restores.decode_restore_mark(b"") is None
    assert restores.decode_restore_mark(data[1:]) is None
    with pytest.raises(Corruption):
        codec.decode_footer(data)
    for torn in (data[:-1], data[:20]):
        with pytest.raises(Corruption):
            restores.decode_restore_mark(torn)
