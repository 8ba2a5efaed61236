"""Real tables with a row-merge policy, written by pylance's own writer, and their plain model."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import lance
import pyarrow as pa

from memwal.jobs.merge.apply import ShardMerger
from memwal.jobs.merge.job import open_merge_table
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId
from memwal.rows.policy import RowPolicy, make_policy
from memwal.run.stores import Stores, open_stores
from memwal.testing import ManualClock
from tests.support import builders
from tests.support.policy_model import OPERATORS, Model, Row, append

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OF = {
    "n": ("sum", None),
    "x": ("sum", None),
    "top": ("max", None),
    "tags": ("set_union", None),
    "log": ("list_append", 4),
    "seen": ("coalesce", None),
}
Entry = tuple[Any, Row | None]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A kind of key, and which of the special columns the policy uses."""

    key: str = "int64"
    marker: bool = True
    expiry: bool = True

    @property
    def policy(self) -> RowPolicy:
        return make_policy(
            dict(OF), "op" if self.marker else None, "until" if self.expiry else None
        )

    @property
    def model(self) -> Model:
        return Model(
            columns={c: append(cap) if cap else OPERATORS[name] for c, (name, cap) in OF.items()},
            marker="op" if self.marker else None,
            expiry="until" if self.expiry else None,
        )


def seconds(offset: int) -> datetime:
    return NOW + timedelta(seconds=offset)


