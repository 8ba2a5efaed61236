"""What it costs to follow a large table of which a merge changed 1,000 rows (B23).

Requests and bytes are counted at the S3 server that has the table.
"""

from __future__ import annotations

from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import memwal
from bench.counted_s3 import CountedS3, Seen
from bench.harness import Bench, run_memwal
from bench.tables import flush, new_shards, rows_of

TITLE = "Changes"

_ROWS = 10_000_000
_QUICK_ROWS = 1_000_000
_CHANGED = 1_000


def run(bench: Bench) -> None:
    """B23."""
    rows = _QUICK_ROWS if bench.quick else _ROWS
    table = bench.new_folder("changes") / "t"
    lance.write_dataset(rows_of(np.arange(rows), 0, 0), str(table), enable_stable_row_ids=True)
    dataset = lance.dataset(str(table))
    dataset.initialize_mem_wal()
    since = lance.dataset(str(table)).version
    changed = np.random.default_rng(7).choice(rows, _CHANGED, replace=False)
    flush(str(table), new_shards(1)[0], rows_of(changed, 1, 0))
    run_memwal("merge", table, "--engine", "local")
    until = lance.dataset(str(table)).version
    seen: dict[str, Seen] = {}
    with CountedS3() as server:
        uri = server.place(table)
        ours = memwal.open_table(uri, storage_options=server.storage_options)

        def follow() -> int:
            return int(ours.changes(since=since, until=until).read_all().num_rows)

        def compare() -> int:
            old, new = (_read(uri, version, server.storage_options) for version in (since, until))
            return int(new.num_rows - pc.sum(pc.equal(old["v"], new["v"])).as_py())

        def counted(name: str, work: Any) -> None:
            server.forget()
            if work() < _CHANGED:
                raise RuntimeError(f"{name}: changes are missing")
            seen[name] = server.seen()

        follow()  # imports, and connections
        compare()
        seconds = bench.side_by_side(
            {
                "changes": lambda: counted("changes", follow),
                "whole": lambda: counted("whole", compare),
            }
        )
    what = f"changes of {_CHANGED:,} rows of {rows:,} on S3, against reading both versions whole"
    ours_, whole = seen["changes"], seen["whole"]
    costs = {"requests": ours_.requests, "requests, whole": whole.requests}
    bench.ratio("B23", what, seconds, "changes", "whole", costs=costs)
    bench.figure(
        "B23",
        f"{what}: bytes",
        ours_.bytes_received / whole.bytes_received,
        "x",
        measured=f"{ours_.bytes_received / 1e6:.3g} MB of {whole.bytes_received / 1e6:.3g} MB",
    )


def _read(uri: str, version: int, options: dict[str, str]) -> pa.Table:
    found = lance.dataset(uri, version=version, storage_options=options).to_table()
    return found.sort_by("id")
