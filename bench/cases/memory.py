"""Memory of a merge: over the generations of a run (B6), and over the commits of a process."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.harness import MEMWAL, Bench, run_peak, run_process
from bench.tables import make_base, new_shards, pending

TITLE = "Memory"

_DIM = 64
_MIB = 1024 * 1024

# What `memwal merge` has imported by the time that it reads a generation.
_IMPORTS = """
import memwal.cli.app, memwal.cli.progress, memwal.jobs.merge.job
import memwal.jobs.merge.store, memwal.store.records.runs, pyarrow.compute
"""

# One run of the job over all generations, one commit each; the kernel's word on this process's
# memory after every tenth.
_COMMITS = """
import json, os, sys
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.merge.request import MergeRequest
from memwal.config import Config, resolve_table
from memwal.run.progress import Silent
from memwal.rows.memory import Memory
from memwal.jobs.merge.store import LanceFold

table, every = sys.argv[1], int(sys.argv[2])
if int(sys.argv[3]):
    Memory.cache_bytes = property(lambda self: int(sys.argv[3]))
seen, commits = [], 0
commit = LanceFold.commit

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def counted(self, *arguments, **more):
    global commits
    told = commit(self, *arguments, **more)
    commits += 1
    if commits % every == 0:
        seen.append((commits, resident()))
    return told

LanceFold.commit = counted

report = run_merge(
    MergeOptions(
        tables=[resolve_table(table, Config(), {})],
        engine="local",
        request=MergeRequest(generations_per_commit_max=1),
    ),
    Silent(),
)
assert report.outcome == "done", report
print(json.dumps(seen))
"""


def run(bench: Bench) -> None:
    """B6, and the growth a commit."""
    _peaks(bench)
    _growth(bench)


def _peaks(bench: Bench) -> None:
    """The same backlog, merged up to the 10th, 30th and 100th generation."""
    rows, base, counts, limit = 100_000, 1_000_000, (10, 30, 100), 256 * _MIB
    if bench.quick:
        rows, base, counts = 50_000, 200_000, (10, 20, 40)
    folder = bench.new_folder("memory")
    table = folder / "table"
    make_base(table, base, dim=_DIM)
    pending(table, new_shards(1), counts[-1], rows, base, dim=_DIM)
    interpreter, _ = run_peak(_IMPORTS)
    peaks: dict[int, float] = {}
    told: dict[int, dict[str, float]] = {}
    for count in counts:
        found = [_merge(bench, folder, table, count, limit) for _ in range(bench.rounds)]
        peaks[count] = statistics.median(peak for peak, _ in found)
        told[count] = found[-1][1]
    what = f"{counts[-1]} generations of {rows:,} rows, {limit // _MIB} MiB a commit"
    bench.figure(
        "B6",
        f"peak memory beyond the interpreter, as a part of the limit: {what}",
        (peaks[counts[-1]] - interpreter) / limit,
        "x",
        at_most=3.0,
        measured=f"{peaks[counts[-1]] / _MIB:,.0f} MiB, the interpreter {interpreter / _MIB:,.0f}",
        costs=told[counts[-1]],
    )
    points = [(count, peak / _MIB) for count, peak in peaks.items()]
    axes = ("memory", "generations", "MiB")
    label, y = axes[1:]
    bench.plot(axes[0], "peak of the process", label, y, points)
    for name, height in (
        ("interpreter", interpreter),
        ("interpreter + 3 x the limit", interpreter + 3 * limit),
    ):
        bench.plot(axes[0], name, label, y, [(count, height / _MIB) for count in counts])
    shutil.rmtree(table)
    steady = _steady_peaks(bench, folder, counts[1:], limit, rows, base)
    bench.figure(
        "B6",
        f"peak of {counts[-1]} generations against {counts[1]}, updates only (the target is our "
        "own)",
        steady[counts[-1]] / steady[counts[1]],
        "x",
        at_most=1.1,
        measured=", ".join(f"{n}: {peak / _MIB:,.0f} MiB" for n, peak in steady.items()),
    )
    points = [(count, peak / _MIB) for count, peak in steady.items()]
    bench.plot(axes[0], "peak, updates only", label, y, points)


def _steady_peaks(
    bench: Bench, folder: Path, counts: Sequence[int], limit: int, rows: int, base: int
) -> dict[int, float]:
    """Peaks where the base does not grow with the backlog: only generations make a difference."""
    table = folder / "steady"
    make_base(table, base, dim=_DIM)
    pending(table, new_shards(1), counts[-1], rows, base, dim=_DIM, new_share=0.0)
    found: dict[int, float] = {}
    for count in counts:
        peaks = [_merge(bench, folder, table, count, limit)[0] for _ in range(bench.rounds)]
        found[count] = statistics.median(peaks)
    shutil.rmtree(table)
    return found


def _merge(
    bench: Bench, folder: Path, table: Path, count: int, limit: int
) -> tuple[int, dict[str, float]]:
    uri = bench.copy(table)
    words = ["merge", uri, "--engine", "local", "--json"]
    words += ["--bytes-per-commit-max", str(limit), "--until-generation", str(count)]
    peak, ended = run_peak(MEMWAL, *words)
    shutil.rmtree(uri)
    shard = ended.json()["tables"][0]["shards"][0]
    assert shard["generations"] == count, shard
    return peak, {
        "seconds": ended.seconds,
        "commits": shard["commits"],
        "MB read": shard["bytes_read"] / 1e6,
    }


def _growth(bench: Bench) -> None:
    """Resident memory over many small commits of one process; the first fifth is its warm-up.

    Once as it is, and once with hardly any of Lance's caches, which are bounded: what grows then
    would grow for ever.
    """
    commits, every = (60, 5) if bench.quick else (500, 10)
    folder = bench.new_folder("growth")
    table = folder / "table"
    make_base(table, 10_000)
    pending(table, new_shards(1), commits, 100, 10_000)
    for caches, cache_bytes, at_most in (("2 x 64", 0, None), ("2 x 1", _MIB, 100.0)):
        uri = bench.copy(table)
        words = [sys.executable, "-c", _COMMITS, uri, str(every), str(cache_bytes)]
        ended = run_process(words)
        seen = [(count, size / _MIB) for count, size in json.loads(ended.stdout)]
        late = [(count, size) for count, size in seen if count > commits / 5]
        slope = statistics.linear_regression(*zip(*late, strict=True)).slope
        bench.figure(
            "B6",
            f"growth over {commits} commits in one process, Lance's caches {caches} MiB"
            + (" (the target is our own)" if at_most else ""),
            slope * 1024,
            "KiB a commit",
            at_most=at_most,
            measured=f"{late[0][1]:,.0f} MiB after {late[0][0]}, "
            f"{late[-1][1]:,.0f} MiB after {late[-1][0]}",
            costs={"seconds": ended.seconds},
        )
        bench.plot("memory over commits", f"caches {caches} MiB", "commits", "MiB", seen)
