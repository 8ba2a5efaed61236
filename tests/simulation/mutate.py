"""`make mutation`: switches each safety check off in a copy of the sources; who notices?

Mutations that name tests come first and run them; the others run seeds of the simulation, up to the
first that fails.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from mutations import MUTATIONS, Change, Mutation
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("memwal", "jobs", "proto", "scripts", "tests", "pyproject.toml")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "bench", "airflow", "architecture")
_SECONDS_MAX = 300.0
_OK, _FAILED = 0, 1


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a mutation was noticed, and by what. `error` when nothing can be said."""

    noticed: bool
    by: str
    seconds: float
    error: bool = False

    @property
    def word(self) -> str:
        """For the table."""
        if self.error:
            return "ERROR"
        return "noticed" if self.noticed else "SURVIVED"


def run(mutation: Mutation, seeds: int) -> Verdict:
    """Run what has to notice the mutation."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="memwal-mutation-") as folder:
        copy(Path(folder))
        for change in mutation.changes:
            apply(change, Path(folder))
        words = pytest_words(mutation.tests) if mutation.tests else simulation_words(seeds)
        try:
            done = started_in(Path(folder), words)
        except subprocess.TimeoutExpired:
            return Verdict(noticed=True, by="it hangs", seconds=time.perf_counter() - started)
    return Verdict(
        noticed=done.returncode == _FAILED,
        by=_told(done),
        seconds=time.perf_counter() - started,
        error=done.returncode not in (_OK, _FAILED),
    )


def copy(folder: Path) -> None:
    """The sources and their tests."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=_LEFT_OUT)
        else:
            shutil.copy(source, folder / name)


def apply(change: Change, root: Path) -> None:
    """Change the one place. Raises ValueError when it is not there exactly once."""
    file = root / change.file
    text = file.read_text()
    if text.count(change.before) != 1:
        raise ValueError(f"{text.count(change.before)} places in {change.file}: {change.before}")
    file.write_text(text.replace(change.before, change.after))


def pytest_words(tests: str) -> list[str]:
    """Runs tests up to the first that fails."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return [*words, *shlex.split(tests)]


def simulation_words(seeds: int) -> list[str]:
    """Runs seeds up to the first that fails."""
    words = [sys.executable, "tests/simulation/simulate.py", "--until-failure", "--quiet"]
    return [*words, "--processes", "1", "--seeds", str(seeds)]


def started_in(folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run with the copy's modules before those of this checkout."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'tests'}"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_MAX,
    )


def _told(done: subprocess.CompletedProcess[str]) -> str:
    """What noticed it: the seed with the violation, or the test."""
    lines = [line.strip() for line in done.stdout.splitlines()]
    first = next((t for t in lines if t.startswith(("seed ", "FAILED", "ERROR"))), "")
    if first.startswith("seed "):
        seed, _, text = first.partition(": ")
        return f"{seed}: {text.rpartition('Violation: ')[2]}"
    first = first.removeprefix("FAILED ").partition(" - ")[0]
    return first or (done.stdout + done.stderr).strip()[-300:]


def baseline(mutations: Iterable[Mutation]) -> str | None:
    """What fails without any mutation; None when all is well, as it has to be."""
    paths = {m.tests.split(" -k ")[0] for m in mutations if m.tests}
    words = pytest_words(" ".join(sorted({w for path in paths for w in path.split()})))
    with tempfile.TemporaryDirectory(prefix="memwal-mutation-") as folder:
        copy(Path(folder))
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path(folder) / 'tests'}"},
            capture_output=True,
            text=True,
            check=False,
        )
    return None if done.returncode == _OK else done.stdout[-3000:]


def main() -> int:
    """Exit code 1 when a mutation survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--no-baseline", action="store_true", help="trust the tests")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if arguments.only in m.name]
    # The short ones first: the seeds of the last mutation should not keep one core alone.
    chosen.sort(key=lambda m: not m.tests)
    console = Console(width=None if sys.stdout.isatty() else 160)
    if not arguments.no_baseline and any(m.tests for m in chosen):
        failed = baseline(chosen)
        if failed is not None:
            console.print("without any mutation, tests fail:", failed, markup=False)
            return 1
    verdicts = _run_all(chosen, arguments.seeds, console)
    survivors = [m for m in chosen if not verdicts[m].noticed]
    console.print(_table(chosen, verdicts))
    console.print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations were noticed")
    return int(bool(survivors))


def _run_all(chosen: Sequence[Mutation], seeds: int, console: Console) -> dict[Mutation, Verdict]:
    verdicts: dict[Mutation, Verdict] = {}
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        task = bar.add_task("mutations", total=len(chosen))
        running: dict[Future[Verdict], Mutation] = {pool.submit(run, m, seeds): m for m in chosen}
        for future in as_completed(running):
            mutation, verdict = running[future], future.result()
            verdicts[mutation] = verdict
            bar.advance(task)
            if not verdict.noticed:
                bar.console.print(f"{verdict.word}: {mutation.name} {verdict.by}", markup=False)
    return verdicts


def _table(chosen: Sequence[Mutation], verdicts: dict[Mutation, Verdict]) -> Table:
    table = Table("mutation", "", "seconds", "by", box=None)
    for mutation in chosen:
        verdict = verdicts[mutation]
        by = verdict.by.replace("[", "\\[")[:90]
        table.add_row(mutation.name, verdict.word, f"{verdict.seconds:.0f}", by)
    return table


if __name__ == "__main__":
    sys.exit(main())
