"""Rows that were staged: what Spark's tasks do, called as they are, and the units that write them.

The one test that brings up Spark itself is in test_ingest_spark.py.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import memwal.ingest.track
from memwal import errors
from memwal.ingest.plan import make_id
from memwal.ingest.spark.staging import _translate
from memwal.ingest.track import Track, TrackLimits
from memwal.store.records.ingests import Rounds
from tests.support.ingest_tables import make, wal_rows
from tests.support.staged_ingests import SPEC, ingest, source_of, staged, staged_files, told, wanted
from tests.support.stopping import Stopper

pytestmark = pytest.mark.integration


def test_staged_rows_are_written_once_whatever_stops_a_unit(tmp_path, monkeypatch, stalled) -> None:
    table = make(tmp_path / "t", **SPEC)
    source = source_of(tmp_path)
    request = staged(table, source, monkeypatch)
    assert staged_files(table)
    for nth in (3, 5, 8):
        limits = TrackLimits(progress_seconds=0.0 if nth == 5 else 1e9)
        monkeypatch.setattr(
            memwal.ingest.track,
            "Track",
            lambda nth=nth, limits=limits, **more: Track(steps=Stopper(nth), limits=limits, **more),
        )
        report = ingest(table, source)
        assert report["exit_code"] != 0 and "Stop" in report["error"]
    monkeypatch.setattr(memwal.ingest.track, "Track", partial(Track, limits=TrackLimits()))
    report = ingest(table, source)
    assert (report["exit_code"], report["rows"]) == (0, 200)
    assert report["resumed"]
    assert report["rows_deleted"] == sum(s["rows_deleted"] for s in report["shards"]), "by this run"
    assert told(wal_rows(table)) == wanted()
    shards = table.stores.views.table().shards
    assert all(s.manifest.shard_spec_id == 1 and s.manifest.shard_field_entries for s in shards)
    assert staged_files(table) == []
    # A run that died before it could remove them leaves some.
    rounds = Rounds(objects=table.stores.objects, ingest_id=make_id(request), run_id="test-run")
    folder = rounds.at(1).folder
    table.stores.objects.put(f"{folder}/staged/test-run/left.arrow", b"rows")
    assert len(staged_files(table)) == 1
    assert ingest(table, source)["outcome"] == "nothing_to_do"
    assert staged_files(table) == []


def test_staged_rows_that_are_gone(tmp_path, monkeypatch) -> None:
    table = make(tmp_path / "t", **SPEC)
    source = source_of(tmp_path)
    staged(table, source, monkeypatch)
    for path in (tmp_path / "t").glob("_maintenance/ingest/*/*/staged/**/*.arrow"):
        path.unlink()
    report = ingest(table, source)
    assert report["exit_code"] == 5
    assert "staged rows are gone" in report["error"]
    assert "under another --id" in report["error"]


def test_staged_rows_that_somebody_compressed(tmp_path, monkeypatch) -> None:
    """None of ours are: a few bytes may unfold to any number."""
    table = make(tmp_path / "t", **SPEC)
    source = source_of(tmp_path)
    staged(table, source, monkeypatch)
    for path in (tmp_path / "t").glob("_maintenance/ingest/*/*/staged/**/*.arrow"):
        rows = pa.ipc.open_stream(path.read_bytes()).read_all()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with (
            pa.OSFile(str(path), "wb") as out,
            pa.ipc.new_stream(out, rows.schema, options=options) as written,
        ):
            written.write_table(pa.concat_tables([rows] * 50).combine_chunks())
    report = ingest(table, source)
    assert report["exit_code"] == 8
    assert "is compressed, as no staged rows are" in report["error"]


@pytest.mark.parametrize(
    "raised",
    [
        *(kind("MW-I17", "x") for kind in (errors.Refused, errors.Unsupported, errors.Corruption)),
        *(kind("x") for kind in (errors.Usage, errors.NotATable, errors.BadCredentials)),
        *(kind("x") for kind in (errors.LostRace, errors.LeaseHeld, errors.StoreUnavailable)),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_a_task_s_error_has_the_outcome_that_it_has_without_spark(raised) -> None:
    name = f"{type(raised).__module__}.{type(raised).__qualname__}"
    text = f"An exception was thrown:\nTraceback (most recent call last):\n{name}: {raised}\n\n\tat"
    found = _translate(PythonException(message=text))
    assert (found.exit_code, found.outcome) == (raised.exit_code, raised.outcome)
    assert str(found) == str(raised)
