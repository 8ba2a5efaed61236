"""Decides which columns a table will have, or what is in the way. Pure.

Columns change while the table is at rest: no generation waits, and no writer goes on with the
columns of before. A column that changes keeps its field id.

Names are those that the columns have afterwards, and none is both left behind and taken: so
whoever asks again after a kill finds that all of it is so already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memwal.errors import Refused, Usage
from memwal.format import layout
from memwal.jobs.rescue.plan import RescueAction, RescueEvidence, plan_rescue, suspect_writer
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.schema.request import SchemaRequest
from memwal.jobs.schema.widen import is_exact
from memwal.model import ColumnInfo, ShardId, TableView
from memwal.report import Section
from memwal.rows.expire import find_expire
from memwal.rows.policy import parse_policy
from memwal.text import count_of

Columns = tuple[ColumnInfo, ...]
ReadType = Callable[[str], str]
NEW = -1
"""The field id of a column that is to be added."""
_BLOB = "extension<lance.blob.v2"
_NESTED = ("struct<", "list<", "large_list<", "map<", "fixed_size_list<")


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaPlan:
    """The columns as they will be; `columns` those that are, `steps` the changes for people.

    `defaults` are values as JSON, by name: what rows without a value of a column get.
    """

    columns: Columns
    wanted: Columns
    defaults: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def has_work(self) -> bool:
        """Whether anything is to be committed."""
        return self.wanted != self.columns

    @property
    def rewritten(self) -> tuple[ColumnInfo, ...]:
        """The wanted columns whose values are written anew."""
        old = {column.field_id: column for column in self.columns}
        return tuple(
            column
            for column in self.wanted
            if (column.name in self.defaults)
            or (column.field_id in old and _is_rewritten(column, old[column.field_id]))
        )

    @property
    def dropped(self) -> frozenset[int]:
        """The ids of fields that go; their indexes go with them."""
        return frozenset(list_ids(self.columns)) - {*list_ids(self.wanted)}

    @property
    def touched(self) -> frozenset[int]:
        """The ids of fields whose indexes don't outlast the commit: rewritten, or dropped."""
        return (self.dropped | {*list_ids(self.rewritten)}) - {NEW}


def list_ids(columns: Sequence[ColumnInfo]) -> Iterator[int]:
    """The field ids, depth first."""
    for column in columns:
        yield column.field_id
        yield from list_ids(column.children)


def list_paths(columns: Sequence[ColumnInfo], above: str = "") -> Iterator[tuple[int, str]]:
    """The fields' ids and paths, depth first."""
    for column in columns:
        yield column.field_id, f"{above}{column.name}"
        yield from list_paths(column.children, f"{above}{column.name}.")


def find_column(columns: Sequence[ColumnInfo], path: str) -> ColumnInfo | None:
    """The column of a path; a name with dots of its own wins."""
    for column in columns:
        if column.name == path:
            return column
        if path.startswith(f"{column.name}."):
            return find_column(column.children, path[len(column.name) + 1 :])
    return None


def plan_schema(view: TableView, request: SchemaRequest, read_type: ReadType) -> SchemaPlan:
    """The columns that the request asks for. Raises Refused for what can't be, and Usage.

    `read_type` gives a type's text its normal form, and raises Usage for what is none.
    """
    _check_names(request)
    made = _Change(columns=view.columns, fixed=_find_fixed(view), used=_find_used(view))
    defaults = dict(request.default)
    for path in request.drop:
        made.drop(path)
    for path, name in request.rename:
        made.rename(path, name)
    for path, kind in request.widen:
        made.widen(path, read_type(kind))
    for path in request.require:
        made.require(path, defaults[path])
    for text in request.add:
        path, _, kind = text.partition(":")
        made.add(path, read_type(kind), defaults.get(path))
    if request.order is not None:
        made.order(request.order.split(","))
    plan = SchemaPlan(
        columns=view.columns,
        wanted=made.columns,
        defaults=made.defaults,
        steps=tuple(made.steps),
        warnings=tuple(made.warnings),
    )
    _check_members(plan)
    return plan


def _check_members(plan: SchemaPlan) -> None:
    """Refuse values that are written anew under members that change as well."""
    before = {column.field_id: [*list_paths(column.children)] for column in plan.columns}
    for column in plan.rewritten:
        if column.field_id in before and before[column.field_id] != [*list_paths(column.children)]:
            raise Refused(
                "MW-K20",
                f"column {column.name!r}: its values and its members can't both change at once. "
                "Make two commands of it",
            )


