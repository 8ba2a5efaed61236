"""Where a command's result goes, and how its errors map to exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pydantic_core import PydanticSerializationError, to_json
from rich.console import Console

from memwal.cli import process
from memwal.cli.console import RunProgress, print_trace, show_document, show_report, stderr, stdout
from memwal.cli.requests import parse_log_format
from memwal.clock import SystemClock
from memwal.errors import EXIT_CANCELLED, MemWalError, Usage, find_code, unexpected
from memwal.report import DONE, JobReport, TableReport
from memwal.run.metrics.sink import NO_METRICS, Metrics
from memwal.run.metrics.start import start_metrics
from memwal.run.options import choose_run_id
from memwal.run.process import logs, signals
from memwal.run.process.whole_file import whole_file

_CODES_NAMED_MAX = 5
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")

Show = Callable[[Mapping[str, Any], Console], None]


class ReportPlace:
    """Where `--report` goes: a local path, or an object in a bucket."""

    def __init__(self, place: str, storage_options: Callable[[], Mapping[str, str]]) -> None:
        """`storage_options` is called only if `place` is in an object store."""
        self._place = place
        self._options = storage_options
        self._write: Callable[[str], object] | None = None

    def check(self) -> None:
        """Check before the work that the report can be written, else raise Usage or Unsupported.

        Whether a store accepts the object only shows when it is written.
        """
        if "://" in self._place:
            self._write = self._object()
            return
        file = Path(self._place)
        if file.is_dir():
            raise Usage(f"--report {file}: that is a folder")
        if not file.parent.is_dir():
            raise Usage(f"--report {file}: there is no folder {file.parent}")
        self._write = lambda document: _write_whole(file, document.encode())

    def write(self, document: str) -> str | None:
        """Write it, unless `check` refused the place; return what went wrong, if anything."""
        if self._write is None:
            return None
        try:
            self._write(document)
        except (OSError, MemWalError) as error:
            return f"the report can't be written: {error}"
        return None

    def _object(self) -> Callable[[str], object]:
        # Imported late: boto3 takes longer to import than --help may take.
        from memwal.clock import SystemClock
        from memwal.store.objects.opening import is_in_bucket, normalise_uri, open_objects

        if not is_in_bucket(self._place):
            raise Usage("--report takes a path, or an s3://, gs:// or az:// address")
        folder, _, name = normalise_uri(self._place).rpartition("/")
        if folder.endswith(":/") or self._place.endswith("/"):
            raise Usage("--report needs a key: s3://bucket/path/report.json")
        objects = open_objects(folder, self._options(), SystemClock())
        return lambda document: objects.put(name, document.encode())


def _write_whole(file: Path, content: bytes) -> None:
    """Write a file atomically: a run that is killed while it writes leaves the old content."""
    if file.exists() and not file.is_file():
        file.write_bytes(content)  # a pipe or a terminal
        return
    with whole_file(file.resolve()) as out:
        out.write(content)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A command's result: one JSON document, and how it is shown to people.

    `report` is the job's report that it was made from, if any. `tells_errors` says that what people
    see includes the errors of the report's tables.
    """

    content: Mapping[str, Any]
    show: Show = show_document
    report: JobReport | None = None
    tells_errors: bool = False

    @classmethod
    def of(cls, report: JobReport, **views: Any) -> Document:
        """Make a document of a job's report; `views` are the keywords of `show_report`."""
        return cls(
            content=report.to_json(),
            show=lambda content, console: show_report(report, console, **views),
            report=report,
            tells_errors=type(report) is JobReport,
        )

    @cached_property
    def text(self) -> str:
        """What `--json` prints, in ASCII."""
        return format_json(self.content) + "\n"


