"""Custom shard expressions, and the spec's six rules for them. Pure.

A rule is proved where DataFusion's own plan proves it, and tried on values where only values can
show it. A trial can miss a breach; a breach that it finds is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

import pyarrow as pa

from memwal.errors import Refused, Unsupported
from memwal.sharding import engine
from memwal.sharding.encoding import unwrap, unwrap_type
from memwal.sharding.spec import SpecField
from memwal.sharding.values import PER_SECOND, array_of, is_bytes, is_text

_KINDS = frozenset(
    {"Column", "Literal", "BinaryExpr", "ScalarFunction", "Cast", "TryCast", "Case", "Alias"}
    | {"Not", "Negative", "IsNull", "IsNotNull", "IsTrue", "IsFalse", "IsUnknown"}
    | {"IsNotTrue", "IsNotFalse", "IsNotUnknown"}
    | {"InList", "Between", "Like", "SimilarTo", "ILike"}
)
# A column that was removed is NULL of no type. Not every function takes that: then the first of
# these that the expression can be planned over. Rule 3 makes the choice unimportant.
_TYPES_OF_NULL: tuple[pa.DataType, ...] = (
    pa.null(),
    pa.int64(),
    pa.string(),
    pa.timestamp("us"),
    pa.date32(),
    pa.float64(),
    pa.binary(),
    pa.bool_(),
)
# Sessions that differ in what an expression must not depend on.
_OTHER_SESSION = {
    "datafusion.execution.time_zone": "+05:30",
    "datafusion.execution.batch_size": "2",
}
_INTEGERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
)
# Types that a column may be promoted between.
_ALIKE = (
    _INTEGERS,
    (pa.float16(), pa.float32(), pa.float64()),
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
)


def compute_expression(
    expression: str, columns: Sequence[pa.Array | None], rows: int, result_type: pa.DataType
) -> pa.Array:
    """The expression over `columns`, of which the first is col0; None stands for a removed one.

    Raises Refused when it can't be computed or does not fit `result_type`.
    """
    arrays = [None if column is None else unwrap(column) for column in columns]
    kinds = [None if array is None else array.type for array in arrays]
    missing = pa.null() if None not in kinds else _find_type_of_null(expression, kinds)
    batch = pa.record_batch(
        [pa.nulls(rows, missing) if array is None else array for array in arrays],
        names=_name_columns(len(arrays)),
    )
    try:
        return _compute(expression, batch, result_type)
    except engine.SqlError as error:
        raise Refused("MW-S05", f"shard expression {expression!r}: {error}") from None


def check_expression(field: SpecField, kinds: Sequence[pa.DataType]) -> None:
    """Hold `field`'s expression over source columns of these types to the six rules.

    Raises Refused with the rule that is broken.
    """
    check_repeatable(field, tuple(kinds))
    _make_trial(field, kinds).check_type()


@lru_cache(maxsize=256)
def check_repeatable(field: SpecField, kinds: tuple[pa.DataType, ...]) -> None:
    """Hold an expression to rules 1 to 5: a row's value is the same whenever it is computed.

    Without them rows of one key go to several shards, and shards are left out that hold rows which
    match. Rule 6 is not needed for that: a value that does not fit fails. Raises Refused.
    """
    trial = _make_trial(field, kinds)
    trial.check_tree()
    batch = trial.samples()
    trial.check_repetition(batch)
    trial.check_promotion(batch)
    trial.check_removal(batch)
    trial.check_nulls()


def _make_trial(field: SpecField, kinds: Sequence[pa.DataType]) -> _Trial:
    if field.expression is None or field.result_type is None:
        raise Unsupported(
            "MW-S06", f"field {field.field_id!r} has no expression with a result type"
        )
    return _Trial(
        where=f"shard expression {field.expression!r}",
        text=field.expression,
        kinds=tuple(unwrap_type(kind) for kind in kinds),
        result_type=field.result_type,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """An expression that is held to the rules, over columns of these types."""

    where: str
    text: str
    kinds: tuple[pa.DataType, ...]
    result_type: pa.DataType

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(zip(_name_columns(len(self.kinds)), self.kinds, strict=True)))

    def refuse(self, rule: int, why: str) -> Refused:
        return Refused("MW-S04", f"{self.where} breaks rule {rule} ({_RULES[rule]}): {why}")

    def values(self, batch: pa.RecordBatch, rule: int) -> pa.Array:
        try:
            return _compute(self.text, batch, self.result_type)
        except engine.SqlError as error:
            raise self.refuse(rule, str(error)) from None

    def samples(self) -> pa.RecordBatch:
        """Sample rows for which the expression can be computed; no rule demands that for all."""
        batch = _make_samples(self.schema)
        failure = ""
        good = []
        for row in range(len(batch)):
            try:
                _compute(self.text, batch.slice(row, 1), self.result_type)
            except engine.SqlError as error:
                failure = str(error)
            else:
                good.append(row)
        chosen = batch.take(pa.array(good, pa.int64()))
        if failure and not any(len(c) > c.null_count for c in chosen.columns):
            raise Refused("MW-S05", f"{self.where} fails on every value that was tried: {failure}")
        return chosen

    def check_tree(self) -> None:
        """Rules 1 and 2: only the row's columns, and functions that DataFusion vouches for."""
        try:
            tree = engine.parse_expression(self.text, self.schema)
        except engine.SqlError as error:
            known = ", ".join(self.schema.names)
            raise Refused("MW-S04", f"{self.where}: {error} (source columns: {known})") from None
        for node in tree.walk():
            if node.kind == "ScalarFunction" and node.name in engine.unstable_functions():
                rule = 1 if node.name in ("random", "rand", "uuid") else 2
                raise self.refuse(rule, f"{node.name}() is not a function of the columns")
            if node.kind not in _KINDS:
                raise self.refuse(2, f"{node.kind} is not a function of one row's columns")

    def check_repetition(self, batch: pa.RecordBatch) -> None:
        """Rules 1 and 2: the same values a second time, and in another session."""
        first = self.values(batch, 1)
        if not first.equals(self.values(batch, 1)):
            raise self.refuse(1, "the same values gave another result the second time")
        try:
            other = engine.evaluate(self.text, batch, _OTHER_SESSION).cast(self.result_type)
        except (engine.SqlError, pa.ArrowException) as error:
            raise self.refuse(2, f"fails in a session with another time zone: {error}") from None
        if not first.equals(other):
            raise self.refuse(2, "the result depends on the session's time zone")

    def check_promotion(self, batch: pa.RecordBatch) -> None:
        """Rule 3: every column in turn, cast to each type that it may be promoted to."""
        expected = self.values(batch, 3)
        for place, (name, kind) in enumerate(zip(self.schema.names, self.kinds, strict=True)):
            for other in _list_promotions(kind):
                try:
                    wider = batch.set_column(place, name, batch.column(place).cast(other))
                except pa.ArrowException:
                    continue
                if not self.values(wider, 3).equals(expected):
                    raise self.refuse(3, f"col{place} as {other} instead of {kind} gives others")

    def check_removal(self, batch: pa.RecordBatch) -> None:
        """Rule 4: a column that is gone counts as NULL of its type."""
        for place, (name, kind) in enumerate(zip(self.schema.names, self.kinds, strict=True)):
            columns: list[pa.Array | None] = list(batch.columns)
            columns[place] = None
            typed = batch.set_column(place, name, pa.nulls(len(batch), kind))
            try:
                gone = compute_expression(self.text, columns, len(batch), self.result_type)
            except Refused as error:
                raise self.refuse(4, f"without col{place}: {error}") from None
            if not gone.equals(self.values(typed, 4)):
                raise self.refuse(4, f"without col{place} it is not what NULL in col{place} gives")

    def check_nulls(self) -> None:
        """Rule 5: NULL in all columns is computed like any other value."""
        batch = pa.record_batch([pa.nulls(2, kind) for kind in self.kinds], schema=self.schema)
        result = self.values(batch, 5)
        if not result[0].equals(result[1]):
            raise self.refuse(5, "NULL gives different results")

    def check_type(self) -> None:
        """Rule 6: the planned type is the result type."""
        try:
            planned = engine.type_of(self.text, self.schema)
        except engine.SqlError as error:
            raise self.refuse(6, str(error)) from None
        if not _is_same(planned, self.result_type):
            raise self.refuse(
                6,
                f"it gives {planned}, the result type is {self.result_type};"
                " wrap it in arrow_cast(…)",
            )


