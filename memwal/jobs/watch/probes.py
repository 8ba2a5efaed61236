"""Serves the probes of a watch, and tells them what the watch sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from memwal.clock import SystemClock
from memwal.errors import MemWalError
from memwal.jobs.watch.model import Look
from memwal.jobs.watch.plan import Lag
from memwal.jobs.watch.ports import Observer, RoundEnd
from memwal.run.metrics.sink import Metrics
from memwal.run.process.endpoint import Endpoint, Pages, Pulse
from memwal.run.progress import Progress


@dataclass(frozen=True, slots=True)
class Probes:
    """The Observer port: passes what the watch sees on to a pulse."""

    pulse: Pulse

    def turn(self, tables: Sequence[str]) -> None:
        """Tell the pulse that the watch's loop is running, and for which tables."""
        self.pulse.turn(tables)

    def looked(self, look: Look, lag: Lag) -> None:
        """Tell the pulse that a table was looked at."""
        self.pulse.see(lag.table)

    def failed(self, table: str, error: MemWalError) -> None:
        """Do nothing: a table that was never looked at stays missing."""

    def ended(self, end: RoundEnd) -> None:
        """Do nothing: probes don't depend on rounds."""

    def forgot(self, table: str) -> None:
        """Forget the table; if it comes back, it has to be looked at again."""
        self.pulse.forget(table)


@contextmanager
def serve_probes(
    metrics: Metrics,
    *,
    host: str | None,
    port: int | None,
    every_seconds: float,
    progress: Progress,
) -> Iterator[list[Observer]]:
    """Serve metrics and health while the watch runs, if there is a port.

    Yields the observers that the watch has to have for it. Raises Usage as an Endpoint does.
    """
    if port is None:
        yield []
        return
    clock = SystemClock()
    pulse = Pulse(clock, every_seconds)
    with Endpoint(Pages(metrics=metrics.exposition, pulse=pulse), clock, host=host, port=port) as e:
        progress.say(f"metrics: {e.url}/metrics, and /healthz and /readyz beside it")
        yield [Probes(pulse)]
