"""The Python API of the merging read, and the keys that a caller gives it, checked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from memwal.errors import Corruption, Missing, NotATable, Refused, Usage
from memwal.model import Checkpoint, ShardId, TableView
from memwal.options import Consistency
from memwal.ports import Clock
from memwal.read.plan.request import (
    Moment,
    Nearest,
    ReadRequest,
    Search,
    check_moment,
    parse_consistency,
)
from memwal.read.plan.sources import Incomplete, ReadPlan, describe_mixed, plan_read
from memwal.read.store.faults import explain_missing, report_gone
from memwal.read.store.opening import open_read
from memwal.read.store.sources import OpenRead, share_opened
from memwal.read.store.wal_rows import Moved, StoredWalRows
from memwal.rows.progress import check_lineage
from memwal.run.stores import open_stores, take_options
from memwal.sharding.evaluate import rule_out_shards
from memwal.store.tables.datasets import primary_key_of
from memwal.store.tables.generations import Generations
from memwal.text import iso_time

Key = Mapping[str, object]

_HEX = re.compile(r"0x((?:[0-9a-fA-F]{2})*)")
_BOOLEANS = {"true": True, "false": False}

T = TypeVar("T")
_VIEWS_MAX = 5


def check_keys(
    key: Key | Sequence[Key], primary_key: Sequence[str], schema: pa.Schema
) -> tuple[tuple[object, ...], ...]:
    """One key or several, each as its values in the order of the key columns. Raises Usage."""
    keys = [key] if isinstance(key, Mapping) else key
    return tuple(_check_key(one, primary_key, schema) for one in keys)


def _check_key(key: Key, primary_key: Sequence[str], schema: pa.Schema) -> tuple[object, ...]:
    if set(key) != set(primary_key):
        expected = ", ".join(primary_key) or "none: the table has no primary key"
        named = ", ".join(map(str, key))
        raise Usage(f"a key names the key columns ({expected}), not {named}: --key for each")
    return tuple(_convert(key[name], name, schema.field(name).type) for name in primary_key)


def _convert(value: object, name: str, kind: pa.DataType) -> object:
    try:
        found: object = pa.scalar(value, kind).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Usage(f"{value!r} is no value of the key column {name!r} ({kind}): {error}") from None
    if found is None:
        raise Usage(f"the key column {name!r} is never NULL")
    return found


def parse_keys(texts: Sequence[str], schema: pa.Schema) -> dict[str, object]:
    """`COLUMN=VALUE` texts as one key: numbers, true or false, 0x… for bytes. Raises Usage."""
    key: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in schema.names:
            raise Usage(f"--key {text!r}: expected COLUMN=VALUE with one of the key's columns")
        if name in key:
            raise Usage(f"--key {name!r} is given twice")
        key[name] = _parse_value(text, value, schema.field(name).type)
    return key


def _parse_value(text: str, value: str, kind: pa.DataType) -> object:
    if pa.types.is_integer(kind):
        try:
            return int(value)
        except ValueError:
            raise Usage(f"--key {text!r}: expected a whole number") from None
    if pa.types.is_boolean(kind):
        if value.lower() not in _BOOLEANS:
            raise Usage(f"--key {text!r}: expected true or false")
        return _BOOLEANS[value.lower()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        match = _HEX.fullmatch(value)
        if match is None:
            raise Usage(f"--key {text!r}: expected bytes as 0x and hexadecimal digits")
        return bytes.fromhex(match[1])
    return value


def prune_shards(
    view: TableView, keys: Sequence[Sequence[object]], read_schema: Callable[[], pa.Schema]
) -> dict[ShardId, str]:
    """Shards that hold no version of any row with these keys, and why.

    `read_schema` gives the table's at the view's version, where it takes that to tell.
    """
    recorded = any(s.manifest.shard_spec_id and s.manifest.shard_field_entries for s in view.shards)
    return rule_out_shards(view, keys, read_schema()) if recorded and keys else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedRead:
    """A read that was planned and opened: the view and plan behind it, and its rows."""

    view: TableView
    plan: ReadPlan
    read: OpenRead
    request: ReadRequest
    now_nanos: Callable[[], int]
    """The instant at which rows expire, where a row-merge policy has them do so."""
    unflushed: Mapping[ShardId, pa.Table]

    @property
    def taken_at(self) -> str | None:
        """When the shard snapshot in use was begun; None if shards were read from manifests."""
        millis = self.view.taken_at_millis
        return None if millis is None else iso_time(millis * 10**6, "milliseconds")

    @property
    def shards_from(self) -> dict[str, Any]:
        """The document's fields about where shards were read from, and how old that may be."""
        return {
            "consistency": "latest" if self.taken_at is None else "snapshot",
            "taken_at": self.taken_at,
            "warnings": list(self.warnings),
        }

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for the reader; those about rows only once they are being read."""
        unused = self.view.snapshot_unused_text
        first = () if unused is None else (f"{self.view.uri}: {unused}",)
        return (*first, *describe_mixed(self.plan, self.request), *self.read.warnings)


class ReadableTable:
    """A table, read together with its MemWAL. Every read looks at the table anew.

    Generations, which are never written again, are opened once in a process, and what was read of
    them is kept (64 MiB at most). Safe to use from several threads.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        consistency: Consistency = "latest",
        memory_bytes_max: int | None = None,
    ) -> None:
        """See `open_table`. Rows expire by the clock, where the table has them do so."""
        options = storage_options or {}
        self._opened = share_opened(uri, options, memory_bytes_max)
        more = {"session": self._opened.session, "memory_bytes_max": memory_bytes_max}
        stores = open_stores(uri, options, clock=clock, **more)
        self._stores = stores
        self.consistency = parse_consistency(consistency)
        self.uri, self.tables, self.views = stores.uri, stores.tables, stores.views
        self.wal = stores.wal
        self.generations = Generations(
            objects=stores.objects,
            tables=stores.tables,
            field_ids=stores.views.field_ids,
            access=self._opened.number,
        )

    @cached_property
    def _wal_rows(self) -> StoredWalRows:
        return StoredWalRows(
            wal=self.wal,
            manifests=self._stores.shard_manifests,
            field_ids=self.views.field_ids,
        )

    def read(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        key: Key | Sequence[Key] | None = None,
        nearest: Nearest | None = None,
        search: Search | None = None,
        version: int | None = None,
        merged_only: bool | None = None,
        checkpoint: str | None = None,
        with_wal: bool = False,
        allow_holes: bool = False,
        allow_reinitialised: bool = False,
    ) -> pa.RecordBatchReader:
        """The newest row of every key, without deleted ones.

        columns: names, in the order wanted; None for all.
        filter: SQL as Lance takes it (`` `Name` `` quotes a column, 'text' a text). Only the newest
            row of a key can match; one that fails on an older one (a cast) fails the read.
        limit: the most rows to return; which ones is not promised.
        key: values of the primary key's columns by name, or several of such keys.
        nearest: rows whose vector is nearest, in order, with `_distance` as the last column.
        search: rows whose text matches, best first, ties by key, with `_score` as the last column;
            of these and of `nearest`, `filter` and `key` choose among which.
        version: of the base table, with what is listed now that it has not merged: rows written
            later may be among that. Refused when it has been collected meanwhile.
        merged_only: True for the base alone; False where pending ones are meant with a `version`.
        checkpoint: the name of a moment that `memwal checkpoint` kept: exactly the table of then.
        with_wal: rows that are in the WAL only, too. Strongly consistent, then, as long as no
            writer holds acknowledged rows in memory alone.
        allow_holes: read on where generations are missing, and their rows with them.
        allow_reinitialised: read generations that are older than the table's MemWAL index.

        Warns (UserWarning) of a key that waits in two shards, whose rows are both read, of pending
        generations in an older version, and of a shard snapshot that could not be used.
        Raises NotATable, Usage, Refused, Corruption, StoreUnavailable (the reader, too, when the
        table goes away while rows are read), BadCredentials, Unsupported.
        """
        request = ReadRequest(
            columns=None if columns is None else tuple(columns),
            filter=filter,
            limit=limit,
            keys=None if key is None else self.check_keys(key, version, checkpoint),
            nearest=nearest,
            search=search,
            version=version,
            merged_only=merged_only,
            checkpoint=checkpoint,
            allow_holes=allow_holes,
            allow_reinitialised=allow_reinitialised,
            consistency=self.consistency,
        )
        opened, rows = self.open_reader(request, with_wal=with_wal)
        for text in opened.warnings:
            warnings.warn(text, stacklevel=4)
        return rows

    def check_keys(
        self,
        key: Key | Sequence[Key],
        version: int | None = None,
        checkpoint: str | None = None,
    ) -> tuple[tuple[object, ...], ...]:
        """One key or several, checked against the table, as a request has them. Raises Usage."""
        if checkpoint is not None:
            version = self.find_checkpoint(checkpoint).version
        dataset = self._base(version)
        return check_keys(key, primary_key_of(dataset), dataset.schema)

    def open_reader(
        self, request: ReadRequest, *, with_wal: bool = False
    ) -> tuple[OpenedRead, pa.RecordBatchReader]:
        """A planned read and its rows; which rows win is decided when this returns."""

        def start(opened: OpenedRead) -> tuple[OpenedRead, pa.RecordBatchReader]:
            moment, version = self._find_moment(request), opened.view.version
            batches = report_gone(
                opened.read.start(), moment, lambda: self.views.table_version() == version
            )
            schema = opened.read.schema
            if opened.taken_at is not None:
                told = {**(schema.metadata or {}), "memwal.taken_at": opened.taken_at}
                schema = schema.with_metadata(told)
                batches = (batch.cast(schema) for batch in batches)
            return opened, pa.RecordBatchReader.from_batches(schema, batches)

        return self.use_read(request, start, with_wal=with_wal)

    def schema(self, version: int | None = None) -> pa.Schema:
        """The base table's schema at a version."""
        found: pa.Schema = self._base(version).schema
        return found

    def _base(self, version: int | None) -> Any:
        with self._opened.forgetting():
            try:
                return self.tables.base(version)
            except (NotATable, Missing):
                self.at(version)  # says better what is wrong
                raise

    def find_checkpoint(self, name: str) -> Checkpoint:
        """The checkpoint of a name. Raises Usage without one, Refused for one that has expired."""
        return self._stores.checkpoints.find(name, self._stores.clock.now_nanos())

    def use_read(
        self, request: ReadRequest, use: Callable[[OpenedRead], T], *, with_wal: bool = False
    ) -> T:
        """Plan, open and use a read; retry from a fresh view when a generation is gone by then."""
        if with_wal and request.consistency == "snapshot":
            raise Usage("consistency snapshot knows no WAL: with_wal goes with latest")

        check_moment(request, with_wal=with_wal)
        moment = self._find_moment(request)
        now = self._find_clock(moment)

        def attempt(view: TableView) -> T:
            rows: Mapping[ShardId, pa.Table] = {}
            if with_wal:
                view, rows = self._with_wal(view, request)
            plan = self._plan(view, request, now())
            self._check_lineage(view, plan, request)
            read = open_read(self.generations, view, plan, rows, now, self._opened.sources)
            opened = OpenedRead(
                view=view, plan=plan, read=read, request=request, now_nanos=now, unflushed=rows
            )
            return use(opened)

        with self._opened.forgetting():
            return self._use_view(request, moment, attempt)

    def _find_moment(self, request: ReadRequest) -> Moment:
        name = request.checkpoint
        return Moment(
            version=request.version,
            merged_only=bool(request.merged_only),
            checkpoint=None if name is None else self.find_checkpoint(name),
        )

    def _view(self, moment: Moment) -> TableView:
        kept = moment.checkpoint
        if kept is None:
            return self.at(moment.version, merged_only=moment.merged_only)
        try:
            return self.views.at_checkpoint(kept)
        except Missing as error:
            raise Refused(
                "MW-C06",
                f"{error}; it is that of checkpoint {kept.name!r}: somebody deleted its tag, and "
                "expired it",
            ) from None

    def _with_wal(
        self, view: TableView, request: ReadRequest
    ) -> tuple[TableView, Mapping[ShardId, pa.Table]]:
        first = [view]
        settled, found = self._wal_rows.read_settled(
            lambda: first.pop() if first else self.at(request.version),
            lambda view: self.tables.base(view.version).schema,
        )
        return settled, {shard: rows.rows for shard, rows in found.items()}

    def _find_clock(self, moment: Moment) -> Callable[[], int]:
        """What tells the time at which rows expire; a checkpoint's is the moment that it keeps."""
        kept = moment.checkpoint
        return self._stores.clock.now_nanos if kept is None else lambda: kept.created_at_nanos

    def _plan(self, view: TableView, request: ReadRequest, now_nanos: int) -> ReadPlan:
        keys = request.keys or ()
        pruned = prune_shards(view, keys, lambda: self.tables.base(view.version).schema)
        return plan_read(view, request, pruned, now_nanos=now_nanos)

    def _use_view(self, request: ReadRequest, moment: Moment, use: Callable[[TableView], T]) -> T:
        """Use a view; retry with a fresh one while something is gone and the table changes.

        What a shard snapshot names may be merged and collected by now; then manifests are read.
        """
        before: object = None
        unused = None
        for attempt in range(1, _VIEWS_MAX + 1):
            if request.consistency == "snapshot" and moment.is_latest and unused is None:
                view = self.views.from_snapshot(lambda: self.at(None))
            else:
                view = replace(self._view(moment), snapshot_unused=unused)
            try:
                return use(view)
            except (Missing, Incomplete, Corruption) as error:
                if view.taken_at_millis is not None:  # it may list what was repaired since
                    unused = f"something that it lists can't be read ({error})"
                    continue
                if isinstance(error, Corruption):
                    raise
                state = (view.version, [(s.shard_id, s.manifest.version) for s in view.shards])
                if state == before or attempt == _VIEWS_MAX:
                    raise explain_missing(error, moment) from None
                before = state
            except Moved:
                if attempt == _VIEWS_MAX:
                    raise
        raise AssertionError("unreachable")

    def at(self, version: int | None, *, merged_only: bool = False) -> TableView:
        """The table at a version; with `merged_only` without its shards.

        Raises Usage when the version is gone, NotATable without a MemWAL.
        """
        try:
            return self.views.base(version) if merged_only else self.views.at(version)
        except (NotATable, Missing):
            if version is None or version == (latest := self.views.table_version()):
                raise
            try:
                self.tables.base(version)
            except Missing:
                raise Usage(
                    f"{self.uri}: there is no version {version}, or not any more; the latest is "
                    f"{latest}"
                ) from None
            raise NotATable(
                f"{self.uri}: version {version} has no MemWAL index, so nothing tells what is to "
                "be merged with it; Lance itself can read it"
            ) from None

    def _check_lineage(self, view: TableView, plan: ReadPlan, request: ReadRequest) -> None:
        """Refuse generations that were provably written before the MemWAL index was made.

        Where nothing proves either, they are read: a merge refuses them, and says so.
        """
        if request.allow_reinitialised:
            return
        read = {shard.shard_id for shard in plan.shards}
        shards = [s for s in view.shards if s.shard_id in read and not s.merged_generation]
        self.views.lineage(view, shards)
        for shard in shards:
            if not shard.pending:
                continue
            flushed_at = self.views.flushed_at_nanos(shard.shard_id, shard.pending[0])
            since = self.views.mem_wal_since_nanos(view, flushed_at)
            if since is not None:
                check_lineage(shard, flushed_at, since)


def open_table(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    consistency: Consistency = "latest",
    memory_bytes_max: int | None = None,
    allow_untested_lance: bool = False,
) -> ReadableTable:
    """A table for reading; nothing is read before it is asked for.

    `uri` is a path or an s3:// address, `storage_options` are as pylance takes them; they take
    precedence over those in MEMWAL_STORAGE_OPTIONS. With
    `consistency="snapshot"` shards are as the table's shard snapshot has them, which takes few
    requests however many there are; a reader's schema then has metadata `memwal.taken_at`, the time
    up to which all that was flushed is read, unless manifests had to be. `memory_bytes_max` is what
    this process may take, its interpreter included. Raises Usage, Unsupported.

        rows = open_table("/data/events").read(filter="kind = 'click'").read_all()
    """
    options = take_options(storage_options, allow_untested_lance)
    return ReadableTable(uri, options, consistency=consistency, memory_bytes_max=memory_bytes_max)
