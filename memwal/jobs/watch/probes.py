"""What probes of a watch are told, and that they are."""

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
    """The Observer port over a pulse."""

    pulse: Pulse

    def turn(self, tables: Sequence[str]) -> None:
        """The watch goes round."""
        self.pulse.turn(tables)

    def looked(self, look: Look, lag: Lag) -> None:
        """A table was looked at."""
        self.pulse.see(lag.table)

    def failed(self, table: str, error: MemWalError) -> None:
        """A table that was never looked at stays missing."""

    def ended(self, end: RoundEnd) -> None:
        """Nothing is asked of rounds."""

    def forgot(self, table: str) -> None:
        """If it comes back, it has to be looked at."""
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
    """Serve metrics and health while the watch runs, if there is a port; gives what has to observe.

    Raises Usage as an Endpoint does.
    """
    if port is None:
        yield []
        return
    clock = SystemClock()
    pulse = Pulse(clock, every_seconds)
    with Endpoint(Pages(metrics=metrics.exposition, pulse=pulse), clock, host=host, port=port) as e:
        progress.say(f"metrics: {e.url}/metrics, and /healthz and /readyz beside it")
        yield [Probes(pulse)]
