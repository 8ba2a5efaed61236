"""Restores under torture: over a table that writers, merges and garbage go on with, and killed.

After a restore, a shard has the puts of its backup, and then those of the writers that opened it
since: of sessions that opened while the restore ran, all or none. A put of before the backup is
there, one between the backup and the restore is not. A writer from before is told at its next put.
Each backup and each read of the table is a moment that is judged by that.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from tests.drills import checker
from tests.drills.backups import (
    APART,
    TRUTH,
    Run,
    back_up,
    list_backups,
    main,
    run_once,
    start_work,
    take_out,
)
from tests.drills.tables import Rows

_RUNS_MAX = 60


@dataclass(kw_only=True)
class Session:
    """Of a writer. Times are nanoseconds; infinity: it never was."""

    opening: int
    opened: float = inf
    begun: dict[int, int] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Restored:
    """When a restore was under way, from its first run's begin to its last run's end."""

    backup: str
    begin: float
    end: float


@dataclass(kw_only=True)
class Verdict:
    """What came of it."""

    runs: list[Run] = field(default_factory=list)
    restores: list[Restored] = field(default_factory=list)
    moments: list[tuple[Run, Rows]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def torture(folder: Path, *, seconds: float, seed: int, shards: int = 2) -> Verdict:
    """Back a table up and restore it, in turn, while it is at work; then judge what was seen."""
    chance, verdict = random.Random(seed), Verdict()
    table, dest = folder / "table", folder / "dest"
    workers = start_work(folder, seconds, seed, shards)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        number = len(verdict.runs)
        verdict.runs.append(back_up(table, dest, f"b{number}", [], None))
        read(table, verdict, f"read{number}")
        time.sleep(chance.random())
        restore(table, dest, chance.choice(list_backups(dest)), verdict, chance)
        read(table, verdict, f"reread{number}")
    for worker in workers:
        worker.join()
    verdict.runs.append(back_up(table, dest, "last", [], None))
    for word in ("verify", "merge"):
        verdict.runs.append(run_once(word, [word, str(table)], None, folder / word))
        read(table, verdict, f"read after {word}")
    judge(folder, dest, verdict, shards)
    return verdict


def restore(table: Path, dest: Path, backup: str, verdict: Verdict, chance: random.Random) -> None:
    """Restore a backup, as often as it takes; some runs are killed."""
    words = ["restore", str(dest), str(table), "--over", "--backup", backup]
    begin = time.monotonic_ns()
    for number in range(_RUNS_MAX):
        deadline = chance.random() * 3 if chance.random() < 0.4 else None
        run = run_once(f"restore {backup}", words, deadline, table.parent / "restore")
        if run.exit not in (None, 4) or number == _RUNS_MAX - 1:
            break
    verdict.runs.append(run)
    verdict.restores.append(Restored(backup=backup, begin=begin, end=run.end))


def read(table: Path, verdict: Verdict, name: str) -> None:
    """Read the table by memwal, its WAL's rows included."""
    out = table.parent / "read"
    run = run_once(name, ["read", str(table), "--with-wal", "--json"], None, out)
    verdict.runs.append(run)
    if run.exit == 0:
        rows = json.loads(out.read_text())["tables"][0]["rows"]
        verdict.moments.append((run, {(row["k"],): row for row in rows}))


def judge(folder: Path, dest: Path, verdict: Verdict, shards: int) -> None:
    """Judge each run by how it ended, and each moment by what was done until then."""
    runs = {run.name: run for run in verdict.runs}
    for run in verdict.runs:
        if run.exit != 0:
            verdict.findings.append(f"{run.name}: exit {run.exit}: {run.said[-600:]}")
    verdict.findings += [
        f"{file.name}: {file.read_text()[-600:]}"
        for file in folder.glob("*-*-*")
        if file.name.split("-")[-2] not in ("5",)  # refused while nobody may open the table
    ]
    held: dict[str, Rows] = {}
    for name in sorted(list_backups(dest), key=lambda name: runs[name].begin):
        place = folder / "taken" / name
        problems = take_out(dest, name, place)
        verdict.findings += [f"{name}: {problem}" for problem in problems]
        if not problems:
            held[name] = checker.read_latest(place, TRUTH, wal=True)
            verdict.moments.append((runs[name], held[name]))
    for number in range(shards):
        sessions = load_sessions(folder / f"writer-{number}")
        for run, rows in verdict.moments:
            problems = judge_moment(sessions, verdict.restores, held, run, rows, number)
            verdict.findings += [f"{run.name}: writer {number}: {found}" for found in problems]
        verdict.findings += [
            f"writer {number}: {found}" for found in find_untold(sessions, verdict.restores)
        ]


def load_sessions(log: Path) -> list[Session]:
    """What a writer did, from its log."""
    sessions: list[Session] = []
    for line in log.read_text().splitlines():
        what, n, at = line.split()
        if what == "opening":
            sessions.append(Session(opening=int(at)))
        elif what == "opened":
            sessions[-1].opened = int(at)
        else:
            getattr(sessions[-1], what)[int(n)] = int(at)
    return sessions


def judge_moment(
    sessions: Sequence[Session],
    restores: Sequence[Restored],
    held: Mapping[str, Rows],
    run: Run,
    rows: Rows,
    number: int,
) -> list[str]:
    """What shows that rows are not those of the last restore and of the puts since."""
    found, head = puts_of(rows, number)
    start = Restored(backup="", begin=-1, end=-1)
    last = next((r for r in reversed(restores) if r.end <= run.begin), start)
    kept, _ = puts_of(held.get(last.backup, {}), number)
    problems = [] if head == max(found, default=-1) else [f"put {max(found)} beside put {head}"]
    if lost := kept - found:
        problems.append(f"{len(lost)} of the puts that {last.backup} has are lost")
    added, possible = found - kept, set[int]()
    newest = max(added, default=-1)
    for session in sessions:
        if session.opened <= last.begin:
            continue
        possible |= {n for n, at in session.begun.items() if at < run.end}
        is_sure = session.opening > last.end or added & session.begun.keys()
        acked = {n for n, at in session.acked.items() if at < run.begin or n < newest}
        if is_sure and (lost := acked - found):
            problems.append(f"acknowledged puts {sorted(lost)[:5]} are lost")
    if extra := added - possible:
        problems.append(f"puts {sorted(extra)[:5]} were cut by the restore of {last.backup!r}")
    return problems


def puts_of(rows: Rows, number: int) -> tuple[set[int], int]:
    """The puts of a writer that have a row, and the last by the row that all of them replace."""
    base = number * APART
    own = {k - base - 1 for (k,) in rows if base < k < base + APART}
    return own, rows.get((base,), {"n": -1})["n"]


def find_untold(sessions: Sequence[Session], restores: Sequence[Restored]) -> list[str]:
    """Puts that were begun after a restore, and acknowledged to a session from before it."""
    return [
        f"put {n} was acknowledged, by a session from before the restore of {done.backup}"
        for done in restores
        for session in sessions
        if session.opened < done.begin
        for n in session.acked
        if session.begun[n] > done.end
    ]


def summary(verdict: Verdict) -> str:
    """A line, and the findings."""
    counts = f"{len(verdict.restores)} restores, {len(verdict.moments)} moments judged"
    return "\n".join([counts, *verdict.findings])


if __name__ == "__main__":
    sys.exit(main("restores", __doc__, torture, summary, lambda verdict: verdict.restores))
