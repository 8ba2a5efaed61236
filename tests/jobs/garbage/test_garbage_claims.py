"""`garbage --retention` tells how old the oldest writer claim is that is older than that."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.format import layout
from memwal.jobs.garbage.model import GarbageLimits, WriterClaim
from memwal.jobs.garbage.report import GarbageTableReport
from memwal.model import ShardId
from memwal.report import JobReport
from tests.support import builders, garbage_runs
from tests.support.builders import Put, Table

pytestmark = pytest.mark.integration

DAY = 86_400


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = builders.make_table(tmp_path_factory.mktemp("made") / "t", rows=range(5), shards=2)
    for shard, days in zip(table.shards, (5, 9), strict=True):
        table.flush(shard, Put([days], 1))
        age(table, shard, days)
    table.merge_all()
    return table


@pytest.fixture
def table(made: Table, tmp_path: Path) -> Table:
    """Two shards with a merged generation each; they were claimed 5 and 9 days ago."""
    return made.copied(tmp_path / "t")


def age(table: Table, shard: ShardId, days: float) -> None:
    then = time.time() - days * DAY
    for path in (Path(table.uri) / layout.manifest_folder(shard)).glob("*.binpb"):
        os.utime(path, (then, then))


def claim_of(report: JobReport) -> tuple[dict[str, Any] | None, str]:
    """What the report says, and what people are told."""
    (found,) = report.tables
    assert isinstance(found, GarbageTableReport), found
    return found.oldest_claim, "; ".join(w for w in found.warnings if "writer claim" in w)


def test_the_oldest_claim_is_told_where_something_is_collected(table: Table) -> None:
    _, oldest = table.shards
    claim, text = claim_of(garbage_runs.run(table, retention=0, execute=False))
    assert claim is not None
    assert (claim["shard_id"], claim["writer_epoch"]) == (oldest, 1)
    assert abs(claim["age_seconds"] - 9 * DAY) < 600
    assert f"shard {oldest}, epoch 1) is 9.0 d old, the retention 0 s" in text


def test_without_a_retention_or_anything_to_collect_nothing_is_asked(table: Table) -> None:
    assert claim_of(garbage_runs.run(table)) == (None, "")
    for _ in range(3):  # the first drops, the second deletes
        idle = garbage_runs.run(table, retention=0)
    assert claim_of(idle) == (None, "")
    assert idle.requests["get"] == garbage_runs.run(table).requests["get"]


def test_a_claim_within_the_retention_is_none(table: Table) -> None:
    assert claim_of(garbage_runs.run(table, retention=10 * DAY)) == (None, "")


def oldest(table: Table, days: float) -> tuple[WriterClaim | None, int]:
    """The oldest claim of those that are older, and the reads that it took."""
    stores, reader = table.stores, garbage_runs.evidence_of(table)
    manifests = {s.shard_id: s.manifest for s in stores.views.table().shards}
    now = time.time_ns()
    evidence = reader.read(manifests, limits=GarbageLimits(), now_nanos=now, verified=False)
    before = stores.objects.counts.get
    claim = reader.oldest_claim(manifests, evidence, now - int(days * DAY * 1e9))
    return claim, stores.objects.counts.get - before


def test_a_writer_that_was_opened_anew_has_a_young_claim(table: Table) -> None:
    other, shard = table.shards
    claim, _ = oldest(table, 1)
    assert claim is not None and claim.shard_id == shard
    table.flush(shard, Put([1], 2))
    claim, _ = oldest(table, 1)
    assert claim is not None and claim.shard_id == other
    assert oldest(table, 6)[0] is None


def test_the_claim_is_as_old_as_the_manifest_that_it_first_stands_in(table: Table) -> None:
    """Of a writer that has flushed a lot since, long ago and lately."""
    (_, shard), manifests = table.shards, table.stores.shard_manifests
    schema = table.dataset.schema
    with table.writer(shard, max_memtable_rows=2, max_memtable_batches=1) as writer:
        for number in range(12):
            rows = [table.row(key, number) for key in (number, number + 1)]
            writer.put(pa.Table.from_pylist(rows, schema=schema))
    latest = manifests.latest(shard)
    assert latest is not None
    first = next(
        version
        for version in range(1, latest.version + 1)
        if manifests.read(shard, version).writer_epoch == latest.writer_epoch
    )
    assert latest.version > first + 5
    for version in range(1, latest.version + 1):
        then = time.time() - (40 - version) * DAY
        path = Path(table.uri) / layout.shard_manifest_path(shard, version)
        os.utime(path, (then, then))
    claim, reads = oldest(table, 40 - latest.version + 2)
    assert claim is not None
    assert (claim.shard_id, claim.writer_epoch) == (shard, latest.writer_epoch)
    assert abs((time.time_ns() - claim.claimed_at_nanos) / 1e9 - (40 - first) * DAY) < 600
    assert reads <= 1 + 5, f"by halves, of {latest.version} versions"
