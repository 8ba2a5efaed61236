"""Stores, and tables that pylance makes on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from memwal.clock import SystemClock
from memwal.ports import Objects
from memwal.store.objects.opening import open_objects
from memwal.testing import MemoryBucket, MemoryObjects
from tests.support.azurite import Azurite
from tests.support.s3server import S3Server

ON_SERVER = (pytest.mark.integration,)
ON_S3 = pytest.param("s3", marks=ON_SERVER)
ON_AZURE = pytest.param("az", marks=pytest.mark.nightly)  # a server of its own
ON_GCS = pytest.param("gs", marks=pytest.mark.nightly)


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a table is to be, as pylance takes it."""

    uri: str
    storage_options: dict[str, str]

    def objects(self) -> Objects:
        """The same place as our store sees it."""
        return open_objects(self.uri, self.storage_options, SystemClock())


def make_address(request: pytest.FixtureRequest, scheme: str, below: str) -> Address:
    """A place in a new bucket on the server of that scheme."""
    if scheme == "az":
        azurite: Azurite = request.getfixturevalue("azurite")
        uri = f"az://{azurite.make_container()}/{below}"
        return Address(uri=uri, storage_options=azurite.storage_options)
    server: S3Server = request.getfixturevalue("gcs_server" if scheme == "gs" else "s3_server")
    uri = f"{scheme}://{server.make_bucket()}/{below}"
    return Address(uri=uri, storage_options=server.storage_options)


@pytest.fixture(params=["memory", "local", ON_S3])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Objects]:
    """Opens one and the same empty store, again at each call."""
    return open_again(request, tmp_path)


@pytest.fixture(params=["memory", "local", ON_S3, ON_AZURE, ON_GCS])
def open_any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Objects]:
    """The same, of every kind that there is."""
    return open_again(request, tmp_path)


def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Objects]:
    """Opens the empty store that the fixture's parameter names, again at each call."""
    if request.param == "memory":
        bucket = MemoryBucket()
        return lambda: MemoryObjects(bucket=bucket, clock=SystemClock())
    if request.param == "local":
        return Address(uri=str(tmp_path / "table"), storage_options={}).objects
    return make_address(request, request.param, "some/table").objects


@pytest.fixture(params=["local", ON_S3])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """The address of a table-to-be."""
    if request.param == "local":
        return Address(uri=str(tmp_path / "table"), storage_options={})
    return make_address(request, request.param, "some/table")
