"""Real MemWAL tables for tests: made by pylance's own writer, read by its own scanners.

A `Table` remembers, in plain dicts, what every generation did to every key, so that it can tell
what the base table has to hold at any merge progress, and what the LSM read has to give.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("LANCE_LOG", "error,lance=off")

import lance
import pyarrow as pa

from memwal.format import layout
from memwal.jobs.merge.apply import ShardMerger
from memwal.jobs.merge.job import open_merge_table
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import FlushedGeneration, ShardId, ShardManifest, ShardStatus
from memwal.run.stores import Stores, open_stores
from tests.support.lsm_reads import lsm_read

Key = tuple[Any, ...]
Row = dict[str, Any]
Rows = dict[Key, Row]
Effects = dict[Key, Row | None]
"""What a generation did: the row that a key got, None where it was deleted."""

ONE_COMMIT = 200
TWO_PASSES = 0
"""Values of `tombstones_in_commit_max` that force the one and the other way out."""

_KEY_METADATA = "lance-schema:unenforced-primary-key"
# The default of 100 ms makes every put wait that long.
_WRITER = {"max_wal_flush_interval_ms": 1}

PAYLOAD = (
    pa.field("n", pa.int64()),
    pa.field("text", pa.string()),
    pa.field("vector", pa.list_(pa.float32(), 4)),
    pa.field("nested", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])),
)


def payload(n: int) -> Row:
    """Payload columns as a function of one number, nulls on every level included."""
    return {
        "n": n,
        "text": None if n % 3 == 0 else f"text {n}",
        "vector": None if n % 7 == 0 else [float(n), n / 2, float(-n), 0.5],
        "nested": None if n % 5 == 0 else {"a": n, "b": None if n % 2 else f"b{n}"},
    }


# ---- keys


@dataclass(frozen=True, kw_only=True)
class KeyKind:
    """A primary key's columns, and its i-th value; extreme and awkward values come first."""

    name: str
    columns: tuple[tuple[str, pa.DataType], ...]
    key: Callable[[int], Key]
    keys_max: int = 100_000

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def fields(self) -> list[pa.Field]:
        return [
            pa.field(name, kind, nullable=False, metadata=self._metadata(position))
            for position, (name, kind) in enumerate(self.columns, start=1)
        ]

    def _metadata(self, position: int) -> dict[str, str]:
        marked = {_KEY_METADATA: "true"}
        if len(self.columns) > 1:
            marked[f"{_KEY_METADATA}:position"] = str(position)
        return marked


_BITS = (8, 16, 32, 64)


def _integers(name: str, low: int, high: int) -> KeyKind:
    def key(i: int) -> Key:
        if i < 2:
            return ((low, high)[i],)
        if low == 0:
            return (i - 1,)
        return (i - 2 if i % 2 == 0 else 2 - i,)

    kind = getattr(pa, name)()
    return KeyKind(name=name, columns=(("k", kind),), key=key, keys_max=min(100_000, high - 8))


_TEXTS = ("", "'", '"', "\\", "it's", "a\nb", "a\0b", "Ω", "😀", "null", "`", "%_", " ")
_BYTES = (b"", b"\0", b"\xff", b"'", b"\x00\xff\x00")


def _text(i: int) -> str:
    return _TEXTS[i] if i < len(_TEXTS) else f"key-{i}"


def _bytes(i: int) -> bytes:
    return _BYTES[i] if i < len(_BYTES) else b"\x01" + i.to_bytes(4, "big")