def _check_names(request: SchemaRequest) -> None:
    for text in request.add:
        name, colon, kind = text.partition(":")
        if not (name and colon and kind):
            raise Usage(f"--add {text!r}: expected NAME:TYPE, such as price:double")
    added = [text.partition(":")[0] for text in request.add]
    targets = [_put_name(path, name) for path, name in request.rename]
    left = [*request.drop, *(path for path, _ in request.rename)]
    for names in (left, [*added, *targets], [path for path, _ in request.widen], request.require):
        if twice := {name for name in names if list(names).count(name) > 1}:
            raise Usage(f"column {min(twice)!r} is named twice")
    used = {*added, *targets, *(path for path, _ in request.widen), *request.require}
    if both := {*left} & used:
        raise Usage(
            f"column {min(both)!r} is both left behind and taken: if that were killed halfway, a "
            "second run could not tell what is left to do. Make two commands of it"
        )
    if changed := {*added} & {*request.require, *(path for path, _ in request.widen)}:
        raise Usage(f"column {min(changed)!r} is added: give it its type and default there")
    named = {path for path, _ in request.default}
    if idle := named - {*added, *request.require}:
        raise Usage(f"--default {min(idle)}: neither added nor required")
    if bare := {*request.require} - named:
        raise Usage(f"--require {min(bare)}: give rows without a value one: --default NAME=JSON")


def _put_name(path: str, name: str) -> str:
    return f"{path.rpartition('.')[0]}.{name}".lstrip(".")


@dataclass(kw_only=True)
class _Change:
    """The columns on the way to what is asked for."""

    columns: Columns
    fixed: Mapping[str, str]
    used: Mapping[str, str]
    defaults: dict[str, str] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def drop(self, path: str) -> None:
        if find_column(self.columns, path) is None:
            self.warnings.append(f"there is no column {path!r} to drop")
            return
        self._check(path, "dropped")
        parent = path.rpartition(".")[0]
        if parent and _kind(found := self._find(parent)) != "struct":
            raise Refused("MW-K20", f"{path!r}: {found.type_text} has to have its item")
        self.columns = _edit(self.columns, path, lambda column: None)
        if not self.columns or (parent and not self._find(parent).children):
            raise Refused("MW-K20", f"{path!r}: nothing would be left; drop the whole of it")
        self.steps.append(f"drop {path}")

    def rename(self, path: str, name: str) -> None:
        after = _put_name(path, name)
        column = find_column(self.columns, path)
        taken = find_column(self.columns, after)
        if column is None and taken is not None:
            return
        column = self._find(path)
        if taken is not None:
            raise Refused("MW-K26", f"column {after!r} is there")
        _check_reserved(name)
        self._check(path, "renamed")
        self.columns = _edit(self.columns, path, lambda column: replace(column, name=name))
        self.steps.append(f"rename {path} to {after}")

    def widen(self, path: str, kind: str) -> None:
        column = self._find(path)
        if column.type_text == kind:
            return
        self._check(path, "widened")
        _check_wider(path, column.type_text, kind)
        self.columns = _edit(self.columns, path, lambda c: replace(c, type_text=kind))
        self.steps.append(f"widen {path} from {column.type_text} to {kind}")

    def require(self, path: str, default: str) -> None:
        column, value = self._find(path), _read_default(path, default)
        if not column.nullable:
            return
        if path not in {c.name for c in self.columns}:
            raise Refused("MW-K20", f"{path!r}: only a column of the table can be required")
        self._check(path, "required")
        self.columns = _edit(self.columns, path, lambda c: replace(c, nullable=False))
        self.defaults[path] = value
        self.steps.append(f"require {path}, {value} where it is NULL")

    def add(self, path: str, kind: str, default: str | None) -> None:
        value = None if default is None else _read_default(path, default)
        there = find_column(self.columns, path)
        if there is not None:
            if (there.type_text, there.nullable) != (kind, value is None):
                raise Refused("MW-K26", f"column {path!r} is there, and is {describe(there)}")
            return
        parent, _, name = path.rpartition(".")
        _check_reserved(name)
        column = ColumnInfo(field_id=NEW, name=name, type_text=kind, nullable=value is None)
        if not parent:
            self.columns += (column,)
        elif _kind(found := self._find(parent)) != "struct" or value is not None:
            raise Refused(
                "MW-K20",
                f"{path!r}: members are added to a struct, without a default; {parent!r} is "
                f"{found.type_text}",
            )
        else:
            self._check(parent, "changed")
            self.columns = _edit(
                self.columns, parent, lambda c: replace(c, children=(*c.children, column))
            )
        if value is not None:
            self.defaults[path] = value
        text = "" if value is None else f", {value} in each row"
        self.steps.append(f"add {path}, {kind}{text}")

    def order(self, names: Sequence[str]) -> None:
        by_name = {column.name: column for column in self.columns}
        for name in names:
            if name not in by_name:
                raise _unknown(name, self.columns)
        first = [by_name[name] for name in dict.fromkeys(names)]
        wanted = (*first, *(c for c in self.columns if c.name not in names))
        if wanted != self.columns:
            self.steps.append(f"order {', '.join(names)}")
        self.columns = wanted

    def _find(self, path: str) -> ColumnInfo:
        column = find_column(self.columns, path)
        if column is None:
            raise _unknown(path, self.columns)
        return column

    def _check(self, path: str, done: str) -> None:
        """Raise Refused if the column, or the one that it is in, must stay as it is."""
        top = next(c for c in self.columns if path == c.name or path.startswith(f"{c.name}."))
        if top.type_text.startswith(_BLOB) and not (done == "dropped" and path == top.name):
            raise Refused("MW-K28", f"column {path!r} has blobs: it can't be {done}")
        if (why := self.fixed.get(top.name)) is not None:
            raise Refused("MW-K20", f"column {path!r} can't be {done}: {why}")
        why = self.used.get(top.name)
        # Whether the policy can work on a wider type is asked of it later.
        if why is None or done == "required" or (done, why) == ("widened", _BY_POLICY):
            return
        raise Refused("MW-K21", f"column {path!r} can't be {done} as long as {why}")


