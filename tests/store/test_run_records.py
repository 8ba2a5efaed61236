"""Run records, on every store: newest first, bounded, and tolerant of bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memwal.errors import StoreUnavailable
from memwal.format import layout
from memwal.ports import Objects
from memwal.report import RunRecord
from memwal.store.records.runs import RECORD_BYTES_MAX, StoredRunRecords, record_path
from memwal.testing import Fault, FaultyObjects, MemoryObjects

Open = Callable[[], Objects]
START = datetime(2026, 11, 21, 3, tzinfo=UTC)


def record(number: int, **changes: Any) -> RunRecord:
    """The run that finished `number` seconds after the start."""
    finished = START + timedelta(seconds=number)
    return RunRecord.model_validate(
        {
            "run_id": f"{number:032x}",
            "job": "merge",
            "started_at": START.isoformat(timespec="milliseconds"),
            "finished_at": finished.isoformat(timespec="milliseconds"),
            "seconds": float(number),
            "outcome": "done",
            "exit_code": 0,
            "holder": "host:1",
            "version_before": 1,
            "version_after": 2,
            "summary": {"generations": 3, "bytes_read": None},
            "backlog": {"generations_before": 3},
            "requests": {"get": 1},
            **changes,
        }
    )


@pytest.fixture
def records(objects: MemoryObjects) -> StoredRunRecords:
    return StoredRunRecords(objects)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


def numbers(records: StoredRunRecords, limit: int = 100) -> list[int]:
    found = records.newest(limit)
    assert found.unreadable == 0
    return [int(r.run_id, 16) for r in found.records]


def test_the_newest_come_first_whatever_the_order_they_were_written_in(open_store: Open) -> None:
    records = StoredRunRecords(open_store())
    assert (records.newest(10).records, records.prune(5)) == ((), 0)
    for number in (3, 1, 20, 2, 10, 1):  # adding twice is adding once
        records.add(record(number))
    assert numbers(records) == [20, 10, 3, 2, 1]
    assert numbers(records, 2) == [20, 10]
    assert records.prune(3) == 2
    assert numbers(records) == [20, 10, 3]
    (newest, *_) = open_store().list("")
    assert newest.path == record_path(record(20))
    assert newest.path.startswith("_maintenance/runs/")
    assert json.loads(open_store().get(newest.path))["format"] == 1


def test_a_record_comes_back_as_it_was(records: StoredRunRecords) -> None:
    written = record(5, error="it is\nbroken: Ω", outcome="failed", exit_code=8, engine="spark")
    records.add(written)
    assert records.newest(1).records == (written,)


def test_jobs_of_one_run_that_end_at_one_time_are_both_kept(records: StoredRunRecords) -> None:
    for job in ("merge", "snapshot"):
        records.add(record(1, job=job))
    assert [r.job for r in records.newest(10).records] == ["snapshot", "merge"]


def test_an_id_that_somebody_gave_is_kept(records: StoredRunRecords) -> None:
    given = record(1, run_id="dag/manual__2026-11-22T00:00:00+00:00/task/1")
    records.add(given)
    assert records.newest(10).records == (given,)


def test_pruning_takes_the_oldest_and_only_over_the_slack(records: StoredRunRecords) -> None:
    for number in range(8):
        records.add(record(number))
    assert records.prune(8) == 0
    assert records.prune(5, slack=3) == 0
    assert len(numbers(records)) == 8
    assert records.prune(5, slack=2) == 3
    assert numbers(records) == [7, 6, 5, 4, 3]
    assert records.prune(1) == 4
    assert numbers(records) == [7]


# ---- the stored ones


def test_reading_n_is_one_listing_and_n_reads(objects: MemoryObjects) -> None:
    records = StoredRunRecords(objects)
    for number in range(9):
        records.add(record(number))
    before = (objects.counts.list, objects.counts.get)
    assert len(records.newest(4).records) == 4
    assert (objects.counts.list, objects.counts.get) == (before[0] + 1, before[1] + 4)


def spoilt(old: str, new: str) -> bytes:
    """A record of the name's own id, with something replaced in it."""
    text = record(0, run_id="f" * 32).model_dump_json()
    assert old in text
    return text.replace(old, new).encode()


BAD = {
    "torn": b'{"format": 1, "run_id": "',
    "binary": b"\xff\xfe\x00",
    "deep": b"[" * 20_000,
    "huge": b" " * (RECORD_BYTES_MAX + 1),
    "newer format": spoilt('"format":1', '"format":2'),
    "another's name": spoilt("f" * 32, "e" * 32),
    "local time": spoilt("+00:00", ""),
    "not a number": spoilt('"seconds":0.0', '"seconds":NaN'),
    "odd outcome": spoilt('"done"', '"<b>"'),
    "odd job": spoilt('"merge"', '"../merge"'),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_document_is_counted_and_hides_no_other(
    objects: MemoryObjects, records: StoredRunRecords, what: str
) -> None:
    bad = layout.run_record_path(1_900_000_000 * 10**9, "f" * 32)
    objects.put(bad, BAD[what])
    records.add(record(1))
    found = records.newest(10)
    assert (len(found.records), found.unreadable) == (1, 1)
    # It counts as one of those that are kept, and goes with the others.
    assert records.prune(1) == 1
    assert records.newest(10).unreadable == 1
    records.add(record(2_000_000_000, finished_at="2090-01-01T00:00:00.000+00:00"))
    assert records.prune(1) == 1
    assert records.newest(10).unreadable == 0


def test_fields_of_a_newer_build_do_no_harm(
    objects: MemoryObjects, records: StoredRunRecords
) -> None:
    document = {**record(3).model_dump(), "colour": {"of": ["the", "sky"]}}
    objects.put(record_path(record(3)), json.dumps(document).encode())
    assert records.newest(1).records == (record(3),)


def test_strangers_are_neither_read_nor_counted_nor_deleted(
    objects: MemoryObjects, records: StoredRunRecords
) -> None:
    for name in ("README", "latest.json", "sub/0.json", f"{'9' * 19}-{'0' * 32}.json.part"):
        objects.put(f"{layout.RUNS}/{name}", b"hands off")
    for number in range(3):
        records.add(record(number))
    assert numbers(records) == [2, 1, 0]
    assert records.prune(1) == 2
    assert len(list(objects.list(layout.RUNS))) == 5


def test_one_that_is_pruned_while_it_is_read_is_no_bad_document(
    objects: MemoryObjects, records: StoredRunRecords
) -> None:
    records.add(record(1))
    records.add(record(2))
    gone = record_path(record(1))
    pruned = Fault(operation="get_range", path=gone, hook=lambda: objects.delete([gone]))
    found = StoredRunRecords(FaultyObjects(objects, pruned)).newest(5)
    assert (found.records, found.unreadable) == ((record(2),), 0)


def test_a_lost_reply_is_no_error_and_an_outage_is_one(
    objects: MemoryObjects, records: StoredRunRecords
) -> None:
    lost = Fault(operation="put_if_absent", when="after", error=StoreUnavailable("no reply"))
    with pytest.raises(StoreUnavailable):
        StoredRunRecords(FaultyObjects(objects, lost)).add(record(1))
    records.add(record(1))
    assert numbers(records) == [1]
    down = Fault(operation="get_range", nth=None, error=StoreUnavailable("down"))
    with pytest.raises(StoreUnavailable):
        StoredRunRecords(FaultyObjects(objects, down)).newest(1)
    with pytest.raises(ValueError, match="at most"):  # nobody could read it
        records.add(record(2, error="x" * RECORD_BYTES_MAX))
    assert numbers(records) == [1]
