"""The documents of backups: what counts as one, and what can't be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from memwal.errors import Corruption, MemWalError, Refused, Usage
from memwal.format import codec, layout
from memwal.model import Backup, BackupMark, BackupObject, BackupShard, ShardId
from memwal.ports import Objects
from memwal.store.records.backups import StoredBackups
from memwal.testing import Fault, FaultyObjects, MemoryObjects

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
NEEDED = (
    BackupObject(path="data/b.lance", size_bytes=20, sha256=b"b" * 32),
    BackupObject(path="data/a.lance", size_bytes=10, sha256=b"a" * 32),
    BackupObject(path="_maintenance/settled/x.json", size_bytes=1, sha256=b"c" * 32),
)


def backup(name: str, made_at_nanos: int = 5) -> Backup:
    return Backup(
        name=name,
        source="s3://bucket/table",
        made_at_nanos=made_at_nanos,
        version=7,
        version_at_nanos=4,
        manifest_path=f"_versions/{layout.table_manifest_names(7)[0]}",
        shards=(
            BackupShard(
                shard_id=SHARD,
                manifest_version=3,
                writer_epoch=2,
                replay_after_wal_entry_position=9,
                current_generation=4,
                merged_generation=1,
                wal_first=8,
                wal_last=12,
            ),
        ),
        memwal_version="1.0",
    )


@pytest.fixture
def objects(open_store: Callable[[], Objects]) -> Objects:
    return open_store()


def test_what_was_put_is_found_with_its_sums(objects: Objects) -> None:
    stored = StoredBackups(objects)
    assert (list(stored.list()), stored.newest()) == ([], None)

    late = stored.put(backup("z-first", 9), NEEDED)
    early = stored.put(backup("a.second", 6), NEEDED[:1])

    assert (late.num_objects, late.num_bytes) == (3, 31)
    assert list(stored.list()) == [early, late]
    assert (stored.find(), stored.find("a.second")) == (late, early)
    assert list(stored.objects_of(late)) == sorted(NEEDED, key=lambda o: o.path)
    assert list(stored.left_lists()) == []
    with pytest.raises(Usage, match=r"no backup 'b'; there are: z-first, a\.second"):
        stored.find("b")


def test_a_name_that_is_taken_is_refused_and_stays(objects: Objects) -> None:
    stored = StoredBackups(objects)
    first = stored.put(backup("daily"), NEEDED)

    for refused in (
        lambda: stored.check_free("daily"),
        lambda: stored.put(backup("daily", 99), NEEDED[:1]),
    ):
        with pytest.raises(Refused, match=r"backup 'daily' is there, made .*MW-A02"):
            refused()

    stored.check_free("other")
    assert (list(stored.list()), len(stored.objects_of(first))) == ([first], 3)


def test_a_list_that_a_killed_run_left_is_no_backup_and_is_replaced() -> None:
    objects = MemoryObjects()
    stored = StoredBackups(objects)
    objects.put(layout.backup_objects_path("daily"), b"left")
    assert list(stored.list()) == []
    assert list(stored.left_lists()) == ["daily"]

    made = stored.put(backup("daily"), NEEDED)

    assert len(stored.objects_of(made)) == 3


def test_a_lost_reply_to_the_document_s_put_is_no_other_backup() -> None:
    objects = MemoryObjects()
    lost = Fault(
        operation="put_if_absent", path="*.pb", when="before",
        hook=lambda: objects.put(layout.backup_path("daily"), document),
    )  # fmt: skip
    document = codec.encode_backup(StoredBackups(MemoryObjects()).put(backup("daily"), NEEDED))

    made = StoredBackups(FaultyObjects(objects, lost)).put(backup("daily"), NEEDED)

    assert list(StoredBackups(objects).list()) == [made]


def test_without_its_document_a_backup_is_none() -> None:
    objects = MemoryObjects()
    stored = StoredBackups(objects)
    stored.put(backup("daily"), NEEDED)

    stored.remove_document("daily")
    assert (list(stored.list()), list(stored.left_lists())) == ([], ["daily"])
    stored.remove_list("daily")
    assert [*objects.list("")] == []


def test_a_mark_says_what_is_under_way() -> None:
    stored = StoredBackups(MemoryObjects())
    assert stored.read_mark() is None
    pin, paths = "memwal-backup-01234567", ("data/a.lance",)
    mark = BackupMark(source="/a", name="n", begun_at_nanos=8, pin=pin, paths=paths)

    stored.put_mark(mark)
    assert stored.read_mark() == mark
    assert list(stored.list()) == []
    stored.remove_mark()
    assert stored.read_mark() is None


FORGED = {
    "no document": b"\xff\xff",
    "empty": b"",
    "another name": codec.encode_backup(backup("other")),
    "another version's manifest": codec.encode_backup(replace(backup("zero"), version=8)),
    "a way out": codec.encode_backup(replace(backup("zero"), manifest_path="../7.manifest")),
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED.keys())
def test_a_document_that_can_t_be_read_stops_everything(data: bytes) -> None:
    objects = MemoryObjects()
    stored = StoredBackups(objects)
    stored.put(backup("good"), NEEDED)
    objects.put(layout.backup_path("zero"), data)

    for read in (stored.list, stored.find, stored.newest):
        with pytest.raises(Corruption, match=r"zero\.pb .*MW-A01"):
            read()


@pytest.mark.parametrize(
    "wrong",
    [
        (BackupObject(path="../a", size_bytes=1, sha256=b"a" * 32),),
        (BackupObject(path="_maintenance/lease/1.json", size_bytes=1, sha256=b"a" * 32),),
        (BackupObject(path="a//b", size_bytes=1, sha256=b"a" * 32),),
        (BackupObject(path="a", size_bytes=1, sha256=b"short"),),
        (NEEDED[0], replace(NEEDED[0], size_bytes=1)),
    ],
    ids=["out", "ours", "empty part", "digest", "twice"],
)
def test_a_list_that_makes_no_sense_stops_what_reads_it(wrong: tuple[BackupObject, ...]) -> None:
    stored = StoredBackups(MemoryObjects())
    made = stored.put(backup("daily"), wrong)

    with pytest.raises(Corruption, match=r"daily\.objects .*MW-A01"):
        stored.objects_of(made)


def test_a_list_that_is_gone_or_another_one_stops_what_reads_it() -> None:
    objects = MemoryObjects()
    stored = StoredBackups(objects)
    made = stored.put(backup("daily"), NEEDED)
    path = layout.backup_objects_path("daily")
    for damage in (
        lambda: objects.put(path, codec.encode_backup_objects(NEEDED[:1])),
        lambda: objects.delete([path]),
    ):
        damage()
        with pytest.raises(Corruption, match=r"daily\.objects is .*MW-A01"):
            stored.objects_of(made)
    objects.put(layout.BACKUP_MARK, b"\xff")
    with pytest.raises(Corruption, match="unfinished"):
        stored.read_mark()


def test_names_are_those_of_files_and_paths_lead_back_to_them() -> None:
    for name in ("", "a/b", "../a", ".a", "a..b", "a" * 65, "ü", "a\n"):
        with pytest.raises(MemWalError, match="not a backup's name"):
            layout.backup_path(name)
        assert layout.parse_backup_path(f"{layout.BACKUPS}/{name}.pb") is None
    assert layout.parse_backup_path(layout.backup_path("a.b")) == "a.b"
    assert layout.parse_backup_objects_path(layout.backup_objects_path("a.b")) == "a.b"
    assert layout.parse_backup_path(layout.backup_objects_path("a")) is None
    assert layout.parse_backup_path(layout.BACKUP_MARK) is None
