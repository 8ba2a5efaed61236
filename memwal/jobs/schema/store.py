"""A table's columns as Lance has them, and the one commit that changes them.

Lance itself refuses another type and NOT NULL under a MemWAL. The commit is put together here: a
schema whose fields keep their ids, and for each column that changes a data file beside those that a
fragment has. Lance notices when rows were merged, written or deleted meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import DataFile
from lance.schema import LanceSchema

from memwal.errors import Corruption, MemWalError, Refused, Unsupported, Usage
from memwal.format import layout
from memwal.format.codec import place_field
from memwal.jobs.schema.plan import Found, SchemaPlan
from memwal.model import ColumnInfo, ShardId, TableView
from memwal.ports import Clock
from memwal.rows.align import names_of
from memwal.rows.convert import fill_default
from memwal.rows.expire import find_expire
from memwal.rows.policy import parse_policy
from memwal.rows.widen import DEFAULT_KEY, FORMER_TYPES_KEY
from memwal.run.stores import Stores
from memwal.store.tables.datasets import columns_of
from memwal.store.tables.generations import Generations
from memwal.store.tables.indexes import build_again, describe_indexes
from memwal.store.tables.lance_calls import call_lance

UNFINISHED_KEY = "memwal.schema.rebuild"
"""In the table's configuration: indexes that a change of columns has yet to build again."""

_GONE = -2  # what Lance calls a field of a file that is read from another file now
_WHOLE_FORMAT = (2, 0)  # in which a file holds structs and lists beside what is in them
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), ?(-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns), ?tz=(.+)\]")
_LIST = re.compile(r"(list|large_list|fixed_size_list)<(?:(?:item|element): ?)?(.+)>(?:\[(\d+)\])?")


def parse_type(text: str) -> pa.DataType:
    """The type of Arrow's own text for it, such as `int32` or `list<string>`. Raises Usage."""
    text = text.strip()
    if found := _DECIMAL.fullmatch(text):
        make = pa.decimal128 if found[1] == "128" else pa.decimal256
        return make(int(found[2]), int(found[3]))
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    if found := _LIST.fullmatch(text):
        item = parse_type(found[2])
        if found[3] is not None:
            return pa.list_(item, int(found[3]))
        return pa.large_list(item) if found[1] == "large_list" else pa.list_(item)
    try:
        return pa.type_for_alias(re.sub(r"\[day\]|(?<=date64)\[ms\]", "", text))
    except ValueError:
        raise Usage(
            f"{text!r} is no type: expected one such as int64, double, string, bool, date32, "
            "timestamp[us, tz=UTC], decimal128(10, 2), list<string>, fixed_size_list<float>[8]"
        ) from None


