"""The first merge of many shards: what it asks for and how long it takes (B14).

Of a shard that was never merged it has to be shown that its generations belong to the table.
Requests and bytes are counted at the S3 server, so Lance's own are among them.
"""

from __future__ import annotations

import math
from pathlib import Path

from bench.counted_s3 import CountedS3, Seen
from bench.harness import Bench, run_memwal
from bench.tables import make_base, new_shards, pending

TITLE = "First merges of many shards"

ROWS = 20
# So many that what the merges insert hardly adds to what each commit scans.
_BASE_ROWS = 200_000


def run(bench: Bench) -> None:
    """B14."""
    few, many = (120, 480) if bench.quick else (200, 2_000)
    tables = {shards: _never_merged(bench, shards) for shards in (few, many)}
    _count(bench, {shards: table for shards, (table, _) in tables.items()})
    _compare_with_second(bench, *tables[many])


def _never_merged(bench: Bench, shards: int) -> tuple[Path, list[str]]:
    table = bench.new_folder("first") / "table"
    make_base(table, _BASE_ROWS, dim=0)
    ids = new_shards(shards)
    pending(table, ids, 1, ROWS, _BASE_ROWS, dim=0)
    return table, ids


def _count(bench: Bench, tables: dict[int, Path]) -> None:
    """Requests and bytes of the whole command, and how they grow with the shards."""
    seen: dict[int, Seen] = {}
    with CountedS3() as server:
        for shards, table in tables.items():
            uri = server.place(table)
            server.forget()
            _merge(uri, *server.arguments)
            seen[shards] = server.seen()
    few, many = sorted(seen)
    for what, values in (
        ("requests", {n: s.requests for n, s in seen.items()}),
        ("bytes read", {n: s.bytes_received for n, s in seen.items()}),
    ):
        bench.figure(
            "B14",
            f"first merge, {what}: exponent of the growth from {few} to {many} shards",
            math.log(values[many] / values[few]) / math.log(many / few),
            "",
            at_most=1.1,
            measured=f"{values[many]:,} against {values[few]:,}",
            costs=seen[many].kinds,
        )


def _compare_with_second(bench: Bench, table: Path, shards: list[str]) -> None:
    """Seconds on local files, of the first generation of each shard and of one more."""
    later = bench.copy(table)
    _merge(later)
    pending(later, shards, 1, ROWS, _BASE_ROWS, dim=0)
    seconds = bench.side_by_side(
        {
            "first": lambda: _merge(bench.copy(table)),
            "second": lambda: _merge(bench.copy(later)),
        }
    )
    bench.ratio(
        "B14",
        f"{len(shards)} shards of {ROWS} rows: their first merge, against their second",
        seconds,
        "first",
        "second",
        at_most=2.0,
    )


def _merge(table: Path | str, *arguments: str) -> float:
    """Merge all that is pending, and return the seconds. Raises RuntimeError if something stays."""
    document = run_memwal("merge", table, "--json", "--engine", "local", *arguments).json()
    outcomes = {shard["outcome"] for shard in document["tables"][0]["shards"]}
    if outcomes != {"done"}:
        raise RuntimeError(f"not every shard was merged: {outcomes}")
    return float(document["seconds"])
