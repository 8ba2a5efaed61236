"""One table with thousands of shards: what the jobs ask for and take when little changed (B19).

Requests are counted at the S3 server, Lance's own among them; processor and memory are of the whole
command, on local files.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.counted_s3 import CountedS3, Seen
from bench.forged import forge
from bench.harness import MEMWAL, Bench, run_memwal, run_peak
from bench.tables import flush, rows_of
from memwal.cli.output import Document
from memwal.format import layout
from memwal.jobs.merge.report import MergeTableReport, ShardReport
from memwal.jobs.status.plan import AbandonedLimits, DueLimits, find_due_shards, measure_wal
from memwal.jobs.status.report import report_status
from memwal.jobs.status.show import show_table
from memwal.model import ShardId
from memwal.report import JobReport, TableReport
from memwal.run.stores import open_stores

TITLE = "Thousands of shards in one table"
CASE = "B19"

_FIRST = "status, first look"
_MAINTAIN = "maintain, nothing to do"
_COMMANDS: Mapping[str, Sequence[str]] = {
    "status": ("status",),
    "merge, nothing to do": ("merge", "--engine", "local"),
    "snapshot, nothing to do": ("snapshot", "--engine", "local"),
    _MAINTAIN: ("maintain", "--engine", "local"),
}
_MIB = 1024 * 1024


def run(bench: Bench) -> None:
    """B19."""
    sizes = (10, 1_000, 2_000) if bench.quick else (10, 3_000, 10_000)
    tables = {shards: forge(bench, shards) for shards in sizes}
    paths = {shards: table for shards, (table, _) in tables.items()}
    _measure_manifest(bench, paths)
    _plan(bench, paths[sizes[-1]], sizes[-1])
    _on_local_files(bench, paths)
    with CountedS3() as server:
        _count(bench, server, {shards: tables[shards] for shards in sizes[1:]})


# ---- what is measured


def _measure_manifest(bench: Bench, tables: Mapping[int, Path]) -> None:
    """What a shard adds to a manifest: its progress, each index's, and Lance's copies of these."""
    sizes = {
        shards: max((table / "_versions").glob("*.manifest"), key=lambda f: f.stat().st_mtime_ns)
        for shards, table in tables.items()
    }
    few, many = min(sizes), max(sizes)
    grown = sizes[many].stat().st_size - sizes[few].stat().st_size
    bench.figure(
        CASE,
        "bytes that a shard takes in the manifest of a snapshot's version, with one index",
        grown / (many - few),
        "B",
        at_most=147.0,
        measured=f"{sizes[many].stat().st_size:,} B of {many:,} shards",
    )


def _plan(bench: Bench, table: Path, shards: int) -> None:
    """Processor time of deciding and telling, with everything read already."""
    stores = open_stores(str(table), {})
    view, listed = stores.views.table_and_wal()
    now = stores.clock.now_nanos()
    manifests = {shard.shard_id: shard.manifest for shard in view.shards}
    limits = AbandonedLimits()

    def status() -> None:
        report = report_status(
            "t",
            view,
            wal=lambda s: measure_wal(manifests[s], listed[s], limits, now, lambda *entry: True),
            unindexed_rows=lambda name: 0,
            due=find_due_shards(view, DueLimits(), now),
            now_nanos=now,
        )
        _tell(report, lambda: show_table(report))

    def merge() -> None:
        found = tuple(
            ShardReport(shard_id=s.shard_id, outcome="nothing_to_do") for s in view.shards
        )
        _tell(MergeTableReport(table="t", outcome="nothing_to_do", shards=found), lambda: ())

    for what, work in (("status", status), ("merge", merge)):
        seconds = []
        for _ in range(max(3, bench.rounds)):
            before = time.process_time()
            work()
            seconds.append(time.process_time() - before)
        bench.figure(
            CASE,
            f"{what} of {shards:,} shards: planning, report and document, processor seconds",
            min(seconds),
            "s",
            at_most=1.0,
        )


def _tell(report: TableReport, show: Callable[[], object]) -> None:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere)
        for part in show() or ():  # type: ignore[attr-defined]
            console.print(part)
    made = JobReport(job="bench", outcome="done", tables=(report,))
    json.loads(Document.of(made).text)


def _on_local_files(bench: Bench, tables: Mapping[int, Path]) -> None:
    """Processor and memory of whole commands, and how they grow."""
    none, few, many = sorted(tables)
    for name, (job, *rest) in _COMMANDS.items():
        found = {n: _run_measured(bench, [job, t, "--json", *rest]) for n, t in tables.items()}
        bench.figure(
            CASE,
            f"{name}, {many:,} shards on local files: peak memory of the process",
            found[many][1] / _MIB,
            "MiB",
            at_most=300.0,
            measured=f"{found[many][0]:.2f} s of processor, {found[few][0]:.2f} s of {few:,}",
        )
        seconds = {shards: cpu for shards, (cpu, _) in found.items()}
        bench.figure(
            CASE,
            f"{name}, local files: processor time a shard, {many:,} shards against {few:,}",
            _slope(seconds, none, many) / _slope(seconds, none, few),
            "x",
            at_most=1.25,
            measured=f"{1e6 * _slope(seconds, none, many):.0f} µs a shard",
        )


def _slope(seconds: Mapping[int, float], few: int, many: int) -> float:
    return (seconds[many] - seconds[few]) / (many - few)


def _run_measured(bench: Bench, words: Sequence[str | Path]) -> tuple[float, int]:
    """Processor seconds and peak bytes of a command; of several runs the least."""
    cache = str(bench.new_folder("cache"))
    found = [run_peak(MEMWAL, *words, XDG_CACHE_HOME=cache) for _ in range(bench.rounds)]
    return min(ended.cpu_seconds for _, ended in found), min(peak for peak, _ in found)


def _count(bench: Bench, server: CountedS3, tables: Mapping[int, tuple[Path, ShardId]]) -> None:
    """Requests: nothing remembered, everything, and after one shard changed."""
    seen: dict[tuple[str, int], Seen] = {}
    pages: dict[int, int] = {}
    for shards, (table, like) in tables.items():
        stored = bench.copy(table)
        files = sum(1 for file in (stored / layout.MEM_WAL).rglob("*") if file.is_file())
        pages[shards] = -(-files // 1_000)
        uri, cache = server.place(stored), bench.new_folder("cache")

        def command(name: str, *words: str, uri: str = uri, cache: Path = cache) -> Seen:
            server.forget()
            job, *rest = (*_COMMANDS[name], *words)
            run_memwal(job, uri, *server.arguments, *rest, XDG_CACHE_HOME=str(cache))
            return server.seen()

        seen[_FIRST, shards] = command("status")
        for name in _COMMANDS:
            seen[name, shards] = command(name)
        flush(uri, like, rows_of(np.arange(3), 1, 0), options=server.storage_options)
        one = ("--shard", like)
        seen["merge of one shard", shards] = command("merge, nothing to do", *one)
    for (name, shards), told in seen.items():
        first = name == _FIRST
        bench.figure(
            CASE,
            f"{name}, {shards:,} shards: requests "
            + ("a shard" if first else f"beyond the {pages[shards]} pages of a listing"),
            told.requests / shards if first else float(told.requests - pages[shards]),
            "",
            **({"at_most": 1.1} if first else {} if name == _MAINTAIN else {"at_most": 100.0}),
            costs={**told.kinds, "bytes read": told.bytes_received},
        )
