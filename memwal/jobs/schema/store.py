"""The SchemaTable port over Lance: values written anew, and the commit of another schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile, FragmentMetadata
from lance.schema import LanceSchema

from memwal.errors import MemWalError, Refused, Unsupported, Usage
from memwal.format.codec import edit_field, forget_indexes
from memwal.jobs.schema.apply import Note, Written
from memwal.jobs.schema.plan import NEW, SchemaPlan, list_ids, list_paths
from memwal.model import ColumnInfo, TableView
from memwal.rows.json_values import from_json
from memwal.rows.policy import parse_policy
from memwal.run.stores import Stores
from memwal.sharding.spec import parse_type
from memwal.store.tables.datasets import columns_of
from memwal.store.tables.indexes import (
    IndexRecipe,
    build_index,
    describe_indexes,
    read_recipe,
    replace_mem_wal_entry,
)
from memwal.store.tables.lance_calls import call_lance
from memwal.store.tables.policy_rows import check_fits

NOTE_KEY = "memwal.schema"
"""In the table's config: the indexes that a change of the schema has yet to build again."""
_TOMBSTONED = -2
_LEAVES_SINCE = (2, 1)
_NO_PARENT = -1


def read_type(text: str) -> str:
    """The normal form of a type that Arrow or Lance has a name for. Raises Usage."""
    try:
        return str(_parse(text))
    except RecursionError:
        raise Usage(f"no type {text[:40]!r}…: it is too deep") from None


def _parse(text: str) -> pa.DataType:
    """Lists and vectors, too: `list<item: int32>`, `fixed_size_list<item: float>[4]`."""
    text = text.strip()
    for word, make in (("list", pa.list_), ("large_list", pa.large_list)):
        if text.startswith(f"{word}<") and text.endswith(">"):
            return make(_parse_item(text[len(word) + 1 : -1]))
    if text.startswith("fixed_size_list<") and text.endswith("]"):
        item, _, size = text[len("fixed_size_list<") : -1].rpartition(">[")
        if size.isdecimal():
            return pa.list_(_parse_item(item), int(size))
    if text.startswith("struct<") and text.endswith(">"):
        return pa.struct([_parse_member(part) for part in _divide(text[len("struct<") : -1])])
    try:
        return parse_type(text, "the type of a column")
    except Unsupported:
        try:
            return pa.type_for_alias(text)
        except ValueError:
            raise Usage(
                f"no type {text!r}: expected Arrow's word for one, such as int64, double, string, "
                "timestamp[us], decimal128(10, 2) or list<item: int32>"
            ) from None


def _parse_item(text: str) -> pa.Field:
    name, colon, _ = text.partition(": ")
    return _parse_member(text) if colon and "<" not in name else pa.field("item", _parse(text))


def _parse_member(text: str) -> pa.Field:
    name, _, kind = text.strip().partition(":")
    bare = kind.strip().removesuffix(" not null")
    return pa.field(name.strip(), _parse(bare), nullable=bare == kind.strip())


