"""Rows and read plans for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memwal.grid import STYLE, count_text, generations_text, grid_of, size_text
from memwal.text import one_line

_CELL_MAX = 48
_ITEMS_MAX = 4


def show_rows(document: Mapping[str, Any], console: Console) -> None:
    """The rows as a table, and where they are from."""
    (table,) = document["tables"]
    console.print(_head(table))
    if table["output"] is not None:
        console.print(Text(f"  {count_text(table['num_rows'])} rows written to {table['output']}"))
    elif table["rows"]:
        console.print(_grid(table["schema"], table["rows"]))
    else:
        console.print(Text("  no rows", style="dim"))
    for text in table["warnings"]:
        console.print(Text(f"  warning: {one_line(text)}", style="yellow"))
    console.print(Text(_foot(document, table), style=STYLE["done"]))


def _head(table: Mapping[str, Any]) -> Text:
    return Text.assemble((table["table"], "bold"), (f"  version {table['version']}", "dim"))


def _foot(document: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    foot = f"read: {count_text(table['num_rows'])} rows in {document['seconds']:.2f} s, "
    foot += f"base and {table['generations']} pending generations of {table['shards']} shards"
    if table["pruned_shards"]:
        foot += f" ({table['pruned_shards']} more pruned)"
    if table["limit"] is not None and table["num_rows"] == table["limit"]:
        foot += "; there may be more: --limit N, --json or --output FILE"
    return foot


def _grid(schema: Sequence[Mapping[str, str]], rows: Sequence[Mapping[str, Any]]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold dim")
    for field in schema:
        number = field["type"].startswith(("int", "uint", "float", "double", "halffloat"))
        grid.add_column(Text(one_line(field["name"])), justify="right" if number else "left")
    for row in rows:
        grid.add_row(*(_cell(row[field["name"]]) for field in schema))
    return grid


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    text = one_line(value if isinstance(value, str) else json.dumps(_short(value)))
    return Text(text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 1]}…")


def _short(value: Any) -> Any:
    """Long lists, as vectors are, by their first items; numbers with a few digits."""
    if isinstance(value, list):
        items = [_short(item) for item in value[:_ITEMS_MAX]]
        return items if len(value) <= _ITEMS_MAX else [*items, f"{len(value)} in all"]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def show_explain(document: Mapping[str, Any], console: Console) -> None:
    """The sources of a read, newest first, and what answers it in each."""
    (table,) = document["tables"]
    found = table["explain"]
    console.print(_head(table))
    console.print(Text(f"  reads {found['way']}"))
    base = found["base"]
    console.print(
        Text(
            f"  base: version {base['version']}, {count_text(base['rows'])} rows in "
            f"{base['fragments']} fragments"
        )
    )
    if found["shards"] or found["pruned"]:
        console.print(_sources(found))
    for index in found["indexes"]:
        console.print(Text(f"  index {index['name']} ({index['kind']} on {index['column']}) for "
                           f"the {index['purpose']}:", style="bold"))  # fmt: skip
        console.print(_answers(index))
    if not found["indexes"]:
        console.print(Text("  no index serves this query: every source is scanned", style="dim"))
    for text in found["pylance_differs"]:
        console.print(Text(f"  note: {text}", style="yellow"))


def _sources(found: Mapping[str, Any]) -> Table:
    grid = grid_of("shard", "merged", "generations", "rows", "bytes", "skipped as merged")
    grid.add_column("why", overflow="fold")
    for shard in found["shards"]:
        read = shard["generations"]
        grid.add_row(
            shard["shard_id"],
            str(shard["merged_generation"]),
            ", ".join(str(g["generation"]) for g in read) or "-",
            count_text(_sum(g["rows"] for g in read)),
            size_text(_sum(g["in_memory_bytes"] for g in read)),
            generations_text(tuple(shard["skipped_as_merged"])),
            "newest first" if read else "nothing is pending",
        )
    for shard in found["pruned"]:
        out = generations_text(tuple(shard["generations"]))
        grid.add_row(shard["shard_id"], *"----", "-", f"pruned ({out}): {shard['reason']}")
    return grid


def _sum(values: Any) -> int | None:
    found = list(values)
    return None if None in found else sum(found)


def _answers(index: Mapping[str, Any]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold dim")
    for name in ("source", "shard"):
        grid.add_column(name, no_wrap=True)
    grid.add_column("rows", justify="right")
    for name in ("answered by", "by the spec"):
        grid.add_column(name, no_wrap=True)
    grid.add_column("why", overflow="fold")
    for answer in index["answers"]:
        grid.add_row(
            answer["source"],
            answer["shard_id"] or "-",
            count_text(answer["rows"]),
            answer["answered_by"],
            answer["by_the_spec"],
            answer["why"],
        )
    return grid
