"""What is left of erased rows is judged from what was seen; and what keeps a run from its end."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

from memwal.errors import PartlyFailed
from memwal.format import layout
from memwal.jobs.erase.apply import Eraser
from memwal.jobs.erase.plan import (
    Finding,
    Kind,
    Sighting,
    State,
    Surroundings,
    find_until,
    is_over,
    judge,
)
from memwal.model import Erasure, ErasureMark, ShardId
from memwal.report import JobOnTable, TableReport
from tests.jobs.erase.test_erase import People, erase, held, named, rows_of

SHARD = ShardId("11111111-1111-4111-8111-111111111111")
DAY = 86_400 * 10**9
AROUND = Surroundings(
    now_nanos=10 * DAY,
    versions={5: DAY, 6: 2 * DAY, 8: 3 * DAY, 9: 4 * DAY},
    index_names={"new": "notes", "old": "vectors"},
    kept={"_mem_wal/s/wal/1": "its sentinel"},
    retention_seconds=7 * 86_400.0,
    grace_seconds=3600.0,
)
DONE = Erasure(
    erasure_id="01234567",
    keys=1,
    began_at="2026-11-25T00:00:00+00:00",
    holder="ann@host",
    version_before=5,
    marks={SHARD: ErasureMark(position=7, generation=3)},
    clean_version=8,
)


def seen(kind: Kind, rows: int | None, **more: Any) -> Sighting:
    return Sighting(path="p", kind=kind, rows=rows, how="looked", **more)


def judged(sighting: Sighting, erasure: Erasure = DONE) -> Finding:
    (found,) = judge([sighting], AROUND, erasure)
    return found


CASES = {
    "nothing in it": (seen(Kind.DATA, 0, newest=9), State.ABSENT),
    "a file that can't be read": (seen(Kind.DATA, None, newest=9), State.UNKNOWN),
    "a file of an older version": (seen(Kind.DATA, 2, newest=6), State.HELD),
    "a file of no version": (seen(Kind.DATA, 2), State.HELD),
    "a file of the clean version": (seen(Kind.DATA, 2, newest=8, oldest=8), State.AGAIN),
    "a file of a later version": (seen(Kind.DATA, 2, newest=9, oldest=9), State.AGAIN),
    "a file of before that the latest hides": (
        seen(Kind.DATA, 2, newest=9, oldest=6),
        State.HELD,
    ),
    "an index of an older version": (seen(Kind.INDEX, None, newest=6), State.HELD),
    "an index of no version": (seen(Kind.INDEX, None), State.HELD),
    "an index that was built anew": (seen(Kind.INDEX, None, newest=8), State.ABSENT),
    "a new index with a value": (seen(Kind.INDEX, 1, newest=8), State.AGAIN),
    "an old index with a value": (seen(Kind.INDEX, 1, newest=6), State.HELD),
    "a generation": (seen(Kind.GENERATION, 1, shard_id=SHARD, number=3), State.HELD),
    "a later generation": (seen(Kind.GENERATION, 1, shard_id=SHARD, number=4), State.AGAIN),
    "a WAL entry": (seen(Kind.WAL_ENTRY, 1, shard_id=SHARD, number=7), State.HELD),
    "a later WAL entry": (seen(Kind.WAL_ENTRY, 1, shard_id=SHARD, number=8), State.AGAIN),
    "a new shard's entry": (seen(Kind.WAL_ENTRY, 1, shard_id=ShardId("x"), number=1), State.AGAIN),
    "a text": (seen(Kind.VERSION, 1, newest=6), State.HELD),
    "a text of later": (seen(Kind.VERSION, 1, newest=9), State.HELD),
    "a branch": (seen(Kind.BRANCH, None), State.OUTSIDE),
    "a file that nobody knows": (seen(Kind.OTHER, None), State.UNKNOWN),
}


@pytest.mark.parametrize("case", CASES)
def test_each_object_by_what_was_seen(case: str) -> None:
    sighting, state = CASES[case]
    found = judged(sighting)
    assert found.state is state, found
    assert found.why
    assert is_over([found]) is (state in (State.ABSENT, State.AGAIN, State.OUTSIDE))


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.GENERATION, Kind.WAL_ENTRY])
def test_nothing_counts_as_new_before_anything_was_done(kind: Kind) -> None:
    begun = replace(DONE, marks={}, clean_version=None)
    found = judged(seen(kind, 1, newest=9, shard_id=SHARD, number=9), begun)
    assert found.state is State.HELD


def test_an_index_that_was_not_built_anew_holds_whatever_version_names_it() -> None:
    erasure = replace(DONE, not_rebuilt={"vectors": "too few"})
    found = judged(seen(Kind.INDEX, None, newest=9, group="old"), erasure)
    assert (found.state, "too few" in found.why) == (State.HELD, True)


def test_until_when() -> None:
    assert judged(seen(Kind.DATA, 1, newest=6)).until_nanos == 9 * DAY
    assert judged(seen(Kind.DATA, 1, newest=6, pins=("tag 'x'",))).until_nanos is None
    assert judged(seen(Kind.DATA, 1, modified_at_nanos=DAY)).until_nanos == 8 * DAY
    data, generation = (
        judged(seen(Kind.DATA, 1, newest=6)),
        judged(seen(Kind.GENERATION, 1, shard_id=SHARD, number=1)),
    )
    assert find_until([data, generation]) == 10 * DAY + 3600 * 10**9
    unknown = judged(seen(Kind.OTHER, None))
    assert find_until([data, unknown]) is None
    assert find_until([judged(seen(Kind.DATA, 0))]) is None


# ---- on tables


def change(monkeypatch: pytest.MonkeyPatch, **jobs: str) -> None:
    """Let these jobs of the chain do nothing."""
    run = Eraser.run

    def changed(self: Eraser, view: Any) -> Any:
        idle = {
            name: lambda job=job: JobOnTable(
                job=job, report=TableReport(table="t", outcome="nothing_to_do")
            )
            for name, job in jobs.items()
        }
        self.chain = replace(self.chain, **idle)  # type: ignore[arg-type]
        return run(self, view)

    monkeypatch.setattr(Eraser, "run", changed)


def small(tmp_path: Path) -> People:
    table = People(uri=str(tmp_path / "t"))
    dataset = lance.write_dataset(rows_of(named(*range(8)), 0), table.uri)
    dataset.initialize_mem_wal()
    table.write(rows_of(named(2), 1))
    return table


def test_nothing_is_clean_while_tombstones_are_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small(tmp_path)
    change(monkeypatch, merge="merge")
    report = erase(table, "person-0001")
    assert (report.outcome, report.exit_code) == ("partial", PartlyFailed.exit_code)
    assert "not merged" in report.error
    assert report.erasure.state == "open"
    monkeypatch.undo()
    assert erase(table, "person-0001").erasure.state == "done"
    assert "person-0001" not in table.rows()


def test_nothing_is_clean_while_a_file_hides_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small(tmp_path)
    change(monkeypatch, compact="compaction")
    report = erase(table, "person-0001")
    assert report.outcome == "partial"
    assert "still hide" in report.error
    monkeypatch.undo()
    assert erase(table, "person-0001").erasure.state == "done"


def test_a_detached_version_keeps_what_it_names(tmp_path: Path) -> None:
    """Its number is beyond all others, but it is none of those that came after."""
    table = small(tmp_path)
    dataset = lance.dataset(table.uri)
    lance.LanceDataset.commit(
        dataset, lance.LanceOperation.Append([]), read_version=dataset.version, detached=True
    )
    report = erase(table, "person-0001", retention_seconds=None)
    assert report.erasure.state == "open", report.states
    kept = {path: why for path, why in held(report).items() if path.startswith("data/")}
    assert kept, report.states
    assert any("a detached version" in why for why in kept.values()), kept
    [stored] = Path(table.uri, layout.VERSIONS).glob("d*.manifest")
    stored.unlink()
    assert erase(table, "person-0001").erasure.state == "done"


def test_a_shard_without_a_manifest_is_no_new_one(tmp_path: Path) -> None:
    table = small(tmp_path)
    root = Path(table.uri, layout.MEM_WAL)
    shutil.copytree(root / table.shard, root / SHARD)
    shutil.rmtree(root / SHARD / "manifest")
    report = erase(table, "person-0002")
    assert report.erasure.state == "open", report.states
    assert {path.split("/")[1] for path in held(report) if path.startswith("_mem_wal")} == {SHARD}
    shutil.rmtree(root / SHARD)
    assert erase(table, "person-0002").erasure.state == "done"
