"""A command's metrics, for `--metrics-file` and for where OTEL_* variables say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from memwal.cli.files import check_place, write_whole

if TYPE_CHECKING:
    from memwal.report import JobReport
    from memwal.run.metrics.sink import Metrics

_FILE_BYTES_MAX = 64 * 1024 * 1024
# The collector runs as another user.
_FILE_MODE = 0o644


class Measures:
    """The metrics of one command, from before its work until its report is known."""

    def __init__(self, place: str | None, warn: Callable[[str], None]) -> None:
        """`place` is the file for metrics, if one was asked for."""
        self._place = place
        self._warn = warn
        self._file: Path | None = None
        self._metrics: Metrics | None = None
        self._takes_reports = True

    def begin(self) -> None:
        """Start; raises Usage for an impossible file, Unsupported if OpenTelemetry is missing."""
        from memwal.run.metrics.start import start_metrics

        if self._place is not None:
            self._file = check_place("--metrics-file", self._place)
        self._metrics = start_metrics(shown=self._file is not None, warn=self._warn)

    def take(self, *, shown: bool) -> Metrics:
        """Return the metrics, for a job that records what it does by itself.

        Raises Unsupported if they are to be `shown` and OpenTelemetry is missing.
        """
        from memwal.run.metrics.sink import NO_METRICS
        from memwal.run.metrics.start import start_metrics

        self._takes_reports = False
        if self._metrics is None or (shown and self._metrics is NO_METRICS):
            self._metrics = start_metrics(shown=shown, warn=self._warn)
        return self._metrics

    def end(self, report: JobReport) -> str | None:
        """Record, write and push the result; return what went wrong with the file, if anything."""
        if self._metrics is None:
            return None
        if self._takes_reports:
            self._metrics.record_report(report)
        try:
            if self._file is not None:
                content = self._metrics.exposition(_read(self._file))
                write_whole(self._file, content, _FILE_MODE)
        except OSError as error:
            return f"the metrics can't be written: {error}"
        finally:
            self._metrics.close()
        return None


def _read(file: Path) -> str:
    """Read what earlier runs wrote; if that can't be read, nothing, and counters start over."""
    with suppress(OSError, ValueError):
        if file.is_file() and file.stat().st_size <= _FILE_BYTES_MAX:
            return file.read_text(encoding="utf-8")
    return ""
