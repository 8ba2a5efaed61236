"""The options of `spark.read.format("memwal")`, checked, and Arrow's types as Spark has them.

Types are converted by their JSON names and without pyspark. A type that Spark lacks is widened if
another one holds its values exactly: unsigned integers to the next signed size, uint64 to
decimal(20, 0), float16 to float. A type that Spark can't hold is an error that names the column,
when the table is loaded; a value that it can't hold (a nanosecond, a date out of range) is an error
when it is read. Nothing is rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from memwal.config import (
    Config,
    ResolvedTable,
    find_named_file,
    load_config,
    read_environment_options,
    resolve_table,
)
from memwal.config.names import suggest
from memwal.errors import Refused, Unsupported, Usage
from memwal.format.layout import parse_ingest_id, parse_shard
from memwal.read.plan.request import (
    Nearest,
    ReadRequest,
    Search,
    parse_consistency,
    parse_nearest,
    parse_search,
)
from memwal.rows.conversions import read_conversions
from memwal.rows.json_values import is_blob

if TYPE_CHECKING:
    from memwal.ingest.plan import IngestOptions
    from memwal.read.changes import ChangesOptions


Json = dict[str, Any]

# Spark loads a batch as a whole, in the JVM.
_BATCH_BYTES_MAX = 16 * 1024 * 1024
_DECIMAL_DIGITS_MAX = 38

_LEAVE_OUT = "leave it out: name the columns that you want in the option `columns`"

# Tested in this order, after dictionaries, lists and other nested types.
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (types.is_null, "void"),
    (types.is_boolean, "boolean"),
    (types.is_int8, "byte"),
    (types.is_int16, "short"),
    (types.is_int32, "integer"),
    (types.is_int64, "long"),
    (types.is_uint8, "short"),
    (types.is_uint16, "integer"),
    (types.is_uint32, "long"),
    (types.is_uint64, "decimal(20,0)"),
    (types.is_float16, "float"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (types.is_string, "string"),
    (types.is_large_string, "string"),
    (types.is_string_view, "string"),
    (types.is_binary, "binary"),
    (types.is_large_binary, "binary"),
    (types.is_binary_view, "binary"),
    (types.is_fixed_size_binary, "binary"),
    (types.is_date, "date"),
    (types.is_duration, "interval day to second"),
    (types.is_time32, "time(6)"),
)
_LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list)

STORAGE_PREFIX = "storage."
# Starting a task takes 0.05 s; half a second or more is read in one of this size.
PARTITION_BYTES = 32 * 1024 * 1024
# Four million int64 keys: 2 s to fold, 22 MB to send.
KEYS_BYTES_MAX = 64 * 1024 * 1024
_OF_SEARCH = ("search_operator", "search_phrase")
_OF_NEAREST = ("k", "metric", "nprobes")
_OF_CHANGES = (
    "changes_since",
    "changes_cursor",
    "changes_until",
    "changes_before",
)
_KNOWN = (
    "config",
    "columns",
    "filter",
    "search",
    *_OF_SEARCH,
    "nearest",
    *_OF_NEAREST,
    "limit",
    "with_wal",
    "version",
    "consistency",
    "merged_only",
    "checkpoint",
    "partition_bytes",
    "keys_bytes_max",
    "allow_holes",
    "allow_reinitialised",
    *_OF_CHANGES,
)
_KNOWN_TO_WRITE = (
    "config",
    "delete_column",
    "id",
    "shard",
    "missing_as_null",
    "convert",
    "backlog_generations_max",
)
_CHECKPOINT = "checkpointlocation"
_BOOLEANS = {"true": True, "false": False}
_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]*[^`,\s]))\s*(?:,|$)")


def convert_schema(schema: pa.Schema) -> Json:
    """The schema as Spark's JSON; every column may be null. Raises Unsupported."""
    return _convert_struct(list(schema), "")


def _convert_struct(fields: list[pa.Field], path: str) -> Json:
    return {
        "type": "struct",
        "fields": [
            {
                "name": field.name,
                "type": _convert_type(field.type, f"{path}{field.name}"),
                "nullable": True,
                "metadata": {},
            }
            for field in fields
        ],
    }


