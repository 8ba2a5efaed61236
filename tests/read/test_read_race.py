"""`read --with-wal` beside a writer in another process whose MemTables fill up all the time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.read import open_table
from memwal.rows.policy import make_policy
from tests.support import builders
from tests.support.builders import Table

pytestmark = pytest.mark.integration

SECONDS = float(os.environ.get("MEMWAL_RACE_SECONDS", "4"))
KEYS = 5
# Tells each row before it is put, and again when it is acknowledged.
WRITER = """
import sys, time, lance, pyarrow as pa
uri, shard, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
dataset = lance.dataset(uri)
end, n = time.monotonic() + seconds, 0
with dataset.mem_wal_writer(shard, max_memtable_rows=3) as writer:
    while time.monotonic() < end:
        n += 1
        print("put", n, flush=True)
        writer.put(pa.table({"k": [n % %d], "n": [n]}, schema=dataset.schema))
        print("done", n, flush=True)
""".replace("%d", str(KEYS))


class Writer(threading.Thread):
    """What the process told so far: rows 1 to `put` were begun, 1 to `done` are acknowledged."""

    def __init__(self, uri: str, shard: str) -> None:
        super().__init__(daemon=True)
        self.put = self.done = 0
        command = [sys.executable, "-c", WRITER, uri, shard, str(SECONDS)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def run(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, n = line.split()
            setattr(self, word, int(n))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["newest wins", "sum", "no key"])
def test_a_read_has_all_that_was_acknowledged_before_and_nothing_twice(
    tmp_path: Path, kind: str
) -> None:
    uri = str(tmp_path / "t")
    keyed = kind != "no key"
    facts = {b"lance-schema:unenforced-primary-key": b"true"} if keyed else None
    schema = pa.schema(
        [pa.field("k", pa.int64(), nullable=False, metadata=facts), ("n", pa.int64())]
    )
    lance.write_dataset(schema.empty_table(), uri).initialize_mem_wal()
    if kind == "sum":
        stores = Table(uri=uri, kind=builders.KINDS["int64"]).stores
        stores.tables.put_policy(make_policy({"n": ("sum", None)}, None, None).as_text())
    writer = Writer(uri, "6d6f6e6f-0000-4000-8000-000000000001")
    writer.start()
    reads = 0
    while writer.is_alive():
        least = writer.done
        found = open_table(uri).read(with_wal=True).read_all()
        time.sleep(0.02)  # what was told meanwhile is heard
        most = writer.put
        check(found, least, most, kind)
        reads += 1
    assert writer.process.wait() == 0
    assert reads > 3
    assert writer.done > 10
    check(open_table(uri).read(with_wal=True).read_all(), writer.done, writer.done, kind)


def check(found: pa.Table, least: int, most: int, kind: str) -> None:
    """Writes are in order: a read holds all of them up to its last."""
    rows = sorted(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True))
    # One of these it must be, exactly.
    assert any(rows == expected(last, kind) for last in range(least, most + 1)), (least, most, rows)


def expected(last: int, kind: str) -> list[tuple[int, int]]:
    written = [(n % KEYS, n) for n in range(1, last + 1)]
    if kind == "no key":
        return sorted(written)
    sums: Counter[int] = Counter()
    for key, n in written:
        sums[key] = n if kind == "newest wins" else sums[key] + n
    return sorted(sums.items())
