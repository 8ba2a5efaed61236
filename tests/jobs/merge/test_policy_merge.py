"""Merges by a row-merge policy, on real tables, against the row-by-row model."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from memwal.config import ResolvedTable, Settings
from memwal.errors import LostRace, MemWalError, StoreUnavailable
from memwal.jobs.merge import store as policy_merge
from memwal.jobs.merge.apply import ShardMerger
from memwal.jobs.merge.job import MergeOptions, open_merge_table, run_merge
from memwal.jobs.merge.plan import Deletes, MergeLimits, choose_deletes
from memwal.jobs.merge.ports import CommitStats
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.merge.store import LancePolicyFold
from memwal.jobs.status.job import run_status
from memwal.model import ShardId
from memwal.read import open_table
from memwal.report import JobReport
from memwal.rows import policy_operators
from memwal.rows.policy import STORED_KEY, RowPolicy, make_policy
from memwal.run.options import RunOptions
from memwal.run.stores import open_stores
from memwal.testing.tables import ManualCommitQueue
from tests.support.builders import KINDS, Table, hand_written, list_generations
from tests.support.policy_tables import (
    PolicyTable,
    Variant,
    make_policy_table,
    random_table,
    seconds,
)
from tests.support.progress import Quiet
from tests.support.s3server import S3Server
from tests.support.sampling import seeds

pytestmark = pytest.mark.integration

SEEDS = seeds(6, 1)
KINDS_TRIED = ("int64", "utf8", "utf8+int32", "binary")


def variant_of(seed: int) -> Variant:
    return Variant(
        key=KINDS_TRIED[seed % len(KINDS_TRIED)], marker=seed % 3 != 0, expiry=seed % 5 != 0
    )


def truth_at(table: PolicyTable, version: int) -> dict[Any, Any]:
    """By the model: the base as it was at a version, with what it had not merged."""
    state = table.stores.table_manifests.read(version).mem_wal
    merged = dict(state.merged) if state else {}
    numbers = {table.kind.key(number): number for number in range(40)}
    base = {
        numbers[k]: r for k, r in table.keyed(lance.dataset(table.uri, version).to_table()).items()
    }
    pending = [g for s in table.shards for g in table.written[s][merged.get(s, 0) :]]
    return table.by_key(table.variant.model.table(base, pending, table.now))


# ---- random tables


@pytest.mark.parametrize("seed", SEEDS)
def test_random_tables(tmp_path: Path, seed: int) -> None:
    table = random_table(tmp_path / "t", seed, variant_of(seed))
    truth = table.by_key(table.truth())
    first = int(table.dataset.version)
    limits = MergeLimits(generations_per_commit_max=random.Random(seed).choice([1, 2, 64]))

    for shard in table.shards:
        table.merge(shard, limits=limits)

    assert table.base_rows() == truth
    for version in table.stores.table_manifests.versions():
        if version >= first:  # invariant 5, at every version that a merge made
            assert truth_at(table, version) == truth
    assert {s: len(g) for s, g in table.written.items()} == dict(
        table.stores.views.table().mem_wal.merged
    )


def test_many_keys_are_taken_from_the_base_by_place(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=range(10_000))
    for step in (9, 7):  # more keys than are asked for by name; then more than are taken
        table.flush(*[(k, table.row(k, 5)) for k in range(0, 10_000, step)], put_rows=5000)
        table.dataset.delete("k > 100 AND k < 500")
        table.base = {k: r for k, r in table.base.items() if not 100 < table.kind.key(k)[0] < 500}
        truth = table.by_key(table.truth())
        table.merge()
        assert table.base_rows() == truth
        table.base, table.written[table.shards[0]] = table.truth(), []


def test_time_passes_between_merges(tmp_path: Path) -> None:
    """What was merged before it expired stays in the value; what expires first drops out."""
    table = make_policy_table(tmp_path / "t", rows=[1])
    table.flush((1, table.row(1, 5, until=seconds(10))), (2, table.row(2, 7, until=seconds(10))))
    table.flush((1, table.row(1, 6, until=seconds(20))))
    table.merge(limits=MergeLimits(generations_per_commit_max=1))
    rows = table.base_rows()
    assert {k[0]: r["n"] for k, r in rows.items()} == {
        table.kind.key(1)[0]: 1012,
        table.kind.key(2)[0]: 7,
    }
    table.clock.advance(15)
    assert table.kind.key(2) not in table.base_rows()
    table.flush((2, table.row(2, 1)), (1, table.row(1, 9, until=seconds(12))))
    table.merge()
    rows = table.base_rows()
    assert {r["n"] for r in rows.values()} == {1012, 1}


# ---- generations that do not have all rows


def test_a_generation_without_all_its_rows_is_refused(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1])
    plain = Table(uri=table.uri, kind=KINDS["int64"])
    shard = ShardId("00000000-0000-4000-8000-000000000001")
    rows = [table.row(1, 5), table.row(1, 6)]
    listed = hand_written(plain, shard, rows, physical_rows=3)
    list_generations(plain, shard, listed)

    found = table.merger().run(shard, MergeRequest())

    assert (found.outcome, found.exit_code) == ("refused", 5)
    assert "has 2 rows, but its writer counted 3" in str(found.error)
    assert table.base_rows() == {table.kind.key(1): table.base[1]}


def test_a_generation_of_another_writer_counts_row_by_row(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(marker=False), rows=[1])
    plain = Table(uri=table.uri, kind=KINDS["int64"])
    shard = ShardId("00000000-0000-4000-8000-000000000001")
    first = hand_written(plain, shard, [table.row(1, 5), table.row(1, 6)], tombstone_column=False)
    list_generations(plain, shard, first)
    again = hand_written(plain, shard, [table.row(1, 7)] * 3, rows_per_file=1, physical_rows=3)
    list_generations(plain, shard, again)

    found = table.merger().run(shard, MergeRequest())

    assert found.error is None
    assert {r["n"] for r in table.base_rows().values()} == {1001 + 5 + 6 + 21}


# ---- races: something commits between the read of the base's rows and our commit

Race = Callable[[PolicyTable], None]


def _key(table: PolicyTable, key: int) -> int:
    return int(table.kind.key(key)[0])


def _update(table: PolicyTable) -> None:
    table.dataset.update({"n": "5000"}, where=f"k = {_key(table, 1)}")


def _delete(table: PolicyTable) -> None:
    table.dataset.delete(f"k = {_key(table, 1)}")


def _insert(table: PolicyTable) -> None:
    rows = pa.Table.from_pylist([table.row(9, 70, op=False)], schema=table.dataset.schema)
    table.dataset.merge_insert("k").when_not_matched_insert_all().execute(rows)


def _append(table: PolicyTable) -> None:
    rows = pa.Table.from_pylist([table.row(9, 70, op=False)], schema=table.dataset.schema)
    lance.write_dataset(rows, table.uri, mode="append")


def _compact(table: PolicyTable) -> None:
    rows = pa.Table.from_pylist([table.row(30, 1, op=False)], schema=table.dataset.schema)
    lance.write_dataset(rows, table.uri, mode="append")
    table.dataset.optimize.compact_files()


def _add_column(table: PolicyTable) -> None:
    table.dataset.add_columns(pa.field("new", pa.int64()))


def _merge_all(table: PolicyTable) -> None:
    table.merge()


def _merge_one(table: PolicyTable) -> None:
    found = table.merger().run(table.shards[0], MergeRequest(until_generation=1))
    assert found.error is None, found


def racing(monkeypatch: pytest.MonkeyPatch, table: PolicyTable, race: Race) -> list[str]:
    """The race is run once, right before the first marked commit."""
    upsert, log = policy_merge.upsert, []

    def raced(*args: Any, **more: Any) -> Any:
        if not log:
            log.append("raced")
            race(table)
        try:
            return upsert(*args, **more)
        except LostRace:
            log.append("lost")
            raise

    monkeypatch.setattr(policy_merge, "upsert", raced)
    return log


@pytest.mark.parametrize(
    ("race", "sums"),
    [
        (_update, {1: 5012, 2: 1002, 9: 3}),
        (_delete, {1: 12, 2: 1002, 9: 3}),
        (_insert, {1: 1013, 2: 1002, 9: 73}),
        (_append, {1: 1013, 2: 1002, 9: 73}),
        (_compact, {1: 1013, 2: 1002, 9: 3, 30: 1}),
        (_add_column, {1: 1013, 2: 1002, 9: 3}),
        (_merge_all, {1: 1013, 2: 1002, 9: 3}),
        (_merge_one, {1: 1013, 2: 1002, 9: 3}),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_a_base_that_changed_in_between_is_folded_with_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, race: Race, sums: dict[int, int], kind: str
) -> None:
    table = make_policy_table(tmp_path / "t", Variant(key=kind, expiry=False), rows=[1, 2])
    table.flush((1, table.row(1, 5)), (9, table.row(9, 3)))
    table.flush((1, table.row(1, 7)))
    log = racing(monkeypatch, table, race)

    table.merge()

    assert log == ["raced", "lost"] or race is _merge_all
    found = {k[0]: r["n"] for k, r in table.keyed(table.dataset.to_table()).items()}
    assert found == {_key(table, k): n for k, n in sums.items()}


@pytest.mark.parametrize("until", [1, 2])
def test_operands_that_others_merged_before_the_turn_are_not_counted_again(
    tmp_path: Path, until: int
) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1])
    table.flush((1, table.row(1, 5)), (2, table.row(2, 7)))
    table.flush((1, table.row(1, 6)), (3, table.row(3, 1)))
    truth = table.by_key(table.truth())
    done: list[ShardReport] = []

    def meanwhile() -> None:
        if not done:
            request = MergeRequest(until_generation=until)
            done.append(table.merger().run(table.shards[0], request))

    merge = table.merge(queue=ManualCommitQueue(meanwhile=meanwhile))
    assert [m.error for m in done] == [None]
    assert merge.commits == 2 - until
    assert table.base_rows() == truth


def test_a_fold_goes_with_the_version_of_its_view(tmp_path: Path) -> None:
    """What the base has by a newer version's mark would count again."""
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1])
    table.flush((1, table.row(1, 5)))
    table.flush((1, table.row(1, 7)))
    stores = table.stores
    view = stores.views.shard(table.shards[0])
    _merge_one(table)
    fold = open_merge_table(stores).fold(view, table.shards[0], view.shards[0].pending)
    deletes = choose_deletes(fold.facts, MergeLimits())
    assert deletes is not None

    with pytest.raises(LostRace):
        fold.commit(deletes, 2)

    table.merge()
    assert table.base_rows() == table.by_key(table.truth())


