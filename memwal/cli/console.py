"""What people see: tables on stdout, progress and notes on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from memwal.format.layout import parse_wal_entry_name
from memwal.grid import STYLE, Terminal, count_text, grid_of, size_text
from memwal.ingest.report import IngestTableReport
from memwal.ingest.show import ingest_parts
from memwal.jobs.backfill.report import BackfillReport
from memwal.jobs.backfill.show import backfill_parts
from memwal.jobs.rescue.report import RescueTableReport
from memwal.jobs.rescue.show import rescue_parts
from memwal.jobs.status.show import lease_parts, runs_parts, status_parts, wait_parts
from memwal.jobs.verify.report import CheckReport, VerifyTableReport
from memwal.report import (
    CompactionTableReport,
    GarbageItemReport,
    GarbageTableReport,
    IndexCatchupReport,
    IndexCatchupTableReport,
    JobReport,
    LeaseTableReport,
    MaintainTableReport,
    MergeTableReport,
    PlannedMergeReport,
    RunsTableReport,
    SnapshotTableReport,
    StatusTableReport,
    TableReport,
    WaitTableReport,
)

if TYPE_CHECKING:
    from memwal.cli.progress import Steps


def _plain_width() -> int | None:
    """Off a terminal nothing is cut to 80 columns: a path that is folded can't be copied."""
    return None if sys.stdout is not None and sys.stdout.isatty() else 200


class _ResultConsole(Terminal):
    """Rich would end the process when a reader closes its end."""

    def on_broken_pipe(self) -> None:
        raise


def stdout() -> Console:
    """The console for results. Printing raises OSError where stdout takes no more."""
    return _ResultConsole(width=_plain_width())


def stderr() -> Console:
    """The console for everything else."""
    return Terminal(stderr=True)


def print_trace(text: str, console: Console) -> None:
    """Print a traceback: set in, so that no line of it looks like one of ours."""
    for line in text.splitlines():
        console.print(f"  {line}")


class RunProgress:
    """A progress bar on a terminal, plain log lines elsewhere. Everything goes to stderr."""

    def __init__(self, *, debug: bool = False, quiet: bool = False) -> None:
        self._console = stderr()
        self._debug = debug
        self._quiet = quiet
        self._made: Steps | None = None

    def start(self, what: str, total: int) -> None:
        """A step with `total` units begins."""
        if not self._quiet:
            self._steps().start(what, total)

    def done(self, count: int) -> None:
        """So many units are done."""
        if not self._quiet:
            self._steps().done(count)

    def say(self, text: str) -> None:
        """A line for people."""
        if not self._quiet:
            self._steps().say(text)

    def warn(self, text: str) -> None:
        """A line about trouble."""
        self.say(f"warning: {text}")

    def trace(self, text: str) -> None:
        """A traceback, with `--debug` only."""
        if self._debug:
            print_trace(text, self._console)

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._made is not None:
            self._made.stop()

    def _steps(self) -> Steps:
        if self._made is None:
            # Imported late: most commands that only read say nothing.
            from memwal.cli.progress import BarSteps, LoggedSteps

            self._made = BarSteps(self._console) if self._console.is_terminal else LoggedSteps()
        return self._made


def show_report(report: JobReport, console: Console) -> None:
    """Print a job's report."""
    parts = [_table(table) for table in report.tables]
    if isinstance(report, BackfillReport):
        parts = backfill_parts(report)
    for part in parts:
        console.print(part)
    style = STYLE.get(report.outcome, "red")
    engine = f" on {report.engine.name}" if report.engine and report.engine.name != "none" else ""
    dry = " (dry run: nothing was changed)" if report.dry_run else ""
    console.print(
        Text(f"{report.job}: {report.outcome}{engine} in {report.seconds:.2f} s{dry}", style=style)
    )


