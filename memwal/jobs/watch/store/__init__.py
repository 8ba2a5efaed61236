"""Cheap looks at tables: list the versions and `_mem_wal/`, and read only what is new.

Nothing here goes through Lance. The process that looks has to survive whatever is in a table, and
Lance's native code may end a process over a torn file; it also makes more requests. All that a
watch needs of a version is in its manifest file, which we read ourselves. The view has no columns,
as a watch does not need them.

The base is read before the shards, as in `memwal.store.tables.view`, and every look relies on its
own listings. If a listing lags behind, so does the look: what is remembered stands only for files
that were listed just now.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.config.names import Glob, ListNames
from memwal.errors import (
    BadCredentials,
    MemWalError,
    Missing,
    NotATable,
    StoreUnavailable,
    unexpected,
)
from memwal.format import layout
from memwal.jobs.status.plan import AbandonedLimits
from memwal.jobs.status.report import find_backup_time
from memwal.jobs.status.store import read_last_backup
from memwal.jobs.watch.plan import Generation, TableLook
from memwal.jobs.watch.ports import LookEnd
from memwal.jobs.watch.store.shards import LatestShards, SeenShard, SeenShards, SeenWals
from memwal.model import (
    FRESHNESS_SECONDS,
    NO_MEM_WAL,
    BrokenShard,
    Cursor,
    ShardId,
    ShardView,
    StoredFile,
    TableView,
    VersionFacts,
)
from memwal.ports import Clock, Objects
from memwal.rows.policy import STORED_KEY
from memwal.rows.progress import find_holes
from memwal.run.options import choose_limits
from memwal.store.objects.opening import normalise_uri, open_objects
from memwal.store.records.cursors import StoredCursors
from memwal.store.tables.manifests import (
    TAIL_BYTES,
    TableManifests,
    check_table_folder,
    require_mem_wal,
)

_ATTEMPTS_MAX = 3
# A manifest of 10,000 shards fits into this and costs one request; larger ones cost three.
_TAIL_BYTES_MAX = 8 * 1024 * 1024
# The most that a watch reads of one table in its own process: a manifest of a million fragments.
_MANIFEST_BYTES_MAX = 256 * 1024 * 1024
_LOOKS_MAX = 3
# Backups are made daily, and not by a watch; cursors are moved by those who follow changes.
_SELDOM_SECONDS = 600.0


class LatestVersion:
    """The latest version of one table; the same object is returned while its file is the same."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._file: StoredFile | None = None
        self._facts: VersionFacts | None = None

    def read(self) -> VersionFacts:
        """What the latest version's manifest says. Raises NotATable, Corruption."""
        for _ in range(_ATTEMPTS_MAX):
            version, file = self._find()
            if self._facts is not None and file == self._file:
                return self._facts
            try:
                facts = self._read(version, file)
            except Missing as error:
                missing = error  # expired since it was listed, so there is a newer one
                continue
            self._file, self._facts = file, facts
            return facts
        raise missing

    def _find(self) -> tuple[int, StoredFile]:
        found = find_latest(self._objects.list(layout.VERSIONS), self._objects.page_objects)
        if found is None:
            check_table_folder(self._objects)
            raise NotATable(f"{self._objects.uri}: its {layout.VERSIONS} folder has no version")
        return found

    def _read(self, version: int, file: StoredFile) -> VersionFacts:
        tail_bytes = min(max(file.size_bytes, TAIL_BYTES), _TAIL_BYTES_MAX)
        manifests = TableManifests(
            self._objects, tail_bytes=tail_bytes, read_bytes_max=_MANIFEST_BYTES_MAX
        )
        return manifests.facts(file.path, version)


def find_latest(files: Iterable[StoredFile], page_objects: int) -> tuple[int, StoredFile] | None:
    """The newest version that is not detached, and its file; None without any.

    With Lance's present naming scheme, a sorted listing has the newest version first. So the first
    page is enough if its names show that the scheme is used and the listing is sorted.
    """
    latest: tuple[int, StoredFile] | None = None
    is_newest_first, last = True, ""
    for number, file in enumerate(files, start=1):
        version = layout.parse_table_manifest_name(file.path.removeprefix(f"{layout.VERSIONS}/"))
        is_newest_first &= last < file.path
        last = file.path
        if version is not None and not layout.is_detached(version):
            is_newest_first &= file.path.endswith(f"/{layout.table_manifest_names(version)[0]}")
            if latest is None or version > latest[0]:
                latest = version, file
        if number == page_objects and is_newest_first and latest is not None:
            break
    return latest


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    facts: VersionFacts
    shards: SeenShards
    view: TableView
    flushed: Mapping[Generation, int]