def _convert_type(kind: pa.DataType, path: str) -> str | Json:
    if types.is_dictionary(kind):
        return _convert_type(kind.value_type, path)
    if any(is_list(kind) for is_list in _LISTS):
        element = _convert_type(kind.value_type, f"{path}[]")
        return {"type": "array", "elementType": element, "containsNull": True}
    if types.is_map(kind):
        return {
            "type": "map",
            "keyType": _convert_type(kind.key_type, f"{path}[key]"),
            "valueType": _convert_type(kind.item_type, f"{path}[value]"),
            "valueContainsNull": True,
        }
    if is_blob(kind):  # bytes, or the address of a file
        kind = kind.storage_type
    if types.is_struct(kind):
        return _convert_struct([kind.field(i) for i in range(kind.num_fields)], f"{path}.")
    if types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if types.is_decimal(kind) and kind.scale >= 0:
        digits = max(kind.precision, kind.scale)
        if digits <= _DECIMAL_DIGITS_MAX:
            return f"decimal({digits},{kind.scale})"
    if types.is_time64(kind) and kind.unit == "us":
        return "time(6)"
    # An extension type means more than the bytes that it is stored as.
    for is_kind, name in () if isinstance(kind, pa.BaseExtensionType) else _PLAIN:
        if is_kind(kind):
            return name
    raise Unsupported(
        "MW-Q02", f"column {path!r}: Spark has no type for Arrow's {kind}; {_LEAVE_OUT}"
    )


def check_schema(asked: Json, found: Json) -> None:
    """Raise Usage unless a schema that the user gave has columns of the table's schema.

    Whether a column may be null is not compared.
    """
    known = {field["name"]: field["type"] for field in found["fields"]}
    for wanted in asked["fields"]:
        name = wanted["name"]
        if name not in known:
            raise Usage(f"the schema names a column {name!r}; there are {', '.join(known)}")
        if _strip(wanted["type"]) != _strip(known[name]):
            raise Usage(
                f"the schema gives the column {name!r} another type than the table, which has "
                f"{known[name]}; cast it after it is read"
            )


