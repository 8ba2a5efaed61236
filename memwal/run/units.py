"""What the units of all jobs share: how one is run, and what it hands back.

A unit is plain data. It travels to a thread or to a Spark executor, and whoever runs it opens
stores of its own. Running one twice, or beside itself, must do no harm (invariant 8).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from memwal.errors import MemWalError, unexpected
from memwal.run import logs
from memwal.run.stores import Stores, open_stores

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableUnit:
    """Some work on one table."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitResult(Generic[Made]):
    """What a unit made, or why it made nothing. `trace` is of an error that nobody expected."""

    made: Made | MemWalError
    requests: Mapping[str, int] = field(default_factory=dict)
    trace: str | None = None


def run_unit(unit: TableUnit, work: Callable[[Stores], Made]) -> UnitResult[Made]:
    """Do a unit's work in this process. Never raises: the other units must go on."""
    try:
        stores = open_stores(unit.uri, unit.storage_options)
        shards: Sequence[str] = getattr(unit, "shard_ids", ())
        with logs.about(table=stores.uri, shard=shards[0] if len(shards) == 1 else None):
            made = work(stores)
        return UnitResult(made=made, requests=stores.objects.counts.as_dict())
    except (KeyboardInterrupt, SystemExit):
        raise
    except MemWalError as error:
        return UnitResult(made=error)
    except BaseException as error:  # a panic in Lance's Rust code is no Exception
        return UnitResult(made=unexpected(error), trace=traceback.format_exc())


def lost_unit(unit: object, error: MemWalError) -> UnitResult[Any]:
    """The result of a unit that killed its process."""
    return UnitResult(made=error)
