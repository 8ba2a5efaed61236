"""Backups under torture: live writers, merges, garbage that keeps nothing, kills, and a full disk.

A writer's n-th put has a row of its own and the row that all its puts replace, both with n. So a
whole backup has, of each writer, the puts up to some n, and nothing else: one moment of its shard.
Not before the run began, and not after it ended: n is bounded by what was acknowledged and begun.
Each backup is taken out of its place by its own list, and read without memwal.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from tests.drills import checker
from tests.drills.tables import Rows, Truth
from tests.torture.actors import run_command
from tests.torture.lsm import decode

_PROCESSES: Any = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.torture.warm"])
APART = 1_000_000
_COLLECT = ["--execute", "--wal", "--retention=0s", "--grace=0s", "--allow-short-retention"]
_LOST = (4,)
_UPKEEP = (["merge"], ["compaction"], ["garbage", *_COLLECT], ["maintain", *_COLLECT])
_SCHEMA = pa.schema(
    [
        pa.field(
            "k",
            pa.int64(),
            nullable=False,
            metadata={"lance-schema:unenforced-primary-key": "true"},
        ),
        pa.field("n", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
TRUTH = Truth(
    keys=("k",), folds=False, indexed=False, base={}, latest=(), wal={}, moments={}, snapshots=()
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a command: when, and how it ended. `exit` is None if it was killed."""

    name: str
    begin: int
    end: int
    exit: int | None
    said: str


@dataclass(kw_only=True)
class Verdict:
    """What came of it."""

    runs: list[Run] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def write(uri: str, folder: str, shard: str, number: int, seconds: float, seed: int) -> None:
    """Sessions of pylance's writer; some end without a flush, or fenced. All is on record."""
    chance, until, n, left = random.Random(seed), time.monotonic() + seconds, 0, []
    with (Path(folder) / f"writer-{number}").open("a", buffering=1) as log:
        while time.monotonic() < until:
            log.write(f"opening {n} {time.monotonic_ns()}\n")
            with suppress(OSError, ValueError, RuntimeError):
                writer = lance.dataset(uri).mem_wal_writer(shard, max_wal_flush_interval_ms=1)
                left.append(writer)  # as it stays where it isn't closed
                log.write(f"opened {n} {time.monotonic_ns()}\n")
                pause_seconds = chance.choice((0, 0, 0, 3))
                for _ in range(chance.randint(1, 6)):
                    rows = [
                        {"k": number * APART + place, "n": n, "text": f"put {n}"}
                        for place in (0, n + 1)
                    ]
                    log.write(f"begun {n} {time.monotonic_ns()}\n")
                    n += 1
                    writer.put(pa.Table.from_pylist(rows, schema=_SCHEMA))
                    log.write(f"acked {n - 1} {time.monotonic_ns()}\n")
                    time.sleep(chance.random() * pause_seconds)
                if chance.random() < 0.8:
                    left.pop().close()
            time.sleep(chance.random() * 0.1)
    os._exit(0)  # what is left in the WAL stays there


def upkeep(uri: str, folder: str, seconds: float, seed: int) -> None:
    """memwal's jobs, one after the other, each in a process of its own."""
    chance, until = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < until:
        job, *options = chance.choice(_UPKEEP)
        out = f"{folder}/job"
        process = start(run_command, [job, uri, *options, "--engine", "local"], {}, out)
        process.join()
        if process.exitcode not in (0, *_LOST):
            shutil.copy(f"{out}.err", f"{folder}/{job}-{process.exitcode}-{time.monotonic_ns()}")


def start(function: Any, *given: Any) -> Any:
    process = _PROCESSES.Process(target=function, args=given)
    process.start()
    return process


def start_work(folder: Path, seconds: float, seed: int, shards: int) -> list[Any]:
    """Make a table, and set its writers and jobs to work on it for so long."""
    folder.mkdir(parents=True)
    chance, table = random.Random(seed), folder / "table"
    ids = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(shards)]
    lance.write_dataset(pa.Table.from_pylist([], schema=_SCHEMA), str(table)).initialize_mem_wal()
    workers = [
        start(write, str(table), str(folder), shard, number, seconds, seed + number)
        for number, shard in enumerate(ids)
    ]
    return [*workers, start(upkeep, str(table), str(folder), seconds, seed)]