def show_document(document: Mapping[str, Any], console: Console, indent: int = 0) -> None:
    """Print a decoded document: a list of like things as a table, the rest line by line."""
    pad = "  " * indent
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            console.print(Text(f"{pad}{key}:", style="bold"))
            show_document(value, console, indent + 1)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            console.print(Text(f"{pad}{key}:", style="bold"))
            if any(isinstance(cell, Mapping | list) for cell in value[0].values()):
                for item in value:
                    show_document(item, console, indent + 1)
                    console.print()
            else:
                console.print(_rows(value))
        else:
            shown = "-" if value in (None, [], {}) else value
            console.print(Text(f"{pad}{key}: {shown}"))


def _rows(items: Sequence[Mapping[str, Any]]) -> Table:
    grid = grid_of(*items[0])
    for item in items:
        grid.add_row(*("-" if v is None else str(v) for v in item.values()))
    return grid


def _table(report: TableReport) -> RenderableType:
    parts: list[RenderableType] = [_head(report)]
    match report:
        case StatusTableReport() if report.version is not None:
            parts += status_parts(report)
        case RescueTableReport():
            parts += rescue_parts(report)
        case IngestTableReport():
            parts += ingest_parts(report)
        case LeaseTableReport():
            parts += lease_parts(report)
        case RunsTableReport():
            parts += runs_parts(report)
        case WaitTableReport():
            parts += wait_parts(report)
        case PlannedMergeReport():
            parts.append(_planned(report))
        case GarbageTableReport():
            parts += _garbage(report)
        case MergeTableReport() if report.shards:
            parts.append(_merged(report))
        case SnapshotTableReport() if report.storage is not None:
            parts.append(
                Text(
                    f"  {report.num_shards} shards, {report.storage}, {report.repairs} repairs "
                    f"({report.reason})"
                )
            )
        case IndexCatchupTableReport() if report.indexes:
            parts.append(_caught_up(report.indexes))
        case CompactionTableReport() if report.fragments_before is not None:
            parts += _compacted(report)
        case MaintainTableReport():
            parts += [line for job in report.jobs for line in _step(job)]
        case VerifyTableReport():
            parts += [_check(check) for check in report.checks]
        case _:
            pass
    # A shard's own error stands in its row's place in the list below; the table's is their sum.
    own = [s.error for s in getattr(report, "shards", ()) if s.error]
    for text in own or ([report.error] if report.error else []):
        parts.append(Text(f"  error: {text}", style="red"))
    for text in getattr(report, "warnings", ()):
        parts.append(Text(f"  warning: {text}", style="yellow"))
    return Group(*parts)


def _head(report: TableReport) -> Text:
    head = Text(report.table, style="bold")
    version = report.version_before
    if version is not None:
        after = report.version_after
        changed = f" -> {after}" if after not in (None, version) else ""
        head.append(f"  version {version}{changed}", style="dim")
    head.append(f"  {report.outcome}", style=STYLE.get(report.outcome, "red"))
    return head


def _step(job: Mapping[str, Any]) -> list[Text]:
    """One job of `maintain`, what it leaves to be asked for, and what it warns of."""
    line = Text(f"  {job['job']:<14} ")
    line.append(job["outcome"], style=STYLE.get(job["outcome"], "red"))
    waiting = [
        i for i in job.get("items", ()) if i["action"] in ("drop", "delete") and not i["done"]
    ]
    if waiting:
        line.append(f"  {len(waiting)} items could go: --execute does it", style="yellow")
    warnings = job.get("warnings", ())
    return [line, *(Text(f"    warning: {text}", style="yellow") for text in warnings)]


def _check(check: CheckReport) -> Text:
    mark, style = "not checked", "yellow"
    if check.ok is not None:
        mark, style = ("ok", "green") if check.ok else ("BROKEN", "red")
    number = f"invariant {check.invariant}" if check.invariant is not None else "also"
    line = Text("  ")
    line.append(f"{mark:>11}", style=style)
    line.append(f"  {number}: {check.name}: {check.detail}")
    return line


