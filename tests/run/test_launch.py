"""What every job goes through before its own work."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import StructType

import memwal.ingest
import memwal.read
from memwal.config import ResolvedTable, Settings
from memwal.errors import LeaseHeld, NotATable, StandDown, StoreUnavailable, Unsupported, Usage
from memwal.model import TableView
from memwal.read.spark import MemWalDataSource
from memwal.run import stores
from memwal.run.engines.pool import LocalEngine
from memwal.run.options import RunOptions
from memwal.run.stores import (
    OPENED_BEFORE_SECONDS_MAX,
    TESTED_LANCE_MAJORS,
    OpenedBefore,
    open_stores,
)
from memwal.run.tables import OpenTable, open_tables
from memwal.run.workers import cancel
from memwal.testing import ManualClock

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def resolved(uri: Path, name: str = "t") -> ResolvedTable:
    return ResolvedTable(name=name, uri=str(uri), storage_options={}, settings=Settings())


def options(*tables: ResolvedTable) -> RunOptions:
    return RunOptions(tables=tables)


class FakeLease:
    def check(self) -> None:
        raise LeaseHeld("superseded")


def test_only_tested_majors_of_pylance_are_taken_unless_others_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    (needed,) = [text for text in project["jobs"] if text.startswith("pylance")]
    first, last = TESTED_LANCE_MAJORS[0], TESTED_LANCE_MAJORS[-1]
    assert needed == f"pylance>={first},<{last + 1}"
    for major in (first - 1, first, last, last + 1):
        monkeypatch.setattr(stores, "lance_version", lambda major=major: f"{major}.1.0-beta.2")
        stores.check_lance_version(allowed=True)
        known = major in TESTED_LANCE_MAJORS
        with nullcontext() if known else pytest.raises(Unsupported, match="--allow-untested-lance"):
            stores.check_lance_version(allowed=False)


def open_by_spark(**options: str) -> Callable[..., object]:
    def plan(uri: str, *, allow_untested_lance: bool = False) -> object:
        source = MemWalDataSource(
            {"path": uri, "allow_untested_lance": str(allow_untested_lance), **options}
        )
        if "convert" in options:
            return source.writer(StructType(), overwrite=False)
        return source.schema()

    return plan


@pytest.mark.parametrize(
    "open_it",
    [
        memwal.read.open_table,
        memwal.ingest.open_writer,
        partial(memwal.shard_of, rows=[]),
        lambda uri, **how: memwal.open_table(uri, **how).open_writer(),
        lambda uri, **how: memwal.open_table(uri, **how).commit_changes("mart", 1),
        open_by_spark(),
        open_by_spark(changes_since="1"),
        open_by_spark(convert="utc"),
    ],
)
def test_an_untested_pylance_opens_no_table_for_a_program(
    open_it: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "lance_version", lambda: f"{TESTED_LANCE_MAJORS[-1] + 1}.0.0")
    with pytest.raises(Unsupported, match="MW-E01"):
        open_it(str(tmp_path))
    with suppress(NotATable):  # allowed, it goes on to look
        open_it(str(tmp_path), allow_untested_lance=True)


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
    clock, view = ManualClock(), cast("TableView", SimpleNamespace(shards=("one",)))
    counts = SimpleNamespace(as_dict=dict)
    seen: Any = SimpleNamespace(clock=clock, objects=SimpleNamespace(counts=counts))
    opened, where = OpenedBefore(), resolved(tmp_path)
    opened.keep(where.uri, seen, view, 0.0)
    for passed, given in ((OPENED_BEFORE_SECONDS_MAX - 1, view), (2, None)):
        clock.advance(passed)
        again = OpenTable(resolved=where)
        again.open_again(opened)
        assert again.view is given


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