_BY_POLICY = "the table's row-merge policy names it"


def _find_fixed(view: TableView) -> dict[str, str]:
    """The columns by which rows are found, each with the reason."""
    ids = {i for spec in view.mem_wal.shard_specs for f in spec.fields for i in f.source_ids}
    why = "rows find their shard by it"
    fixed = {c.name: why for c in view.columns if ids & {*list_ids((c,))}}
    key = "it is of the primary key"
    return fixed | dict.fromkeys(view.primary_key, key)


def _find_used(view: TableView) -> dict[str, str]:
    """The columns that the table's settings name, each with the reason."""
    expire = find_expire(view)
    used = {} if expire is None else {expire.column: "rows expire by it"}
    if view.policy_text is not None:
        used |= dict.fromkeys(parse_policy(view.policy_text).named, _BY_POLICY)
    return used


def _check_wider(path: str, old: str, new: str) -> None:
    if old.startswith("fixed_size_list<") and old.rpartition("[")[2] != new.rpartition("[")[2]:
        raise Refused(
            "MW-K22",
            f"column {path!r}: a vector of another size holds no value of {old}. Add a column for "
            "the new vectors, fill it, and drop this one",
        )
    if not is_exact(old, new):
        raise Refused("MW-K23", f"column {path!r}: not every value of {old} is one of {new}")


def _check_reserved(name: str) -> None:
    if not name or layout.is_reserved(name) or "." in name:
        raise Refused(
            "MW-K27",
            f"column {name!r}: Lance keeps names that begin with _, and a dot divides them",
        )


def _read_default(path: str, text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if value is None:
        raise Refused("MW-K24", f"column {path!r}: the default {text} is no JSON, or NULL")
    return json.dumps(value)


def _unknown(path: str, columns: Columns) -> Refused:
    names = ", ".join(column.name for column in columns)
    return Refused("MW-K25", f"there is no column {path!r}; there are {names}")


def describe(column: ColumnInfo) -> str:
    """A column's properties, for people."""
    return f"{column.type_text}{'' if column.nullable else ' not null'}"


def _kind(column: ColumnInfo) -> str:
    return column.type_text.partition("<")[0]


def _edit(
    columns: Columns, path: str, change: Callable[[ColumnInfo], ColumnInfo | None]
) -> Columns:
    """The columns with the one of that path changed; without it for None."""
    found: list[ColumnInfo] = []
    for column in columns:
        if column.name == path:
            changed = change(column)
            found += [] if changed is None else [changed]
        elif path.startswith(f"{column.name}."):
            inner = _edit(column.children, path[len(column.name) + 1 :], change)
            found.append(replace(column, children=inner))
        else:
            found.append(column)
    return tuple(found)


def _is_rewritten(column: ColumnInfo, old: ColumnInfo) -> bool:
    """Whether a wanted column's values differ from those stored."""
    if (column.type_text, column.nullable) != (old.type_text, old.nullable):
        return True
    before = {child.field_id: child for child in old.children}
    return any(
        child.field_id in before and _is_rewritten(child, before[child.field_id])
        for child in column.children
    )


class Unrest(Section):
    """Why a shard is not at rest: its rows, or a writer that may go on with the former columns."""

    shard_id: str
    detail: str


def find_unrest(
    shards: Sequence[RescueEvidence], own_epochs: Mapping[ShardId, int], now_nanos: int
) -> list[Unrest]:
    """The shards with rows in the WAL, or with a writer that may be open and has put nothing.

    `own_epochs` are those that this run has claimed. A writer that is open and has just flushed all
    that it had looks like one that is closed. What it writes later is matched by id and name, or
    refused.
    """
    request, found = RescueRequest(), []
    for shard in shards:
        shard_id = shard.manifest.shard_id
        plan = plan_rescue(shard, request, now_nanos)
        if plan.action is not RescueAction.NOTHING:
            found.append(
                Unrest(shard_id=shard_id, detail=f"{count_of(plan.rows, 'row')} in its WAL")
            )
        elif text := suspect_writer(shard, own_epochs.get(shard_id), request, now_nanos):
            found.append(Unrest(shard_id=shard_id, detail=text))
    return found
