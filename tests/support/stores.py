"""Stores, and tables that pylance makes on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from memwal.clock import SystemClock
from memwal.ports import Objects
from memwal.store.objects import open_objects
from memwal.testing import MemoryBucket, MemoryObjects
from tests.support.s3server import S3Server

ON_S3 = pytest.param("s3", marks=pytest.mark.integration)


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a table is to be, as pylance takes it."""

    uri: str
    storage_options: dict[str, str]

    def objects(self) -> Objects:
        """The same place as our store sees it."""
        return open_objects(self.uri, self.storage_options, SystemClock())


@pytest.fixture(params=["memory", "local", ON_S3])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Objects]:
    """Opens one and the same empty store, again at each call."""
    if request.param == "memory":
        bucket = MemoryBucket()
        return lambda: MemoryObjects(bucket=bucket, clock=SystemClock())
    if request.param == "local":
        return Address(uri=str(tmp_path / "table"), storage_options={}).objects
    server: S3Server = request.getfixturevalue("s3_server")
    uri = f"s3://{server.make_bucket()}/some/table"
    return Address(uri=uri, storage_options=server.storage_options).objects


@pytest.fixture(params=["local", ON_S3])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """The address of a table-to-be."""
    if request.param == "local":
        return Address(uri=str(tmp_path / "table"), storage_options={})
    server: S3Server = request.getfixturevalue("s3_server")
    return Address(
        uri=f"s3://{server.make_bucket()}/some/table", storage_options=server.storage_options
    )
