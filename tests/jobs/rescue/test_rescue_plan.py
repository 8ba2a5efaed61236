"""When a shard counts as abandoned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memwal.errors import Corruption, Refused
from memwal.format import layout
from memwal.format.replay import WalEntry
from memwal.jobs.rescue.plan import (
    NOTHING,
    REFUSE,
    RESCUE,
    RescueEvidence,
    RescueMark,
    ShardRescue,
    SignOfLife,
    plan_rescue,
    still_unflushed,
)
from memwal.jobs.rescue.request import RescueRequest
from memwal.model import ShardId, ShardManifest, ShardStatus, StoredFile

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
SECOND = 10**9
NOW = 10_000 * SECOND
LIMITS = RescueRequest(idle_seconds=600)


def entry(position: int, *, rows: int = 2, epoch: int = 1, generation: int = 1) -> WalEntry:
    return WalEntry(position=position, size_bytes=1000, written_at_nanos=0, writer_epoch=epoch,
                    generation=generation, rows=rows, batches=1)  # fmt: skip


def sentinel(position: int, epoch: int) -> WalEntry:
    return replace(entry(position, rows=0, epoch=epoch), generation=None, fence_sentinel=True)


def wal_file(position: int, age_seconds: float) -> StoredFile:
    return file(f"wal/{layout.bit_reversed(position)}.arrow", age_seconds)


def file(path: str, age_seconds: float) -> StoredFile:
    path, nanos = f"{layout.shard_folder(SHARD)}/{path}", NOW - int(age_seconds * SECOND)
    return StoredFile(path=path, size_bytes=1, modified_at_nanos=nanos)


def evidence(**changes: Any) -> RescueEvidence:
    given = {
        "manifest": ShardManifest(shard_id=SHARD, version=1, writer_epoch=1, current_generation=1),
        "entries": (entry(1), entry(2)),
        "files": (wal_file(1, 900), wal_file(2, 800)),
        **changes,
    }
    return RescueEvidence(**given)


def plan(found: RescueEvidence, limits: RescueRequest = LIMITS) -> ShardRescue:
    return plan_rescue(found, limits, NOW)


def with_manifest(**changes: Any) -> ShardManifest:
    return replace(evidence().manifest, **changes)


def test_a_silent_shard_with_unflushed_rows_is_rescued() -> None:
    found = plan(evidence())
    assert found.action == RESCUE
    assert (found.entries, found.rows, found.bytes, found.idle_seconds) == (2, 4, 2000, 800)
    sign = SignOfLife(what="WAL entry 2", at_nanos=NOW - 800 * SECOND)
    assert found.last_sign == sign.what
    assert found.mark == RescueMark(
        writer_epoch=1, highest_position=2, sign=sign, made_at_nanos=NOW
    )


@pytest.mark.parametrize(
    ("young", "what"),
    [
        (wal_file(2, 599), "WAL entry 2"),
        (file(f"manifest/{layout.bit_reversed(3)}.binpb", 599), "manifest version 3"),
        (file("0123abcd_gen_7/data/x.lance", 599), "a file of generation 7"),
        (file("manifest/version_hint.json", 599), "manifest/version_hint.json"),
        (file("wal/else", 599), "wal/else"),
    ],
)
def test_any_young_file_is_a_sign_of_life(young: StoredFile, what: str) -> None:
    found = plan(evidence(files=(wal_file(1, 900), young)))
    assert found.action == REFUSE
    assert isinstance(found.cause, Refused)
    assert str(found.error).startswith(f"{what} is 599 s old, less than 600 s")
    assert plan(evidence(files=(young,)), RescueRequest(idle_seconds=599)).error is None


def test_a_time_in_the_future_is_young() -> None:
    found = plan(evidence(files=(wal_file(2, -50),)))
    assert (found.action, found.idle_seconds) == (REFUSE, 0)


def test_without_any_time_nothing_is_claimed() -> None:
    found = plan(evidence(files=()))
    assert found.action == REFUSE
    assert "nothing tells when it was last written" in str(found.error)


@pytest.mark.parametrize(
    "changes",
    [
        {"entries": ()},
        {"entries": (sentinel(1, 1),)},
        {"manifest": with_manifest(replay_after_wal_entry_position=2)},
        {"manifest": with_manifest(current_generation=2)},
    ],
    ids=["empty", "sentinel", "covered", "covered by generation"],
)
def test_nothing_unflushed_is_nothing_to_do_however_young(changes: dict[str, Any]) -> None:
    found = plan(evidence(files=(wal_file(2, 1),), **changes))
    assert (found.action, found.error, found.rows) == (NOTHING, None, 0)


def test_a_sealed_shard_is_refused_unless_there_is_nothing_to_do() -> None:
    sealed = with_manifest(status=ShardStatus.SEALED)
    found = plan(evidence(manifest=sealed))
    assert isinstance(found.cause, Refused)
    assert "SEALED" in str(found.error)
    assert plan(evidence(manifest=sealed, entries=())).action == NOTHING


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ((entry(2),), "position 1 is missing"),
        ((entry(1), replace(entry(2), problem="torn")), "torn"),
        ((entry(1, epoch=2),), "position 1 has writer epoch 2"),
        ((entry(1), entry(2, generation=3)), "position 2 has generation 3"),
    ],
)
def test_a_wal_that_can_not_be_replayed_is_not_even_claimed(
    entries: tuple[WalEntry, ...], text: str
) -> None:
    """pylance claims first, and fails at the entry or leaves what follows a hole behind."""
    found = plan(evidence(entries=entries))
    assert found.action == REFUSE
    assert isinstance(found.cause, Corruption)
    assert text in str(found.error)


def test_a_wal_that_unfolds_to_too_much_is_not_claimed_and_is_not_damaged() -> None:
    large = replace(entry(2), problem="unfolds to 1 TB", refused=True)
    found = plan(evidence(entries=(entry(1), large)))
    assert found.action == REFUSE
    assert isinstance(found.cause, Refused)
    assert "unfolds to 1 TB" in str(found.error)


def test_the_writer_is_made_large_enough_for_the_largest_generation() -> None:
    """pylance refuses to replay a generation that is larger than the MemTable it is given."""
    small = plan(evidence())
    assert [*small.memtable.values()] == [100_000, 8000]
    big = tuple(
        replace(entry(p, generation=g, rows=rows), batches=5000)
        for p, g, rows in ((1, 1, 90_000), (2, 1, 90_000), (3, 2, 100_000), (4, 2, 60_000))
    )
    found = plan(evidence(entries=big))
    assert [*found.memtable.values()] == [360_000, 20_000]


# ---- a rescue that was killed

MARK = RescueMark(
    writer_epoch=1,
    highest_position=2,
    sign=SignOfLife(what="WAL entry 2", at_nanos=NOW - 800 * SECOND),
    made_at_nanos=NOW - 5 * SECOND,
)
KILLED: dict[str, dict[str, Any]] = {
    "before the claim": {},
    "after the claim": {"manifest": with_manifest(version=2, writer_epoch=2)},
    "after the sentinel": {
        "manifest": with_manifest(version=2, writer_epoch=2),
        "entries": (entry(1), entry(2), sentinel(3, 2)),
    },
    "after a part of the flush": {
        "manifest": with_manifest(version=4, writer_epoch=2, replay_after_wal_entry_position=1),
        "entries": (entry(2), sentinel(3, 2)),
    },
}


@pytest.mark.parametrize("when", KILLED)
def test_the_traces_of_a_killed_rescue_are_no_signs_of_life(when: str) -> None:
    files = (wal_file(2, 800), wal_file(3, 4), file("manifest/version_hint.json", 4))
    found = plan(evidence(files=files, mark=MARK, **KILLED[when]))
    assert found.action == RESCUE
    assert (found.idle_seconds, found.last_sign) == (800, MARK.sign.what)
    assert plan(evidence(files=files, **KILLED[when])).action == REFUSE


@pytest.mark.parametrize(
    "changes",
    [
        {"manifest": with_manifest(writer_epoch=3)},
        {
            "manifest": with_manifest(writer_epoch=2),
            "entries": (entry(1), entry(2), sentinel(3, 2), entry(4, epoch=2)),
        },
        {"entries": (entry(1), entry(2), entry(3))},
        {
            "manifest": with_manifest(writer_epoch=2),
            "entries": (entry(1), entry(2), sentinel(3, 1)),
        },
        {"mark": replace(MARK, made_at_nanos=NOW - 601 * SECOND)},
        {"mark": replace(MARK, writer_epoch=2)},
    ],
    ids=["claimed since", "written since", "the old one wrote", "not its sentinel", "old mark",
         "other mark"],
)  # fmt: skip
def test_the_mark_is_not_believed_when_a_writer_may_have_come(changes: dict[str, Any]) -> None:
    found = plan(evidence(**{"files": (wal_file(3, 4),), "mark": MARK, **changes}))
    assert found.action == REFUSE
    assert "4 s old" in str(found.error)


def test_what_is_left_after_a_flush() -> None:
    entries = (entry(1), entry(2), sentinel(3, 1), entry(4))
    before = evidence().manifest
    assert still_unflushed(before, entries) == 3
    assert still_unflushed(replace(before, replay_after_wal_entry_position=2), entries) == 1
    assert still_unflushed(replace(before, current_generation=2), entries) == 0


# ---- torn entries at the end

TORN = replace(entry(3), writer_epoch=None, generation=None, rows=None, problem="cut", torn=True)
DROP = RescueRequest(idle_seconds=600, drop_torn=True)


@pytest.mark.parametrize(
    ("behind", "epoch"), [((), 4), ((sentinel(4, 2), sentinel(5, 3), sentinel(6, 4)), 2)]
)
def test_a_torn_end_is_dropped_if_that_is_asked_for(
    behind: tuple[WalEntry, ...], epoch: int
) -> None:
    """Its sentinel has an epoch that keeps them in order."""
    older = replace(TORN, position=2)
    found = evidence(
        entries=(entry(1), older, TORN, *behind), manifest=with_manifest(writer_epoch=4)
    )
    assert isinstance(plan(found).cause, Corruption)
    assert plan(found).torn == ()
    dropped = plan(found, DROP)
    assert (dropped.error, dropped.torn, dropped.entries) == (None, (TORN, older), 1)
    assert dropped.sentinel_epoch == epoch
    alone = plan(evidence(entries=(replace(TORN, position=1),)), DROP)
    assert (alone.action, len(alone.torn)) == (RESCUE, 1)


@pytest.mark.parametrize(
    "entries",
    [
        (entry(1), replace(TORN, position=2), entry(3)),
        (entry(1), replace(TORN, position=2), entry(3), replace(TORN, position=4)),
        (entry(1), entry(2), replace(TORN, torn=False)),
        (entry(1), entry(2), replace(TORN, torn=False), replace(TORN, position=4)),
        (entry(1), TORN),
    ],
    ids=["rows behind", "two of them", "damaged", "damaged before", "a hole"],
)
def test_nothing_else_is_dropped(entries: tuple[WalEntry, ...]) -> None:
    found = plan(evidence(entries=entries), DROP)
    assert isinstance(found.cause, Corruption)
    assert (found.action, found.torn) == (REFUSE, ())
    assert "Put back what is missing or damaged" in str(found.error)


@pytest.mark.parametrize(
    "changes",
    [
        {"manifest": with_manifest(status=ShardStatus.SEALED)},
        {"files": (wal_file(3, 599),)},
        {"files": ()},
    ],
    ids=["sealed", "young", "no sign"],
)
def test_a_torn_end_is_dropped_where_a_claim_is_allowed_only(changes: dict[str, Any]) -> None:
    found = plan(evidence(entries=(replace(TORN, position=1),), **changes), DROP)
    assert isinstance(found.cause, Refused)
    assert found.torn == ()


def test_a_torn_entry_that_is_covered_is_nobody_s_worry() -> None:
    covered = with_manifest(replay_after_wal_entry_position=3)
    assert plan(evidence(entries=(TORN,), manifest=covered), DROP).action == NOTHING
