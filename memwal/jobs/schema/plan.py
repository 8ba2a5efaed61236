"""Decides which columns a table is to have. Pure.

Rows that wait were written under the schema of their day, and writers that are open go on with it.
`memwal.rows.align` brings such rows to the new schema by field ids. So a column keeps its id
whatever becomes of it, and an added one gets an id that no row that waits has.

A widened column keeps its id, too. Lance's own cast gives it a new one, and then a writer that
replays a WAL of before takes the column for one that was dropped: its values become NULL (seen on
pylance 14). With the id kept, Lance refuses to open such a WAL, and `memwal rescue` flushes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from memwal.errors import Refused, Usage
from memwal.format import layout
from memwal.jobs.schema.request import SchemaRequest
from memwal.model import ColumnInfo
from memwal.rows.widen import is_exact

_LISTS = ("list", "large_list", "fixed_size_list")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A table's columns, and what uses them.

    `used` says of a column, by name, what would break without it; `ids_taken` are all up to which
    a row that waits may have one. `indexed` has the indexes of each column; `unfinished` those that
    a change left to be built again. `parse_type` gives Arrow's text for a type; raises Usage.
    `check_default` raises Usage for JSON that is no value of a type.
    """

    columns: tuple[ColumnInfo, ...]
    used: Mapping[str, str]
    ids_taken: int
    indexed: Mapping[str, Sequence[str]]
    unfinished: tuple[str, ...]
    parse_type: Callable[[str], str]
    check_default: Callable[[str, str], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change that is left to do: to which column, and in words."""

    kind: str
    column: str
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaPlan:
    """The columns as they will be. Those in `rewritten` get new data files, of all their rows.

    `rebuilt` are the indexes that are built again afterwards.
    """

    columns: tuple[ColumnInfo, ...]
    changes: tuple[Change, ...]
    rewritten: tuple[str, ...]
    rebuilt: tuple[str, ...]


def plan_schema(found: Found, request: SchemaRequest) -> SchemaPlan:
    """What is left to do. Raises Usage for what can't be asked, Refused for what is not safe."""
    plan = _Planner(found, dict(_split(request.default, "=")))
    for name, kind in _split(request.add, ":"):
        plan.add(name, kind)
    for name, kind in _split(request.widen, "="):
        plan.widen(name, kind)
    for name in request.require:
        plan.require(name)
    for old, new in _split(request.rename, "="):
        plan.rename(old, new)
    for name in request.drop:
        plan.drop(name)
    if request.order is not None:
        plan.order([name.strip() for name in request.order.split(",")])
    if plan.defaults:
        name = next(iter(plan.defaults))
        raise Usage(f"--default {name}: there is no --add or --require of this column")
    there = {column.field_id for column in plan.columns}
    rewritten = tuple(c.name for c in plan.columns if c.field_id in plan.rewritten)
    former = [c.name for c in found.columns if c.field_id in plan.rewritten & there]
    rebuilt = {index for name in former for index in found.indexed.get(name, ())}
    return SchemaPlan(
        columns=tuple(plan.columns),
        changes=tuple(plan.changes),
        rewritten=rewritten,
        rebuilt=tuple(sorted(rebuilt | set(found.unfinished))),
    )


def _split(texts: Iterable[str], between: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, _, value = text.partition(between)
        yield name, value


class _Planner:
    """The columns, change by change."""

    def __init__(self, found: Found, defaults: dict[str, str]) -> None:
        self._found = found
        self.columns = list(found.columns)
        self.defaults = defaults
        self.changes: list[Change] = []
        self.rewritten: set[int] = set()
        self._next_id = found.ids_taken + 1

    def add(self, name: str, kind: str) -> None:
        type_text, default = self._found.parse_type(kind), self.defaults.pop(name, None)
        path = name.split(".")
        if layout.is_reserved(path[-1]):
            raise Usage(f"--add {name}: Lance keeps names that begin with an underscore for itself")
        if default is not None:
            default = self._found.check_default(default, type_text)
        there = _find(self.columns, path)
        if there is not None:
            if (there.type_text, there.default) == (type_text, default):
                return
            raise Usage(f"--add {name}: there is a column of that name, of {there.type_text}")
        if len(path) > 1 and default is not None:
            raise Usage(f"--add {name}: a member has no --default")
        column = ColumnInfo(
            field_id=self._next_id,
            name=path[-1],
            type_text=type_text,
            nullable=default is None,
            default=default,
        )
        self._next_id += 1 + type_text.count(":") + type_text.count("<")  # its members' ids
        if len(path) == 1:
            self.columns.append(column)
        else:
            self._edit(path[:-1], lambda c: _with_member(c, column, name))
        if default is not None:
            self.rewritten.add(column.field_id)
        text = "NULL in the rows that there are" if default is None else f"{default} in all rows"
        self._note("add", name, f"{type_text}, {text}")

    def widen(self, name: str, kind: str) -> None:
        type_text, path = self._found.parse_type(kind), name.split(".")
        column = self._get("--widen", name)
        if column.type_text == type_text:
            return
        self._check_unused("--widen", path[0])
        if column.children or not is_exact(column.type_text, type_text):
            why = "its values would not all be the same"
            if column.type_text.startswith("fixed_size_list"):
                why = "a vector keeps its dimension: other vectors are another column's"
            elif column.children:
                why = f"name the member that is to be wider, such as {name}.MEMBER=TYPE"
            what = f"from {column.type_text} to {type_text}"
            raise Refused("MW-K16", f"--widen {name}: {what}: {why}")
        before = column.type_text
        self._edit(
            path,
            lambda c: replace(
                c, type_text=type_text, former_types=(*dict.fromkeys((*c.former_types, before)),)
            ),
        )
        self._note("widen", name, f"{before} -> {type_text}", rewrites=path[0])

    def require(self, name: str) -> None:
        column, default = self._get("--require", name), self.defaults.pop(name, None)
        if default is not None:
            default = self._found.check_default(default, column.type_text)
        if "." in name:
            raise Usage(f"--require {name}: of a column only, not of a member")
        if not column.nullable and default in (None, column.default):
            return
        self._check_unused("--require", name)
        if default is None:
            raise Usage(f"--require {name} needs --default {name}=JSON: rows may have NULL there")
        self._edit([name], lambda c: replace(c, nullable=False, default=default))
        self._note("require", name, f"not NULL, {default} instead", rewrites=name)

    def rename(self, old: str, new: str) -> None:
        path = old.split(".")
        if _find(self.columns, path) is None and _find(self.columns, [*path[:-1], new]):
            return
        self._get("--rename", old)
        if "." in new or layout.is_reserved(new) or _find(self.columns, [*path[:-1], new]):
            raise Usage(f"--rename {old}={new}: that name is taken, reserved or a path")
        self._check_unused("--rename", path[0] if len(path) == 1 else "")
        self._note("rename", old, f"-> {new}")
        self._edit(path, lambda c: replace(c, name=new))

    def drop(self, name: str) -> None:
        path = name.split(".")
        if _find(self.columns, path) is None:
            return
        self._check_unused("--drop", path[0])
        if len(path) == 1:
            self.columns = [c for c in self.columns if c.name != name]
        else:
            self._edit(path[:-1], lambda c: _without_member(c, path[-1], name))
        self._note("drop", name, "its values are gone from the newest version")

    def order(self, names: Sequence[str]) -> None:
        for name in names:
            self._get("--order", name)
        first = [column for name in names for column in self.columns if column.name == name]
        wanted = [*first, *(column for column in self.columns if column.name not in names)]
        if len(first) != len(set(names)):
            raise Usage("--order: a column is named twice")
        if wanted != self.columns:
            self.columns = wanted
            self._note("order", "", ", ".join(column.name for column in wanted))

    def _get(self, option: str, name: str) -> ColumnInfo:
        column = _find(self.columns, name.split("."))
        if column is None:
            known = ", ".join(c.name for c in self.columns)
            raise Usage(f"{option} {name}: no such column; there are {known}")
        return column

    def _check_unused(self, option: str, name: str) -> None:
        if (use := self._found.used.get(name)) is not None:
            raise Refused("MW-K15", f"{option} {name}: {use}")

    def _edit(self, path: Sequence[str], change: Callable[[ColumnInfo], ColumnInfo]) -> None:
        self.columns = [
            _edited(c, path[1:], change) if c.name == path[0] else c for c in self.columns
        ]

    def _note(self, kind: str, name: str, what: str, rewrites: str | None = None) -> None:
        self.changes.append(Change(kind=kind, column=name, what=what))
        if rewrites is not None:
            self.rewritten |= {c.field_id for c in self.columns if c.name == rewrites}


def _find(columns: Sequence[ColumnInfo], path: Sequence[str]) -> ColumnInfo | None:
    for column in columns:
        if column.name == path[0]:
            return column if len(path) == 1 else _find(column.children, path[1:])
    return None


def _edited(
    column: ColumnInfo, path: Sequence[str], change: Callable[[ColumnInfo], ColumnInfo]
) -> ColumnInfo:
    if not path:
        return change(column)
    return _rebuilt(
        column,
        [_edited(c, path[1:], change) if c.name == path[0] else c for c in column.children],
    )


def _with_member(column: ColumnInfo, member: ColumnInfo, name: str) -> ColumnInfo:
    if not column.type_text.startswith("struct"):
        raise Usage(f"--add {name}: {column.name} is no struct")
    return _rebuilt(column, [*column.children, member])


def _without_member(column: ColumnInfo, member: str, name: str) -> ColumnInfo:
    left = [c for c in column.children if c.name != member]
    if not left or not column.type_text.startswith("struct"):
        raise Usage(f"--drop {name}: it is all that {column.name} has; drop {column.name}")
    return _rebuilt(column, left)


def _rebuilt(column: ColumnInfo, children: Sequence[ColumnInfo]) -> ColumnInfo:
    """The column with other members, and the text of the type that this makes."""
    inner = ", ".join(
        f"{c.name}: {c.type_text}{'' if c.nullable else ' not null'}" for c in children
    )
    kind, _, rest = column.type_text.partition("<")
    size = rest.rpartition(">")[2] if kind in _LISTS else ""
    return replace(column, type_text=f"{kind}<{inner}>{size}", children=tuple(children))
