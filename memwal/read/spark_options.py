"""The options of `spark.read.format("memwal")`, checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memwal.config import (
    Config,
    ResolvedTable,
    find_named_file,
    load_config,
    read_environment_options,
    resolve_table,
)
from memwal.config.names import suggest
from memwal.errors import Usage
from memwal.format.layout import parse_ingest_id, parse_shard
from memwal.read.plan.request import (
    Nearest,
    ReadRequest,
    Search,
    parse_consistency,
    parse_nearest,
    parse_search,
)

if TYPE_CHECKING:
    from memwal.ingest.plan import IngestOptions

STORAGE_PREFIX = "storage."

# Starting a task takes 0.05 s; half a second or more is read in one of this size.
PARTITION_BYTES = 32 * 1024 * 1024
# Four million int64 keys: 2 s to fold, 22 MB to send.
KEYS_BYTES_MAX = 64 * 1024 * 1024

_OF_SEARCH = ("search_operator", "search_phrase")
_OF_NEAREST = ("k", "metric", "nprobes", "refine_factor")
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
)
_KNOWN_TO_WRITE = (
    "config",
    "delete_column",
    "id",
    "shard",
    "skip_unknown_columns",
    "missing_as_null",
    "backlog_generations_max",
)
_CHECKPOINT = "checkpointlocation"
_BOOLEANS = {"true": True, "false": False}
_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]*[^`,\s]))\s*(?:,|$)")


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
    if "path" not in options:
        raise Usage('one table is read at a time: spark.read.format("memwal")….load("TABLE")')
    for name in options:
        if name not in (*_KNOWN, "path") and not name.startswith(STORAGE_PREFIX):
            raise Usage(
                f"there is no option {name!r}{suggest(name, _KNOWN)}; there are "
                f"{', '.join(_KNOWN)}, and {STORAGE_PREFIX}KEY for each storage option"
            )
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
            sources=(),
            format="spark",
            delete_column=options.get("delete_column"),
            shard=None if shard is None else parse_shard(shard),
            ingest_id=None if ingest_id is None else parse_ingest_id(ingest_id),
            skip_unknown_columns=_parse_flag(options, "skip_unknown_columns"),
            missing_as_null=_parse_flag(options, "missing_as_null"),
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
        refine_factor=_parse_number(options, "refine_factor"),
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
