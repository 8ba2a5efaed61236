"""What a restore decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import Corruption, Refused, Usage
from memwal.format import codec, layout, restores
from memwal.jobs.restore.plan import (
    Part,
    Place,
    ShardState,
    check_list,
    check_place,
    choose_backup,
    find_next_version,
    find_part,
    find_stale_ingests,
    list_copied,
    plan_shard,
)
from memwal.jobs.restore.request import RestoreRequest
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
from memwal.rows.progress import CLOCKS_APART_NANOS

SHARD, OTHER = (
    ShardId("0" * 8 + "-0000-4000-8000-" + "0" * 12),
    ShardId("1" * 8 + "-0000-4000-8000-" + "0" * 12),
)
RESTORE_ID = "2" * 8 + "-0000-4000-8000-" + "0" * 12
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


def place(*paths: str, modified: int = AT, **known: object) -> Place:
    files = {p: StoredFile(path=p, size_bytes=1, modified_at_nanos=modified) for p in paths}
    return replace(Place(uri="/t", files=files), **known)  # type: ignore[arg-type]


@given(st.tuples(*[st.integers(0, 10**6)] * 6), st.booleans(), st.booleans())
def test_a_shard_goes_on_above_all_that_was_given(
    numbers: tuple[int, ...], known: bool, there: bool
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
    kept = KEPT if known else None
    found = ShardState(
        shard_id=SHARD, manifest=old if there else None, version=version, position=position
    )
    planned = plan_shard(found, kept)
    after = planned.finish(entries)
    given_out = [m for m in (found.manifest, kept) if m is not None]
    assert planned.claimed.writer_epoch >= max((m.writer_epoch for m in given_out), default=0) + (
        layout.LEAP
    )
    seen_last = [m.wal_entry_position_last_seen for m in given_out]
    covered = [m.replay_after_wal_entry_position for m in given_out]
    assert planned.sentinel >= max([position, *seen_last, *covered]) + layout.LEAP
    # Before the WAL stands, nothing of the old one is replayed either.
    assert planned.claimed.replay_after_wal_entry_position == planned.sentinel
    assert after.replay_after_wal_entry_position == planned.sentinel
    assert after.wal_entry_position_last_seen == planned.sentinel + entries
    assert (planned.claimed.version, after.version) == (version + 1, version + 2)
    assert planned.tip == (position + 1 if position else None)
    if known:
        assert after.flushed_generations == KEPT.flushed_generations
        assert after.current_generation == KEPT.current_generation
    else:
        assert (after.flushed_generations, after.current_generation) == ((), 1)


def test_which_backup() -> None:
    newer = replace(BACKUP, name="b2", version=9)
    again = replace(BACKUP, name="b3", version=7)
    backups = (BACKUP, newer, again)
    assert choose_backup(backups, RestoreRequest(), "/b") == again
    assert choose_backup(backups, RestoreRequest(backup="b2"), "/b") == newer
    assert choose_backup(backups, RestoreRequest(version=9), "/b") == newer
    assert choose_backup(backups, RestoreRequest(version=7), "/b") == again
    assert choose_backup(backups, RestoreRequest(version=7, backup="b1"), "/b") == BACKUP
    for wrong in (RestoreRequest(backup="b4"), RestoreRequest(version=9, backup="b1")):
        with pytest.raises(Usage, match=r"there are: b1 \(version 7, "):
            choose_backup(backups, wrong, "/b")
    with pytest.raises(Usage, match="it has none"):
        choose_backup((), RestoreRequest(), "/b")


def test_where_it_may_go() -> None:
    ours = RestoreMark(restore_id=RESTORE_ID, backup="b1", objects_sha256=b"\0" * 32)
    other = replace(ours, backup="b0")
    remade = replace(ours, objects_sha256=b"\1" * 32)
    free = place(f"{layout.LEASE}/1.json")
    marked = place("_versions/x", mark=ours, marked_version=8)
    check_place(free, BACKUP, RestoreRequest())
    check_place(marked, BACKUP, RestoreRequest())
    for wrong, said in (
        (place("data/x"), "something already"),
        (replace(marked, mark=other), "'b0' was not finished"),
        (replace(marked, mark=remade), "'b1' was not finished"),
    ):
        with pytest.raises(Refused, match=said):
            check_place(wrong, BACKUP, RestoreRequest())
        check_place(wrong, BACKUP, RestoreRequest(over=True))
    with pytest.raises(Refused, match="place of backups"):
        check_place(place(layout.backup_path("b1")), BACKUP, RestoreRequest(over=True))


def test_the_next_version_is_above_both() -> None:
    assert find_next_version(place(), BACKUP) == 8
    assert find_next_version(place(version=3), BACKUP) == 8
    assert find_next_version(place(version=12), BACKUP) == 13
    assert find_next_version(place(version=12, marked_version=13), BACKUP) == 13


def test_what_becomes_of_each_object() -> None:
    parts = {found.path: find_part(found, BACKUP) for found in OBJECTS}
    assert [parts[path] for path in PATHS] == [
        Part.BASE, Part.COPIED, Part.SHARD, Part.SHARD, *[Part.WAL] * 4, Part.COPIED,
    ]  # fmt: skip

    def copied(found: Place) -> list[str]:
        return [one.path for one in list_copied(OBJECTS, BACKUP, found)]

    others = ["data/a.lance", PATHS[-1]]
    manifest = layout.shard_manifest_path(SHARD, 4)
    assert sorted(copied(place())) == sorted([*others, manifest])
    there = place(layout.shard_manifest_path(SHARD, 9), version=3)
    assert sorted(copied(there)) == sorted(others)
    elsewhere = place(layout.shard_manifest_path(OTHER, 9), version=3)
    assert sorted(copied(elsewhere)) == sorted([*others, manifest])


def test_a_list_has_what_the_document_names() -> None:
    check_list(OBJECTS, BACKUP, "/b")
    for path in (BACKUP.manifest_path, PATHS[2], layout.wal_entry_path(SHARD, 4)):
        with pytest.raises(Corruption, match="lacks"):
            check_list([o for o in OBJECTS if o.path != path], BACKUP, "/b")
    # What is covered is not replayed.
    covered = layout.wal_entry_path(SHARD, 2)
    check_list([o for o in OBJECTS if o.path != covered], BACKUP, "/b")


def test_a_document_that_names_positions_without_end_is_refused_at_once() -> None:
    (shard, *others) = BACKUP.shards
    forged = replace(BACKUP, shards=(replace(shard, wal_last=2**63), *others))
    with pytest.raises(Corruption, match="lacks"):
        check_list(OBJECTS, forged, "/b")


def test_which_ingests_may_have_gone_on() -> None:
    paths = [f"{layout.INGESTS}/a/1.json", f"{layout.INGESTS}/a/2.json"]
    before = AT - CLOCKS_APART_NANOS - 1
    assert find_stale_ingests(place(*paths, modified=before), BACKUP) == {}
    assert find_stale_ingests(place(*paths, modified=before + 1), BACKUP) == {"a": paths}
    one = place(*paths, modified=before)
    newer = replace(one.files[paths[1]], modified_at_nanos=AT)
    one = replace(one, files={**one.files, paths[1]: newer})
    assert find_stale_ingests(one, BACKUP) == {"a": paths}


def test_the_mark_is_no_manifest() -> None:
    mark = RestoreMark(restore_id=RESTORE_ID, backup="b1", objects_sha256=b"\3" * 32)
    data = restores.encode_restore_mark(mark)
    assert restores.decode_restore_mark(data) == mark
    assert restores.decode_restore_mark(b"") is None
    assert restores.decode_restore_mark(data[1:]) is None
    with pytest.raises(Corruption):
        codec.decode_footer(data)
    for torn in (data[:-1], data[:20]):
        with pytest.raises(Corruption):
            restores.decode_restore_mark(torn)
