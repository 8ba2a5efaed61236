"""Makes and writes real tables for the Airflow tests; run by .venv's Python, never imported.

One request a line on stdin, one answer a line on stdout, both JSON: `{"do": NAME, ...}` is a call
of the function of that name; the answer is `{"ok": RESULT}` or `{"error": TEXT}`. It ends when
stdin does.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from memwal.read import open_table
from memwal.run.lease import HeldLease
from tests.support.builders import Delete, Put, Table, check_merged, make_table, same_rows

TABLES: dict[str, Table] = {}
LEASES: dict[str, HeldLease] = {}


def make(uri: str, rows: int, shards: int, indexed: bool, kind: str, stable: bool) -> list[str]:
    """A table at `uri` with keys 0 up to `rows`; the ids of its shards."""
    TABLES[uri] = make_table(
        uri, kind, rows=range(rows), shards=shards, indexed=indexed, enable_stable_row_ids=stable
    )
    return [str(shard) for shard in TABLES[uri].shards]


def flush(uri: str, shard: int, puts: list[int], deletes: list[int], n: int) -> int:
    """One writer session on the shard of that position; the number of its generation."""
    table = TABLES[uri]
    operations: list[Put | Delete] = []
    if puts:
        operations.append(Put(puts, n=n))
    if deletes:
        operations.append(Delete(deletes))
    return table.flush(table.shards[shard], *operations)


def progress(uri: str) -> dict[str, int]:
    """Merge progress by shard."""
    return {str(shard): number for shard, number in TABLES[uri].progress().items()}


def flushed(uri: str) -> dict[str, int]:
    """The highest flushed generation by shard."""
    return {str(shard): len(done) for shard, done in TABLES[uri].effects.items()}


def check(uri: str, merged: bool) -> None:
    """The merging read is what the writers wrote; `merged`: so is the base table alone."""
    table = TABLES[uri]
    if merged:
        check_merged(table)
    same_rows(table.lsm_rows(), table.truth(), "LSM read")


def land(uri: str, file: str, puts: list[int], n: int) -> list[list[Any]]:
    """A Parquet file of rows of the table, whole when it has its name; their keys, and `n`."""
    rows = [TABLES[uri].row(key, n) for key in puts]
    hidden = Path(file).with_name(f".{Path(file).name}")
    hidden.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=TABLES[uri].dataset.schema), hidden)
    hidden.rename(file)
    return [[*TABLES[uri].kind.key(key), n] for key in puts]


def read(uri: str, column: str) -> list[list[Any]]:
    """The values of a column, and those of the key before them."""
    (key,) = TABLES[uri].kind.names
    rows = open_table(uri, {}).read().read_all().select([key, column]).to_pylist()
    return sorted([row[key], row[column]] for row in rows)


def hold_lease(uri: str) -> None:
    """Hold the table's lease until `release_lease`, as a running job would."""
    LEASES[uri] = HeldLease(TABLES[uri].stores.leases, "a test")


def release_lease(uri: str) -> None:
    """Give it up."""
    LEASES.pop(uri).release()


OPERATIONS: dict[str, Callable[..., Any]] = {
    operation.__name__: operation
    for operation in (make, flush, progress, flushed, check, land, read, hold_lease, release_lease)
}


def serve(operations: Mapping[str, Callable[..., Any]]) -> None:
    """Do what stdin asks for, until it ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": operations[request.pop("do")](**request)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(OPERATIONS)
