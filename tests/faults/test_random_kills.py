"""Jobs and writers killed with -9 at random moments, on local files and on S3.

`MEMWAL_FAULT_KILLS` says how many jobs are killed in each place (default 6 on local files, 2 on
S3). The other files kill at named steps; here the moment is any. After every kill the merging
read, WAL included, has to be what the writers' logs allow, and at the end the reruns finish.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memwal.read import ReadRequest, open_table
from tests.faults import live
from tests.faults.live import Model
from tests.support import builders
from tests.support.builders import Rows, Table
from tests.support.nursery import Started, start, start_memwal
from tests.support.s3server import S3Server

pytestmark = [pytest.mark.integration, pytest.mark.races]

KILLS = os.environ.get("MEMWAL_FAULT_KILLS")
SEED = int(os.environ.get("MEMWAL_FAULT_SEED", "1"))
SHARDS = 2
KEYS = 120
PAUSE_SECONDS = 0.02

COLLECT = ["--execute", "--wal", "--retention", "0s", "--grace", "0s", "--allow-short-retention"]
JOBS: dict[str, list[str]] = {
    "merge": [],
    "merge without a lease": ["--no-lease"],
    "index-catchup": [],
    "compaction": [],
    "snapshot": [],
    "garbage": COLLECT,
    "maintain": COLLECT,
}


class Killing:
    """One table, and what was killed at work on it."""

    def __init__(self, table: Table, folder: Path, seed: int) -> None:
        self.table, self.folder = table, folder
        self.chance = random.Random(seed)
        self.model = Model.of(table, KEYS, range(0, KEYS, 2))
        self.seconds = dict.fromkeys(JOBS, 0.3)
        self.seeds = iter(range(seed * 10_000, seed * 10_000 + 10_000))
        self.kills: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.acknowledged = 0

    def round(self) -> None:
        """Every shard's writer beside one job; all of them killed, or let go, at random."""
        writers = [self._writer(place) for place in range(SHARDS)]
        self._wait_for_writes(writers)
        job = self.chance.choice([*JOBS])
        self._kill_job(job)
        for process, keys, seed, log in writers:
            if self.chance.random() < 0.5:
                process.kill()
                assert process.wait() == -signal.SIGKILL
                self.kills["writer"] += 1
            else:
                Path(f"{log}.stop").touch()
                assert process.wait() == 0, log
            self.acknowledged += live.replay_log(self.model, keys, seed, log)
        self.model.check(self.rows(with_wal=True), f"after {job}")

    def rows(self, *, with_wal: bool) -> Rows:
        table = open_table(self.table.uri, self.table.options)
        request = ReadRequest()
        return self.table.keyed(table.open_reader(request, with_wal=with_wal)[1].read_all())

    def _writer(self, place: int) -> tuple[Started, Any, int, Path]:
        keys, seed = live.keys_of(place, SHARDS, KEYS), next(self.seeds)
        log = self.folder / f"writer-{seed}"
        table = self.table
        process = start(
            live.write_and_log,
            table.uri, table.options, table.shards[place], [*keys], seed, log, PAUSE_SECONDS,
        )  # fmt: skip
        return process, keys, seed, log

    @staticmethod
    def _wait_for_writes(writers: list[tuple[Started, Any, int, Path]]) -> None:
        """Until each has written a generation or so."""
        for process, _, _, log in writers:
            while not log.exists() or log.read_text().count("acknowledged") < 6:
                assert process.poll() is None, log
                time.sleep(0.005)

    def _kill_job(self, job: str) -> None:
        options = [f"{k}={v}" for k, v in self.table.options.items()]
        arguments = [
            job.split()[0], self.table.uri, *JOBS[job], "--engine", "local", "--json",
            *(word for option in options for word in ("--storage-option", option)),
        ]  # fmt: skip
        began = time.monotonic()
        process = start_memwal(*arguments)
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.chance.uniform(0, 1.2 * self.seconds[job]))
        process.kill()
        out, _ = process.communicate()
        code = process.wait()
        if code == -signal.SIGKILL:
            self.kills[job] += 1
            self.seconds[job] *= 1.2  # it may take longer than was thought
        else:
            self.seconds[job] = time.monotonic() - began
            self.ended[f"{job}: {code}"] += 1
            # Writers may be faster than it, on a busy machine as often as it tries.
            assert code in (0, 4, 6), out


@pytest.mark.parametrize("place", ["local", "s3"])
def test_jobs_and_writers_killed_at_random(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where: object = tmp_path / "t"
    options: dict[str, str] = {}
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        where, options = f"s3://{server.make_bucket()}/t", server.storage_options
    table = builders.make_table(
        where, rows=range(0, KEYS, 2), shards=SHARDS, indexed=True, options=options
    )
    killing = Killing(table, tmp_path, SEED)
    wanted = int(KILLS) if KILLS else {"local": 6, "s3": 2}[place]
    while sum(killing.kills.values()) - killing.kills["writer"] < wanted:
        killing.round()
    print(f"{place}: killed {dict(killing.kills)}, came to an end {dict(killing.ended)}")
    live.flush(table)
    killing.model.check(killing.rows(with_wal=False), "before the rerun")
    live.finish(table, grace=lambda: time.sleep(live.GRACE_SECONDS))
    killing.model.check(killing.rows(with_wal=False), "after the rerun")
    live.check_verified(table)
    print(
        f"{place}: {killing.acknowledged} writes acknowledged, {killing.model.open_keys} open keys"
    )
