"""Where a command's result goes, and how its errors end: the one map to exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import Any, NoReturn

from pydantic_core import PydanticSerializationError, to_json
from rich.console import Console

from memwal.cli import streams
from memwal.cli.console import RunProgress, print_trace, show_document, show_report, stderr, stdout
from memwal.cli.files import check_place, write_whole
from memwal.cli.measures import Measures
from memwal.cli.parse import parse_log_format
from memwal.clock import SystemClock
from memwal.errors import EXIT_CANCELLED, MemWalError, Usage, unexpected
from memwal.report import DONE, JobReport, TableReport
from memwal.run.options import choose_run_id
from memwal.run.process import logs, signals

_TABLES_NAMED_MAX = 20
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")

Show = Callable[[Mapping[str, Any], Console], None]


class ReportPlace:
    """Where `--report` goes: a local path, or an object in a bucket."""

    def __init__(self, place: str, storage_options: Callable[[], Mapping[str, str]]) -> None:
        """`storage_options` are looked up when an object store is named."""
        self._place = place
        self._options = storage_options
        self._write: Callable[[str], object] | None = None

    def check(self) -> None:
        """Before the work, not after it: a report that can't be written is a wrong request.

        Raises Usage, Unsupported. Whether a store takes the object shows when it is written.
        """
        if "://" in self._place:
            self._write = self._object()
            return
        file = check_place("--report", self._place)
        self._write = lambda document: write_whole(file, document.encode())

    def write(self, document: str) -> str | None:
        """Write it, unless `check` refused the place; what went wrong, if anything did."""
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


_LOOKING = frozenset(("doctor", "inspect", "read", "runs", "shard", "status", "verify", "wait"))
"""Commands that commit nothing."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a command has to say: one JSON document, and how people see it.

    `report` is the job's report that it was made of, if it was; `tells_errors`: what people see
    has those of its tables.
    """

    content: Mapping[str, Any]
    show: Show = show_document
    report: JobReport | None = None
    tells_errors: bool = False

    @classmethod
    def of(cls, report: JobReport, **views: Any) -> Document:
        """A job's report as a document. `views` are those of `show_report`."""
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

    `shows` is False for a job that has shown people everything by the time it returns. `choose_id`
    gives the run's id; `table` is the one that lines of the log are about unless they say another.
    """

    job: str
    as_json: bool
    debug: bool = False
    place: ReportPlace | None = None
    shows: bool = True
    metrics_file: str | None = None
    log_format: str | None = None
    choose_id: Callable[[], str] = choose_run_id
    table: str | None = None
    _clock: SystemClock = field(default_factory=SystemClock)
    _began: float = 0.0
    _run_id: str | None = None
    _facts: Mapping[str, str] = field(default_factory=dict)

    def run(self, work: Callable[[RunProgress], JobReport | Document]) -> NoReturn:
        """Do the work, show and store what it returns, and exit with its code.

        No traceback without `--debug`. A report that was asked for and can't be written, or a
        result that stdout does not take, is exit code 1.
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
            result = self._stamp(result)
        document = Document.of(result) if isinstance(result, JobReport) else result
        report = document.report
        shown = self._show(document)
        if report is not None and not is_quiet(self.as_json):
            seen = document.tells_errors and self.shows and shown and not self.as_json
            once = seen and logs.current() is None and streams.is_one_place()
            for table, error in _list_errors(report):
                if once and table is not None:
                    continue  # it stands just above
                with logs.about(**(self._facts if table is None else self._describe(table))):
                    stderr().print(f"error: {error}", style="red")
        stored = all([self._store(document), self._measure(report)])
        code = 0 if report is None else report.exit_code
        raise SystemExit(code or (0 if stored and shown else 1))

    @cached_property
    def measures(self) -> Measures:
        """What the command measures."""
        return Measures(self.metrics_file, self._warn)

    def so_far(self, report: JobReport) -> None:
        """Store the report of a run that goes on; a problem with that shows at its end."""
        if self.place is not None:
            self.place.write(Document.of(self._stamp(report)).text)

    def _describe(self, table: TableReport) -> Mapping[str, str]:
        if self.debug and isinstance(table.cause, BaseException):
            trace = "".join(traceback.format_exception(table.cause))
            return {"table": table.table, "exception": trace}
        return {"table": table.table}

    def _stamp(self, report: JobReport) -> JobReport:
        return report.model_copy(update={"run_id": self._run_id})

    def _guard(self, work: Callable[[RunProgress], JobReport | Document]) -> JobReport | Document:
        signals.wake_main_thread()
        self._began = self._clock.monotonic_seconds()
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, _interrupt)
        try:
            if parse_log_format(self.log_format) == logs.JSON:
                logs.start()
            self._run_id = self.choose_id()
            logs.describe_run(run_id=self._run_id)
            if self.place is not None:
                self.place.check()
            self.measures.begin()
            with RunProgress(debug=self.debug, quiet=is_quiet(self.as_json)) as progress:
                return work(progress)
        except KeyboardInterrupt as error:
            text = "cancelled"
            if self.job not in _LOOKING:
                text += "; what was committed stays, run again to go on"
            return self._from_error(error, "failed", EXIT_CANCELLED, text)
        except MemWalError as error:
            return self._from_error(error, error.outcome, error.exit_code)
        except SystemExit:
            raise
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
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
        """Put the result on stdout. What can't go there is said on stderr, with what the run did.

        False where it is lost. Of a stdout that was closed from the beginning nobody expects one.
        """
        problem = None
        if self.as_json:
            problem = streams.deliver(lambda: sys.stdout.write(document.text))
        elif self.shows or document.report is None:
            problem = streams.deliver(lambda: document.show(document.content, stdout()))
        if problem is not None:
            did = "" if document.report is None else f"; {_summarise(document.report)}"
            text = f"stdout can't take the result: {problem}{did}"
            stderr().print(text, style="red")
        return problem is None or sys.stdout is None

    def _store(self, document: Document) -> bool:
        problem = None if self.place is None else self.place.write(document.text)
        if problem is not None:
            stderr().print(f"error: {problem}", style="red")
        return problem is None

    def _measure(self, report: JobReport | None) -> bool:
        problem = self.measures.end(report or JobReport(job=self.job, outcome=DONE))
        if problem is not None:
            stderr().print(f"error: {problem}", style="red")
        return problem is None

    def _warn(self, text: str) -> None:
        if not is_quiet(self.as_json):
            stderr().print(f"warning: {text}", style="yellow")


