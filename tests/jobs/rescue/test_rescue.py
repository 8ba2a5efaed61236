"""`memwal rescue` on shards whose writers died, and on ones whose writers only slept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memwal.config import ResolvedTable, Settings
from memwal.errors import Corruption, LostRace, StoreUnavailable
from memwal.format import layout
from memwal.jobs.quiesce.job import find_claimed
from memwal.jobs.rescue.apply import ShardRescuer
from memwal.jobs.rescue.job import RescueOptions, run_rescue
from memwal.jobs.rescue.plan import (
    RescueMark,
    RescueTableReport,
    ShardRescue,
    SignOfLife,
)
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.rescue.store import LanceShardWriters, StoredShardWal
from memwal.model import ShardId, ShardStatus
from memwal.ports import Steps, no_steps
from memwal.report import JobOnTable, JobReport
from tests.support import builders
from tests.support.builders import KINDS, Delete, Put, Table
from tests.support.fencing import claim_epoch
from tests.support.nursery import killed, start
from tests.support.progress import Quiet
from tests.support.s3server import S3Server
from tests.support.wal_tables import abandon, entry_file

pytestmark = pytest.mark.integration

LONG_AGO = 3600


def age(table: Table, seconds: float = LONG_AGO) -> None:
    """Everything stored so far becomes older."""
    for path in Path(table.uri).rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))


def run(
    *tables: Table,
    confirm: Callable[[str, Sequence[ShardRescue]], bool] = lambda table, shards: True,
    shards: Sequence[ShardId] = (),
    idle: float = 600,
    drop_torn: bool = False,
    dry_run: bool = False,
    lease: bool = True,
    steps: Steps = no_steps,
) -> JobReport:
    options = RescueOptions(
        tables=[
            ResolvedTable(name=t.uri, uri=t.uri, settings=Settings(), storage_options=t.options)
            for t in tables
        ],
        confirm=confirm,
        request=RescueRequest(shards=shards, idle_seconds=idle, drop_torn=drop_torn),
        dry_run=dry_run,
        lease=lease,
    )
    return run_rescue(options, Quiet(), steps)


def rescued(table: Table, **options: Any) -> tuple[JobReport, ShardRescue]:
    """The report, and that of the first shard."""
    report = run(table, **options)
    (of_table,) = report.tables
    assert isinstance(of_table, RescueTableReport), of_table
    return report, next(s for s in of_table.shards if s.shard_id == table.shards[0])


def check_all_there(table: Table) -> None:
    """Every acknowledged row is seen, and a merge takes it from there."""
    builders.same_rows(table.lsm_rows(), table.truth(), "rescued")
    for done in table.merge_all():
        assert done.error is None, done
    builders.same_rows(table.base_rows(), table.truth(), "merged")


def marks(table: Table) -> list[str]:
    return [info.path for info in table.stores.objects.list(layout.RESCUES)]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    table.flush(shard, Put([0, 5], 10), Delete([1]))
    abandon(table, shard, Put([0, 6, 6], 20), Delete([5]), Put([1], 30))
    return table


def test_an_abandoned_shard_becomes_a_generation(table: Table) -> None:
    age(table)
    report, shard = rescued(table)
    assert (report.outcome, report.exit_code) == ("done", 0)
    assert (shard.action, shard.entries, shard.rows) == ("rescue", 3, 5)
    assert shard.generations == (2,)
    assert (shard.writer_epoch_before, shard.writer_epoch_after) == (2, 3)
    assert shard.idle_seconds is not None
    assert LONG_AGO <= shard.idle_seconds < LONG_AGO + 300
    assert marks(table) == []
    (record,) = table.stores.run_records.newest(10).records
    assert (record.job, record.summary) == ("rescue", {"generations": 1, "rows": 5})
    assert table.stores.leases.current().released  # type: ignore[union-attr]
    check_all_there(table)

    report, shard = rescued(table)
    assert (report.outcome, shard.action, shard.writer_epoch_before) == (
        "nothing_to_do",
        "nothing",
        None,
    )


@pytest.mark.races
def test_several_memtables_become_several_generations(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    assert killed(write_and_die, table.uri, shard, 4)
    table.effects[shard] = [written(table)]
    manifest = table.stores.shard_manifests.latest(shard)
    assert manifest is not None
    before = manifest.current_generation
    assert before < 4
    age(table)
    _, found = rescued(table)
    assert (found.outcome, found.generations) == ("done", tuple(range(before, 5)))
    check_all_there(table)


def test_a_generation_larger_than_a_writer_s_default_is_replayed(tmp_path: Path) -> None:
    """A table whose writers are small by default, and one that was opened larger."""
    table = builders.make_table(tmp_path / "t", rows=[1])
    (shard,) = table.shards
    abandon(table, shard, Put(range(50), 10), Put(range(60), 20), max_memtable_rows=200_000)
    with pytest.raises(OSError, match="max_memtable_rows"):
        table.writer(shard, max_memtable_rows=60)
    age(table)
    assert rescued(table)[1].outcome == "done"
    check_all_there(table)


@pytest.mark.nightly
def test_a_shard_on_s3(make_s3_uri: Callable[[], str], s3_server: S3Server) -> None:
    table = builders.make_table(make_s3_uri(), rows=[1], options=s3_server.storage_options)
    abandon(table, table.shards[0], Put([0, 6], 20), Delete([1]))
    assert rescued(table)[1].action == "refuse"
    _, shard = rescued(table, idle=0)
    assert (shard.outcome, shard.generations, marks(table)) == ("done", (1,), [])
    check_all_there(table)


# ---- guards


def test_a_shard_that_shows_life_is_refused_and_nothing_is_touched(table: Table) -> None:
    before = sorted(str(p) for p in Path(table.uri).rglob("*"))
    report, shard = rescued(table)
    assert (report.outcome, report.exit_code, shard.action) == ("refused", 5, "refuse")
    assert "a writer may be alive, and would be fenced" in (shard.error or "")
    assert sorted(str(p) for p in Path(table.uri).rglob("*")) == before
    assert table.stores.run_records.newest(10).records == ()
    # The same with shards that can be: they are, and the report says both.
    table.add_shard()
    abandon(table, table.shards[1], Put([100], 5))
    age(table)
    abandon(table, table.shards[0], Put([50], 40))
    report = run(table)
    assert (report.outcome, report.exit_code) == ("partial", 6)


def test_only_the_shards_that_are_named(table: Table) -> None:
    table.add_shard()
    abandon(table, table.shards[1], Put([100], 5))
    age(table)
    report = run(table, shards=[table.shards[1]])
    (of_table,) = report.tables
    assert isinstance(of_table, RescueTableReport)
    assert [s.shard_id for s in of_table.shards] == [table.shards[1]]
    assert builders.epochs(table) == {table.shards[0]: 2, table.shards[1]: 2}
    unknown = ShardId("00000000-0000-4000-8000-000000000000")
    report = run(table, shards=[unknown])
    assert (report.exit_code, report.tables[0].error) == (
        2,
        f"{table.uri}: the table has no shard {unknown}",
    )


def test_what_was_claimed_before_another_shard_failed_is_told(table: Table) -> None:
    table.add_shard()
    abandon(table, table.shards[1], Put([100], 5))
    age(table)
    marked: list[str] = []

    def fail_at_the_second(step: str) -> None:
        marked.extend([step] * (step == "mark"))
        if len(marked) == 2:
            raise StoreUnavailable("away")

    report = run(table, steps=fail_at_the_second)
    (of_table,) = report.tables
    assert isinstance(of_table, RescueTableReport)
    assert (report.exit_code, sorted(s.outcome for s in of_table.shards)) == (6, ["done", "failed"])
    (claimed,) = of_table.audited()
    job = JobOnTable(job="rescue", report=of_table)
    assert claimed.done and [*find_claimed([job])] == [claimed.shard_id]


def test_a_sealed_shard_is_refused(table: Table) -> None:
    builders.set_status(table, table.shards[0], ShardStatus.SEALED)
    age(table)
    report, shard = rescued(table)
    assert (report.exit_code, shard.error) == (5, "it is SEALED: no writer may claim it (MW-M05)")
    assert builders.epochs(table) == {table.shards[0]: 2}


@pytest.mark.parametrize("what", ["torn", "hole"])
def test_a_wal_that_can_not_be_replayed_is_not_claimed(table: Table, what: str) -> None:
    path = entry_file(table, table.shards[0], 5)
    path.write_bytes(path.read_bytes()[:-600]) if what == "torn" else path.unlink()
    age(table)
    report, shard = rescued(table)
    assert (report.exit_code, shard.outcome) == (8, "failed")
    assert "position 5" in (shard.error or "")
    assert builders.epochs(table) == {table.shards[0]: 2}


def test_a_dry_run_asks_nobody_and_changes_nothing(table: Table) -> None:
    age(table)
    before = sorted(str(p) for p in Path(table.uri).rglob("*"))

    def confirm(name: str, shards: Sequence[ShardRescue]) -> bool:
        raise AssertionError("asked")

    report, shard = rescued(table, dry_run=True, confirm=confirm)
    assert (report.outcome, shard.action, shard.rows, shard.generations) == (
        "done",
        "rescue",
        5,
        (),
    )
    assert sorted(str(p) for p in Path(table.uri).rglob("*")) == before


def test_who_says_no_is_obeyed(table: Table) -> None:
    age(table)
    asked: list[tuple[str, int]] = []

    def confirm(name: str, shards: Sequence[ShardRescue]) -> bool:
        asked.extend((s.shard_id, s.rows) for s in shards)
        return False

    report = run(table, confirm=confirm)
    assert asked == [(table.shards[0], 5)]
    assert (report.outcome, report.exit_code) == ("refused", 5)
    assert builders.epochs(table) == {table.shards[0]: 2}


def test_a_lease_that_is_held_is_respected(table: Table) -> None:
    age(table)
    table.stores.leases.acquire("merge")
    report = run(table)
    assert (report.outcome, report.exit_code) == ("held", 4)
    assert run(table, lease=False).outcome == "done"


def test_time_is_the_store_s(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose clock is ahead does not take a live shard for an abandoned one."""
    from memwal.clock import SystemClock

    true_now = SystemClock.now_nanos
    monkeypatch.setattr(SystemClock, "now_nanos", lambda self: true_now(self) + LONG_AGO * 10**9)
    report, shard = rescued(table, lease=False)
    assert (report.outcome, shard.action) == ("refused", "refuse")
    assert builders.epochs(table) == {table.shards[0]: 2}
    assert marks(table) == []


