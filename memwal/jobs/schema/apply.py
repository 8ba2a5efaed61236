"""Changes a table's columns: each step after a fresh look, so that a killed run is run again.

What indexes are built again afterwards is written down before the columns change. The new columns
land in one commit; one that others got in the way of is made anew, from the table as it is then.
Until an index is built again it covers none of the changed column's rows, so answers stay right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from memwal.errors import LostRace, Missing
from memwal.jobs.schema.plan import Found, SchemaPlan, plan_schema
from memwal.jobs.schema.request import SchemaRequest
from memwal.model import TableView
from memwal.ports import Steps, no_steps

_ATTEMPTS_MAX = 10


class Columns(Protocol):
    """One table's columns. Commits raise LostRace for a conflict, StoreUnavailable, Unsupported."""

    def read(self) -> tuple[TableView, Found]:
        """The latest version. Raises Unsupported, Corruption, StoreUnavailable."""
        ...

    def name_unfinished(self, indexes: Sequence[str]) -> None:
        """Write down which indexes are to be built again; none: that all are."""
        ...

    def commit(self, plan: SchemaPlan, version: int) -> int:
        """Commit the planned columns on top of this version; returns the new one."""
        ...

    def build_again(self, index: str) -> None:
        """Build an index anew, in its own place. Raises Missing if it is gone."""
        ...


@dataclass(frozen=True, kw_only=True)
class SchemaChanger:
    """Changes one table. `take_lease` is called before anything is written."""

    columns: Columns
    take_lease: Callable[[], None]
    before_commit: Callable[[], None]
    steps: Steps = no_steps

    def run(self, request: SchemaRequest) -> tuple[SchemaPlan, TableView]:
        """Do what is left to do; returns that, and the table afterwards.

        Raises what `plan_schema` does, LostRace when others are in the way each time, and what the
        ports raise.
        """
        view, found = self.columns.read()
        first = plan_schema(found, request)
        if not first.changes and not first.rebuilt:
            return first, view
        self.take_lease()
        for _ in range(_ATTEMPTS_MAX):
            view, found = self.columns.read()
            plan = plan_schema(found, request)
            if not plan.changes:
                self._build_again(plan.rebuilt)
                return first, self.columns.read()[0]
            self._begin("commit")
            if set(plan.rebuilt) - set(found.unfinished):
                self.columns.name_unfinished(plan.rebuilt)
                self._begin("named")
                view, found = self.columns.read()
                plan = plan_schema(found, request)
            with suppress(LostRace):
                self.columns.commit(plan, view.version)
        raise LostRace(
            f"{view.uri}: others committed to the table each of {_ATTEMPTS_MAX} times; run again"
        )

    def _build_again(self, indexes: Sequence[str]) -> None:
        for index in indexes:
            self._begin("index")
            with suppress(Missing):  # dropped by its owner meanwhile
                self.columns.build_again(index)
        if indexes:
            self._begin("finish")
            self.columns.name_unfinished(())

    def _begin(self, step: str) -> None:
        self.before_commit()
        self.steps(step)
