"""What it costs to look at a table again and again, as a watch does (B17).

Requests are counted at the S3 server. Dollars are what a month of them costs at the published price
of a LIST, whatever they are, at half the freshness target: 30 s for one of 60 s.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.counted_s3 import CountedS3, Seen
from bench.harness import DOLLARS, Bench, run_memwal
from bench.tables import flush, make_base, new_shards, pending, rows_of
from memwal.config import Config, resolve_table
from memwal.format import codec, layout
from memwal.jobs.watch.plan import TableLook
from memwal.jobs.watch.store import StoredLooks
from memwal.model import ShardId
from memwal.run.stores import open_stores

TITLE = "Looks at idle tables"

_LOOKS_A_MONTH = 30 * 24 * 3600 / 30
_LOCAL_TABLES = 200
_LOCAL_SHARDS = 4


def run(bench: Bench) -> None:
    """B17."""
    few, many = 16, 1_000 if bench.quick else 10_000
    table, shards = _idle_table(bench, few)
    with CountedS3() as server:
        _look(bench, server, table, few, shards[0])
        _add_shards(table, ShardId(shards[0]), many - few)
        _look(bench, server, table, many, shards[0])
    _look_at_local_files(bench)


def _idle_table(bench: Bench, shards: int) -> tuple[Path, list[str]]:
    """Written by pylance, and merged."""
    table = bench.new_folder("looks") / "table"
    make_base(table, 1_000, dim=0)
    ids = new_shards(shards)
    pending(table, ids, 1, 20, 1_000, dim=0)
    run_memwal("merge", table, "--engine", "local")
    return table, ids


def _add_shards(table: Path, like: ShardId, count: int) -> None:
    """Shards as a writer leaves them that never flushed: far faster than by a writer each."""
    manifest = open_stores(str(table), {}).shard_manifests.latest(like)
    if manifest is None:
        raise RuntimeError(f"{table}: no manifest of {like}")
    for shard in map(ShardId, new_shards(count)):
        new = replace(
            manifest, shard_id=shard, version=1, current_generation=1, flushed_generations=()
        )
        for path, data in (
            (layout.shard_manifest_path(shard, 1), codec.encode_shard_manifest(new)),
            (layout.version_hint_path(shard), layout.encode_version_hint(1)),
            (layout.wal_entry_path(shard, 1), b"sentinel"),
        ):
            file = table / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


def _look(bench: Bench, server: CountedS3, table: Path, shards: int, changed: str) -> None:
    uri, options = server.place(table), server.storage_options
    looks, resolved = StoredLooks(), resolve_table(uri, Config(), options, {})

    def look() -> TableLook:
        return looks.look(resolved)

    first, _, _ = _count(server, look, changed=True)
    idle, cpu_seconds, _ = _count(server, look, changed=False)
    flush(uri, changed, rows_of(np.arange(3), 1, 0), options=options)
    after, _, found = _count(server, look, changed=True)
    if sum(len(shard.pending) for shard in found.view.shards) != 1:
        raise RuntimeError("the look does not show the new generation")
    objects = sum(1 for path in (table / layout.MEM_WAL).rglob("*") if path.is_file())
    pages = -(-objects // 1_000)
    what = f"{shards:,} shards"
    costs = {"processor ms": 1e3 * cpu_seconds, "first look, requests": first.requests}
    bench.figure(
        "B17",
        f"idle look, {what}: requests",
        float(idle.requests),
        "",
        at_most=2.0 if pages == 1 else pages + 2.0,
        measured=f"{objects:,} objects, {pages} pages",
        costs=costs,
    )
    bench.figure(
        "B17",
        f"look after one shard changed, {what}: requests more than an idle one",
        float(after.requests - idle.requests),
        "",
        at_most=3.0,
        measured=after.told,
    )
    bench.figure(
        "B17",
        f"idle looks, {what}, a look every 30 s: dollars a table and month",
        idle.requests * _LOOKS_A_MONTH * DOLLARS["list"],
        "",
        **({"at_most": 1.0} if pages == 1 else {}),
    )


def _count(
    server: CountedS3, look: Callable[[], TableLook], *, changed: bool
) -> tuple[Seen, float, TableLook]:
    server.forget()
    before = time.process_time()
    found = look()
    seconds = time.process_time() - before
    if found.changed != changed:
        raise RuntimeError(f"a look at {found.view.uri} says changed={found.changed}")
    return server.seen(), seconds, found


def _look_at_local_files(bench: Bench) -> None:
    """A thousand tables every five seconds: how much of a core."""
    table, _ = _idle_table(bench, _LOCAL_SHARDS)
    looks, tables = StoredLooks(), []
    for number in range(_LOCAL_TABLES):
        copy = table.parent / f"t{number}"
        shutil.copytree(table, copy)
        tables.append(resolve_table(str(copy), Config(), {}, {}))
    for resolved in tables:
        looks.look(resolved)
    seconds: list[float] = []
    for _ in range(5):
        before = time.process_time()
        for resolved in tables:
            if looks.look(resolved).changed:
                raise RuntimeError(f"{resolved.uri} is not idle")
        seconds.append((time.process_time() - before) / _LOCAL_TABLES)
    bench.figure(
        "B17",
        f"1,000 local tables of {_LOCAL_SHARDS} shards, looked at every 5 s: share of a core",
        sorted(seconds)[2] * 1_000 / 5,
        "",
        at_most=0.25,
        measured=f"{1e3 * sorted(seconds)[2]:.2f} ms a look",
    )
