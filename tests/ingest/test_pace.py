"""How far an ingest says it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from memwal.ingest.progress.pace import Pace, show_reading, show_tracks
from memwal.ingest.sources.files import SourceFiles
from memwal.store.records.ingests import PlanRecord, ProgressRecord, Rounds, StagedRecord
from tests.support.ingest_tables import make, rows_of
from tests.support.progress import Quiet

pytestmark = pytest.mark.integration

ROWS = 3000


class Seen(Quiet):
    """What a progress is told."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int, int]] = []
        self.told: list[tuple[int, int]] = []

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        self.started.append((what, total, bytes_total))

    def done(self, count: int, bytes_done: int = 0) -> None:
        self.told.append((count, bytes_done))


def mark(split: int, row: int, rows: int, *, number: int = 1) -> ProgressRecord:
    return ProgressRecord(number=number, run_id="r", split=split, row=row, rows=rows)


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    rows = rows_of(range(ROWS))
    pq.write_table(rows, tmp_path / "a.parquet")
    pacsv.write_csv(rows, tmp_path / "b.csv")
    return [str(tmp_path / name) for name in ("a.parquet", "b.csv")]


def test_bytes_of_a_file_go_by_its_rows_if_known(sources: list[str]) -> None:
    files = SourceFiles({})
    found = files.find(sources)
    sizes = [file.size_bytes for file in found]
    seen = Seen()
    rows = {file.uri: files.count_rows(file) for file in found}
    pace = Pace(progress=seen, files=found, rows=rows)
    pace.start(mark(0, 0, 0))
    # The number of rows is not known beforehand: CSV says none.
    assert (seen.started, seen.told) == ([("rows", 0, sum(sizes))], [])
    half = ROWS // 2
    for place, done in enumerate((sizes[0] // 2, sizes[0])):
        pace(mark(place, half, place * ROWS + half))
        assert seen.told[-1] == (place * ROWS + half, done)


def test_a_run_that_goes_on_begins_where_the_last_one_ended(sources: list[str]) -> None:
    files = SourceFiles({})
    found = files.find(sources[:1])
    seen = Seen()
    Pace(progress=seen, files=found, rows={found[0].uri: ROWS}).start(mark(0, 1000, 1000))
    assert seen.started == [("rows", ROWS, found[0].size_bytes)]
    assert seen.told == [(1000, found[0].size_bytes // 3)]


def test_reading_large_files_beforehand_is_shown(sources: list[str]) -> None:
    [file] = SourceFiles({}).find(sources[:1])
    small, large = Seen(), Seen()
    show_reading(small, [file])(file.size_bytes)
    assert (small.started, small.told) == ([], [])
    read = show_reading(large, [file.model_copy(update={"size_bytes": 2**30})])
    read(2**20)
    read(2**20)
    assert [total for _, *total in large.started] == [[2**30, 2**30]]
    assert large.told[-1] == (2**21, 2**21)


def test_tracks_that_others_write_are_summed_up(tmp_path: Path, sources: list[str]) -> None:
    table = make(tmp_path / "t")
    found = SourceFiles({}).find(sources[:1])
    staged = [StagedRecord(shard_id=shard, files=(), rows=ROWS // 2) for shard in ("s1", "s2")]
    plan = PlanRecord(
        sources=tuple(found), staged=tuple(staged), chunk_rows=10, rows_per_entry_max=10, spec_id=0
    )
    records = Rounds(objects=table.stores.objects, ingest_id="i", run_id="r").at(1)
    seen = Seen()
    with show_tracks(seen, records, plan):
        for number in (1, 2, 3):
            records.advance("s1", mark(0, number * 100, number * 100, number=number))
        records.advance("s2", mark(0, 450, 450))
    assert seen.started == [("rows", ROWS, found[0].size_bytes)]
    assert (seen.told[0], seen.told[-1]) == ((0, 0), (750, found[0].size_bytes // 4))
