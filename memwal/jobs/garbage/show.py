"""What people see of a garbage run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from memwal.format.layout import parse_shard_manifest_name, parse_wal_entry_name
from memwal.grid import Column, build_table, format_size, numbers, words
from memwal.jobs.garbage.report import GarbageItemReport, GarbageTableReport
from memwal.text import count_of

_ROWS_MAX = 200

ITEMS: tuple[Column[GarbageItemReport], ...] = (
    words("action", lambda item: _format_action(item)),
    words("kind", lambda item: item.kind),
    numbers("bytes", lambda item: format_size(item.bytes)),
    words("path", lambda item: _format_path(item)),
    words("reason", lambda item: item.reason),
)


def show_table(report: GarbageTableReport) -> list[RenderableType]:
    """Render a table's items, those that go first, up to `_ROWS_MAX`, and the totals."""
    items = sorted(report.items, key=lambda item: item.action == "keep")
    parts: list[RenderableType] = [
        build_table(items[:_ROWS_MAX], ITEMS) if items else Text("  no candidates", style="dim")
    ]
    if (more := len(items) - _ROWS_MAX) > 0:
        parts.append(Text(f"  and {more:,} more: --json has all of them", style="dim"))
    if going := [item for item in items if item.action != "keep"]:
        parts.append(Text(f"  listed to go: {_sum_up(going)}"))
    done = f"  dropped {report.dropped}, deleted {report.deleted}, "
    done += f"{format_size(report.bytes_freed)} freed"
    if report.versions_expired:
        done += f"; {count_of(report.versions_expired, 'version')} expired, "
        done += f"{format_size(report.version_bytes_freed)} freed"
    if report.runs_deleted:
        done += f"; {report.runs_deleted} run records deleted"
    if report.sweep == "difference":
        shards = count_of(report.shards_looked_at, "changed shard")
        parts.append(Text(f"  looked at {shards}; --full looks at all", style="dim"))
    return [*parts, Text(done)]


def _sum_up(items: Sequence[GarbageItemReport]) -> str:
    kinds = Counter(item.kind for item in items)
    sizes = {kind: sum(item.bytes for item in items if item.kind == kind) for kind in kinds}
    return ", ".join(
        f"{count:,} {kind} ({format_size(sizes[kind])})" for kind, count in kinds.items()
    )


def _format_path(item: GarbageItemReport) -> str:
    """The path, with the position of a WAL entry or the version of a manifest as a plain number."""
    folder, _, name = item.path.rpartition("/")
    if item.kind == "wal_entry" and (position := parse_wal_entry_name(name)) is not None:
        return f"{folder}: position {position}"
    if item.kind == "shard_manifest" and (version := parse_shard_manifest_name(name)) is not None:
        return f"{folder}: version {version}"
    return item.path


def _format_action(item: GarbageItemReport) -> Text:
    style = {"keep": "dim", "drop": "yellow"}.get(item.action, "red")
    return Text(f"{item.action}{' (done)' if item.done else ''}", style=style)
