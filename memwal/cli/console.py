"""What people see: reports on stdout, progress and notes on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from memwal.grid import STYLE, Column, build_table, numbers, style_outcome, words
from memwal.report import JobReport, TableReport
from memwal.run.process import logs
from memwal.text import name_some, one_line

if TYPE_CHECKING:
    from memwal.cli.progress import Display


_LOG = logging.getLogger("memwal")
_ERRORS_MAX = 50
_ITEMS_MAX = 50
_WIDTH = 200


class Terminal(Console):
    """A console that shows every text on one line, escaped, without interpreting markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, markup=False, soft_wrap=True, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a plain text: one that is printed, or is in a table's cell."""
        return super().render_str(one_line(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render anything else, and escape the styled texts in it."""
        if isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = _escape(renderable)
        return super().render(renderable, options)


def _escape(text: Text) -> Text:
    pieces = text.divide(range(1, len(text)))
    for piece in pieces:
        piece.plain = one_line(piece.plain)
    return Text("", end=text.end, style=text.style).join(pieces)


class _ResultTerminal(Terminal):
    """A console for results that cuts nothing off at 80 columns: a cut count would be wrong.

    On a screen, a table that is too wide folds its sentences; if it is still too wide, each row
    becomes a paragraph. Elsewhere nothing is folded, since a folded path can't be copied.
    """

    def __init__(self) -> None:
        shown = sys.stdout is not None and sys.stdout.isatty()
        self._screen = get_terminal_size().columns if shown else None
        super().__init__(width=max(_WIDTH, self._screen or 0))

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as wide as the screen, if there is one."""
        if self._screen and isinstance(renderable, Table):
            for column in renderable.columns:
                if column.no_wrap:
                    cells = (_as_text(cell).cell_len for cell in (column.header, *column.cells))
                    column.min_width = max(cells)
            options = (options or self.options).update(max_width=sys.maxsize)
            least = renderable.__rich_measure__(self, options).minimum
            options = options.update(max_width=self._screen)
            if least > self._screen:
                renderable = Group(*self._list_rows(renderable, self._screen - 2))
        return super().render(renderable, options)

    def _list_rows(self, table: Table, width: int) -> Iterator[Text]:
        """List the first cell of each row, and below it the others, each after its heading."""
        first, *others = table.columns
        rows = zip(*(column.cells for column in others), strict=True)
        for head, cells in zip(first.cells, rows, strict=True):
            yield _as_text(head)
            told = [
                Text.assemble((str(column.header), "dim"), " ", cell)
                for column, cell in zip(others, map(_as_text, cells), strict=True)
                if cell.plain.strip()
            ]
            for line in Text(", ").join(told).wrap(self, width):
                line.rstrip()
                yield Text("  ").append(line)

    def on_broken_pipe(self) -> None:
        """Raise the error; Rich would end the process when a reader closes its end."""
        raise


def _as_text(cell: RenderableType) -> Text:
    if isinstance(cell, Text):
        return cell if cell.plain.isprintable() else _escape(cell)
    # A bar is left out if there is no room for it.
    return Text(one_line(cell) if isinstance(cell, str) else "")


def stdout() -> Console:
    """The console for results; printing raises OSError if stdout takes no more."""
    return _ResultTerminal()


def stderr() -> Console:
    """The console for everything else."""
    return Terminal(stderr=True)


def print_trace(text: str, console: Console) -> None:
    """Print a traceback, indented so that none of its lines looks like one of ours."""
    if log := logs.current():
        log.say("error", text.rstrip().rpartition("\n")[2], exception=text)
        return
    for line in text.splitlines():
        console.print(f"  {line}")


class RunProgress:
    """A progress bar on a terminal, log lines elsewhere. Everything goes to stderr.

    While it is open, it also shows warnings from `memwal`'s Python loggers.
    """

    def __init__(self, *, debug: bool = False, quiet: bool = False) -> None:
        self._console = stderr()
        self._debug = debug
        self._quiet = quiet
        self._made: Display | None = None

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        """Begin a step of `total` units."""
        if not self._quiet:
            self._display().start(what, total, bytes_total)

    def done(self, count: int, bytes_done: int = 0) -> None:
        """Report how many units are done so far."""
        if not self._quiet:
            self._display().done(count, bytes_done)

    def say(self, text: str) -> None:
        """Show a line for people."""
        if not self._quiet:
            self._display().say(text)

    def warn(self, text: str) -> None:
        """Show a line about trouble."""
        self.say(f"warning: {text}")

    def trace(self, text: str) -> None:
        """Show a traceback, only with `--debug`."""
        if self._debug:
            print_trace(text, self._console)

    def clear(self) -> None:
        """Remove the bar, because something else is to be shown."""
        if self._made is not None:
            self._made.stop()
            self._made = None

    def __enter__(self) -> RunProgress:
        self._warnings = _Warnings(self.warn)
        _LOG.addHandler(self._warnings)
        _LOG.propagate = False
        return self

    def __exit__(self, *error: object) -> None:
        _LOG.removeHandler(self._warnings)
        _LOG.propagate = True
        self.clear()

    def _display(self) -> Display:
        if self._made is None:
            # Imported late, since most commands that only read say nothing.
            from memwal.cli.progress import BarDisplay, JsonDisplay, LogDisplay

            if log := logs.current():
                self._made = JsonDisplay(log)
            else:
                terminal = self._console.is_terminal
                self._made = BarDisplay(self._console) if terminal else LogDisplay()
        return self._made


class _Warnings(logging.Handler):
    """Passes on the warnings of the layers below the jobs."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        self._warn(record.getMessage())


def show_report(
    report: JobReport,
    console: Console,
    *,
    show_table: Callable[[Any], Iterable[RenderableType]] | None = None,
    show_tables: Callable[[Sequence[TableReport]], Iterable[RenderableType]] | None = None,
    show_end: Callable[[Sequence[TableReport]], Iterable[RenderableType]] | None = None,
) -> None:
    """Print a job's report.

    `show_table` replaces the function of that name in the report's `show` module; `show_tables`
    shows all tables together, and `show_end` adds what comes after them.
    """
    parts: Iterable[RenderableType]
    if show_tables is not None:
        parts = show_tables(report.tables)
    elif type(report) is JobReport:
        parts = (_describe_table(table, show_table) for table in report.tables)
    else:
        parts = _find_view(report, "show_job")(report)
    for part in parts:
        console.print(part)
    for part in () if show_end is None else show_end(report.tables):
        console.print(part)
    engine = f" on {report.engine.name}" if report.engine and report.engine.name != "none" else ""
    dry = " (dry run: nothing was changed)" if report.dry_run else ""
    text = f"{report.job}: {report.outcome}{engine} in {report.seconds:.2f} s{dry}"
    console.print(Text(text, style=STYLE.get(report.outcome, "red")))


def _find_view(report: JobReport | TableReport, name: str) -> Any:
    """Return what shows a report: out of the module of its class, or of `show` or `job` beside."""
    module = import_module(type(report).__module__)
    if not hasattr(module, name):
        beside = f"{module.__package__}.show"
        module = import_module(beside if find_spec(beside) else f"{module.__package__}.job")
    return getattr(module, name)


def _describe_table(
    report: TableReport, show_table: Callable[[Any], Iterable[RenderableType]] | None
) -> RenderableType:
    parts: list[RenderableType] = [_format_head(report)]
    if type(report) is not TableReport:  # a plain TableReport has only an error
        parts += (show_table or _find_view(report, "show_table"))(report)
    # Shards' own errors replace the table's, which only combines them.
    own = [s.error for s in getattr(report, "shards", ()) if s.error]
    for text in name_some(own, _ERRORS_MAX, "shards") or filter(None, [report.error]):
        parts.append(Text(f"  error: {text}", style="red"))
    for text in getattr(report, "warnings", ()):
        parts.append(Text(f"  warning: {text}", style="yellow"))
    return Group(*parts)


def _format_head(report: TableReport) -> Text:
    head = Text(report.table, style="bold")
    version = report.version_before
    if version is not None:
        after = report.version_after
        changed = f" -> {after}" if after not in (None, version) else ""
        head.append(f"  version {version}{changed}", style="dim")
    return head.append("  ").append(style_outcome(report.outcome))


def show_document(document: Mapping[str, Any], console: Console, indent: int = 0) -> None:
    """Print a decoded document: lists of similar items as tables, the rest line by line.

    Long lists and mappings, such as those by shard, are cut to their first items.
    """
    pad = "  " * indent
    for key, whole in document.items():
        value, left = _cut(whole)
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
                console.print(
                    build_table(value, [_make_column(*cell) for cell in value[0].items()])
                )
        else:
            shown = "-" if value in (None, [], {}) else value
            console.print(Text(f"{pad}{key}: {shown}"))
        if left:
            console.print(Text(f"{pad}  and {left:,} more: --json has them", style="dim"))


def _cut(value: Any) -> tuple[Any, int]:
    """Cut a very long list or mapping; return it and the number of items that are left."""
    if not isinstance(value, Mapping | list) or len(value) <= _ITEMS_MAX:
        return value, 0
    left = len(value) - _ITEMS_MAX
    if isinstance(value, Mapping):
        return dict(islice(value.items(), _ITEMS_MAX)), left
    return value[:_ITEMS_MAX], left


def _make_column(name: str, first: object) -> Column[Mapping[str, Any]]:
    kind = words if isinstance(first, str) else numbers
    return kind(name, lambda item: "-" if item[name] is None else str(item[name]))
