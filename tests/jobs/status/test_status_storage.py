"""What `status` says is due and stored, on real tables; credentials never show."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memwal.config import ResolvedTable, Settings
from memwal.format import layout
from memwal.jobs.status.job import run_status
from memwal.jobs.status.report import StatusTableReport
from memwal.model import ShardStatus
from memwal.run.options import RunOptions
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.garbage_runs import age
from tests.support.nursery import run_memwal
from tests.support.s3server import S3Server

pytestmark = pytest.mark.integration


def status(table: Table, **settings: Any) -> StatusTableReport:
    resolved = ResolvedTable(
        name="t", uri=table.uri, settings=Settings(**settings), storage_options=table.options
    )
    (report,) = run_status(RunOptions(tables=[resolved])).tables
    assert isinstance(report, StatusTableReport), report
    return report


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
    found = status(table)
    assert found.storage is not None
    # One version so far: all that is there is its own.
    assert found.storage.base_bytes == size(root, "data/**/*") + size(root, "_indices/**/*")
    assert found.storage.wal_bytes == size(root, "_mem_wal/*/wal/*.arrow") > 0
    assert found.storage.wal_bytes == sum(s.wal_bytes or 0 for s in found.shards)
    assert found.storage.pending_bytes == sum(s.pending_bytes or 0 for s in found.shards)
    assert (found.storage.pending_bytes or 0) > 0
    assert (found.storage.reclaimable_bytes, found.uri) == (0, table.uri)
    table.merge_all()
    merged = status(table)
    assert merged.storage is not None
    # Files of older versions are there too, and are not the base's.
    assert 0 < (merged.storage.base_bytes or 0) < size(root, "data/**/*") * 2
    assert merged.storage.pending_bytes == 0
    live = sum(f.file_size_bytes for p in table.dataset.get_fragments() for f in p.data_files())
    assert merged.storage.base_bytes == live + size(root, "_indices/*/*")


def test_sizes_and_what_is_due_add_no_request(table: Table) -> None:
    resolved = ResolvedTable(name="t", uri=table.uri, settings=Settings(), storage_options={})
    stores = table.stores
    stores.views.table_and_wal(reached=True)
    stores.leases.glance()
    stores.objects.list_folders("_maintenance")  # there is neither checkpoint, cursor nor erasure
    stores.views.check_newest(int(table.dataset.version))
    stores.run_records.newest(8)  # as generations wait, and runs may tell why
    asked = run_status(RunOptions(tables=[resolved])).requests
    assert {k: asked[k] for k in ("list", "get", "put")} == {
        k: getattr(stores.objects.counts, k) for k in ("list", "get", "put")
    }


def test_a_count_bytes_or_age_makes_it_due(table: Table) -> None:
    busy, quiet = table.shards
    found = status(table)
    assert found.due
    assert found.due_reasons == (f"shard {busy[:8]}…: 4 pending generations >= 4",)
    reasons = {s.shard_id: s.due_reasons for s in found.shards}
    assert reasons == {busy: ("4 pending generations >= 4",), quiet: ()}
    never = {"due_generations_min": 99}
    assert not status(table, **never).due
    assert status(table, **never).due_reasons == ()
    by_bytes = status(table, due_bytes_min=1, **never)
    assert all(len(s.due_reasons) == 1 and ">= 1" in s.due_reasons[0] for s in by_bytes.shards)
    by_age = status(table, due_age_seconds_min=0, **never)
    assert all("s old >= 0 s" in s.due_reasons[0] for s in by_age.shards)
    assert len(by_age.due_reasons) == 2
    table.merge_all()
    assert not status(table, due_age_seconds_min=0, due_bytes_min=1, due_generations_min=1).due


def test_a_file_s_age_is_not_the_trigger_but_the_flush_s(table: Table) -> None:
    age(table, 3600, "_mem_wal")
    assert not status(table, due_generations_min=99).due


def test_sealed_broken_and_keyless_are_never_due(table: Table) -> None:
    busy, quiet = table.shards
    manifests = table.stores.shard_manifests
    current = manifests.latest(busy)
    assert current is not None
    manifests.commit(current, replace(current, status=ShardStatus.SEALED))
    at_once = {"due_age_seconds_min": 0, "due_generations_min": 1}
    reasons = {s.shard_id: bool(s.due_reasons) for s in status(table, **at_once).shards}
    assert reasons == {busy: False, quiet: True}
    listing = manifests.latest(quiet)
    assert listing is not None
    path = Path(table.uri, layout.shard_manifest_path(quiet, listing.version))
    path.write_bytes(b"torn")
    found = status(table, **at_once)
    assert (found.due, found.outcome) == (False, "partial")
    assert found.storage is not None
    assert found.storage.pending_bytes == found.shards[0].pending_bytes


def test_one_that_can_t_be_read_has_the_defaults(tmp_path: Path) -> None:
    done = run_memwal("status", tmp_path / "nothing", "--json")
    (found,) = json.loads(done.stdout)["tables"]
    assert found["outcome"] == "failed"
    assert not {"due", "storage", "uri"} & found.keys()


def test_people_see_it_in_a_line(table: Table) -> None:
    shown = run_memwal("status", table.uri).stdout
    assert f"due: shard {table.shards[0][:8]}…: 4 pending generations >= 4" in shown
    assert "storage: base " in shown
    table.merge_all()
    shown = run_memwal("status", table.uri).stdout
    assert "not due" in shown


# ---- secrets, and reports on an object store


@pytest.fixture
def on_s3(s3_server: S3Server, make_s3_uri: Callable[[], str]) -> Table:
    table = builders.make_table(make_s3_uri(), rows=range(5), options=s3_server.storage_options)
    table.flush(table.shards[0], Put([30], 1))
    return table


def memwal(
    *arguments: str, options: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "MEMWAL_"))}
    if options is not None:
        environment["MEMWAL_STORAGE_OPTIONS"] = json.dumps(options)
    return run_memwal(*arguments, env=environment)


def test_a_job_takes_its_options_from_the_environment_and_shows_none(on_s3: Table) -> None:
    options = {**on_s3.options, "aws_secret_access_key": "hush-hush"}
    commands = (["status"], ["merge", "--engine", "local"], ["runs"], ["wait", "--until", "merged"])
    for name, *arguments in commands:
        for more in ("--json", "--debug"):
            done = memwal(name, on_s3.uri, *arguments, more, options=options)
            assert done.returncode == 0, done.stderr
            assert "hush" not in done.stdout + done.stderr
    stored = [on_s3.stores.objects.get(i.path) for i in on_s3.stores.objects.list("_maintenance")]
    assert stored
    assert not any(b"hush" in data for data in stored)


def test_a_report_goes_to_an_object_with_the_first_table_s_options(on_s3: Table) -> None:
    bucket = on_s3.uri.split("/")[2]
    place = f"s3://{bucket}/reports/today/merge.json"
    done = memwal("merge", on_s3.uri, "--json", "--report", place, options=on_s3.options)
    assert done.returncode == 0, done.stderr
    inside = builders.open_stores(f"s3://{bucket}/reports", on_s3.options).objects
    assert json.loads(inside.get("today/merge.json")) == json.loads(done.stdout)
    done = memwal("inspect", "index", on_s3.uri, "--report", place, options=on_s3.options)
    assert done.returncode == 0, done.stderr
    stored = json.loads(inside.get("today/merge.json"))
    assert stored["mem_wal"]["merged_generations"] == {on_s3.shards[0]: 1}
    # A job that fails says so there, too.
    done = memwal("merge", f"s3://{bucket}/no/table", "--report", place, options=on_s3.options)
    assert done.returncode == 2
    assert json.loads(inside.get("today/merge.json"))["outcome"] == "failed"


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        ("s3://no-such-bucket-here/r.json", 1, "no-such-bucket-here"),
        ("s3://BUCKET", 2, "needs a key"),
        ("s3://BUCKET/", 2, "needs a key"),
        ("s3://BUCKET/a/", 2, "needs a key"),
        ("gcs://BUCKET/r.json", 2, "a path, or an s3://, gs:// or az:// address"),
        ("s3://id:hush@BUCKET/r.json", 2, "credentials go into storage options"),
    ],
)
def test_a_place_that_takes_no_report(on_s3: Table, place: str, code: int, said: str) -> None:
    place = place.replace("BUCKET", on_s3.uri.split("/")[2])
    done = memwal("merge", on_s3.uri, "--json", "--report", place, options=on_s3.options)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "hush" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    # What can be known before the work is said before the work.
    assert bool(on_s3.progress()) == (code == 1)


def test_a_local_report_that_fails_to_be_written_fails_the_command(table: Table) -> None:
    done = memwal("status", table.uri, "--report", "/proc/report.json")  # where no file can be made
    assert done.returncode == 1
    assert "the report can't be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_is_no_report(table: Table) -> None:
    done = memwal("merge", table.uri, "--report", str(Path(table.uri).parent))
    assert done.returncode == 2
    assert "that is a folder" in done.stderr
    assert table.dataset.version == table.versions()[-1]
    assert table.stores.views.table().mem_wal.merged == {}
