"""B7: garbage of 20,000 objects on the S3 server, and planning for 100,000."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median

import lance

from bench.counted_s3 import CountedS3, Seen
from bench.harness import Bench, run_memwal
from bench.tables import make_base, new_shards, rows_of
from memwal.jobs.garbage.apply.deletions import make_deletions
from memwal.jobs.garbage.model import Evidence, GarbageLimits, GarbagePlan, ShardEvidence
from memwal.jobs.garbage.plan import plan_garbage
from memwal.jobs.garbage.store import StoredGarbageEvidence
from memwal.jobs.garbage.survey import Survey
from memwal.jobs.garbage.unit import group_deletions
from memwal.model import ShardId, ShardView, StoredFile, TableView
from memwal.run.stores import open_stores

TITLE = "Garbage"

_SHARDS = 4
_VERSIONS = 80
_IDLE_REQUESTS = 30
_FILES_PER_GENERATION = 7
_SHORT = ("--grace", "0s", "--allow-short-retention", "--engine", "local", "--json")


def run(bench: Bench) -> None:
    """B7."""
    sizes = (500, 1_500) if bench.quick else (5_000, 20_000)
    tables = [_merged_table(bench, objects) for objects in sizes]
    with CountedS3() as server:
        few, many = [_deleted(server, table) for table in tables]
        _idle(bench, server, tables[0])
    for what in many:
        _told(bench, what, few[what], many[what])
    _planning(bench, tables[-1])


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """A run that deleted `gone` objects."""

    gone: int
    seconds: float
    seen: Seen

    @property
    def beyond_listing(self) -> int:
        """Every request that lists nothing: reading evidence, the lease, deleting, the record."""
        return self.seen.requests - self.seen.kinds.get("list", 0)


def _merged_table(bench: Bench, objects: int) -> Path:
    """A table that pylance wrote, whose generations hold so many objects, all merged and covered.

    Each generation has two WAL entries besides.
    """
    table = bench.new_folder("table") / "t"
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
    run_memwal("merge", table, "--engine", "local", "--generations-per-commit-max", "1000")
    run_memwal("index-catchup", table)
    lance.dataset(str(table)).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    return table


def _deleted(server: CountedS3, table: Path) -> dict[str, _Pass]:
    """Two passes, as the grace time wants it: the first drops, the second deletes. Then the WAL."""
    words = ["garbage", server.place(table), *_SHORT, *server.arguments, "--execute"]
    run_memwal(*words)
    found: dict[str, _Pass] = {}
    for what, extra in (("generations", ()), ("WAL entries", ("--wal",))):
        server.forget()
        ended = run_memwal(*words, *extra)
        gone = ended.json()["tables"][0]["objects_deleted"]
        if not gone:
            raise RuntimeError(f"nothing was deleted: {ended.stdout[:2000]}")
        found[what] = _Pass(gone=gone, seconds=ended.seconds, seen=server.seen())
    return found


def _idle(bench: Bench, server: CountedS3, table: Path) -> None:
    """A pass that finds nothing, after one that found nothing: what it read is remembered."""
    uri = server.place(table)
    for number in range(_VERSIONS):
        lance.dataset(uri, storage_options=server.storage_options).update_config({"n": f"{number}"})
    words = ["garbage", uri, *_SHORT, *server.arguments, "--execute", "--wal"]
    for _ in range(4):  # drops, deletes, deletes the WAL, remembers
        run_memwal(*words)
    server.forget()
    ended = run_memwal(*words)
    if ended.json()["outcome"] != "nothing_to_do":
        raise RuntimeError(f"the table never becomes idle: {ended.stdout[:2000]}")
    seen = server.seen()
    bench.figure(
        "B7",
        f"an idle pass with --wal over {_VERSIONS} versions on S3, after another: requests",
        seen.requests,
        "",
        at_most=_IDLE_REQUESTS,
        measured=seen.told,
    )


def _told(bench: Bench, what: str, few: _Pass, many: _Pass) -> None:
    """The requests that grow with the deletions, and all of them."""
    name = f"garbage, {many.gone:,} objects of {what}: requests for each 500"
    more = many.gone - few.gone
    bench.figure(
        "B7",
        f"{name}, DeleteObjects only",
        many.seen.kinds["delete"] / (many.gone / 500),
        "",
        at_most=1.0,
        measured=many.seen.told,
        costs={
            "seconds": many.seconds,
            "of these the S3 server's processor s": many.seen.server_cpu_seconds,
            "objects a second": many.gone / many.seconds,
        },
    )
    bench.figure(
        "B7",
        f"{name} more, beyond the listing",
        (many.beyond_listing - few.beyond_listing) / (more / 500),
        "",
        at_most=1.0,
        measured=f"{many.beyond_listing} for {many.gone:,} objects, {few.beyond_listing} for "
        f"{few.gone:,}",
    )
    bench.figure(
        "B7",
        f"{name}, beyond the listing, with what a run of any size reads and writes",
        many.beyond_listing / (many.gone / 500),
        "",
        at_most=1.0,
        measured=many.seen.most,
    )


# ---- planning


def _planning(bench: Bench, table: Path) -> None:
    """From evidence to plan to units of work, in memory, for more and more objects."""
    run_memwal("garbage", table, *_SHORT, "--execute")
    stores = open_stores(str(table), {})
    limits = GarbageLimits(grace_seconds=0, wal=True)
    now = stores.clock.now_nanos()
    view = stores.views.table()
    manifests = {s.shard_id: s.manifest for s in view.shards}
    reading = []
    for _ in range(bench.rounds):
        started = time.perf_counter()
        evidence = StoredGarbageEvidence(stores.objects).read(
            manifests, limits=limits, now_nanos=now, verified=True
        )
        reading.append(time.perf_counter() - started)
    here = _objects(plan_garbage(_look(view, evidence, limits, now)))
    bench.figure(
        "B7",
        f"reading the evidence of {here:,} objects from local files",
        median(reading),
        "s",
        at_most=1.0,
    )
    seconds: dict[int, float] = {}
    for wanted in (25_000, 50_000, 100_000):
        big = _grown(view, evidence, -(-wanted // here))
        times = []
        for _ in range(bench.rounds):
            started = time.perf_counter()
            plan = plan_garbage(_look(*big, limits, now))
            group_deletions(make_deletions(plan), limits.unit_objects_max)
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
    )
    bench.plot("garbage-planning", "plan", "objects", "s", seconds.items())


def _look(view: TableView, evidence: Evidence, limits: GarbageLimits, now: int) -> Survey:
    return Survey(view=view, version=view.version, evidence=evidence, limits=limits, now_nanos=now)


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
