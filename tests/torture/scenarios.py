"""Who is at work on a table, by name and seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

_COLLECT = "garbage --execute --grace 2s --allow-short-retention"
JOBS = {
    "merge": 6.0,
    "index-catchup": 1.0,
    "snapshot": 2.0,
    _COLLECT: 1.0,
    f"{_COLLECT} --wal --retention 4s": 1.0,
    "compaction": 0.5,
    "maintain": 1.0,
    "watch --for 4s --every 0.3s": 1.0,
    "rescue --idle 1s --yes": 0.5,
    "checkpoint": 1.5,
}
READS = {
    "": 3.0,
    "--consistency snapshot": 2.0,
    "--with-wal": 3.0,
    "--key": 1.0,
    "--key --with-wal": 0.5,
    "--search text=row": 0.5,
    "--checkpoint": 1.5,
}
LANCE = {"compact_files": 1.0, "optimize_indices": 1.0, "branch": 0.2, "cleanup": 0.7}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A table, its writers, and what else happens to it."""

    name: str
    key: str = "int64"
    policy: bool = False
    keyed: bool = True
    shards: int = 2
    keys: int = 40
    """Of each shard."""
    memtable_rows: int | None = None
    moves: int = 0
    """Keys that some sessions put in one go, before they delete as many others."""
    pause_ms: int = 20
    """About as long as a writer waits between two puts."""
    indexed: bool = True
    jobs: Mapping[str, float] = field(default_factory=lambda: JOBS)
    job_threads: int = 2
    reads: Mapping[str, float] = field(default_factory=lambda: READS)
    lance: Mapping[str, float] = field(default_factory=lambda: LANCE)
    kills: float = 0.15
    """The part of processes that are killed."""
    stalls: float = 0.1
    """The part of processes that are stopped for a while."""
    clones: bool = False


def _mixed(chance: random.Random) -> Scenario:
    return Scenario(
        name="mixed",
        key=chance.choice(["int64", "int32", "utf8", "binary", "utf8+int64"]),
        shards=chance.choice([1, 2, 3]),
        keys=chance.choice([10, 60]),
        memtable_rows=chance.choice([None, 5, 20]),
        moves=chance.choice([0, 0, 250]),
        pause_ms=chance.choice([5, 20, 80]),
        clones=chance.random() < 0.2,
    )


def _counters(chance: random.Random) -> Scenario:
    return replace(
        _mixed(chance),
        name="counters",
        key="utf8",
        policy=True,
        indexed=False,
        moves=0,
        keys=10,
        clones=False,
    )


def _keyless(chance: random.Random) -> Scenario:
    reads = {r: weight for r, weight in READS.items() if "--key" not in r}
    return replace(_mixed(chance), name="keyless", keyed=False, reads=reads, moves=0)


def _wal(chance: random.Random) -> Scenario:
    """Readers of the WAL beside writers that flush as they go."""
    found = chance.choice([_counters, _keyless])(chance)
    return replace(
        found, name="wal", memtable_rows=chance.choice([5, 8]), pause_ms=5, shards=1,
        reads={"--with-wal": 1.0}, jobs={"merge": 1.0}, job_threads=1, lance={}, clones=False,
    )  # fmt: skip


def _restore(chance: random.Random) -> Scenario:
    """A user goes back to older versions, and changes their mind, while everything runs."""
    return replace(
        _mixed(chance), name="restore", moves=0, shards=1, pause_ms=5, clones=False,
        job_threads=1, jobs={"snapshot": 5.0, _COLLECT: 0.5, "merge": 0.3},
        lance={"restore": 1.0}, reads={"": 3.0, "--consistency snapshot": 1.0, "--with-wal": 1.0},
    )  # fmt: skip


def _deletes(chance: random.Random) -> Scenario:
    """Rows move from key to key, more than a commit's deletes at a time."""
    return replace(
        _mixed(chance), name="deletes", key=chance.choice(["int64", "utf8"]), moves=300, keys=900,
        shards=1, pause_ms=20, memtable_rows=None, clones=False, lance={},
        jobs={"merge": 3.0, "snapshot": 1.0}, reads={"--consistency snapshot": 1.0, "": 1.0},
    )  # fmt: skip


def _clone(chance: random.Random) -> Scenario:
    return replace(_mixed(chance), name="clone", clones=True, moves=0, pause_ms=5)


SCENARIOS: dict[str, Callable[[random.Random], Scenario]] = {
    "clone": _clone,
    "restore": _restore,
    "wal": _wal,
    "deletes": _deletes,
    "mixed": _mixed,
    "counters": _counters,
    "keyless": _keyless,
}
