"""Counters under writers, mergers and kill -9: every acknowledged operand counts exactly once.

Each operand carries an id in a list column, and adds a number that follows from the id: so each row
says itself what its sum has to be. `MEMWAL_COUNTER_SECONDS` says how long (default 4).
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from memwal.jobs.merge.request import MergeRequest

from memwal.jobs.merge.apply.shard import ShardMerger
from memwal.jobs.merge.unit import open_merge_table
from memwal.model import ShardId
from memwal.read import open_table
from memwal.rows.policy import make_policy
from memwal.run.stores import open_stores
from tests.support.nursery import Started, start

pytestmark = [pytest.mark.integration, pytest.mark.races]

SECONDS = float(os.environ.get("MEMWAL_COUNTER_SECONDS", "4"))
SHARDS = 2
KEYS = 6
BATCH_ROWS = 8
MEMTABLE_ROWS = 40

POLICY = make_policy({"total": ("sum", None), "ops": ("list_append", None)}, None, None)
_KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=_KEY),
        pa.field("total", pa.int64()),
        pa.field("ops", pa.list_(pa.int64())),
    ]
)


def amount(op: int) -> int:
    """What an operand adds."""
    return op * 7919 % 201 - 100


# ---- processes of their own, until they are killed


def write(uri: str, number: int, life: int, log: str) -> None:
    """Put operands to the keys of one shard; note an operand before, and again once it is safe."""
    chance = random.Random(life * 100 + number)
    writer = lance.dataset(uri).mem_wal_writer(
        str(shard_of(number)), max_wal_flush_interval_ms=1, max_memtable_rows=MEMTABLE_ROWS
    )
    op = (life * SHARDS + number) * 1_000_000
    with Path(log).open("a") as file:
        while True:
            ops = range(op, op + BATCH_ROWS)
            op += BATCH_ROWS
            print("tried", *ops, file=file, flush=True)
            writer.put(operands(ops, [number + SHARDS * chance.randrange(KEYS) for _ in ops]))
            print("acked", *ops, file=file, flush=True)


def maintain(uri: str) -> None:
    """Merge over and over, and do to the base what compaction and index catch-up do."""
    merger = merger_of(uri)
    while True:
        for number in range(SHARDS):
            merger.run(shard_of(number), MergeRequest())
        with suppress(OSError, RuntimeError, ValueError):  # a merge got there first
            lance.dataset(uri).optimize.compact_files()
            lance.dataset(uri).optimize.optimize_indices()


# ----

Call = tuple[Any, ...]
"""A function of this module, and what it is given."""


def shard_of(number: int) -> ShardId:
    return ShardId(str(uuid.UUID(int=number + 1, version=4)))


def operands(ops: range, keys: list[int]) -> pa.Table:
    return pa.table(
        {"id": keys, "total": [amount(op) for op in ops], "ops": [[op] for op in ops]},
        schema=SCHEMA,
    )


def merger_of(uri: str) -> ShardMerger:
    stores = open_stores(uri, {})
    return ShardMerger(views=stores.views, table=open_merge_table(stores), clock=stores.clock)


def make(uri: str) -> None:
    dataset = lance.write_dataset(operands(range(2), [0, 1]), uri, schema=SCHEMA)
    dataset.create_scalar_index("id", "BTREE")
    dataset.initialize_mem_wal()
    open_stores(uri, {}).tables.put_policy(POLICY.as_text())


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[Started]:
    with start(target, *arguments) as started:
        try:
            yield started
        finally:
            started.kill()


def rows_of(table: pa.Table) -> dict[int, dict[str, Any]]:
    """Rows by key; each must be what its own operands say."""
    rows = {row["id"]: row for row in table.to_pylist()}
    assert len(rows) == len(table), "a key is there twice"
    for row in rows.values():
        again = [op for op, times in Counter(row["ops"]).items() if times > 1]
        assert not again, f"key {row['id']}: counted twice: {again[:10]}"
        assert row["total"] == sum(map(amount, row["ops"])), f"key {row['id']}"
    return rows


def noted(log: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {"tried": set(), "acked": set()}
    for line in log.read_text().splitlines():
        word, *ops = line.split()
        found[word].update(map(int, ops))
    return found


def live(uri: str, calls: list[Call], chance: random.Random, checked: int) -> int:
    """Run them until something was merged, and kill them one by one; the version that is there."""
    with ExitStack() as stack:
        running = [process(*call) for call in calls]
        started = [stack.enter_context(one) for one in chance.sample(running, len(running))]
        patience = time.monotonic() + 120
        commits = chance.randint(3, 8)
        before: set[int] = set()
        while int(lance.dataset(uri).version) < checked + commits:
            assert time.monotonic() < patience, "nothing was merged"
            assert all(one.poll() is None for one in started), "a process ended by itself"
            seen = rows_of(open_table(uri).read().read_all())
            counted = {op for row in seen.values() for op in row["ops"]}
            assert before <= counted, "a read counts less than one before it"
            before = counted
            time.sleep(0.1)
    newest = int(lance.dataset(uri).version)
    for version in range(checked + 1, newest + 1):
        rows_of(lance.dataset(uri, version).to_table())
    return newest


def drain(uri: str) -> None:
    """Let new writers replay what killed ones left in the WAL, and merge everything."""
    for number in range(SHARDS):
        lance.dataset(uri).mem_wal_writer(str(shard_of(number))).close()
        found = merger_of(uri).run(shard_of(number), MergeRequest())
        assert found.error is None, found


def test_counters_are_exact_whatever_is_killed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    make(uri)
    logs = [tmp_path / f"writer-{number}.log" for number in range(SHARDS)]
    for log in logs:
        log.touch()
    chance = random.Random(1)
    checked = int(lance.dataset(uri).version)
    deadline = time.monotonic() + SECONDS
    life = 0
    while time.monotonic() < deadline or life < 2:
        life += 1
        calls: list[Call] = [(write, uri, n, life, log) for n, log in enumerate(logs)]
        checked = live(uri, [*calls, (maintain, uri), (maintain, uri)], chance, checked)
    drain(uri)

    rows = rows_of(lance.dataset(uri).to_table())

    counted = {op for row in rows.values() for op in row["ops"]}
    first = set(range(2))
    tried = set.union(first, *(noted(log)["tried"] for log in logs))
    acked_ops = set.union(first, *(noted(log)["acked"] for log in logs))
    assert not acked_ops - counted, f"lost: {sorted(acked_ops - counted)[:10]}"
    assert not counted - tried, f"from nowhere: {sorted(counted - tried)[:10]}"
    assert sum(row["total"] for row in rows.values()) == sum(map(amount, counted))
    print(
        f"{life} lives, {checked} versions, {len(acked_ops)} acknowledged, {len(counted)} counted"
    )