_RULES = {
    1: "deterministic",
    2: "stateless",
    3: "type-promotion resistant",
    4: "column removal resistant",
    5: "NULL-safe",
    6: "consistent with the result type",
}


def _name_columns(count: int) -> list[str]:
    return [f"col{place}" for place in range(count)]


def _find_type_of_null(expression: str, kinds: Sequence[pa.DataType | None]) -> pa.DataType:
    failure = ""
    for candidate in _TYPES_OF_NULL:
        columns = [candidate if kind is None else kind for kind in kinds]
        batch = pa.record_batch(
            [pa.nulls(1, kind) for kind in columns], _name_columns(len(columns))
        )
        try:
            engine.evaluate(expression, batch)
        except engine.SqlError as error:
            failure = failure or str(error)
        else:
            return candidate
    raise Refused("MW-S05", f"shard expression {expression!r} takes no NULL: {failure}")


def _compute(expression: str, batch: pa.RecordBatch, result_type: pa.DataType) -> pa.Array:
    values = engine.evaluate(expression, batch)
    try:
        return values.cast(result_type)
    except pa.ArrowException as error:
        raise engine.SqlError(f"a value does not fit {result_type}: {error}") from None


def _is_same(planned: pa.DataType, result_type: pa.DataType) -> bool:
    """Equal, or one layout of text or binary for another."""
    both = (planned, result_type)
    return planned == result_type or all(map(is_text, both)) or all(map(is_bytes, both))