def _columns() -> list[pa.Field]:
    return [
        pa.field("n", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("top", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("log", pa.list_(pa.int64())),
        pa.field("seen", pa.int32()),
        pa.field("note", pa.string()),
        pa.field("op", pa.bool_()),
        pa.field("until", pa.timestamp("us", "UTC")),
    ]


@dataclass(kw_only=True)
class PolicyTable:
    """A table, and what was written to it. Keys are numbers, as `builders.KeyKind` counts them."""

    uri: str
    variant: Variant
    clock: ManualClock
    options: dict[str, str] = field(default_factory=dict)
    base: dict[Any, Row] = field(default_factory=dict)
    shards: list[ShardId] = field(default_factory=list)
    written: dict[ShardId, list[list[Entry]]] = field(default_factory=dict)

    @property
    def kind(self) -> builders.KeyKind:
        return builders.KINDS[self.variant.key]

    @property
    def dataset(self) -> Any:
        return lance.dataset(self.uri, storage_options=self.options or None)

    @property
    def stores(self) -> Stores:
        return open_stores(self.uri, self.options, clock=self.clock)

    def merger(self, **settings: Any) -> ShardMerger:
        stores = self.stores
        ports = {"views": stores.views, "table": open_merge_table(stores), "clock": stores.clock}
        return ShardMerger(**{**ports, **settings})

    def merge(self, shard: ShardId | None = None, **settings: Any) -> ShardReport:
        """Merge one shard, the first; what goes wrong is an error of the test."""
        found = self.merger(**settings).run(shard or self.shards[0], MergeRequest())
        assert found.error is None, found
        return found

    def row(self, key: int, n: int | None, **more: Any) -> Row:
        given: Row = {
            "n": n,
            "x": None if n is None else n / 3,
            "top": None if n is None else f"{n % 10}",
            "tags": None,
            "log": None if n is None else [n],
            "seen": None,
            "note": f"note {n}",
            "op": True,
            "until": None,
        }
        return {**dict(zip(self.kind.names, self.kind.key(key), strict=True)), **given, **more}

    def flush(self, *entries: Entry, shard: ShardId | None = None, put_rows: int = 1) -> None:
        """One generation: (key, row), None for a delete; so many rows of a kind go in one put."""
        shard = shard or self.shards[0]
        schema = self.dataset.schema
        keys = pa.schema([schema.field(name) for name in self.kind.names])
        with self.dataset.mem_wal_writer(shard, max_wal_flush_interval_ms=1) as writer:
            for deletes, group in _grouped(entries, put_rows):
                if deletes:
                    found = [dict(zip(keys.names, self.kind.key(k), strict=True)) for k, _ in group]
                    writer.delete(pa.Table.from_pylist(found, schema=keys))
                else:
                    writer.put(pa.Table.from_pylist([row for _, row in group], schema=schema))
        self.written[shard].append(list(entries))

    def truth(self, now: datetime | None = None) -> dict[Any, Row]:
        """What a reader has to see, whatever is merged, by key number."""
        generations = [g for shard in self.shards for g in self.written[shard]]
        return self.variant.model.table(self.base, generations, now or self.now)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now_nanos() / 1e9, UTC)

    def base_rows(self, version: int | None = None) -> dict[Any, Row]:
        """The base's rows by key; those that have expired are left out, as a read does."""
        rows = self.keyed(lance.dataset(self.uri, version=version).to_table())
        if not self.variant.expiry:
            return rows
        return {k: r for k, r in rows.items() if r["until"] is None or r["until"] > self.now}

    def keyed(self, table: pa.Table) -> dict[Any, Row]:
        rows: dict[Any, Row] = {}
        for row in table.to_pylist():
            key = tuple(row[name] for name in self.kind.names)
            assert key not in rows, f"key {key} is there twice"
            rows[key] = row
        return rows

    def by_key(self, rows: dict[Any, Row]) -> dict[Any, Row]:
        """The model's rows by the keys' values."""
        return {self.kind.key(number): row for number, row in rows.items()}


def _grouped(entries: Sequence[Entry], rows_max: int) -> list[tuple[bool, list[Entry]]]:
    groups: list[tuple[bool, list[Entry]]] = []
    for entry in entries:
        deletes = entry[1] is None
        if groups and groups[-1][0] == deletes and len(groups[-1][1]) < rows_max:
            groups[-1][1].append(entry)
        else:
            groups.append((deletes, [entry]))
    return groups


def make_policy_table(
    uri: object,
    variant: Variant | None = None,
    *,
    rows: Sequence[int] = (),
    shards: int = 1,
    stored: bool = True,
    indexed: bool = False,
    options: Mapping[str, str] | None = None,
    **mem_wal: Any,
) -> PolicyTable:
    """A table with `rows` (keys by number) in its base, and its policy in it, if `stored`.

    `mem_wal` is what its MemWAL index is made with.
    """
    table = PolicyTable(
        uri=str(uri),
        variant=variant or Variant(),
        clock=ManualClock(start_nanos=int(NOW.timestamp()) * 10**9),
        options=dict(options or {}),
    )
    table.base = {key: table.row(key, 1000 + key, op=False) for key in rows}
    schema = pa.schema([*table.kind.fields, *_columns()])
    dataset = lance.write_dataset(
        pa.Table.from_pylist(list(table.base.values()), schema=schema),
        table.uri,
        storage_options=table.options or None,
    )
    if indexed:
        dataset.create_scalar_index(table.kind.names[0], "BTREE", name="key_idx")
    dataset.initialize_mem_wal(**mem_wal)
    if stored:
        table.stores.tables.put_policy(table.variant.policy.as_text())
    for _ in range(shards):
        shard = ShardId(str(uuid.uuid4()))
        table.shards.append(shard)
        table.written[shard] = []
    return table


def random_entry(table: PolicyTable, chance: random.Random, key: int) -> Entry:
    """An operand mostly; a value, a delete, something that expires now and then."""
    if chance.random() < 0.15:
        return key, None
    n = None if chance.random() < 0.1 else chance.randrange(-50, 50)
    until = None
    if table.variant.expiry and chance.random() < 0.4:
        until = seconds(chance.randrange(-3, 30))
    row = table.row(
        key,
        n,
        op=chance.choice([True, True, True, True, False, None]) if table.variant.marker else True,
        tags=chance.choice([None, ["a"], ["b", "a"], ["c"]]),
        seen=chance.choice([None, None, 1, 2]),
        until=until,
    )
    return key, row


def random_generation(
    table: PolicyTable, chance: random.Random, keys: Sequence[int], rows: int
) -> list[Entry]:
    return [random_entry(table, chance, chance.choice(keys)) for _ in range(rows)]


def random_table(uri: object, seed: int, variant: Variant) -> PolicyTable:
    """A table with several shards, keys of its own in each, and random generations."""
    chance = random.Random(seed)
    shards = chance.randint(1, 3)
    keys = list(range(12))
    table = make_policy_table(
        uri,
        variant,
        rows=[key for key in keys if chance.random() < 0.5],
        shards=shards,
        indexed=chance.random() < 0.3 and len(builders.KINDS[variant.key].names) == 1,
    )
    for number, shard in enumerate(table.shards):
        own = keys[number::shards]
        for _ in range(chance.randint(1, 4)):
            entries = random_generation(table, chance, own, chance.randint(1, 14))
            table.flush(*entries, shard=shard, put_rows=chance.choice([1, 3, 50]))
    return table
