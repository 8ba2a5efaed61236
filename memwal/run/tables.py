"""Opens a run's tables, each with its stores and a view, and holds the leases taken for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from memwal.config import ResolvedTable
from memwal.errors import MemWalError, Unsupported, Usage
from memwal.model import TableView
from memwal.report import AuditItem
from memwal.run.lease import ChainLeases, HeldLease
from memwal.run.options import RunOptions
from memwal.run.process import logs
from memwal.run.reports import add_counts
from memwal.run.stores import OpenedBefore, Stores, open_stores
from memwal.run.trail import RunTrail
from memwal.store.objects.full_disk import free_reserve, keep_reserve
from memwal.store.objects.opening import same_place
from memwal.threads import side_by_side

# Each of these reads a table's shards in threads of its own (`memwal.store.tables.view`).
TABLE_READERS_MAX = 4

ReadView = Callable[[Stores], TableView]


def read_view(stores: Stores) -> TableView:
    """A fresh view of a table."""
    return stores.views.table()


@dataclass(kw_only=True)
class OpenTable:
    """One table on its way through a job.

    `lease` is None until there is work, and always with `--no-lease`; `leases` keeps it for the
    next jobs of the chain. `is_current` tells that the view was read under it, by a job that comes
    after the one which took it. `unit_requests` counts the units' requests to the store. `was_read`
    is set once a view of the table was read, `worked_on` once a lease was taken for it (which may
    have been given back since), and `untrusted` once its store was found to lack what writing
    needs. `warn` is called about trouble with the lease. `trail` is the audit trail, if there is
    one.
    """

    resolved: ResolvedTable
    warn: Callable[[str], None] = lambda text: None
    leases: ChainLeases = field(default_factory=ChainLeases)
    stores: Stores | None = None
    view: TableView | None = None
    lease: HeldLease | None = None
    trail: RunTrail | None = None
    worked_on: bool = False
    untrusted: bool = False
    error: MemWalError | None = None
    unit_requests: list[Mapping[str, int]] = field(default_factory=list)
    was_read: bool = False
    is_current: bool = False
    began_at_nanos: int = 0
    began_seconds: float = 0.0
    requests_before: Mapping[str, int] = field(default_factory=dict)

    def require(self) -> tuple[Stores, TableView]:
        """The table's stores and the view it was opened with; raises what prevented that."""
        if self.error is not None or self.view is None or self.stores is None:
            raise self.failure
        return self.stores, self.view

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The storage options that open the table; a namespace may have supplied them."""
        return self.resolved.storage_options if self.stores is None else self.stores.storage_options

    @property
    def has_intended(self) -> bool:
        """Whether the audit trail waits for what the run came to."""
        return self.trail is not None and self.trail.is_open

    @property
    def failure(self) -> MemWalError:
        """The error that kept the table from being read."""
        return self.error or MemWalError("the table was not read")

    def open_again(self, before: OpenedBefore) -> None:
        """Take over the view that an earlier job of the run read, if one was kept."""
        if (found := before.find(self.resolved.uri)) is not None:
            self.stores, self.view = found
            self.was_read = True
            self.requests_before = self.stores.objects.counts.as_dict()
            self.begin()

    def begin(self) -> None:
        """Note when work on this table starts, for its run record."""
        if self.stores is not None:
            self.began_at_nanos = self.stores.clock.now_nanos()
            self.began_seconds = self.stores.clock.monotonic_seconds()

    def requests(self) -> dict[str, int]:
        """The requests made for this table so far, to its store and its audit trail's, by kind."""
        own = [] if self.stores is None else [self.stores.objects.counts.as_dict()]
        trail = [] if self.trail is None else [self.trail.requests()]
        total = add_counts((*own, *self.unit_requests, *trail))
        return {key: value - self.requests_before.get(key, 0) for key, value in total.items()}

    @property
    def lease_token(self) -> int | None:
        """The fencing token that units carry."""
        return None if self.lease is None else self.lease.token

    def take_lease(
        self,
        job: str,
        options: RunOptions,
        *,
        own_claim: bool = False,
        frees: bool = False,
        mends: bool = False,
    ) -> None:
        """Prove the store and, unless `--no-lease`, claim the table before anything is written.

        Called once there is work, so that an idle pass writes nothing; a plan made before has to be
        made again afterwards from a fresh read. With `own_claim`, the job does not share a claim
        with the others of its chain. A job that `frees` space can begin even on a full disk: it
        releases the reserve (`keep_reserve`). One that `mends` begins even if the newest version
        was lost. Raises LeaseHeld, Corruption, and what `prove_store` raises.
        """
        if not mends and self.lease is None and self.stores is not None and not self.is_current:
            self.stores.views.check_newest(0 if self.view is None else self.view.version)
        if frees and self.stores is not None:
            free_reserve(self.stores.objects)
        self.prove_store()
        if options.lease and self.lease is None and self.stores is not None:
            self.lease = self.leases.take(
                self.resolved.uri,
                self.stores.leases,
                job,
                lambda text: self.warn(f"{self.resolved.name}: {text}"),
                own_claim=own_claim,
            )
            self.worked_on = True
        if not frees:
            self.keep_reserve()

    def keep_reserve(self) -> None:
        """Reserve disk space, so that the next job that frees some can begin."""
        if self.stores is not None:
            keep_reserve(self.stores.objects)

    def prove_store(self) -> None:
        """Raise Unsupported for a store without put-if-absent; call before the first write."""
        try:
            if self.stores is not None:
                self.stores.prove_store()
        except Unsupported:
            self.untrusted = True
            raise

    def release_lease(self) -> None:
        """Release the lease, if this job or an earlier one of the chain took it."""
        self.lease = None
        self.leases.give_back(self.resolved.uri)

    def is_unfenced(self) -> bool:
        """Whether a refresh was cut off before the lease was taken, and may still commit."""
        return self.lease is not None and self.lease.is_unfenced

    def note_fenced(self) -> None:
        """Note that it can't any more, as another has committed since."""
        if self.lease is not None:
            self.lease.note_fenced()

    def before_commit(self) -> None:
        """Raise LeaseHeld when the table's lease was lost; call before each step that writes."""
        if self.lease is not None:
            self.lease.check()

    def intend(self, items: Sequence[AuditItem]) -> None:
        """Write into the audit trail what is to go; call before each deletion.

        Raises StoreUnavailable where that fails: then nothing may go.
        """
        if self.trail is not None:
            self.trail.intend(items)

    def before_repair(self) -> None:
        """Raise LeaseHeld as `before_commit` does, and when the lease has ever lapsed."""
        if self.lease is not None:
            self.lease.check_unbroken()