def test_a_key_type_that_lance_does_not_compare_is_unsupported(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(key="int16"), rows=[1])
    table.flush((1, table.row(1, 5)))

    found = table.merger().run(table.shards[0], MergeRequest())

    assert (found.outcome, found.exit_code) == ("refused", 7)
    assert "key of type int16" in str(found.error)


# ---- through the job: the policy's way into the table, and errors of one shard


def job(table: PolicyTable, policy: RowPolicy | None, **options: Any) -> JobReport:
    resolved = ResolvedTable(
        name="t", uri=table.uri, settings=Settings(), storage_options={}, policy=policy
    )
    return run_merge(MergeOptions(tables=[resolved], engine="local", **options), Quiet())


def stored(table: PolicyTable) -> str | None:
    found: str | None = table.dataset.config().get(STORED_KEY)
    return found


def test_the_first_merge_stores_the_policy(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1], stored=False)
    policy = table.variant.policy
    foreseen = job(table, policy, dry_run=True)
    assert foreseen.exit_code == 0
    assert any("stores it" in warning for warning in foreseen.tables[0].warnings)
    assert stored(table) is None

    report = job(table, policy)  # nothing is pending: it is stored all the same
    assert (report.outcome, report.exit_code) == ("done", 0)
    assert report.tables[0].version_after == report.tables[0].version_before + 1
    assert stored(table) == policy.as_text()
    table.flush((1, table.row(1, 5)), (1, table.row(1, 6)))
    assert job(table, None).exit_code == 0  # who has no configuration merges by it as well
    assert job(table, policy).exit_code == 0
    assert table.base_rows() == table.by_key(table.truth())


