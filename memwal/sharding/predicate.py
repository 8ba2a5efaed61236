"""A filter as a tree, and SQL text -> such a tree. Pure.

What is not understood becomes `Anything`, which every row may satisfy: it is never an error here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from memwal.sharding import engine
from memwal.sharding.engine import Node


class Op(StrEnum):
    """A comparison; with NULL on either side it is NULL."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def opposite(self) -> Op:
        """The comparison that is TRUE where this one is FALSE."""
        return Op(_OPPOSITE[self])

    @property
    def flipped(self) -> Op:
        """The comparison with its two sides exchanged."""
        return Op(_FLIPPED.get(self, self))


_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`column op value`. A struct's member is a column with a dotted name."""

    column: str
    op: Op
    value: pa.Scalar


@dataclass(frozen=True, kw_only=True, slots=True)
class In:
    """`column IN (values)`."""

    column: str
    values: tuple[pa.Scalar, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class IsNull:
    """`column IS NULL`."""

    column: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Not:
    """`NOT part`; NULL stays NULL."""

    part: Predicate


@dataclass(frozen=True, kw_only=True, slots=True)
class And:
    """All of `parts`; of none, every row."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Or:
    """Any of `parts`; of none, no row."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Anything:
    """A filter of which nothing is known; `why` says what stood in the way."""

    why: str = ""


Predicate = Comparison | In | IsNull | Not | And | Or | Anything

# Columns that Lance has besides the schema's.
_VIRTUAL = (pa.field("_rowid", pa.uint64()), pa.field("_rowaddr", pa.uint64()))


def predicate_of(text: str, schema: pa.Schema) -> Predicate:
    """A filter's text as a tree.

    The dialect is Lance's: 'a' and "a" are text, `a` and a bare a are columns, as they are
    written. What could mean one thing here and another to the reader is left alone.
    """
    if "\\" in text:
        return Anything(why="a backslash, which not every reader takes alike")
    for field in _VIRTUAL:
        if field.name not in schema.names:
            schema = schema.append(field)
    try:
        return _read(engine.parse_filter(text, schema))
    except engine.SqlError as error:
        return Anything(why=str(error))


def _read(node: Node) -> Predicate:
    kind, args = node.kind, node.args
    if kind == "Alias":
        return _read(args[0])
    if kind == "Literal":
        return _read_constant(node)
    if kind == "Not":
        return Not(part=_read(args[0]))
    if kind == "BinaryExpr":
        return _read_binary(node)
    column = _name_column(args[0] if args else node)
    found = _read_condition(node, column) if column else None
    return found or Anything(why=f"{node.kind} {node.name}".rstrip())


def _read_constant(node: Node) -> Predicate:
    value = node.value
    if value is not None and pa.types.is_boolean(value.type) and value.is_valid:
        return And(parts=()) if value.as_py() else Or(parts=())
    return Anything(why="a constant that is no truth value")


def _read_binary(node: Node) -> Predicate:
    left, right = node.args
    if node.name == "AND":
        return And(parts=(_read(left), _read(right)))
    if node.name == "OR":
        return Or(parts=(_read(left), _read(right)))
    flipped = right.kind != "Literal"
    if flipped:
        left, right = right, left
    column, value = _name_column(left), right.value
    if not column or right.kind != "Literal" or value is None:
        return Anything(why=f"{node.name} of what is not a column and a constant")
    if node.name in ("IS NOT DISTINCT FROM", "IS DISTINCT FROM"):
        same = _same_as(column, value)
        return same if node.name.startswith("IS NOT") else Not(part=same)
    try:
        op = Op("!=" if node.name == "<>" else node.name)
    except ValueError:
        return Anything(why=f"the operator {node.name}")
    return Comparison(column=column, op=op.flipped if flipped else op, value=value)


def _same_as(column: str, value: pa.Scalar) -> Predicate:
    """`column IS NOT DISTINCT FROM value`, which is never NULL."""
    if not value.is_valid:
        return IsNull(column=column)
    equal = Comparison(column=column, op=Op.EQ, value=value)
    return And(parts=(Not(part=IsNull(column=column)), equal))


def _read_condition(node: Node, column: str) -> Predicate | None:
    """A condition on one column, or None."""
    match node.kind:
        case "Column":
            return Comparison(column=column, op=Op.EQ, value=pa.scalar(True))
        case "IsNull":
            return IsNull(column=column)
        case "IsNotNull":
            return Not(part=IsNull(column=column))
        case "IsTrue" | "IsFalse":
            return _same_as(column, pa.scalar(node.kind == "IsTrue"))
        case "IsNotTrue" | "IsNotFalse":
            return Not(part=_same_as(column, pa.scalar(node.kind == "IsNotTrue")))
        case "InList" | "Between":
            values = tuple(part.value for part in node.args[1:] if part.value is not None)
            if len(values) < len(node.args) - 1:
                return None
            inside = (
                _read_between(column, values)
                if node.kind == "Between"
                else In(column=column, values=values)
            )
            return Not(part=inside) if node.negated else inside
    return None


def _read_between(column: str, bounds: tuple[pa.Scalar, ...]) -> Predicate:
    low, high = bounds
    return And(
        parts=(
            Comparison(column=column, op=Op.GE, value=low),
            Comparison(column=column, op=Op.LE, value=high),
        )
    )


def _name_column(node: Node) -> str:
    """The dotted name of a column or a struct's member; empty for anything else."""
    if node.kind == "Column":
        return node.name
    if node.kind == "ScalarFunction" and node.name == "get_field":
        outer = _name_column(node.args[0])
        member = node.args[1].value
        if outer and member is not None and pa.types.is_string(member.type):
            return f"{outer}.{member.as_py()}"
    return ""