# ---- writers that wake up


def test_the_writer_that_slept_is_fenced_and_its_rows_are_kept(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    sleeper = abandon(table, shard, Put([0, 6], 20), Delete([1]))
    age(table)
    assert rescued(table)[1].outcome == "done"
    acknowledged: builders.Effects = {}
    for attempt in range(2):
        with pytest.raises(OSError, match="fenced"):
            builders.apply(
                table, sleeper, table.dataset.schema, Put([7], 70 + attempt), acknowledged
            )
    with pytest.raises(OSError, match="fenced"):
        sleeper.close()
    assert acknowledged == {}
    check_all_there(table)
    # And whoever opens the shard next goes on.
    table.flush(shard, Put([7], 90))
    check_all_there(table)


@pytest.mark.parametrize("step", ["claim", "flush"])
def test_a_writer_that_comes_meanwhile_wins(tmp_path: Path, step: str) -> None:
    """It claims before or after us; its rows and the old ones are all there, none twice."""
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    abandon(table, shard, Put([0, 6], 20), Delete([1]))
    age(table)
    comer: list[Any] = []

    def steps(name: str) -> None:
        if name == step:
            comer.append(abandon(table, shard, Put([0, 8], 80)))

    report, found = rescued(table, steps=steps)
    if step == "flush":
        # It claimed after us: we are fenced, and it has replayed what we wanted to flush.
        assert (report.exit_code, found.outcome) == (LostRace.exit_code, "failed")
        assert "another writer claimed it meanwhile" in (found.error or "")
        comer[0].close()
    else:
        # It claimed before us, and we replayed its rows as well; now it is fenced.
        assert (found.outcome, found.generations) == ("done", (1,))
        with pytest.raises(OSError, match="fenced"):
            comer[0].close()
    check_all_there(table)
    age(table)
    assert rescued(table)[1].action == "nothing"


def test_entries_that_come_up_to_the_claim_are_rescued_too(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    sleeper = abandon(table, shard, Put([0], 20))
    age(table)

    def steps(name: str) -> None:
        if name == "claim":
            builders.apply(
                table, sleeper, table.dataset.schema, Put([9], 90), table.effects[shard][-1]
            )

    assert rescued(table, steps=steps)[1].outcome == "done"
    check_all_there(table)


# ---- killed

SLEEPS = [0.0, 0.01, 0.02, 0.04]


def written(table: Table) -> builders.Effects:
    """What `write_and_die` had acknowledged."""
    done: builders.Effects = {}
    for n in range(1, 8):
        rows = [table.row(key, 100 * n + place) for place, key in enumerate((10 + n, 30 + n))]
        done.update({table.kind.key(k): r for k, r in zip((10 + n, 30 + n), rows, strict=True)})
    return done


def write_and_die(uri: str, shard: str, memtable_rows_max: int) -> None:
    """Runs in a process of its own."""
    table = Table(uri=uri, kind=KINDS["int64"])
    writer = table.writer(ShardId(shard), max_memtable_rows=memtable_rows_max)
    for n in range(1, 8):
        op = Put([10 + n, 30 + n], 100 * n)
        builders.apply(table, writer, table.dataset.schema, op, {})
    os.kill(os.getpid(), signal.SIGKILL)


def rescue_and_die(uri: str, step: str) -> None:
    """Runs in a process of its own."""

    def steps(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == "any":
            print(name, flush=True)

    run(Table(uri=uri, kind=KINDS["int64"]), steps=steps, lease=False)


@pytest.mark.parametrize("step", ["mark", "claim", "flush", "flushed"])
def test_a_rescue_killed_at_a_step_is_finished_by_the_next(table: Table, step: str) -> None:
    age(table)
    assert killed(rescue_and_die, table.uri, step)
    assert marks(table) == ([] if step == "mark" else [layout.rescue_mark_path(table.shards[0])])
    _, shard = rescued(table)
    assert shard.action == ("nothing" if step == "flushed" else "rescue")
    assert shard.error is None
    check_all_there(table)
    assert rescued(table)[1].action == "nothing"


@pytest.mark.parametrize("seconds", SLEEPS)
def test_a_rescue_killed_while_it_claims_and_flushes(table: Table, seconds: float) -> None:
    """No step is exact inside of pylance: the kill comes some time after the claim began."""
    age(table)
    with start(rescue_and_die, table.uri, "any") as process:
        assert process.stdout.readline() == "mark\n"
        assert process.stdout.readline() == "claim\n"
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
    _, shard = rescued(table)
    assert shard.error is None
    check_all_there(table)
    assert rescued(table)[1].action == "nothing"


def test_a_rescue_killed_between_its_epoch_and_its_sentinel(table: Table) -> None:
    """The epoch is taken, the WAL does not show it yet."""
    (shard,) = table.shards
    age(table)
    assert killed(rescue_and_die, table.uri, "claim")
    claim_epoch(table.stores.shard_manifests, shard)
    _, found = rescued(table)
    assert (found.outcome, found.writer_epoch_before, found.writer_epoch_after) == ("done", 3, 4)
    check_all_there(table)


# ---- the stores behind it


def test_a_mark_comes_back_as_it_was_made(table: Table) -> None:
    wal = StoredShardWal(table.stores.objects)
    (shard,) = table.shards
    mark = RescueMark(
        writer_epoch=3,
        highest_position=9,
        sign=SignOfLife(what="WAL entry 9", at_nanos=123),
        made_at_nanos=0,
    )
    made = wal.mark(shard, mark)
    found = wal.read(shard)
    assert found is not None
    assert found.mark == RescueMark(
        writer_epoch=3, highest_position=9, sign=mark.sign, made_at_nanos=made
    )
    wal.unmark(shard)
    assert wal.read(shard).mark is None  # type: ignore[union-attr]
    assert wal.read(ShardId("00000000-0000-4000-8000-000000000000")) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"format": 2}', json.dumps({"format": 1, "writer_epoch": True}).encode()],
)
def test_a_mark_that_is_none_is_corruption(table: Table, content: bytes) -> None:
    (shard,) = table.shards
    table.stores.objects.put(layout.rescue_mark_path(shard), content)
    with pytest.raises(Corruption, match=r"_maintenance/rescue/.* is not the mark of a rescue"):
        StoredShardWal(table.stores.objects).read(shard)


def test_lance_s_words_are_told_apart(table: Table) -> None:
    (shard,) = table.shards
    writers = LanceShardWriters(table.stores.tables)

    def claim(**changes: int) -> object:
        limits = {"memtable_rows_max": 1000, "memtable_batches_max": 1000, **changes}
        return writers.claim(shard, **limits)

    with pytest.raises(Corruption, match=r"can't be replayed: .*max_memtable_rows"):
        claim(memtable_rows_max=2)
    path = entry_file(table, shard, 5)
    path.write_bytes(b"")
    with pytest.raises(Corruption, match="can't be replayed"):
        claim()


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("error", [None, StoreUnavailable("no reply")])
def test_a_flush_is_believed_only_when_it_shows(
    table: Table, flushes: bool, error: StoreUnavailable | None
) -> None:
    """pylance's close may succeed though its flush was refused, or fail after it landed."""
    age(table)
    stores = table.stores

    class Writers(LanceShardWriters):
        def claim(self, *arguments: Any, **limits: Any) -> Any:
            claimed = super().claim(*arguments, **limits)

            def flush() -> None:
                if flushes:
                    claimed()
                if error is not None:
                    raise error

            return flush

    rescuer = ShardRescuer(
        wal=StoredShardWal(stores.objects), writers=Writers(stores.tables), clock=stores.clock
    )
    done = rescuer.run(table.shards[0])
    assert done is not None
    if flushes:
        assert (done.outcome, done.generations, done.error, marks(table)) == (
            "done",
            (2,),
            None,
            [],
        )
        return
    assert (done.outcome, done.generations) == ("failed", ())
    text = "no reply" if error else "3 entries are in no generation after the flush"
    assert text in str(done.error)
    assert len(marks(table)) == 1
    assert rescued(table)[1].outcome == "done"
    check_all_there(table)


# ---- torn entries


def tear(table: Table, position: int, size_bytes: int = 700) -> bytes:
    """What a host leaves that lost its power: the name, and the first bytes."""
    path = entry_file(table, table.shards[0], position)
    path.write_bytes(torn := path.read_bytes()[:size_bytes])
    return torn


def forget(table: Table, *keys: int) -> None:
    """The acknowledged rows of a torn entry, which nobody can read any more."""
    for key in keys:
        del table.effects[table.shards[0]][-1][table.kind.key(key)]


def stays_as_it_was(table: Table, **options: Any) -> ShardRescue:
    """What a rescue says that changes nothing."""
    files = {p: p.read_bytes() for p in Path(table.uri).rglob("*") if p.is_file()}
    report, shard = rescued(table, lease=False, **options)
    assert report.exit_code == Corruption.exit_code
    assert {p: p.read_bytes() for p in Path(table.uri).rglob("*") if p.is_file()} == files
    return shard


@pytest.mark.parametrize("size_bytes", [0, 700])
@pytest.mark.parametrize("reopened", [0, 2])
def test_a_torn_last_entry_is_dropped(tmp_path: Path, size_bytes: int, reopened: int) -> None:
    """Also when writers tried to open the shard since, which left a sentinel each."""
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    abandon(table, shard, Put([0, 6], 20), Delete([1]), Put([7], 30))
    torn = tear(table, 3, size_bytes)
    for _ in range(reopened):
        with pytest.raises(OSError, match="WAL IPC"):
            table.writer(shard)
    age(table)
    refused = stays_as_it_was(table)
    command = f"`memwal rescue {table.uri} --shard {shard} --drop-torn`"
    assert f"cut off after {size_bytes} bytes. If no rows are behind it, {command}" in str(
        refused.error
    )
    _, found = rescued(table, dry_run=True, drop_torn=True)
    assert (found.action, found.torn_positions, found.torn_kept) == ("rescue", (3,), None)
    assert stays_as_it_was(table).error == refused.error

    report, found = rescued(table, drop_torn=True)
    assert (found.error, found.outcome, found.generations) == (None, "done", (1,))
    assert f"position 3 is torn after {size_bytes} bytes and is dropped" in str(report.tables)
    assert (found.torn_positions, found.torn_kept) == ((3,), layout.torn_folder(shard))
    assert table.stores.objects.get(layout.torn_entry_path(shard, 3)) == torn
    forget(table, 7)
    check_all_there(table)
    table.flush(shard, Put([7], 90))
    check_all_there(table)


def test_torn_entries_that_are_all_there_is(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    abandon(table, shard, Put([7], 30), Put([8], 30))
    tear(table, 1), tear(table, 2, 0)
    age(table)
    _, found = rescued(table, drop_torn=True)
    assert (found.error, found.torn_positions, found.generations) == (None, (1, 2), ())
    forget(table, 7, 8)
    table.flush(shard, Put([7], 90))
    check_all_there(table)


@pytest.mark.parametrize("what", ["before rows", "damaged", "a hole before it"])
def test_an_entry_that_is_not_merely_torn_at_the_end_stays(table: Table, what: str) -> None:
    path = entry_file(table, table.shards[0], 6)
    match what:
        case "before rows":
            tear(table, 5)
        case "damaged":
            path.write_bytes(path.read_bytes()[:-600] + b"\0" * 592 + path.read_bytes()[-8:])
            path.write_bytes(b"junk" + path.read_bytes()[4:])
        case _:
            tear(table, 6)
            entry_file(table, table.shards[0], 5).unlink()
    age(table)
    assert "Put back what is missing" in str(stays_as_it_was(table, drop_torn=True).error)


def test_a_young_torn_entry_stays(table: Table) -> None:
    age(table)
    tear(table, 6)
    report, found = rescued(table, drop_torn=True)
    assert (report.exit_code, found.torn_positions) == (5, ())
    assert "WAL entry 6 is 0 s old" in str(found.error)


@pytest.mark.parametrize("step", ["keep", "drop", "claim", "flush"])
def test_a_rescue_that_was_killed_while_it_drops_is_finished(table: Table, step: str) -> None:
    (shard,) = table.shards
    torn = tear(table, 6)
    with pytest.raises(OSError, match="WAL IPC"):
        table.writer(shard)
    age(table)

    def die(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rescued(table, drop_torn=True, steps=die, lease=False)
    _, found = rescued(table, drop_torn=True, lease=False)
    assert (found.error, found.outcome, found.generations) == (None, "done", (2,))
    assert table.stores.objects.get(layout.torn_entry_path(shard, 6)) == torn
    forget(table, 1)
    check_all_there(table)


def test_a_writer_that_slept_does_not_take_the_torn_position(tmp_path: Path) -> None:
    """It wakes up between the drop and the claim: what it puts goes behind, and is kept."""
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    sleeper = abandon(table, shard, Put([0, 6], 20))
    entry_file(table, shard, 2).write_bytes(b"")
    age(table)

    def steps(name: str) -> None:
        if name == "claim":
            builders.apply(
                table, sleeper, table.dataset.schema, Put([9], 90), table.effects[shard][-1]
            )

    assert rescued(table, drop_torn=True, steps=steps)[1].error is None
    check_all_there(table)


def test_an_entry_that_was_mended_meanwhile_is_not_dropped(table: Table) -> None:
    path = entry_file(table, table.shards[0], 6)
    whole = path.read_bytes()
    tear(table, 6)
    age(table)

    def steps(name: str) -> None:
        if name == "keep":
            path.write_bytes(whole)

    report, found = rescued(table, drop_torn=True, steps=steps)
    assert (report.exit_code, found.generations) == (LostRace.exit_code, ())
    assert "changed meanwhile; nothing was dropped" in str(found.error)
    assert rescued(table, idle=0)[1].outcome == "done"
    check_all_there(table)