def test_a_policy_that_differs_is_refused(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1])
    table.flush((1, table.row(1, 5)))
    other = make_policy({"n": ("max", None)}, None, None)

    report = job(table, other)

    assert (report.outcome, report.exit_code) == ("refused", 5)
    assert '"n": "max"' in str(report.tables[0].error)
    assert table.base_rows() == {table.kind.key(1): table.base[1]}


@pytest.mark.parametrize(
    ("policy", "code", "text"),
    [
        (make_policy({"gone": ("max", None)}, None, None), 5, "no column"),
        (make_policy({"n": ("nobodys", None)}, None, None), 7, "not built in"),
    ],
)
def test_a_policy_that_does_not_fit_is_not_stored(
    tmp_path: Path, policy: RowPolicy, code: int, text: str
) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1], stored=False)
    report = job(table, policy)
    assert report.exit_code == code
    assert text in str(report.tables[0].error)
    assert stored(table) is None


def test_a_policy_is_stored_under_the_lease_only(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1], stored=False)
    assert job(table, table.variant.policy, lease=False).exit_code == 5
    assert stored(table) is None
    leases = open_stores(table.uri, {}).leases  # by the clock that the job has
    claim = leases.acquire("merge")
    assert job(table, table.variant.policy).exit_code == 4
    leases.release(claim)
    assert stored(table) is None


