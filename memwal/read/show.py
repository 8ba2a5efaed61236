"""Displays a read's rows, or its plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memwal.grid import (
    STYLE,
    Column,
    build_table,
    format_generations,
    format_size,
    numbers,
    prose,
    start_table,
    words,
)
from memwal.model import sum_known
from memwal.report import DONE
from memwal.text import count_of, one_line

_CELL_MAX = 48
_ITEMS_MAX = 4

SOURCES: tuple[Column[Mapping[str, Any]], ...] = (
    words("shard", lambda shard: shard["shard_id"]),
    numbers("merged", lambda shard: str(shard["merged_generation"])),
    numbers(
        "generations",
        lambda shard: ", ".join(str(g["generation"]) for g in shard["generations"]) or "-",
    ),
    numbers("rows", lambda shard: sum_known(g["rows"] for g in shard["generations"])),
    numbers(
        "bytes",
        lambda shard: format_size(sum_known(g["in_memory_bytes"] for g in shard["generations"])),
    ),
    numbers("skipped as merged", lambda shard: format_generations(shard["skipped_as_merged"])),
    prose("why", lambda shard: "newest first" if shard["generations"] else "nothing is pending"),
)


def show_rows(document: Mapping[str, Any], console: Console) -> None:
    """Print the rows as a table, and where they are from."""
    (table,) = document["tables"]
    console.print(_format_head(table))
    _show_table(table, console)
    _show_warnings(table, console)
    console.print(Text(_format_foot(document, table), style=STYLE[DONE]))


def show_changes(document: Mapping[str, Any], console: Console) -> None:
    """Print changed rows as a table, and how many there are of each kind; or where a cursor is."""
    (table,) = document["tables"]
    cursor = table["cursor"]
    if "since" not in table:
        done = "dropped; it was" if cursor["dropped"] else "now"
        console.print(Text(f"cursor {cursor['name']}: {done} at version {cursor['version']}"))
        return
    told = f"  versions {table['since']} to {table['until']}"
    if cursor is not None:
        told += f", from cursor {cursor['name']}"
    console.print(Text.assemble((table["table"], "bold"), (told, "dim")))
    _show_table(table, console)
    counts = table["counts"]
    foot = ", ".join(count_of(counts[kind], kind) for kind in counts)
    foot = f"changes: {foot} in {document['seconds']:.2f} s"
    if table["num_rows"] < sum(counts.values()):
        foot += f"; {count_of(table['num_rows'], 'row')} shown: --limit N, --json or --output FILE"
    console.print(Text(foot, style=STYLE[DONE]))


def _show_table(table: Mapping[str, Any], console: Console) -> None:
    if table["output"] is not None:
        console.print(Text(f"  {count_of(table['num_rows'], 'row')} written to {table['output']}"))
    elif table["rows"]:
        console.print(_build_rows(table["schema"], table["rows"]))
    else:
        console.print(Text("  no rows", style="dim"))


def _show_warnings(table: Mapping[str, Any], console: Console) -> None:
    for text in table["warnings"]:
        console.print(Text(f"  warning: {one_line(text)}", style="yellow"))


def _format_head(table: Mapping[str, Any]) -> Text:
    told = f"  version {table['version']}"
    if table["merged_only"]:
        told += ", merged rows only"
    if table["checkpoint"] is not None:
        told = f"  checkpoint {table['checkpoint']}:{told[1:]}"
    if table["taken_at"] is not None:
        told += f", shards as of {table['taken_at']}"
    return Text.assemble((table["table"], "bold"), (told, "dim"))


def _format_foot(document: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    foot = f"read: {count_of(table['num_rows'], 'row')} in {document['seconds']:.2f} s, base and "
    foot += count_of(table["generations"], "pending generation")
    foot += f" of {count_of(table['shards'], 'shard')}"
    if table["pruned_shards"]:
        foot += f" ({table['pruned_shards']} more pruned)"
    if table["limit"] is not None and table["num_rows"] == table["limit"]:
        foot += "; there may be more: --limit N, --json or --output FILE"
    return foot


def _build_rows(schema: Sequence[Mapping[str, str]], rows: Sequence[Mapping[str, Any]]) -> Table:
    grid = start_table()
    for field in schema:
        number = field["type"].startswith(("int", "uint", "float", "double", "halffloat"))
        grid.add_column(Text(one_line(field["name"])), justify="right" if number else "left")
    for row in rows:
        grid.add_row(*(_format_cell(row[field["name"]], field["type"]) for field in schema))
    return grid


def _format_cell(value: Any, kind: str) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    shown = _shorten(value, digits="float" in kind and "double" not in kind)
    text = one_line(shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False))
    return Text(text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 1]}…")


def _shorten(value: Any, *, digits: bool) -> Any:
    """Shorten long lists, such as vectors, to their first items; with `digits`, numbers to those of
    a 32-bit float.
    """
    if isinstance(value, list):
        items = [_shorten(item, digits=digits) for item in value[:_ITEMS_MAX]]
        return items if len(value) <= _ITEMS_MAX else [*items, f"{len(value)} in all"]
    return float(f"{value:.7g}") if digits and isinstance(value, float) else value


def show_explain(document: Mapping[str, Any], console: Console) -> None:
    """Print the sources of a read, newest first, and Lance's plan for the base."""
    (table,) = document["tables"]
    found = table["explain"]
    console.print(_format_head(table))
    console.print(Text(f"  reads {found['way']}"))
    base = found["base"]
    text = f"  base: version {base['version']}, {count_of(base['rows'], 'row')}; Lance reads it by"
    console.print(Text(text))
    for line in base["lance_plan"].splitlines():
        console.print(Text(f"    {line}", style="dim"))
    if shards := [*found["shards"], *found["pruned"]]:
        console.print(build_table(shards, SOURCES, cut=_cut_pruned))
    _show_warnings(table, console)


def _cut_pruned(shard: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a shard that the filter rules out; empty for other shards."""
    if "reason" not in shard:
        return ()
    out = format_generations(shard["generations"])
    return (shard["shard_id"], *"-----", f"pruned ({out}): {shard['reason']}")