@dataclass(kw_only=True)
class Output:
    """Where a command's report goes, and how its errors end.

    `shows` is False for a job that has already shown people everything by the time it returns.
    `commits` is False for a command that only looks. `choose_id` gives the run's id; log lines are
    about `table` unless they name another one.
    """

    job: str
    as_json: bool
    debug: bool = False
    place: ReportPlace | None = None
    shows: bool = True
    commits: bool = True
    log_format: str | None = None
    choose_id: Callable[[], str] = choose_run_id
    table: str | None = None
    _clock: SystemClock = field(default_factory=SystemClock)
    _began: float = 0.0
    _run_id: str | None = None
    _facts: Mapping[str, str] = field(default_factory=dict)
    _metrics: Metrics = NO_METRICS
    _records: bool = True

    def run(self, work: Callable[[RunProgress], JobReport | Document]) -> NoReturn:
        """Do the work, show and store what it returns, and exit with its code.

        Tracebacks are shown only with `--debug`. If a requested report can't be written, or stdout
        does not take the result, the exit code is 1.
        """
        logs.describe_run(job=self.job, table=self.table, run_id=None)
        before = logs.current()
        try:
            self._run(work)
        finally:
            if before is None:
                logs.stop()

    def _run(self, work: Callable[[RunProgress], JobReport | Document]) -> NoReturn:
        result = self._guard(work)
        if isinstance(result, JobReport):
            result = result.model_copy(update={"run_id": self._run_id})
        document = Document.of(result) if isinstance(result, JobReport) else result
        report = document.report
        shown = self._show(document)
        if report is not None and not is_quiet(self.as_json):
            seen = document.tells_errors and self.shows and shown and not self.as_json
            once = seen and logs.current() is None and process.is_one_place()
            for table, error in _list_errors(report):
                if once and table is not None:
                    continue  # it has just been shown above
                with logs.about(**(self._facts if table is None else self._describe(table))):
                    stderr().print(f"error: {error}", style="red")
            name_explanation(error for _, error in _list_errors(report))
        stored = self._store(document)
        if self._records:
            self._metrics.record_report(report or JobReport(job=self.job, outcome=DONE))
        self._metrics.close()
        code = 0 if report is None else report.exit_code
        raise SystemExit(code or (0 if stored and shown else 1))

    def take_metrics(self, *, shown: bool) -> Metrics:
        """Return the metrics, for a job that records what it does by itself.

        Raises Unsupported if they are to be `shown` and OpenTelemetry is missing.
        """
        self._records = False
        if shown and self._metrics is NO_METRICS:
            self._metrics = start_metrics(shown=True, warn=self._warn)
        return self._metrics

    def _describe(self, table: TableReport) -> Mapping[str, str]:
        if self.debug and isinstance(table.cause, BaseException):
            trace = "".join(traceback.format_exception(table.cause))
            return {"table": table.table, "exception": trace}
        return {"table": table.table}

    def _guard(self, work: Callable[[RunProgress], JobReport | Document]) -> JobReport | Document:
        signals.wake_main_thread()
        self._began = self._clock.monotonic_seconds()
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # it is ignored under nohup
            signal.signal(signal.SIGHUP, _interrupt)
        try:
            if parse_log_format(self.log_format) == logs.JSON:
                logs.start()
            self._run_id = self.choose_id()
            logs.describe_run(run_id=self._run_id)
            if self.place is not None:
                self.place.check()
            self._metrics = start_metrics(shown=False, warn=self._warn)
            with RunProgress(debug=self.debug, quiet=is_quiet(self.as_json)) as progress:
                return work(progress)
        except KeyboardInterrupt as error:
            stays = "; what was committed stays, run again to go on" if self.commits else ""
            text = f"cancelled{stays}"
            return self._from_error(error, "failed", EXIT_CANCELLED, text)
        except MemWalError as error:
            return self._from_error(error, error.outcome, error.exit_code)
        except SystemExit:
            raise
        except BaseException as error:  # a panic in Lance's Rust code is not an Exception
            known = unexpected(error)
            return self._from_error(error, known.outcome, known.exit_code, str(known))

    def _from_error(
        self, error: BaseException, outcome: str, code: int, text: str | None = None
    ) -> JobReport:
        trace = "".join(traceback.format_exception(error))
        if self.debug and logs.current() is None:
            print_trace(trace, stderr())
        elif self.debug:
            self._facts = {"exception": trace}
        return JobReport(
            job=self.job,
            outcome=outcome,
            error=text or str(error),
            exit_code=code,
            seconds=self._clock.monotonic_seconds() - self._began,
        )

    def _show(self, document: Document) -> bool:
        """Put the result on stdout, and return False if it is lost.

        If stdout does not take it, stderr says so, and what the run did. A stdout that was closed
        from the beginning does not count: nobody expects a result there.
        """
        problem = None
        if self.as_json:
            problem = process.deliver(lambda: sys.stdout.write(document.text))
        elif self.shows or document.report is None:
            problem = process.deliver(lambda: document.show(document.content, stdout()))
        if problem is not None:
            did = (
                ""
                if document.report is None
                else f"; {self.job} has ended, {document.report.outcome}"
            )
            text = f"stdout can't take the result: {problem}{did}"
            stderr().print(text, style="red")
        return problem is None or sys.stdout is None

    def _store(self, document: Document) -> bool:
        problem = None if self.place is None else self.place.write(document.text)
        if problem is not None:
            stderr().print(f"error: {problem}", style="red")
        return problem is None

    def _warn(self, text: str) -> None:
        if not is_quiet(self.as_json):
            stderr().print(f"warning: {text}", style="yellow")


def format_json(content: Mapping[str, Any]) -> str:
    """Format the document, indented; for ten thousand shards ten times as fast as `json`."""
    try:
        text = to_json(content, indent=2).decode()
    except PydanticSerializationError:  # half of a surrogate pair, as in a name that is not UTF-8
        return json.dumps(content, indent=2)
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _list_errors(report: JobReport) -> Iterator[tuple[TableReport | None, str]]:
    """List what went wrong, one line for the run and one for each table."""
    if report.error:
        yield None, report.error
    for table in report.tables:
        if table.error:
            named = table.error.startswith(table.table)
            yield table, table.error if named else f"{table.table}: {table.error}"


def name_explanation(errors: Iterable[str]) -> None:
    """Name the command that explains the codes of the errors, if they have any.

    A log gets none: who reads it may have no terminal.
    """
    codes = list(dict.fromkeys(filter(None, map(find_code, errors))))[:_CODES_NAMED_MAX]
    if codes and logs.current() is None:
        stderr().print(f"what to do: memwal explain {' '.join(codes)}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Only once: a terminal that closes sends it twice, and must not interrupt the shutdown.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def is_quiet(as_json: bool) -> bool:
    """Whether nothing may go to stderr.

    spark-submit sends a Python driver's stderr to stdout, where it would break the document.
    """
    return as_json and "PYSPARK_GATEWAY_PORT" in os.environ
