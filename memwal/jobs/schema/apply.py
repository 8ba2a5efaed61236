"""Changes the columns of a table at rest: indexes dropped, one commit, indexes built again.

The commit has the values that are written anew and the schema, so that no reader sees one without
the other. An index would outlast it with values of the former type. So which indexes go is noted in
the table's config before, and the note leaves when all are built: a run that was killed anywhere is
finished by the next one. Lance sees no conflict with an index that is built meanwhile; so
afterwards every index of the fields noted is built again, whoever made it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from memwal.errors import LostRace, MemWalError, StoreUnavailable, Unsupported
from memwal.jobs.schema.plan import SchemaPlan, list_paths
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """The fields whose indexes have to be built again, and by name those that were dropped.

    Of each the id of its field, as that may have another name by then, and how it was built.
    """

    fields: frozenset[int]
    indexes: Mapping[str, tuple[int, Any]]


class SchemaTable(Protocol):
    """The table. What commits raises what `call_lance` raises."""

    def read(self) -> TableView:
        """A fresh view."""
        ...

    def check(self, view: TableView, plan: SchemaPlan) -> None:
        """Raise Refused for a default that is no value of its type, or against the policy."""
        ...

    def find_indexes(self, version: int, ids: frozenset[int]) -> Sequence[tuple[int, Any]]:
        """The indexes of these fields: the field's id, and how the index was built."""
        ...

    def read_note(self, view: TableView) -> Note | None:
        """The note in the table's config. Raises Unsupported."""
        ...

    def put_note(self, note: Note) -> None:
        """Commit a note, in the place of any other."""
        ...

    def drop_note(self) -> None:
        """Remove the note."""
        ...

    def drop_index(self, name: str) -> None:
        """Drop an index."""
        ...

    def forget_indexes(self, names: Collection[str]) -> bool:
        """Commit the MemWAL index without them; False if it does not name them."""
        ...

    def build(self, recipe: Any) -> None:
        """Build an index over all rows, in the place of one of its name."""
        ...

    def commit(self, version: int, plan: SchemaPlan) -> Written:
        """Write values anew, and commit on top of this version; LostRace if rows changed."""
        ...


@dataclass(kw_only=True, slots=True)
class Altered:
    """What a run did. `commits` are all that it made, `changed` whether the columns' was one."""

    plan: SchemaPlan
    commits: int = 0
    changed: bool = False
    conflicts: int = 0
    written: Written = field(default_factory=Written)
    indexes: tuple[str, ...] = ()
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
    catch_up: Callable[[], object] = lambda: None
    steps: Steps = no_steps

    def look(self) -> tuple[TableView, SchemaPlan, Note | None]:
        """A fresh view, what is left to do in it, and the indexes that are left to build."""
        view = self.table.read()
        plan = self.plan(view)
        self.table.check(view, plan)
        return view, plan, self.table.read_note(view)

    def run(self) -> Altered:
        """Do what is left to do. Raises what is in the way."""
        _, plan, note = self.look()
        done = Altered(plan=plan)
        if not plan.has_work and note is None:
            return done
        self.take_lease()
        if plan.has_work:
            try:
                self._change(done)
            except LostRace:
                self._finish(done)
                raise
        self._finish(done)
        return done

    def _change(self, done: Altered) -> None:
        """Make the commit, on top of a fresh view each time that another one was in the way."""
        deadline = self.clock.monotonic_seconds() + _SECONDS_MAX
        failed: MemWalError | None = None
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            view, plan, note = self.look()
            if not plan.has_work:
                if failed is not None:  # an attempt whose reply was lost has landed
                    done.commits += 1
                    done.changed = True
                return
            self.check_rest(view)
            try:
                self._try(done, view, plan, note)
                return
            except (LostRace, StoreUnavailable) as error:
                done.conflicts += 1
                failed = error
            if not back_off(self.clock, attempt, _WAIT_SECONDS_MAX, deadline):
                break
        raise LostRace(
            f"others committed to the table each of {done.conflicts} times; the columns are as "
            f"they were. Run again when it is quieter ({failed})"
        )

    def _try(self, done: Altered, view: TableView, plan: SchemaPlan, note: Note | None) -> None:
        version = view.version
        found = self.table.find_indexes(version, plan.touched) if plan.touched else ()
        if found:
            known = note or Note(fields=frozenset(), indexes={})
            self.before_commit()
            self.steps("note")
            self.table.put_note(
                Note(
                    fields=known.fields | plan.touched,
                    indexes={**known.indexes, **{r.name: (i, r) for i, r in found}},
                )
            )
            done.commits += 1
            for _, recipe in found:
                self.before_commit()
                self.steps("drop")
                self.table.drop_index(recipe.name)
                done.commits += 1
            # Rows are judged by the version that the commit is made on.
            view = self.table.read()
            plan, version = self.plan(view), view.version
        self.before_commit()
        self.steps("commit")
        done.written = self.table.commit(version, plan)
        done.commits += 1
        done.changed = True
        self.steps("committed")

    def _finish(self, done: Altered) -> None:
        """Build what the note has, and what others built meanwhile; then remove the note."""
        view = self.table.read()
        note = self.table.read_note(view)
        late = self.table.find_indexes(view.version, done.plan.touched) if done.changed else ()
        if note is None and not late:
            return
        noted = {} if note is None else dict(note.indexes)
        if note is not None:
            late = (*late, *self.table.find_indexes(view.version, note.fields))
        for field_id, recipe in late:
            noted.setdefault(recipe.name, (field_id, recipe))
        paths, built, gone = dict(list_paths(view.columns)), [], []
        for name, (field_id, recipe) in noted.items():
            if field_id not in paths:
                gone.append(name)
                continue
            self.before_commit()
            self.steps("build")
            self._build(recipe, paths[field_id])
            done.commits += 1
            built.append(name)
        if gone:
            self.before_commit()
            self.steps("forget indexes")
            done.commits += self.table.forget_indexes(gone)
        done.indexes, done.dropped = tuple(built), tuple(gone)
        if note is not None:
            self.before_commit()
            self.steps("forget")
            self.table.drop_note()
            done.commits += 1
        self.catch_up()

    def _build(self, recipe: Any, path: str) -> None:
        try:
            self.table.build(replace(recipe, column=path))
        except Unsupported as error:
            raise Unsupported(
                "MW-K30",
                f"index {recipe.name!r} can't be built again on {path!r}: {error}. The columns are "
                "changed; build the index as you want it, and run again",
            ) from None
