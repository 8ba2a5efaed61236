"""What an ingest knows of its table: columns, routing, limits; and what it must not run beside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

import pyarrow as pa

from memwal.errors import Refused
from memwal.format.layout import parse_shard_id
from memwal.ingest.routing import (
    MANUAL_SPEC_ID,
    Place,
    Router,
    ShardValues,
    current_spec,
)
from memwal.ingest.strangers import check_strangers, waiting_beside
from memwal.model import ShardId, TableView
from memwal.run.stores import Stores
from memwal.sharding.spec import sources_of
from memwal.store.generations import Generations
from memwal.store.ingest_records import StagedRecord
from memwal.store.shard_writers import MEMTABLE_ROWS_MAX, ShardWriters, settings_of

_ROWS_PER_ENTRY_MAX = 50_000
BACKLOG_CHECK_SECONDS = 5.0
_BACKLOG_POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class IngestTable:
    """The table as it was when the run began."""

    stores: Stores
    view: TableView
    schema: pa.Schema
    only: ShardId | None

    @classmethod
    def of(cls, stores: Stores, view: TableView, only: ShardId | None) -> IngestTable:
        """Look at the table's schema too."""
        schema = stores.tables.seen(view.version).schema
        return cls(stores=stores, view=view, schema=schema, only=only)

    @property
    def spec_id(self) -> int:
        """The spec that rows are routed by; 0 for a table without one, or one named shard."""
        spec = None if self.only is not None else current_spec(self.view.mem_wal.shard_specs)
        return MANUAL_SPEC_ID if spec is None else spec.spec_id

    def router(self, written: Collection[ShardId] = (), places: Collection[Place] = ()) -> Router:
        """Routes rows by the table's spec. Raises Unsupported for one that makes no sense.

        `written` are shards to which the ingest has to go on; rows were staged for `places`.
        """
        router = self._router()
        router.written = written
        if router.fixed is None:
            router.waiting = waiting_beside(router, self.view, self.stores.wal, places)
        return router

    def _router(self) -> Router:
        """One that has not looked into any WAL."""
        return Router(
            spec=current_spec(self.view.mem_wal.shard_specs),
            sources=sources_of(self.view.columns, self.schema),
            manifests=[shard.manifest for shard in self.view.shards],
            keyed=bool(self.view.primary_key),
            broken=[b.shard_id for b in self.view.broken],
            fixed=None if self.only is None else named_place(self.only),
        )

    def check_shards(self, places: Collection[Place] = ()) -> None:
        """Raise Refused while no one knows which shard has a value's rows, Unsupported.

        `places` are known already: rows were staged for them.
        """
        router = self.router(places=places)
        if router.fixed is None:
            stores = self.stores
            generations = Generations(
                objects=stores.objects, tables=stores.tables, renamed=stores.views.renamed
            )
            check_strangers(router, self.view, self.schema, generations, stores.wal)
            for place in places:
                router.check_place(place)

    @property
    def rows_per_entry_max(self) -> int:
        """So many rows that pylance takes them in one call: it never splits one."""
        settings = settings_of(self.view.mem_wal.writer_config_defaults)
        memtable = settings.get("max_memtable_rows", MEMTABLE_ROWS_MAX)
        return max(1, min(_ROWS_PER_ENTRY_MAX, memtable))

    def writers(self) -> ShardWriters:
        """The shards' writers, with the settings that the table recorded."""
        settings = settings_of(self.view.mem_wal.writer_config_defaults)
        return ShardWriters(self.stores.objects, self.stores.tables, settings)

    def warnings(self) -> tuple[str, ...]:
        """What a person should know before rows go in."""
        found = [f"shard {b.shard_id} can't be read: {b.error}" for b in self.view.broken]
        movers = [name for name in self._router().columns if name not in self.view.primary_key]
        if movers and self.view.primary_key:
            found.append(
                f"a row's shard depends on {', '.join(movers)}, outside the primary key: a key "
                "for which that changes is in two shards, and nothing says which row is newer"
            )
        return tuple(found)


def named_place(shard_id: ShardId) -> Place:
    """A shard that the user chose; it keeps the values that it has."""
    return Place(shard_id=shard_id, values=ShardValues(spec_id=MANUAL_SPEC_ID))


def place_of(staged: StagedRecord, spec_id: int) -> Place:
    """Where staged rows go, as their plan says."""
    entries = tuple((name, bytes.fromhex(value)) for name, value in staged.entries)
    values = ShardValues(spec_id=spec_id, entries=entries)
    return Place(shard_id=parse_shard_id(staged.shard_id), values=values)


@dataclass(kw_only=True)
class Backlog:
    """Holds an ingest back while too many generations wait for a merge.

    `merge` makes it merge by itself, and is False while another run holds the table; without it,
    it waits for somebody's merges, up to `wait_seconds_max`.
    """

    stores: Stores
    generations_max: int | None
    merge: Callable[[], bool] | None
    wait_seconds_max: float
    say: Callable[[str], None]
    merges: int = 0
    _checked_at: float | None = None

    def __call__(self) -> None:
        """Look now and then; return when there is room. Raises Refused when none comes."""
        if self.generations_max is None:
            return
        now = self.stores.clock.monotonic_seconds()
        if self._checked_at is not None and now - self._checked_at < BACKLOG_CHECK_SECONDS:
            return
        pending = self.pending()
        if pending > self.generations_max:
            self.say(f"{pending} generations wait for a merge; {self.generations_max} may")
            self._make_room(self.generations_max)
        self._checked_at = self.stores.clock.monotonic_seconds()

    def pending(self) -> int:
        """Generations of all shards that are not merged."""
        return sum(len(shard.pending) for shard in self.stores.views.table().shards)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Keep looking while others write; what went wrong is raised at the end."""
        if self.generations_max is None or self.merge is None:
            yield
            return
        ended = Event()
        with ThreadPoolExecutor(1, thread_name_prefix="merging") as pool:
            looking = pool.submit(self._look_until, ended)
            try:
                yield
            finally:
                ended.set()
            looking.result()

    def _look_until(self, ended: Event) -> None:
        while not ended.wait(BACKLOG_CHECK_SECONDS):
            self()

    def _make_room(self, generations_max: int) -> None:
        clock = self.stores.clock
        deadline = clock.monotonic_seconds() + self.wait_seconds_max
        while True:
            if self.merge is not None:
                self.merges += self.merge()
            pending = self.pending()
            if pending <= generations_max:
                return
            if clock.monotonic_seconds() >= deadline:
                raise Refused(
                    f"{self.stores.uri}: {pending} generations wait for a merge, {generations_max} "
                    "may, and nobody merges them fast enough; run `memwal merge`, or this with "
                    "--merge; it goes on where it stopped"
                )
            clock.sleep(_BACKLOG_POLL_SECONDS)
