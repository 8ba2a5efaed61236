"""Decides which columns a table will have, or what is in the way. Pure.

Columns change while the table is at rest: no generation waits, and no writer goes on with the
columns of before. A column that changes keeps its field id.

Names are those that the columns have afterwards, and none is both left behind and taken: so
whoever asks again after a kill finds that all of it is so already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memwal.errors import Refused, Usage
from memwal.format import layout
from memwal.jobs.rescue.plan import NOTHING, RescueEvidence, plan_rescue, suspect_writer
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.schema.request import SchemaRequest
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
_BY_POLICY = "the table's row-merge policy names it"


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaPlan:
    """The columns as they will be; `columns` those that are, `steps` the changes for people.

    `defaults` are values as JSON, by name: what added columns have in each row.
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
        old = {column.field_id: column.type_text for column in self.columns}
        return tuple(
            column
            for column in self.wanted
            if column.name in self.defaults
            or old.get(column.field_id, column.type_text) != column.type_text
        )

    @property
    def dropped(self) -> frozenset[int]:
        """The ids of fields that go; their indexes go with them."""
        return frozenset(list_ids(self.columns)) - {*list_ids(self.wanted)}

    def check_indexes(self, names: Mapping[int, Sequence[str]]) -> None:
        """Raise Refused for indexes over columns that are rewritten, by their fields."""
        if found := [n for i in list_ids(self.rewritten) for n in names.get(i, ())]:
            raise Refused(
                "MW-K30",
                f"index {', '.join(found)} would be left with values of before: drop it (Lance's "
                "drop_index), and build it again afterwards",
            )

    def list_doomed(self, names: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
        """The indexes that go with dropped columns, of those over the fields."""
        return tuple(name for i in sorted(self.dropped) for name in names.get(i, ()))


def list_ids(columns: Sequence[ColumnInfo]) -> Iterator[int]:
    """The field ids, depth first."""
    return (field_id for field_id, _ in list_paths(columns))


def list_paths(columns: Sequence[ColumnInfo], above: str = "") -> Iterator[tuple[int, str]]:
    """The fields' ids and paths, depth first."""
    for column in columns:
        yield column.field_id, f"{above}{column.name}"
        yield from list_paths(column.children, f"{above}{column.name}.")


def plan_schema(view: TableView, request: SchemaRequest, read_type: ReadType) -> SchemaPlan:
    """The columns that the request asks for. Raises Refused for what can't be, and Usage.

    `read_type` gives a type's text its normal form, and raises Usage for what is none.
    """
    _check_names(request)
    made = _Change(columns=view.columns, fixed=_find_fixed(view), used=_find_used(view))
    defaults = dict(request.default)
    for name in request.drop:
        made.drop(name)
    for name, after in request.rename:
        made.rename(name, after)
    for name, kind in request.widen:
        made.widen(name, read_type(kind))
    for text in request.add:
        name, _, kind = text.partition(":")
        made.add(name, read_type(kind), defaults.get(name))
    return SchemaPlan(
        columns=view.columns,
        wanted=made.columns,
        defaults=made.defaults,
        steps=tuple(made.steps),
        warnings=tuple(made.warnings),
    )


def _check_names(request: SchemaRequest) -> None:
    for text in request.add:
        name, colon, kind = text.partition(":")
        if not (name and colon and kind):
            raise Usage(f"--add {text!r}: expected NAME:TYPE, such as price:double")
    added = [text.partition(":")[0] for text in request.add]
    widened = [name for name, _ in request.widen]
    targets = [name for _, name in request.rename]
    left = [*request.drop, *(name for name, _ in request.rename)]
    for names in (left, [*added, *targets], widened):
        if twice := {name for name in names if names.count(name) > 1}:
            raise Usage(f"column {min(twice)!r} is named twice")
    if both := {*left} & {*added, *targets, *widened}:
        raise Usage(
            f"column {min(both)!r} is both left behind and taken: if that were killed halfway, a "
            "second run could not tell what is left to do. Make two commands of it"
        )
    if changed := {*added} & {*widened}:
        raise Usage(f"column {min(changed)!r} is added: give it its type there")
    if idle := {name for name, _ in request.default} - {*added}:
        raise Usage(f"--default {min(idle)}: no such column is added")


@dataclass(kw_only=True)
class _Change:
    """The columns on the way to what is asked for."""

    columns: Columns
    fixed: Mapping[str, str]
    used: Mapping[str, str]
    defaults: dict[str, str] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def drop(self, name: str) -> None:
        if name not in self._by_name:
            self.warnings.append(f"there is no column {name!r} to drop")
            return
        self._check(name, "dropped")
        self.columns = tuple(c for c in self.columns if c.name != name)
        if not self.columns:
            raise Refused("MW-K20", f"column {name!r} can't be dropped: nothing would be left")
        self.steps.append(f"drop {name}")

    def rename(self, name: str, after: str) -> None:
        if name not in self._by_name and after in self._by_name:
            return
        column = self._find(name)
        if after in self._by_name:
            raise Refused("MW-K26", f"column {after!r} is there")
        _check_reserved(after)
        self._check(name, "renamed")
        self._edit(column, name=after)
        self.steps.append(f"rename {name} to {after}")

    def widen(self, name: str, kind: str) -> None:
        column = self._find(name)
        old = column.type_text
        if old == kind:
            return
        self._check(name, "widened")
        if not is_exact(old, kind):
            raise Refused("MW-K23", f"column {name!r}: not every value of {old} is one of {kind}")
        self._edit(column, type_text=kind)
        self.steps.append(f"widen {name} from {old} to {kind}")

    def add(self, name: str, kind: str, default: str | None) -> None:
        value = None if default is None else _read_default(name, default)
        if (there := self._by_name.get(name)) is not None:
            if (there.type_text, there.nullable) != (kind, value is None):
                null = "" if there.nullable else " not null"
                raise Refused("MW-K26", f"column {name!r} is there, and is {there.type_text}{null}")
            return
        _check_reserved(name)
        column = ColumnInfo(field_id=NEW, name=name, type_text=kind, nullable=value is None)
        self.columns += (column,)
        if value is not None:
            self.defaults[name] = value
        text = "" if value is None else f", {value} in each row"
        self.steps.append(f"add {name}, {kind}{text}")

    @property
    def _by_name(self) -> dict[str, ColumnInfo]:
        return {column.name: column for column in self.columns}

    def _find(self, name: str) -> ColumnInfo:
        if (column := self._by_name.get(name)) is None:
            there = ", ".join(self._by_name)
            raise Refused("MW-K25", f"there is no column {name!r}; there are {there}")
        return column

    def _edit(self, column: ColumnInfo, **changed: Any) -> None:
        after = replace(column, **changed)
        self.columns = tuple(after if c is column else c for c in self.columns)

    def _check(self, name: str, done: str) -> None:
        """Raise Refused if the column must stay as it is."""
        if self._find(name).type_text.startswith(_BLOB) and done != "dropped":
            raise Refused("MW-K28", f"column {name!r} has blobs: it can't be {done}")
        if (why := self.fixed.get(name)) is not None:
            raise Refused("MW-K20", f"column {name!r} can't be {done}: {why}")
        why = self.used.get(name)
        # Whether the policy can work on a wider type is asked of it later.
        if why is not None and (done, why) != ("widened", _BY_POLICY):
            raise Refused("MW-K21", f"column {name!r} can't be {done} as long as {why}")


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


def _check_reserved(name: str) -> None:
    if not name or layout.is_reserved(name) or "." in name:
        raise Refused(
            "MW-K27",
            f"column {name!r}: Lance keeps names that begin with _, and a dot divides them",
        )


def _read_default(name: str, text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if value is None:
        raise Refused("MW-K24", f"column {name!r}: the default {text} is no JSON, or NULL")
    return json.dumps(value)


# ---- which types have every value of which others, by Arrow's own text for them

_WHOLE = re.compile(r"(u?)int(8|16|32|64)")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")
_UNIT = re.compile(r"(timestamp|duration|time(?:32|64))\[(s|ms|us|ns)(.*)\]")
# By their bits, whole numbers up to which a float holds each one of.
_FLOATS = {"halffloat": 11, "float": 24, "double": 53}
_UNITS = ("s", "ms", "us", "ns")
_LARGER = {("string", "large_string"), ("binary", "large_binary"), ("date32[day]", "date64[ms]")}


def is_exact(old: str, new: str) -> bool:
    """Whether each value of `old` is one of `new`, so that a cast loses nothing.

    A moment in a finer unit may be out of range; a cast says so. For types without members.
    """
    if old == new or (old, new) in _LARGER:
        return True
    if new in _FLOATS:
        return _bits_of(old) <= _FLOATS[new]
    for pattern, fits in ((_WHOLE, _fits_whole), (_DECIMAL, _fits_decimal), (_UNIT, _fits_unit)):
        before, after = pattern.fullmatch(old), pattern.fullmatch(new)
        if before and after:
            return fits(before, after)
    return False


def _bits_of(text: str) -> int:
    """Of a number's type: how many bits a float needs for each of its values."""
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return int(whole[2]) - (not whole[1])
    return _FLOATS.get(text, 1_000)


def _fits_whole(old: re.Match[str], new: re.Match[str]) -> bool:
    if old[1] == new[1]:
        return int(old[2]) <= int(new[2])
    return bool(old[1]) and int(old[2]) < int(new[2])


def _fits_decimal(old: re.Match[str], new: re.Match[str]) -> bool:
    width, precision, scale = (int(n) for n in old.groups())
    wider, digits, places = (int(n) for n in new.groups())
    return wider >= width and places >= scale and digits - places >= precision - scale


def _fits_unit(old: re.Match[str], new: re.Match[str]) -> bool:
    same = old[1].rstrip("3264") == new[1].rstrip("3264") and old[3] == new[3]
    return same and _UNITS.index(old[2]) <= _UNITS.index(new[2])


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
        if plan.action != NOTHING:
            told = plan.error or f"{count_of(plan.rows, 'row')} in its WAL"
            found.append(Unrest(shard_id=shard_id, detail=told))
        elif text := suspect_writer(shard, own_epochs.get(shard_id), request, now_nanos):
            found.append(Unrest(shard_id=shard_id, detail=text))
    return found
