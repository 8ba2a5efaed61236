"""B18: how fresh `memwal watch` keeps tables, and what that takes.

Freshness is read from what is stored, never from what the watch tells: a generation is flushed when
its files are there, merged when a version's progress has it, indexed when that of every index has.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import lance
import numpy as np

from bench.counted_s3 import CountedS3
from bench.flushing import BASE_ROWS, DIM, ROWS, Flushing
from bench.harness import DOLLARS, Bench, run_memwal
from bench.tables import make_base, new_shards, pending
from memwal.run.stores import open_stores
from tests.support.freshness import Times, lag_over_time, read_times
from tests.support.sick_tables import SickTables
from tests.support.watching import Taken, Watch

TITLE = "Always fresh"

CASE = "B18"
_SHARDS = 4
_BUCKET = "bucket"
_LATENCY_SECONDS = 0.02
# A HEAD costs what a GET does, and any other kind what a LIST does.
_DOLLARS = {**DOLLARS, "head": DOLLARS["get"]}
_DRAIN_SECONDS = 15.0
_LOOKED_SECONDS_MAX = 300.0


def run(bench: Bench) -> None:
    """B18."""
    origin = _origin(bench)
    _many_tables(bench, origin)
    _many_tables_on_s3(bench, origin)
    _beside_sick_tables(bench, origin)
    _hot_table(bench, origin)
    _against_a_loop(bench, origin)


# ---- tables


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """A table of four shards, merged, indexed and at rest; it is copied, not made again."""

    folder: Path
    shards: Sequence[str]


def _origin(bench: Bench) -> _Origin:
    table, shards = bench.new_folder("origin") / "table", new_shards(_SHARDS)
    make_base(table, BASE_ROWS, dim=DIM)
    lance.dataset(str(table)).create_scalar_index("id", "BTREE")
    pending(table, shards, 1, ROWS, BASE_ROWS, dim=DIM)
    run_memwal("maintain", table, "--engine", "local")
    for record in (table / "_maintenance").rglob("*.json"):
        record.unlink()
    return _Origin(folder=table, shards=shards)


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """Copies of the origin, by name, and the configuration that names them."""

    uris: Mapping[str, str]
    shards: Sequence[str]
    config: Path
    options: Mapping[str, str]

    def written(self, count: int) -> list[tuple[str, str]]:
        """The shards of so many tables, each table once before any comes again."""
        uris = list(self.uris.values())[:count]
        return [(uri, shard) for shard in self.shards for uri in uris]

    def times(self, count: int, since: float) -> list[Times]:
        """Of as many tables, from then on."""
        uris = list(self.uris.values())[:count]
        return [read_times(open_stores(uri, self.options), since) for uri in uris]


def _copies(bench: Bench, origin: _Origin, count: int, server: CountedS3 | None = None) -> _Tables:
    uris: dict[str, str] = {}
    for number in range(count):
        if server is None:
            uris[f"t{number}"] = str(bench.copy(origin.folder))
        else:
            server.load(origin.folder, _BUCKET, f"t{number}")
            uris[f"t{number}"] = f"s3://{_BUCKET}/t{number}"
    options = server.storage_options if server else {}
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    lines = ["[defaults]", f"storage_options = {{ {pairs} }}"]
    for name, uri in uris.items():
        lines += [f"[tables.{name}]", f"uri = {json.dumps(uri)}"]
    config = bench.new_folder("config") / "memwal.toml"
    config.write_text("\n".join(lines) + "\n")
    return _Tables(uris=uris, shards=origin.shards, config=config, options=options)


# ---- one watch, beside writers


@dataclass(frozen=True, kw_only=True)
class _Watched:
    """What was seen of one watch, from the first write on, and afterwards."""

    began: float
    stopped: float
    ended: float
    times: Sequence[Times]
    taken: Sequence[Taken]
    looked_after_seconds: float

    def seconds(self, stage: str) -> list[float]:
        """From flush to that stage, of each generation; what never came there waited to the end."""
        return sorted(
            seconds
            for times in self.times
            for seconds in times.seconds(getattr(times, stage), self.ended)
        )

    @property
    def cores(self) -> float:
        """Processor seconds a second while there were writes."""
        first, last = self.taken[0], self.taken[-1]
        return (last.cpu_seconds - first.cpu_seconds) / (last.at - first.at)

    @property
    def memory_mib(self) -> float:
        return max(taken.memory_bytes for taken in self.taken) / 2**20

    def lag(self, stage: str) -> list[tuple[float, float]]:
        """Seconds since the first write, and the lag then."""
        points = np.arange(self.began, self.stopped, max(0.5, (self.stopped - self.began) / 240))
        lags = lag_over_time(self.times, stage, points.tolist())
        return [(at - self.began, lag) for at, lag in zip(points.tolist(), lags, strict=True)]


def _watch(
    bench: Bench,
    tables: _Tables,
    words: Sequence[str],
    *,
    written: int,
    flushes_per_second: float,
    seconds: float,
    writing: Callable[[], None] = lambda: None,
    written_over: Callable[[], None] = lambda: None,
    fails: bool = False,
) -> _Watched:
    """Writers to some of the tables for so long, once the watch has looked at them all.

    `fails` says that some other table is never seen, which the watch tells by how it ends.
    """
    all_of_them = ["--all", "--config", tables.config, "--json", "--every", "1s", *words]
    with ExitStack() as stack:
        started = time.time()
        watch = stack.enter_context(Watch(all_of_them, bench.new_folder("watch")))
        _wait_for_looks(watch, len(tables.uris), started)
        looked = time.time() - started
        writers = stack.enter_context(
            Flushing(tables.written(written), flushes_per_second, tables.options)
        )
        writing()
        began, taken = time.time(), [watch.take()]
        while time.time() < began + seconds:
            time.sleep(1.0)
            taken.append(watch.take())
            if watch.ended_with() is not None:
                raise RuntimeError(f"the watch has ended: {watch.stderr()[-4000:]}")
        written_over()
        writers.stop()
        stopped = time.time()
        time.sleep(_DRAIN_SECONDS)
        ended = time.time()
        watch.send(15)
        if bool(watch.wait(60)) is not fails:
            raise RuntimeError(f"the watch ended badly: {watch.stderr()[-4000:]}")
    return _Watched(
        began=began,
        stopped=stopped,
        ended=ended,
        times=tables.times(written, began),
        taken=taken,
        looked_after_seconds=looked,
    )


def _wait_for_looks(watch: Watch, tables: int, started: float) -> None:
    while len({event.get("table") for _, event in watch.events}) < tables:
        if watch.ended_with() is not None or time.time() > started + _LOOKED_SECONDS_MAX:
            raise RuntimeError(f"not every table was looked at: {watch.stderr()[-4000:]}")
        time.sleep(0.1)


def _tell(bench: Bench, what: str, seen: _Watched, target_seconds: float, **costs: float) -> None:
    """Figures of one watch."""
    for stage in ("merged", "indexed"):
        seconds = seen.seconds(stage)
        if not seconds:
            raise RuntimeError(f"{what}: nothing was flushed")
        cuts = np.percentile(seconds, [50, 99])
        bench.figure(
            CASE,
            f"{what}: flush to {stage}, the worst",
            seconds[-1],
            "s",
            at_most=target_seconds,
            measured=f"p50 {cuts[0]:.2f} s, p99 {cuts[1]:.2f} s, {len(seconds)} generations",
            costs={
                "cores": seen.cores,
                "MiB at most": seen.memory_mib,
                "s until all were looked at": seen.looked_after_seconds,
                **costs,
            },
        )
        bench.plot(f"freshness-{what}", stage, "s", "lag in s", seen.lag(stage))


# ---- the cases


def _many_tables(bench: Bench, origin: _Origin) -> None:
    """Most of them idle."""
    count, written, seconds = (60, 5, 10.0) if bench.quick else (1000, 50, 120.0)
    tables = _copies(bench, origin, count)
    seen = _watch(
        bench, tables, ["--freshness", "10s"],
        written=written, flushes_per_second=written, seconds=seconds,
    )  # fmt: skip
    _tell(bench, f"{count} tables, {written} written", seen, 10.0)


def _many_tables_on_s3(bench: Bench, origin: _Origin) -> None:
    """On a server that takes little of the same cores, and 20 ms a request, as in one region."""
    count, written, seconds = (10, 1, 10.0) if bench.quick else (100, 10, 120.0)
    with CountedS3() as server:
        tables = _copies(bench, origin, count, server)
        server.latency(_LATENCY_SECONDS)
        requests: dict[str, int] = {}

        def count_requests() -> None:
            requests.update(server.seen().kinds)

        if not bench.quick:
            _idle(bench, server, tables)
        seen = _watch(
            bench, tables, ["--freshness", "10s"],
            written=written, flushes_per_second=written, seconds=seconds,
            writing=server.forget, written_over=count_requests,
        )  # fmt: skip
    what = f"{count} tables on S3, {written} written"
    _tell(bench, what, seen, 10.0, **{k: v / seconds for k, v in requests.items()})


def _idle(bench: Bench, server: CountedS3, tables: _Tables) -> None:
    """What is asked of the store while nothing is written. Looks are rarer after the target."""
    count, target, seconds = len(tables.uris), 60.0, 120.0
    words = ["--all", "--config", tables.config, "--json", "--freshness", f"{target:g}s"]
    with Watch(words, bench.new_folder("idle")) as watch:
        _wait_for_looks(watch, count, time.time())
        time.sleep(target + 5.0)
        server.forget()
        time.sleep(seconds)
        kinds = server.seen().kinds
    requests = {kind: number / seconds / count for kind, number in kinds.items()}
    dollars = sum(
        a_second * _DOLLARS.get(kind, DOLLARS["list"]) for kind, a_second in requests.items()
    )
    bench.figure(
        CASE,
        f"{count} idle tables on S3, --freshness 60s: dollars a table and month",
        dollars * 30 * 86_400,
        "$",
        at_most=1.0,
        measured=f"{sum(requests.values()):.3g} requests a second and table",
        costs=requests,
    )


def _beside_sick_tables(bench: Bench, origin: _Origin) -> None:
    """All are written to, beside one of a million objects, one whose store is silent, and one that
    ends each worker that takes it.
    """
    count, objects, target, seconds = (
        (20, 20_000, 10.0, 15.0) if bench.quick else (200, 1_000_000, 60.0, 90.0)
    )
    seen = []
    for is_sick in (False, True):
        tables = replace(_copies(bench, origin, count), shards=origin.shards[:1])
        with ExitStack() as stack:
            if is_sick:
                sick = SickTables(bench.new_folder("sick"), objects=objects)
                lines = stack.enter_context(sick).config
                tables.config.write_text(tables.config.read_text() + lines)
            watched = _watch(
                bench, tables, ["--freshness", f"{target:g}s"],
                written=count, flushes_per_second=count / 10, seconds=seconds, fails=is_sick,
            )  # fmt: skip
            seen.append(watched)
    what = f"{count} written tables beside 3 sick ones"
    _tell(bench, what, seen[1], target, deaths=len(sick.killer.killed_at))
    alone, beside = (watched.seconds("indexed")[-1] for watched in seen)
    bench.figure(
        CASE,
        f"{what}, against the same without them: flush to indexed, the worst",
        beside / alone,
        "x",
        at_most=1.25,
        measured=f"{beside:.1f} s against {alone:.1f} s",
    )


def _hot_table(bench: Bench, origin: _Origin) -> None:
    """Small flushes at a rate at which a loop of `maintain` falls behind without end."""
    seconds = 15.0 if bench.quick else 600.0
    tables = _copies(bench, origin, 1)
    seen = _watch(
        bench, tables, ["--freshness", "10s"],
        written=1, flushes_per_second=45.0, seconds=seconds,
    )  # fmt: skip
    what = "one table, 45 flushes a second"
    _tell(bench, what, seen, 10.0)
    lags = [lag for _, lag in seen.lag("merged")]
    quarter = max(1, len(lags) // 4)
    early, late = max(lags[quarter : 2 * quarter]), max(lags[-quarter:])
    bench.figure(
        CASE,
        f"{what}: the last quarter's lag against the second's",
        late / max(early, 1.0),
        "x",
        at_most=1.5,
        measured=f"{late:.2f} s against {early:.2f} s, {seconds:.0f} s of writes",
    )


def _against_a_loop(bench: Bench, origin: _Origin) -> None:
    """What a shell's loop of `memwal maintain` makes of one flush a second, and the watch."""
    seconds = 10.0 if bench.quick else 60.0
    loop = _loop(bench, _copies(bench, origin, 1), seconds)
    tables = _copies(bench, origin, 1)
    seen = _watch(
        bench, tables, ["--freshness", "1s"],
        written=1, flushes_per_second=1.0, seconds=seconds,
    )  # fmt: skip
    ours, theirs = statistics.median(seen.seconds("merged")), loop[0]
    bench.figure(
        CASE,
        "one flush a second, flush to merged: a watch against a loop of `memwal maintain`",
        ours / theirs,
        "x",
        measured=f"{ours:.2f} s against {theirs:.2f} s, medians",
    )
    bench.figure(
        CASE,
        "the same: processor seconds a second",
        seen.cores / loop[1],
        "x",
        at_most=1.0,
        measured=f"{seen.cores:.2f} against {loop[1]:.2f}",
    )


def _loop(bench: Bench, tables: _Tables, seconds: float) -> tuple[float, float]:
    """Median seconds from flush to merged, and processor seconds a second."""
    (name,) = tables.uris
    words = ("maintain", name, "--config", tables.config, "--engine", "local")
    with Flushing(tables.written(1), 1.0):
        began, used = time.time(), 0.0
        while time.time() < began + seconds:
            used += run_memwal(*words).cpu_seconds
        cores = used / (time.time() - began)
    run_memwal(*words)
    ended = time.time()
    times = tables.times(1, began)
    return statistics.median(times[0].seconds(times[0].merged, ended)), cores