def test_of_two_that_store_a_policy_one_wins(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", stored=False)
    one, other = (open_stores(table.uri, {}).tables for _ in range(2))
    first = other.base()
    assert one.put_policy("A") == "A"
    assert other.put_policy("B") == "A"
    with pytest.raises(OSError, match="Incompatible transaction"):
        first.update_config({STORED_KEY: "B"})
    assert stored(table) == "A"


def test_a_policy_survives_what_jobs_and_users_do(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1], stored=False)
    shard = table.shards[0]
    with table.dataset.mem_wal_writer(shard, max_wal_flush_interval_ms=1) as writer:
        rows = pa.Table.from_pylist([table.row(1, 5)], schema=table.dataset.schema)
        writer.put(rows)
        table.stores.tables.put_policy(table.variant.policy.as_text())
        writer.put(rows)  # a writer that is open does not mind
    table.merge()
    (found,) = table.base_rows().values()
    assert found["n"] == 1011
    table.dataset.optimize.compact_files()
    table.dataset.delete("true")
    lance.write_dataset(table.dataset.schema.empty_table(), table.uri, mode="overwrite")
    assert stored(table) == table.variant.policy.as_text()


def test_a_fold_by_no_policy_is_not_put_into_a_table_that_got_one(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1], stored=False)
    table.flush((1, table.row(1, 5)), (1, table.row(1, 6)))
    stores = table.stores
    view = stores.views.shard(table.shards[0])
    fold = open_merge_table(stores).fold(view, table.shards[0], view.shards[0].pending)
    stores.tables.put_policy(table.variant.policy.as_text())

    again = fold.rebase(stores.views.shard(table.shards[0]))

    assert isinstance(again, policy_merge.LancePolicyFold)


def test_a_fold_by_a_policy_that_went_meanwhile_is_made_anew(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1])
    shard = table.shards[0]
    table.flush((1, table.row(1, 5)), (1, table.row(1, 6)))
    stores = table.stores
    view = stores.views.shard(shard)
    fold = open_merge_table(stores).fold(view, shard, view.shards[0].pending)
    assert isinstance(fold, policy_merge.LancePolicyFold)
    table.dataset.delete_config_keys([STORED_KEY])

    again = fold.rebase(stores.views.shard(shard))
    again.commit(Deletes.NONE, 1)

    assert not isinstance(again, policy_merge.LancePolicyFold)
    assert [row["n"] for row in table.base_rows().values()] == [6]  # as every read says by now


def joined(left: pa.Array, right: pa.Array) -> pa.Array:
    if "boom" in right.to_pylist():
        raise ValueError("no boom here")
    return pc.binary_join_element_wise(left, right, "+")


def test_an_operator_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("joined", f"{__name__}:joined", policy_operators.GROUP)
    monkeypatch.setattr(policy_operators, "entry_points", lambda group, name: [point])
    table = make_policy_table(tmp_path / "t", rows=[1], stored=False)
    assert job(table, make_policy({"note": ("joined", None)}, None, None)).exit_code == 0
    for n in (1, 2):
        table.flush(*((1, table.row(1, 10 * n + i)) for i in range(3)), (2, table.row(2, n)))
    wanted = ["note 1+note 2", "+".join(f"note {n}" for n in (1001, 10, 11, 12, 20, 21, 22))]

    read = open_table(table.uri).read().read_all()
    assert job(table, None).exit_code == 0

    for found in (read, table.dataset.to_table()):
        assert sorted(found["note"].to_pylist()) == wanted
    table.flush((1, table.row(1, 5, note="boom")))
    report = job(table, None)
    assert report.exit_code == 5
    assert "no boom here (rows, oldest first: the base, generation 3 row 0)" in str(
        report.tables[0].error
    )


(KEY_1,) = KINDS["int64"].key(1)


def routed(keys: pa.RecordBatch, older: pa.Array, newer: pa.Array) -> pa.Array:
    """By the key: the longer text of 1, the newest of others."""
    is_longer = pc.greater(pc.utf8_length(older), pc.utf8_length(newer))
    return pc.if_else(pc.and_(pc.equal(keys["k"], KEY_1), is_longer), older, newer)


