"""Where a command's result goes, and how its errors end: the one map to exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from rich.console import Console

from memwal.cli import streams
from memwal.cli.console import RunProgress, print_trace, show_document, show_report, stderr, stdout
from memwal.config import (
    DEFAULT_FILE,
    Config,
    Settings,
    asked_file,
    environment_options,
    is_address,
    load_config,
    parse_pairs,
)
from memwal.errors import MemWalError, Usage
from memwal.report import JobReport
from memwal.run.whole_file import whole_file

if TYPE_CHECKING:
    from memwal.jobs.index_catchup.plan import Method

EXIT_CANCELLED = 130
_TABLES_TOLD_MAX = 20

T = TypeVar("T")
Show = Callable[[Mapping[str, Any], Console], None]


class ReportPlace:
    """Where `--report` goes: a local path, or an object on S3."""

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
        file = Path(self._place)
        if file.is_dir():
            raise Usage(f"--report {file}: that is a folder")
        if not file.parent.is_dir():
            raise Usage(f"--report {file}: there is no folder {file.parent}")
        self._write = lambda document: _write_whole(file, document)

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
        from memwal.store.objects import normalise_uri, open_objects

        if not self._place.lower().startswith("s3://"):
            raise Usage("--report takes a path or an s3:// address")
        folder, _, name = normalise_uri(self._place).rpartition("/")
        if folder == "s3:/" or self._place.endswith("/"):
            raise Usage("--report needs a key: s3://bucket/path/report.json")
        objects = open_objects(folder, self._options(), SystemClock())
        return lambda document: objects.put(name, document.encode())


def _write_whole(file: Path, document: str) -> None:
    """A file that is there whole or as it was: a run may be killed while it writes."""
    if file.exists() and not file.is_file():
        file.write_text(document)  # a pipe or a terminal
        return
    with whole_file(file.resolve()) as out:
        out.write(document.encode())


class Output:
    """Where a command's report goes, and how its errors end."""

    def __init__(
        self,
        job: str,
        *,
        as_json: bool,
        debug: bool = False,
        report: ReportPlace | None = None,
        shows: bool = True,
    ) -> None:
        self._job = job
        self._quiet = keeps_quiet(as_json)
        self._json = as_json
        self._debug = debug
        self._place = report
        self._shows = shows

    def run(self, work: Callable[[RunProgress], JobReport]) -> NoReturn:
        """Run the job, print its report, exit with its code. No traceback without `--debug`."""
        self._end(self._guarded(work))

    def so_far(self, report: JobReport) -> None:
        """Store the report of a run that goes on; what is in the way of that shows at its end."""
        if self._place is not None:
            self._place.write(json.dumps(report.to_json(), indent=2) + "\n")

    def run_document(
        self, work: Callable[[RunProgress], dict[str, object]], show: Show | None = None
    ) -> NoReturn:
        """Run a command that reads one thing, print it, exit. Errors end as in `run`.

        `show` prints the document for people; by default it goes out line by line.
        """
        found = self._guarded(work)
        if isinstance(found, JobReport):
            self._end(found)
        document = json.dumps(found, indent=2) + "\n"
        shown = self._shown(document, lambda console: (show or show_document)(found, console))
        raise SystemExit(0 if self._stored(document) and shown else 1)

    def _guarded(self, work: Callable[[RunProgress], T]) -> T | JobReport:
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, _interrupt)
        try:
            if self._place is not None:
                self._place.check()
            with RunProgress(debug=self._debug, quiet=self._quiet) as progress:
                return work(progress)
        except KeyboardInterrupt as error:
            text = "cancelled; what was committed stays, run again to go on"
            return self._from_error(error, "failed", EXIT_CANCELLED, text)
        except MemWalError as error:
            return self._from_error(error, error.outcome, error.exit_code)
        except SystemExit:
            raise
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            text = f"unexpected {type(error).__name__}: {error}"
            return self._from_error(error, "failed", 1, text)

    def _from_error(
        self, error: BaseException, outcome: str, code: int, text: str | None = None
    ) -> JobReport:
        if self._debug:
            print_trace("".join(traceback.format_exception(error)), stderr())
        return JobReport(job=self._job, outcome=outcome, error=text or str(error), exit_code=code)

    def _end(self, report: JobReport) -> NoReturn:
        """Show and store a report, and exit. One that was asked for and is not there is 1."""
        document = json.dumps(report.to_json(), indent=2) + "\n"
        shown = self._shown(document, lambda console: show_report(report, console), report)
        if not self._quiet:
            for error in _errors(report, tables=self._json or not shown):
                stderr().print(f"error: {error}", style="red")
        stored = self._stored(document)
        raise SystemExit(report.exit_code or (0 if stored and shown else 1))

    def _shown(
        self, document: str, show: Callable[[Console], None], report: JobReport | None = None
    ) -> bool:
        """Put the result on stdout; what can't go there is told, with what the run did.

        False where it is lost. Of a stdout that was closed from the beginning nobody expects one.
        """
        if self._json:
            problem = streams.deliver(lambda: sys.stdout.write(document))
        elif self._shows or report is None:
            problem = streams.deliver(lambda: show(stdout()))
        else:
            problem = None
        if problem is not None:
            did = "" if report is None else f"; {_summary(report)}"
            text = f"stdout can't take the result: {problem}{did}"
            stderr().print(text, style="red")
        return problem is None or sys.stdout is None

    def _stored(self, document: str) -> bool:
        problem = None if self._place is None else self._place.write(document)
        if problem is not None:
            stderr().print(f"error: {problem}", style="red")
        return problem is None


