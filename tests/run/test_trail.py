"""What one run writes into an audit trail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from memwal.errors import StoreUnavailable
from memwal.jobs.garbage.model import Action, Item
from memwal.jobs.garbage.report import GarbageTableReport
from memwal.report import AuditItem
from memwal.run.trail import RunTrail, finish
from memwal.store.records.audit import FoundDocument, StoredTrail
from memwal.testing import Fault, FaultyObjects, ManualClock, MemoryObjects


def report(gone: Sequence[AuditItem] = (), **facts: Any) -> GarbageTableReport:
    """The report of a garbage collection that deleted these."""
    told = tuple(
        Item(
            kind=item.kind,
            shard_id=None,
            path=item.path,
            bytes=0,
            action=Action.DELETE,
            reason="old",
            done=True,
        )
        for item in gone
    )
    return GarbageTableReport(**{"table": "t", "outcome": "done", "items": told, **facts})


def make(objects: object) -> RunTrail:
    return RunTrail(
        table="/t",
        job="garbage",
        run_id="run",
        clock=ManualClock(),
        open_trail=lambda: StoredTrail(objects, "t"),  # type: ignore[arg-type]
    )


def items(number: int, *, first: int = 0) -> list[AuditItem]:
    paths = range(first, first + number)
    return [AuditItem(action="delete", kind="wal_entry", path=f"wal/{at}") for at in paths]


def read(objects: MemoryObjects) -> list[FoundDocument]:
    trail = StoredTrail(objects, "t")
    return list(trail.read(trail.numbers()))


def test_what_one_document_cannot_hold_is_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memwal.run.trail.ITEMS_PER_DOCUMENT_MAX", 3)
    objects = MemoryObjects()
    run, many = make(objects), items(4)
    run.intend(many)
    link = run.finish(report(many))
    found = read(objects)
    assert [len(f.items) for f in found] == [3, 1] * 2
    entries = [f.entry for f in found if f.entry is not None]
    assert [(e.phase, e.more) for e in entries] == [
        ("intent", True),
        ("intent", False),
        ("outcome", True),
        ("outcome", False),
    ]
    assert entries[2].intents == entries[3].intents == (1, 2)
    assert link == found[-1].link


def test_only_what_is_new_is_named_again() -> None:
    objects = MemoryObjects()
    run = make(objects)
    run.intend(items(3))
    run.intend(items(3))
    run.intend([])
    run.intend(items(3, first=2))
    assert [[i.path for i in f.items] for f in read(objects)] == [
        ["wal/0", "wal/1", "wal/2"],
        ["wal/3", "wal/4"],
    ]
    assert run.is_open
    run.finish(report())
    assert not run.is_open
    assert run.finish(report()) is None, "it is told once"
    assert len(read(objects)) == 3


def test_what_could_not_be_named_is_named_the_next_time() -> None:
    objects = MemoryObjects()
    fault = Fault(operation="put_if_absent", error=StoreUnavailable("away"))
    run = make(FaultyObjects(objects, fault))
    with pytest.raises(StoreUnavailable, match="nothing of this was deleted: away"):
        run.intend(items(1))
    assert not run.is_open
    run.intend(items(1))
    assert [len(f.items) for f in read(objects)] == [1]


def test_an_outcome_that_cannot_be_written_is_a_warning() -> None:
    fault = Fault(operation="put_if_absent", error=StoreUnavailable("away"))
    run = make(FaultyObjects(MemoryObjects(), fault))
    told = report(items(1), warnings=("w",))
    found = finish(run, told)
    assert found.warnings[0] == "w"
    assert "the audit trail lacks what this run did" in found.warnings[1]
    assert finish(None, told) is told


def test_an_error_is_only_its_code() -> None:
    objects = MemoryObjects()
    text = "the row with key 4711 does not fit (MW-K11)"
    make(objects).finish(report(items(1), outcome="failed", error=text))
    (found,) = read(objects)
    assert found.entry is not None and found.entry.error == "MW-K11"
    assert all(b"4711" not in data for data, _ in objects.bucket.objects.values())
