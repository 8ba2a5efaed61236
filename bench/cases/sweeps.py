"""Garbage of a table of a million objects of which little changed: what passes ask for (B7).

A thousand shards are stored; the S3 server's listings make up the rest, as WAL entries.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import lance
import numpy as np

from bench.counted_s3 import CountedS3, Seen
from bench.forged import forge
from bench.harness import Bench, run_memwal
from bench.tables import flush, rows_of
from memwal.format import layout
from memwal.model import ShardId

TITLE = "Garbage of a large table"
CASE = "B7"

_CHANGED = 10
_SHORT = ("--wal", "--grace", "0s", "--allow-short-retention", "--engine", "local", "--json")


def run(bench: Bench) -> None:
    """B7, passes by difference and full sweeps."""
    with CountedS3() as server:
        small = _Table(bench, server, _CHANGED)
        small.sweep()
        table = _Table(bench, server, 100 if bench.quick else 1_000)
        full = table.sweep()
        table.change()
        objects = table.pad()
        lists = [table.run() for _ in range(3)]
        passes = {
            "lists": lists[0],
            "drops": table.run("--execute"),
            "deletes": table.run("--execute"),
            "finds nothing": table.run("--execute"),
        }
        start = [small.run() for _ in lists]
        _told(bench, objects, passes)
        _told_time(bench, objects, lists, start)
        _told_full(bench, objects, table.shards, full)


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """A run of `memwal garbage`."""

    told: dict[str, Any]
    seen: Seen
    cpu_seconds: float

    @property
    def requests(self) -> str:
        """The kinds, and which objects were read."""
        return f"{self.seen.told}; {self.seen.most}"


class _Table:
    """A table on the server of which nothing is to be collected."""

    def __init__(self, bench: Bench, server: CountedS3, shards: int) -> None:
        self.shards = shards
        self._server = server
        table, _ = forge(bench, shards, "--wal")
        dataset = lance.dataset(str(table))
        dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
        # What forging left; on local files that takes less time.
        run_memwal("garbage", table, *_SHORT, "--execute")
        self._ids = sorted(folder.name for folder in (table / layout.MEM_WAL).iterdir())
        self._uri = server.place(table)

    def pad(self) -> int:
        """Let shards have 500 to 1,500 objects; returns how many there are in all. What is made up
        are WAL entries, at positions that no manifest knows of: nothing reads or deletes them.

        A page lists half of the shards, the others take two.
        """
        counts = [round(count) for count in np.linspace(500, 1_500, self.shards)]
        folders = [f"{layout.MEM_WAL}/{shard}" for shard in self._ids]
        paths = (layout.wal_entry_path(ShardId("x"), at) for at in range(1_000, 2_500))
        names = [path.removeprefix(f"{layout.MEM_WAL}/x/") for path in paths]
        self._server.pad(self._uri, dict(zip(folders, counts, strict=True)), names)
        return sum(counts)

    def sweep(self) -> _Pass:
        """The first full sweep that finds nothing to do: the next pass goes by what it saw."""
        self.pad()
        for _ in range(4):
            done = self.run("--execute", "--full")
            if done.told["outcome"] == "nothing_to_do":
                return done
        raise RuntimeError(f"always something to do: {json.dumps(done.told)[:2000]}")

    def change(self) -> None:
        """A generation in each of some shards, merged and covered, and no version without it."""
        self._server.pad(self._uri, {}, ())
        options = self._server.storage_options
        changed = self._ids[:: self.shards // _CHANGED][:_CHANGED]
        for number, shard in enumerate(changed):
            flush(self._uri, shard, rows_of(np.arange(3), number, 0), options=options)
        for job in ("merge", "index-catchup"):
            run_memwal(job, self._uri, "--engine", "local", *self._server.arguments)
        dataset = lance.dataset(self._uri, storage_options=options)
        dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)

    def run(self, *words: str) -> _Pass:
        """A pass, by itself."""
        self._server.forget()
        ended = run_memwal("garbage", self._uri, *_SHORT, *words, *self._server.arguments)
        (told,) = ended.json()["tables"]
        return _Pass(told=told, seen=self._server.seen(), cpu_seconds=ended.cpu_seconds)


def _told(bench: Bench, objects: int, passes: dict[str, _Pass]) -> None:
    """Requests of each pass."""
    for what, done in passes.items():
        told = done.told
        if told["sweep"] != "difference":
            raise RuntimeError(f"not by difference: {json.dumps(told)[:2000]}")
        gone = {"drops": "dropped", "deletes": "deleted"}.get(what)
        if gone is not None and told[gone] < _CHANGED:
            raise RuntimeError(f"nothing {gone}: {json.dumps(told)[:2000]}")
        bench.figure(
            CASE,
            f"{objects:,} objects, {_CHANGED} shards changed: requests of a pass that {what}",
            float(done.seen.requests),
            "",
            **({"at_most": 60.0} if gone is None else {}),
            measured=done.requests,
        )


def _told_time(bench: Bench, objects: int, lists: Sequence[_Pass], start: Sequence[_Pass]) -> None:
    """The processor's time; what starting takes, a small table's pass tells."""
    whole, small = (min(done.cpu_seconds for done in passes) for passes in (lists, start))
    bench.figure(
        CASE,
        f"{objects:,} objects, {_CHANGED} shards changed: processor seconds of a pass that lists, "
        "beyond those of a small table's",
        whole - small,
        "s",
        at_most=1.0,
        measured=f"{whole:.2f} s against {small:.2f} s, start-up included",
        costs={"the S3 server's processor s": lists[0].seen.server_cpu_seconds},
    )


def _told_full(bench: Bench, objects: int, shards: int, full: _Pass) -> None:
    """A full sweep: requests for each 1,000 objects."""
    bench.figure(
        CASE,
        f"full sweep of {objects:,} objects: requests for each 1,000, beyond one a shard",
        (full.seen.requests - shards) / (objects / 1_000),
        "",
        at_most=1.0,
        measured=full.requests,
        costs={"processor s": full.cpu_seconds},
    )
