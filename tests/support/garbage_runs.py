"""Garbage runs on real tables, for tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from memwal.config import ResolvedTable, Settings
from memwal.format import layout
from memwal.jobs.garbage.job import GarbageOptions, run_garbage
from memwal.jobs.garbage.model import GarbageLimits, Item
from memwal.jobs.garbage.report import GarbageTableReport
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.garbage.store import LanceExpiry, StoredGarbageEvidence
from memwal.model import ShardId, ShardManifest
from memwal.ports import Steps, no_steps
from memwal.report import JobReport
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.progress import Quiet

_ASKED = {field.name for field in fields(GarbageRequest)}


def run(
    *tables: Table,
    execute: bool = True,
    grace: float = 0,
    retention: float | None = None,
    lease: bool = True,
    engine: str = "local",
    steps: Steps = no_steps,
    **limits: Any,
) -> JobReport:
    """`memwal garbage`, short times allowed."""
    options = GarbageOptions(
        tables=[
            ResolvedTable(name=t.uri, uri=t.uri, settings=Settings(), storage_options=t.options)
            for t in tables
        ],
        engine=engine,
        lease=lease,
        request=GarbageRequest(
            execute=execute,
            retention_seconds=retention,
            grace_seconds=grace,
            allow_short_retention=True,
            **{name: limits.pop(name) for name in _ASKED & limits.keys()},
        ),
        limits=GarbageLimits(**limits),
    )
    return run_garbage(options, Quiet(), steps)


def garbage(table: Table, **options: Any) -> GarbageTableReport:
    """One table's report."""
    (report,) = run(table, **options).tables
    assert isinstance(report, GarbageTableReport), report
    return report


def collect(table: Table, **options: Any) -> list[GarbageTableReport]:
    """Runs until nothing is left to do."""
    reports = []
    for _ in range(6):
        reports.append(garbage(table, **options))
        assert reports[-1].error is None, reports[-1]
        if reports[-1].outcome == "nothing_to_do":
            return reports
    raise AssertionError("garbage never comes to an end")


NUMBERED = ("shard_manifest", "lease_claim")
"""Kinds that a test means by name only: every run adds to them."""


def fates(report: GarbageTableReport, kind: str | None = None) -> dict[str, str]:
    """Action by the last part of the path."""
    return {i.path.rsplit("/", 1)[-1]: i.action for i in chosen(report, kind)}


def chosen(report: GarbageTableReport, kind: str | None = None) -> list[Item]:
    return [i for i in report.items if (i.kind not in NUMBERED if kind is None else i.kind == kind)]


def found(report: GarbageTableReport, path: str) -> Item:
    (item,) = [i for i in report.items if i.path == path]
    return item


def actions(report: GarbageTableReport) -> set[str]:
    return {i.action for i in chosen(report)}


def reasons(report: GarbageTableReport) -> set[str]:
    return {i.reason for i in chosen(report)}


def evidence_of(table: Table) -> StoredGarbageEvidence:
    """What reads the evidence of a table."""
    return StoredGarbageEvidence(table.stores.objects)


# ---- tables


def laid_out(
    uri: object,
    *,
    options: Mapping[str, str] | None = None,
    shards: int = 1,
    generations: int = 3,
    indexed: bool = True,
) -> Table:
    """Flushed, merged, caught up; every version still there."""
    table = builders.make_table(
        uri, rows=range(10), shards=shards, indexed=indexed, options=options
    )
    for place, shard in enumerate(table.shards):
        for number in range(generations):
            key = 100 * (place + 1) + number
            table.flush(shard, Put([key, key + 50], 10 * key))
    for done in table.merge_all():
        assert done.error is None
    catch_up(table)
    return table


def catch_up(table: Table) -> None:
    table.dataset.optimize.optimize_indices()


def expire(table: Table) -> None:
    """All versions but the latest, tagged and branched ones."""
    LanceExpiry(table.stores.tables).expire_versions(frozenset(table.versions()))


def collectable(uri: object, **facts: Any) -> Table:
    """Nothing but the latest version is left, so every generation may go."""
    table = laid_out(uri, **facts)
    expire(table)
    return table


def manifest(table: Table, shard: ShardId | None = None) -> ShardManifest:
    latest = table.stores.shard_manifests.latest(shard or table.shards[0])
    assert latest is not None
    return latest


def listed(table: Table, shard: ShardId | None = None) -> list[int]:
    return [g.generation for g in manifest(table, shard).flushed_generations]


def files(table: Table, prefix: str = "") -> dict[str, int]:
    """Everything stored, by path; our own leases, reserve and run records aside."""
    own = (f"{layout.MAINTENANCE}/lease/", layout.RESERVE, f"{layout.RUNS}/")
    return {
        info.path: info.size_bytes
        for info in table.stores.objects.list(prefix)
        if not info.path.startswith(own)
    }


def folders(table: Table, shard: ShardId | None = None) -> list[int]:
    """Numbers of the generation folders there are."""
    names = table.stores.objects.list_folders(layout.shard_folder(shard or table.shards[0]))
    numbers = map(layout.parse_generation_folder, names)
    return sorted(n for n in numbers if n is not None)


def positions(table: Table, shard: ShardId | None = None) -> list[int]:
    return [p for p, _ in table.stores.wal.list_entries(shard or table.shards[0])]


def sentinels(table: Table, shard: ShardId | None = None) -> list[int]:
    shard = shard or table.shards[0]
    heads = {
        p: table.stores.wal.head(i.path, i.size_bytes)
        for p, i in table.stores.wal.list_entries(shard)
    }
    return [p for p, head in heads.items() if head.fence_sentinel]


def age(table: Table, seconds: float, below: str = "") -> None:
    """Make every file of a local table older than it is."""
    for folder, _, names in os.walk(Path(table.uri) / below):
        for name in names:
            file = Path(folder) / name
            at = file.stat().st_mtime_ns - round(seconds * 1e9)
            os.utime(file, ns=(at, at))
