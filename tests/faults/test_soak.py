"""Writers that never stop, all jobs in a loop: reads stay right, storage stays bounded.

`MEMWAL_SOAK_SECONDS` says how long (default 8). Reads are checked after every round, when the
writers have closed: then everything they acknowledged is in a generation that a reader can see.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from memwal.config import ResolvedTable, Settings
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.request import MaintainRequest
from memwal.report import DONE, NOTHING_TO_DO
from tests.support.builders import Delete, Effects, Put, Table, apply, make_table, same_rows
from tests.support.progress import Quiet
from tests.support.s3server import S3Server

pytestmark = [pytest.mark.integration, pytest.mark.races]

SECONDS = float(os.environ.get("MEMWAL_SOAK_SECONDS", "8"))
ROUND_SECONDS = 4.0
SHARDS = 3
KEYS = 400


class Writer(threading.Thread):
    """One shard's writer: puts, overwrites and deletes until it is told to close."""

    def __init__(
        self, table: Table, number: int, effects: Effects, seed: int, pause_seconds: float
    ) -> None:
        super().__init__(name=f"writer-{number}")
        self.pause_seconds = pause_seconds
        self.table, self.shard, self.effects = table, table.shards[number], effects
        self.keys = range(number, KEYS, SHARDS)
        self.chance = random.Random(seed)
        self.closing = threading.Event()
        self.error: BaseException | None = None
        self.puts = 0

    def run(self) -> None:
        try:
            schema = self.table.dataset.schema
            with self.table.writer(self.shard, max_memtable_rows=60) as writer:
                while not self.closing.is_set():
                    keys = self.chance.sample(self.keys, 20)
                    self._do(writer, schema, Put(keys, self.chance.randrange(10**6)))
                    self._do(writer, schema, Delete(self.chance.sample(self.keys, 5)))
                    self.puts += 1
                    time.sleep(self.pause_seconds)
        except BaseException as error:
            self.error = error

    def _do(self, writer: object, schema: object, op: Put | Delete) -> None:
        apply(self.table, writer, schema, op, self.effects)


def maintain(table: Table) -> None:
    resolved = ResolvedTable(
        name=table.uri, uri=table.uri, settings=Settings(), storage_options=table.options
    )
    report = run_maintain(
        MaintainOptions(
            tables=[resolved],
            engine="local",
            request=MaintainRequest(
                compaction="always",
                execute=True,
                retention_seconds=0.0,
                grace_seconds=0.5,
                wal=True,
                allow_short_retention=True,
            ),
        ),
        Quiet(),
    )
    assert report.outcome in (DONE, NOTHING_TO_DO), [t.error for t in report.tables]


def stored(table: Table) -> dict[str, int]:
    """Objects by kind."""
    counts = {"generations": 0, "wal": 0, "versions": 0, "objects": 0}
    folders = set()
    for info in table.stores.objects.list(""):
        counts["objects"] += 1
        parts = info.path.split("/")
        if "_gen_" in info.path:
            folders.add(parts[2])
        counts["wal"] += "wal" in parts[2:3]
        counts["versions"] += parts[0] == "_versions"
    return {**counts, "generations": len(folders)}


@pytest.mark.parametrize("place", ["local", "s3"])
def test_soak(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where: object = tmp_path / "t"
    options: dict[str, str] = {}
    seconds, pause = SECONDS, 0.1
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        where, options = f"s3://{server.make_bucket()}/t", server.storage_options
        # moto answers some hundred requests a second: fewer puts, a shorter run.
        seconds, pause = min(SECONDS, 60.0) / 3, 0.2
    table = make_table(where, rows=range(KEYS), shards=SHARDS, indexed=True, options=options)
    effects: list[Effects] = [{} for _ in table.shards]
    deadline = time.monotonic() + seconds
    rounds, puts, jobs, peaks = 0, 0, 0, []
    while time.monotonic() < deadline:
        writers = [Writer(table, n, effects[n], rounds * 10 + n, pause) for n in range(SHARDS)]
        for writer in writers:
            writer.start()
        end = time.monotonic() + min(ROUND_SECONDS, seconds / 3)
        while time.monotonic() < end:
            maintain(table)
            jobs += 1
        for writer in writers:
            writer.closing.set()
        for writer in writers:
            writer.join()
            assert writer.error is None, writer.error
            puts += writer.puts
        check_reads(table, effects)
        peaks.append(stored(table))
        rounds += 1
    print(f"{place}: {rounds} rounds, {jobs} maintains, {puts} puts, last {peaks[-1]}")
    assert puts > rounds
    # What is stored at the end of a round does not grow with the rounds (sentinels apart). How far
    # behind a round ends is the machine's: of three short ones the second may be the slow one.
    held = [peak["generations"] for peak in peaks]
    assert max(held[1:], default=0) <= 5 * max(held[0], 60), held
    drain(table, effects)


def check_reads(table: Table, effects: list[Effects]) -> None:
    truth = dict(table.base)
    for shard in effects:
        for key, row in shard.items():
            if row is None:
                truth.pop(key, None)
            else:
                truth[key] = row
    same_rows(table.lsm_rows(), truth, "LSM read")


def drain(table: Table, effects: list[Effects]) -> None:
    """Without writers the loop comes to rest: all merged, nothing kept but what must be."""
    for _ in range(4):
        maintain(table)
        time.sleep(0.6)
    check_reads(table, effects)
    left = stored(table)
    assert left["generations"] == 0, left
    # Sentinels and the highest position of each shard stay; versions were expired to the latest.
    views = table.stores.views.table().shards
    epochs = sum(shard.manifest.writer_epoch for shard in views)
    assert left["wal"] <= epochs + SHARDS, left
    assert left["versions"] <= 5, left
