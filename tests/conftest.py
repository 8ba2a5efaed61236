from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache, lru_cache

import hypothesis
import pytest
import typer.testing
from botocore.loaders import JSONFileLoader

from tests.support.azurite import Azurite, find_azurite
from tests.support.ceph import CephServer
from tests.support.s3server import GcsLikeServer, S3Server
from tests.support.sampling import FULL, SEED
from tests.support.stores import address, open_any_store, open_store

__all__ = ["address", "open_any_store", "open_store"]

pytest_plugins = ["tests.support.durations", "tests.support.levels", "tests.support.writers"]

# How long an example takes says more about the machine than about the code. The night draws other
# examples each time; pytest prints how one that failed is repeated.
hypothesis.settings.register_profile("test", deadline=None, derandomize=True)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=200)
hypothesis.settings.load_profile("nightly" if FULL else "test")

_load_file = cache(JSONFileLoader().load_file)
# Nearly all of making a client is reading these files, and each bucket of a test has a client.
JSONFileLoader.load_file = lambda self, path: _load_file(path)
# Making all commands of an app takes longer than most of them run.
typer.testing._get_command = lru_cache(maxsize=2)(typer.testing._get_command)

# Writers, servers and kills that race in real time share a machine with whatever else it does. What
# failed at night is tried once more, and what it said the first time is shown; `--force-reruns 0`
# turns that off. All other tests fail at once.
_ONCE_MORE = pytest.mark.flaky(reruns=1)


def pytest_report_header() -> str:
    """How a run of chance is repeated."""
    return f"seed: MEMWAL_TEST_SEED={SEED}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What races is tried once more."""
    for item in items:
        if item.get_closest_marker("races") and item.get_closest_marker("nightly"):
            item.add_marker(_ONCE_MORE)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """moto's server, or Ceph's; `.storage_options` is what both our store and pylance take."""
    with CephServer() if os.environ.get("MEMWAL_TEST_CEPH") else S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsLikeServer]:
    """What answers obstore as Google's service does, as far as memwal asks it anything."""
    with GcsLikeServer() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """Azurite; `.storage_options` is what both our store and pylance take."""
    program = find_azurite()
    if program is None:
        pytest.skip("Azurite is not here: `make azurite` needs node and npm")
    with Azurite(program) as server:
        yield server


@pytest.fixture
def make_s3_uri(s3_server: S3Server) -> Callable[[], str]:
    """Makes the address of a table-to-be in a new bucket."""
    return lambda: f"s3://{s3_server.make_bucket()}/some/table"