def torture(folder: Path, *, seconds: float, seed: int, shards: int = 2) -> Verdict:
    """Back a table up, while all that is going on, and check every backup that is there."""
    chance, verdict = random.Random(seed), Verdict()
    table, dest = folder / "table", folder / "dest"
    workers = start_work(folder, seconds, seed, shards)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        deadline = chance.random() * 1.5 if chance.random() < 0.5 else None
        keep = ["--keep", "6"] if chance.random() < 0.3 else []
        name = f"b{len(verdict.runs)}"
        verdict.runs.append(back_up(table, dest, name, keep, deadline))
    for worker in workers:
        worker.join()
    verdict.runs.append(back_up(table, dest, "last", [], None))
    judge(folder, dest, verdict, shards)
    return verdict


def back_up(
    table: Path,
    dest: Path,
    name: str,
    options: Sequence[str],
    deadline: float | None,
    out: Path | None = None,
) -> Run:
    """One run of a backup, killed after so many seconds if it is not done by then."""
    words = ["backup", str(table), str(dest), "--name", name, "--json", *options]
    return run_once(name, words, deadline, (out or dest.parent) / f"{name}.out")


def run_once(name: str, words: Sequence[str], deadline: float | None, out: Path) -> Run:
    """One run of a command, killed after so many seconds if it is not done by then."""
    begin = time.monotonic_ns()
    process = start(run_command, words, {}, str(out))
    process.join(deadline)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    code = None if process.exitcode == -signal.SIGKILL else process.exitcode
    said = ""
    with suppress(OSError):
        said = out.read_text() + Path(f"{out}.err").read_text()
    return Run(name=name, begin=begin, end=time.monotonic_ns(), exit=code, said=said)


def judge(folder: Path, dest: Path, verdict: Verdict, shards: int) -> None:
    """Check each backup against what its writers did, and each run by how it ended."""
    runs = {run.name: run for run in verdict.runs}
    there = set(list_backups(dest))
    for run in verdict.runs:
        if run.exit not in (0, None):
            verdict.findings.append(f"{run.name}: exit {run.exit}: {run.said[-600:]}")
    for name in sorted(there):
        place = folder / "taken" / name
        problems = take_out(dest, name, place)
        if not problems:
            problems = judge_moment(folder, place, runs[name], shards)
        verdict.checked.append(name)
        verdict.findings += [f"{name}: {problem}" for problem in problems]
    if runs["last"].exit == 0:
        problems = judge_moment(folder, dest, runs["last"], shards)
        verdict.findings += [f"the place itself: {problem}" for problem in problems]
        if "last" not in there:
            verdict.findings.append("last: it ended well, and there is no such backup")


def list_backups(dest: Path) -> list[str]:
    """The names of backups that claim to be whole."""
    return [file.stem for file in (dest / "_maintenance" / "backups").glob("*.pb")]


def read_list(dest: Path, name: str) -> Iterator[tuple[str, int, bytes]]:
    """Path, size and SHA-256 of each object that a backup needs, out of its own list."""
    folder = dest / "_maintenance" / "backups"
    data = (folder / f"{name}.objects").read_bytes()
    if decode((folder / f"{name}.pb").read_bytes())[11] != [hashlib.sha256(data).digest()]:
        raise ValueError("the list is not that of the document")
    for one in map(decode, decode(data)[1]):
        yield one[1][0].decode(), int((one[2] or [0])[0]), one[3][0]


def take_out(dest: Path, name: str, place: Path) -> list[str]:
    """Make a table of what a backup lists, and nothing else; says what is wrong with any of it."""
    problems = []
    for path, size, digest in read_list(dest, name):
        file = dest / path
        if not file.exists():
            problems.append(f"{path} is gone")
            continue
        data = file.read_bytes()
        if len(data) != size or hashlib.sha256(data).digest() != digest:
            problems.append(f"{path} is not what the list says")
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place / path)
    return problems


