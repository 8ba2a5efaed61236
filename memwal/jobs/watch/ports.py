"""What a watch asks for: looks at tables, and workers that run rounds on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.watch.model import Look, Round


class Looks(Protocol):
    """Cheap looks at tables. They remember what is immutable, and never write."""

    def look(self, table: ResolvedTable) -> Look:
        """How the table stands. Called in threads, for one table at a time. Raises MemWalError."""
        ...

    def forget(self, table: str) -> None:
        """The table is not watched any more, or is another one now."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundEnd:
    """What came of a round: a report, or the error that left none, such as a worker that died."""

    work: Round
    seconds: float
    report: MaintainTableReport | None = None
    error: MemWalError | None = None


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
