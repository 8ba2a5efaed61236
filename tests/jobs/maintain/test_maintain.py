"""`memwal maintain`: the jobs in order, and a table that is stopped does not stop the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwal.config import ResolvedTable, Settings
from memwal.errors import StoreUnavailable
from memwal.format import layout
from memwal.jobs.garbage.job import GarbageOptions, run_garbage
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.report import MaintainTableReport, show_table
from memwal.jobs.maintain.request import MaintainRequest
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardStatus
from tests.support import builders, garbage_runs
from tests.support.builders import Put, Table
from tests.support.command import run_here
from tests.support.progress import Quiet
from tests.support.s3server import S3Server

pytestmark = pytest.mark.integration

ORDER = ["merge", "index-catchup", "snapshot", "garbage"]


def maintain(*tables: Table, arguments: tuple[str, ...] = ()) -> tuple[int, list[dict]]:
    done = run_here("maintain", *(t.uri for t in tables), "--json", *arguments)
    return done.returncode, json.loads(done.stdout)["tables"]


def options(*tables: Table, settings: Settings = Settings(), **more: Any) -> MaintainOptions:  # noqa: B008
    named = [
        ResolvedTable(name="t", uri=t.uri, settings=settings, storage_options=dict(t.options))
        for t in tables
    ]
    return MaintainOptions(tables=named, **more)


def outcomes(table: dict) -> dict[str, str]:
    return {job["job"]: job["outcome"] for job in table["jobs"]}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(tmp_path / "t", rows=range(20), shards=2, indexed=True)
    for shard in table.shards:
        table.flush(shard, Put([1, 30], 1))
    return table


SOONER = ("--retention", "0s", "--grace", "0s", "--allow-short-retention", "--wal")
SHORT = ("--execute", *SOONER)


def test_four_jobs_bring_a_table_to_rest(table: Table) -> None:
    before = int(table.dataset.version)
    code, (first,) = maintain(table)
    assert code == 0
    assert list(outcomes(first)) == ORDER
    assert outcomes(first)["merge"] == outcomes(first)["index-catchup"] == "done"
    builders.check_merged(table)
    builders.check_versions(table, before)
    # Without --execute garbage is listed, and nothing goes.
    assert next(j for j in first["jobs"] if j["job"] == "garbage")["dropped"] == 0
    for _ in range(3):
        code, (found,) = maintain(table, arguments=SHORT)
        assert code == 0, found
    assert set(outcomes(found).values()) == {"nothing_to_do"}
    assert not list(Path(table.uri).glob("_mem_wal/*/*_gen_*"))
    builders.check_merged(table)


def test_a_configured_retention_says_what_goes(tmp_path: Path) -> None:
    kept, other = (garbage_runs.collectable(tmp_path / name) for name in ("kept", "other"))
    config = tmp_path / "memwal.toml"
    config.write_text(
        f'[tables.kept]\nuri = "{kept.uri}"\nretention = "1d"\n[tables.other]\nuri = "{other.uri}"'
    )

    def collect(command: str, *arguments: str) -> list[tuple[int, int]]:
        garbage_runs.age(kept, 7200)
        done = run_here(command, "--all", "--json", "--config", str(config), *arguments)
        assert done.returncode == 0, done.stderr
        found = [
            t if command == "garbage" else t["jobs"][-1] for t in json.loads(done.stdout)["tables"]
        ]
        return [(table["dropped"], table["deleted"]) for table in found]

    before, wal = garbage_runs.files(other), garbage_runs.positions(kept)
    nothing = [(0, 0), (0, 0)]
    assert collect("garbage", "--dry-run") == collect("maintain", "--dry-run") == nothing
    assert collect("maintain", *SOONER) == collect("garbage", *SOONER) == nothing
    (dropped, _), untouched = collect("maintain")
    assert (dropped, untouched) == (3, (0, 0))
    assert garbage_runs.folders(kept) == [1, 2, 3]
    (_, deleted), untouched = collect("garbage", "--no-wal", "--retention", "2d")
    assert (deleted >= 3, untouched) == (True, (0, 0))
    assert garbage_runs.folders(kept) == []
    assert garbage_runs.positions(kept) == wal
    collect("garbage")
    assert len(garbage_runs.positions(kept)) < len(wal)
    assert garbage_runs.folders(other) == [1, 2, 3]
    assert {
        path: size for path, size in garbage_runs.files(other).items() if "_mem_wal" in path
    } == {path: size for path, size in before.items() if "_mem_wal" in path}


@pytest.mark.parametrize(
    ("asked", "configured", "fragments_min", "compacts"),
    [
        ("auto", None, 30, False),
        (None, "auto", 2, True),
        ("never", "always", 2, False),
        (None, "always", 30, True),
        (None, None, 2, False),
    ],
)
def test_auto_compacts_where_it_is_advised(
    tmp_path: Path, asked: Any, configured: Any, fragments_min: int, compacts: bool
) -> None:
    # Without an index: the segments of one keep fragments apart.
    table = builders.make_table(tmp_path / "t", rows=range(20), shards=1)
    table.flush(table.shards[0], Put([1, 30], 1))
    settings = Settings(compaction=configured, compaction_fragments_min=fragments_min)
    request = MaintainRequest(compaction=asked)
    (report,) = run_maintain(options(table, settings=settings, request=request), Quiet()).tables
    assert isinstance(report, MaintainTableReport)
    done = {job.job for job in report.jobs if job.report.outcome == "done"}
    assert ("compaction" in done) is compacts
    shown = "\n".join(str(line) for line in show_table(report))
    assert ("2 small fragments: --compaction always" in shown) is (
        fragments_min == 2 and not compacts
    )
    builders.check_merged(table)


def test_a_refused_table_stops_and_the_others_go_on(tmp_path: Path, table: Table) -> None:
    sealed = builders.make_table(tmp_path / "sealed", rows=range(5), shards=1)
    sealed.flush(sealed.shards[0], Put([1], 1))
    builders.set_status(sealed, sealed.shards[0], ShardStatus.SEALED)
    code, (stopped, fine) = maintain(sealed, table)
    assert code == 6
    assert (stopped["outcome"], outcomes(stopped)) == ("refused", {"merge": "refused"})
    assert "SEALED" in stopped["error"]
    assert list(outcomes(fine)) == ORDER
    builders.check_merged(table)


def test_a_panic_in_a_job_leaves_what_the_jobs_before_it_did(table: Table) -> None:
    class PanicError(BaseException):
        """As pyo3's, which is no Exception."""

    def steps(step: str) -> None:
        if step == "index-catchup":
            raise PanicError("index out of bounds")

    class Traced(Quiet):
        def trace(self, text: str) -> None:
            assert "PanicError" in text

    (found,) = run_maintain(options(table, steps=steps), Traced()).tables
    assert isinstance(found, MaintainTableReport)
    assert [(j.job, j.report.outcome) for j in found.jobs] == [
        ("merge", "done"),
        ("index-catchup", "failed"),
    ]
    assert "unexpected PanicError: index out of bounds" in str(found.error)


