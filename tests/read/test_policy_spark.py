"""Spark's tasks by a row-merge policy, against the row-by-row model; no JVM is started."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from memwal.jobs.merge.request import MergeRequest

from memwal.errors import Usage
from tests.read.test_spark_read import through_tasks
from tests.support.policy_tables import PolicyTable, Variant, make_policy_table, random_table

pytestmark = pytest.mark.integration

PAST, FUTURE = datetime(2001, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)


def by_key(table: PolicyTable, rows: list[dict[str, Any]]) -> dict[Any, Any]:
    found = {tuple(row[name] for name in table.kind.names): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_tasks_read_the_truth_whatever_is_merged(tmp_path: Path, seed: int) -> None:
    variant = Variant(key=("int64", "utf8")[seed % 2], marker=seed != 1, expiry=False)
    table = random_table(tmp_path / "t", seed, variant)
    truth = table.by_key(table.truth())
    chance = random.Random(seed)
    for shard in [None, *table.shards]:
        if shard is not None:
            until = chance.randint(1, len(table.written[shard]))
            table.merger().run(shard, MergeRequest(until_generation=until))
        cut = {"partition_bytes": str(chance.choice([1, 3000, 10**9]))}
        assert by_key(table, through_tasks(table.uri, **cut)) == truth
        large = through_tasks(table.uri, filter="n > 5", columns="note", **cut)
        wanted = [r["note"] for r in truth.values() if r["n"] is not None and r["n"] > 5]
        assert sorted(r["note"] for r in large) == sorted(wanted)


def test_what_has_expired_is_not_read(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1, 2])
    table.flush((3, table.row(3, 1, until=FUTURE)), (4, table.row(4, 2, until=FUTURE)))
    table.merge()
    table.dataset.update({"until": f"timestamp '{PAST:%Y-%m-%d}'"}, where="n = 2")
    table.flush((1, table.row(1, 5, until=PAST)), (2, table.row(2, 7, until=FUTURE)))

    assert sorted(r["n"] for r in through_tasks(table.uri, columns="n")) == [1, 1001, 1009]


def test_keys_that_cannot_be_sent_are_an_error(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1])
    table.flush((1, table.row(1, 5)))
    with pytest.raises(Usage, match="keys_bytes_max"):
        through_tasks(table.uri, keys_bytes_max="1")