class SeenTable:
    """Looks at one table, and remembers the last look. For one thread at a time."""

    def __init__(self, objects: Objects, clock: Clock, wals: SeenWals) -> None:
        self._uri = objects.uri
        self._base = LatestVersion(objects)
        self._shards = LatestShards(objects, clock, wals)
        self._last: _Seen | None = None

    def look(self) -> tuple[TableView, Mapping[Generation, int], bool]:
        """The table's view, when its generations were flushed, and whether anything is new."""
        last, facts = self._last, self._base.read()
        for _ in range(_LOOKS_MAX):
            shards = self._shards.look(partial(_find_through, facts))
            if last is not None and last.facts is facts and last.shards == shards:
                return last.view, last.flushed, False
            self._last = seen = self._show(facts, shards)
            if not any(any(find_holes(shard)) for shard in seen.view.shards):
                break
            # A generation that was merged and dropped between the two reads looks like a hole.
            newer = self._base.read()
            if newer is facts:
                break
            facts = newer
        return seen.view, seen.flushed, True

    def _show(self, facts: VersionFacts, seen: SeenShards) -> _Seen:
        mem_wal = facts.manifest.mem_wal
        if mem_wal is None:
            left = len(seen.shards)
            mem_wal = require_mem_wal(self._uri, facts.manifest, left) if left else NO_MEM_WAL
        shards = {k: s for k, s in seen.shards.items() if isinstance(s, SeenShard)}
        view = TableView(
            uri=self._uri,
            version=facts.manifest.version,
            primary_key=facts.primary_key,
            columns=(),
            rows=facts.rows,
            manifest=facts.manifest,
            mem_wal=mem_wal,
            shards=tuple(
                ShardView(manifest=s.manifest, merged_generation=mem_wal.merged.get(k, 0))
                for k, s in shards.items()
            ),
            broken=tuple(s for s in seen.shards.values() if isinstance(s, BrokenShard)),
            strangers=tuple(seen.strangers),
            policy_text=facts.manifest.config.get(STORED_KEY),
        )
        flushed = {
            (shard_id, listed.generation): shard.flushed[listed.path]
            for shard_id, shard in shards.items()
            for listed in shard.manifest.flushed_generations
            if listed.path in shard.flushed
        }
        return _Seen(facts=facts, shards=seen, view=view, flushed=flushed)


def _find_through(facts: VersionFacts, shard_id: ShardId) -> int:
    """Up to which generation a shard is merged, and in every index."""
    state, indexes = facts.manifest.mem_wal, facts.manifest.indexes
    names = {entry.name for entry in indexes} - layout.SYSTEM_INDEXES
    return 0 if state is None else state.caught_up_to(shard_id, names)


class SeenBackup:
    """The time of a table's newest backup, read aside: its store may be slow, or away."""

    def __init__(self, table: ResolvedTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._due_at = -math.inf
        self.at_nanos: int | None = None

    def renew(self) -> None:
        """Begin to read it, if that was long ago; returns at once."""
        now = self._clock.monotonic_seconds()
        if self._table.backup is not None and now >= self._due_at:
            self._due_at = now + _SELDOM_SECONDS
            threading.Thread(target=self._read, daemon=True, name="memwal-backup-look").start()

    def _read(self) -> None:
        # What can't be read now stays as old as it was, so that an alert comes in the end.
        self.at_nanos = find_backup_time(read_last_backup(self._table)) or self.at_nanos or 0


class SeenCursors:
    """The cursors of one table, listed now and then."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._stored = StoredCursors(objects)
        self._clock = clock
        self._due_at = -math.inf
        self._found: Sequence[Cursor] = ()

    def look(self) -> Sequence[Cursor]:
        """As they were some minutes ago at most."""
        now = self._clock.monotonic_seconds()
        if now >= self._due_at:
            self._due_at = now + _SELDOM_SECONDS
            # What can't be read now stays as it was, so that an alert comes in the end.
            with suppress(MemWalError):
                self._found = self._stored.list()
        return self._found


@dataclass(frozen=True, slots=True)
class _Opened:
    where: object
    objects: Objects
    table: SeenTable
    wals: SeenWals
    backup: SeenBackup
    cursors: SeenCursors


class StoredLooks:
    """The Lookouts port over object stores, with a thread for each look.

    The threads mostly wait for the store, without the GIL. A look that a store never answers ends
    with the process.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        opened: Callable[[ResolvedTable], Objects] | None = None,
    ) -> None:
        """`opened` opens a table's store; by default it is opened by the table's URI."""
        self._clock = clock or SystemClock()
        self._open = opened or self._open_objects
        self._tables: dict[str, _Opened] = {}
        self._lock = threading.Lock()
        self._ended: queue.SimpleQueue[LookEnd] = queue.SimpleQueue()

    def start(self, table: ResolvedTable) -> None:
        """Begin a look; returns at once."""
        thread = threading.Thread(target=self._run, args=(table,), daemon=True, name="memwal-look")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads are to be had
            self._ended.put(LookEnd(table=table, error=unexpected(error)))

    def collect(self) -> Sequence[LookEnd]:
        """The looks that ended since the last call, without waiting."""
        return [self._ended.get() for _ in range(self._ended.qsize())]

    def _run(self, table: ResolvedTable) -> None:
        try:
            end = LookEnd(table=table, look=self.look(table))
        except MemWalError as error:
            end = LookEnd(table=table, error=error)
        except BaseException as error:  # a panic in Lance's Rust code is not an Exception
            end = LookEnd(table=table, error=unexpected(error))
        self._ended.put(end)

    def look(self, table: ResolvedTable) -> TableLook:
        """Look at a table now; only one look at a table at a time. Raises MemWalError."""
        found = self._find(table)
        before = found.objects.counts.as_dict()
        try:
            view, flushed, changed = found.table.look()
        except BadCredentials:
            self.forget(table.name)  # so that the next look opens the store with new credentials
            raise
        found.backup.renew()
        cursors = found.cursors.look()
        after = found.objects.counts.as_dict()
        return TableLook(
            view=view,
            flushed_at_nanos=flushed,
            changed=changed,
            abandoned_shards=found.wals.abandoned,
            unflushed_at_nanos=found.wals.unflushed,
            last_backup_at_nanos=found.backup.at_nanos,
            cursors=cursors,
            requests={name: after[name] - before[name] for name in ("list", "get")},
        )

    def forget(self, table: str) -> None:
        """Forget a table that is no longer watched, or whose name stands for another one now."""
        with self._lock:
            self._tables.pop(table, None)

    def _find(self, table: ResolvedTable) -> _Opened:
        where = (table.uri, frozenset(table.storage_options.items()), table.backup)
        with self._lock:
            found = self._tables.get(table.name)
        if found is None or found.where != where:
            objects = self._open(table)
            limits = choose_limits(AbandonedLimits, table)
            freshness = table.settings.freshness or FRESHNESS_SECONDS
            wals = SeenWals(objects, self._clock, limits, freshness)
            seen = SeenTable(objects, self._clock, wals)
            backup, cursors = SeenBackup(table, self._clock), SeenCursors(objects, self._clock)
            found = _Opened(where, objects, seen, wals, backup, cursors)
            with self._lock:
                self._tables[table.name] = found
        return found

    def _open_objects(self, table: ResolvedTable) -> Objects:
        return open_objects(normalise_uri(table.find_uri()), table.storage_options, self._clock)