def test_a_compaction_that_fails_keeps_no_other_job_from_its_work(table: Table) -> None:
    def steps(step: str) -> None:
        if step == "compaction":
            raise StoreUnavailable("gone for a moment")

    request = MaintainRequest(compaction="always")
    (found,) = run_maintain(options(table, steps=steps, request=request), Quiet()).tables
    assert isinstance(found, MaintainTableReport)
    done = {job.job: job.report.outcome for job in found.jobs}
    assert (done.pop("compaction"), found.outcome) == ("failed", "partial")
    assert [*done] == ORDER
    assert "failed" not in done.values()


def test_a_sealed_shard_does_not_keep_the_others_from_being_collected(table: Table) -> None:
    """Nor when these have nothing more to merge, so that the merge as a whole is refused."""
    table.merge_all()
    sealed, fine = table.shards
    for key, shard in enumerate(table.shards):
        table.flush(shard, Put([key], 2))
    builders.set_status(table, sealed, ShardStatus.SEALED)
    _, (first,) = maintain(table, arguments=SHORT)
    _, (second,) = maintain(table, arguments=SHORT)
    assert outcomes(first)["merge"] == "partial"
    assert outcomes(second)["merge"] == "refused"
    assert list(outcomes(second)) == ORDER
    assert "SEALED" in second["error"]
    assert table.progress() == {sealed: 1, fine: 2}
    folder = Path(table.uri) / layout.shard_folder(fine)
    assert [p.name for p in folder.glob("*_gen_*")] == []