def _caught_up(indexes: Sequence[IndexCatchupReport]) -> Table:
    grid = grid_of("index", "outcome", "method", "unindexed rows", "seconds")
    grid.add_column("why", overflow="fold")
    for index in indexes:
        grid.add_row(
            index.name,
            Text(index.outcome, style=STYLE.get(index.outcome, "red")),
            index.method,
            f"{count_text(index.unindexed_rows_before)} -> "
            f"{count_text(index.unindexed_rows_after)}",
            f"{index.seconds:.2f}",
            index.reason or "",
        )
    return grid


def _compacted(report: CompactionTableReport) -> list[RenderableType]:
    grid = grid_of("", "before", "after")
    for name in ("fragments", "files", "rows", "deleted_rows"):
        before, after = (getattr(report, f"{name}_{when}") for when in ("before", "after"))
        grid.add_row(name.replace("_", " "), count_text(before), count_text(after))
    size = size_text(report.bytes_rewritten)
    parts: list[RenderableType] = [
        Text(f"  {report.tasks} tasks, {size}, {report.commits} commits: {report.reason}"),
        grid,
    ]
    return [*parts, _caught_up(report.indexes)] if report.indexes else parts


def _planned(report: PlannedMergeReport) -> Table:
    grid = grid_of("shard", "outcome", "merged", "would merge to", "generations", "commits", "rows",
                 "bytes")  # fmt: skip
    for shard in report.shards:
        grid.add_row(
            shard.shard_id,
            shard.outcome,
            str(shard.from_generation),
            str(shard.to_generation),
            str(shard.generations),
            str(len(shard.commits)),
            count_text(shard.physical_rows),
            size_text(shard.in_memory_bytes),
        )
    return grid


def _merged(report: MergeTableReport) -> Table:
    grid = grid_of("shard", "outcome", "merged", "generations", "commits", "inserted", "updated",
                 "deleted", "read", "seconds", "join")  # fmt: skip
    for shard in report.shards:
        grid.add_row(
            shard.shard_id,
            Text(shard.outcome, style=STYLE.get(shard.outcome, "red")),
            f"{shard.from_generation} -> {shard.to_generation}",
            str(shard.generations),
            str(shard.commits),
            count_text(shard.rows_inserted),
            count_text(shard.rows_updated),
            count_text(shard.rows_deleted),
            size_text(shard.bytes_read),
            f"{shard.seconds:.2f}",
            ", ".join(shard.joins),
        )
    return grid


_GARBAGE_ROWS_MAX = 200


def _garbage(report: GarbageTableReport) -> list[RenderableType]:
    """What goes first; then what stays, as far as a person may want to read it."""
    items = sorted(report.items, key=lambda i: i.action == "keep")
    grid = grid_of("action", "kind", "bytes", "path", "reason")
    for item in items[:_GARBAGE_ROWS_MAX]:
        grid.add_row(_garbage_action(item), item.kind, size_text(item.bytes),
                     _garbage_path(item), item.reason)  # fmt: skip
    parts: list[RenderableType] = [grid if items else Text("  no candidates", style="dim")]
    if len(items) > _GARBAGE_ROWS_MAX:
        more = len(items) - _GARBAGE_ROWS_MAX
        parts.append(Text(f"  and {more:,} more: --json has all of them", style="dim"))
    done = f"  dropped {report.dropped}, deleted {report.deleted}, "
    done += f"{size_text(report.bytes_freed)} freed"
    if report.versions_expired:
        done += f"; {report.versions_expired} versions expired, "
        done += f"{size_text(report.version_bytes_freed)} freed"
    if report.runs_deleted:
        done += f"; {report.runs_deleted} run records deleted"
    parts.append(Text(done))
    return parts


def _garbage_path(item: GarbageItemReport) -> str:
    """The path; of a WAL entry its position instead of 64 digits."""
    folder, _, name = item.path.rpartition("/")
    position = parse_wal_entry_name(name) if item.kind == "wal_entry" else None
    return item.path if position is None else f"{folder}: position {position}"


def _garbage_action(item: GarbageItemReport) -> Text:
    style = {"keep": "dim", "drop": "yellow"}.get(item.action, "red")
    return Text(f"{item.action}{' (done)' if item.done else ''}", style=style)