@dataclass(kw_only=True, slots=True)
class _Listed:
    """The last listing for a glob; `began` is when it began, and it may still be `under_way`."""

    glob: Glob
    names: list[str]
    began: float
    under_way: bool = False
    problem: MemWalError | None = None


class StoredNames:
    """The names beside each glob, or below each folder, as last listed.

    They are listed again every `every_seconds`. Each listing has a thread of its own. One that is
    never answered holds up nobody, and ends with the process; until it ends, no other listing for
    its glob begins.
    """

    def __init__(self, list_names: ListNames, clock: Clock, *, every_seconds: float = 60.0) -> None:
        """`list_names` asks the namespace or lists the folder, which takes some requests."""
        self.every_seconds = every_seconds
        self._list_names = list_names
        self._clock = clock
        self._listed: dict[str, _Listed] = {}
        self._ended: queue.SimpleQueue[tuple[str, list[str] | MemWalError]] = queue.SimpleQueue()

    def find(self, glob: Glob) -> list[str]:
        """The names beside a glob; only the first call lists them itself. Raises MemWalError."""
        found = self._listed.get(glob.name)
        if found is None:
            now = self._clock.monotonic_seconds()
            names = self._list_names(glob)
            found = self._listed[glob.name] = _Listed(glob=glob, names=names, began=now)
        found.glob = glob  # its namespace may be configured anew
        return found.names

    def renew(self) -> bool:
        """Begin the listings that are due; returns whether any that ended found other names.

        The names listed last stay while a namespace can't be listed.
        """
        now, changed = self._clock.monotonic_seconds(), False
        for _ in range(self._ended.qsize()):
            name, end = self._ended.get()
            found = self._listed[name]
            found.under_way = False
            found.problem = end if isinstance(end, MemWalError) else None
            if isinstance(end, list) and end != found.names:
                found.names, changed = end, True
        for found in self._listed.values():
            if not found.under_way and now >= found.began + self.every_seconds:
                found.under_way, found.began = True, now
                self._begin(found.glob)
        return changed

    def find_problems(self) -> dict[str, MemWalError]:
        """Why names may be out of date, by glob."""
        now, longest = self._clock.monotonic_seconds(), self.every_seconds
        found = {name: one.problem for name, one in self._listed.items()}
        for name, one in self._listed.items():
            if one.under_way and now - one.began > longest:
                silent = f"{name}: no list of its tables for {longest:.0f} s"
                found[name] = StoreUnavailable(silent)
        return {name: problem for name, problem in found.items() if problem is not None}

    def _begin(self, glob: Glob) -> None:
        thread = threading.Thread(target=self._run, args=(glob,), daemon=True, name="memwal-names")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads are to be had
            self._ended.put((glob.name, unexpected(error)))

    def _run(self, glob: Glob) -> None:
        try:
            self._ended.put((glob.name, self._list_names(glob)))
        except MemWalError as error:
            self._ended.put((glob.name, error))
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            self._ended.put((glob.name, unexpected(error)))
