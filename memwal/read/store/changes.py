"""Reads what changed between two versions of a base table, by the marks that Lance keeps on rows.

Costs an open and a transaction a version, and reads of the rows that changed, before and after. Of
rows that are gone, the keys are held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Refused, Unsupported
from memwal.format.layout import is_reserved
from memwal.read.plan.changes import (
    ADDED,
    BEFORE,
    DELETE,
    INSERT,
    UPDATE,
    ChangesRequest,
    Commit,
    check_columns,
    check_commits,
    check_sum,
    choose_range,
)
from memwal.read.store.faults import guard_each
from memwal.read.store.threads import choose_threads, map_in_order
from memwal.rows.align import Alignment, align
from memwal.rows.keyset import KeySet, Places
from memwal.store.tables.blobs import blob_columns
from memwal.store.tables.datasets import LanceTables, columns_of, primary_key_of
from memwal.store.tables.manifests import TableManifests

_KINDS = (pa.string(), pa.int64(), pa.timestamp("us", "UTC"))
_ROW_ID = "_rowid"
_CHANGED_AT = "_row_last_updated_at_version"
# Row ids in one condition, which Lance answers by looking them up.
_LOOKED_UP_MAX = 4096


def open_changes(
    tables: LanceTables, manifests: TableManifests, request: ChangesRequest
) -> Changes:
    """Open the changes that are asked for; reads no row.

    Raises NotATable, Usage for versions or columns that the table does not have, Unsupported
    without stable row ids, and Refused where versions have expired or rows changed without a mark.
    """
    uri, latest = tables.uri, int(tables.base().version)
    until, versions = choose_range(uri, request, manifests.attached_versions(latest))
    shape = shape_changes(tables, until, request)
    read = map_in_order(lambda v: _read_commit(tables, manifests, v), versions, choose_threads(uri))
    commits = [commit for _, commit in read]
    old = tables.base(request.since) if request.since else None
    if old is not None:
        check_commits(uri, commits)
        if [_type_of(old, key) for key in shape.keys] != [
            _type_of(shape.new, k) for k in shape.keys
        ]:
            raise Refused(
                "MW-Y02",
                f"{uri}: the key's columns changed after version {request.since}. Read version "
                f"{until} as a whole, and follow it with --since {until}",
            )
    return Changes(tables=tables, old=old, shape=shape, commits=commits)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The last version of a range, and what is told of its rows."""

    new: Any
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    before: bool
    passing: bool

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns that are read: the key's first."""
        return tuple(dict.fromkeys((*self.keys, *self.columns)))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the rows. All may be NULL."""
        fields = [pa.field(name, self.new.schema.field(name).type) for name in self.names]
        added = [pa.field(BEFORE, pa.struct(fields))] if self.before else []
        told = [pa.field(name, kind) for name, kind in zip(ADDED, _KINDS, strict=True)]
        return pa.schema([*told, *fields, *added])


def shape_changes(tables: LanceTables, until: int | None, request: ChangesRequest) -> Shape:
    """What changes up to a version look like. Raises NotATable, Usage, Unsupported."""
    uri, new = tables.uri, tables.base(until)
    if not new.has_stable_row_ids:
        raise Unsupported(
            "MW-Y04",
            f"{uri}: the table has no stable row ids, so nothing tells which rows a commit "
            "changed. Lance gives them to new tables only: write the table anew with "
            "enable_stable_row_ids=True, then run memwal init",
        )
    keys = primary_key_of(new)
    if not keys:
        raise Unsupported("MW-K02", f"{uri}: the table has no primary key to tell rows by")
    columns = check_columns(uri, new.schema.names, request)
    if blobs := blob_columns(columns_of(new)).intersection(columns):
        raise Unsupported(
            "MW-Y06", f"{uri}: column {min(blobs)!r} has blobs: leave it out of --columns"
        )
    return Shape(
        new=new, keys=keys, columns=columns, before=request.before, passing=request.passing
    )


def _type_of(dataset: Any, column: str) -> pa.DataType | None:
    schema: pa.Schema = dataset.schema
    return schema.field(column).type if column in schema.names else None


def _read_commit(tables: LanceTables, manifests: TableManifests, version: int) -> Commit:
    return Commit(
        version=version,
        operation=tables.read_operation(version),
        committed_at_nanos=manifests.committed_at_nanos(version),
    )


@dataclass(kw_only=True)
class Changes:
    """Opened changes between two versions of a table: `read` gives them once.

    Rows have `_change`, `_version` (the commit's) and `_time` (its time; NULL if that version has
    expired), the columns, and perhaps the row as it was at the first version, as a struct. A
    delete has NULL in all columns but the key's. `counts` are complete when `read` has ended.
    """

    tables: LanceTables
    old: Any
    shape: Shape
    commits: Sequence[Commit]
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((INSERT, UPDATE, DELETE), 0)
    )

    @property
    def since(self) -> int:
        """The version before the first change."""
        return 0 if self.old is None else int(self.old.version)

    @property
    def until(self) -> int:
        """The version of the last change."""
        return int(self.shape.new.version)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.shape.schema

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows: first of keys that were there and are, then new ones, then deletes.

        Raises Refused if the rows don't add up to the table's, at the end; Missing, Corruption and
        StoreUnavailable for what can't be read.
        """
        where = f"{self.tables.uri}: changes from version {self.since} to {self.until}"
        for table in guard_each(where, self._read):
            yield from table.to_batches()

    def _read(self) -> Iterator[pa.Table]:
        delta = self.shape.new.delta(begin_version=self.since, end_version=self.until)
        deleted, passed = self._find_deleted()
        fresh: list[pa.Table] = []  # rows that have another key now; only a plain update does that
        gone = [self._none(self.shape.new if self.old is None else self.old, self._names_before)]
        for batch in delta.get_updated_rows() if self.old is not None else ():
            new = pa.Table.from_batches([batch])
            old = self._look_up(self.old, new[_ROW_ID], self._names_before)
            passed.take_back(new.select(self.shape.keys).columns)
            same = np.ones(len(new), dtype=bool)
            for key in self.shape.keys:
                same &= pc.equal(new[key], old[key]).to_numpy()
            yield self._tell(UPDATE, new.filter(same), old.filter(same))
            if not same.all():
                fresh.append(new.filter(~same))
                gone.append(self._at(old.filter(~same), fresh[-1][_CHANGED_AT]))
        moved = sum(map(len, gone))
        rows = GoneRows(pa.concat_tables([*gone, *deleted]), self.shape.keys)
        if not rows.is_sound:
            raise Refused(
                "MW-Y03", f"{self.tables.uri}: two rows of version {self.since} have the same key"
            )
        passed.take_back(rows.rows.select(self.shape.keys).columns)
        inserted = 0
        for batch in delta.get_inserted_rows():
            inserted += batch.num_rows
            yield from self._tell_new(pa.Table.from_batches([batch]), rows, passed)
        for table in fresh:
            yield from self._tell_new(table, rows, passed)
        check_sum(
            self.tables.uri,
            rows=self.shape.new.count_rows(),
            rows_before=0 if self.old is None else self.old.count_rows(),
            inserted=inserted,
            deleted=len(rows.rows) - moved,
        )
        left = rows.left()
        yield self._tell(DELETE, left, left)
        yield self._tell(DELETE, passed.left(), None)

    def _find_deleted(self) -> tuple[list[pa.Table], GoneRows]:
        """Rows of the old version that a commit deleted, and keys that came after it and went."""
        keys, found = self.shape.keys, list[pa.Table]()
        passed = [self._none(self.shape.new, keys)]
        for commit in self.commits if self.old is not None else ():
            if commit.takes_rows:
                at, before = self.tables.base(commit.version), commit.version - 1
                delta = at.delta(begin_version=before, end_version=commit.version)
                for batch in delta.get_deleted_row_ids():
                    ids = batch.column(_ROW_ID)
                    rows = self._look_up(self.old, ids, self._names_before)
                    found.append(self._at(rows, commit.version))
                    if self.shape.passing and len(rows) < len(ids):
                        rows = self._look_up(self.tables.base(before), ids, keys)
                        passed.append(self._at(rows, commit.version))
        last = pa.concat_tables(passed).group_by(keys).aggregate([(_CHANGED_AT, "max")])
        return found, GoneRows(last.rename_columns([*keys, _CHANGED_AT]), keys)

    def _tell_new(self, new: pa.Table, gone: GoneRows, passed: GoneRows) -> Iterator[pa.Table]:
        keys = new.select(self.shape.keys).columns
        passed.take_back(keys)
        places = gone.take_back(keys)
        replaces = places >= 0
        yield self._tell(UPDATE, new.filter(replaces), gone.rows.take(places[replaces]))
        new = new.filter(~replaces)
        yield self._tell(INSERT, new, None)

    def _tell(self, change: str, rows: pa.Table, before: pa.Table | None) -> pa.Table:
        """Rows of one kind of change in the schema of all; of deletes, only the key's columns."""
        self.counts[change] += len(rows)
        at = rows[_CHANGED_AT].cast(pa.int64())
        known = pa.array([commit.version for commit in self.commits], pa.int64())
        columns: list[Any] = [pa.array([change] * len(rows), pa.string()), at]
        columns.append(self._times.take(pc.index_in(at, value_set=known)))
        for name in self.shape.names:
            has = change != DELETE or name in self.shape.keys
            columns.append(rows[name] if has else pa.nulls(len(rows), self.schema.field(name).type))
        if self.shape.before:
            columns.append(self._tell_before(len(rows), before))
        return pa.table(columns, schema=self.schema)

    def _tell_before(self, count: int, rows: pa.Table | None) -> pa.Array:
        kind = self.schema.field(BEFORE).type
        if rows is None or self.old is None:
            return pa.nulls(count, kind)
        arrays = []
        for one in kind:
            if one.name in self._lined.lacking:
                arrays.append(pa.nulls(count, one.type))
            else:
                arrays.append(rows[one.name].combine_chunks().cast(one.type))
        return pa.StructArray.from_arrays(arrays, fields=list(kind))

    @cached_property
    def _lined(self) -> Alignment:
        """The columns as they were at the first version."""
        loose = [replace(column, nullable=True) for column in columns_of(self.shape.new)]
        wanted = [column for column in loose if column.name in self.shape.names]
        stored = [c for c in columns_of(self.old) if not is_reserved(c.name)]
        what = f"version {self.since}"
        try:
            return align(wanted, stored, what, self._find_reused())
        except Refused as error:
            raise Refused(
                "MW-Y02",
                f"{self.tables.uri}: rows of {what} have no place in the columns of version "
                f"{self.until}: {error.text}. Leave the column out of --columns, or --before",
            ) from None

    def _find_reused(self) -> set[int]:
        """The ids of columns that were not there all the time."""
        new = [(c.field_id, c.name) for c in columns_of(self.shape.new)]
        versions = [self.since, *(commit.version for commit in self.commits)]
        seen = [{(c.field_id, c.name) for c in columns_of(self.tables.base(v))} for v in versions]
        return {i for i, name in new if any((i, name) not in there for there in seen)}

    @cached_property
    def _times(self) -> pa.Array:
        micros = [commit.committed_at_nanos // 1000 for commit in self.commits]
        return pa.array(micros, _KINDS[2])

    @cached_property
    def _names_before(self) -> list[str]:
        if not self.shape.before or self.old is None:
            return list(self.shape.keys)
        return self._lined.stored(self.shape.names)

    def _look_up(self, source: Any, row_ids: Any, names: Sequence[str]) -> pa.Table:
        """Rows of a version, in the order of the ids, without those that it does not have."""
        ids = np.asarray(row_ids.to_numpy())
        parts = [self._none(source, names).drop_columns([_CHANGED_AT])]
        for start in range(0, len(ids), _LOOKED_UP_MAX):
            some = ids[start : start + _LOOKED_UP_MAX]
            found = source.scanner(
                columns=list(names),
                filter=f"{_ROW_ID} IN ({','.join(map(str, some))})",
                with_row_id=True,
            ).to_table()
            places = pc.index_in(pa.array(some, pa.uint64()), value_set=found[_ROW_ID])
            parts.append(found.take(places.drop_null()))
        return pa.concat_tables(parts)

    @staticmethod
    def _none(source: Any, names: Sequence[str]) -> pa.Table:
        """No row of a version."""
        fields = [source.schema.field(name) for name in names]
        fields += [pa.field(_ROW_ID, pa.uint64()), pa.field(_CHANGED_AT, pa.uint64())]
        return pa.schema(fields).empty_table()

    @staticmethod
    def _at(rows: pa.Table, versions: Any) -> pa.Table:
        if isinstance(versions, int):
            versions = pa.array([versions] * len(rows), pa.uint64())
        return rows.append_column(pa.field(_CHANGED_AT, pa.uint64()), versions)


class GoneRows:
    """Rows by key; it notes which of these keys are there again."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        """`rows` has the key's columns, one row a key, and any others."""
        self.rows = rows
        columns = rows.select(keys).columns
        self._known = KeySet(columns)
        self._places = self._known.sort_rows(columns)
        self._back = np.zeros(self._known.count, dtype=bool)

    @property
    def is_sound(self) -> bool:
        """Whether no key is there twice."""
        return self._known.count == len(self.rows)

    def take_back(self, keys: Sequence[pa.ChunkedArray]) -> Places:
        """For each key the place in `rows` of the row that it replaces; -1 if it replaces none."""
        if not self._known.count:
            return np.full(len(keys[0]), -1, dtype=np.int64)
        found = self._known.number(keys)
        self._back[found[found >= 0]] = True
        return np.where(found >= 0, self._places[found], -1)

    def left(self) -> pa.Table:
        """The rows whose keys did not come back."""
        return self.rows.take(self._places[~self._back])