def _list_promotions(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_decimal128(kind):
        return [pa.decimal128(38, kind.scale)]
    return [other for like in _ALIKE if kind in like for other in like if other != kind]


_NUMBERS = (0, 1, 5, 7, 16, 100)
_TIMES = (0, 1, 86_399, 951_782_400, 1_600_000_000, -1, -86_401)


def _make_samples(schema: pa.Schema) -> pa.RecordBatch:
    """Rows of small, telling values and NULLs; columns turn at different speeds."""
    columns = [[*_values_of(kind), None] for kind in schema.types]
    rows = max(12, 2 * max(len(column) for column in columns))
    arrays = []
    for place, (kind, column) in enumerate(zip(schema.types, columns, strict=True)):
        picked = [column[(row * (place + 1)) % len(column)] for row in range(rows)]
        arrays.append(pa.array(picked, kind))
    return pa.record_batch(arrays, schema=schema)


def _values_of(kind: pa.DataType) -> list[object]:
    if kind in _INTEGERS:
        return [*_NUMBERS, *(() if pa.types.is_unsigned_integer(kind) else (-1, -5, -100))]
    if pa.types.is_floating(kind):
        return [0.0, 1.0, 5.0, 0.5, 100.0, -1.0, -5.5]
    if pa.types.is_decimal(kind):
        step = Decimal(1).scaleb(-kind.scale)
        return [step * n for n in (0, 1, 5, -1, -5)]
    if pa.types.is_boolean(kind):
        return [True, False]
    if is_text(kind):
        return ["", "a", "abcd", "é", "17", "2020-02-29", "2020-02-29T12:00:00"]
    if is_bytes(kind):
        return [b"", b"a", b"\0\xff"]
    if pa.types.is_date(kind):
        days = [t // 86_400 for t in _TIMES]
        return list(array_of(days, pa.date32()).cast(kind))
    if pa.types.is_timestamp(kind):
        return list(array_of([t * PER_SECOND[kind.unit] for t in _TIMES], kind))
    return []