def _divide(text: str) -> Iterator[str]:
    """The parts between commas outside of any brackets."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<[(") - (letter in ">])")
        if letter == "," and not depth:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


class StoredSchemaTable:
    """The SchemaTable port. `tell` is called with the fragments, rows and bytes written."""

    def __init__(self, stores: Stores, tell: Callable[[Written, int], None]) -> None:
        self._stores = stores
        self._tell = tell

    def read(self) -> TableView:
        """A fresh view."""
        return self._stores.views.table()

    def check(self, view: TableView, plan: SchemaPlan) -> None:
        """Raise Refused for a wrong default, or against the policy."""
        by_name = {column.name: column for column in plan.wanted}
        for name, default in plan.defaults.items():
            _check_default(by_name[name], default)
        if view.policy_text is not None and plan.has_work:
            schema = pa.schema([(c.name, _type_of(c)) for c in plan.wanted if _is_plain(c)])
            given = self._stores.tables.at(view.version).schema
            fields = [
                schema.field(c.name) if _is_plain(c) or c.name not in given.names
                else given.field(c.name)
                for c in plan.wanted
            ]  # fmt: skip
            after = replace(view, columns=plan.wanted)
            check_fits(parse_policy(view.policy_text), after, pa.schema(fields))

    def find_indexes(self, version: int, ids: frozenset[int]) -> Sequence[tuple[int, IndexRecipe]]:
        """The indexes of these fields, with how each was built."""
        dataset = self._stores.tables.at(version)
        named = self.name_indexes(version, ids)
        return [(i, read_recipe(dataset, name)) for i, names in named.items() for name in names]

    def name_indexes(self, version: int, ids: frozenset[int]) -> dict[int, list[str]]:
        """The names of these fields' indexes, by the field's id."""
        dataset = self._stores.tables.at(version)
        by_path = {path: i for i, path in list_paths(columns_of(dataset)) if i in ids}
        found: dict[int, list[str]] = {}
        for index in call_lance(lambda: describe_indexes(dataset)):
            field = by_path.get(index.field_names[0].replace("`", ""))
            if field is not None:
                found.setdefault(field, []).append(index.name)
        return found

    def read_note(self, view: TableView) -> Note | None:
        """What is left to build."""
        text = view.manifest.config.get(NOTE_KEY)
        if text is None:
            return None
        try:
            document = json.loads(text)
            return Note(
                fields=frozenset(int(i) for i in document["fields"]),
                indexes={
                    str(name): (int(entry["field"]), IndexRecipe(**entry["recipe"]))
                    for name, entry in document["indexes"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Unsupported(
                "MW-K30", f"{view.uri}: {NOTE_KEY} in its config can't be understood: {error}"
            ) from None

    def put_note(self, note: Note) -> None:
        """Store it in the table's config."""
        document = {
            "fields": sorted(note.fields),
            "indexes": {
                name: {"field": field, "recipe": asdict(recipe)}
                for name, (field, recipe) in note.indexes.items()
            },
        }
        text = json.dumps(document, sort_keys=True)
        call_lance(lambda: self._stores.tables.base().update_config({NOTE_KEY: text}))

    def drop_note(self) -> None:
        """Everything is built."""
        call_lance(lambda: self._stores.tables.base().delete_config_keys([NOTE_KEY]))

    def drop_index(self, name: str) -> None:
        """Drop an index of the latest version."""
        call_lance(lambda: self._stores.tables.base().drop_index(name))

    def forget_indexes(self, names: Collection[str]) -> bool:
        """Take them off the MemWAL index."""
        base = self._stores.tables.base()
        version = int(base.version)
        state = self._stores.views.mem_wal(version)
        if not {*state.maintained_indexes, *state.index_catchup} & {*names}:
            return False
        clock = self._stores.clock
        replace_mem_wal_entry(
            self._stores.tables,
            version=version,
            index_uuid=clock.new_id(),
            created_at_millis=state.created_at_millis or clock.now_nanos() // 10**6,
            details=forget_indexes(state, names),
        )
        return True

    def build(self, recipe: IndexRecipe) -> None:
        """Build an index on the latest version."""
        build_index(self._stores.tables.base(), recipe)

    def commit(self, version: int, plan: SchemaPlan) -> Written:
        """Write what is to be written anew, and commit it with the schema."""
        dataset = self._stores.tables.at(version)
        maker = _SchemaMaker(dataset, self._next_id(dataset))
        schema, ids = maker.make(plan.wanted)
        total = Written()
        fragments: list[FragmentMetadata] = []
        parts = dataset.get_fragments()
        for fragment in parts:
            made = fragment.metadata
            if plan.rewritten:
                made, written = self._rewrite(dataset, fragment, plan, ids)
                total = total + written
                self._tell(total, len(parts))
            fragments.append(made)
        operation = lance.LanceOperation.Merge(fragments, schema)
        call_lance(
            lambda: lance.LanceDataset.commit(
                dataset,
                operation,
                read_version=version,
                max_retries=0,
                commit_message=f"memwal schema: {'; '.join(plan.steps)}"[:1000],
            )
        )
        return total

    @staticmethod
    def _next_id(dataset: Any) -> int:
        """Above each id that the version uses."""
        used = {i for column in columns_of(dataset) for i in list_ids((column,))}
        for fragment in dataset.get_fragments():
            for file in fragment.metadata.files:
                used.update(file.fields)
        return max(used) + 1

    def _rewrite(
        self, dataset: Any, fragment: Any, plan: SchemaPlan, ids: Mapping[str, Sequence[int]]
    ) -> tuple[FragmentMetadata, Written]:
        """A fragment with one file more; returns what was written."""
        metadata = fragment.metadata
        if metadata.overlays:
            raise Unsupported("MW-E02", f"fragment {metadata.id} has overlay files")
        old = {c.field_id: c for c in columns_of(dataset)}
        columns = plan.rewritten
        major, minor = _version_of(metadata)
        schema = pa.schema([_field_after(dataset, c, old.get(c.field_id)) for c in columns])
        path = f"data/{self._stores.clock.new_id()}.lance"
        rows = 0
        with LanceFileWriter(
            f"{self._stores.uri}/{path}", schema, version=f"{major}.{minor}",
            **self._stores.tables.opening,
        ) as writer:  # fmt: skip
            for batch in self._scan(dataset, fragment, columns, old):
                writer.write_batch(_make_batch(batch, schema, columns, old, plan.defaults))
                rows += batch.num_rows
        if rows != metadata.physical_rows:
            raise MemWalError(
                f"fragment {metadata.id}: {rows} rows were read of {metadata.physical_rows}"
            )
        _, size = self._stores.objects.get_tail(path, 1)
        listed = [i for c in columns for i in ids[c.name]]
        if (major, minor) >= _LEAVES_SINCE:
            listed = [i for c in columns for i in _leaves(schema.field(c.name).type, ids[c.name])]
        gone = {i for c in columns if c.field_id in old for i in list_ids((old[c.field_id],))}
        files = [_without(file, gone) for file in metadata.files]
        new = DataFile(
            path.removeprefix("data/"), listed, list(range(len(listed))), major, minor, size
        )
        return replace(metadata, files=[*files, new]), Written(fragments=1, rows=rows, bytes=size)

    def _scan(
        self,
        dataset: Any,
        fragment: Any,
        columns: Sequence[ColumnInfo],
        old: Mapping[int, ColumnInfo],
    ) -> Iterator[pa.RecordBatch]:
        """All physical rows, deleted ones too, with the stored columns."""
        names = [old[c.field_id].name for c in columns if c.field_id in old]
        scanner = fragment.scanner(
            columns=[_quote(name) for name in names],
            with_row_id=True,
            include_deleted_rows=True,
            batch_size=self._stores.tables.batch_rows(dataset),
        )
        yield from scanner.to_batches()


