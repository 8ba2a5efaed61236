"""B5: a tick that finds nothing to do, over many tables with many shards.

Requests are counted at the S3 server, so Lance's own are among them. The wall time against that
server is mostly the server's and the client's processor; `latency` adds what a real one takes to
answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.counted_s3 import CountedS3, Seen
from bench.forged import make_idle
from bench.harness import Bench, run_memwal, run_process
from bench.tables import make_base, new_shards, rows_of

TITLE = "A tick with nothing to do"

_SHARDS = 16
_LATENCY_SECONDS = 0.02


def run(bench: Bench) -> None:
    """B5."""
    most = 20 if bench.quick else 100
    origins = {n: make_idle(bench, new_shards(n), "--wal") for n in (4, _SHARDS, 64)}
    _on_local_files(bench, origins[_SHARDS], most)
    with CountedS3() as server:
        tables = _Tables(server, origins, most)
        for job in ("merge", "status") if bench.quick else ("merge", "status", "maintain"):
            _over_tables(bench, tables, job, [n for n in (10, 20, 100) if n <= most])
        _over_shards(bench, tables, 5)
        if not bench.quick:
            _with_long_wals(bench, server)
            _with_latency(bench, tables, most)


class _Tables:
    """Copies of the idle tables on the server; made inside it."""

    def __init__(self, server: CountedS3, origins: dict[int, Path], most: int) -> None:
        self.server = server
        self._bucket = server.make_bucket()
        for shards, folder in origins.items():
            first, *others = self._names(shards, most)
            server.load(folder, self._bucket, first)
            server.copy(self._bucket, first, others)

    def _names(self, shards: int, count: int) -> list[str]:
        return [f"shards-{shards}/t{number}" for number in range(count)]

    def uris(self, count: int, shards: int = _SHARDS) -> list[str]:
        """So many tables with so many shards."""
        return [f"s3://{self._bucket}/{name}" for name in self._names(shards, count)]

    def tick(self, job: str, uris: Sequence[str]) -> tuple[float, Seen]:
        """Run the job once; its seconds, and what the server saw."""
        self.server.forget()
        ended = run_memwal(job, *uris, "--json", *self.server.arguments)
        _check_idle(job, ended.json(), len(uris))
        return ended.seconds, self.server.seen()


def _check_idle(job: str, document: dict[str, Any], tables: int) -> None:
    outcomes = [table["outcome"] for table in document["tables"]]
    wanted = "done" if job == "status" else "nothing_to_do"
    if outcomes != [wanted] * tables:
        raise RuntimeError(f"{job} is no idle tick: {document}")


def _over_tables(bench: Bench, tables: _Tables, job: str, counts: Sequence[int]) -> None:
    """Requests and time of one job, for more and more tables of 16 shards."""
    seen: dict[int, Seen] = {}
    seconds: dict[int, float] = {}
    for count in (1, *counts):
        seconds[count], seen[count] = tables.tick(job, tables.uris(count))
    few, many = counts[0], counts[-1]
    _, alone = tables.tick(job, tables.uris(few, shards=4))
    by_shard = (seen[few].requests - alone.requests) / (few * (_SHARDS - 4))
    by_table = seen[many].requests / many - _SHARDS * by_shard
    told = seen[many]
    costs = {**told.kinds, "bytes read": told.bytes_received, "bytes written": told.bytes_sent}
    # Five jobs in one: what each of them would be allowed by itself is not its measure.
    targets = {"at_most": 3.0}, ({} if job == "maintain" else {"at_most": 6.0})
    name = f"{job}, nothing to do"
    where = f"{told.requests} requests for {many} tables x {_SHARDS} shards"
    bench.figure("B5", f"{name}: requests a shard", by_shard, "", **targets[0], measured=where)
    bench.figure("B5", f"{name}: requests a table", by_table, "", **targets[1], costs=costs)
    bench.figure(
        "B5",
        f"{name}: requests a table, {many} tables against {few}",
        (told.requests / many) / (seen[few].requests / few),
        "x",
        at_most=1.05,
        measured=f"{told.requests} against {seen[few].requests}",
    )
    # Against one table, the start-up of the process is out of both sides.
    each = {n: (seconds[n] - seconds[1]) / (n - 1) for n in (few, many)}
    bench.figure(
        "B5",
        f"{name}: seconds a table, {many} tables against {few}",
        each[many] / each[few],
        "x",
        at_most=1.25,
        measured=f"{1e3 * each[many]:.0f} ms against {1e3 * each[few]:.0f} ms",
        costs={
            "wall s": seconds[many],
            "of these the S3 server's processor s": told.server_cpu_seconds,
        },
    )
    for what, values in (("requests", {n: s.requests for n, s in seen.items()}), ("s", seconds)):
        bench.plot(f"idle-tables-{what}", job, "tables of 16 shards", what, values.items())


def _over_shards(bench: Bench, tables: _Tables, count: int) -> None:
    """Requests for shards beyond the fewest, when there are many."""
    found = {n: tables.tick("merge", tables.uris(count, shards=n)) for n in (4, 16, 64)}
    requests = {n: seen.requests for n, (_, seen) in found.items()}
    slopes = [(requests[b] - requests[a]) / (b - a) / count for a, b in ((4, 16), (16, 64))]
    bench.figure(
        "B5",
        "merge, nothing to do: requests a shard, up to 64 shards against up to 16",
        slopes[1] / slopes[0],
        "x",
        at_most=1.05,
        measured=f"{slopes[1]:.3g} against {slopes[0]:.3g}",
    )
    points = [(n, value / count) for n, value in requests.items()]
    bench.plot("idle-shards", "merge", "shards", "requests a table", points)


def _with_long_wals(bench: Bench, server: CountedS3) -> None:
    """Shards with more files than one request lists: the other way to find their manifests."""
    table = bench.new_folder("long") / "table"
    dataset = make_base(table, 1_000, dim=0)
    for shard in new_shards(_SHARDS):
        with dataset.mem_wal_writer(shard, max_wal_flush_interval_ms=1) as writer:
            for number in range(100):
                writer.put(rows_of([number], number, 0))
    run_memwal("merge", table, "--engine", "local")
    uri = server.place(table)
    for job in ("merge", "status"):
        server.forget()
        _check_idle(job, run_memwal(job, uri, "--json", *server.arguments).json(), 1)
        seen = server.seen()
        bench.figure(
            "B5",
            f"{job}, nothing to do, 100 WAL entries a shard: requests against 3 a shard and 6",
            seen.requests / (3 * _SHARDS + 6),
            "x",
            at_most=1.0,
            measured=seen.told,
        )


def _with_latency(bench: Bench, tables: _Tables, count: int) -> None:
    """What is left to wait for when each request takes as long as on a real store."""
    uris = tables.uris(count)
    tables.server.latency(_LATENCY_SECONDS)
    try:
        for job in ("merge", "status"):
            seconds, seen = tables.tick(job, uris)
            bench.figure(
                "B5",
                f"{job}, nothing to do: wall time at 20 ms a request, against one by one",
                seconds / (seen.requests * _LATENCY_SECONDS),
                "x",
                measured=f"{seconds:.3g} s, {seen.requests} requests, {count} tables",
                costs={"server's processor s": seen.server_cpu_seconds},
            )
    finally:
        tables.server.latency(0)


# ---- local files


def _on_local_files(bench: Bench, origin: Path, most: int) -> None:
    """Time on local files, and what processes a tick starts."""
    copies, few = [bench.copy(origin) for _ in range(most)], most // 3
    seconds = bench.side_by_side(
        {str(n): lambda n=n: run_memwal("merge", *copies[:n]).seconds for n in (1, few, most)},
        rounds=3,
    )
    each = {n: (seconds[str(n)] - seconds["1"]) / (n - 1) for n in (few, most)}
    bench.figure(
        "B5",
        f"merge, nothing to do, local files: seconds a table, {most} tables against {few}",
        each[most] / each[few],
        "x",
        at_most=1.5,
        measured=f"{1e3 * each[most]:.1f} ms against {1e3 * each[few]:.1f} ms",
        costs={"wall s": seconds[str(most)]},
    )
    started = _programs_started(copies, bench.new_folder("hook"))
    bench.figure(
        "B5",
        f"merge, nothing to do, {most} tables: JVMs started",
        float(sum("java" in Path(name).name for name in started)),
        "",
        at_most=0,
        measured=f"programs: {', '.join(sorted(set(started))) or 'none'}",
    )


def _programs_started(tables: Sequence[Path], folder: Path) -> list[str]:
    """Every program that a merge or a child of it executed, by Python's own audit events.

    A JVM can only come from this process by one of these: pyspark starts it with subprocess.
    """
    heard = folder / "heard"
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "def hook(event, arguments):\n"
        "    if event in ('subprocess.Popen', 'os.exec', 'os.posix_spawn', 'os.system'):\n"
        f"        with open({str(heard)!r}, 'a') as file:\n"
        "            print(arguments[0], file=file)\n"
        "sys.addaudithook(hook)\n"
    )
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    _check_idle(
        "merge", run_memwal("merge", "--json", *tables, PYTHONPATH=path).json(), len(tables)
    )
    # The hook must have been heard: a run of its own tells.
    code = "import subprocess; subprocess.run(['true'])"
    run_process([sys.executable, "-c", code], PYTHONPATH=path)
    *words, last = heard.read_text().splitlines()
    if last != "true":
        raise RuntimeError("programs that are started go unseen")
    return words
