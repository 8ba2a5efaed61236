"""How `memwal inspect wal` looks to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from memwal.grid import age_text, count_text, grid_of, size_text

_STYLE = {"covered": "dim", "unflushed": "yellow", "sentinel": "", "unreached": "red",
          "forged": "red", "lost": "red", "torn": "red", "too large": "red"}  # fmt: skip


def show_wal(document: Mapping[str, Any], console: Console) -> None:
    """Print the document of `inspect wal`: a table of entries a shard."""
    head = Text(str(document["table"]), style="bold")
    console.print(head.append(f"  version {document['version']}", style="dim"))
    if not document["shards"]:
        console.print(Text("  no shards", style="dim"))
    for shard in document["shards"]:
        _shard(shard, console)


def _shard(shard: Mapping[str, Any], console: Console) -> None:
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
            f"  in no generation: {count_text(unflushed['rows'])} rows in "
            f"{unflushed['entries']} entries, {size_text(unflushed['bytes'])}",
            style="yellow" if unflushed["entries"] else "dim",
        )
    )
    if shard["left_out"]:
        console.print(Text(f"  {shard['left_out']} older entries are not shown", style="dim"))
    if shard["entries"]:
        console.print(_entries(shard["entries"]))
    for name, style in (("problems", "red"), ("warnings", "yellow")):
        for text in shard[name]:
            console.print(Text(f"  {name[:-1]}: {text}", style=style))
    for text in (t for t in shard["broken"] if t not in shard["problems"]):
        console.print(Text(f"  broken: {text}", style="red"))


def _entries(entries: list[Mapping[str, Any]]) -> Any:
    grid = grid_of("position", "epoch", "generation", "rows", "bytes", "age", "what", "covered by")
    for entry in entries:
        sentinel = " (sentinel)" if entry["fence_sentinel"] and entry["covered"] else ""
        by = entry["covered_by_generation"]
        grid.add_row(
            str(entry["position"]),
            _number(entry["writer_epoch"]),
            _number(entry["generation"]),
            _number(entry["rows"]),
            size_text(entry["bytes"]),
            age_text(entry["age_seconds"]),
            Text(entry["standing"] + sentinel, style=_STYLE[entry["standing"]]),
            "-" if by is None else f"{by} ({entry['covered_by_state']})",
        )
    return grid


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