def settles(keys: pa.RecordBatch, values: pa.Array) -> pa.Array:
    return pc.not_equal(keys["k"], KEY_1)


routed.needs_key, routed.ends_fold = True, settles  # type: ignore[attr-defined]


def test_an_operator_that_goes_by_the_key_and_ends_a_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("routed", f"{__name__}:routed", policy_operators.GROUP)
    monkeypatch.setattr(policy_operators, "entry_points", lambda group, name: [point])
    asked: list[list[Any]] = []
    read_base_rows = policy_merge.read_base_rows

    def read_rows(base: Any, keys: pa.Table, columns: Any) -> pa.Table:
        asked.append(keys["k"].to_pylist())
        return read_base_rows(base, keys, columns)

    monkeypatch.setattr(policy_merge, "read_base_rows", read_rows)
    table = make_policy_table(tmp_path / "t", rows=[1, 2], stored=False)
    assert job(table, make_policy({"note": ("routed", None)}, None, None)).exit_code == 0
    table.flush(*((key, table.row(key, n)) for key in (1, 2, 3) for n in (4, 5)))
    wanted = ["note 1001", "note 5", "note 5"]

    read = open_table(table.uri).read().read_all()
    assert job(table, None).exit_code == 0

    assert asked == [[KEY_1]]  # what is settled is not read
    for found in (read, table.dataset.to_table()):
        assert sorted(found["note"].to_pylist()) == wanted


def test_an_operator_error_stops_its_shard_only(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1, 2], shards=2)
    bad, good = table.shards
    table.flush((1, table.row(1, 2**63 - 1)), (4, table.row(4, 1)), shard=bad)
    table.flush((2, table.row(2, 5)), shard=good)

    report = job(table, None)

    assert (report.outcome, report.exit_code) == ("partial", 6)
    shards = {s.shard_id: s for s in report.tables[0].shards}  # type: ignore[attr-defined]
    assert (shards[good].outcome, shards[bad].outcome) == ("done", "refused")
    text = shards[bad].error
    assert f"of key {{'k': {_key(table, 1)}}}" in text
    assert "the base, generation 1 row 0" in text
    assert dict(table.stores.views.table().mem_wal.merged) == {good: 1}
    assert _key(table, 4) not in {k[0] for k in table.base_rows()}
    # Once the base's value lets it fit, the next run merges what is pending.
    table.dataset.update({"n": "0"}, where=f"k = {_key(table, 1)}")
    assert job(table, None).exit_code == 0
    assert table.base_rows()[table.kind.key(1)]["n"] == 2**63 - 1


@pytest.mark.parametrize("together", [1, 2, 64])
def test_a_sum_that_fits_is_merged_whatever_the_commits_take(tmp_path: Path, together: int) -> None:
    """Where a prefix is out of range, and the base could not hold it, a longer one is taken."""
    most = 2**63 - 1
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1, 2])
    for n in (most - 1001, 5, 7, -100, most, -most):
        table.flush((1, table.row(1, n)), (2, table.row(2, 1)))

    found = table.merge(limits=MergeLimits(generations_per_commit_max=together))

    assert (found.outcome, found.to_generation) == ("done", 6)
    assert found.commits == {1: 2, 2: 2, 64: 1}[together]
    rows = table.base_rows()
    assert rows[table.kind.key(1)]["n"] == most - 88
    assert rows[table.kind.key(2)]["n"] == 1002 + 6


@pytest.mark.parametrize("fault", [LostRace, StoreUnavailable])
def test_a_longer_prefix_outlasts_a_failed_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[MemWalError]
) -> None:
    most = 2**63 - 1
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1])
    for n in (most - 5, -100_000, 3):
        table.flush((1, table.row(1, n)))
    commit = LancePolicyFold.commit
    marks: list[int] = []

    def failing(fold: LancePolicyFold, deletes: Deletes, mark: int) -> CommitStats:
        marks.append(mark)
        if len(marks) == 2:  # the first does not fit
            raise fault("not now")
        return commit(fold, deletes, mark)

    monkeypatch.setattr(LancePolicyFold, "commit", failing)

    found = table.merge(limits=MergeLimits(generations_per_commit_max=1))

    assert (found.outcome, found.to_generation, found.commits) == ("done", 3, 2)
    assert marks == [1, 2, 2, 3]  # what does not fit is not tried again
    assert table.base_rows()[table.kind.key(1)]["n"] == 1001 + most - 5 - 100_000 + 3