@contextmanager
def open_tables(
    options: RunOptions,
    read: ReadView = read_view,
    failed: Callable[[OpenTable, BaseException], None] = lambda table, error: None,
    *,
    warn: Callable[[str], None] = lambda text: None,
    readers_max: int = TABLE_READERS_MAX,
) -> Iterator[list[OpenTable]]:
    """Open the tables, several at once, and release their leases at the end.

    Leases that the options share between jobs are released only when this job ends in an error. A
    table that can't be opened carries its error, and the others go on. `failed` is called for each
    table when the job as a whole ends in an error, `warn` about trouble with a lease. `read` is
    called in threads unless `readers_max` is 1.
    """
    leases = options.leases or ChainLeases(warn=warn)
    tables = [OpenTable(resolved=r, warn=warn, leases=leases) for r in options.tables]
    ended: BaseException | None = None
    try:
        _open_stores(tables, options.run_id)
        there = [t for t in tables if t.stores is not None]
        if options.opened_before is not None:
            for table in there:
                table.open_again(options.opened_before)
        unread = [table for table in there if table.view is None]
        side_by_side(lambda table: _read(table, read), unread, readers_max)
        if options.opened_before is not None:
            for table in unread:
                if table.view is not None and table.stores is not None:
                    options.opened_before.keep(
                        table.resolved.uri, table.stores, table.view, table.began_seconds
                    )
        yield tables
    except BaseException as error:
        ended = error
        raise
    finally:
        for table in tables:
            if options.leases is None or ended is not None:
                table.release_lease()
        # Comes last: a run that is being cancelled may not have the time for it.
        if ended is not None:
            for table in tables:
                failed(table, ended)


def _open_stores(tables: Sequence[OpenTable], run_id: str) -> None:
    seen: set[object] = set()
    for table in tables:
        try:
            resolved = table.resolved
            stores = open_stores(
                resolved.find_uri(),
                resolved.storage_options,
                lease_seconds=resolved.settings.lease_seconds,
                run_id=run_id,
                memory_bytes_max=resolved.settings.memory_bytes_max,
            )
            _ = stores.objects.counts  # so that bad store options are this table's error
            places = {stores.uri, same_place(stores.uri, stores.storage_options)}
            if places & seen:
                raise Usage(f"{resolved.name}: the same table was named before: {stores.uri}")
            seen |= places
            logs.name_table(stores.uri, resolved.name)
            table.stores = stores
        except MemWalError as error:
            table.error = error


def _read(table: OpenTable, read: ReadView) -> None:
    if table.stores is None:
        return
    table.begin()
    table.is_current = table.leases.holds(table.resolved.uri)
    try:
        with logs.about(table=table.resolved.name):
            table.view = read(table.stores)
        table.was_read = True
    except MemWalError as error:
        table.error = error
