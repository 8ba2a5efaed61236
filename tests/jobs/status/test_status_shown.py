"""What people see of tables with many shards, and of many tables."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

from rich.console import Console

from memwal.cli.console import show_document, show_report
from memwal.jobs.status.report import ShardStatusReport, StatusTableReport
from memwal.jobs.status.show import SHARDS_SHOWN_MAX, show_tables
from memwal.report import JobReport, TableReport


def shard(number: int, *pending: int, **facts: Any) -> ShardStatusReport:
    name = f"{number:08x}-0000-4000-8000-000000000000"
    at = f"2026-01-01T00:00:{59 - number % 60:02}+00:00" if pending else None
    facts = {"outcome": "done", "pending_generations": pending, "pending_bytes": 1024, **facts}
    return ShardStatusReport(shard_id=name, oldest_pending_flushed_at=at, **facts)


def table(*shards: ShardStatusReport, name: str = "t", **facts: Any) -> StatusTableReport:
    return StatusTableReport(table=name, outcome="done", version=1, shards=shards, **facts)


def shown(*tables: TableReport, **views: Any) -> list[str]:
    out = io.StringIO()
    report = JobReport(job="status", outcome="done", tables=tables)
    show_report(report, Console(file=out, width=200), **views)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_of_many_shards_those_with_something_to_do_are_listed_first() -> None:
    idle = [shard(n) for n in range(1000)]
    busy = [
        shard(2000, 1, 2),
        shard(2001, 4),
        shard(2002, abandoned=True),
        shard(2003, 9, stuck="torn"),
    ]
    lines = shown(table(*idle, *busy, oldest_pending_seconds=600.0))
    listed = [line.split("-")[0] for line in lines if "-0000-4000-" in line]
    # What no merge mends comes first, then what is pending, the oldest first.
    assert listed[:4] == [f"{n:08x}" for n in (2003, 2002, 2001, 2000)]
    assert len(listed) == SHARDS_SHOWN_MAX
    assert "  and 954 shards more: --json has them" in lines

    late = shown(table(*(shard(n, 1) for n in range(1000))))
    assert sum("-0000-4000-" in line for line in late) == SHARDS_SHOWN_MAX


def test_of_several_tables_each_has_a_line() -> None:
    good = table(
        shard(1, 1), name="orders", due=True, pending_generations=3, pending_bytes=2**20,
        oldest_pending_seconds=90.0, index_lag_generations=2, warnings=("w",),
    )  # fmt: skip
    gone = TableReport(table="gone", outcome="failed", error="gone: no such table")
    lines = shown(good, gone, show_tables=show_tables)
    assert [" ".join(line.split()) for line in lines[1:5]] == [
        "gone ? ? ? ? ? failed",
        "orders 3 1.0 MiB 1.5 m 2 ? OK",
        "gone: no such table",
        "2 tables; 1 to look after",
    ]
    first = shown(good, gone, show_tables=partial(show_tables, lines=2))
    assert first[2:] == [lines[3], "2 tables, 1 of them shown; 1 to look after", lines[-1]]


def test_of_a_long_list_of_a_document_the_first_are_shown() -> None:
    out = io.StringIO()
    shards = [{"shard_id": f"s{n}"} for n in range(60)]
    show_document({"shards": shards}, Console(file=out, width=100))
    assert out.getvalue().endswith("s49     \n  and 10 more: --json has them\n")