def judge_moment(folder: Path, table: Path, run: Run, shards: int) -> list[str]:
    """What shows that a table is not one moment of the source while the run was on."""
    try:
        rows = checker.read_latest(table, TRUTH, wal=True)
    except Exception as error:
        return [f"can't be read: {type(error).__name__}: {error}"]
    problems = []
    for number in range(shards):
        found, problem = find_prefix(rows, number)
        problems += [problem] if problem else []
        acked, begun = _read_bounds(folder / f"writer-{number}", run)
        if not acked <= found <= begun:
            problems.append(f"writer {number}: put {found}, expected from {acked} to {begun}")
    return problems


def find_prefix(rows: Rows, number: int) -> tuple[int, str | None]:
    """The last put of a writer, and what contradicts that it is a prefix of all puts."""
    base = number * APART
    own = {k - base - 1: row["n"] for (k,), row in rows.items() if base < k < base + APART}
    last = max(own, default=-1)
    if own != {n: n for n in range(last + 1)}:
        return last, f"writer {number}: of puts up to {last} only {len(own)} rows"
    head = rows.get((base,), {"n": -1})["n"]
    return last, None if head == last else f"writer {number}: put {last} beside put {head}"


def _read_bounds(log: Path, run: Run) -> tuple[int, int]:
    """The last put that was acknowledged before a run, and the last that was begun in it."""
    acked = begun = -1
    for line in log.read_text().splitlines():
        what, n, at = line.split()
        if what == "acked" and int(at) < run.begin:
            acked = int(n)
        if what == "begun" and int(at) < run.end:
            begun = int(n)
    return acked, begun


def fill_up(folder: Path, disk: Path, resize: Callable[[int], None], seed: int) -> list[str]:
    """Back up to a disk that is full half-way, then to a larger one; says what is wrong."""
    shard, table, dest = str(uuid.UUID(int=seed, version=4)), folder / "table", disk / "dest"
    lance.write_dataset(pa.Table.from_pylist([], schema=_SCHEMA), str(table)).initialize_mem_wal()
    start(write, str(table), str(folder), shard, 0, 2, seed).join()
    size = sum(file.stat().st_size for file in table.rglob("*") if file.is_file())
    resize(size // 2)
    verdict = Verdict(runs=[back_up(table, dest, "full", [], None, out=folder)])
    problems = [] if verdict.runs[0].exit == 1 else [f"full: exit {verdict.runs[0].exit}"]
    if "No space left on device" not in verdict.runs[0].said:
        problems.append(f"full: {verdict.runs[0].said}")
    problems += [f"{name} claims to be whole" for name in list_backups(dest)]
    resize(size * 8)
    verdict.runs[0] = back_up(table, dest, "last", [], None, out=folder)
    judge(folder, dest, verdict, 1)
    return problems + verdict.findings


def summary(verdict: Verdict) -> str:
    ended = [run.exit for run in verdict.runs]
    return "\n".join(
        [
            f"{len(ended)} runs, {ended.count(None)} killed; {len(verdict.checked)} whole backups",
            *verdict.findings,
        ]
    )


def main(
    name: str = "backups",
    about: str | None = __doc__,
    run: Callable[..., Any] = torture,
    show: Callable[[Any], str] = summary,
    list_done: Callable[[Any], Sized] = lambda verdict: verdict.checked,
) -> int:
    """A torture from the command line: 1 for findings, and where nothing was done."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.drills.{name}", description=about)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--folder", type=Path, help="default: a new one")
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="drills-"))) / name
    print(f"seed {given.seed}, tables in {folder}")
    verdict = run(folder, seconds=given.seconds, seed=given.seed)
    print(show(verdict))
    return int(bool(verdict.findings) or not list_done(verdict))


if __name__ == "__main__":
    sys.exit(main())
