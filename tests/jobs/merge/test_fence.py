"""`memwal merge` after a snapshot refresh that was cut off: its late commit has to be refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memwal.clock import SystemClock
from memwal.model import LOWERING_JOB, LeaseClaim
from memwal.store.records.lease import StoredLeases
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.nursery import run_memwal

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """With generations to merge, and a claim of a refresh that lapsed."""
    made = builders.make_table(tmp_path / "t", rows=range(5), shards=2)
    for place, shard in enumerate(made.shards):
        made.flush(shard, Put([place], 7))
    StoredLeases(made.stores.objects, SystemClock(), ttl_seconds=0).acquire(LOWERING_JOB)
    return made


def merge(table: Table, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run_memwal("merge", table.uri, "--engine", "local", "--json", *arguments)
    return done.returncode, json.loads(done.stdout)["tables"][0]


def read_claim(table: Table) -> LeaseClaim:
    claim = table.stores.leases.current()
    assert claim is not None
    return claim


def test_the_entry_is_replaced_before_anything_is_merged(table: Table) -> None:
    before = table.versions()[-1]
    assert merge(table, "--dry-run")[0] == 0
    assert table.versions()[-1] == before
    code, report = merge(table)
    assert (code, report["version_after"]) == (0, before + 2)
    refreshed = table.stores.views.mem_wal(before + 1)
    assert (refreshed.num_shards, dict(refreshed.merged)) == (2, {})
    claim = read_claim(table)
    assert (claim.job, claim.released, claim.unfenced) == ("merge", True, False)
    assert claim.token == 3  # of the refresh, which merges without the lease look out for
    builders.check_merged(table)


def test_without_the_lease_it_says_what_to_do(table: Table) -> None:
    before = table.versions()[-1]
    code, report = merge(table, "--no-lease")
    assert (code, table.versions()[-1]) == (4, before)
    assert "merge once without --no-lease" in report["shards"][0]["error"]
    assert merge(table)[0] == 0
    table.flush(table.shards[0], Put([0], 8))
    assert merge(table, "--no-lease")[0] == 0


def test_where_the_entry_can_t_be_replaced_nothing_is_merged(table: Table) -> None:
    before = table.versions()[-1]
    for manifest in Path(table.uri, "_mem_wal", table.shards[1], "manifest").glob("*.binpb"):
        manifest.write_bytes(b"torn")
    code, report = merge(table)
    assert (code, table.versions()[-1]) == (5, before)
    assert "broken manifests" in report["error"]
    assert read_claim(table).unfenced
