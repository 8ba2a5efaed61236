"""Which WAL entries a replay takes, against the spec's words and against a naive model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.format.replay import (
    SENTINEL_BYTES_MAX,
    Standing,
    WalEntry,
    replay,
    select_above,
)
from memwal.model import ShardId, ShardManifest, StoredFile

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")


def manifest(**changes: Any) -> ShardManifest:
    given_ = {"version": 1, "writer_epoch": 1, "current_generation": 1, **changes}
    return ShardManifest(shard_id=SHARD, **given_)


def entry(
    position: int, epoch: int | None = 1, generation: int | None = 1, **facts: Any
) -> WalEntry:
    return WalEntry(
        position=position,
        size_bytes=1000,
        written_at_nanos=position,
        writer_epoch=epoch,
        generation=generation,
        rows=facts.pop("rows", 2),
        **facts,
    )


def sentinel(position: int, epoch: int) -> WalEntry:
    return entry(position, epoch, None, fence_sentinel=True, rows=0)


def test_a_replay_starts_behind_the_covered_position_and_ends_at_the_first_missing() -> None:
    decided = replay(
        manifest(replay_after_wal_entry_position=2, wal_entry_position_last_seen=2,
                 current_generation=2),
        [entry(1), entry(2), entry(3, generation=2), entry(4, generation=2)],
    )  # fmt: skip
    assert [e.position for e in decided.unflushed] == [3, 4]
    assert (decided.tip, decided.rows, decided.size_bytes) == (5, 4, 2000)
    assert decided.standings == {
        1: Standing.COVERED,
        2: Standing.COVERED,
        3: Standing.UNFLUSHED,
        4: Standing.UNFLUSHED,
    }
    assert decided.problems == ()


def test_entries_of_older_epochs_count_and_those_of_newer_ones_do_not() -> None:
    """Appendix 1: writer_epoch=6 is <= the current epoch (7) -> valid, will be replayed."""
    stored = [entry(1, 6), entry(2, 7), entry(3, 8)]
    decided = replay(manifest(writer_epoch=7), stored)
    assert [e.position for e in decided.unflushed] == [1, 2]
    assert decided.standings[3] is Standing.FORGED
    assert decided.problems == ("position 3 has writer epoch 8, above the manifest's 7",)
    assert replay(manifest(writer_epoch=8), stored).problems == ()


def test_a_sentinel_takes_its_position_and_adds_nothing() -> None:
    decided = replay(manifest(writer_epoch=2), [entry(1), sentinel(2, 2), entry(3, 2)])
    assert [e.position for e in decided.unflushed] == [1, 3]
    assert decided.standings[2] is Standing.SENTINEL
    assert decided.tip == 4


def test_a_late_entry_of_a_fenced_writer_is_replayed_and_pointed_out() -> None:
    decided = replay(manifest(writer_epoch=2), [sentinel(1, 2), entry(2, 1), entry(3, 2)])
    assert [e.position for e in decided.unflushed] == [2, 3]
    assert decided.problems == ()
    assert decided.warnings == (
        "position 2 has writer epoch 1 after 2: a fenced writer wrote it; it is replayed all the "
        "same",
    )


def test_a_late_entry_of_a_flushed_generation_is_lost() -> None:
    """Seen where an entry is deleted: the next sentinel fills the hole, the rest is passed over."""
    decided = replay(
        manifest(writer_epoch=3, current_generation=2),
        [sentinel(1, 3), entry(2, 1, generation=1), sentinel(3, 2)],
    )
    assert decided.unflushed == ()
    assert decided.standings[2] is Standing.LOST
    assert decided.problems == (
        "position 2 has writer epoch 1 after 3, and generation 1 was flushed already: its rows are "
        "in none",
    )


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_hole_is_corruption(missing: int) -> None:
    """Spec: if WAL entry N is not flushed fully, WAL entry N+1 must not exist in storage."""
    decided = replay(manifest(), [entry(p) for p in range(1, 5) if p != missing])
    assert [e.position for e in decided.unflushed] == list(range(1, missing))
    assert {decided.standings[p] for p in range(missing + 1, 5)} == {Standing.UNREACHED}
    assert decided.problems == (
        f"position {missing} is missing, but 4 was written: entries are lost in between",
    )


def test_a_position_that_a_writer_saw_counts_as_written() -> None:
    decided = replay(manifest(wal_entry_position_last_seen=3), [entry(1), entry(2)])
    assert decided.problems == (
        "position 3 is missing, but 3 was written: entries are lost in between",
    )
    assert replay(manifest(wal_entry_position_last_seen=2), [entry(1), entry(2)]).problems == ()


def test_holes_below_the_covered_position_are_no_matter() -> None:
    covered = manifest(
        replay_after_wal_entry_position=4, wal_entry_position_last_seen=4, current_generation=3
    )
    decided = replay(covered, [entry(2), entry(5, generation=3)])
    assert [e.position for e in decided.unflushed] == [5]
    assert decided.problems == ()


@pytest.mark.parametrize("epoch", [None, 1])
def test_a_torn_entry_is_a_problem_wherever_it_stands(epoch: int | None) -> None:
    """Also when its schema, which tells the epoch, was read before what is broken."""
    torn = WalEntry(
        position=2, size_bytes=3, written_at_nanos=0, problem="not an entry", writer_epoch=epoch
    )
    for stored in ([entry(1), torn], [entry(1), torn, entry(3)]):
        decided = replay(manifest(), stored)
        assert decided.standings[2] is Standing.TORN
        assert decided.problems == ("not an entry",)


def test_an_entry_that_is_too_large_is_no_damage_and_is_told() -> None:
    large = WalEntry(position=2, size_bytes=3, written_at_nanos=0, problem="too much", refused=True)
    decided = replay(manifest(), [entry(1), large, entry(3)])
    assert decided.standings[2] is Standing.TOO_LARGE
    assert (decided.problems, decided.refused) == ((), ("too much",))
    assert [e.position for e in decided.unflushed] == [1, 3]


@pytest.mark.parametrize(
    ("generations", "text"),
    [
        ([5], "position 1 has generation 5, where 0 to 4 may follow"),
        ([4, 4, 6], "position 3 has generation 6, where 4 to 5 may follow"),
        ([4, 5, 4], "position 3 has generation 4, where 5 to 6 may follow"),
        ([4, 3], "position 2 has generation 3, where 4 to 5 may follow"),
        ([2, 5], "position 2 has generation 5, where 2 to 4 may follow"),
    ],
)
def test_generations_out_of_turn_are_problems(generations: list[int], text: str) -> None:
    stored = [entry(p, generation=g) for p, g in enumerate(generations, start=1)]
    assert replay(manifest(current_generation=4), stored).problems == (text,)


def test_entries_of_a_flushed_generation_are_covered_wherever_they_stand() -> None:
    """pylance 14.0.2 understates the replay position when a MemTable fills up (seen)."""
    stored = [entry(p, generation=g) for p, g in enumerate([2, 3, 3, 4], start=1)]
    decided = replay(manifest(current_generation=4), stored)
    assert [e.position for e in decided.unflushed] == [4]
    assert decided.standings[3] is Standing.COVERED
    assert decided.problems == ()
    assert replay(manifest(current_generation=5), stored).unflushed == ()


def test_several_memtables_may_be_unflushed() -> None:
    stored = [entry(p, generation=g) for p, g in enumerate([4, 4, 5, None, 6], start=1)]
    decided = replay(manifest(current_generation=4), stored)
    assert len(decided.unflushed) == 5
    assert decided.problems == ()


def test_an_entry_without_an_end_marker_is_pointed_out() -> None:
    decided = replay(manifest(), [entry(1, ended=False)])
    assert len(decided.unflushed) == 1
    assert decided.warnings == ("position 1 has no end marker; batches may have been cut off",)


def test_status_counts_what_is_larger_than_a_sentinel() -> None:
    sizes = [5000, SENTINEL_BYTES_MAX + 1, SENTINEL_BYTES_MAX, 904]
    listed = [
        (n, StoredFile(path=str(n), size_bytes=size, modified_at_nanos=0))
        for n, size in enumerate(sizes, start=1)
    ]
    for covered, left in ((0, [1, 2, 4]), (2, [4]), (4, [])):
        found = select_above(manifest(replay_after_wal_entry_position=covered), listed)
        assert [position for position, _ in found] == left


@given(
    replayed_to=st.integers(0, 5),
    epoch=st.integers(1, 4),
    stored=st.dictionaries(
        st.integers(1, 10), st.tuples(st.integers(1, 5), st.booleans(), st.booleans())
    ),
    last_seen=st.integers(0, 10),
)
def test_against_a_walk_that_takes_the_spec_by_its_words(
    replayed_to: int, epoch: int, stored: dict[int, tuple[int, bool, bool]], last_seen: int
) -> None:
    """A trusted replay is exactly the walk; one that differs in anything is never trusted."""
    entries = [
        WalEntry(position=p, size_bytes=1, written_at_nanos=0, problem="torn")
        if torn
        else (sentinel(p, e) if fence else entry(p, e))
        for p, (e, fence, torn) in stored.items()
    ]
    decided = replay(
        manifest(
            writer_epoch=epoch,
            replay_after_wal_entry_position=replayed_to,
            wal_entry_position_last_seen=last_seen,
        ),
        entries,
    )
    walked, sound, position = [], True, replayed_to + 1
    while position in stored:
        e, fence, torn = stored[position]
        sound = sound and not torn and e <= epoch
        if not torn and e <= epoch and not fence:
            walked.append(position)
        position += 1
    sound = sound and position > max([*stored, last_seen])
    assert [e.position for e in decided.unflushed] == walked
    assert (not decided.problems) == sound
    assert decided.tip == position
    assert decided.standings.keys() == stored.keys()
