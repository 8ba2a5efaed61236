"""The Python API: a table with a MemWAL, and the jobs on it as methods.

    import memwal

    table = memwal.open_table("s3://lake/events", {"aws_region": "eu-west-1"})
    if table.status().due:
        table.merge()
        table.index_catchup()
    rows = table.read(filter="score > 0.5").read_all()

A method does what the command of the same name does, on one table. The command's options are its
keywords; a number may be a text, with a unit as on a command line: `"7d"`, `"256MB"`. It returns
the table's report where the command would exit with 0, and otherwise raises the error in
`memwal.errors` that belongs to the exit code, with the `report` if there is one. What a job says
while it runs goes to the logger `memwal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import memwal.store  # noqa: F401  (says what Lance logs, and Lance is imported later)
from memwal.config import (
    Config,
    EngineName,
    ResolvedTable,
    load_config,
    make_settings,
    read_environment_options,
    resolve_table,
)
from memwal.config.known_names import AS_IT_IS
from memwal.config.namespaces import OPTION as NAMESPACE_OPTION
from memwal.config.requests import check_request, check_values
from memwal.errors import MemWalError as MemWalError
from memwal.errors import Usage, unexpected
from memwal.jobs.audit.report import AuditTableReport
from memwal.jobs.audit.request import AuditRequest
from memwal.jobs.backup.plan import BackupTableReport
from memwal.jobs.backup.request import BackupRequest, RestoreRequest
from memwal.jobs.checkpoint.report import CheckpointTableReport
from memwal.jobs.compaction.plan import CompactionTableReport
from memwal.jobs.erase.report import EraseTableReport
from memwal.jobs.erase.request import EraseRequest
from memwal.jobs.garbage.report import GarbageTableReport
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.index_catchup.plan import IndexCatchupTableReport
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.maintain.request import MaintainRequest
from memwal.jobs.merge.report import MergeTableReport
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.repair.report import RepairTableReport
from memwal.jobs.repair.request import RepairRequest
from memwal.jobs.restore.plan import RestoreTableReport
from memwal.jobs.schema.report import SchemaTableReport
from memwal.jobs.schema.request import SchemaRequest
from memwal.jobs.snapshot.plan import SnapshotTableReport
from memwal.jobs.status.report import StatusTableReport
from memwal.jobs.verify.report import VerifyTableReport
from memwal.jobs.verify.request import VerifyRequest
from memwal.options import Consistency, Kind, convert_request, convert_value
from memwal.read.plan.request import Nearest, Search, parse_consistency
from memwal.read.request import ChangesAsked, ReadAsked
from memwal.report import CursorReport
from memwal.run.keywords import speaks_python, takes
from memwal.run.progress import LogProgress
from memwal.run.reports import take_report

if TYPE_CHECKING:
    import pyarrow as pa

    from memwal.ingest.values.python_rows import Rows
    from memwal.ingest.writer import TableWriter
    from memwal.read.changes import ChangesOptions

Options = TypeVar("Options")
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class _Dry:
    """`dry_run`: change nothing, and report what would be done."""

    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class _Merge(MergeRequest, _Dry):
    pass


@dataclass(frozen=True, kw_only=True)
class _Catchup(CatchupRequest, _Dry):
    pass


@dataclass(frozen=True, kw_only=True)
class _Garbage(GarbageRequest, _Dry):
    pass


@dataclass(frozen=True, kw_only=True)
class _Maintain(MaintainRequest, _Dry):
    pass


@dataclass(frozen=True, kw_only=True)
class _Repair(RepairRequest, _Dry):
    pass


@dataclass(frozen=True, kw_only=True)
class _Erase(EraseRequest, _Dry):
    keys: str | Sequence[Mapping[str, Any]] | None = None  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class _Schema(SchemaRequest, _Dry):
    pass


def open_table(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    config: str | None = None,
    engine: EngineName | None = None,
    master: str | None = None,
    lease: bool = True,
    memory_bytes_max: int | None = None,
    audit: str | None = None,
    consistency: Consistency = "latest",
    allow_untested_lance: bool = False,
) -> Table:
    """Return a table to work on. Nothing of the table is read before the first job.

    uri: a path, an `s3://` address, or the name of a table in the file `config` or in one of the
        namespaces that it declares.
    storage_options: as pylance takes them. They take precedence over `MEMWAL_STORAGE_OPTIONS`,
        which takes precedence over `config`.
    config: a `memwal.toml`, which may also set limits and row-merge policies. If None, no such file
        is looked for.
    engine: `auto`, `spark` or `local`; by default what the configuration says, else `auto`.
    master: the Spark master.
    lease: whether jobs take the table's lease.
    memory_bytes_max: how much memory this process, or each of Spark's executors, may take; None
        means no limit.
    audit: a folder or address for audit trails; by default what the configuration says.
    consistency: with `snapshot`, `read` and `status` take the shards from the table's shard
        snapshot: few requests, but the state of that time. The other jobs always use the current
        state.

    Raises Usage for a configuration that can't be read, and for an unknown engine; Unsupported
    where what jobs need is not installed.
    """
    if find_spec("lance") is None:
        raise unexpected(ModuleNotFoundError(name="lance"))
    if engine not in (None, *get_args(EngineName)):
        raise Usage(f"engine {engine!r}: expected {', '.join(get_args(EngineName))}")
    file = Config() if config is None else load_config(config)
    options = {**read_environment_options(), **(storage_options or {})}
    given = make_settings(memory_bytes_max=memory_bytes_max, audit=audit)
    return Table(
        resolve_table(uri, file, options).with_settings(given),
        consistency=parse_consistency(consistency),
        engine=engine,
        master=master,
        lease=lease,
        untested_lance_allowed=allow_untested_lance,
    )


def shard_of(
    uri: str,
    rows: Rows,
    storage_options: Mapping[str, str] | None = None,
    *,
    allow_untested_lance: bool = False,
) -> pa.Array:
    """Return the id of each row's shard as text, to partition rows by or for pylance's writer.

    rows: Arrow data or a list of dicts, with at least the columns that the shard depends on.

    An ingest would write the row to the same shard. Raises what an ingest would raise: Refused,
    Unsupported, Usage.
    """
    from memwal.ingest.target import IngestTable
    from memwal.ingest.values.python_rows import read_rows
    from memwal.rows.pairs import Lenience
    from memwal.run.stores import open_stores, take_options

    stores = open_stores(uri, take_options(storage_options, allow_untested_lance))
    table = IngestTable.read(stores, stores.views.table(), None)
    return table.find_shards(read_rows(rows, table.schema, None, Lenience(missing=True)))


@speaks_python(read=ReadAsked, changes=ChangesAsked, commit_changes=ChangesAsked)
class Table:
    """A table with a MemWAL, made by `open_table`; every method reads the table's state anew."""

    def __init__(
        self, table: ResolvedTable, *, consistency: Consistency = "latest", **options: Any
    ) -> None:
        """`options` are fields of `memwal.run.options.RunOptions`."""
        self._table = table
        self._consistency = consistency
        self._options = options

    def __repr__(self) -> str:
        return f"Table({self._table.name!r})"

    @property
    def name(self) -> str:
        """The table's name in the configuration, or its address without secrets."""
        return self._table.name

    def status(self) -> StatusTableReport:
        """Shards, pending generations, merge progress, index lag, and whether a merge is `due`."""
        from memwal.jobs.status.job import run_status
        from memwal.run.options import RunOptions

        options = self._make_options(RunOptions)
        return take_report(run_status(options, consistency=self._consistency), StatusTableReport)

    def open_writer(self, **how: Any) -> TableWriter:
        """Open it for writing, as `memwal.ingest.open_writer` does, with its storage options.

        If the configuration says how fresh it is kept, rows become a generation within half of
        that, unless `generation_every` says otherwise.
        """
        from memwal.ingest.writer import TableWriter

        how = {"allow_untested_lance": self._options["untested_lance_allowed"], **how}
        if self._table.settings.freshness is not None:
            how = {"generation_every": self._table.settings.freshness / 2, **how}
        known = {f"{AS_IT_IS}{name}": v for name, v in self._table.storage_options.items()}
        return TableWriter(self._table.find_uri(), known, **how)

    @takes(_Merge)
    def merge(self, request: _Merge) -> MergeTableReport:
        """Fold flushed generations into the base table, oldest first.

        With `dry_run`, change nothing, and return the commits that a merge would make.
        """
        from memwal.jobs.merge.job import MergeOptions, run_merge

        return take_report(
            run_merge(self._ask(MergeOptions, request), LogProgress()), MergeTableReport
        )

    @takes(_Catchup)
    def index_catchup(self, request: _Catchup) -> IndexCatchupTableReport:
        """Extend the indexes over the rows that merging added, and record their progress."""
        from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup

        options = self._ask(IndexCatchupOptions, request)
        return take_report(run_index_catchup(options, LogProgress()), IndexCatchupTableReport)

    def snapshot(self, *, dry_run: bool = False) -> SnapshotTableReport:
        """Refresh the shard snapshot in the MemWAL index."""
        from memwal.jobs.snapshot.job import run_snapshot
        from memwal.run.options import RunOptions

        options = self._make_options(RunOptions, dry_run=dry_run)
        return take_report(run_snapshot(options, LogProgress()), SnapshotTableReport)

    @takes(_Garbage)
    def garbage(self, request: _Garbage) -> GarbageTableReport:
        """List what is provably unused in the report's `items`, or delete it with `execute`."""
        from memwal.jobs.garbage.job import GarbageOptions, run_garbage

        options = self._ask(GarbageOptions, request)
        return take_report(run_garbage(options, LogProgress()), GarbageTableReport)

    def compaction(self, *, dry_run: bool = False) -> CompactionTableReport:
        """Rewrite the small fragments that merging leaves, and catch the indexes up again."""
        from memwal.jobs.compaction.job import CompactionOptions, run_compaction

        options = self._make_options(CompactionOptions, dry_run=dry_run)
        return take_report(run_compaction(options, LogProgress()), CompactionTableReport)

    @takes(_Maintain)
    def maintain(self, request: _Maintain) -> MaintainTableReport:
        """Merge, catch indexes up, refresh the snapshot, and list garbage or delete it."""
        from memwal.jobs.maintain.job import MaintainOptions, run_maintain

        options = self._ask(MaintainOptions, request)
        return take_report(run_maintain(options, LogProgress()), MaintainTableReport)

    @takes(_Erase)
    def erase(self, request: _Erase) -> EraseTableReport:
        """List what holds the rows of keys; with `execute`, erase them, and prove what is left.

        It claims shards, which fences their writers, so `execute` needs `yes`. `key` is one, as
        `{"id": 7}`, or as texts such as `id=7`, one for each key column; `keys` has several, or
        names a file of them.
        """
        from memwal.jobs.erase.job import EraseOptions, run_erase

        options = self._ask(EraseOptions, request)
        return take_report(run_erase(options, LogProgress()), EraseTableReport)

    def erasures(self) -> EraseTableReport:
        """List the table's erasures, the open ones too."""
        from memwal.jobs.erase.job import run_list
        from memwal.run.options import RunOptions

        options = self._make_options(RunOptions)
        return take_report(run_list(options, LogProgress()), EraseTableReport)

    @takes(AuditRequest)
    def audit(self, request: AuditRequest) -> AuditTableReport:
        """What the audit trail says was done to the table, newest first. Raises Usage without."""
        from memwal.jobs.audit.job import run_audit
        from memwal.read.job import find_other_shards

        found = run_audit([self._table], request, find_other_shards)
        return take_report(found, AuditTableReport)

    @takes(VerifyRequest)
    def verify(self, request: VerifyRequest) -> VerifyTableReport:
        """Check the invariants on the table at rest, and change nothing.

        Raises Corruption if one is broken; the error's report has all `checks`.
        """
        from memwal.jobs.verify.job import run_verify
        from memwal.run.options import RunOptions

        run = run_verify(self._make_options(RunOptions), LogProgress(), deep=request.deep)
        return take_report(run, VerifyTableReport)

    @takes(_Repair)
    def repair(self, request: _Repair) -> RepairTableReport:
        """List what is damaged and from what it can be mended, or mend it with `execute`.

        Where mending it fences a writer, it takes `yes`. Raises Corruption as long as something is
        damaged; the error's report has the `items`.
        """
        from memwal.jobs.repair.job import RepairOptions, run_repair

        asked = convert_request(request, RepairRequest)
        options = self._make_options(
            RepairOptions,
            dry_run=request.dry_run,
            request=asked,
            confirm=lambda table, damages: asked.yes,
            find_place=self._make_place,
        )
        return take_report(run_repair(options, LogProgress()), RepairTableReport)

    @takes(_Schema)
    def schema(self, request: _Schema) -> SchemaTableReport:
        """The table's columns, and what changes come to; with `apply`, make them.

        `rename`, `widen` and `default` are such as `{"clicks": "int64"}`.
        """
        from memwal.jobs.schema.job import SchemaOptions, run_schema

        options = self._ask(SchemaOptions, request)
        return take_report(run_schema(options, LogProgress()), SchemaTableReport)

    def checkpoint(
        self,
        name: str,
        *,
        expires_seconds: float | str | None = None,
        holder: str | None = None,
        dry_run: bool = False,
    ) -> CheckpointTableReport:
        """Keep the table's present state, pending rows included, for `read(checkpoint=name)`.

        With `expires_seconds` None it is kept until it is dropped. `holder` says whose it is.
        """
        from memwal.jobs.checkpoint.job import CreateOptions, make_request, run_create

        seconds = None
        if expires_seconds is not None:
            seconds = convert_value(Kind.DURATION, expires_seconds, "expires_seconds")
        request = make_request(name, expires_seconds=seconds, holder=holder)
        options = self._make_options(CreateOptions, dry_run=dry_run, request=request)
        return take_report(run_create(options, LogProgress()), CheckpointTableReport)

    def checkpoints(self) -> CheckpointTableReport:
        """List the checkpoints, including expired ones that are not collected yet."""
        from memwal.jobs.checkpoint.job import run_list

        return take_report(run_list(self._table), CheckpointTableReport)

    def drop_checkpoint(self, name: str, *, dry_run: bool = False) -> CheckpointTableReport:
        """Drop a checkpoint; what only it has kept is garbage from then on."""
        from memwal.jobs.checkpoint.job import run_drop

        return take_report(run_drop(self._table, name, dry_run=dry_run), CheckpointTableReport)

    def backup(
        self,
        dest: str,
        *,
        name: str | None = None,
        keep: str | int | None = None,
        dest_storage_options: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> BackupTableReport:
        """Copy the table's present state, pending rows and WAL included, to a folder for backups.

        `name` is by default the time. With `keep`, backups beyond the newest so many (`7`), or
        older than that (`"30d"`), are dropped afterwards. `dest_storage_options` take precedence
        over the table's own.
        """
        from memwal.jobs.backup.job import BackupOptions, run_backup

        place = self._make_place(dest, dest_storage_options)
        stay = str(keep) if isinstance(keep, int) else keep
        request = check_request(BackupRequest(name=name, keep=stay), lambda o: o.name)
        asked = self._make_options(BackupOptions, dest=place, request=request, dry_run=dry_run)
        return take_report(run_backup(asked, LogProgress()), BackupTableReport)

    def restore(
        self,
        source: str,
        *,
        backup: str | None = None,
        backup_storage_options: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> RestoreTableReport:
        """Make the table out of a backup in `source`; nothing may be there yet.

        `backup` is its name, by default the newest.
        `backup_storage_options` are of `source`, over those of the table.
        """
        from memwal.jobs.restore.job import RestoreOptions, run_restore

        place = self._make_place(source, backup_storage_options)
        asked = RestoreRequest(backup=backup)
        request = check_request(asked, lambda o: o.name)
        made = self._make_options(RestoreOptions, source=place, request=request, dry_run=dry_run)
        return take_report(run_restore(made, LogProgress()), RestoreTableReport)

    def read(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        key: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        nearest: Nearest | Mapping[str, Any] | None = None,
        search: Search | Mapping[str, Any] | None = None,
        version: int | None = None,
        merged_only: bool | None = None,
        checkpoint: str | None = None,
        with_wal: bool = False,
        allow_holes: bool = False,
        allow_reinitialised: bool = False,
    ) -> pa.RecordBatchReader:
        """Read the newest row of every key from base and MemWAL together, without deleted rows.

        The keywords are those of `memwal.read.ReadableTable.read`, which explains each. Rows have
        the base's columns, or those in `columns`; `nearest` adds `_distance`, `search` adds
        `_score`.
        """
        from memwal.read.job import open_configured
        from memwal.run.policy_choice import check_stored
        from memwal.run.stores import check_lance_version

        check_lance_version(self._options["untested_lance_allowed"])
        asked = check_values(
            ReadAsked,
            columns=columns,
            filter=filter,
            limit=limit,
            version=version,
            merged_only=merged_only,
            checkpoint=checkpoint,
            with_wal=with_wal,
            allow_holes=allow_holes,
            allow_reinitialised=allow_reinitialised,
        )
        table = open_configured(self._table, self._consistency)
        if self._table.policy is not None and checkpoint is None:
            check_stored(self._table, table.at(asked["version"]).policy_text)
        return table.read(
            **asked,
            key=key,
            nearest=_make_search(Nearest, nearest, "nearest"),
            search=_make_search(Search, search, "search"),
        )

    def changes(
        self,
        *,
        since: int | None = None,
        checkpoint: str | None = None,
        cursor: str | None = None,
        until: int | None = None,
        columns: Sequence[str] | None = None,
        before: bool = False,
    ) -> pa.RecordBatchReader:
        """Read what changed after a version, a checkpoint's version or where a cursor stands.

        The net change of each key: `_change` (insert, update, delete), `_version` and `_time` of
        the commit, and the columns; of a delete only the key's. `before` adds the row as it was, as
        a struct `_before`. The schema's metadata has the range: `memwal.since`, `memwal.until`.
        """
        asked = self._changes(
            since=since,
            checkpoint=checkpoint,
            cursor=cursor,
            until=until,
            columns=columns,
            before=before,
        )
        from memwal.read.changes import read_changes

        return read_changes(asked)

    def commit_changes(
        self, cursor: str, version: int, *, transaction: str | None = None
    ) -> CursorReport:
        """Move a cursor to a version whose changes are done, or make it there.

        `transaction` is kept beside it: that of your own store, which tells after a crash whether
        the changes landed there.
        """
        from memwal.read.changes import commit_changes

        return commit_changes(self._changes(cursor=cursor, commit=version, transaction=transaction))

    def drop_cursor(self, cursor: str) -> CursorReport:
        """Drop a cursor: it keeps no versions from then on."""
        from memwal.read.changes import commit_changes

        return commit_changes(self._changes(cursor=cursor, drop=True))

    def _changes(self, **asked: Any) -> ChangesOptions:
        from memwal.read.changes import ChangesOptions

        return ChangesOptions(
            table=self._table,
            asked=check_request(ChangesAsked(**asked), lambda declared: declared.name),
            untested_lance_allowed=self._options["untested_lance_allowed"],
        )

    def _ask(self, kind: Callable[..., Options], request: _Dry) -> Options:
        """Options of that kind. Its own request travels to executors, who may lack this module."""
        asked: object = convert_request(request, type(cast(Any, kind).request))
        return self._make_options(kind, dry_run=request.dry_run, request=asked)

    def _make_place(
        self, uri: str, storage_options: Mapping[str, str] | None = None
    ) -> ResolvedTable:
        """A place of backups, with storage options over the table's own."""
        options = {**self._table.storage_options, **(storage_options or {})}
        options.pop(NAMESPACE_OPTION, None)  # that is where the table itself is
        return ResolvedTable(
            name=uri, uri=uri, settings=self._table.settings, storage_options=options
        )

    def _make_options(self, kind: Callable[..., Options], **options: Any) -> Options:
        return kind(tables=[self._table], **self._options, **options)


def _make_search(kind: type[Found], given: object, name: str) -> Found | None:
    """What to search for, which may be given as a dict. Raises Usage."""
    try:
        made = kind(**given) if isinstance(given, Mapping) else given
    except TypeError as error:
        raise Usage(f"{name}: {error}") from None
    if made is not None and not isinstance(made, kind):
        raise Usage(f"{name} {given!r}: expected a memwal.{kind.__name__}, or a dict of its fields")
    return made
