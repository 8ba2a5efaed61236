"""What each toxic of `s3proxy` does to a client; the torture has writers and jobs under all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memwal.errors import StoreUnavailable
from memwal.store.objects.base import StoreLimits
from tests.faults.s3proxy import NONE, S3Proxy, Toxics
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.s3server import S3Server

pytestmark = pytest.mark.nightly


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server.endpoint, 1) as proxy:
        yield proxy


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
