"""B7: garbage of 20,000 objects on the S3 server, and planning for 100,000."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median

import lance
from counted_s3 import CountedS3, Seen
from harness import Bench, Ended, program, run_process
from tables import make_base, new_shards, rows_of

from jobs._wiring import open_stores
from memwal.apply.garbage import as_deletions, in_units
from memwal.model import ShardId, ShardView, TableView
from memwal.plan.garbage import plan_garbage
from memwal.plan.garbage_model import (
    Evidence,
    GarbageLimits,
    GarbagePlan,
    ShardEvidence,
    StoredFile,
)

TITLE = "Garbage"

_SHARDS = 4
_FILES_PER_GENERATION = 7
_SHORT = ("--grace", "0s", "--allow-short-retention", "--engine", "local", "--json")


def run(bench: Bench) -> None:
    """B7."""
    folder = _merged_table(bench, 3_000 if bench.quick else 20_000)
    with CountedS3() as server:
        _deleting(bench, server, folder)
    _planning(bench, folder)


def _merged_table(bench: Bench, objects: int) -> Path:
    """A table that pylance wrote, whose generations hold so many objects, all merged and covered.

    Each generation has two WAL entries besides.
    """
    folder = bench.new_folder("table")
    table = folder / "t"
    dataset = make_base(table, 1_000, dim=0)
    dataset.create_scalar_index("id", "BTREE")
    generations = objects // _FILES_PER_GENERATION // _SHARDS + 1
    for shard in new_shards(_SHARDS):
        for number in range(generations):
            with lance.dataset(str(table)).mem_wal_writer(
                shard, max_wal_flush_interval_ms=1
            ) as writer:
                writer.put(rows_of([2 * number], number, 0))
                writer.put(rows_of([2 * number + 1], number, 0))
    merge = [program("memwal"), "merge", table, "--engine", "local", "--json"]
    run_process([*merge, "--generations-per-commit-max", "1000"], folder)
    run_process([program("memwal"), "index-catchup", table, "--json"], folder)
    lance.dataset(str(table)).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    return table


def _deleting(bench: Bench, server: CountedS3, table: Path) -> None:
    """Two passes, as the grace time wants it: the first drops, the second deletes."""
    bucket = server.make_bucket()
    server.load(table, bucket, "t")
    argv = [program("memwal"), "garbage", f"s3://{bucket}/t", *_SHORT, *server.arguments]
    folder = bench.new_folder("run")
    for pass_, name, extra in (
        ("drop", "", []),
        ("delete", "generations", []),
        ("delete", "WAL entries", ["--wal"]),
    ):
        server.forget()
        ended = run_process([*argv, "--execute", *extra], folder)
        if pass_ == "delete":
            _told(bench, name, ended, server.seen())


def _told(bench: Bench, name: str, ended: Ended, seen: Seen) -> None:
    gone = ended.json()["tables"][0]["objects_deleted"]
    if not gone:
        raise RuntimeError(f"nothing was deleted: {ended.stdout[:2000]}")
    beyond = seen.requests - seen.kinds.get("list", 0)
    bench.figure(
        "B7",
        f"garbage, {gone:,} objects of {name}: delete requests for each 500",
        seen.kinds["delete"] / (gone / 500),
        "",
        at_most=1.0,
        measured=", ".join(f"{kind} {count}" for kind, count in sorted(seen.kinds.items())),
        costs={
            "seconds": ended.seconds,
            "of these the S3 server's processor s": seen.server_cpu_seconds,
            "objects a second": gone / ended.seconds,
        },
    )
    bench.figure(
        "B7",
        f"garbage, {gone:,} objects of {name}: all requests but listings for each 500",
        beyond / (gone / 500),
        "",
        at_most=1.0,
        measured=", ".join(f"{count} {shape}" for shape, count in _most(seen)),
    )


def _most(seen: Seen) -> list[tuple[str, int]]:
    return sorted(seen.shapes.items(), key=lambda item: -item[1])[:4]


# ---- planning


def _planning(bench: Bench, table: Path) -> None:
    """From evidence to plan to units of work, in memory, for more and more objects."""
    run_process([program("memwal"), "garbage", table, *_SHORT, "--execute"], bench.new_folder("x"))
    stores = open_stores(str(table), {})
    limits = GarbageLimits(grace_seconds=0, wal=True)
    now = stores.clock.now_nanos()
    view = stores.views.table()
    started = time.perf_counter()
    evidence = stores.garbage_evidence.read(
        {s.shard_id: s.manifest for s in view.shards}, limits=limits, now_nanos=now, verified=True
    )
    reading = time.perf_counter() - started
    here = _objects(plan_garbage(view, evidence, limits, now))
    seconds: dict[int, float] = {}
    for wanted in (25_000, 50_000, 100_000):
        big = _grown(view, evidence, -(-wanted // here))
        times = []
        for _ in range(bench.rounds):
            started = time.perf_counter()
            plan = plan_garbage(*big, limits, now)
            in_units(as_deletions(plan), limits.unit_objects_max)
            times.append(time.perf_counter() - started)
        objects = _objects(plan)
        if objects < wanted:
            raise RuntimeError(f"{objects} objects to delete instead of {wanted}")
        seconds[objects] = median(times)
    (few, *_, many) = seconds
    bench.figure(
        "B7",
        f"planning garbage of {many:,} objects",
        seconds[many],
        "s",
        at_most=5.0,
        measured=f"{few:,} objects: {seconds[few]:.3g} s",
        costs={f"reading the evidence of {here:,} objects from local files s": reading},
    )
    bench.plot("garbage-planning", "plan", "objects", "s", seconds.items())


def _objects(plan: GarbagePlan) -> int:
    return sum(item.objects for item in plan.deletes)


def _grown(view: TableView, evidence: Evidence, times: int) -> tuple[TableView, Evidence]:
    """The same table with its shards so many times, each under an id of its own."""
    shards: list[ShardView] = []
    found: dict[ShardId, ShardEvidence] = {}
    merged: dict[ShardId, int] = {}
    for shard in view.shards * times:
        new = ShardId(str(uuid.uuid4()))
        manifest = replace(shard.manifest, shard_id=new)
        shards.append(replace(shard, manifest=manifest))
        merged[new] = shard.merged_generation
        found[new] = _renamed(evidence.shards[shard.shard_id], new)
    state = replace(
        view.mem_wal,
        merged=merged,
        index_catchup=dict.fromkeys(view.mem_wal.index_catchup, merged),
    )
    versions = tuple(
        v if v.merged is None else replace(v, merged=merged) for v in evidence.versions
    )
    return (
        replace(view, shards=tuple(shards), mem_wal=state),
        replace(evidence, shards=found, versions=versions),
    )


def _renamed(shard: ShardEvidence, new: ShardId) -> ShardEvidence:
    def file(stored: StoredFile) -> StoredFile:
        return replace(stored, path=stored.path.replace(shard.shard_id, new))

    return replace(
        shard,
        shard_id=new,
        past=None if shard.past is None else replace(shard.past, shard_id=new),
        folders=tuple(replace(f, files=tuple(file(one) for one in f.files)) for f in shard.folders),
        wal=tuple(replace(w, file=file(w.file)) for w in shard.wal),
    )
