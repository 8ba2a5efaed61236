"""Who is at work on a table, by name and seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_COLLECT = "garbage --execute --grace 2s --allow-short-retention"
COLLECT_ALL = "--execute --wal --retention 0s --grace 0s --allow-short-retention"
JOBS = {
    "merge": 5.0,
    "merge --no-lease": 1.0,
    "index-catchup": 1.0,
    "snapshot": 2.0,
    _COLLECT: 1.0,
    f"{_COLLECT} --wal --retention 4s": 1.0,
    "compaction": 0.5,
    "maintain": 1.0,
    "watch --for 4s --every 0.3s": 1.0,
    "rescue --idle 1s --yes": 0.5,
    "checkpoint": 1.5,
    "verify": 0.3,
    "status": 0.3,
}
READS = {
    "": 3.0,
    "--consistency snapshot": 2.0,
    "--with-wal": 3.0,
    "--key": 1.0,
    "--key --with-wal": 0.5,
    "--search text=row": 0.5,
    "--filter n>=0": 0.5,
    "--checkpoint": 1.5,
}
TOXICS = {
    "latency": 0.3,
    "reset_before": 0.05,
    "reset_after": 0.05,
    "error_before": 0.05,
    "error_after": 0.07,
    "burst": 0.01,
    "truncate": 0.05,
    "wrong_etag": 0.5,
    "lag_seconds": 1.0,
}
PLAIN = {
    "index-catchup": 1.0,
    "compaction": 1.0,
    f"maintain --compaction always {COLLECT_ALL.replace('0s', '2s')}": 1.5,
    f"{_COLLECT} --retention 2s": 1.0,
    "watch --for 4s --every 0.3s": 1.0,
    "checkpoint": 1.0,
    "verify": 0.3,
    "status": 0.3,
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
    follows: bool = False
    """Whether a consumer follows the changes, with a cursor, and keeps a copy."""
    renews: bool = False
    """Comes to rest now and then, to get a new MemWAL."""
    ingests: float = 0.2
    """The part of the writers' sessions that are an ingest's."""
    backups: bool = False
    """Whether it is backed up all the time, and backups are restored."""
    columns: bool = False
    """Whether columns are changed between the writers' sessions."""
    plain: bool = False
    """Whether there is no MemWAL: writers commit to the base, side by side."""
    doubles: bool = False
    """Whether the base holds some keys twice at first."""
    erases: bool = False
    idles: float = 0.0
    """The part of pylance's sessions that put nothing."""
    watched: bool = False
    """Whether two watches do the work, which are killed, ended and started again."""
    on_s3: bool = False
    toxics: Mapping[str, float] = field(default_factory=dict)
    """What happens to requests on their way to S3 and back."""
    lancedb: Sequence[Any] = ()
    """The write spec that LanceDB sets, whose client writes: its kind and arguments."""

    @property
    def suits_lsm_scanner(self) -> bool:
        """Whether pylance's own scanner reads such a table rightly.

        It knows no policies, needs a key, and reads MemTables that were flushed in the background
        by an index of a part of their rows (lance issue 9035). It is told the shards as they were a
        moment before the table, which is wrong after a restore and of a MemWAL that is renewed.
        """
        other = (
            self.policy or self.renews or self.on_s3 or {"restore", "add_column"} & {*self.lance}
        )
        other = other or self.columns or self.doubles or self.plain
        return self.keyed and self.memtable_rows is None and not other

    @property
    def comes_to_rest(self) -> bool:
        """Whether nothing holds what is merged, once all checkpoints are gone."""
        holds = self.clones or self.follows or "branch" in self.lance
        return self.keyed and not self.on_s3 and not holds


