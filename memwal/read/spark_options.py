"""The options of `spark.read.format("memwal")`, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memwal.config import read_environment_options
from memwal.errors import Usage
from memwal.read.plan.request import ReadRequest, Search, parse_consistency, parse_search

STORAGE_PREFIX = "storage."

# Starting a task takes 0.05 s; half a second or more is read in one of this size.
PARTITION_BYTES = 32 * 1024 * 1024
# Four million int64 keys: 2 s to fold, 22 MB to send.
KEYS_BYTES_MAX = 64 * 1024 * 1024

_KNOWN = (
    "columns",
    "filter",
    "search",
    "search_operator",
    "search_phrase",
    "limit",
    "version",
    "consistency",
    "merged_only",
    "checkpoint",
    "partition_bytes",
    "keys_bytes_max",
    "allow_holes",
    "allow_reinitialised",
)
_BOOLEANS = {"true": True, "false": False}
_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]*[^`,\s]))\s*(?:,|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One load. `partition_bytes` is about what a task reads; `keys_bytes_max` bounds what is sent.

    Storage options may hold secrets, and are not shown.
    """

    uri: str
    request: ReadRequest
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_bytes: int = PARTITION_BYTES
    keys_bytes_max: int = KEYS_BYTES_MAX


def parse_settings(options: Mapping[str, str]) -> Settings:
    """Spark's options, whose names come in lower case. Raises Usage, which shows no secret."""
    if "path" not in options:
        raise Usage('one table is read at a time: spark.read.format("memwal")….load("ADDRESS")')
    for name in options:
        if name not in (*_KNOWN, "path") and not name.startswith(STORAGE_PREFIX):
            raise Usage(
                f"there is no option {name!r}; there are {', '.join(_KNOWN)}, and "
                f"{STORAGE_PREFIX}KEY for each storage option"
            )
    columns = options.get("columns")
    request = ReadRequest(
        columns=None if columns is None else parse_names(columns),
        filter=options.get("filter"),
        search=_parse_search(options),
        limit=_parse_number(options, "limit"),
        version=_parse_number(options, "version"),
        merged_only=_parse_flag(options, "merged_only") if "merged_only" in options else None,
        checkpoint=options.get("checkpoint"),
        holes_allowed=_parse_flag(options, "allow_holes"),
        reinitialised_allowed=_parse_flag(options, "allow_reinitialised"),
        consistency=parse_consistency(options.get("consistency", "latest")),
    )
    storage = {
        name.removeprefix(STORAGE_PREFIX): value
        for name, value in options.items()
        if name.startswith(STORAGE_PREFIX)
    }
    return Settings(
        uri=options["path"],
        request=request,
        storage_options=read_environment_options() | storage,
        partition_bytes=_parse_number(options, "partition_bytes") or PARTITION_BYTES,
        keys_bytes_max=_parse_number(options, "keys_bytes_max") or KEYS_BYTES_MAX,
    )


def _parse_search(options: Mapping[str, str]) -> Search | None:
    if "search" not in options:
        for name in ("search_operator", "search_phrase", "limit"):
            if name in options:
                raise Usage(f"option {name} goes with the option search")
        return None
    phrase = _parse_flag(options, "search_phrase")
    operator = options.get("search_operator")
    return parse_search("option search", options["search"], operator, phrase=phrase)


def parse_names(text: str) -> tuple[str, ...]:
    """Column names from `a,b`; one with a comma or a backtick in it stands in backticks."""
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
