"""What status and verify tell of a row-merge policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwal.config import ResolvedTable, Settings
from memwal.jobs.inspect import run_inspect
from memwal.jobs.snapshot.job import run_snapshot
from memwal.jobs.status.job import run_status
from memwal.rows.policy import STORED_KEY, make_policy
from tests.jobs.status.told import checked, told
from tests.support.policy_tables import make_policy_table

pytestmark = pytest.mark.integration


def test_such_a_table_gets_no_snapshot(tmp_path: Path) -> None:
    """A refresh may lower merge progress for a moment, in which operands would count twice."""
    table = make_policy_table(tmp_path / "t", rows=[1])
    table.flush((1, table.row(1, 5)))
    before = int(table.dataset.version)

    for dry_run in (True, False):
        found = told(run_snapshot, table, dry_run=dry_run)
        assert (found.outcome, found.exit_code) == ("nothing_to_do", 0)
        assert "row-merge policy" in found.reason
    assert int(table.dataset.version) == before


CHECK = "row-merge policy"
OTHER = make_policy({"n": ("max", None)}, None, None)


def test_a_policy_is_shown(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1])
    policy = table.variant.policy

    status = told(run_status, table, policy=policy)

    assert status.policy == policy.as_document()
    assert status.policy["columns"]["log"] == {"operator": "list_append", "cap": 4}
    assert not status.warnings
    resolved = ResolvedTable(name="t", uri=table.uri, settings=Settings(), storage_options={})
    document = run_inspect(
        "index", resolved, shard=None, version=None, untested_lance_allowed=False
    )
    assert document.to_json()["policy"] == policy.as_document()
    assert checked(table, CHECK, policy=policy).ok is True
    assert "the table's is" in told(run_status, table, policy=OTHER).warnings[-1]
    assert checked(table, CHECK, policy=OTHER).ok is None


def test_a_table_without_one(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1], stored=False)
    status = told(run_status, table)
    assert status.policy is None
    assert not status.warnings
    assert checked(table, CHECK) is None
    assert "does not have yet" in told(run_status, table, policy=OTHER).warnings[-1]
    assert checked(table, CHECK, policy=OTHER).ok is None


def test_a_policy_that_fits_no_more(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1])
    table.dataset.drop_columns(["n"])
    assert checked(table, CHECK).ok is False
    table.dataset.update_config({STORED_KEY: "nonsense"})
    assert told(run_status, table).policy == {"unreadable": "nonsense"}
