"""Live writers that may fail, the model of what they may have written, and the checks at the end.

A put or delete that was acknowledged is there. One that failed, or whose process died, may be: the
model then holds both outcomes for its keys until a later acknowledged one settles them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from memwal.config import ResolvedTable, Settings
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.request import MaintainRequest
from memwal.jobs.verify.job import run_verify
from memwal.model import ShardId
from memwal.report import NOTHING_TO_DO, JobReport
from memwal.run.options import RunOptions
from memwal.run.progress import Silent
from tests.support import builders
from tests.support.builders import Delete, Put, Rows, Table

GRACE_SECONDS = 0.5
MEMTABLE_ROWS = 150


class Watched(Silent):
    """A Progress that keeps what went wrong unexpectedly."""

    def __init__(self) -> None:
        self.traces: list[str] = []

    def trace(self, text: str) -> None:
        self.traces.append(text)


# ---- the model


@dataclass(kw_only=True)
class Model:
    """For each key by number, the values (`n`) that its row may have; None is no row."""

    table: Table
    possible: dict[int, set[int | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Table, keys: int, rows: Iterable[int]) -> Model:
        """`rows` are the keys that the base was made with (`builders.make_table`)."""
        there = set(rows)
        start = {key: {1000 + key if key in there else None} for key in range(keys)}
        return cls(table=table, possible=start)

    def begun(self, op: Put | Delete) -> None:
        for key, n in _values(op):
            self.possible[key] = self.possible[key] | {n}

    def acknowledged(self, op: Put | Delete) -> None:
        for key, n in _values(op):
            self.possible[key] = {n}

    def check(self, rows: Rows, what: str) -> None:
        """The rows are ones that the writers' acknowledgements allow, each in one piece."""
        numbers = {self.table.kind.key(key): key for key in self.possible}
        assert rows.keys() <= numbers.keys(), f"{what}: {len(rows)} rows, unknown keys among them"
        for key, number in numbers.items():
            row = rows.get(key)
            n = None if row is None else row["n"]
            assert n in self.possible[number], f"{what}: key {number}: {n}, {self.possible[number]}"
            assert row is None or row == self.table.row(number, n), f"{what}: key {number}: {row}"


def _values(op: Put | Delete) -> list[tuple[int, int | None]]:
    if isinstance(op, Delete):
        return [(key, None) for key in op.keys]
    return [(key, op.n + place) for place, key in enumerate(op.keys)]


# ---- writers


def operations(keys: Sequence[int], chance: random.Random) -> Iterable[Put | Delete]:
    """Inserts, updates and deletes without end."""
    while True:
        yield Put(chance.sample(keys, min(12, len(keys))), chance.randrange(2**23))
        if chance.random() < 0.4:
            yield Delete(chance.sample(keys, min(4, len(keys))))


def open_writer(table: Table, shard: ShardId) -> Any:
    return table.writer(shard, max_memtable_rows=MEMTABLE_ROWS)


def keys_of(place: int, shards: int, keys: int) -> Sequence[int]:
    """Each shard has its own keys: one writer a key (spec)."""
    return range(place, keys, shards)


def flush(table: Table) -> None:
    """Bring what is only in WALs into generations: a writer that opens replays, and then closes."""
    for shard in table.shards:
        with table.writer(shard):
            pass


# ---- jobs


def resolved(table: Table, settings: Settings | None = None) -> ResolvedTable:
    return ResolvedTable(
        name=table.uri,
        uri=table.uri,
        settings=settings or Settings(),
        storage_options=table.options,
    )


def maintain(*tables: Table, progress: Watched | None = None, **options: Any) -> JobReport:
    """`memwal maintain --execute --wal --retention 0 --grace 0.5s --allow-short-retention`."""
    asked = {"compaction": "always", "retention_seconds": 0.0} | {
        name: options.pop(name) for name in ("compaction", "retention_seconds") if name in options
    }
    return run_maintain(
        MaintainOptions(
            tables=[resolved(table) for table in tables],
            engine="local",
            request=MaintainRequest(
                execute=True,
                allow_short_retention=True,
                grace_seconds=GRACE_SECONDS,
                wal=True,
                **asked,
            ),
            **options,
        ),
        progress or Watched(),
    )


def finish(table: Table, *, grace: Callable[[], None], runs_max: int = 8) -> int:
    """Rerun until nothing is left to do; each run has to be well. Returns the runs it took."""
    for number in range(1, runs_max + 1):
        progress = Watched()
        report = maintain(table, progress=progress)
        assert not progress.traces, progress.traces[0]
        assert report.exit_code == 0, [t.error for t in report.tables]
        if report.outcome == NOTHING_TO_DO:
            return number
        grace()
    raise AssertionError(f"still not done after {runs_max} runs")


def check_verified(table: Table) -> None:
    report = run_verify(RunOptions(tables=[resolved(table)]), Watched())
    assert report.exit_code == 0, report.tables
    for check in report.tables[0].checks:  # type: ignore[attr-defined]
        assert check.ok is not False, check


# ---- writers in processes of their own


def write_and_log(
    uri: str,
    options: dict[str, str],
    shard: str,
    keys: Sequence[int],
    seed: int,
    log: str,
    pause_seconds: float,
) -> None:
    """Write until the file `log`.stop is there, or until this process dies.

    Each operation is announced in the log before it begins, and noted when it is acknowledged:
    written with one system call each, so that the log tells the truth after a SIGKILL.
    """
    table = Table(uri=uri, kind=builders.KINDS["int64"], options=options)
    schema = table.dataset.schema
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open_writer(table, ShardId(shard)) as writer:
        for op in operations(keys, random.Random(seed)):
            if os.path.exists(f"{log}.stop"):  # noqa: PTH110
                return
            os.write(handle, b"begun\n")
            builders.apply(table, writer, schema, op, {})
            os.write(handle, b"acknowledged\n")
            time.sleep(pause_seconds)


def replay_log(model: Model, keys: Sequence[int], seed: int, log: Path) -> int:
    """Take what the log tells into the model; returns how many operations were acknowledged."""
    found = log.read_text().split() if log.exists() else []
    acknowledged = found.count("acknowledged")
    begun = islice(operations(keys, random.Random(seed)), found.count("begun"))
    for number, op in enumerate(begun):
        model.begun(op)
        if number < acknowledged:  # none but the last can lack it
            model.acknowledged(op)
    return acknowledged
