"""SQL through DataFusion: parse, plan, evaluate. Pure, and the only importer of `datafusion`.

Nothing here reads a table or a file: a session knows one empty or given batch, and lives for one
call, since a session keeps all that was ever registered with it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from datafusion import DataFrame, Expr, SessionContext

# One partition: rows come back in the order in which they went in.
_SETTINGS = {"datafusion.execution.target_partitions": "1"}
# As in Lance and in Spark, 'a' and "a" are text and `a` is a name, taken as it is written.
_FILTER_SETTINGS = {
    "datafusion.sql_parser.dialect": "Databricks",
    "datafusion.sql_parser.enable_ident_normalization": "false",
}
_TABLE = "rows"
# DataFusion's parser and planner recurse by about 1 kB of stack an operator, and a stack that is
# used up ends the process. A list of values is not nested, however long.
OPERATORS_MAX = 400
CHARACTERS_MAX = 1_000_000
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`")
_OPERATORS = re.compile(
    r"\b(?:and|or|xor|not|is|in|i?like|rlike|regexp|similar|between|at|case|collate|div)\b"
    r"|(?<![(,])\s*[-+*/%|&^~=<>!:\[]",
    re.IGNORECASE,
)


class SqlError(ValueError):
    """DataFusion does not take the SQL, or fails on these values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A part of an SQL expression. `kind` is DataFusion's word for it.

    `name` is the column, operator or function; `value` a literal's value.
    """

    kind: str
    name: str = ""
    args: tuple[Node, ...] = ()
    value: pa.Scalar | None = None
    negated: bool = False

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        left = [self]
        while left:
            node = left.pop()
            yield node
            left.extend(node.args)


def parse_expression(text: str, schema: pa.Schema) -> Node:
    """A shard expression as a tree. Raises SqlError."""
    with _parse(text, pa.RecordBatch.from_pylist([], schema)) as (_, expr):
        return _read_node(expr)


def parse_filter(text: str, schema: pa.Schema) -> Node:
    """A filter as a tree, in Lance's dialect, constants computed. Raises SqlError.

    What depends on the time, on chance or on the session stays as it is.
    """
    with _parse(text, pa.RecordBatch.from_pylist([], schema), _FILTER_SETTINGS) as (_, expr):
        return _read_node(expr, fold=True)


def type_of(text: str, schema: pa.Schema) -> pa.DataType:
    """The type that an expression is planned to have. Raises SqlError."""
    with _parse(text, pa.RecordBatch.from_pylist([], schema)) as (frame, expr):
        return frame.select(expr.alias("value")).schema().field(0).type


def evaluate(
    text: str, batch: pa.RecordBatch, settings: Mapping[str, str] | None = None
) -> pa.Array:
    """An expression's value for each row, in order. Raises SqlError."""
    with _parse(text, batch, settings) as (frame, expr):
        chosen = frame.select(expr.alias("value"))
        parts = [part.column(0) for part in chosen.collect()]
        return pa.concat_arrays(parts or [pa.array([], chosen.schema().field(0).type)])


@functools.cache
def unstable_functions() -> frozenset[str]:
    """Functions that DataFusion does not vouch for: the clock, chance, the file being read."""
    found = _open_session({"datafusion.catalog.information_schema": "true"}).sql(
        "SELECT DISTINCT routine_name FROM information_schema.routines WHERE NOT is_deterministic"
    )
    return frozenset(row["routine_name"] for row in found.to_pylist()) | {"version"}


@contextmanager
def _parse(
    text: str, batch: pa.RecordBatch, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[DataFrame, Expr]]:
    """The batch in a session, and the text as an expression over it; errors become SqlError."""
    try:
        _check_size(text)
        frame = _make_frame(batch, settings)
        yield frame, frame.parse_sql_expr(text)
    except SqlError:
        raise
    except BaseException as error:
        # A panic in DataFusion arrives as a BaseException.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise SqlError(" ".join(str(error).split())) from None
        raise


def _check_size(text: str) -> None:
    if len(text) > CHARACTERS_MAX:
        raise SqlError(f"longer than {CHARACTERS_MAX} characters")
    if len(_OPERATORS.findall(_QUOTED.sub("''", text))) > OPERATORS_MAX:
        raise SqlError(f"more than {OPERATORS_MAX} operators")


def _make_frame(batch: pa.RecordBatch, settings: Mapping[str, str] | None = None) -> DataFrame:
    return _open_session(settings or {}).create_dataframe([[batch]], _TABLE)


def _open_session(settings: Mapping[str, str]) -> SessionContext:
    # Only here, since few reads need it: to import it takes as long as to read a small table.
    from datafusion import SessionConfig, SessionContext

    return SessionContext(SessionConfig({**_SETTINGS, **settings}))


def _read_node(expr: Expr, *, fold: bool = False) -> Node:
    kind = expr.variant_name()
    if kind == "Column":
        return Node(kind=kind, name=expr.to_variant().name())
    if kind == "Literal":
        return Node(kind=kind, value=expr.python_value())
    try:
        parts = expr.rex_call_operands()
    except Exception:
        # A subquery, a placeholder: whoever reads the tree knows no such kind.
        return Node(kind=kind)
    try:
        name = expr.rex_call_operator()
    except Exception:
        name = kind
    args = tuple(_read_node(part, fold=fold) for part in parts)
    node = Node(kind=kind, name=name, args=args, negated=_is_negated(expr, kind))
    return _fold(expr, node) if fold else node


def _is_negated(expr: Expr, kind: str) -> bool:
    if kind not in ("Between", "InList", "Like", "SimilarTo"):
        return False
    variant: Any = expr.to_variant()
    return bool(variant.negated())


_FOLDABLE = {"Cast", "TryCast", "ScalarFunction", "Negative"}
_ARITHMETIC = {"+", "-", "*", "/", "%", "||"}


def _fold(expr: Expr, node: Node) -> Node:
    """The node, or its value when it has one whatever the row."""
    foldable = node.kind in _FOLDABLE or (node.kind == "BinaryExpr" and node.name in _ARITHMETIC)
    constant = foldable and node.args and all(part.kind == "Literal" for part in node.args)
    if not constant or node.name in unstable_functions():
        return node
    one = pa.RecordBatch.from_pydict({"row": [0]})
    rows = _make_frame(one).select(expr.alias("value")).collect()
    return Node(kind="Literal", value=rows[0].column(0)[0])