def _quote(name: str) -> str:
    return f"`{name}`" if "." in name or not name.isidentifier() else name


def _version_of(metadata: FragmentMetadata) -> tuple[int, int]:
    return metadata.files[0].file_major_version, metadata.files[0].file_minor_version


def _without(file: DataFile, gone: set[int]) -> DataFile:
    fields = [_TOMBSTONED if i in gone else i for i in file.fields]
    return DataFile(
        file.path, fields, file.column_indices, file.file_major_version,
        file.file_minor_version, file.file_size_bytes, file.base_id,
    )  # fmt: skip


def _make_batch(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    columns: Sequence[ColumnInfo],
    old: Mapping[int, ColumnInfo],
    defaults: Mapping[str, str],
) -> pa.RecordBatch:
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        if column.field_id not in old:
            array = pa.nulls(batch.num_rows, field.type)
        else:
            array = batch.column(old[column.field_id].name)
            if array.type != field.type:
                array = array.cast(field.type)
        if column.name in defaults:
            array = _fill(array, defaults[column.name])
        arrays.append(array)
    return pa.record_batch(arrays, schema=schema)


def _fill(array: pa.Array, default: str) -> pa.Array:
    """The array with the default, which is JSON, in place of NULL."""
    value = from_json([json.loads(default)], array.type)
    # Arrow fills no nested values, but it takes them.
    missing = array.is_null().to_numpy(zero_copy_only=False)
    places = np.where(missing, len(array), np.arange(len(array)))
    return pa.concat_arrays([array, value]).take(pa.array(places))


def _is_plain(column: ColumnInfo) -> bool:
    return not column.children and not column.type_text.startswith("extension<")


def _type_of(column: ColumnInfo) -> pa.DataType:
    return _parse(column.type_text)


def _field_after(dataset: Any, column: ColumnInfo, old: ColumnInfo | None) -> pa.Field:
    """The Arrow field of a wanted column; what the stored one says of its encoding stays."""
    if old is None:
        return pa.field(column.name, _parse(column.type_text), column.nullable)
    stored = dataset.schema.field(old.name)
    kind = _retype(stored.type, old, column)
    return pa.field(column.name, kind, column.nullable, stored.metadata)


def _retype(kind: pa.DataType, old: ColumnInfo, new: ColumnInfo) -> pa.DataType:
    if not new.children:
        return kind if old.type_text == new.type_text else _parse(new.type_text)
    before = {child.field_id: child for child in old.children}
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                pa.field(c.name, _parse(c.type_text), c.nullable)
                if (was := before.get(c.field_id)) is None
                else pa.field(c.name, _retype(kind.field(was.name).type, was, c), c.nullable)
                for c in new.children
            ]
        )
    child = new.children[0]
    item = pa.field(
        child.name, _retype(kind.value_type, before[child.field_id], child), child.nullable
    )
    return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)


