"""Real tables of every kind for drills, written by pylance, each with the truth about its rows.

The truth is a plain model of what was written. `memwal`'s jobs run while a table is made, as they
would in its life, and no row is asked of them.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

Key = tuple[Any, ...]
Row = dict[str, Any]
Rows = dict[Key, Row]

_IS_KEY = "lance-schema:unenforced-primary-key"
_KEYS: Mapping[str, Sequence[tuple[str, pa.DataType]]] = {
    "int64": (("k", pa.int64()),),
    "utf8+int64": (("k1", pa.string()), ("k2", pa.int64())),
}
_FOLDED = (("total", pa.int64()), ("log", pa.list_(pa.int64())))
_CATEGORIES = ("red", "green", "blue")


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What each read of a table has to give.

    `base` is the base table alone, `latest` with what was flushed, `wal` with all that was
    acknowledged. `moments` are checkpoints by name. `snapshots` are states that a read by the
    shard snapshot may give, too. Of several states, each row may be of another.
    """

    keys: tuple[str, ...]
    folds: bool
    indexed: bool
    base: Rows
    latest: tuple[Rows, ...]
    wal: Rows
    moments: Mapping[str, Rows]
    snapshots: tuple[Rows, ...]

    def when_repaired(self) -> Truth:
        """A repair may have flushed what was in a shard's WAL."""
        return replace(self, latest=(*self.latest, self.wal))


def fold(rows: Rows, changes: Iterable[tuple[Key, Row | None]], *, folds: bool) -> None:
    """Apply puts, and deletes (None), one after the other."""
    for key, row in changes:
        before = rows.get(key)
        if row is None:
            rows.pop(key, None)
        elif before is not None and folds:
            total, log = before["total"] + row["total"], [*before["log"], *row["log"]]
            rows[key] = {**row, "total": total, "log": log}
        else:
            rows[key] = row


@dataclass(kw_only=True)
class Maker:
    """Makes one table, and keeps its model."""

    uri: str
    key: str = "int64"
    folds: bool = False
    indexed: bool = False
    shards: list[str] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    base: Rows = field(default_factory=dict)
    flushed: Rows = field(default_factory=dict)
    moments: dict[str, Rows] = field(default_factory=dict)
    snapshots: list[Rows] = field(default_factory=list)
    writers: list[Any] = field(default_factory=list)
    """Abandoned with rows in the WAL; they are kept, so that none flushes as it goes."""
    number: int = 0

    @property
    def schema(self) -> pa.Schema:
        marks = [{_IS_KEY: "true", f"{_IS_KEY}:position": str(n)} for n in (1, 2)]
        keys = [
            pa.field(name, kind, nullable=False, metadata=mark)
            for (name, kind), mark in zip(_KEYS[self.key], marks, strict=False)
        ]
        plain = [("n", pa.int64()), ("cat", pa.string()), ("text", pa.string())]
        return pa.schema([*keys, *plain, *(_FOLDED if self.folds else ())])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in _KEYS[self.key])

    def key_of(self, i: int) -> Key:
        return (i,) if self.key == "int64" else (f"it's {i % 7}", i)

    def row(self, i: int) -> Row:
        self.number += 1
        n = self.number
        plain = {"n": n, "cat": _CATEGORIES[n % 3], "text": f"word{n % 10} row {n}"}
        folded = {"total": n, "log": [n]} if self.folds else {}
        return {**dict(zip(self.names, self.key_of(i), strict=True)), **plain, **folded}

    def make(self, keys: Iterable[int], shards: int, **write: Any) -> Maker:
        rows = [self.row(i) for i in keys]
        self.rows = {self._key(row): row for row in rows}
        dataset = lance.write_dataset(
            pa.Table.from_pylist(rows, schema=self.schema), self.uri, max_rows_per_file=15, **write
        )
        if self.indexed:
            dataset.create_scalar_index("n", "BTREE")
            dataset.create_scalar_index("cat", "BITMAP")
            dataset.create_scalar_index("text", "INVERTED")
        dataset.initialize_mem_wal()
        self.shards = [str(uuid.uuid5(uuid.NAMESPACE_URL, f"shard {n}")) for n in range(shards)]
        self.base, self.flushed = dict(self.rows), dict(self.rows)
        return self

    def _key(self, row: Mapping[str, Any]) -> Key:
        return tuple(row[name] for name in self.names)

    def write(self, shard: int, puts: Sequence[Sequence[int]], deletes: Sequence[int] = ()) -> Any:
        """One session of the writer: a put after the other, then the deletes."""
        writer = lance.dataset(self.uri).mem_wal_writer(
            self.shards[shard], max_wal_flush_interval_ms=1
        )
        for keys in puts:
            rows = [self.row(i) for i in keys]
            writer.put(pa.Table.from_pylist(rows, schema=self.schema))
            fold(self.rows, ((self._key(row), row) for row in rows), folds=self.folds)
        if deletes:
            only = pa.schema([self.schema.field(name) for name in self.names])
            keys_ = [dict(zip(self.names, self.key_of(i), strict=True)) for i in deletes]
            writer.delete(pa.Table.from_pylist(keys_, schema=only))
            fold(self.rows, ((self._key(row), None) for row in keys_), folds=self.folds)
        return writer

    def flush(self, *given: Any, **named: Any) -> None:
        """A generation."""
        self.write(*given, **named).close()
        self.flushed = dict(self.rows)

    def abandon(self, *given: Any, **named: Any) -> None:
        """Rows that are in the WAL only."""
        self.writers.append(self.write(*given, **named))

    def run(self, job: str, **options: Any) -> None:
        """One of memwal's jobs."""
        import memwal

        config = Path(f"{self.uri}.toml")
        if self.folds:
            policy = '[tables.t.policy.columns]\ntotal = "sum"\nlog = "list_append"\n'
            config.write_text(f'[tables.t]\nuri = "{self.uri}"\n{policy}')
            table = memwal.open_table("t", config=str(config), engine="local")
        else:
            table = memwal.open_table(self.uri, engine="local")
        getattr(table, job)(**options)
        config.unlink(missing_ok=True)
        if job in ("merge", "maintain"):
            self.base = dict(self.flushed)
            self.snapshots = [dict(self.flushed) for _ in self.snapshots]

    def collect(self) -> None:
        self.run(
            "garbage",
            execute=True,
            retention_seconds=0,
            grace_seconds=0,
            wal=True,
            allow_short_retention=True,
        )

    def refresh(self) -> None:
        self.run("snapshot")
        self.snapshots = [dict(self.flushed)]

    def keep(self, name: str) -> None:
        self.run("checkpoint", name=name)
        self.moments[name] = dict(self.flushed)

    def truth(self) -> Truth:
        return Truth(
            keys=self.names,
            folds=self.folds,
            indexed=self.indexed,
            base=self.base,
            latest=(self.flushed,),
            wal=self.rows,
            moments=self.moments,
            snapshots=tuple(self.snapshots),
        )