def test_a_torn_manifest_does_not_keep_garbage_from_looking(table: Table) -> None:
    """Although the merge fails, and the snapshot is refused."""
    torn, fine = table.shards
    latest = table.stores.shard_manifests.latest(torn)
    assert latest is not None
    path = Path(table.uri) / layout.shard_manifest_path(torn, latest.version)
    path.write_bytes(path.read_bytes()[:9])
    table.merger().run(fine, MergeRequest())
    _, (found,) = maintain(table)
    assert outcomes(found) == {
        "merge": "failed",
        "index-catchup": "done",
        "snapshot": "refused",
        "garbage": "failed",
    }
    listed = {i["shard_id"] for i in found["jobs"][-1]["items"] if i["kind"] == "generation"}
    assert listed == {fine}


def list_claims(table: Table) -> list[tuple[str, bool]]:
    """The claims in order: whose, and whether it was given back."""
    found = sorted(Path(table.uri).glob(f"{layout.LEASE}/[0-9]*.json"))
    documents = [json.loads(path.read_text()) for path in found]
    return [(d["job"], d["released"]) for d in documents]


def test_its_jobs_share_one_lease_but_for_the_snapshot_s_claim(table: Table) -> None:
    _, (found,) = maintain(table, arguments=("--compaction", "always"))
    assert list(outcomes(found)) == [ORDER[0], "compaction", *ORDER[1:]]
    # The one that the refresh took the place of; then its own, in which the other jobs went on.
    assert list_claims(table) == [("maintain", False), ("snapshot", True)]
    table.flush(table.shards[0], Put([2], 5))
    _, (found,) = maintain(table, arguments=SHORT)
    assert outcomes(found)["garbage"] == "done"
    assert list_claims(table)[-2:] == [("maintain", False), ("maintain", True)]


def test_a_table_that_stops_gives_its_lease_back_while_others_go_on(
    tmp_path: Path, table: Table
) -> None:
    broken = builders.make_table(tmp_path / "broken", rows=range(5), shards=1)
    broken.flush(broken.shards[0], Put([1], 1))
    for folder in Path(broken.uri).glob("_mem_wal/*/*_gen_*"):
        shutil.rmtree(folder)
    both, seen = (broken, table), {}
    steps = lambda step: seen.update({step: [list_claims(t) for t in both]})  # noqa: E731
    run_maintain(options(*both, steps=steps), Quiet())
    assert seen["index-catchup"] == [[("maintain", True)], [("maintain", False)]]


def test_no_lease_is_refused_before_anything_is_done(table: Table) -> None:
    """Its snapshot job would refuse, with the merge behind it that no report tells of."""
    before = int(table.dataset.version)
    code, tables = maintain(table, arguments=("--no-lease", "--engine", "local"))
    assert (code, tables, int(table.dataset.version)) == (5, [], before)
    code, (listed,) = maintain(table, arguments=("--no-lease", "--dry-run"))
    assert (code, list(outcomes(listed))) == (0, ORDER)


def test_a_round_asks_an_object_store_for_little(
    make_s3_uri: Callable[[], str], s3_server: S3Server
) -> None:
    """Each request is waited for: some 20 ms on a store in the same region."""
    table = builders.make_table(
        make_s3_uri(), rows=range(20), indexed=True, options=s3_server.storage_options
    )
    found = []
    for number in range(2):
        table.flush(table.shards[0], Put([1, 30], number))
        jobs = ("merge", "index-catchup")
        found.append(run_maintain(options(table, jobs=jobs, engine="local"), Quiet()))
    first, second = found
    assert (first.outcome, second.outcome) == ("done", "done")
    builders.check_merged(table)
    looks = len(jobs)  # a run in ten lists the run records, to drop old ones
    bounds = {"list": 8 + looks, "get": 21, "put": 6, "head": 0, "delete": 0}
    above = {kind for kind, most in bounds.items() if second.requests.get(kind, 0) > most}
    assert above == set(), second.requests


def test_an_idle_run_reads_the_table_for_its_first_job_only(table: Table) -> None:
    for _ in range(3):
        _, (last,) = maintain(table, arguments=SHORT)
    assert set(outcomes(last).values()) == {"nothing_to_do"}
    asked = options(table)
    whole = run_maintain(asked, Quiet())
    last_job = run_garbage(GarbageOptions(tables=asked.tables), Quiet())
    assert whole.outcome == last_job.outcome == "nothing_to_do"
    # And whether the shard snapshot is confirmed.
    for name, more in (("list", 0), ("get", 1), ("put", 0)):
        assert whole.requests[name] == last_job.requests[name] + more
