"""`make mutation`: switches each safety check off in a copy of the sources; who notices?

Mutations that name tests come first and run them; the others run seeds of the simulation, up to the
first that fails. Of the tests, only those run that `make test` runs, unless the mutation's level is
nightly.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from tests.mutation import results
from tests.mutation.groups import Change, Mutation, read_all
from tests.mutation.results import Verdict

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("memwal", "jobs", "airflow_plugins", "proto", "scripts", "tests", "pyproject.toml")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "bench", "airflow", "architecture")
_SECONDS_MAX = 300.0
_SECONDS_UNUSED = itertools.count(1)
_OK, _FAILED = 0, 1


class Worker:
    """One copy of the sources, mutated and restored again and again, and a warm pytest."""

    def __init__(self, seeds: int) -> None:
        self.seeds = seeds
        self._temporary = tempfile.TemporaryDirectory(prefix="memwal-mutation-")
        self.folder = Path(self._temporary.name) / "copy"
        self._output = Path(self._temporary.name) / "output"
        copy(self.folder)
        self._warm = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("warm_pytest.py"))],
            cwd=self._temporary.name,
            env={**os.environ, "PYTHONPATH": "", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the warm pytest and remove the copy."""
        self._warm.communicate()
        self._temporary.cleanup()

    def judge(self, mutation: Mutation) -> Verdict:
        """Run what has to notice the mutation."""
        started = time.perf_counter()
        with mutated(self.folder, mutation):
            code, told = self.pytest(words_of(mutation)) if mutation.tests else self._seeds()
        return Verdict(
            noticed=code in (_FAILED, None),
            by="it hangs" if code is None else told,
            seconds=time.perf_counter() - started,
            error=code not in (_OK, _FAILED, None),
        )

    def pytest(self, tests: Sequence[str]) -> tuple[int | None, str]:
        """Exit code, None when it hangs, and what was told about it."""
        quiet = ["-q", "-x", "-p", "no:cacheprovider", "--disable-warnings"]
        # No second try: a mutation is noticed by the first test that fails.
        words = [*quiet, "--force-reruns", "0", *tests]
        request = {
            "folder": str(self.folder),
            "output": str(self._output),
            "seconds_max": _SECONDS_MAX,
            "words": words,
        }
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        print(json.dumps(request), file=self._warm.stdin, flush=True)
        code: int | None = json.loads(self._warm.stdout.readline())["code"]
        return code, _told(self._output.read_text(errors="replace"))

    def _seeds(self) -> tuple[int | None, str]:
        try:
            done = started_in(self.folder, simulation_words(self.seeds))
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, _told(done.stdout + done.stderr)


def words_of(mutation: Mutation) -> tuple[str, ...]:
    """Pytest's arguments: of its tests, those of its level."""
    return (*shlex.split(mutation.tests), *(() if mutation.nightly else ("-m", "not nightly")))


@contextlib.contextmanager
def mutated(root: Path, mutation: Mutation) -> Iterator[None]:
    """The mutation, as long as the block lasts."""
    files = {root / change.file for change in mutation.changes}
    kept = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
    try:
        for change in mutation.changes:
            apply(change, root)
        # Bytecode is known by size and second: no two mutations may look the same.
        for file in files:
            second = next(_SECONDS_UNUSED)
            os.utime(file, (second, second))
        yield
    finally:
        for file, (data, modified) in kept.items():
            file.write_bytes(data)
            os.utime(file, ns=(modified, modified))
        shutil.rmtree(root / ".hypothesis", ignore_errors=True)


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


def simulation_words(seeds: int) -> list[str]:
    """Runs seeds up to the first that fails."""
    words = [sys.executable, "-m", "tests.simulation.simulate", "--until-failure", "--quiet"]
    return [*words, "--processes", "1", "--seeds", str(seeds)]


def started_in(folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run with the copy's modules before those of this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_MAX,
    )


def _told(output: str) -> str:
    """What noticed it: the seed with the violation, or the test."""
    lines = [line.strip() for line in output.splitlines()]
    first = next((t for t in lines if t.startswith(("seed ", "FAILED", "ERROR"))), "")
    if first.startswith("seed "):
        seed, _, text = first.partition(": ")
        return f"{seed}: {text.rpartition('Violation: ')[2]}"
    first = first.removeprefix("FAILED ").partition(" - ")[0]
    return first or output.strip()[-300:]


def baseline(mutations: Iterable[Mutation], worker: Worker) -> str | None:
    """What fails without any mutation; None when all is well, as it has to be.

    One list of tests after the other: helpers of some folders have the same name.
    """
    for words in sorted({words_of(m) for m in mutations if m.tests}):
        code, told = worker.pytest(words)
        if code != _OK:
            return f"{shlex.join(words)}: {told}"
    return None


def main() -> int:
    """Exit code 1 when a mutation survives."""
    arguments = _arguments()
    known = results.names(arguments.table) if arguments.rest else ()
    chosen = [
        m
        for m in read_all()
        if m.name not in known and any(word in m.name for word in arguments.only or [""])
    ]
    # The short ones first: the seeds of the last mutation should not keep one core alone.
    chosen.sort(key=lambda m: not m.tests)
    console = Console(width=None if sys.stdout.isatty() else 160)
    workers = [Worker(arguments.seeds) for _ in range(arguments.processes)]
    try:
        if not arguments.no_baseline:
            failed = baseline(chosen, workers[0])
            if failed is not None:
                console.print("without any mutation, tests fail:", failed, markup=False)
                return 1
        verdicts = _run_all(chosen, workers, console, arguments.table)
    finally:
        for worker in workers:
            worker.close()
    survivors = [m for m in chosen if not verdicts[m].noticed]
    console.print(_table(chosen, verdicts))
    console.print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations were noticed")
    return int(bool(survivors))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--only", action="append", help="names that contain this; again for more")
    parser.add_argument("--no-baseline", action="store_true", help="trust the tests")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--table", type=Path, help="keep the results in this JSON file")
    parser.add_argument("--rest", action="store_true", help="only what is not in the --table yet")
    arguments = parser.parse_args()
    if arguments.rest and arguments.table is None:
        parser.error("--rest: of which --table?")
    if arguments.table is not None and arguments.table.suffix != ".json":
        parser.error(f"--table {arguments.table}: it has to end in .json")
    return arguments


def _run_all(
    chosen: Sequence[Mutation], workers: Sequence[Worker], console: Console, kept: Path | None
) -> dict[Mutation, Verdict]:
    verdicts: dict[Mutation, Verdict] = {}
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def judge(mutation: Mutation) -> Verdict:
        worker = idle.get()
        try:
            return worker.judge(mutation)
        finally:
            idle.put(worker)

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar, ThreadPoolExecutor(len(workers)) as pool:
        task = bar.add_task("mutations", total=len(chosen))
        running: dict[Future[Verdict], Mutation] = {pool.submit(judge, m): m for m in chosen}
        for future in as_completed(running):
            mutation, verdict = running[future], future.result()
            verdicts[mutation] = verdict
            bar.advance(task)
            if kept is not None:
                results.keep(kept, ROOT, mutation, verdict)
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