KINDS: dict[str, KeyKind] = {
    kind.name: kind
    for kind in (
        *(_integers(f"int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in _BITS),
        *(_integers(f"uint{bits}", 0, 2**bits - 1) for bits in _BITS),
        KeyKind(name="bool", columns=(("k", pa.bool_()),), key=lambda i: (i == 1,), keys_max=2),
        KeyKind(name="utf8", columns=(("k", pa.string()),), key=lambda i: (_text(i),)),
        KeyKind(name="large_utf8", columns=(("k", pa.large_string()),), key=lambda i: (_text(i),)),
        KeyKind(name="binary", columns=(("k", pa.binary()),), key=lambda i: (_bytes(i),)),
        KeyKind(
            name="large_binary", columns=(("k", pa.large_binary()),), key=lambda i: (_bytes(i),)
        ),
        KeyKind(
            name="utf8+int32",
            columns=(("userId", pa.string()), ("order", pa.int32())),
            key=lambda i: (_TEXTS[i % len(_TEXTS)], i // len(_TEXTS) - 3),
        ),
        KeyKind(
            name="bool+uint64",
            columns=(("k1", pa.bool_()), ("k2", pa.uint64())),
            key=lambda i: (i % 2 == 1, 2**64 - 1 - i // 2),
        ),
    )
}


# ---- tables


@dataclass(frozen=True)
class Put:
    """Keys by number, and what their rows are made of."""

    keys: Sequence[int]
    n: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Delete:
    """Keys by number."""

    keys: Sequence[int]


@dataclass(kw_only=True)
class Table:
    """A table with a MemWAL, and the plain model of what it has to hold."""

    uri: str
    kind: KeyKind
    options: dict[str, str] = field(default_factory=dict)
    base: Rows = field(default_factory=dict)
    doubles: frozenset[Key] = frozenset()
    """Keys of which the base has two rows, of the same values, until a merge writes them."""
    shards: list[ShardId] = field(default_factory=list)
    effects: dict[ShardId, list[Effects]] = field(default_factory=dict)

    # -- handles

    @property
    def dataset(self) -> Any:
        return self.at(None)

    def at(self, version: int | None) -> Any:
        return lance.dataset(self.uri, version=version, storage_options=self.options or None)

    @property
    def stores(self) -> Stores:
        """Fresh stores, as a new run would have them."""
        return open_stores(self.uri, self.options)

    def merger(self, **settings: Any) -> ShardMerger:
        """A merger on fresh stores; `settings` are limits, steps and the like."""
        stores = self.stores
        ports = {"views": stores.views, "table": open_merge_table(stores), "clock": stores.clock}
        return ShardMerger(**{**ports, **settings})

    def merge_all(self, **settings: Any) -> list[ShardReport]:
        """Merge every shard, one after the other."""
        merger = self.merger(**settings)
        return [merger.run(shard, MergeRequest()) for shard in self.shards]

    def copied(self, folder: Path) -> Table:
        """A copy of a local table, in a folder that is not there yet."""
        shutil.copytree(self.uri, folder)
        effects = {shard: list(done) for shard, done in self.effects.items()}
        return replace(self, uri=str(folder), shards=list(self.shards), effects=effects)

    # -- writing

    def add_shard(self, shard_id: str | None = None) -> ShardId:
        shard = ShardId(shard_id or str(uuid.uuid4()))
        self.shards.append(shard)
        self.effects[shard] = []
        return shard

    def row(self, key: int, n: int, extra: Mapping[str, Any] = {}) -> Row:
        return {
            **dict(zip(self.kind.names, self.kind.key(key), strict=True)),
            **payload(n),
            **extra,
        }

    def writer(self, shard: ShardId, **options: Any) -> Any:
        return self.dataset.mem_wal_writer(shard, **{**_WRITER, **options})

    def flush(self, shard: ShardId, *ops: Put | Delete) -> int:
        """One writer session: one generation, whose number is returned."""
        done: Effects = {}
        schema = self.dataset.schema
        with self.writer(shard) as writer:
            for op in ops:
                apply(self, writer, schema, op, done)
        self.effects[shard].append(done)
        return len(self.effects[shard])

    # -- the model

    def expected(self, progress: Mapping[ShardId, int]) -> Rows:
        """What the base has to hold when the shards are merged up to `progress`."""
        rows = dict(self.base)
        for shard, generations in self.effects.items():
            for effects in generations[: progress.get(shard, 0)]:
                for key, row in effects.items():
                    if row is None:
                        rows.pop(key, None)
                    else:
                        rows[key] = row
        return rows

    def truth(self) -> Rows:
        """What a reader has to see, whatever is merged."""
        return self.expected({shard: len(done) for shard, done in self.effects.items()})

    def shown(self) -> list[Row]:
        """The rows of a read: the truth, and again what no generation has written of a double."""
        touched = {key for done in self.effects.values() for effects in done for key in effects}
        return [*self.truth().values(), *(self.base[key] for key in self.doubles - touched)]

    def deleted_later(self, progress: Mapping[ShardId, int]) -> set[Key]:
        """Keys that a delete pass may be ahead with: deleted above `progress`, or doubles."""
        return {
            key
            for shard, generations in self.effects.items()
            for effects in generations[progress.get(shard, 0) :]
            for key, row in effects.items()
            if row is None or key in self.doubles
        }

    # -- reading

    def versions(self) -> list[int]:
        return self.stores.table_manifests.versions()

    def progress(self, version: int | None = None) -> dict[ShardId, int]:
        """Merge progress in a version's own manifest; empty before MemWAL was initialised."""
        version = version or int(self.dataset.version)
        state = self.stores.table_manifests.read(version).mem_wal
        return dict(state.merged) if state else {}

    def base_rows(self, version: int | None = None) -> Rows:
        return self.keyed(self.at(version).to_table())

    def lsm_rows(self, version: int | None = None) -> Rows:
        return self.keyed(lsm_read(self.uri, self.options, version=version))

    def keyed(self, table: pa.Table) -> Rows:
        """Rows by key; a key that occurs twice is an error, but for a double's first two rows."""
        rows: Rows = {}
        for row in table.to_pylist():
            key = tuple(row[name] for name in self.kind.names)
            if key in rows:
                first = {name: self.base.get(key, {}).get(name) for name in row}
                assert key in self.doubles, f"key {key} is there twice"
                assert rows[key] == row == first, f"key {key} is there twice, and was written"
            rows[key] = row
        return rows


def apply(table: Table, writer: Any, schema: pa.Schema, op: Put | Delete, done: Effects) -> None:
    """Do `op` through the writer, and note in `done` what it did."""
    if isinstance(op, Put):
        rows = [table.row(key, op.n + place, op.extra) for place, key in enumerate(op.keys)]
        writer.put(pa.Table.from_pylist(rows, schema=schema))
        done.update(zip(map(table.kind.key, op.keys), rows, strict=True))
        return
    keys = [table.kind.key(key) for key in op.keys]
    columns = [
        pa.array(values, kind)
        for values, (_, kind) in zip(zip(*keys, strict=True), table.kind.columns, strict=True)
    ]
    writer.delete(pa.table(columns, names=list(table.kind.names)))
    done.update(dict.fromkeys(keys))


def make_table(
    uri: object,
    kind: KeyKind | str = "int64",
    *,
    rows: Sequence[int] = (),
    doubles: Sequence[int] = (),
    shards: int = 1,
    indexed: bool = False,
    maintained: bool = False,
    options: Mapping[str, str] | None = None,
    columns: Sequence[pa.Field] = (),
    **write: Any,
) -> Table:
    """A table with `rows` (keys by number) in its base, a MemWAL, and shards without a writer yet.

    Of `doubles` among the rows, the base has another row, as of two plain appends.

    `indexed` gives the key an index, which writers keep too if it is `maintained`; `columns` come
    after the usual payload; `write` goes to `write_dataset`.
    """
    kind = KINDS[kind] if isinstance(kind, str) else kind
    table = Table(uri=str(uri), kind=kind, options=dict(options or {}))
    first = [table.row(key, 1000 + key, {c.name: None for c in columns}) for key in rows]
    schema = pa.schema([*kind.fields, *PAYLOAD, *columns])
    dataset = lance.write_dataset(
        pa.Table.from_pylist(first, schema=schema),
        table.uri,
        storage_options=table.options or None,
        **write,
    )
    if doubles:
        again = [row for key, row in zip(rows, first, strict=True) if key in doubles]
        lance.write_dataset(
            pa.Table.from_pylist(again, schema=schema),
            dataset,
            mode="append",
            storage_options=table.options or None,
        )
    if indexed:
        dataset.create_scalar_index(kind.names[0], "BTREE", name="key_idx")
    dataset.initialize_mem_wal(maintained_indexes=["key_idx"] if maintained else None)
    table.base = {kind.key(key): row for key, row in zip(rows, first, strict=True)}
    table.doubles = frozenset(map(kind.key, doubles))
    for _ in range(shards):
        table.add_shard()
    return table


# ---- oracles


def check_versions(table: Table, after: int, *, exact: bool = True) -> int:
    """Check every version above `after` against the model; returns the newest.

    At each: the LSM read is the truth (invariant 5), progress has not fallen (3), and the base
    holds exactly what its progress says (1). Without `exact`, or with doubles, a key that is
    deleted later may be gone already: an unmarked delete pass runs ahead of its mark.
    """
    truth = table.truth()
    before = table.progress(after)
    newest = after
    for newest in [v for v in table.versions() if v > after]:
        progress = table.progress(newest)
        assert all(progress.get(s, 0) >= g for s, g in before.items()), f"version {newest}"
        before = progress
        check_base(table, newest, progress, exact=exact)
        same_rows(table.lsm_rows(newest), truth, f"LSM read at version {newest}")
    return newest


def check_base(table: Table, version: int, progress: Mapping[ShardId, int], *, exact: bool) -> None:
    held = table.base_rows(version)
    wanted = table.expected(progress)
    early = set() if exact and not table.doubles else table.deleted_later(progress) - held.keys()
    wanted = {key: row for key, row in wanted.items() if key not in early}
    same_rows(held, wanted, f"base at version {version}, progress {progress}")


def check_merged(table: Table) -> None:
    """Everything is merged, and the base alone is the truth."""
    progress = table.progress()
    assert progress == {s: len(done) for s, done in table.effects.items() if done}
    same_rows(table.base_rows(), table.truth(), "base when all is merged")


def same_rows(found: Rows, wanted: Rows, what: str) -> None:
    """Equal, where a column that the model does not know of has to be null."""
    lost, extra = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    assert not lost, f"{what}: lost {_few(lost)}"
    assert not extra, f"{what}: extra {_few(extra)}"
    for key, row in found.items():
        model = wanted[key]
        assert row == {name: model.get(name) for name in row}, f"{what}: key {key}"


def _few(keys: Iterable[Key]) -> str:
    found = list(keys)
    return f"{len(found)} keys: {list(islice(found, 10))}"


# ---- shards by hand


def hand_written(
    table: Table,
    shard: ShardId,
    rows: Sequence[Row] | pa.Table,
    *,
    schema: pa.Schema | None = None,
    tombstones: Sequence[bool] | None = None,
    tombstone_column: bool = True,
    rows_per_file: int = 1_000_000,
    **facts: Any,
) -> FlushedGeneration:
    """A generation's Lance table as another writer might leave it; not listed yet.

    `tombstones` tells for each row whether it deletes; `facts` are sizes for the manifest.
    """
    number = facts.pop("generation", None) or _next_generation(table, shard)
    schema = schema or table.dataset.schema
    data = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=schema)
    if tombstone_column:
        dead = pa.array(list(tombstones or [False] * len(data)), pa.bool_())
        data = data.append_column(pa.field(layout.TOMBSTONE, pa.bool_(), nullable=False), dead)
    generation = FlushedGeneration(generation=number, path=f"0badcafe_gen_{number}", **facts)
    lance.write_dataset(
        data,
        f"{table.uri}/{layout.generation_folder(shard, generation.path, number)}",
        storage_options=table.options or None,
        data_storage_version="2.2",
        max_rows_per_file=rows_per_file,
    )
    return generation


def _next_generation(table: Table, shard: ShardId) -> int:
    manifest = table.stores.shard_manifests.latest(shard)
    return manifest.current_generation if manifest else 1


def list_generations(table: Table, shard: ShardId, *generations: FlushedGeneration) -> None:
    """List generations in the shard's next manifest, as a writer's flush does."""
    manifests = table.stores.shard_manifests
    current = manifests.latest(shard)
    start = current or ShardManifest(
        shard_id=shard, version=1, writer_epoch=1, current_generation=1
    )
    proposed = replace(
        start,
        flushed_generations=(*start.flushed_generations, *generations),
        current_generation=max(g.generation for g in generations) + 1,
    )
    manifests.commit(current, proposed)


def unlist_generation(table: Table, shard: ShardId, number: int) -> None:
    """Take a generation out of the shard's next manifest: a hole, when it was not merged."""
    manifests = table.stores.shard_manifests
    current = manifests.latest(shard)
    assert current is not None
    kept = tuple(g for g in current.flushed_generations if g.generation != number)
    manifests.commit(current, replace(current, flushed_generations=kept))


def set_status(table: Table, shard: ShardId, status: ShardStatus) -> None:
    manifests = table.stores.shard_manifests
    current = manifests.latest(shard)
    assert current is not None
    manifests.commit(current, replace(current, status=status))


def epochs(table: Table) -> dict[ShardId, int]:
    """Each claimed shard's writer epoch."""
    manifests = table.stores.shard_manifests
    latest = {shard: manifests.latest(shard) for shard in table.shards}
    return {shard: found.writer_epoch for shard, found in latest.items() if found}


def numbers() -> Iterator[int]:
    """Payload numbers that never repeat within a test."""
    return count(10_000, 100)
