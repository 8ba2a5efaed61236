"""What a watch asks for: looks at tables, and workers that run rounds on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.watch.model import Look, Round
from memwal.jobs.watch.plan import Lag, Target


@dataclass(frozen=True, kw_only=True, slots=True)
class LookEnd:
    """What came of a look: what was found, or why nothing was. `table` is the one asked for."""

    table: ResolvedTable
    look: Look | None = None
    error: MemWalError | None = None


class Lookouts(Protocol):
    """Cheap looks at tables, side by side: one that does not answer keeps nobody waiting.

    They remember what is immutable, and never write.
    """

    def start(self, table: ResolvedTable) -> None:
        """Begin a look; returns at once."""
        ...

    def collect(self) -> Sequence[LookEnd]:
        """The looks that ended since; waits for none."""
        ...

    def forget(self, table: str) -> None:
        """The table is not watched any more, or is another one now."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundEnd:
    """What came of a round: a report, or the error that left none, such as a worker that died.

    `requests` is what it asked of the store, by operation, as far as that is known.
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
        """The rounds that ended: as soon as one has, and after `seconds` at the latest."""
        ...

    def stop(self, seconds_max: float) -> Sequence[RoundEnd]:
        """Let each finish the commit in hand and give its lease back; kill what takes longer."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A table that is to be kept fresh."""

    resolved: ResolvedTable
    target: Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that people and programs hear of. `table` is None for what concerns none."""

    at_nanos: int
    table: str | None
    event: str
    details: Mapping[str, Any]


class Events(Protocol):
    """Where events go."""

    def tell(self, event: Event) -> None:
        """Pass it on at once."""
        ...

    @property
    def is_heard(self) -> bool:
        """False once nobody listens any more, which ends the watch."""
        ...


class Observer(Protocol):
    """Sees all that a watch does: metrics, probes. Called in the watch's own thread; quick."""

    def turn(self, tables: Sequence[str]) -> None:
        """The watch went round once more; these are its tables."""
        ...

    def looked(self, look: Look, lag: Lag) -> None:
        """A look at a table ended well."""
        ...

    def failed(self, table: str, error: MemWalError) -> None:
        """A look at a table failed."""
        ...

    def ended(self, end: RoundEnd) -> None:
        """A round ended."""
        ...

    def forgot(self, table: str) -> None:
        """The table is not watched any more."""
        ...
