"""Three kinds of tables under live writers, and what each has to hold by what they wrote.

A writer is a process of its own that is never killed: what it wrote is what its log counts. It
closes its sessions when it is told to pause, which flushes all that it has put.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("LANCE_LOG", "error,lance::index=off")

import lance
import pyarrow as pa

from memwal.read import ReadRequest, open_table
from memwal.run.stores import Stores, open_stores
from memwal.testing import ManualClock
from tests.faults.live import keys_of
from tests.support import builders, indexed, policy_tables
from tests.support.builders import Delete, Put, Row, Rows, same_rows
from tests.support.freshness import waiting
from tests.support.lsm_reads import lsm_read
from tests.support.nursery import Started, start
from tests.support.policy_tables import NOW, PolicyTable, Variant

KEYS = 400
SHARDS = 2
MEMTABLE_ROWS = 40
INDEXES = ("key_idx", "cat_idx", "tags_idx", "text_idx", "flat_idx")
"""BTREE, BITMAP, LABEL_LIST, INVERTED, IVF_FLAT."""
_PAUSE_POLL_SECONDS = 0.02


class _Kind(Protocol):
    """What a table of a kind is made of. `options` are storage options."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the key."""
        ...

    def make(self, uri: str, options: Mapping[str, str]) -> list[str]:
        """Make the table; the ids of its shards."""
        ...

    def row(self, key: int, n: int) -> Row:
        """What a put of this key with this number writes."""
        ...

    def truth(self, done: Sequence[Sequence[tuple[int, Row | None]]]) -> Rows:
        """The rows of the table after these writes, shard by shard; None is a delete."""
        ...


# ---- kinds


@dataclass(kw_only=True)
class _Plain:
    """The newest row of a key wins."""

    key: str
    indexes: Sequence[str] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return builders.KINDS[self.key].names

    def make(self, uri: str, options: Mapping[str, str]) -> list[str]:
        if self.indexes:
            made = indexed.make_indexed(uri, self.indexes, shards=SHARDS, options=options)
        else:
            made = builders.make_table(
                uri, self.key, rows=range(KEYS), shards=SHARDS, indexed=True, options=options
            )
        return [str(shard) for shard in made.shards]

    def _table(self, uri: str = "") -> builders.Table:
        return builders.Table(uri=uri, kind=builders.KINDS[self.key])

    def _extra(self, n: int) -> Row:
        if not self.indexes:
            return {}
        return {
            "category": f"c{n % 7}",
            "tags": ["all", f"g{n % 3}"],
            "zone": None,
            "bloom": None,
        }

    def row(self, key: int, n: int) -> Row:
        return self._table().row(key, n, self._extra(n))

    def truth(self, done: Sequence[Sequence[tuple[int, Row | None]]]) -> Rows:
        table = self._table()
        none = dict.fromkeys(("category", "tags", "zone", "bloom") if self.indexes else ())
        rows = {table.kind.key(key): table.row(key, 1000 + key, none) for key in range(KEYS)}
        for shard in done:
            for key, row in shard:
                if row is None:
                    rows.pop(table.kind.key(key), None)
                else:
                    rows[table.kind.key(key)] = row
        return rows


class _Policy:
    """Operands are folded: sums, a maximum, a set, a list of the last four."""

    def __init__(self) -> None:
        self._table = PolicyTable(uri="", variant=Variant(expiry=False), clock=ManualClock())

    @property
    def names(self) -> tuple[str, ...]:
        return self._table.kind.names

    def make(self, uri: str, options: Mapping[str, str]) -> list[str]:
        made = policy_tables.make_policy_table(
            uri,
            self._table.variant,
            rows=range(KEYS),
            shards=SHARDS,
            indexed=True,
            options=options,
        )
        return [str(shard) for shard in made.shards]

    def row(self, key: int, n: int) -> Row:
        return self._table.row(
            key, n, x=0.0, top=f"{n % 10}", tags=[f"t{n % 5}"], seen=n % 3, op=n % 4 > 0
        )

    def truth(self, done: Sequence[Sequence[tuple[int, Row | None]]]) -> Rows:
        base = {key: self._table.row(key, 1000 + key, op=False) for key in range(KEYS)}
        found = self._table.variant.model.table(base, done, NOW)
        return self._table.by_key(found)


KINDS: dict[str, Callable[[], _Kind]] = {
    "composite": lambda: _Plain(key="utf8+int32"),
    "policy": _Policy,
    "indexed": lambda: _Plain(key="int64", indexes=INDEXES),
}


# ---- writers


def operations(place: int, seed: int) -> Iterator[Put | Delete]:
    """What a shard's writer does, without end: inserts, updates and deletes of its own keys.

    No number comes twice, and all are small enough for float32 to tell quarters apart.
    """
    chance = random.Random(seed * SHARDS + place)
    keys = keys_of(place, SHARDS, KEYS)
    number = 10_000 + place
    while True:
        yield Put(chance.sample(keys, 12), number)
        number += 12 * SHARDS
        if chance.random() < 0.3:
            yield Delete(chance.sample(keys, 3))


def _rows(kind: _Kind, op: Put | Delete) -> list[tuple[int, Row | None]]:
    if isinstance(op, Delete):
        return [(key, None) for key in op.keys]
    return [(key, kind.row(key, op.n + SHARDS * i)) for i, key in enumerate(op.keys)]