def _errors(report: JobReport, *, tables: bool) -> Iterator[str]:
    """What went wrong, in lines: the run, and each table where no shown report tells of it."""
    if report.error:
        yield report.error
    for table in report.tables if tables else ():
        if table.error:
            named = table.error.startswith(table.table)
            yield table.error if named else f"{table.table}: {table.error}"


def _summary(report: JobReport) -> str:
    """What a run did, in a line: nothing that was committed stays untold."""
    tables = []
    for table in report.tables[:_TABLES_TOLD_MAX]:
        before, after = table.version_before, table.version_after
        changed = f", version {before} -> {after}" if after not in (None, before) else ""
        tables.append(f"{table.table} {table.outcome}{changed}")
    more = len(report.tables) - len(tables)
    rest = [f"and {more} more"] if more > 0 else []
    return f"{report.job} has ended, {report.outcome}" + "".join(f"; {t}" for t in tables + rest)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once: a terminal that closes tells it twice, and what is being finished is to be finished.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def given_settings(**values: object) -> Settings:
    """The limits that the command line names; what it leaves out is None."""
    return Settings.model_validate({k: v for k, v in values.items() if v is not None})


def checked_engine(name: str | None) -> str | None:
    """The engine's name, if it is one. Raises Usage."""
    if name not in (None, "auto", "spark", "local"):
        raise Usage(f"--engine {name!r}: expected auto, spark or local")
    return name


def parse_method(name: str) -> Method | None:
    """An index catch-up method, None for auto. Raises Usage."""
    # Imported late: only index-catchup needs it.
    from memwal.jobs.index_catchup.plan import Method

    known = {"auto": None, **{m.value: m for m in Method if m is not Method.NONE}}
    if name not in known:
        raise Usage(f"--method {name!r}: expected {', '.join(known)}")
    return known[name]


_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION_SECONDS_MAX = 36_500 * 86_400.0


def parse_duration(text: str, option: str) -> float:
    """Seconds in `90s`, `10m`, `1h` or `7d`. Raises Usage for anything else."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else None
    if seconds is None or seconds > _DURATION_SECONDS_MAX:
        raise Usage(f"{option} {text!r}: expected a number and a unit, such as 90s, 10m, 1h or 7d")
    return seconds


def keeps_quiet(as_json: bool) -> bool:
    """Whether nothing may go to stderr.

    spark-submit sends a Python driver's stderr to stdout, where it would break the document.
    """
    return as_json and "PYSPARK_GATEWAY_PORT" in os.environ


def load(
    config: str | None, options: list[str] | None, *, quiet: bool = False
) -> tuple[Config, dict[str, str]]:
    """The configuration file, and storage options that beat it: the environment's, then flags'.

    A file that nobody asked for is named on stderr. Raises Usage.
    """
    loaded = load_config(config)
    if not quiet and asked_file(config) is None and Path(DEFAULT_FILE).exists():
        _tell_of_file(loaded)
    pairs = parse_pairs(options or [], "--storage-option")
    return loaded, {**environment_options(), **pairs}


def _tell_of_file(config: Config) -> None:
    """Whose folder this is, is for whoever stands in it to know."""
    file = Path(DEFAULT_FILE).absolute()
    stderr().print(f"configuration: {file}, found in the current folder", style="dim")
    for name in filter(is_address, config.tables):
        stderr().print(
            f"configuration: [tables.{json.dumps(name)}] is an address, which is never "
            "looked up: give the table a name without a slash",
            style="yellow",
        )
