"""A table whose MemWAL was initialised again: what was collected before is not missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.errors import EXIT_CORRUPTION, EXIT_REFUSED
from memwal.format import layout
from tests.support import builders
from tests.support.builders import Put, Table

pytestmark = pytest.mark.integration

COLLECT = ("--execute", "--retention", "0s", "--grace", "0s", "--allow-short-retention")
QUIESCE = COLLECT[1:]


def run(table: Table, job: str, *arguments: str) -> int:
    return CliRunner().invoke(app, [job, table.uri, *arguments]).exit_code


def unset(table: Table) -> None:
    table.dataset.drop_index(layout.MEM_WAL_INDEX_NAME)


def init(table: Table) -> None:
    table.dataset.initialize_mem_wal()


def expire(table: Table) -> None:
    """As any other program may."""
    table.dataset.cleanup_old_versions(older_than=timedelta(0))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two shards, with two generations each that are merged and collected; and nothing else."""
    table = builders.make_table(
        tmp_path / "t", rows=range(20), shards=2, indexed=True, maintained=True
    )
    for n, shard in enumerate(table.shards):
        table.flush(shard, Put([2 * n, 30 + n], 1))
        table.flush(shard, Put([2 * n], 2))
    assert run(table, "maintain", *COLLECT) == 0
    return table


def check_accepted(table: Table) -> None:
    """One shard goes on, the other has nothing more to do."""
    assert run(table, "verify") == run(table, "merge") == run(table, "read") == 0
    table.flush(table.shards[0], Put([5, 40], 3))
    assert run(table, "verify") == run(table, "read") == 0
    assert run(table, "merge") == 0
    assert table.progress() == {table.shards[0]: 3}
    builders.same_rows(table.base_rows(), table.truth(), "merged")
    assert run(table, "verify") == 0


def check_refused(table: Table) -> None:
    assert run(table, "merge") == run(table, "read") == EXIT_REFUSED
    assert run(table, "verify") == EXIT_CORRUPTION


def test_collected_generations_are_not_missing(table: Table) -> None:
    unset(table)
    init(table)
    check_accepted(table)
    assert run(table, "maintain", *COLLECT) == 0


def test_the_proof_may_expire_once_a_merge_has_seen_it(table: Table) -> None:
    unset(table)
    init(table)
    assert run(table, "merge", "--dry-run") == 0
    assert not (Path(table.uri) / layout.SETTLED).exists()
    assert run(table, "merge") == 0
    expire(table)
    check_accepted(table)


def test_garbage_keeps_the_proof_before_it_expires_versions(table: Table) -> None:
    unset(table)
    init(table)
    assert run(table, "garbage", *COLLECT) == 0
    assert len(table.dataset.versions()) == 1
    check_accepted(table)


def test_a_quiesce_keeps_the_proof(table: Table) -> None:
    assert run(table, "quiesce", *QUIESCE) == 0
    for _ in range(2):  # the second index that does not know them
        unset(table)
        expire(table)
        init(table)
        expire(table)
    check_accepted(table)


def test_without_proof_they_are_missing(table: Table) -> None:
    unset(table)
    init(table)
    expire(table)
    check_refused(table)
    assert run(table, "merge", "--allow-holes") == 0


def restore(table: Table) -> None:
    lance.dataset(table.uri, version=table.dataset.version).restore()


def overwrite(table: Table) -> None:
    lance.write_dataset(table.dataset.to_table(), table.uri, mode="overwrite")


@pytest.mark.parametrize("turn_back", [restore, overwrite])
def test_time_that_was_turned_back_in_between_proves_nothing(
    table: Table, turn_back: Callable[[Table], None]
) -> None:
    unset(table)
    turn_back(table)
    init(table)
    check_refused(table)


def test_what_was_pending_is_missing_when_it_is_gone(table: Table) -> None:
    shard = table.shards[0]
    table.flush(shard, Put([7], 7))
    builders.unlist_generation(table, shard, 3)
    unset(table)
    init(table)
    check_refused(table)
    table.flush(shard, Put([8], 8))
    check_refused(table)


def test_what_is_still_listed_is_judged_by_its_age(table: Table) -> None:
    shard = table.shards[0]
    table.flush(shard, Put([7], 7))
    table.merge_all()
    unset(table)
    init(table)
    check_refused(table)
    verified = CliRunner().invoke(app, ["verify", table.uri, "--json"])
    (found,) = json.loads(verified.stdout)["tables"]
    broken = {check["invariant"] for check in found["checks"] if check["ok"] is False}
    assert broken == {1, 3}
    assert run(table, "merge", "--allow-reinitialised") == 0


def forge(**entry: Any) -> bytes:
    return json.dumps({"format": 1, "shards": {"SHARD": entry}}).encode()


FORGED = [
    b"",
    b"[]",
    b"\xff",
    b'{"format": 1, "shards": []}',
    forge(generation=-1, manifest_version=1),
    forge(generation="2", manifest_version=1),
    forge(generation=2, manifest_version=2**40),
    forge(generation=1, manifest_version=1),
    forge(generation=2),
    b'{"format": 2, "shards": {}}',
]


def test_a_record_that_says_otherwise_proves_nothing(table: Table) -> None:
    unset(table)
    init(table)
    expire(table)
    shard = table.shards[0]
    file = Path(table.uri) / layout.SETTLED
    file.parent.mkdir(exist_ok=True)
    for stored in FORGED:
        file.write_bytes(stored.replace(b"SHARD", shard.encode()))
        assert run(table, "merge", "--shard", shard) == EXIT_REFUSED, stored
    file.write_bytes(forge(generation=2, manifest_version=1).replace(b"SHARD", shard.encode()))
    assert run(table, "merge", "--shard", shard) == 0
