"""What every job goes through before its own work."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from memwal.config import ResolvedTable, Settings
from memwal.errors import (
    LeaseHeld,
    StandDown,
    StoreUnavailable,
    Unsupported,
    Usage,
    WorkerDied,
)
from memwal.jobs.garbage.apply.deletions import Deletion
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.garbage.unit import GarbageUnit, unpack_deleted
from memwal.model import TableView
from memwal.run import stores
from memwal.run.engines.pool import LocalEngine
from memwal.run.options import RunOptions
from memwal.run.stores import OPENED_BEFORE_SECONDS_MAX, OpenedBefore, open_stores
from memwal.run.tables import OpenTable, open_tables
from memwal.run.units import lost_unit
from memwal.run.workers import cancel


def resolved(uri: Path, name: str = "t") -> ResolvedTable:
    return ResolvedTable(name=name, uri=str(uri), storage_options={}, settings=Settings())


def options(*tables: ResolvedTable) -> RunOptions:
    return RunOptions(tables=tables)


class FakeLease:
    def check(self) -> None:
        raise LeaseHeld("superseded")


def test_an_untested_pylance_is_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "lance_version", lambda: "99.0.1")
    with pytest.raises(Unsupported, match=r"99\.0\.1"):
        stores.check_lance_version(False)
    stores.check_lance_version(True)


@pytest.mark.parametrize("other", ["x/../t", "link"])
def test_a_table_is_worked_on_once_whatever_it_is_called(tmp_path: Path, other: str) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to("t")
    given = options(resolved(tmp_path / "t", "a"), resolved(tmp_path / other, "b"))
    with open_tables(given, lambda stores: cast("Any", None)) as (first, second):
        assert first.error is None
        assert isinstance(second.error, Usage)


def test_a_lost_lease_stops_a_commit(tmp_path: Path) -> None:
    table = OpenTable(resolved=resolved(tmp_path))
    table.before_commit()
    table.lease = cast("Any", FakeLease())
    with pytest.raises(LeaseHeld):
        table.before_commit()


def test_leases_are_given_up_whatever_happens(tmp_path: Path) -> None:
    failed: list[str] = []

    def note(table: OpenTable, error: BaseException) -> None:
        failed.append(str(error))

    with (
        suppress(ZeroDivisionError),
        open_tables(options(resolved(tmp_path)), lambda stores: cast("Any", None), note) as tables,
    ):
        tables[0].take_lease("merge", options())
        raise ZeroDivisionError("oops")
    claim = open_stores(str(tmp_path), {}).leases.current()
    assert claim is not None
    assert (claim.released, failed) == (True, ["oops"])


def test_a_view_of_before_is_fresh_for_some_time_only(tmp_path: Path) -> None:
    class Clock:
        now = 0.0

        def monotonic_seconds(self) -> float:
            return self.now

        def now_nanos(self) -> int:
            return 0

    class Counts:
        def as_dict(self) -> dict[str, int]:
            return {}

    class Stores:
        clock = Clock()
        objects = type("Objects", (), {"counts": Counts()})

    opened, table = OpenedBefore(), OpenTable(resolved=resolved(tmp_path))
    table.stores, table.view = (
        cast("Any", Stores()),
        cast("TableView", SimpleNamespace(shards=("one",))),
    )
    opened.keep(table.resolved.uri, table.stores, table.view, 0.0)

    def given() -> TableView | None:
        again = OpenTable(resolved=resolved(tmp_path))
        again.open_again(opened)
        return again.view

    Clock.now = OPENED_BEFORE_SECONDS_MAX - 1
    assert given() is table.view
    Clock.now = OPENED_BEFORE_SECONDS_MAX + 1
    assert given() is None


def test_a_unit_that_killed_its_process_has_a_result_that_says_so() -> None:
    """Of each kind of unit, with what the unit was about."""
    died = WorkerDied("the process died")
    where: dict[str, Any] = {"uri": "memory://t", "storage_options": {}}

    deletions = tuple(Deletion(path=path, stages=()) for path in "ab")
    unit = GarbageUnit(**where, deletions=deletions, limits=GarbageLimits())
    deleted = unpack_deleted(unit, lost_unit(unit, died))
    assert [(d.path, d.objects, d.error) for d in deleted] == [
        ("a", 0, "the process died"),
        ("b", 0, "the process died"),
    ]
    assert (died.outcome, died.exit_code) == ("failed", 1)
    assert lost_unit(None, died).made is died


def test_a_unit_that_raises_is_nothing_to_those_of_later_runs() -> None:
    engine = LocalEngine(workers_max=2)
    ran: list[int] = []

    def work(unit: int) -> int:
        cancel.check()
        if unit == 0:
            raise StoreUnavailable("away")
        ran.append(unit)
        return unit

    with pytest.raises(StoreUnavailable):
        engine.run(work, range(4), lambda done: None)
    assert sorted(ran) == [1, 2, 3], "those beside it have run to their end"
    assert engine.run(work, [5, 6], lambda done: None) == [5, 6]


def test_an_interrupt_stops_every_unit_before_its_next_commit() -> None:
    engine, seen = LocalEngine(workers_max=1), threading.Event()

    def work(unit: int) -> None:
        seen.wait(30)
        cancel.check()

    def interrupted(done: int) -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(engine.run, lambda unit: None, [1], interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.result()
    seen.set()
    with pytest.raises(StandDown):
        engine.run(work, [1], lambda done: None)
    LocalEngine().run(work, [1], lambda done: None)  # a new run begins