def _leaves(kind: pa.DataType, ids: Sequence[int]) -> list[int]:
    """Of the ids of a type's fields, depth first, those without members."""
    rest = iter(ids)

    def walk(kind: pa.DataType) -> Iterator[int]:
        own = next(rest)
        inner = list(_members(kind))
        if not inner:
            yield own
        for member in inner:
            yield from walk(member)

    return list(walk(kind))


def _members(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of what are fields of their own in Lance; a vector's items are none."""
    if pa.types.is_struct(kind):
        yield from (field.type for field in kind)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield kind.value_type
    elif pa.types.is_map(kind):
        yield pa.struct([kind.key_field, kind.item_field])


def _check_default(column: ColumnInfo, default: str) -> None:
    try:
        (value,) = from_json([json.loads(default)], _type_of(column))
        if not value.is_valid:
            raise ValueError("NULL")
    except (ValueError, TypeError, MemWalError, pa.ArrowException) as error:
        raise Refused(
            "MW-K24",
            f"column {column.name!r}: the default {default} is no {column.type_text}: {error}",
        ) from None


class _SchemaMaker:
    """Makes Lance's schema of the wanted columns; what they don't say of a field stays."""

    def __init__(self, dataset: Any, next_id: int) -> None:
        _, (metadata, *fields) = dataset.lance_schema.__reduce__()[:2]
        ids = list(list_ids(columns_of(dataset)))
        self._metadata = metadata
        stored = zip(fields, _walk(columns_of(dataset)), strict=True)
        self._old = dict(zip(ids, stored, strict=True))
        self._more = dict(_list_metadata(dataset.lance_schema.fields()))
        self._next_id = next_id

    def make(self, wanted: Sequence[ColumnInfo]) -> tuple[LanceSchema, dict[str, list[int]]]:
        """The schema, and each column's field ids, depth first."""
        made: list[bytes] = []
        ids: dict[str, list[int]] = {}
        for column in wanted:
            found = list(self._fields(column, _NO_PARENT))
            made += [raw for _, raw in found]
            ids[column.name] = [i for i, _ in found]
        return LanceSchema._from_protos(self._metadata, *made), ids

    def _fields(self, column: ColumnInfo, parent: int) -> Iterator[tuple[int, bytes]]:
        if column.field_id == NEW:
            yield from self._add(column, parent)
            return
        raw, old = self._old[column.field_id]
        if old.type_text != column.type_text and not column.children:
            kind, more = _parse(column.type_text), self._more[column.field_id]
            (raw,) = _encode(pa.field(column.name, kind, column.nullable, more))
        yield (
            column.field_id,
            edit_field(
                raw,
                field_id=column.field_id,
                parent_id=parent,
                name=column.name,
                nullable=column.nullable,
            ),
        )
        for child in column.children:
            yield from self._fields(child, column.field_id)

    def _add(self, column: ColumnInfo, parent: int) -> Iterator[tuple[int, bytes]]:
        """A new column, with the ids of its members after its own."""
        kind = _parse(column.type_text)
        raws = _encode(pa.field(column.name, kind, column.nullable))
        first = self._next_id
        self._next_id += len(raws)
        places = _find_parents(kind)
        for place, raw in enumerate(raws):
            above = parent if place == 0 else first + places[place]
            yield (
                first + place,
                edit_field(raw, field_id=first + place, parent_id=above),
            )


def _list_metadata(fields: Sequence[Any]) -> Iterator[tuple[int, Mapping[bytes, bytes] | None]]:
    """What Lance's fields say of themselves, by their ids, members too."""
    for field in fields:
        yield field.id(), field.to_arrow().metadata
        yield from _list_metadata(field.children())


def _find_parents(kind: pa.DataType) -> list[int]:
    """For each field of a type, depth first, the place of the one that it is in; -1: none."""
    found: list[int] = []

    def walk(kind: pa.DataType, parent: int) -> None:
        place = len(found)
        found.append(parent)
        for member in _members(kind):
            walk(member, place)

    walk(kind, -1)
    return found


def _encode(field: pa.Field) -> list[bytes]:
    made = LanceSchema.from_pyarrow(pa.schema([field])).__reduce__()[1]
    return list(made[1:])


def _walk(columns: Sequence[ColumnInfo]) -> Iterator[ColumnInfo]:
    for column in columns:
        yield column
        yield from _walk(column.children)