def test_a_longer_prefix_keeps_to_the_bytes_of_a_commit(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1])
    for n in (2**63 - 1, -5000):
        table.flush((1, table.row(1, n)))
    merged = table.merger(limits=MergeLimits(bytes_per_commit_max=1)).run(
        table.shards[0], MergeRequest()
    )
    assert (merged.outcome, merged.to_generation) == ("refused", 0)
    assert "--bytes-per-commit-max" in (merged.error or "")
    assert table.merge().to_generation == 2


def test_status_tells_a_shard_that_is_stuck_until_it_goes_on(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1], shards=2)
    stuck, good = table.shards
    table.flush((1, table.row(1, 2**63 - 1)), shard=stuck)
    table.flush((2, table.row(2, 5)), shard=good)
    assert _stuck(table) == {}  # nobody has tried
    job(table, None)
    table.flush((2, table.row(2, 6)), shard=good)
    assert job(table, None).tables[0].outcome == "partial"
    table.flush((2, table.row(2, 6)), shard=good)

    told = _stuck(table)

    assert list(told) == [stuck]
    assert f"failed on column 'n' of key {{'k': {_key(table, 1)}}}: overflow: " in told[stuck]
    table.flush((1, table.row(1, -5000)), shard=stuck)
    assert job(table, None).exit_code == 0
    table.flush((1, table.row(1, 1)), shard=stuck)
    assert _stuck(table) == {}


def _stuck(table: PolicyTable) -> dict[str, str]:
    resolved = ResolvedTable(name="t", uri=table.uri, settings=Settings(), storage_options={})
    report = run_status(RunOptions(tables=[resolved])).tables[0]
    shards = {s.shard_id: s.stuck for s in report.shards if s.stuck}  # type: ignore[attr-defined]
    lines = [line for line in report.warnings if "is stuck at" in line]  # type: ignore[attr-defined]
    assert len(lines) == len(shards)
    return shards


class Died(BaseException):
    """As a kill: nothing catches it."""


@pytest.mark.parametrize("step", ["commit", "committed"])
def test_a_merge_that_dies_at_a_step_counts_nothing_twice(tmp_path: Path, step: str) -> None:
    table = make_policy_table(tmp_path / "t", rows=[1, 2])
    for n in range(4):
        table.flush((1, table.row(1, n)), (2, None), (2, table.row(2, 10 + n)), (3, None))
    seen: list[str] = []

    def steps(name: str) -> None:
        seen.append(name)
        if seen.count(step) == 2:
            raise Died

    limits = MergeLimits(generations_per_commit_max=1)
    with pytest.raises(Died):
        table.merger(limits=limits, steps=steps).run(table.shards[0], MergeRequest())
    merged = 1 if step == "commit" else 2
    assert dict(table.stores.views.table().mem_wal.merged) == {table.shards[0]: merged}

    table.merge()

    assert "delete_pass" not in seen
    assert table.base_rows() == table.by_key(table.truth())


@pytest.mark.nightly
def test_a_table_on_s3(s3_server: S3Server) -> None:
    uri, options = f"s3://{s3_server.make_bucket()}/t", s3_server.storage_options
    schema = pa.schema([*KINDS["int64"].fields, pa.field("n", pa.int64())])
    keys = list(range(3000))
    base = pa.table({"k": keys, "n": [0] * len(keys)}, schema=schema)
    lance.write_dataset(base, uri, storage_options=options).initialize_mem_wal()
    stores = open_stores(uri, options)
    policy = make_policy({"n": ("sum", None)}, None, None)
    assert stores.tables.put_policy(policy.as_text()) == policy.as_text()
    shard = ShardId("00000000-0000-4000-8000-000000000001")
    dataset = lance.dataset(uri, storage_options=options)
    with dataset.mem_wal_writer(shard, max_wal_flush_interval_ms=1) as writer:
        for _ in range(2):
            rows = {"k": keys[:2000] * 2, "n": list(range(2000)) * 2}
            writer.put(pa.table(rows, schema=schema))
    wanted = {k: 4 * k if k < 2000 else 0 for k in keys}

    before = open_table(uri, options).read().read_all()
    found = ShardMerger(views=stores.views, table=open_merge_table(stores), clock=stores.clock).run(
        shard, MergeRequest()
    )
    after = lance.dataset(uri, storage_options=options).to_table()

    assert (found.error, found.rows_updated) == (None, 2000)
    for table in (before, after):
        assert dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True)) == wanted
