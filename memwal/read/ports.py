"""The doors of a merging read: opening what a plan names, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from memwal.model import ShardId, TableView
from memwal.read.plan import ReadPlan

if TYPE_CHECKING:
    import pyarrow as pa


class OpenRead(Protocol):
    """One opened read. Each `start` reads anew."""

    @property
    def schema(self) -> pa.Schema:
        """The columns asked for, and `_distance` for a search."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What the last `start` noticed and who reads should know."""
        ...

    @property
    def way(self) -> str:
        """How the read goes about it, for people."""
        ...

    def start(self) -> Iterator[pa.RecordBatch]:
        """The rows. Who wins is decided before this returns; payload is read as it is taken.

        Raises Missing when something that the plan names is gone, before this returns or later;
        Usage for a request that Lance refuses; Refused, Corruption, StoreUnavailable.
        """
        ...

    def plan_texts(self) -> tuple[str, dict[tuple[ShardId, int], str | None]]:
        """Lance's plans: for the base, and by shard and generation.

        None where Lance scans a copy in memory, or nothing. Raises Usage, Missing.
        """
        ...

    def own_indexes(self) -> dict[tuple[ShardId, int], frozenset[str]]:
        """Names of the indexes that each generation has, by shard and generation."""
        ...


class ReadTable(Protocol):
    """The base table and its generations, as readers need them."""

    def open(
        self, view: TableView, plan: ReadPlan, unflushed: Mapping[ShardId, pa.Table] | None = None
    ) -> OpenRead:
        """Open every table that the plan names, lined up with the view's columns.

        `unflushed` are rows newer than any generation of their shard: the base's columns and
        `_tombstone` (bool). Raises Missing for a generation that is gone, Refused for schema drift
        that would drop or mix up data, Usage for a filter that Lance refuses.
        """
        ...
