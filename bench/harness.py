"""What every benchmark case is made of: figures with targets, series to plot, rounds side by side.

A figure is a ratio against something that was measured in the same run, or a count. Its target is
the issue's; whether it is met is computed, never written down.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOLLARS = {"list": 0.005 / 1000, "put": 0.005 / 1000, "get": 0.0004 / 1000}
"""What object stores charge for a request, as in the dashboard."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """`at_most` or `at_least` that value."""

    at_most: float | None = None
    at_least: float | None = None

    def is_met(self, value: float) -> bool:
        """Whether the value is on the right side."""
        if self.at_most is not None:
            return value <= self.at_most
        return self.at_least is None or value >= self.at_least

    def text(self) -> str:
        """As `<= 1.6`."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return "" if self.at_least is None else f">= {self.at_least:g}"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the result.

    `value` in `unit` ("x" for a ratio), against `target` if there is one. `measured` tells both
    sides of a ratio in words ("2.1 s against 13.0 s"). `costs` stand beside the time: bytes read
    and written, write amplification, commits, object-store requests.
    """

    case: str
    what: str
    value: float
    unit: str
    measured: str = ""
    target: Target = Target()
    costs: Mapping[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """None where there is no target."""
        return self.target.is_met(self.value) if self.target.text() else None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Something to plot: y over x. Series of one `plot` share its axes."""

    plot: str
    name: str
    x_label: str
    y_label: str
    points: Sequence[tuple[float, float]]
    log: bool = False


@dataclass(kw_only=True)
class Bench:
    """What a case gets, and what it leaves: `figures` and `series`.

    `quick` asks for sizes that let all cases together end within five minutes.
    """

    folder: Path
    quick: bool
    rounds: int
    figures: list[Figure] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)

    def figure(self, case: str, what: str, value: float, unit: str, **rest: Any) -> None:
        """Add a Figure; `at_most` or `at_least` in `rest` make its target."""
        target = Target(at_most=rest.pop("at_most", None), at_least=rest.pop("at_least", None))
        made = Figure(case=case, what=what, value=value, unit=unit, target=target, **rest)
        self.figures.append(made)
        self.say(f"{what}: {value:.3g} {unit} {target.text()} {made.measured}")

    def ratio(
        self,
        case: str,
        what: str,
        seconds: Mapping[str, float],
        ours: str,
        theirs: str,
        *,
        inverse: bool = False,
        **rest: Any,
    ) -> None:
        """Add a Figure: how many times as long ours takes, or with `inverse` theirs."""
        value = seconds[ours] / seconds[theirs]
        measured = f"{seconds[ours]:.3g} s against {seconds[theirs]:.3g} s"
        self.figure(case, what, 1 / value if inverse else value, "x", measured=measured, **rest)

    def plot(self, plot: str, name: str, x: str, y: str, points: Any, *, log: bool = False) -> None:
        """Add a Series."""
        pairs = [(float(a), float(b)) for a, b in points]
        self.series.append(
            Series(plot=plot, name=name, x_label=x, y_label=y, points=pairs, log=log)
        )

    def say(self, text: str) -> None:
        """Progress, on stderr."""
        print(f"  {text}", file=sys.stderr, flush=True)

    def new_folder(self, name: str) -> Path:
        """A folder that did not exist."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    def copy(self, table: Path) -> Path:
        """A copy of a local table. Hard links: Lance never writes into a file that is there."""
        target = self.new_folder("copy") / table.name
        shutil.copytree(table, target, copy_function=os.link)
        return target

    def side_by_side(
        self, runs: Mapping[str, Callable[[], object]], rounds: int | None = None
    ) -> dict[str, float]:
        """Median seconds of each, run in turns, in an order that rotates from round to round.

        A callable may return its own seconds (a float), to leave its preparation out.
        """
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        names = list(runs)
        for number in range(rounds or self.rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                started = time.perf_counter()
                told = runs[name]()
                taken = time.perf_counter() - started
                seconds[name].append(told if isinstance(told, float) else taken)
        return {name: statistics.median(values) for name, values in seconds.items()}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A process that was run to its end."""

    seconds: float
    cpu_seconds: float
    stdout: str

    def json(self) -> Any:
        """What it printed, parsed."""
        return json.loads(self.stdout)


def run_process(argv: Sequence[object], **env: str) -> Ended:
    """Run a program of this environment.

    Raises RuntimeError with its words when it ends with another code than 0.
    """
    words = [str(word) for word in argv]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.perf_counter()
        process = subprocess.Popen(words, env={**os.environ, **env}, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            told = f"{' '.join(words)} ended with {process.returncode}"
            raise RuntimeError(f"{told}:\n{err.read()[-4000:]}")
        cpu_seconds = usage.ru_utime + usage.ru_stime
        return Ended(seconds=seconds, cpu_seconds=cpu_seconds, stdout=out.read())


def run_memwal(*words: object, **env: str) -> Ended:
    """Run the command, as `run_process` does."""
    return run_process([program("memwal"), *words], **env)


# What wait4 tells of a child's memory is no use: after a vfork it starts at the size of this
# process, which holds the rows that it made. So the child writes down its own peak as it ends.
_PEAK = """
import atexit, sys

def peak():
    with open("/proc/self/status") as status, open(sys.argv[1], "w") as file:
        file.write(next(line.split()[1] for line in status if line.startswith("VmHWM:")))

atexit.register(peak)
"""
MEMWAL = """
from memwal.cli import main
main(sys.argv[2:])
"""


def run_peak(script: str, *words: object, **env: str) -> tuple[int, Ended]:
    """Run a script, as `MEMWAL`; its peak memory in bytes, without its children's."""
    with tempfile.NamedTemporaryFile("r") as file:
        ended = run_process([sys.executable, "-c", _PEAK + script, file.name, *words], **env)
        return int(file.read()) * 1024, ended


def program(name: str) -> str:
    """A program of the environment that runs this, as `memwal`."""
    return str(Path(sys.executable).parent / name)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
