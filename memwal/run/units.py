"""What the units of all jobs share: how one is run, and what it returns.

A unit is plain data. It travels to a thread or to a Spark executor, which opens stores of its own.
Running one twice, or beside itself, must do no harm (invariant 8).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from memwal.errors import MemWalError, unexpected
from memwal.rows.memory import Memory
from memwal.run.process import logs
from memwal.run.stores import Stores, open_stores
from memwal.store.objects.pace import split_rate

Made = TypeVar("Made")
Unit = TypeVar("Unit")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableUnit:
    """Some work on one table."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    memory_bytes_max: int | None = None
    """The memory the unit may take, interpreter included; the whole process's until
    `share_memory` or `split_memory` divides it.
    """

    @property
    def memory_bytes_needed(self) -> int:
        """The least memory the unit needs; with less it would be refused."""
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitResult(Generic[Made]):
    """What a unit made, or its error. `trace` is the traceback of an unexpected error."""

    made: Made | MemWalError
    requests: Mapping[str, int] = field(default_factory=dict)
    trace: str | None = None


def run_unit(unit: TableUnit, work: Callable[[Stores], Made]) -> UnitResult[Made]:
    """Do a unit's work in this process. Returns errors instead of raising: other units go on."""
    try:
        stores = open_stores(unit.uri, unit.storage_options, memory_bytes_max=unit.memory_bytes_max)
        shards: Sequence[str] = getattr(unit, "shard_ids", ())
        with logs.about(table=stores.uri, shard=shards[0] if len(shards) == 1 else None):
            made = work(stores)
        return UnitResult(made=made, requests=stores.objects.counts.as_dict())
    except (KeyboardInterrupt, SystemExit):
        raise
    except MemWalError as error:
        return UnitResult(made=error)
    except BaseException as error:  # a Rust panic in Lance is not an Exception
        return UnitResult(made=unexpected(error), trace=traceback.format_exc())


def share_memory(units: Sequence[Unit], tasks_max: int) -> tuple[list[Unit], int]:
    """The units with their shares of this process's memory, and how many may run at once.

    That is fewer than `tasks_max` when a unit's share would be less than it needs.
    """
    tasks = max(1, min(tasks_max, len(units)))
    limits = [(Memory(bytes_max=u.memory_bytes_max), u.memory_bytes_needed)
              for u in units if isinstance(u, TableUnit)]  # fmt: skip
    while tasks > 1 and any(m.fits(need) and not m.share(tasks).fits(need) for m, need in limits):
        tasks -= 1
    return [_allot(unit, lambda memory: memory.share(tasks)) for unit in units], tasks


def split_memory(unit: Unit, processes: int) -> Unit:
    """The unit with its share of memory when each runs in a process with its own interpreter."""
    return _allot(unit, lambda memory: memory.split(processes))


def split_requests(unit: Unit, processes: int) -> Unit:
    """The unit with its share of the requests a second, when it runs beside so many processes."""
    if not isinstance(unit, TableUnit):
        return unit
    return replace(unit, storage_options=split_rate(unit.storage_options, processes))


def _allot(unit: Unit, part: Callable[[Memory], Memory]) -> Unit:
    if not isinstance(unit, TableUnit):
        return unit
    return replace(unit, memory_bytes_max=part(Memory(bytes_max=unit.memory_bytes_max)).bytes_max)


def lost_unit(unit: object, error: MemWalError) -> UnitResult[Any]:
    """The result of a unit that killed its process."""
    return UnitResult(made=error)
