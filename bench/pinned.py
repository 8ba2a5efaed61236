"""Jobs in a process that has one core, as a worker of one vCPU has, and what they took of it.

`python -m bench.pinned` reads a `Work` from stdin, runs its jobs over the small table, says
that it is ready, begins when it is told a line, and tells what the jobs took, without starting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from memwal.config import Config, ResolvedTable, resolve_table


@dataclass(frozen=True, kw_only=True)
class Work:
    """`jobs` over `uri`, after the same over `warm_up`; `core` is the only one that they get."""

    uri: str
    warm_up: str
    core: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    jobs: Sequence[str] = ("merge",)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Seconds of the clock, and of the process's processor."""

    seconds: float
    cpu_seconds: float


def run_pinned(*work: Work) -> list[Taken]:
    """A process for each, side by side: they begin once all of them are ready."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in work
    ]
    try:
        for worker, each in zip(workers, work, strict=True):
            _tell(worker, json.dumps(asdict(each)))
        for worker in workers:
            assert worker.stdout
            if worker.stdout.readline() != "ready\n":
                raise RuntimeError(f"a worker ended with {worker.wait()} before it was ready")
        for worker in workers:
            _tell(worker, "go")
        return [Taken(**json.loads(worker.communicate()[0])) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _tell(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin
    worker.stdin.write(line + "\n")
    worker.stdin.flush()


def _main() -> None:
    work = Work(**json.loads(sys.stdin.readline()))
    if work.core is not None:
        # Before Lance and Arrow are there: they start as many threads as there are cores.
        os.sched_setaffinity(0, {work.core})
    out, sys.stdout = sys.stdout, sys.stderr
    for do in _prepare(work.jobs, work.warm_up, work.options):
        do()
    prepared = _prepare(work.jobs, work.uri, work.options)
    print("ready", file=out, flush=True)
    sys.stdin.readline()
    used, started = time.process_time(), time.perf_counter()
    for do in prepared:
        do()
    taken = Taken(seconds=time.perf_counter() - started, cpu_seconds=time.process_time() - used)
    print(json.dumps(asdict(taken)), file=out, flush=True)


def _prepare(
    jobs: Sequence[str], uri: str, options: Mapping[str, str]
) -> list[Callable[[], object]]:
    """The jobs of memwal, or what they are compared with: `loop`, `floor`."""
    from bench.merging import floor, pending_uris, survivors, user_loop

    tables = [resolve_table(uri, Config(), options)]
    prepared: list[Callable[[], object]] = []
    for job in jobs:
        if job == "loop":
            prepared.append(partial(user_loop, Path(uri), pending_uris(Path(uri))))
        elif job == "floor":
            pending = pending_uris(Path(uri))
            rows = survivors(pending)
            prepared.append(partial(floor, Path(uri), pending, rows, Path(f"{uri}-out")))
        else:
            prepared.append(partial(_run, job, tables))
    return prepared


def _run(job: str, tables: Sequence[ResolvedTable]) -> None:
    from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
    from memwal.jobs.merge.job import MergeOptions, run_merge
    from memwal.run.progress import Silent

    if job == "merge":
        report = run_merge(MergeOptions(tables=tables, engine="local"), Silent())
    else:
        report = run_index_catchup(IndexCatchupOptions(tables=tables, engine="local"), Silent())
    if report.outcome != "done":
        raise RuntimeError(f"{job}: {report}")


if __name__ == "__main__":
    _main()
