"""The ports of a watch: looks at tables, workers that run rounds on them, events."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.watch.plan import Round, TableLook, Target


@dataclass(frozen=True, kw_only=True, slots=True)
class LookEnd:
    """The result of a look at `table`: what was found, or the error."""

    table: ResolvedTable
    look: TableLook | None = None
    error: MemWalError | None = None


class Lookouts(Protocol):
    """Cheap looks at tables, side by side: a store that does not answer holds up no other table.

    They remember what is immutable, and never write.
    """

    def start(self, table: ResolvedTable) -> None:
        """Begin a look; returns at once."""
        ...

    def collect(self) -> Sequence[LookEnd]:
        """The looks that ended since the last call, without waiting."""
        ...

    def forget(self, table: str) -> None:
        """Forget a table that is no longer watched, or whose name stands for another one now."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundEnd:
    """The result of a round: its report, or the error that left none, such as a dead worker.

    `requests` counts its requests to the store, by operation, as far as that is known.
    """

    work: Round
    seconds: float
    report: MaintainTableReport | None = None
    error: MemWalError | None = None
    requests: Mapping[str, int] = field(default_factory=dict)


class Workers(Protocol):
    """Warm processes that run rounds. One that dies, or grew too large, is replaced."""

    def can_take(self, *, large: bool) -> bool:
        """Whether a round would start at once."""
        ...

    def start(self, table: ResolvedTable, work: Round) -> None:
        """Begin a round; returns at once."""
        ...

    def wait(self, seconds: float) -> Sequence[RoundEnd]:
        """The rounds that ended; returns as soon as one has, and after `seconds` at the latest."""
        ...

    def stop(self, seconds_max: float) -> Sequence[RoundEnd]:
        """Let each worker finish its current commit and give its lease back, then end them.

        A worker that takes longer than `seconds_max` is killed.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A table to keep fresh, with its target."""

    resolved: ResolvedTable
    target: Target

    @property
    def store(self) -> Hashable:
        """What its files are on, as far as the address tells: a bucket, or else nothing shared."""
        scheme, slashes, rest = self.resolved.uri.partition("://")
        options = frozenset(self.resolved.storage_options.items())
        return (scheme, rest.partition("/")[0], options) if slashes else self.resolved.uri


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something to tell people and programs. `table` is None for what concerns no single table."""

    at_nanos: int
    table: str | None
    event: str
    details: Mapping[str, Any]


class Events(Protocol):
    """Where events go."""

    def tell(self, event: Event) -> None:
        """Pass the event on at once."""
        ...

    @property
    def is_heard(self) -> bool:
        """Whether anybody still listens; once nobody does, the watch ends."""
        ...
