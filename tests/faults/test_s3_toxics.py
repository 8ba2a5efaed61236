"""All jobs and live writers through a proxy that resets, throttles, cuts and lags (`s3proxy`).

`MEMWAL_FAULT_ROUNDS` says how many rounds (default 1). Each has a seed, from `MEMWAL_FAULT_SEED`
on, that fixes its toxics and what the writers do. After each round the toxics are off: the rerun
has to finish, reads have to be what the writers' acknowledgements allow, and `verify` to be clean.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from memwal.errors import StoreUnavailable
from memwal.read import open_table
from memwal.store.objects.base import StoreLimits
from tests.faults import live
from tests.faults.live import Model, Watched, Writer
from tests.faults.s3proxy import NONE, S3Proxy, Toxics
from tests.support import builders
from tests.support.builders import Put, Rows, Table
from tests.support.s3server import S3Server

pytestmark = [pytest.mark.integration, pytest.mark.races]

ROUNDS = int(os.environ.get("MEMWAL_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("MEMWAL_FAULT_SEED", "1"))
ROUND_SECONDS = float(os.environ.get("MEMWAL_FAULT_ROUND_SECONDS", "2"))
SHARDS = 2
KEYS = 120
# What a job may say under toxics: unexpected ones are not among them, nor is corruption.
MAY_END = {0, 1, 4, 5, 6}


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server.endpoint, SEED) as proxy:
        yield proxy


def toxics_of(chance: random.Random) -> Toxics:
    """A mix for one round: each kind is there more often than not."""

    def some(most: float) -> float:
        return chance.uniform(0, most) if chance.random() < 0.6 else 0.0

    return Toxics(
        latency=some(0.3),
        reset_before=some(0.05),
        reset_after=some(0.05),
        error_before=some(0.05),
        error_after=some(0.05),
        burst=some(0.01),
        truncate=some(0.05),
        wrong_etag=some(0.5),
        lag_seconds=some(1.0),
    )


@dataclass(kw_only=True)
class Rounds:
    """Rounds on one table, and what came of them."""

    table: Table
    proxy: S3Proxy
    model: Model
    jobs: Counter[str] = field(default_factory=Counter)
    writers: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0

    def round(self, seed: int) -> None:
        toxics = toxics_of(random.Random(seed))
        writers = [
            Writer(self.model, shard, live.keys_of(place, SHARDS, KEYS), 1000 * seed + place, 0.05)
            for place, shard in enumerate(self.table.shards)
        ]
        for writer in writers:
            writer.start()
        try:
            self.proxy.toxics = toxics
            self._maintain(f"seed {seed}")
        finally:
            self.proxy.toxics = NONE
            for writer in writers:
                writer.closing.set()
            for writer in writers:
                writer.join()
        for writer in writers:
            self.writers += writer.errors
            self.acknowledged += writer.acknowledged
        live.flush(self.table)
        self.model.check(self.rows(), f"seed {seed}: before the rerun")
        runs = live.finish(self.table, grace=lambda: time.sleep(live.GRACE_SECONDS))
        self.model.check(self.rows(), f"seed {seed}: after the rerun")
        live.check_verified(self.table)
        print(f"seed {seed}: {runs} runs to finish, {toxics}", flush=True)

    def _maintain(self, what: str) -> None:
        progress = Watched()
        until = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < until:
            report = live.maintain(self.table, progress=progress)
            assert not progress.traces, progress.traces[0]
            assert report.exit_code in MAY_END, (what, report.tables)
            self.jobs[f"{report.outcome} ({report.exit_code})"] += 1

    def rows(self) -> Rows:
        return self.table.keyed(open_table(self.table.uri, self.table.options).read().read_all())


def test_writers_and_jobs_under_toxics(s3_server: S3Server, proxy: S3Proxy) -> None:
    base = range(0, KEYS, 2)
    table = builders.make_table(
        f"s3://{s3_server.make_bucket()}/some/table",
        rows=base,
        shards=SHARDS,
        indexed=True,
        options=proxy.options(s3_server.storage_options),
    )
    proxy.lag.age(3600)
    rounds = Rounds(table=table, proxy=proxy, model=Model.of(table, KEYS, base))
    for number in range(ROUNDS):
        rounds.round(SEED + number)
    print(f"{ROUNDS} rounds, {proxy.requests} requests by {dict(proxy.agents)}")
    print(f"faults: {dict(proxy.faults)}\njobs: {dict(rounds.jobs)}")
    print(f"{rounds.acknowledged} writes acknowledged; writers' errors: {rounds.writers}")
    assert rounds.acknowledged > ROUNDS
    assert proxy.faults.total() > 0
    assert len(proxy.agents) > 1, "both our client and Lance's go through the proxy"


# ---- what each toxic does to a client


@pytest.fixture
def small(s3_server: S3Server, proxy: S3Proxy) -> Table:
    table = builders.make_table(
        f"s3://{s3_server.make_bucket()}/t",
        rows=range(5),
        options=proxy.options(s3_server.storage_options),
    )
    table.flush(table.shards[0], Put([1, 7], 50))
    return table


@pytest.mark.parametrize("kind", ["reset_after", "error_after", "truncate"])
def test_a_passing_fault_is_retried(small: Table, proxy: S3Proxy, kind: str) -> None:
    """By our own client: Lance does not retry a listing that was cut short."""
    objects = small.stores.objects
    proxy.toxics = Toxics(**{kind: 0.3})
    for number in range(30):
        objects.put(f"_maintenance/tmp/{number}", b"x" * 100)
        assert objects.get(f"_maintenance/tmp/{number}") == b"x" * 100
    assert proxy.faults[kind] > 0
    assert objects.counts.retries >= proxy.faults[kind]


def test_a_listing_that_lags_shows_the_past(small: Table, proxy: S3Proxy) -> None:
    objects = small.stores.objects
    for name in ("old", "gone"):
        objects.put(f"lagging/{name}", b"1")
    proxy.lag.age(3600)
    objects.put("lagging/new", b"1")
    objects.delete(["lagging/gone"])
    proxy.toxics = Toxics(lag_seconds=600)
    assert [i.path for i in objects.list("lagging")] == ["lagging/gone", "lagging/old"]
    assert objects.list_folders("") == small.stores.objects.list_folders("")
    proxy.toxics = NONE
    assert [i.path for i in objects.list("lagging")] == ["lagging/new", "lagging/old"]


def test_a_store_that_stays_away_is_an_error_that_names_the_object(
    small: Table, proxy: S3Proxy
) -> None:
    limits = StoreLimits(retry_attempts_max=3)
    stores = builders.open_stores(small.uri, small.options, limits=limits)
    proxy.toxics = Toxics(burst=1.0, burst_seconds=60)
    with pytest.raises(StoreUnavailable, match=r"s3://.*/t/some/object: gave up after 3 attempts"):
        stores.objects.get("some/object")
    assert proxy.faults["error_in_burst"] == 3