def check_default(text: str, type_text: str) -> str:
    """The JSON in its shortest form. Raises Usage for what is no value of the type."""
    try:
        value = json.dumps(json.loads(text))
        fill_default(pa.nulls(1, parse_type(type_text)), value)
    except (ValueError, Refused) as error:
        raise Usage(f"--default {text}: is no {type_text} in JSON: {error}") from None
    if value == "null":
        raise Usage(f"--default {text}: NULL is none")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A generation that was written under another schema: what becomes of it, or what it is
    stuck at.
    """

    shard_id: ShardId
    generation: int
    becomes: str
    error: MemWalError | None = None


@dataclass(kw_only=True)
class StoredColumns:
    """The Columns port. `start` is told how many values are rewritten, `done` how many were."""

    stores: Stores
    clock: Clock
    start: Callable[[str, int], None]
    done: Callable[[int, int], None]
    version: int = 0
    batch_rows: int = 1
    bytes_written: int = 0
    rows_rewritten: int = 0

    def read(self) -> tuple[TableView, Found]:
        """The table as it is now, and what uses its columns (see the port)."""
        view = self.stores.views.table()
        self.version = view.version
        base = self.stores.tables.at(view.version)
        if view.is_legacy:
            raise Unsupported("MW-K10", f"{view.uri}: its files are in Lance's legacy format")
        indexed: dict[str, list[str]] = {}
        for described in describe_indexes(base):
            for name in described.field_names:
                indexed.setdefault(name.partition(".")[0], []).append(str(described.name))
        return view, Found(
            columns=view.columns,
            used=_find_uses(view),
            ids_taken=max(self._ids(view, base)),
            indexed=indexed,
            unfinished=tuple(json.loads(base.config().get(UNFINISHED_KEY, "[]"))),
            parse_type=lambda text: str(parse_type(text)),
            check_default=check_default,
        )

    def waiting(self, view: TableView) -> Iterator[Waiting]:
        """What becomes of the rows that wait in generations of another schema."""
        for shard_id, generation in _pending(view):
            where = {"shard_id": shard_id, "generation": generation.generation}
            try:
                source = self._generations.open(view, shard_id, generation)
            except MemWalError as error:
                yield Waiting(**where, becomes="stuck", error=error)
                continue
            found = source.alignment
            became = {
                "converted": [*found.changes],
                "renamed": [n for n, s in found.columns.items() if s not in (n, None)],
                "NULL": [
                    n for n, s in found.columns.items() if s is None and n not in found.defaults
                ],
                "default": [
                    n for n, s in found.columns.items() if s is None and n in found.defaults
                ],
                "left out": sorted(
                    {c.name for c in source.columns} - {*found.sources, layout.TOMBSTONE}
                ),
            }
            if any(became.values()):
                texts = [f"{what}: {', '.join(names)}" for what, names in became.items() if names]
                yield Waiting(**where, becomes="; ".join(texts))

    def name_unfinished(self, indexes: Sequence[str]) -> None:
        """Write down which indexes are to be built again; none: that they are."""
        text = json.dumps([*indexes]) if indexes else None
        call_lance(lambda: self.stores.tables.base().update_config({UNFINISHED_KEY: text}))

    def commit(self, plan: SchemaPlan, version: int) -> int:
        """Commit the columns on top of the version (see the port)."""
        base = self.stores.tables.at(version)
        self.batch_rows = self.stores.tables.batch_rows(base)
        old = columns_of(base)
        schema = _make_schema(base, old, plan.columns)
        rewritten = [c for c in plan.columns if c.name in plan.rewritten]
        if rewritten:
            rows = sum(fragment.physical_rows for fragment in base.get_fragments())
            self.start("values", rows * len(rewritten))
        fragments = [
            self._rewrite(fragment, rewritten, old, schema) for fragment in base.get_fragments()
        ]
        operation = lance.LanceOperation.Merge(fragments, schema)
        return call_lance(
            lambda: int(
                lance.LanceDataset.commit(
                    base,
                    operation,
                    read_version=version,
                    max_retries=0,
                    commit_message="memwal schema",
                ).version
            )
        )

    def build_again(self, index: str) -> None:
        """Build an index over the column as it is now (see the port)."""
        build_again(self.stores.tables.base(), index)

    @property
    def _generations(self) -> Generations:
        return Generations(
            objects=self.stores.objects,
            tables=self.stores.tables,
            renamed=self.stores.views.renamed,
        )

    def _ids(self, view: TableView, base: Any) -> Iterator[int]:
        """Field ids that somebody has: the table, its files, rows that wait."""
        yield from names_of(view.columns)
        for fragment in base.get_fragments():
            for file in fragment.metadata.files:
                yield from file.fields
        for shard_id, generation in _pending(view):
            yield from names_of(columns_of(self.stores.tables.generation(shard_id, generation)))

    def _rewrite(
        self,
        fragment: Any,
        columns: Sequence[ColumnInfo],
        old: Sequence[ColumnInfo],
        schema: LanceSchema,
    ) -> Any:
        """The fragment's metadata, with new files for these columns."""
        found = fragment.metadata
        before = {c.field_id: c for c in old}
        ids = {i for c in columns for i in names_of([before.get(c.field_id, c), c])}
        files = [_without(file, ids) for file in found.files] if columns else found.files
        files = [file for file in files if set(file.fields) != {_GONE}]
        first = found.files[0]
        version = first.file_major_version, first.file_minor_version
        for column in columns:
            name = f"{self.clock.new_id()}.lance"
            field = next(f for f in schema.fields() if f.id() == column.field_id)
            size = self._write(fragment, name, field, before.get(column.field_id), version)
            numbers = _file_ids(field, whole=version <= _WHOLE_FORMAT)
            files.append(DataFile(name, numbers, [*range(len(numbers))], *version, size))
        return replace(found, files=files)

    def _write(
        self,
        fragment: Any,
        name: str,
        field: Any,
        before: ColumnInfo | None,
        version: tuple[int, int],
    ) -> int:
        """One column of all the fragment's rows, the deleted ones too; returns the file's size."""
        arrow = field.to_arrow()
        default = (arrow.metadata or {}).get(DEFAULT_KEY.encode())
        target = pa.schema([pa.field(arrow.name, arrow.type, arrow.nullable)])
        columns = [] if before is None else [before.name]
        scanner = fragment.scanner(
            columns=columns,
            with_row_id=True,
            include_deleted_rows=True,
            batch_size=self.batch_rows,
        )
        rows = 0
        with self.stores.tables.file_writer(
            f"data/{name}", target, ".".join(map(str, version))
        ) as writer:
            for batch in scanner.to_batches():
                if before is None:
                    array = pa.nulls(batch.num_rows, arrow.type)
                else:
                    array = batch.column(before.name).cast(arrow.type)
                if default is not None:
                    array = fill_default(array, default.decode())
                writer.write_batch(pa.RecordBatch.from_arrays([array], schema=target))
                rows += batch.num_rows
        if rows != fragment.physical_rows:
            raise Corruption(
                "MW-F01",
                f"fragment {fragment.fragment_id} has {rows} rows, not {fragment.physical_rows}",
            )
        size = int(writer.size_bytes)
        self.bytes_written += size
        self.rows_rewritten += rows
        self.done(rows, size)
        return size