def _strip(kind: Any) -> Any:
    """A type's JSON without nullability and metadata."""
    if isinstance(kind, list):
        return [_strip(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    left_out = ("containsNull", "valueContainsNull", "nullable", "metadata")
    return {key: _strip(part) for key, part in kind.items() if key not in left_out}


def convert_batch(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in Spark's own Arrow schema, in batches of bounded size.

    Raises Refused for a value that Spark can't hold.
    """
    if batch.nbytes > _BATCH_BYTES_MAX and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from convert_batch(batch.slice(0, half), schema)
        yield from convert_batch(batch.slice(half), schema)
        return
    arrays = [_cast(array, field) for array, field in zip(batch.columns, schema, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if is_blob(array.type):
        array = array.storage
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise Refused(
            "MW-Q03",
            f"column {field.name!r} ({array.type}) has a value that Spark can't hold: {error}; "
            f"{_LEAVE_OUT}, or leave its row out with the option `filter`",
        ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of one load.

    `partition_bytes` is about what a task reads; `keys_bytes_max` bounds the keys sent to tasks.
    Storage options may hold secrets, and are not shown.
    """

    table: ResolvedTable = field(repr=False)
    request: ReadRequest
    with_wal: bool = False
    partition_bytes: int = PARTITION_BYTES
    keys_bytes_max: int = KEYS_BYTES_MAX


def parse_settings(options: Mapping[str, str]) -> Settings:
    """Spark's options, whose names come in lower case. Raises Usage, which shows no secret."""
    _check_names(options, _KNOWN)
    columns = options.get("columns")
    request = ReadRequest(
        columns=None if columns is None else parse_names(columns),
        filter=options.get("filter"),
        search=_parse_search(options),
        nearest=_parse_nearest(options),
        limit=_parse_number(options, "limit"),
        version=_parse_number(options, "version"),
        merged_only=_parse_flag(options, "merged_only") if "merged_only" in options else None,
        checkpoint=options.get("checkpoint"),
        holes_allowed=_parse_flag(options, "allow_holes"),
        reinitialised_allowed=_parse_flag(options, "allow_reinitialised"),
        consistency=parse_consistency(options.get("consistency", "latest")),
    )
    return Settings(
        table=find_table(options),
        request=request,
        with_wal=_parse_flag(options, "with_wal"),
        partition_bytes=_parse_number(options, "partition_bytes") or PARTITION_BYTES,
        keys_bytes_max=_parse_number(options, "keys_bytes_max") or KEYS_BYTES_MAX,
    )


def _check_names(options: Mapping[str, str], known: Sequence[str]) -> None:
    if "path" not in options:
        raise Usage('one table is read at a time: spark.read.format("memwal")….load("TABLE")')
    for name in options:
        if name not in (*known, "path") and not name.startswith(STORAGE_PREFIX):
            raise Usage(
                f"there is no option {name!r}{suggest(name, known)}; there are "
                f"{', '.join(known)}, and {STORAGE_PREFIX}KEY for each storage option"
            )


def is_changes(options: Iterable[str]) -> bool:
    """Whether changes are asked for, by some of these options."""
    return not set(_OF_CHANGES).isdisjoint(options)


def parse_changes(options: Mapping[str, str]) -> ChangesOptions:
    """Spark's options of changes, whose names come in lower case. Raises Usage."""
    # Imported here: it brings Lance, and the driver's process imports this module.
    from memwal.read.changes import ChangesOptions
    from memwal.read.request import ChangesAsked

    _check_names(options, ("config", "columns", *_OF_CHANGES))
    since, columns = options.get("changes_since"), options.get("columns")
    asked = ChangesAsked(
        since=0 if since == "0" else _parse_number(options, "changes_since"),
        cursor=options.get("changes_cursor"),
        until=_parse_number(options, "changes_until"),
        columns=None if columns is None else parse_names(columns),
        before=_parse_flag(options, "changes_before"),
    )
    return ChangesOptions(table=find_table(options), asked=asked)


def is_write(options: Iterable[str]) -> bool:
    """Whether some of these options are for writing only."""
    return not {*_KNOWN_TO_WRITE, _CHECKPOINT}.difference(_KNOWN).isdisjoint(options)


def parse_write(options: Mapping[str, str]) -> IngestOptions:
    """Spark's options of a write, whose names come in lower case. Raises Usage."""
    # Imported here: it brings Lance, and the driver's process imports this module.
    from memwal.ingest.plan import IngestOptions
    from memwal.ingest.request import IngestRequest

    if "path" not in options:
        raise Usage('say where to write: ….format("memwal")….save("TABLE"), or start("TABLE")')
    for name in options:
        if name not in (*_KNOWN_TO_WRITE, "path", _CHECKPOINT) and not name.startswith(
            STORAGE_PREFIX
        ):
            raise Usage(
                f"there is no option {name!r} to write with{suggest(name, _KNOWN_TO_WRITE)}; there "
                f"are {', '.join(_KNOWN_TO_WRITE)}, and {STORAGE_PREFIX}KEY for each storage option"
            )
    shard, ingest_id = options.get("shard"), options.get("id")
    return IngestOptions(
        tables=[find_table(options)],
        engine="local",
        request=IngestRequest(
            delete_column=options.get("delete_column"),
            shard=None if shard is None else parse_shard(shard),
            ingest_id=None if ingest_id is None else parse_ingest_id(ingest_id),
            missing_as_null=_parse_flag(options, "missing_as_null"),
            convert=tuple(read_conversions(parse_names(options.get("convert", "")))),
            backlog_generations_max=_parse_number(options, "backlog_generations_max"),
        ),
    )


def find_table(options: Mapping[str, str]) -> ResolvedTable:
    """The table that `path` names: an address, or a name in the configuration. Raises Usage.

    That is the file of the option `config`, or of MEMWAL_CONFIG, where the driver runs.
    """
    file = find_named_file(options.get("config"))
    storage = {
        name.removeprefix(STORAGE_PREFIX): value
        for name, value in options.items()
        if name.startswith(STORAGE_PREFIX)
    }
    config = Config() if file is None else load_config(file)
    return resolve_table(options["path"], config, read_environment_options() | storage)


def _parse_nearest(options: Mapping[str, str]) -> Nearest | None:
    if "nearest" not in options:
        _refuse_alone(options, _OF_NEAREST, "nearest")
        return None
    return parse_nearest(
        "option nearest",
        options["nearest"],
        k=_parse_number(options, "k"),
        metric=options.get("metric"),
        nprobes=_parse_number(options, "nprobes"),
    )


def _refuse_alone(options: Mapping[str, str], names: Sequence[str], wanted: str) -> None:
    for name in names:
        if name in options:
            raise Usage(f"option {name} goes with the option {wanted}")


def _parse_search(options: Mapping[str, str]) -> Search | None:
    if "search" not in options:
        _refuse_alone(options, _OF_SEARCH, "search")
        if "nearest" not in options and "limit" in options:
            raise Usage(
                "option limit goes with search and nearest, which read the best rows only; else "
                "take DataFrame.limit"
            )
        return None
    phrase = _parse_flag(options, "search_phrase")
    operator = options.get("search_operator")
    return parse_search("option search", options["search"], operator, phrase=phrase)


def parse_names(text: str) -> tuple[str, ...]:
    """Column names from `a,b`; a name with a comma or a backtick is quoted in backticks."""
    names: list[str] = []
    place = 0
    while place < len(text):
        match = _COLUMN.match(text, place)
        if match is None:
            raise Usage(f"option columns {text!r}: expected names with commas between them")
        names.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        place = match.end()
    return tuple(names)


def write_names(names: Sequence[str]) -> str:
    """Column names as the option wants them."""
    return ",".join("`" + name.replace("`", "``") + "`" for name in names)


def _parse_number(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    try:
        found = int(value)
    except ValueError:
        found = 0
    if found < 1:
        raise Usage(f"option {name} {value!r}: expected a positive whole number")
    return found


def _parse_flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "false").lower()
    if value not in _BOOLEANS:
        raise Usage(f"option {name} {value!r}: expected true or false")
    return _BOOLEANS[value]
