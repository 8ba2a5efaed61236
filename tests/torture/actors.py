"""What runs in processes of its own, and may be killed or stopped on any line."""

from __future__ import annotations

import json
import os
import random
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from tests.torture.history import History, now
from tests.torture.judge import operand

KEYS: dict[str, tuple[tuple[str, pa.DataType], ...]] = {
    "int64": (("k", pa.int64()),),
    "int32": (("k", pa.int32()),),
    "utf8": (("k", pa.string()),),
    "binary": (("k", pa.binary()),),
    "utf8+int64": (("k1", pa.string()), ("k2", pa.int64())),
}
ROOT = Path(__file__).parents[2]
LANCEDB = ROOT / os.environ.get("VENV_LANCEDB", ".venv-lancedb") / "bin" / "python"
HAS_LANCEDB = (LANCEDB.parents[1] / ".ready").exists()
_MEM_WAL = "__lance_mem_wal"
_IS_KEY = "lance-schema:unenforced-primary-key"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A table: where it is, and what it looks like."""

    name: str
    uri: str
    folder: str
    """Of the history."""
    key: str = "int64"
    policy: bool = False
    keyed: bool = True
    plain: bool = False
    """Without a MemWAL: what is acknowledged is in the base."""
    shards: Sequence[str] = ()
    storage: Mapping[str, str] = field(default_factory=dict)
    """Options of the store, as pylance takes them."""

    @property
    def schema(self) -> pa.Schema:
        marks = [{_IS_KEY: "true", f"{_IS_KEY}:position": str(n)} for n in (1, 2)]
        keys = [
            pa.field(name, kind, nullable=False, metadata=mark if self.keyed else None)
            for (name, kind), mark in zip(KEYS[self.key], marks, strict=False)
        ]
        plain = [("i", pa.int64()), ("n", pa.int64()), ("text", pa.string())]
        folded = [("total", pa.int64()), ("log", pa.list_(pa.int64()))] if self.policy else []
        return pa.schema([*keys, *(pa.field(*f) for f in [*plain, *folded])])

    def key_of(self, i: int) -> dict[str, Any]:
        values = {pa.int64(): i, pa.int32(): i, pa.string(): f"it's {i}", pa.binary(): b"%d" % i}
        return {name: values[kind] for name, kind in KEYS[self.key]}

    def key_words(self, i: int) -> list[str]:
        """How a command is told a key."""
        pairs = self.key_of(i).items()
        texts = ((name, f"0x{v.hex()}" if isinstance(v, bytes) else v) for name, v in pairs)
        return [word for name, text in texts for word in ("--key", f"{name}={text}")]

    def shard_of(self, key: int) -> str:
        """That has the history of a key. What a writer calls so may be several, or another."""
        return self.shards[key % len(self.shards)]

    def rows(self, keys: Sequence[int], op: int, columns: pa.Schema | None = None) -> pa.Table:
        """Of these columns, by default those that the table began with; later ones are NULL."""
        rest = {"n": op, "text": f"row {op}", "total": operand(op), "log": [op]}
        rest |= find_marked(columns or self.schema)
        rows = [{**self.key_of(i), "i": i, **rest} for i in keys]
        return pa.Table.from_pylist(rows, schema=columns or self.schema)

    def dataset(self, version: int | None = None) -> Any:
        return lance.dataset(self.uri, version=version, storage_options=dict(self.storage))

    @property
    def names(self) -> list[str]:
        """The columns that a history has of a row."""
        return ["i", "n", *(["total", "log"] if self.policy else [])]

    def told(self, rows: pa.Table) -> list[list[Any]]:
        """Rows as a history has them."""
        return [list(row.values()) for row in rows.select(self.names).to_pylist()]

    def marks(self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[list[Any]]:
        """Operations with the incarnation of a column and the value that it has of them."""
        marked = find_marked(schema).items()
        found = {(row["n"], value, row[name]) for row in rows for name, value in marked}
        return [list(one) for one in found]


def find_marked(schema: pa.Schema) -> dict[str, int]:
    """The columns that name their incarnation, and which it is."""
    marks = {column.name: (column.metadata or {}).get(b"incarnation") for column in schema}
    return {name: int(mark) for name, mark in marks.items() if mark is not None}


def write(
    place: Place,
    shard: str,
    now_at: str,
    session: int,
    steps: Sequence[tuple[str, Sequence[int]]],
    **limits: Any,
) -> None:
    """One session of pylance's writer: puts and deletes, each put on record before and after.

    It writes to the shard `now_at`, which has taken over from `shard`.
    """
    history = History(place.folder)
    facts = {"table": place.name, "shard": shard, "session": session, "by": "pylance"}
    keys_only = pa.schema([place.schema.field(name) for name, _ in KEYS[place.key]])
    begin = now()
    dataset = place.dataset()
    writer = dataset.mem_wal_writer(now_at, max_wal_flush_interval_ms=1, **limits)
    history.add("open", **facts, begin=begin)
    for number, (what, keys) in enumerate(steps):
        if what == "sleep":
            time.sleep(keys[0] / 1000)
            continue
        op = session * 1000 + number
        marks = [*find_marked(dataset.schema).values()]
        history.add("op", **facts, id=op, deletes=what == "delete", keys=keys, marks=marks)
        if what == "put":
            writer.put(place.rows(keys, op, dataset.schema))
        else:
            rows = [place.key_of(i) for i in keys]
            writer.delete(pa.Table.from_pylist(rows, schema=keys_only))
        history.add("ack", id=op)
    begin = now()
    writer.close()
    history.add("flush", **facts, begin=begin)


def write_plainly(
    place: Place, shard: str, session: int, steps: Sequence[tuple[str, Sequence[int]]]
) -> None:
    """The same without a MemWAL: each operation is a commit, of any kind that does what it says.

    One that loses too many races may have landed for all that, and counts as not acknowledged.
    """
    history = History(place.folder)
    facts = {"table": place.name, "shard": shard, "session": session, "by": "pylance"}
    for number, (what, keys) in enumerate(steps):
        if what == "sleep":
            time.sleep(keys[0] / 1000)
            continue
        op = session * 1000 + number
        history.add("op", **facts, id=op, deletes=what == "delete", keys=keys, marks=[])
        with suppress(OSError):
            _commit_plainly(place, what, keys, op)
            history.add("ack", id=op)
            history.add("flush", **facts, begin=now())


def _commit_plainly(place: Place, what: str, keys: Sequence[int], op: int) -> None:
    dataset, rows = place.dataset(), place.rows(keys, op)
    these = f"i IN ({', '.join(map(str, keys))})"
    there = dataset.count_rows(filter=these)
    if what == "delete":
        dataset.delete(these)
    elif there == len(keys) and op % 2:
        dataset.update({"n": str(op), "text": f"'row {op}'"}, where=these)
    elif not there and op % 2:
        dataset.insert(rows)
    else:
        names = [name for name, _ in KEYS[place.key]]
        upsert = dataset.merge_insert(names).when_matched_update_all()
        upsert.when_not_matched_insert_all().execute(rows)


def read_base(place: Place, seconds: float) -> None:
    """Plain reads of the base table, one of every version that it comes across."""
    history, until, last = History(place.folder), time.monotonic() + seconds, None
    while time.monotonic() < until:
        begin = now()
        with suppress(OSError, ValueError):  # expired meanwhile
            dataset = place.dataset()
            if dataset.version != last:
                found = dataset.to_table()
                rows, marks = place.told(found), place.marks(found.to_pylist(), dataset.schema)
                last = dataset.version
                history.add(
                    "read", table=place.name, level="latest" if place.plain else "base",
                    by="base", begin=begin, exit=0,
                    rows=rows, keys=None, moment=None, name=f"version {last}", said="", marks=marks,
                )  # fmt: skip
        time.sleep(0.01)


def upkeep(place: Place, what: str, argument: int, seed: int) -> None:
    """One of Lance's own commands."""
    history, chance, begin = History(place.folder), random.Random(seed), now()
    dataset = place.dataset()
    if what in ("compact_files", "optimize_indices"):
        with suppress(OSError):  # it lost a race
            getattr(dataset.optimize, what)()
    elif what == "cleanup":
        age = timedelta(seconds=argument)
        dataset.cleanup_old_versions(older_than=age, error_if_tagged_old_versions=False)
    elif what == "add_column":
        with suppress(OSError):  # it lost a race
            dataset.add_columns(pa.field(f"added{seed}", chance.choice([pa.int64(), pa.string()])))
    elif what == "branch":
        dataset.create_branch(f"b{seed}", dataset.version)
    elif what == "drop MemWAL":
        while any(index.name == _MEM_WAL for index in dataset.describe_indices()):
            with suppress(OSError):  # it lost a race
                dataset.drop_index(_MEM_WAL)
            dataset = place.dataset()
        if chance.random() < 0.3:
            dataset.initialize_mem_wal()
    elif what == "restore":
        # Back and forth between an older state and the newest: each is undone by the next.
        old = place.dataset(argument)
        for number in range(chance.choice((1, 3, 9, 15))):
            begin = now()
            goal = old if number % 2 == 0 else dataset
            with suppress(OSError):
                place.dataset(goal.version).restore()
            history.add("restore", table=place.name, begin=begin, version=goal.version)
            time.sleep(chance.random() * 0.1)
    history.add("upkeep", table=place.name, name=what, begin=begin, argument=argument)


def write_by_lancedb(session: str) -> None:
    """A session of LanceDB's client, in the Python that has it; the process stays the same."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [str(LANCEDB), "-m", "tests.torture.lancedb_writer", session]
    os.execve(LANCEDB, words, environment)


def run_command(arguments: Sequence[str], storage: Mapping[str, str], out: str) -> None:
    """The command line of what is tortured, with its output in a file."""
    if storage:
        os.environ["MEMWAL_STORAGE_OPTIONS"] = json.dumps(dict(storage))
    file = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(os.open(f"{out}.err", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644), 2)
    sys.argv = ["memwal", *arguments]
    runpy.run_module("memwal", run_name="__main__")
