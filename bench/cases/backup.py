"""What the second backup of a large table costs, of which 1 % is new (B22).

Requests and bytes are counted at the S3 server that has the place; the table is local.
"""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from bench.counted_s3 import CountedS3, Seen
from bench.harness import Bench, run_memwal
from bench.tables import flush, new_shards, rows_of

TITLE = "Backups"

_OBJECTS = 100_000
_QUICK_OBJECTS = 2_000
_NEW_SHARE = 0.01
_COUNT_PAGE = 1_000


def run(bench: Bench) -> None:
    """B22."""
    objects = _QUICK_OBJECTS if bench.quick else _OBJECTS
    new = round(objects * _NEW_SHARE)
    table = bench.new_folder("backup") / "table"
    _add_files(table, 0, objects)
    lance.dataset(str(table)).initialize_mem_wal()
    flush(str(table), new_shards(1)[0], rows_of(np.arange(100), 1, 0))
    with CountedS3() as server:
        dest = f"s3://{server.make_bucket()}/copies"
        first = _back_up(server, table, dest)
        _add_files(table, objects, new)
        second = _back_up(server, table, dest)
    pages = -(-objects // _COUNT_PAGE)
    data = sum(file.stat().st_size for file in sorted((table / "data").iterdir())[:new])
    costs = {"first, requests": first.requests, "first, MB": first.bytes_sent / 1e6}
    bench.figure(
        "B22",
        f"second backup, {objects:,} objects, {new:,} new: requests for each new one, "
        "without the listings",
        (second.requests - second.kinds["list"]) / new,
        "",
        # A put each; and what a run costs anyway: mark, lease, document, list, hints.
        at_most=1.0 + 60 / new,
        measured=second.told,
        costs=costs,
    )
    bench.figure(
        "B22",
        f"second backup, {objects:,} objects: listings for each page of {_COUNT_PAGE:,}",
        second.kinds["list"] / pages,
        "",
        at_most=2.0 + 20 / pages,
        measured=f"{second.kinds['list']} requests, {pages} pages",
    )
    bench.figure(
        "B22",
        "second backup, bytes stored, against those of the first",
        second.bytes_sent / first.bytes_sent,
        "x",
        # The list of all objects is new each time: here a fifth of files that hold a row each.
        at_most=0.3,
        measured=f"{second.bytes_sent / 1e6:.3g} MB of {first.bytes_sent / 1e6:.3g} MB; new data "
        f"of about {data / 1e6:.3g} MB, {second.bytes_received / 1e6:.3g} MB read",
    )


def _add_files(table: Path, first: int, count: int) -> None:
    """Rows with a data file each."""
    rows = rows_of(np.arange(first, first + count), 1, 0)
    lance.write_dataset(
        pa.table(rows), str(table), mode="append" if first else "create", max_rows_per_file=1
    )


def _back_up(server: CountedS3, table: Path, dest: str) -> Seen:
    server.forget()
    options = [word.replace("--storage", "--dest-storage") for word in server.arguments]
    run_memwal("backup", table, dest, *options)
    return server.seen()
