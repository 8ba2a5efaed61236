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
from typing import TYPE_CHECKING, Any, TypeVar

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
from memwal.config.requests import check_request
from memwal.errors import Refused, Unsupported, Usage
from memwal.options import DeclaredOption, Kind, list_options
from memwal.read.request import ChangesAsked, ReadAsked
from memwal.rows.json_values import is_blob
from memwal.run.keywords import name_options

if TYPE_CHECKING:
    from memwal.ingest.plan import IngestOptions
    from memwal.read.changes import ChangesOptions


Json = dict[str, Any]
Request = TypeVar("Request")

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
_UNTESTED = "allow_untested_lance"
_SHARED = ("config", _UNTESTED)
_OWN = (*_SHARED, "partition_bytes", "keys_bytes_max")
_NO_READ = ("key", "explain", "output", "memory_max")
_CHANGES = "changes_"
_OF_CHANGES = tuple(f"{_CHANGES}{name}" for name in ("since", "cursor", "until", "before"))
_OF_WRITE = (
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
    asked: ReadAsked
    partition_bytes: int = PARTITION_BYTES
    keys_bytes_max: int = KEYS_BYTES_MAX


def parse_settings(options: Mapping[str, str]) -> Settings:
    """Spark's options, whose names come in lower case. Raises Usage, which shows no secret."""
    words = [w for d in list_options(ReadAsked) if (w := _name(d)) not in _NO_READ]
    _check_names(options, (*_OWN, *words, *_OF_CHANGES))
    asked = _parse_request(ReadAsked, options, words)
    if asked.limit is not None and asked.search is None and asked.nearest is None:
        raise Usage(
            "option limit goes with search and nearest, which read the best rows only; else take "
            "DataFrame.limit"
        )
    return Settings(
        table=find_table(options),
        asked=asked,
        partition_bytes=_parse_number(options, "partition_bytes") or PARTITION_BYTES,
        keys_bytes_max=_parse_number(options, "keys_bytes_max") or KEYS_BYTES_MAX,
    )


def _name(declared: DeclaredOption) -> str:
    """The command's word for it, as Spark's options are written."""
    return declared.flag.removeprefix("--").replace("-", "_")


def _parse_request(
    kind: Callable[..., Request], options: Mapping[str, str], names: Iterable[str], prefix: str = ""
) -> Request:
    """A request of these options, by the declarations of the command's. Raises Usage."""
    values = {
        declared.name: _parse_value(declared, name, options[name])
        for declared in list_options(kind)
        if (name := prefix + _name(declared)) in options and name in names
    }
    try:
        return check_request(kind(**values), lambda declared: f"option {prefix}{_name(declared)}")
    except Usage as error:
        raise error.say(name_options(error.text)) from None


def _parse_value(declared: DeclaredOption, name: str, text: str) -> Any:
    if declared.kind in (Kind.SWITCH, Kind.EITHER):
        if text.lower() not in _BOOLEANS:
            raise Usage(f"option {name} {text!r}: expected true or false")
        return _BOOLEANS[text.lower()]
    if declared.kind is Kind.NUMBER:
        try:
            return int(text)
        except ValueError:
            raise Usage(f"option {name} {text!r}: expected a whole number") from None
    return parse_names(text) if declared.kind in (Kind.LIST, Kind.CHOICES) else text


def _allows_untested(options: Mapping[str, str]) -> bool:
    return options.get(_UNTESTED, "").lower() == "true"


def _check_names(options: Mapping[str, str], known: Sequence[str]) -> None:
    if "path" not in options:
        raise Usage('say which table: ….format("memwal")….load("TABLE"), or save("TABLE")')
    for name in options:
        if name not in (*known, "path", _CHECKPOINT) and not name.startswith(STORAGE_PREFIX):
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

    _check_names(options, (*_SHARED, "columns", *_OF_CHANGES))
    given = {name: text for name, text in options.items() if name in _OF_CHANGES}
    given |= {f"{_CHANGES}columns": options["columns"]} if "columns" in options else {}
    asked = _parse_request(ChangesAsked, given, given, _CHANGES)
    return ChangesOptions(
        table=find_table(options), asked=asked, untested_lance_allowed=_allows_untested(options)
    )


def is_write(options: Iterable[str]) -> bool:
    """Whether some of these options are for writing only."""
    return not {*_OF_WRITE, _CHECKPOINT}.isdisjoint(options)


def parse_write(options: Mapping[str, str]) -> IngestOptions:
    """Spark's options of a write, whose names come in lower case. Raises Usage."""
    # Imported here: it brings Lance, and the driver's process imports this module.
    from memwal.ingest.plan import IngestOptions
    from memwal.ingest.request import IngestRequest

    _check_names(options, (*_SHARED, *_OF_WRITE))
    request = _parse_request(IngestRequest, options, _OF_WRITE)
    return IngestOptions(
        tables=[find_table(options)],
        engine="local",
        request=request,
        untested_lance_allowed=_allows_untested(options),
    )


def find_table(options: Mapping[str, str]) -> ResolvedTable:
    """The table that `path` names: an address, or a name in the configuration. Raises Usage.

    That is the file of the option `config`, or of MEMWAL_CONFIG, where the driver runs. Raises
    Unsupported for a pylance that was never tested.
    """
    # Imported here: it brings Lance, and the driver's process imports this module.
    from memwal.run.stores import check_lance_version

    check_lance_version(_allows_untested(options))
    file = find_named_file(options.get("config"))
    storage = {
        name.removeprefix(STORAGE_PREFIX): value
        for name, value in options.items()
        if name.startswith(STORAGE_PREFIX)
    }
    config = Config() if file is None else load_config(file)
    return resolve_table(options["path"], config, read_environment_options() | storage)


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
