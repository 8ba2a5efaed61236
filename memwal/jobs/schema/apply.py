"""Changes the columns of a table at rest, in one commit.

The commit has the values that are written anew and the schema, so that no reader sees one without
the other. An index would outlast it with values of the former type, so a column with an index is
not widened. The indexes of a column that is dropped go before it: a killed run is run again. Lance
sees no conflict with an index that is built meanwhile: it is dropped afterwards, by this run only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memwal.errors import LostRace, MemWalError, StoreUnavailable
from memwal.jobs.schema.plan import NEW, SchemaPlan, list_ids
from memwal.model import TableView
from memwal.ports import Clock, Steps, back_off, no_steps

_ATTEMPTS_MAX = 10
_WAIT_SECONDS_MAX = 5.0
_SECONDS_MAX = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """How much was written anew."""

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(rows=self.rows + other.rows, bytes=self.bytes + other.bytes)


class SchemaTable(Protocol):
    """The table. What commits raises what `call_lance` raises."""

    def read(self) -> TableView:
        """A fresh view."""
        ...

    def check(self, view: TableView, plan: SchemaPlan) -> None:
        """Raise Refused for a default that is no value of its type, or against the policy."""
        ...

    def name_indexes(self, version: int, ids: frozenset[int]) -> Mapping[int, Sequence[str]]:
        """The names of these fields' indexes, by the field's id."""
        ...

    def drop_index(self, name: str) -> None:
        """Drop an index."""
        ...

    def forget_indexes(self, names: Collection[str]) -> bool:
        """Commit the MemWAL index without them; False if it does not name them."""
        ...

    def commit(self, version: int, plan: SchemaPlan) -> Written:
        """Write values anew, and commit on top of this version; LostRace if rows changed."""
        ...


@dataclass(kw_only=True, slots=True)
class Altered:
    """What a run did. `applied`: the columns are changed.

    `dropped` are indexes of dropped columns, or that others built meanwhile.
    """

    plan: SchemaPlan
    applied: bool = False
    commits: int = 0
    conflicts: int = 0
    written: Written = field(default_factory=Written)
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SchemaChanger:
    """Changes one table. `take_lease` is called before the first write."""

    table: SchemaTable
    plan: Callable[[TableView], SchemaPlan]
    clock: Clock
    take_lease: Callable[[], None]
    before_commit: Callable[[], None]
    check_rest: Callable[[TableView], None]
    """Raises Refused for a table that is not at rest."""
    steps: Steps = no_steps

    def read(self) -> tuple[TableView, SchemaPlan]:
        """A fresh view, and what is left to do in it. Raises Refused for what can't be done."""
        view = self.table.read()
        plan = self.plan(view)
        if plan.has_work:
            self.table.check(view, plan)
            plan.check_indexes(self._name_indexes(view, plan))
        return view, plan

    def _name_indexes(self, view: TableView, plan: SchemaPlan) -> Mapping[int, Sequence[str]]:
        """The indexes that don't outlast the commit: of fields that are rewritten, or dropped."""
        touched = frozenset(list_ids(plan.rewritten)) - {NEW}
        return self.table.name_indexes(view.version, touched | plan.dropped)

    def run(self, done: Altered) -> None:
        """Do what is left to do. Raises what is in the way; `done` tells what was done by then."""
        _, done.plan = self.read()
        if done.plan.has_work:
            self.take_lease()
            self._change(done)
            self._drop_late(done)

    def _change(self, done: Altered) -> None:
        """Make the commit, on top of a fresh view each time that another one was in the way."""
        deadline = self.clock.monotonic_seconds() + _SECONDS_MAX
        failed: MemWalError | None = None
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            view, plan = self.read()
            if not plan.has_work:
                done.applied = failed is not None  # an attempt whose reply was lost has landed
                done.commits += done.applied
                return
            self.check_rest(view)
            if doomed := plan.list_doomed(self._name_indexes(view, plan)):
                self._drop(done, doomed)
                continue
            self.before_commit()
            self.steps("commit")
            try:
                done.written = self.table.commit(view.version, plan)
            except (LostRace, StoreUnavailable) as error:
                done.conflicts += 1
                failed = error
            else:
                done.commits, done.applied = done.commits + 1, True
                self.steps("committed")
                return
            if not back_off(self.clock, attempt, _WAIT_SECONDS_MAX, deadline):
                break
        gone = f", without the indexes {', '.join(done.dropped)}" if done.dropped else ""
        raise LostRace(
            f"others committed to the table each of {done.conflicts} times; the columns are as "
            f"they were{gone}. Run again when it is quieter ({failed})"
        )

    def _drop_late(self, done: Altered) -> None:
        """Drop the indexes that were built over the changed columns since they were looked at."""
        found = self._name_indexes(self.table.read(), done.plan)
        self._drop(done, [name for names in found.values() for name in names])

    def _drop(self, done: Altered, names: Sequence[str]) -> None:
        """Drop indexes. Writers stop maintaining them first: nothing would name them afterwards."""
        if names:
            self.before_commit()
            self.steps("forget")
            done.commits += self.table.forget_indexes(names)
        for name in names:
            self.before_commit()
            self.steps("drop")
            self.table.drop_index(name)
            done.commits += 1
            done.dropped += (name,)
