"""Opens the real stores behind the ports, in the driver and again inside each task.

It also says which pylance may be behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from memwal.clock import SystemClock
from memwal.config import check_options, read_environment_options
from memwal.errors import Unsupported
from memwal.model import TableView
from memwal.ports import Clock, Objects
from memwal.rows.memory import UNLIMITED, Memory
from memwal.run.process.process_memory import limit_memory
from memwal.store.objects.base import StoreLimits
from memwal.store.objects.opening import (
    ensure_put_if_absent,
    find_address,
    normalise_uri,
    open_objects,
)
from memwal.store.records.checkpoints import StoredCheckpoints
from memwal.store.records.cursors import StoredCursors
from memwal.store.records.erasures import StoredErasures
from memwal.store.records.lease import TTL_SECONDS, StoredLeases
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.tables.datasets import LanceTables, lance_version
from memwal.store.tables.manifests import TableManifests
from memwal.store.tables.view import StoredViews

if TYPE_CHECKING:
    from memwal.store.records.runs import StoredRunRecords

OPENED_BEFORE_SECONDS_MAX = 60.0

# The requirement in pyproject.toml names them too; a test compares the two.
TESTED_LANCE_MAJORS = (14,)


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The stores of one table that every job shares, each opened when it is first used.

    A job builds what only it uses, such as its side of the base table, from these.
    """

    uri: str
    storage_options: Mapping[str, str]
    clock: Clock
    limits: StoreLimits
    lease_seconds: float = TTL_SECONDS
    run_id: str | None = None
    session: Any | None = None
    memory: Memory = UNLIMITED

    @cached_property
    def objects(self) -> Objects:
        """The table's folder."""
        return open_objects(self.uri, self.storage_options, self.clock, self.limits)

    def prove_store(self) -> None:
        """Raise Unsupported for a store without put-if-absent; call before the first write."""
        ensure_put_if_absent(self.objects, self.clock)

    @cached_property
    def tables(self) -> LanceTables:
        """The base table, through Lance."""
        return LanceTables(self.uri, self.storage_options, self.session, self.memory)

    @cached_property
    def views(self) -> StoredViews:
        """Reads fresh views of the table."""
        return StoredViews(self.objects, self.tables)

    @cached_property
    def shard_manifests(self) -> ShardManifests:
        """The shards' manifests."""
        return ShardManifests(self.objects)

    @cached_property
    def table_manifests(self) -> TableManifests:
        """The base table's versions."""
        return TableManifests(self.objects)

    @cached_property
    def leases(self) -> StoredLeases:
        """The table's lease."""
        return StoredLeases(
            self.objects, self.clock, ttl_seconds=self.lease_seconds, run_id=self.run_id
        )

    @cached_property
    def checkpoints(self) -> StoredCheckpoints:
        """The table's checkpoints."""
        return StoredCheckpoints(self.objects)

    @cached_property
    def erasures(self) -> StoredErasures:
        """The table's erasures."""
        return StoredErasures(self.objects)

    @cached_property
    def cursors(self) -> StoredCursors:
        """The cursors of those who follow the table's changes."""
        return StoredCursors(self.objects)

    @cached_property
    def run_records(self) -> StoredRunRecords:
        """The run records of the table."""
        from memwal.store.records.runs import StoredRunRecords

        return StoredRunRecords(self.objects)

    @cached_property
    def wal(self) -> WalEntries:
        """The shards' WALs."""
        return WalEntries(self.objects)


def check_lance_version(allowed: bool) -> None:
    """Raise Unsupported for a pylance that was never tested, unless that is `allowed`."""
    version = lance_version()
    if int(version.split(".")[0]) not in TESTED_LANCE_MAJORS and not allowed:
        tested = ", ".join(f"{major}.x" for major in TESTED_LANCE_MAJORS)
        raise Unsupported(
            "MW-E01",
            f"pylance {version} is installed; tested are {tested}. Install one of those, or pass "
            "--allow-untested-lance",
        )


def take_options(
    storage_options: Mapping[str, str] | None, untested_lance_allowed: bool
) -> dict[str, str]:
    """The storage options of a program's call, over the environment's; checks pylance, too.

    Raises Usage for an option that is not known, and Unsupported.
    """
    check_lance_version(untested_lance_allowed)
    return check_options(read_environment_options()) | check_options(storage_options or {})


def open_stores(
    uri: str,
    storage_options: Mapping[str, str],
    *,
    clock: Clock | None = None,
    limits: StoreLimits | None = None,
    lease_seconds: float | None = None,
    run_id: str | None = None,
    session: Any | None = None,
    memory_bytes_max: int | None = None,
) -> Stores:
    """Open the stores of one table.

    A lease taken here lasts `lease_seconds` and names `run_id`. `session` is a Lance session shared
    with other tables. `memory_bytes_max` is what this process may take.

    Raises Usage or Unsupported for an invalid address, and what a namespace raises when it can't
    resolve the address.
    """
    root, options = find_address(normalise_uri(uri), storage_options)
    return Stores(
        uri=root,
        storage_options=dict(options),
        clock=clock or SystemClock(),
        limits=limits or StoreLimits(),
        lease_seconds=lease_seconds or TTL_SECONDS,
        run_id=run_id,
        session=session,
        memory=limit_memory(memory_bytes_max),
    )


class OpenedBefore:
    """Views that one job read, reused by the next job of the run if the first changed nothing.

    That is safe: what such a view shows as done is done, and every job reads again before it
    writes.
    """

    def __init__(self) -> None:
        self._opened: dict[str, tuple[Stores, TableView, float]] = {}

    def keep(self, uri: str, stores: Stores, view: TableView, read_seconds: float) -> None:
        """Remember a view that was read at the monotonic time `read_seconds`, if it has shards."""
        if view.shards:
            self._opened[uri] = (stores, view, read_seconds)

    def forget(self, uri: str) -> None:
        """Forget a table's view, because the table may have changed."""
        self._opened.pop(uri, None)

    def find(self, uri: str) -> tuple[Stores, TableView] | None:
        """A table's stores and view; None when none was kept, or it is too old."""
        stores, view, seconds = self._opened.get(uri, (None, None, 0.0))
        if stores is None or view is None:
            return None
        age_seconds = stores.clock.monotonic_seconds() - seconds
        return (stores, view) if age_seconds <= OPENED_BEFORE_SECONDS_MAX else None