def _mixed(chance: random.Random) -> Scenario:
    rows = chance.choice([None, 5, 20])
    return Scenario(
        name="mixed",
        key=chance.choice(["int64", "int32", "utf8", "binary", "utf8+int64"]),
        shards=chance.choice([1, 2, 3]),
        keys=chance.choice([10, 60]),
        memtable_rows=rows,
        moves=0 if rows else chance.choice([0, 0, 250]),
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


def _followed(chance: random.Random) -> Scenario:
    """A consumer of the changes, which Lance's own cleanup knows nothing of."""
    found = chance.choice([_mixed, _counters])(chance)
    lance = {what: weight for what, weight in LANCE.items() if what != "cleanup"}
    return replace(
        found, name="followed", follows=True, clones=False, moves=0, pause_ms=5, keys=10,
        lance={**lance, "add_column": 0.3}, jobs={**JOBS, f"{_COLLECT} --retention 0s": 2.0},
    )  # fmt: skip


def _renewed(chance: random.Random) -> Scenario:
    """Nothing may stay that needs an old version, else it never comes to rest."""
    found = chance.choice([_mixed, _counters])(chance)
    return replace(
        found, name="renewed", renews=True, clones=False, moves=0, pause_ms=5, kills=0.1,
        jobs={job: weight for job, weight in JOBS.items() if job != "checkpoint"},
        reads={r: weight for r, weight in READS.items() if r != "--checkpoint"},
        lance={what: weight for what, weight in LANCE.items() if what != "branch"},
    )  # fmt: skip


def _backed_up(chance: random.Random) -> Scenario:
    """Garbage keeps nothing, for all that a backup copies beside it."""
    found = chance.choice([_mixed, _counters])(chance)
    jobs = {"merge": 1.0, "compaction": 1.0, f"garbage {COLLECT_ALL}": 1.0}
    return replace(
        found, name="backed-up", backups=True, clones=False, moves=0, pause_ms=5, kills=0.3,
        jobs={**jobs, f"maintain {COLLECT_ALL}": 1.0}, job_threads=1, lance={},
        reads={"": 1.0, "--with-wal": 1.0},
    )  # fmt: skip


def _watched(chance: random.Random) -> Scenario:
    found = chance.choice([_mixed, _counters])(chance)
    return replace(
        found, name="watched", watched=True, indexed=not found.policy, clones=False, moves=0,
        jobs={_COLLECT: 1.0, "checkpoint": 0.5}, job_threads=1,
    )  # fmt: skip


def _schema(chance: random.Random) -> Scenario:
    """Columns come to the table while writers that lack them are open."""
    found = chance.choice([_mixed, _counters, _lancedb])(chance)
    return replace(found, name="schema", lance={**LANCE, "add_column": 0.5}, clones=False, moves=0)


def _columns(chance: random.Random) -> Scenario:
    """Merges are few, so that ids of columns are given out again while rows wait."""
    jobs = {"merge": 0.3, "index-catchup": 1.0, "snapshot": 1.0, _COLLECT: 1.0, "verify": 1.0}
    return replace(
        _mixed(chance), name="columns", columns=True, clones=False, moves=0, pause_ms=5, kills=0.4,
        shards=chance.choice([1, 2]), ingests=0.05, jobs=jobs, job_threads=1,
        lance={"optimize_indices": 1.0},
        reads={"": 1.0, "--with-wal": 1.0, "--consistency snapshot": 1.0},
    )  # fmt: skip


def _doubles(chance: random.Random) -> Scenario:
    """Keys were appended twice. Nothing expires the versions before each shard's first merge."""
    return replace(
        _mixed(chance), name="doubles", doubles=True, clones=False, moves=0,
        lance={"compact_files": 1.0, "optimize_indices": 1.0},
    )  # fmt: skip


def _erased(chance: random.Random) -> Scenario:
    """Nothing but the WAL and its claims holds what is erased."""
    return replace(
        _mixed(chance), name="erased", key="utf8", erases=True, idles=0.3, clones=False, moves=0,
        memtable_rows=None, kills=0.3, jobs={"merge": 1.0, _COLLECT: 1.0, "status": 0.3},
        job_threads=1, lance={}, reads={"": 1.0, "--with-wal": 1.0},
    )  # fmt: skip


def _lancedb(chance: random.Random) -> Scenario:
    """It routes by its own spec to shards with ids of its own."""
    found = chance.choice([_mixed, _mixed, _counters])(chance)
    key = chance.choice(["int64", "int32", "utf8"])
    spec = chance.choice([["unsharded"], ["bucket", "k", 2], ["bucket", "k", 5]])
    return replace(found, name="lancedb", key=key, lancedb=spec, shards=1, clones=False, moves=0)


def _s3(chance: random.Random) -> Scenario:
    """On a store of objects: slower, and listings, conditions and errors are others."""
    found = chance.choice([_mixed, _counters, _keyless, _lancedb, _renewed, _wal])(chance)
    return replace(found, name=f"s3 {found.name}", on_s3=True, clones=False, moves=0)


def _plain(chance: random.Random) -> Scenario:
    return Scenario(
        name="plain",
        plain=True,
        key=chance.choice(["int64", "utf8", "utf8+int64"]),
        shards=3,
        jobs=PLAIN,
        reads={line: READS[line] for line in ("", "--key", "--filter n>=0", "--checkpoint")}
        | {"--search text=row": 0.5},
        lance={name: weight for name, weight in LANCE.items() if name != "branch"},
        ingests=0.0,
    )


def _toxic(chance: random.Random) -> Scenario:
    """The same, where requests and replies are lost, throttled, cut and late.

    A put that pylance repeats may be in the WAL twice. Where rows have no key, or add up, they are
    doubled by its own replay, once a writer is killed.
    """
    found = chance.choice([_mixed, _mixed, _lancedb])(chance)
    drawn = {k: chance.uniform(0, most) for k, most in TOXICS.items() if chance.random() < 0.6}
    return replace(
        found, name=f"toxic {found.name}", on_s3=True, toxics=drawn, policy=False, clones=False,
        moves=0,
    )  # fmt: skip


SCENARIOS: dict[str, Callable[[random.Random], Scenario]] = {
    "clone": _clone,
    "followed": _followed,
    "renewed": _renewed,
    "restore": _restore,
    "wal": _wal,
    "deletes": _deletes,
    "s3": _s3,
    "toxic": _toxic,
    "backed-up": _backed_up,
    "watched": _watched,
    "mixed": _mixed,
    "lancedb": _lancedb,
    "schema": _schema,
    "columns": _columns,
    "doubles": _doubles,
    "erased": _erased,
    "counters": _counters,
    "keyless": _keyless,
    "plain": _plain,
}
