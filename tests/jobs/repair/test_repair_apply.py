"""A repair that is stopped at any step is run again, and ends as if it had not been."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import memwal
from memwal.errors import LostRace, MemWalError, StoreUnavailable
from memwal.format import layout
from memwal.jobs.repair.apply import TableRepair
from memwal.jobs.repair.job import RepairOptions, run_repair
from memwal.jobs.repair.model import Action, Damage
from memwal.jobs.repair.report import report_repair
from memwal.jobs.repair.request import RepairRequest
from memwal.jobs.repair.store import StoredHands
from memwal.jobs.verify.job import run_verify
from memwal.jobs.verify.plan import Check
from memwal.model import ShardManifest
from memwal.report import TableReport
from memwal.run.options import RunOptions
from tests.jobs.repair.damages import LOST, WHOLE, keys_of, make_damaged_ground, put_tail
from tests.support.builders import Table
from tests.support.indexed import resolved
from tests.support.progress import Quiet
from tests.support.sampling import many

pytestmark = pytest.mark.integration


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Killed(BaseException):
    """Ends a run as a kill does: nothing catches it."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = make_damaged_ground(tmp_path_factory.mktemp("ground") / "t")
    put_tail(table, table.shards[0])
    return table


def repair(table: Table, steps: Callable[[str], None]) -> TableReport:
    options = RepairOptions(
        tables=[resolved(table)],
        request=RepairRequest(execute=True, accept_loss=True, idle_seconds=0.0),
        confirm=lambda name, damages: True,
        find_place=lambda name: resolved(table),
    )
    (report,) = run_repair(options, Quiet(), steps).tables
    return report


@pytest.mark.parametrize(
    "name",
    [
        "WAL entry and manifest",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("manifest cut", "three manifests gone", "newest generation gone")
        ),
    ],
)
def test_stopped_at_every_step(ground: Table, tmp_path: Path, name: str) -> None:
    damage, numbers = LOST[name] if name in LOST else (WHOLE[name], set())
    whole = ground.copied(tmp_path / "whole")
    damage(whole, whole.shards[0])
    taken: list[str] = []
    repair(whole, taken.append)
    assert taken
    for stop in range(len(taken))[:: many(1, 5)]:
        table = ground.copied(tmp_path / f"stopped at {stop}")
        damage(table, table.shards[0])
        left = iter(range(stop, -1, -1))

        def kill(step: str, left: object = left) -> None:
            if next(left) == 0:  # type: ignore[call-overload]
                raise Killed

        with pytest.raises(Killed):
            repair(table, kill)
        repair(table, lambda step: None)
        (verdict,) = run_verify(RunOptions(tables=[resolved(table)]), Quiet()).tables
        assert verdict.exit_code == 0, (taken[stop], verdict.error)
        rows = table.keyed(memwal.open_table(table.uri).read(with_wal=True).read_all())
        lost = keys_of(table, numbers)
        assert rows == {k: row for k, row in table.truth().items() if k not in lost}, taken[stop]


def hands_of(table: Table) -> StoredHands:
    return StoredHands(stores=table.stores, run_id="a" * 32, refresh=lambda: None)


def test_what_changed_since_it_was_judged_is_left(ground: Table, tmp_path: Path) -> None:
    table = ground.copied(tmp_path / "t")
    path = layout.TABLE_HINT
    before = Path(table.uri, path).read_bytes()
    with pytest.raises(LostRace, match="was written meanwhile"):
        hands_of(table).quarantine(path, digest_of(b"other"))
    with pytest.raises(LostRace, match="is gone meanwhile"):
        hands_of(table).quarantine("data/nothing", digest_of(b""))
    hands_of(table).quarantine(path, digest_of(before))
    hands_of(table).quarantine(path, digest_of(before))
    kept = Path(table.uri, layout.quarantine_path("a" * 32, path))
    assert kept.read_bytes() == before


def test_a_manifest_that_somebody_else_wrote_first(ground: Table, tmp_path: Path) -> None:
    table = ground.copied(tmp_path / "t")
    newest = table.stores.shard_manifests.latest(table.shards[0])
    assert newest is not None
    hands_of(table).put_manifest(newest)  # our own, whose reply was lost
    other = ShardManifest(
        shard_id=newest.shard_id, version=newest.version, writer_epoch=9, current_generation=9
    )
    with pytest.raises(LostRace, match="was written by someone else"):
        hands_of(table).put_manifest(other)


def test_what_was_not_looked_for_is_not_done(ground: Table) -> None:
    """A check that would report a damage could not be made again, so nobody knows."""
    run = TableRepair(
        uri=ground.uri,
        look=lambda: pytest.fail("no look is needed"),
        hands=hands_of(ground),
        take_lease=lambda: None,
        before_commit=lambda: None,
        confirm=lambda damages: True,
        first=[
            Damage(
                kind="other",
                path="x",
                action=Action.MEND,
                finding="broken",
                evidence="y",
                checks=("hints",),
            )
        ],
    )
    for checks, done in (
        ([make_check("hints", ok=True)], True),
        ([make_check("hints", ok=None)], True),
        ([make_check("WAL", ok=None, error=StoreUnavailable("away"))], False),
        ([make_check("hints", ok=None, error=StoreUnavailable("away"))], False),
    ):
        run.checks = checks
        report = report_repair("t", run, (1, 1), "a" * 32, acted=True)
        assert (report.items[0].done, report.mended, report.left) == (done, done, not done)
        assert bool(report.warnings) is (checks[0].ok is None)


def make_check(name: str, *, ok: bool | None, error: MemWalError | None = None) -> Check:
    return Check(invariant=None, name=name, ok=ok, detail="", error=error)