def _pending(view: TableView) -> Iterator[tuple[ShardId, Any]]:
    for shard in view.shards:
        for generation in shard.pending:
            yield shard.shard_id, generation


def _find_uses(view: TableView) -> dict[str, str]:
    """Why a column may not be changed, by name."""
    by_id = {c.field_id: c.name for c in view.columns}
    used = {
        by_id[i]: "rows are sent to shards by it"
        for spec in view.mem_wal.shard_specs
        for field in spec.fields
        for i in field.source_ids
        if i in by_id
    }
    used |= dict.fromkeys(view.primary_key, "it is of the primary key, which tells rows apart")
    for name in parse_policy(view.policy_text).named if view.policy_text else ():
        used.setdefault(name, "the table's row-merge policy names it: `memwal status` shows it")
    expire = find_expire(view)
    if expire is not None:
        used.setdefault(expire.column, "rows expire by it")
    return used


def _without(file: DataFile, ids: Iterable[int]) -> DataFile:
    gone = set(ids)
    return DataFile(
        file._path,  # `path` is absolute
        [_GONE if i in gone else i for i in file.fields],
        file.column_indices,
        file.file_major_version,
        file.file_minor_version,
        file.file_size_bytes,
        file.base_id,
    )


def _file_ids(field: Any, *, whole: bool) -> list[int]:
    children = [i for child in field.children() for i in _file_ids(child, whole=whole)]
    return [field.id(), *children] if whole or not children else children


def _make_schema(
    base: Any, old: Sequence[ColumnInfo], columns: Sequence[ColumnInfo]
) -> LanceSchema:
    """Lance's schema of these columns; of one that did not change, to the letter."""
    _, (metadata, *stored) = base.lance_schema.__reduce__()[:2]
    sizes = [len(names_of([c])) for c in old]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    own = {
        c.field_id: (c, stored[start : start + size])
        for c, start, size in zip(old, starts, sizes, strict=True)
    }
    arrows = {c.field_id: f for c, f in zip(old, base.schema, strict=True)}
    made: list[bytes] = []
    for column in columns:
        known, protos = own.get(column.field_id, (None, []))
        made += protos if known == column else _encode(column, known, arrows.get(column.field_id))
    return LanceSchema._from_protos(metadata, *made)


def _encode(column: ColumnInfo, old: ColumnInfo | None, arrow: pa.Field | None) -> list[bytes]:
    fields = _arrow_fields(old, arrow)
    fresh = LanceSchema.from_pyarrow(pa.schema([_arrow_field(column, fields)]))
    _, (_, *protos) = fresh.__reduce__()[:2]
    places = [*_walk(fresh.fields()[0])]
    wanted = [*names_of([column])]
    # Members of an added column have the ids that follow its own.
    wanted += range(column.field_id + 1, column.field_id + 1 + len(places) - len(wanted))
    ids = dict(zip(places, wanted, strict=True))
    parents = dict(_parents(fresh.fields()[0]))
    return [
        place_field(data, ids[own], ids.get(parents.get(own, -1), -1))
        for data, own in zip(protos, places, strict=True)
    ]


def _walk(field: Any) -> Iterator[int]:
    yield field.id()
    for child in field.children():
        yield from _walk(child)


def _parents(field: Any) -> Iterator[tuple[int, int]]:
    for child in field.children():
        yield child.id(), field.id()
        yield from _parents(child)


def _arrow_fields(column: ColumnInfo | None, field: pa.Field | None) -> dict[int, pa.Field]:
    """Arrow's fields by id."""
    if column is None or field is None:
        return {}
    found = {column.field_id: field}
    for place, child in enumerate(column.children):
        found |= _arrow_fields(child, field.type.field(place))
    return found


def _arrow_field(column: ColumnInfo, stored: Mapping[int, pa.Field]) -> pa.Field:
    old = stored.get(column.field_id)
    if column.children and old is not None:
        kind = _nest(old.type, [_arrow_field(child, stored) for child in column.children])
    elif old is not None and str(old.type) == column.type_text:
        kind = old.type
    else:
        kind = parse_type(column.type_text)
    metadata = dict((old.metadata if old is not None else None) or {})
    if column.former_types:
        metadata[FORMER_TYPES_KEY.encode()] = json.dumps(column.former_types).encode()
    if column.default is not None:
        metadata[DEFAULT_KEY.encode()] = column.default.encode()
    return pa.field(column.name, kind, column.nullable, metadata or None)


def _nest(kind: pa.DataType, members: Sequence[pa.Field]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(members)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(members[0], kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(members[0])
    if pa.types.is_list(kind):
        return pa.list_(members[0])
    raise Refused("MW-K16", f"members of {kind} can't be changed")