def format_json(content: Mapping[str, Any]) -> str:
    """The document, indented. Of ten thousand shards ten times as fast as `json` does it."""
    try:
        text = to_json(content, indent=2).decode()
    except PydanticSerializationError:  # half of a surrogate pair, as in a name that is not UTF-8
        return json.dumps(content, indent=2)
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _list_errors(report: JobReport) -> Iterator[tuple[TableReport | None, str]]:
    """What went wrong, each in a line: the run, and each table."""
    if report.error:
        yield None, report.error
    for table in report.tables:
        if table.error:
            named = table.error.startswith(table.table)
            yield table, table.error if named else f"{table.table}: {table.error}"


def _summarise(report: JobReport) -> str:
    """What a run did, in a line: with everything that it committed."""
    tables = []
    for table in report.tables[:_TABLES_NAMED_MAX]:
        before, after = table.version_before, table.version_after
        changed = f", version {before} -> {after}" if after not in (None, before) else ""
        tables.append(f"{table.table} {table.outcome}{changed}")
    more = len(report.tables) - len(tables)
    rest = [f"and {more} more"] if more > 0 else []
    return f"{report.job} has ended, {report.outcome}" + "".join(f"; {t}" for t in tables + rest)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once: a terminal that closes sends it twice, and what is being finished has to get there.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def is_quiet(as_json: bool) -> bool:
    """Whether nothing may go to stderr.

    spark-submit sends a Python driver's stderr to stdout, where it would break the document.
    """
    return as_json and "PYSPARK_GATEWAY_PORT" in os.environ
