"""Runs many seeds on all cores, and tells what they explored."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from tests.simulation.simulate import Outcome


@dataclass(kw_only=True)
class Explored:
    """Sums over seeds. `seen` are the interesting things that came about, `injected` the faults."""

    seeds: int = 0
    steps: int = 0
    checks: int = 0
    seconds: float = 0.0
    weathers: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """One more seed."""
        self.seeds += 1
        self.steps += outcome.steps
        self.checks += outcome.checks
        self.weathers[outcome.setup.weather] += 1
        self.injected += outcome.injected
        self.seen += outcome.seen
        if outcome.failure is not None:
            self.failures[outcome.setup.seed] = outcome.failure

    def document(self) -> dict[str, object]:
        """For a JSON file."""
        return {
            "seeds": self.seeds,
            "steps": self.steps,
            "audits": self.checks,
            "seconds": round(self.seconds, 1),
            "weathers": dict(sorted(self.weathers.items())),
            "faults": dict(sorted(self.injected.items())),
            "seen": dict(sorted(self.seen.items())),
            "failures": self.failures,
        }

    def table(self) -> Table:
        """For people."""
        table = Table("", "", box=None, show_header=False)
        table.add_row("seeds", f"{self.seeds:,} in {self.seconds:.0f} s")
        table.add_row("steps", f"{self.steps:,}")
        table.add_row("audits", f"{self.checks:,}")
        for title, counts in (
            ("weather", self.weathers),
            ("faults", self.injected),
            ("seen", self.seen),
        ):
            for name, count in sorted(counts.items()):
                table.add_row(f"{title}: {name}", f"{count:,}")
        failed = ", ".join(map(str, sorted(self.failures))) or "none"
        table.add_row("failed seeds", failed)
        return table


def explore(
    seeds: Sequence[int], processes: int, console: Console, *, until_failure: bool = False
) -> Explored:
    """Run the seeds, in order when there is one process."""
    explored = Explored()
    started = time.perf_counter()
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=console.quiet) as bar:
        task = bar.add_task("seeds", total=len(seeds))
        for outcome in _outcomes(seeds, processes):
            explored.add(outcome)
            bar.advance(task)
            if until_failure and explored.failures:
                break
    explored.seconds = time.perf_counter() - started
    return explored


def _outcomes(seeds: Sequence[int], processes: int) -> Iterable[Outcome]:
    if processes == 1:
        yield from map(_run, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        try:
            yield from pool.map(_run, seeds, chunksize=8)
        finally:
            pool.shutdown(cancel_futures=True)


def _run(seed: int) -> Outcome:
    # In here: the module that is run as a script imports this one.
    from tests.simulation.simulate import run_seed

    outcome = run_seed(seed)
    outcome.trace = []
    return outcome