def write_until_told(
    kind_name: str,
    uri: str,
    options: dict[str, str],
    shards: Sequence[str],
    seed: int,
    log: str,
    pause_seconds: float,
) -> None:
    """Write to each shard in turn until the file `log`.stop is there; pause while `log`.pause is.

    While it pauses, `log`.paused is there: all that was put is flushed.
    """
    kind = KINDS[kind_name]()
    dataset = lance.dataset(uri, storage_options=options or None)
    schema = dataset.schema
    streams = [operations(place, seed) for place in range(len(shards))]
    stop, pause, paused = (Path(f"{log}.{word}") for word in ("stop", "pause", "paused"))
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    turn = 0
    while not stop.exists():
        if pause.exists():
            paused.touch()
            time.sleep(_PAUSE_POLL_SECONDS)
            continue
        paused.unlink(missing_ok=True)
        with ExitStack() as sessions:
            writers = [sessions.enter_context(_open_writer(dataset, shard)) for shard in shards]
            while not pause.exists() and not stop.exists():
                place = turn % len(shards)
                _write(writers[place], schema, kind, next(streams[place]))
                os.write(handle, b"\n")
                turn += 1
                time.sleep(pause_seconds)


def _open_writer(dataset: Any, shard: str) -> Any:
    return dataset.mem_wal_writer(
        shard, max_wal_flush_interval_ms=1, max_memtable_rows=MEMTABLE_ROWS
    )


def _write(writer: Any, schema: pa.Schema, kind: _Kind, op: Put | Delete) -> None:
    rows = [row or kind.row(key, 0) for key, row in _rows(kind, op)]
    data = pa.Table.from_pylist(rows, schema=schema)
    if isinstance(op, Put):
        writer.put(data)
        return
    writer.delete(data.select(kind.names))


# ---- one table


@dataclass(kw_only=True)
class Soaked:
    """A table under writes. `options` lead to the store itself, whatever the watch goes through."""

    name: str
    kind_name: str = ""
    """Of KINDS; the same as the name unless given."""
    uri: str
    options: dict[str, str] = field(default_factory=dict)
    folder: Path
    seed: int
    pause_seconds: float
    shards: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kind_name = self.kind_name or self.name
        self.kind = KINDS[self.kind_name]()
        self.log = self.folder / f"{self.name}.writes"

    def make(self) -> None:
        self.shards = self.kind.make(self.uri, self.options)

    @property
    def stores(self) -> Stores:
        return open_stores(self.uri, self.options)

    # -- its writer

    def start_writer(self) -> None:
        self._writer: Started = start(
            write_until_told,
            self.kind_name, self.uri, self.options, self.shards, self.seed, self.log,
            self.pause_seconds,
        )  # fmt: skip

    def pause(self) -> None:
        """Returns once everything is flushed."""
        Path(f"{self.log}.pause").touch()
        deadline = time.monotonic() + 60
        while not Path(f"{self.log}.paused").exists():
            assert self._writer.poll() is None, self._writer.stderr.read()
            assert time.monotonic() < deadline, f"{self.name}: the writer does not pause"
            time.sleep(_PAUSE_POLL_SECONDS)

    def resume(self) -> None:
        Path(f"{self.log}.pause").unlink()

    def stop_writer(self) -> None:
        Path(f"{self.log}.stop").touch()
        assert self._writer.wait() == 0, self._writer.stderr.read()

    def kill_writer(self) -> None:
        self._writer.kill()

    # -- what it holds; only while the writer pauses

    @property
    def writes(self) -> int:
        return self.log.stat().st_size

    def done(self) -> list[list[tuple[int, Row | None]]]:
        """What each shard's writer has written."""
        streams = [operations(place, self.seed) for place in range(len(self.shards))]
        done: list[list[tuple[int, Row | None]]] = [[] for _ in streams]
        for turn in range(self.writes):
            place = turn % len(streams)
            done[place] += _rows(self.kind, next(streams[place]))
        return done

    def waits(self) -> bool:
        """Whether anything is left to be merged or indexed."""
        return any(waiting(self.stores.views.table()))

    def check(self, *, merged: bool) -> None:
        """The merging read is the truth; `merged`: so is the base alone, and what indexes find."""
        truth = self.kind.truth(self.done())
        table = open_table(self.uri, self.options)
        read = table.open_reader(ReadRequest(), with_wal=False)[1].read_all()
        same_rows(self._keyed(read), truth, f"{self.name}: merging read")
        if not isinstance(self.kind, _Policy):  # pylance's own knows no policies
            same_rows(self._keyed(lsm_read(self.uri, self.options)), truth, f"{self.name}: pylance")
        if merged:
            base = lance.dataset(self.uri, storage_options=self.options or None)
            same_rows(self._keyed(base.to_table()), truth, f"{self.name}: base")
        if merged and isinstance(self.kind, _Plain) and self.kind.indexes:
            plain = builders.Table(
                uri=self.uri, kind=builders.KINDS["int64"], options=self.options, base=truth
            )
            indexed.check_answers(plain, INDEXES)

    def _keyed(self, table: pa.Table) -> Rows:
        rows: Rows = {}
        for row in table.to_pylist():
            key = tuple(row[name] for name in self.kind.names)
            assert key not in rows, f"{self.name}: key {key} is there twice"
            rows[key] = row
        return rows
