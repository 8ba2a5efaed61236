"""The SchemaTable port over Lance: values written anew, and the commit of another schema."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile, FragmentMetadata
from lance.schema import LanceSchema

from memwal.errors import MemWalError, Refused, Unsupported, Usage
from memwal.format.codec import edit_field, forget_indexes
from memwal.jobs.schema.apply import Written
from memwal.jobs.schema.plan import SchemaPlan, list_ids, list_paths
from memwal.model import NO_MEM_WAL, ColumnInfo, TableView
from memwal.rows.json_values import from_json
from memwal.rows.policy import parse_policy
from memwal.run.progress import SILENT, Progress
from memwal.run.stores import Stores
from memwal.sharding.spec import parse_type
from memwal.store.tables.datasets import columns_of
from memwal.store.tables.indexes import describe_indexes, replace_mem_wal_entry
from memwal.store.tables.lance_calls import call_lance
from memwal.store.tables.policy_rows import check_fits

_TOMBSTONED = -2
_NO_PARENT = -1
_LIST = re.compile(r"list<(?:item: )?(.+)>")
_VECTOR = re.compile(r"fixed_size_list<(?:item: )?(.+)>\[(\d+)\]")


def read_type(text: str) -> str:
    """The normal form of a type that Arrow or Lance has a name for. Raises Usage."""
    try:
        return str(_parse(text))
    except RecursionError:
        raise Usage(f"no type {text[:40]!r}…: it is too deep") from None


def _parse(text: str) -> pa.DataType:
    """Lists and vectors, too: `list<item: int32>`, `fixed_size_list<item: float>[4]`."""
    if found := _LIST.fullmatch(text):
        return pa.list_(_parse(found[1]))
    if found := _VECTOR.fullmatch(text):
        return pa.list_(_parse(found[1]), int(found[2]))
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


class StoredSchemaTable:
    """The SchemaTable port."""

    def __init__(self, stores: Stores, progress: Progress = SILENT) -> None:
        self._stores = stores
        self._progress = progress

    def read(self) -> TableView:
        """A fresh view."""
        return self._stores.views.table()

    def check(self, view: TableView, plan: SchemaPlan) -> None:
        """Raise Refused for a wrong default, or against the policy."""
        by_name = {column.name: column for column in plan.wanted}
        for name, default in plan.defaults.items():
            _check_default(by_name[name], default)
        if view.policy_text is not None and plan.has_work:
            dataset, old = self._stores.tables.at(view.version), _by_id(plan.columns)
            fields = [_make_field(dataset, c, old.get(c.field_id)) for c in plan.wanted]
            after = replace(view, columns=plan.wanted)
            check_fits(parse_policy(view.policy_text), after, pa.schema(fields))

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

    def drop_index(self, name: str) -> None:
        """Drop an index of the latest version."""
        call_lance(lambda: self._stores.tables.base().drop_index(name))

    def forget_indexes(self, names: Collection[str]) -> bool:
        """Take them off the MemWAL index."""
        version = int(self._stores.tables.base().version)
        state = self._stores.views.manifest(version).mem_wal or NO_MEM_WAL
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

    def commit(self, version: int, plan: SchemaPlan) -> Written:
        """Write what is to be written anew, and commit it with the schema."""
        dataset = self._stores.tables.at(version)
        schema, ids = self._make_schema(dataset, plan.wanted)
        total = Written()
        fragments: list[FragmentMetadata] = []
        parts = dataset.get_fragments()
        if plan.rewritten:
            self._progress.start("fragments", len(parts))
        for fragment in parts:
            made = fragment.metadata
            if plan.rewritten:
                made, written = self._rewrite(dataset, fragment, plan, ids)
                total = total + written
                self._progress.done(len(fragments) + 1, total.bytes)
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
    def _make_schema(
        dataset: Any, wanted: Sequence[ColumnInfo]
    ) -> tuple[LanceSchema, dict[str, int]]:
        """Lance's schema of the wanted columns, with each column's field id.

        What the columns don't say of a field stays as it is stored.
        """
        _, (metadata, *fields) = dataset.lance_schema.__reduce__()[:2]
        stored = iter(fields)
        columns = columns_of(dataset)
        raws = {c.field_id: [next(stored) for _ in list_ids((c,))] for c in columns}
        old, more = _by_id(columns), dataset.schema
        used = {*list_ids(columns)}
        for fragment in dataset.get_fragments():
            for file in fragment.metadata.files:
                used.update(file.fields)
        made: list[bytes] = []
        ids: dict[str, int] = {}
        next_id = max(used) + 1
        for column in wanted:
            was = old.get(column.field_id)
            kept = raws.get(column.field_id, [])
            if was is None or was.type_text != column.type_text:
                said = None if was is None else more.field(was.name).metadata
                kept = _encode(_make_field(dataset, column, was).with_metadata(said))
            first, parent = column.field_id, _NO_PARENT
            if was is None:
                first, next_id = next_id, next_id + len(kept)
            ids[column.name] = first
            top = edit_field(
                kept[0], field_id=first, parent_id=parent, name=column.name,
                nullable=column.nullable,
            )  # fmt: skip
            # Of what is added, a list's item follows the list, and its item that one.
            items = (
                kept[1:]
                if was is not None
                else [
                    edit_field(raw, field_id=first + place, parent_id=first + place - 1)
                    for place, raw in enumerate(kept[1:], start=1)
                ]
            )
            made += [top, *items]
        return LanceSchema._from_protos(metadata, *made), ids

    def _rewrite(
        self, dataset: Any, fragment: Any, plan: SchemaPlan, ids: Mapping[str, int]
    ) -> tuple[FragmentMetadata, Written]:
        """A fragment with one file more; returns what was written."""
        metadata = fragment.metadata
        if metadata.overlays:
            raise Unsupported("MW-E02", f"fragment {metadata.id} has overlay files")
        old, columns = _by_id(plan.columns), plan.rewritten
        first = metadata.files[0]
        major, minor = first.file_major_version, first.file_minor_version
        schema = pa.schema([_make_field(dataset, c, old.get(c.field_id)) for c in columns])
        path = f"data/{self._stores.clock.new_id()}.lance"
        # All physical rows, deleted ones too, with the stored columns.
        scanner = fragment.scanner(
            columns=[_quote(old[c.field_id].name) for c in columns if c.field_id in old],
            with_row_id=True,
            include_deleted_rows=True,
            batch_size=self._stores.tables.batch_rows(int(dataset.version)),
        )
        rows = 0
        with LanceFileWriter(
            f"{self._stores.uri}/{path}", schema, version=f"{major}.{minor}",
            **self._stores.tables.opening,
        ) as writer:  # fmt: skip
            for batch in scanner.to_batches():
                writer.write_batch(_make_batch(batch, schema, columns, old, plan.defaults))
                rows += batch.num_rows
        if rows != metadata.physical_rows:
            raise MemWalError(
                f"fragment {metadata.id}: {rows} rows were read of {metadata.physical_rows}"
            )
        _, size = self._stores.objects.get_tail(path, 1)
        gone = {c.field_id for c in columns if c.field_id in old}
        files = [_without(file, gone) for file in metadata.files]
        new = DataFile(
            path.removeprefix("data/"), [ids[c.name] for c in columns],
            list(range(len(columns))), major, minor, size,
        )  # fmt: skip
        return replace(metadata, files=[*files, new]), Written(rows=rows, bytes=size)


def _by_id(columns: Sequence[ColumnInfo]) -> dict[int, ColumnInfo]:
    return {column.field_id: column for column in columns}


def _quote(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


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
        if column.field_id in old:
            arrays.append(batch.column(old[column.field_id].name).cast(field.type))
        else:
            (value,) = from_json([json.loads(defaults[column.name])], field.type)
            arrays.append(pa.repeat(value, batch.num_rows))
    return pa.record_batch(arrays, schema=schema)


def _make_field(dataset: Any, column: ColumnInfo, old: ColumnInfo | None) -> pa.Field:
    """The Arrow field of a wanted column; what the stored one says of its encoding stays."""
    if old is None:
        return pa.field(column.name, _parse(column.type_text), column.nullable)
    stored = dataset.schema.field(old.name)
    kind = stored.type if old.type_text == column.type_text else _parse(column.type_text)
    return pa.field(column.name, kind, column.nullable, stored.metadata)


def _encode(field: pa.Field) -> list[bytes]:
    made = LanceSchema.from_pyarrow(pa.schema([field])).__reduce__()[1]
    return list(made[1:])


def _check_default(column: ColumnInfo, default: str) -> None:
    try:
        kind = _parse(column.type_text)
        if pa.types.is_list(kind):
            raise ValueError("a list has none")
        (value,) = from_json([json.loads(default)], kind)
        if not value.is_valid:
            raise ValueError("NULL")
    except (ValueError, TypeError, MemWalError, pa.ArrowException) as error:
        raise Refused(
            "MW-K24",
            f"column {column.name!r}: the default {default} is no {column.type_text}: {error}",
        ) from None
