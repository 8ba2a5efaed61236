"""What `memwal watch` knows of a table, and what it may ask of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memwal.model import ShardId, TableView

Generation = tuple[ShardId, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a look found.

    `flushed_at_nanos` says when each generation was flushed that is pending, or merged and still
    listed. `changed` tells whether anything differs from the look before. `requests` counts this
    look's requests to the store, by operation. `abandoned_shards` is the number of shards with rows
    that no writer will flush, as counted lately; None where no look could tell.
    """

    view: TableView
    flushed_at_nanos: Mapping[Generation, int]
    changed: bool
    requests: Mapping[str, int]
    abandoned_shards: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Jobs to run on one table, in order, under one lease. `large` rounds go to Spark."""

    table: str
    jobs: tuple[str, ...]
    large: bool = False
