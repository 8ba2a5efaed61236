"""What `status` says is due and stored, on real tables; credentials never show."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from memwal.format import layout
from memwal.model import ShardStatus
from tests.jobs.status.told import status
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.command import run_here
from tests.support.garbage_runs import age
from tests.support.s3server import S3Server

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(tmp_path / "t", rows=range(20), shards=2, indexed=True)
    for number in range(4):
        table.flush(table.shards[0], Put([30 + number], 1), Delete([number]))
    table.flush(table.shards[1], Put([90], 1))
    return table


def size(folder: Path, pattern: str) -> int:
    return sum(p.stat().st_size for p in folder.glob(pattern) if p.is_file())


def test_storage_is_what_is_on_disk(table: Table) -> None:
    root = Path(table.uri)
    found, _ = status(table)
    assert found.storage is not None
    # One version so far: all that is there is its own.
    assert found.storage.base_bytes == size(root, "data/**/*") + size(root, "_indices/**/*")
    assert found.storage.wal_bytes == size(root, "_mem_wal/*/wal/*.arrow") > 0
    assert found.storage.wal_bytes == sum(s.wal_bytes or 0 for s in found.shards)
    assert found.pending_bytes == sum(s.pending_bytes or 0 for s in found.shards)
    assert (found.pending_bytes or 0) > 0
    assert (found.reclaimable_bytes, found.uri) == (0, table.uri)
    table.merge_all()
    merged, _ = status(table)
    assert merged.storage is not None
    # Files of older versions are there too, and are not the base's.
    assert 0 < (merged.storage.base_bytes or 0) < size(root, "data/**/*") * 2
    assert merged.pending_bytes == 0
    live = sum(f.file_size_bytes for p in table.dataset.get_fragments() for f in p.data_files())
    assert merged.storage.base_bytes == live + size(root, "_indices/*/*")


def test_what_is_due_is_said_and_sealed_broken_and_keyless_shards_never_are(table: Table) -> None:
    busy, quiet = table.shards
    shown = run_here("status", table.uri).stdout
    assert f"due: shard {busy[:8]}…: 4 pending generations >= 4" in shown
    assert "storage: base " in shown
    age(table, 3600, "_mem_wal")  # what counts is the age of the flush
    assert status(table, due_generations_min=99)[0].due_reasons == ()
    builders.set_status(table, busy, ShardStatus.SEALED)
    at_once = {"due_age_seconds_min": 0, "due_generations_min": 1}
    reasons = {s.shard_id: bool(s.due_reasons) for s in status(table, **at_once)[0].shards}
    assert reasons == {busy: False, quiet: True}
    listing = table.stores.shard_manifests.latest(quiet)
    assert listing is not None
    path = Path(table.uri, layout.shard_manifest_path(quiet, listing.version))
    path.write_bytes(b"torn")
    found, _ = status(table, **at_once)
    assert (found.due, found.outcome) == (False, "partial")
    assert found.storage is not None


# ---- secrets, and reports on an object store


@pytest.fixture
def on_s3(s3_server: S3Server, make_s3_uri: Callable[[], str]) -> Table:
    table = builders.make_table(make_s3_uri(), rows=range(5), options=s3_server.storage_options)
    table.flush(table.shards[0], Put([30], 1))
    return table


@pytest.fixture
def given(on_s3: Table, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table whose options are in the environment."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MEMWAL_"))]:
        monkeypatch.delenv(name)
    options = {**on_s3.options, "aws_secret_access_key": "hush-hush"}
    monkeypatch.setenv("MEMWAL_STORAGE_OPTIONS", json.dumps(options))
    return on_s3


def test_a_job_takes_its_options_from_the_environment_and_shows_none(given: Table) -> None:
    for name, *arguments in (["status"], ["merge", "--engine", "local"], ["runs"]):
        for more in ("--json", "--debug"):
            done = run_here(name, given.uri, *arguments, more)
            assert done.returncode == 0, done.stderr
            assert "hush" not in done.stdout + done.stderr
    stored = [given.stores.objects.get(i.path) for i in given.stores.objects.list("_maintenance")]
    assert stored
    assert not any(b"hush" in data for data in stored)


def test_a_report_goes_to_an_object_with_the_first_table_s_options(given: Table) -> None:
    bucket = given.uri.split("/")[2]
    place = f"s3://{bucket}/reports/today/merge.json"
    inside = builders.open_stores(f"s3://{bucket}/reports", given.options).objects
    done = run_here("merge", given.uri, "--json", "--report", place)
    assert done.returncode == 0, done.stderr
    assert json.loads(inside.get("today/merge.json")) == json.loads(done.stdout)
    # A job that fails says so there, too.
    done = run_here("merge", f"s3://{bucket}/no/table", "--report", place)
    assert done.returncode == 2
    assert json.loads(inside.get("today/merge.json"))["outcome"] == "failed"


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        ("s3://no-such-bucket-here/r.json", 1, "no-such-bucket-here"),
        ("s3://BUCKET/a/", 2, "needs a key"),
        ("s3://id:hush@BUCKET/r.json", 2, "credentials go into storage options"),
    ],
)
def test_a_place_that_takes_no_report(given: Table, place: str, code: int, said: str) -> None:
    place = place.replace("BUCKET", given.uri.split("/")[2])
    done = run_here("merge", given.uri, "--json", "--report", place)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "hush" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    # What can be known before the work is said before the work.
    assert bool(given.progress()) == (code == 1)


def test_a_local_report_that_fails_to_be_written_fails_the_command(table: Table) -> None:
    done = run_here("status", table.uri, "--report", "/proc/report.json")  # no file can be there
    assert done.returncode == 1
    assert "the report can't be written" in done.stderr
    assert "Traceback" not in done.stderr
