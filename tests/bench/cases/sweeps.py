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

from memwal.format import layout
from tests.bench.counted_s3 import CountedS3, Seen
from tests.bench.forged import forge
from tests.bench.harness import Bench, program, run_process
from tests.bench.tables import flush, rows_of

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
        shapes = sorted(self.seen.shapes.items(), key=lambda item: -item[1])
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.seen.kinds.items()))
        return f"{kinds}; {', '.join(f'{count} {shape}' for shape, count in shapes[:4])}"


class _Table:
    """A table on the server of which nothing is to be collected."""

    def __init__(self, bench: Bench, server: CountedS3, shards: int) -> None:
        self.shards = shards
        self._bench, self._server = bench, server
        table, _ = forge(bench, shards, "--wal")
        dataset = lance.dataset(str(table))
        dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
        # What forging left; on local files that takes less time.
        argv = [program("memwal"), "garbage", table, *_SHORT, "--execute"]
        run_process(argv, bench.new_folder("run"))
        self._ids = sorted(folder.name for folder in (table / layout.MEM_WAL).iterdir())
        self._bucket = server.make_bucket()
        self._uri = f"s3://{self._bucket}/t"
        server.load(table, self._bucket, "t")

    def pad(self) -> int:
        """Let there be a thousand objects a shard, more or less; returns how many in all.

        A page lists half of the shards, the others take two.
        """
        return self._server.pad(self._bucket, f"t/{layout.MEM_WAL}", 500, 1_500)

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
        self._server.pad(self._bucket, f"t/{layout.MEM_WAL}", 0, 0)
        options = self._server.storage_options
        changed = self._ids[:: self.shards // _CHANGED][:_CHANGED]
        for number, shard in enumerate(changed):
            flush(self._uri, shard, rows_of(np.arange(3), number, 0), options=options)
        folder = self._bench.new_folder("upkeep")
        for job in ("merge", "index-catchup"):
            words = [program("memwal"), job, self._uri, "--engine", "local", "--json"]
            run_process([*words, *self._server.arguments], folder)
        dataset = lance.dataset(self._uri, storage_options=options)
        dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)

    def run(self, *words: str) -> _Pass:
        """A pass, by itself."""
        self._server.forget()
        argv = [program("memwal"), "garbage", self._uri, *_SHORT, *words, *self._server.arguments]
        ended = run_process(argv, self._bench.new_folder("run"))
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
