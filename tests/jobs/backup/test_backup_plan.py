"""What a backup copies, what a drop deletes, and what stops either; no table is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memwal.errors import Corruption, MemWalError, Refused, Usage
from memwal.format import layout
from memwal.jobs.backup.plan import (
    DestinationState,
    Needed,
    Phase,
    check_history,
    check_place,
    check_there,
    choose_deleted,
    choose_entries,
    choose_expired,
    is_passing,
    list_hints,
    phase_of,
    plan_copies,
)
from memwal.jobs.backup.request import Keep, read_keep
from memwal.model import (
    Backup,
    BackupObject,
    BackupShard,
    ShardId,
    ShardManifest,
)
from tests.support.views import make_manifest

SHARD = ShardId("00000000-0000-4000-8000-000000000001")
WAL = layout.wal_entry_path(SHARD, 3)
DAY = 86_400 * 10**9


def one(path: str, size: int = 10, mark: bytes = b"a") -> BackupObject:
    return BackupObject(path=path, size_bytes=size, sha256=mark * 32)


def backup(name: str, at: int = 0, version: int = 5) -> Backup:
    shard = BackupShard(
        shard_id=SHARD,
        manifest_version=version,
        writer_epoch=1,
        replay_after_wal_entry_position=0,
        current_generation=1,
        merged_generation=0,
    )
    return Backup(
        name=name,
        source="/t",
        made_at_nanos=at,
        version=version,
        version_at_nanos=77,
        manifest_path="x",
        shards=(shard,),
    )


def place(*paths: str, known: tuple[BackupObject, ...] = (), **more: object) -> DestinationState:
    sizes = dict.fromkeys(paths, 10)
    return replace(
        DestinationState(uri="/d", known={o.path: o for o in known}, sizes=sizes), **more
    )  # type: ignore[arg-type]


def need(path: str, phase: Phase = Phase.DATA, size: int = 10) -> Needed:
    return Needed(path=path, size_bytes=size, phase=phase)


def code(error: pytest.ExceptionInfo[MemWalError]) -> str:
    return str(error.value)[-7:-1]


# ---- what is copied


def test_only_what_is_not_there_is_copied() -> None:
    plan = plan_copies(
        place("data/a", "data/left", WAL, known=(one("data/a"), one(WAL))),
        [need("data/a"), need("data/left"), need("data/new"), need(WAL, Phase.WAL)],
    )
    assert [o.path for o in plan.kept] == ["data/a"]
    assert [n.path for n in plan.copied] == ["data/new"]
    assert [n.path for n in plan.there] == ["data/left", WAL]


def test_an_object_that_a_list_has_and_that_is_gone_is_copied_again() -> None:
    plan = plan_copies(place(known=(one("data/a"),)), [need("data/a")])
    assert [n.path for n in plan.copied] == ["data/a"]


def test_another_size_under_a_path_is_refused() -> None:
    with pytest.raises(Refused) as error:
        plan_copies(place("data/a", known=(one("data/a"),)), [need("data/a", size=11)])
    assert code(error) == "MW-A03"


def test_what_names_others_comes_after_them() -> None:
    manifest = layout.shard_manifest_path(SHARD, 1)
    paths = ["_versions/1.manifest", manifest, WAL, f"_mem_wal/{SHARD}/0a_gen_1/x", "data/a"]
    plan = plan_copies(place(), [need(path, phase_of(path)) for path in paths])
    assert [n.path for n in plan.copied] == paths[::-1]


# ---- whose place it is


def test_an_empty_place_and_our_own_are_taken() -> None:
    check_place(place(), "/t")
    check_place(place("_maintenance/lease/1.json"), "/t")
    check_place(place("data/a", ".DS_Store", known=(one("data/a"),), backups=[backup("a")]), "/t")
    hint = layout.version_hint_path(SHARD)
    check_place(place(hint, backups=[backup("a")]), "/t")
    check_place(place(hint, "data/a", ours=frozenset(["data/a", f"{hint[:-17]}x"])), "/t")


def test_a_place_with_something_else_is_refused() -> None:
    for strange in ("notes.txt", "_versions/1.manifest", layout.version_hint_path(SHARD)):
        with pytest.raises(Refused) as error:
            check_place(place(strange), "/t")
        assert code(error) == "MW-A05"
        if "hint" not in strange:
            with pytest.raises(Refused, match=strange) as error:
                check_place(place(strange, backups=[backup("a")]), "/t")
            assert code(error) == "MW-A06"


def test_a_place_that_another_table_s_first_backup_has_claimed_is_refused() -> None:
    check_place(place(marked_for="/t"), "/t")
    with pytest.raises(Refused) as error:
        check_place(place(marked_for="/other"), "/t")
    assert code(error) == "MW-A03"


@pytest.mark.parametrize(
    ("source", "version", "former_at", "refused"),
    [
        ("/t", 5, 77, False),
        ("/t", 6, 77, False),
        ("/t", 9, None, False),
        ("/moved", 9, 77, False),
        ("/moved", 9, None, True),
        ("/t", 9, 78, True),
        ("/t", 4, None, True),
    ],
)
def test_whose_history_a_place_has(
    source: str, version: int, former_at: int | None, refused: bool
) -> None:
    found = place(backups=[backup("a")])
    if not refused:
        check_history(found, source, version, former_at)
        return
    with pytest.raises(Refused) as error:
        check_history(found, source, version, former_at)
    assert code(error) == "MW-A03"


# ---- the WAL


def manifest(replayed: int, epoch: int = 2, seen: int = 0) -> ShardManifest:
    return make_manifest(
        SHARD,
        writer_epoch=epoch,
        replay_after_wal_entry_position=replayed,
        wal_entry_position_last_seen=seen,
    )


@pytest.mark.parametrize(
    ("replayed", "positions", "sentinels", "wanted"),
    [
        (0, [], {}, []),
        (0, [1, 2, 3], {}, [1, 2, 3]),
        (2, [1, 2, 3, 4], {}, [3, 4]),
        (4, [1, 2, 3, 4], {}, [4]),
        (4, [1, 2, 3, 4], {2: 2}, [2, 4]),
        (2, [1, 2, 3, 4, 5], {4: 3}, [3]),
        (3, [1, 2, 3, 4, 5], {4: 3, 2: 2}, [2, 3]),
        (2, [1, 2, 3, 4, 5, 6], {6: 4, 4: 3, 1: 2}, [1, 3]),
    ],
)
def test_entries_that_a_replay_takes_and_those_that_writers_need(
    replayed: int, positions: list[int], sentinels: dict[int, int], wanted: list[int]
) -> None:
    assert choose_entries("t", manifest(replayed), positions, sentinels) == wanted


@pytest.mark.parametrize(("positions", "seen"), [([1, 3], 0), ([2], 0), ([1], 2)])
def test_a_hole_is_refused(positions: list[int], seen: int) -> None:
    with pytest.raises(Refused) as error:
        choose_entries("t", manifest(0, seen=seen), positions, {})
    assert code(error) == "MW-A04"
    assert is_passing(error.value)


def test_a_file_that_is_not_there_is_a_loss() -> None:
    check_there("t", ["a"], {"a", "b"})
    with pytest.raises(Corruption, match="the table needs c") as error:
        check_there("t", ["a", "c"], {"a"})
    assert code(error) == "MW-A09"
    assert is_passing(error.value)
    assert not is_passing(Refused("MW-A03", "x"))


# ---- what goes


@pytest.mark.parametrize(
    ("keep", "gone"),
    [
        (None, ""),
        (Keep(newest=4), ""),
        (Keep(newest=2), "a"),
        (Keep(newest=1), "ab"),
        (Keep(seconds=86_400 * 2.5), "a"),
        (Keep(seconds=1.0), "ab"),
    ],
)
def test_what_is_kept(keep: Keep | None, gone: str) -> None:
    backups = [backup("a", DAY), backup("b", 3 * DAY), backup("c", 3 * DAY + 1)]
    assert "".join(b.name for b in choose_expired(backups, keep, 4 * DAY)) == gone


def test_only_what_no_other_needs_is_deleted_and_manifests_first() -> None:
    manifest_path = layout.shard_manifest_path(SHARD, 1)
    dropped = [one("data/a"), one("data/b"), one("_versions/1.manifest"), one(manifest_path)]
    found = choose_deleted([dropped], [[one("data/b")]], ["data/left", "data/b"])
    assert found == ["_versions/1.manifest", manifest_path, "data/a", "data/left"]


def test_hints_lead_to_the_newest() -> None:
    assert list_hints([backup("a", version=3), backup("b", version=9)]) == {SHARD: 9}


def test_keep_is_a_number_or_an_age() -> None:
    assert read_keep("7") == Keep(newest=7)
    assert read_keep("7d") == Keep(seconds=7 * 86_400.0)
    for text in ("0", "", "-1", "d", "soon", "0d", "1.5", "9999999999"):
        with pytest.raises(Usage, match="--keep"):
            read_keep(text)
