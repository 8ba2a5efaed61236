"""What people see of `memwal inspect wal`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from memwal.grid import Column, build_table, format_count, format_size, numbers, words
from memwal.text import format_age

_SHARDS_MAX = 50
_STYLE = {"covered": "dim", "unflushed": "yellow", "sentinel": "", "unreached": "red",
          "forged": "red", "lost": "red", "torn": "red", "too large": "red"}  # fmt: skip

ENTRIES: tuple[Column[Mapping[str, Any]], ...] = (
    numbers("position", lambda entry: str(entry["position"])),
    numbers("epoch", lambda entry: _format_number(entry["writer_epoch"])),
    numbers("generation", lambda entry: _format_number(entry["generation"])),
    numbers("rows", lambda entry: _format_number(entry["rows"])),
    numbers("bytes", lambda entry: format_size(entry["bytes"])),
    numbers("age", lambda entry: format_age(entry["age_seconds"])),
    words("what", lambda entry: _format_standing(entry)),
    numbers("covered by", lambda entry: _format_covering(entry)),
)


def show_wal(document: Mapping[str, Any], console: Console) -> None:
    """Print the document of `inspect wal`: a table of entries for each shard."""
    head = Text(str(document["table"]), style="bold")
    console.print(head.append(f"  version {document['version']}", style="dim"))
    if not document["shards"]:
        console.print(Text("  no shards", style="dim"))
    for shard in document["shards"][:_SHARDS_MAX]:
        _show_shard(shard, console)
    if (more := len(document["shards"]) - _SHARDS_MAX) > 0:
        console.print(Text(f"and {more:,} more shards: --shard shows one, --json all", style="dim"))


def _show_shard(shard: Mapping[str, Any], console: Console) -> None:
    console.print(Text(f"shard {shard['shard_id']}  {shard['status']}", style="bold"))
    unflushed = shard["unflushed"]
    console.print(
        Text(
            f"  epoch {shard['writer_epoch']}, generation {shard['current_generation']} is next, "
            f"{shard['merged_generation']} merged, covered up to position "
            f"{shard['replay_after_wal_entry_position']}"
        )
    )
    console.print(
        Text(
            f"  in no generation: {format_count(unflushed['rows'])} rows in "
            f"{unflushed['entries']} entries, {format_size(unflushed['bytes'])}",
            style="yellow" if unflushed["entries"] else "dim",
        )
    )
    if shard["left_out"]:
        console.print(Text(f"  {shard['left_out']} older entries are not shown", style="dim"))
    if shard["entries"]:
        console.print(build_table(shard["entries"], ENTRIES))
    for name, style in (("problems", "red"), ("warnings", "yellow")):
        for text in shard[name]:
            console.print(Text(f"  {name[:-1]}: {text}", style=style))
    for text in (t for t in shard["broken"] if t not in shard["problems"]):
        console.print(Text(f"  broken: {text}", style="red"))


def _format_standing(entry: Mapping[str, Any]) -> Text:
    sentinel = " (sentinel)" if entry["fence_sentinel"] and entry["covered"] else ""
    return Text(entry["standing"] + sentinel, style=_STYLE[entry["standing"]])


def _format_covering(entry: Mapping[str, Any]) -> str:
    by = entry["covered_by_generation"]
    return "-" if by is None else f"{by} ({entry['covered_by_state']})"


def _format_number(value: int | None) -> str:
    return "-" if value is None else str(value)