def _plain(uri: str) -> Maker:
    table = Maker(uri=uri).make(range(40), 1)
    table.flush(0, [range(10), range(50, 55)])
    table.flush(0, [range(5, 12)], deletes=[20, 21, 52])
    table.run("merge")
    table.flush(0, [range(8, 16), range(60, 64)])
    table.flush(0, [range(10, 12)], deletes=[22, 60])
    table.abandon(0, [range(14, 18), range(70, 73)], deletes=[23, 61])
    return table


def _composite(uri: str) -> Maker:
    table = Maker(uri=uri, key="utf8+int64").make(range(40), 2, enable_v2_manifest_paths=False)
    table.flush(0, [range(0, 20, 2)], deletes=[22, 24])
    table.flush(1, [range(1, 21, 2)], deletes=[23])
    table.run("merge")
    for shard in (0, 1):
        table.flush(shard, [range(shard, 12, 2), range(60 + shard, 70, 2)])
        table.flush(shard, [range(shard, 6, 2)], deletes=[30 + shard, 62 + shard])
    table.abandon(1, [range(1, 9, 2)], deletes=[33])
    return table


def _policy(uri: str) -> Maker:
    table = Maker(uri=uri, folds=True).make(range(0, 30, 2), 2)
    table.flush(0, [range(0, 10, 2)])
    table.flush(1, [range(1, 11, 2)])
    table.run("merge")
    table.flush(0, [range(0, 16, 2)], deletes=[20])
    table.flush(0, [range(4, 24, 2)])
    table.flush(1, [range(1, 7, 2)])
    table.abandon(0, [range(0, 8, 2)])
    return table


def _indexed(uri: str) -> Maker:
    table = Maker(uri=uri, indexed=True).make(range(60), 1)
    table.flush(0, [range(10), range(70, 80)])
    table.run("merge")
    table.run("index_catchup")
    table.flush(0, [range(5, 15)], deletes=[30])
    table.run("merge")
    table.flush(0, [range(12, 18)], deletes=[31])
    table.abandon(0, [range(16, 20)])
    return table


def _checkpoint(uri: str) -> Maker:
    table = Maker(uri=uri).make(range(30), 1)
    table.flush(0, [range(10)])
    table.keep("first")
    table.flush(0, [range(5, 15)], deletes=[20])
    table.run("merge")
    table.keep("second")
    table.flush(0, [range(12, 18)])
    table.run("merge")
    table.collect()
    table.flush(0, [range(16, 22)], deletes=[1])
    table.keep("third")
    return table


def _shards(uri: str) -> Maker:
    table = Maker(uri=uri).make(range(40), 4)
    for shard in range(4):
        table.flush(shard, [range(shard, 20, 4)])
    table.run("merge")
    table.collect()
    for shard in range(4):
        table.flush(shard, [range(shard, 12, 4), range(60 + shard, 70, 4)], deletes=[24 + shard])
    table.refresh()
    table.flush(2, [range(2, 30, 4)])
    table.abandon(3, [range(3, 15, 4)])
    return table


def _quiet(uri: str) -> Maker:
    table = Maker(uri=uri).make(range(30), 2)
    for number in range(4):
        table.flush(number % 2, [range(number % 2, 12, 2)], deletes=[20 + number])
    table.run("maintain")
    table.collect()
    table.collect()
    return table


KINDS: Mapping[str, Callable[[str], Maker]] = {
    "plain": _plain,
    "composite": _composite,
    "policy": _policy,
    "indexed": _indexed,
    "checkpoint": _checkpoint,
    "shards": _shards,
    "quiet": _quiet,
}


def prepare(folder: Path) -> None:
    """Make every table, with its truth beside it. Ends the process, as a writer dies: unflushed."""
    makers = []
    for name, make in KINDS.items():
        makers.append(make(str(folder / name)))
        (folder / f"{name}.truth").write_bytes(pickle.dumps(makers[-1].truth()))
    os._exit(0)


def load_truth(folder: Path, name: str) -> Truth:
    found: Truth = pickle.loads((folder / f"{name}.truth").read_bytes())
    return found
