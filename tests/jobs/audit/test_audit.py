"""Audit trails of real tables: what is written down, before what, and what finds it again."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import memwal
from memwal.cli.app import app
from memwal.clock import SystemClock
from memwal.config import ResolvedTable, Settings
from memwal.errors import StoreUnavailable
from memwal.format import layout
from memwal.jobs.audit.job import run_audit, run_audit_verify, run_audit_verify_place
from memwal.jobs.audit.report import AuditTableReport, AuditVerifyReport
from memwal.jobs.audit.request import AuditRequest
from memwal.jobs.checkpoint.job import run_drop
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.erase.request import EraseRequest
from memwal.jobs.garbage.job import GarbageOptions, run_garbage
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.lease import run_lease_break
from memwal.jobs.maintain.request import QuiesceRequest
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.quiesce.job import QuiesceOptions, run_quiesce
from memwal.jobs.repair.job import RepairOptions, run_repair
from memwal.jobs.repair.request import RepairRequest
from memwal.jobs.rescue.job import RescueOptions, run_rescue
from memwal.jobs.rescue.request import RescueRequest
from memwal.ports import Steps, no_steps
from memwal.report import AuditEntry, AuditItem, JobReport
from memwal.run.trail import describe_asked, open_trail
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.garbage_runs import expire, laid_out
from tests.support.ingest_tables import make, rows_of
from tests.support.nursery import killed
from tests.support.progress import Quiet
from tests.support.wal_tables import abandon, entry_file

pytestmark = pytest.mark.integration

SHORT = ("--execute", "--retention", "0s", "--grace", "0s", "--allow-short-retention", "--wal")


def resolve(table: Table, audit: object) -> ResolvedTable:
    settings = Settings(audit=str(audit))
    return ResolvedTable(
        name=table.uri, uri=table.uri, settings=settings, storage_options=table.options
    )


def collect(
    table: Table, audit: object, *, steps: Steps = no_steps, lease: bool = True, **asked: Any
) -> JobReport:
    """`memwal garbage --execute`, short times allowed."""
    known = {"retention_seconds": 0.0, "grace_seconds": 0.0, "wal": True}
    request = GarbageRequest(execute=True, allow_short_retention=True, **{**known, **asked})
    options = GarbageOptions(
        tables=[resolve(table, audit)], engine="local", lease=lease, request=request
    )
    return run_garbage(options, Quiet(), steps)


def documents(table: Table, audit: object) -> list[tuple[AuditEntry, Sequence[AuditItem]]]:
    """All of the table's trail, oldest first."""
    trail = open_trail(resolve(table, audit), table.uri, SystemClock())
    read = list(trail.read(trail.numbers()))
    assert [found.problem for found in read] == [None] * len(read)
    return [(found.entry, found.items) for found in read if found.entry is not None]


def verify(table: Table, audit: object) -> AuditVerifyReport:
    (report,) = run_audit_verify([resolve(table, audit)]).tables
    assert isinstance(report, AuditVerifyReport), report
    return report


def search(table: Table, audit: object, **asked: Any) -> AuditTableReport:
    (report,) = run_audit([resolve(table, audit)], AuditRequest(**asked)).tables
    assert isinstance(report, AuditTableReport), report
    return report


def files(table: Table) -> set[str]:
    return {file.path for file in table.stores.objects.list("")}


def is_named(path: str, intended: set[str]) -> bool:
    """Whether the object, or a folder that it is in, was named before."""
    return any(path == named or path.startswith(f"{named}/") for named in intended)


def intended(table: Table, audit: object) -> set[str]:
    found = documents(table, audit)
    return {item.path for entry, items in found if entry.phase == "intent" for item in items}


# Lance's cleanup removes what only expired versions needed, and names none of it.
BY_LANCE = ("data/", "_deletions/", "_indices/", "_transactions/")
PASSING = ("_maintenance/tmp/", "_maintenance/lease/claim", "_maintenance/cache")


def unnamed(before: set[str], table: Table, audit: object) -> list[str]:
    """What has gone since then, and no intent named."""
    named = intended(table, audit)
    gone = before - files(table)
    return sorted(
        p for p in gone if not p.startswith((*BY_LANCE, *PASSING)) and not is_named(p, named)
    )


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return laid_out(tmp_path_factory.mktemp("made") / "t", generations=2)


@pytest.fixture
def table(made: Table, tmp_path: Path) -> Table:
    """A shard with two merged generations, and every version still there."""
    return made.copied(tmp_path / "t")


def command(*words: object, config: Path | str = "/dev/null") -> Any:
    done = CliRunner().invoke(app, [*map(str, words), "--config", str(config)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


# ---- what is written down


def test_a_generation_is_followed_from_its_merge_to_its_end(tmp_path: Path, audit: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(10))
    (shard,) = table.shards
    table.flush(shard, Put([1, 30], 1))
    table.flush(shard, Put([2, 31], 1))
    (folder,) = [p for p in Path(table.uri).rglob("*_gen_1") if p.is_dir()]
    merge = MergeOptions(tables=[resolve(table, audit)], engine="local")
    assert run_merge(merge, Quiet()).exit_code == 0
    before = files(table)
    for _ in range(3):
        assert collect(table, audit).exit_code == 0
    assert not folder.exists()
    assert unnamed(before, table, audit) == []
    path = folder.relative_to(table.uri).as_posix()
    found = search(table, audit, path=f"{path}/data/any.lance").documents
    told = [(d.job, [(i.action, i.kind, i.done) for i in d.items]) for d in found]
    assert told == [
        ("garbage", [("delete", "generation", True)]),
        ("garbage", [("drop", "generation", True)]),
        ("merge", [("merge", "generation", True)]),
    ]
    merged = found[-1]
    assert (merged.items[0].generations, merged.run_id) == ((1, 2), merge.run_id)
    assert (merged.version_before, merged.version_after) == (2, 3)
    assert all(i.reason for d in found[:2] for i in d.items), "with its evidence"
    assert found == search(table, audit, path=f"{table.uri}/{path}").documents
    assert search(table, audit, path=f"{path}0").documents == ()
    assert [d.number for d in search(table, audit, run=merge.run_id).documents] == [1]
    report = verify(table, audit)
    assert (report.findings, report.unfinished, report.recorded) == ((), (), 3)


def test_all_that_expires_is_named(table: Table, audit: Path) -> None:
    versions = {v["version"] for v in table.dataset.versions()}
    latest = table.dataset.version
    collect(table, audit)
    (intent, planned), (outcome, done) = documents(table, audit)
    assert (intent.phase, outcome.phase, outcome.intents) == ("intent", "outcome", (1,))
    expired = {item.version for item in done if item.action == "expire"}
    assert expired == versions - {latest} == {i.version for i in planned if i.action == "expire"}
    paths = {item.path for item in done if item.action == "expire"}
    assert paths.isdisjoint(files(table))
    assert search(table, audit, path=f"_versions/{min(versions)}.manifest").documents
    assert search(table, audit, path="data/whatever.lance").documents
    # What only becomes garbage with the versions is foreseen: one document names it all.
    assert {i.path for i in planned} == {i.path for i in done}


def test_an_idle_run_and_one_that_only_lists_write_nothing(table: Table, audit: Path) -> None:
    due = GarbageRequest(retention_seconds=0, grace_seconds=0, allow_short_retention=True)
    listing = GarbageOptions(tables=[resolve(table, audit)], request=due)
    assert run_garbage(listing, Quiet()).outcome == "done"
    assert not audit.exists()
    merge = MergeOptions(tables=[resolve(table, audit)], engine="local")
    assert run_merge(merge, Quiet()).outcome == "nothing_to_do"
    assert not audit.exists()


def test_compaction_lease_break_checkpoint_and_quiesce(tmp_path: Path, audit: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(20), max_rows_per_file=5)
    resolved = resolve(table, audit)
    done = run_compaction(CompactionOptions(tables=[resolved], engine="local"), Quiet())
    assert done.outcome == "done"
    table.stores.leases.acquire("merge")
    run_lease_break(resolved, "its host burnt down", "run-of-ann")
    memwal.open_table(table.uri).checkpoint("eom")
    assert run_drop(resolved, "eom").outcome == "done"
    options = QuiesceOptions(
        tables=[resolved], engine="local", confirm=lambda *_: True, request=QuiesceRequest(yes=True)
    )
    assert run_quiesce(options, Quiet()).outcome in ("done", "nothing_to_do")
    found = documents(table, audit)
    assert [(e.job, e.phase) for e, _ in found] == [
        ("compaction", "outcome"),
        ("lease break", "outcome"),
        ("checkpoint", "intent"),
        ("checkpoint", "outcome"),
        ("quiesce", "outcome"),
    ]
    ((rewrite,), (broken,), (dropping,), (dropped,), (still,)) = [items for _, items in found]
    assert (rewrite.action, rewrite.fragments, rewrite.done) == ("rewrite", (0, 1, 2, 3), True)
    assert rewrite.version == table.dataset.version
    assert (broken.action, broken.reason) == ("break", "its host burnt down")
    assert broken.path in files(table), "the claim that broke it"
    assert found[1][0].run_id == "run-of-ann"
    assert dropping.path == dropped.path and dropped.done and not dropping.done
    assert dropped.path.startswith("_refs/tags/") and dropped.path not in files(table)
    assert (still.action, still.reason, still.done) == ("quiesce", "nothing is in the way", True)
    assert verify(table, audit).error is None


def test_a_rescue_names_torn_entries_before_it_replaces_them(tmp_path: Path, audit: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    abandon(table, shard, Put([0, 6], 20), Put([7], 30))
    torn = entry_file(table, shard, 2)
    torn.write_bytes(torn.read_bytes()[:700])
    long_ago = torn.stat().st_mtime - 3600
    for path in Path(table.uri).rglob("*"):
        os.utime(path, (long_ago, long_ago))

    def run(place: object) -> JobReport:
        request = RescueRequest(idle_seconds=600, drop_torn=True)
        options = RescueOptions(
            tables=[resolve(table, place)], confirm=lambda *_: True, request=request
        )
        return run_rescue(options, Quiet())

    wall = tmp_path / "file"
    wall.write_text("no folder")
    refused = run(wall)
    assert (refused.exit_code, len(torn.read_bytes())) == (1, 700)
    assert "the audit trail can't be written" in str(refused.tables[0].error)
    done = run(audit)
    assert done.outcome == "done", done
    (intent, planned), (outcome, items) = documents(table, audit)
    assert (intent.phase, intent.job, outcome.phase) == ("intent", "rescue", "outcome")
    assert [(i.action, i.path) for i in planned] == [("replace", layout.wal_entry_path(shard, 2))]
    assert [(i.action, i.done) for i in items] == [("rescue", True), ("replace", True)]
    assert items[0].generations == (1, 1)
    assert "silent for" in str(items[0].reason)


# ---- before the first deletion


def die_at(uri: str, audit: str, nth: int) -> None:
    """A garbage run that is killed at its nth step."""
    left = nth

    def step(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    collect(Table(uri=uri, kind=builders.KINDS["int64"], options={}), audit, steps=step)


@pytest.mark.nightly
def test_whatever_a_killed_run_deleted_it_had_named_before(tmp_path: Path, audit: Path) -> None:
    table = laid_out(tmp_path / "t", generations=2, shards=2)
    before, deaths = files(table), 0
    for nth in (1, 2, 3, 1, 2, 4, 1, 3, 5):
        if not killed(die_at, table.uri, str(audit), nth):
            continue
        deaths += 1
        assert unnamed(before, table, audit) == []
        report = verify(table, audit)
        assert report.findings == ()
        assert len(report.unfinished) >= 1
        assert all(left.ended and left.job == "garbage" for left in report.unfinished)
    assert deaths >= 5
    assert "unfinished" in {d.state for d in search(table, audit).documents}
    left = len(verify(table, audit).unfinished)
    for _ in range(3):
        assert collect(table, audit).exit_code == 0
    assert len(verify(table, audit).unfinished) == left, "what a killed run did, no other one tells"
    assert unnamed(before, table, audit) == []
    assert len(before - files(table)) > 8


@pytest.mark.parametrize("retention", [None, 0.0])
def test_each_intent_is_there_before_its_deletion(
    table: Table, audit: Path, retention: float | None
) -> None:
    """Also those of what a run only finds once it has deleted something."""
    if retention is None:
        expire(table)
    before = files(table)
    told: list[tuple[str, int]] = []

    def step(name: str) -> None:
        told.append((name, len(documents(table, audit))))
        assert unnamed(before, table, audit) == []

    for _ in range(3):
        collect(table, audit, steps=step, retention_seconds=retention)
    expected = {"before_drop", "before_delete"} | ({"before_expire"} if retention == 0 else set())
    assert {name for name, _ in told} >= expected
    assert all(number > 0 for _, number in told)
    walls = [i for _, items in documents(table, audit) for i in items if i.kind == "wal_entry"]
    assert walls, "entries of the WAL are planned last"


@pytest.mark.parametrize("lease", [True, False])
def test_a_run_that_fails_says_so(table: Table, audit: Path, lease: bool) -> None:
    def fail(step: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(table, audit, steps=fail, lease=lease)
    (intent, planned), (outcome, items) = documents(table, audit)
    assert (intent.phase, outcome.phase, outcome.intents) == ("intent", "outcome", (1,))
    assert (outcome.outcome, outcome.exit_code, len(items)) == ("failed", 130, 0)
    newest, oldest = search(table, audit, path=planned[0].path), search(table, audit)
    assert [d.state for d in newest.documents] == ["failed"], "the outcome does not tell of it"
    assert [d.state for d in oldest.documents] == ["outcome", "failed"]


# ---- a trail that can't be written


def test_it_stops_deletions_and_not_merges(table: Table, audit: Path) -> None:
    audit.write_text("a file where a folder should be")
    before = files(table)
    report = collect(table, audit)
    assert report.exit_code == 1
    assert "the audit trail can't be written, so nothing of this was deleted" in str(
        report.tables[0].error
    )
    gone = before - files(table)
    assert {path for path in gone if not path.startswith(PASSING)} == set()
    (shard,) = table.shards
    table.flush(shard, Put([5, 90], 7))
    resolved = resolve(table, audit)
    merged = run_merge(MergeOptions(tables=[resolved], engine="local"), Quiet())
    assert (merged.outcome, merged.exit_code) == ("done", 0)
    (warning,) = merged.tables[0].warnings  # type: ignore[attr-defined]
    assert "the audit trail lacks what this run did" in warning
    memwal.open_table(table.uri).checkpoint("eom")
    dropped = run_drop(resolved, "eom")
    assert dropped.exit_code == 1
    assert [c.name for c in table.stores.checkpoints.list()] == ["eom"]
    audit.unlink()
    assert collect(table, audit).exit_code == 0


def test_a_trail_that_fails_in_the_middle_leaves_the_rest(
    table: Table, tmp_path: Path, audit: Path
) -> None:
    """Entries of the WAL are named in a second document."""
    collect(table, audit, wal=False)

    def wall(step: str) -> None:
        if step == "before_delete" and audit.is_dir():
            audit.rename(tmp_path / "away")
            audit.write_text("a file")

    before = files(table)
    report = collect(table, audit, steps=wall)
    assert report.exit_code in (1, 6)
    assert "can't be written" in str(report.tables[0].error)
    gone = {path for path in before - files(table) if not path.startswith(PASSING)}
    assert any("_gen_" in path for path in gone)
    assert not any("/wal/" in path for path in gone)
    audit.unlink()
    (tmp_path / "away").rename(audit)
    assert len(verify(table, audit).unfinished) == 1
    collect(table, audit)
    assert any("/wal/" in path for path in before - files(table))
    assert unnamed(before, table, audit) == []


def test_an_impossible_place_stops_deletions(table: Table) -> None:
    report = collect(table, "ftp://there/x")
    assert report.exit_code == 1
    assert "ftp:// is not supported" in str(report.tables[0].error)


# ---- whether it is whole


@pytest.fixture(scope="module")
def followed(made: Table, tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, Path]:
    """A table, and its trail of five documents."""
    folder = tmp_path_factory.mktemp("followed")
    table, audit = made.copied(folder / "t"), folder / "audit"
    collect(table, audit)
    collect(table, audit)
    assert verify(table, audit).error is None
    assert len(documents(table, audit)) == 5
    return table, audit


@pytest.fixture
def written(followed: tuple[Table, Path], audit: Path) -> Table:
    """The table, whose trail is copied to `audit`."""
    table, trail = followed
    shutil.copytree(trail, audit)
    return table


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"done":true', '"done":null'))


@pytest.mark.parametrize(
    ("what", "number", "codes"),
    [
        (Path.unlink, 1, ["MW-U01"]),
        (Path.unlink, 3, ["MW-U01"]),
        (Path.unlink, 5, ["MW-U03"]),
        (edit, 2, ["MW-U02"]),
        (lambda path: path.write_bytes(b""), 4, ["MW-U02"]),
        (lambda path: path.write_bytes(path.with_name("999999999999.jsonl").read_bytes()), 2,
         ["MW-U02"]),
    ],
    ids=["first gone", "one gone", "newest gone", "edited", "emptied", "a copy of another"],
)  # fmt: skip
def test_what_is_missing_or_changed_is_found(
    written: Table, audit: Path, what: Callable[[Path], None], number: int, codes: list[str]
) -> None:
    (path,) = audit.rglob(layout.audit_path("x", number).rpartition("/")[2])
    what(path)
    report = verify(written, audit)
    assert (report.outcome, report.exit_code) == ("failed", 8)
    assert [found.code for found in report.findings] == codes
    assert codes[0] in str(report.error)
    assert run_audit_verify_place(str(audit), {}).exit_code == (0 if codes == ["MW-U03"] else 8)
    found = search(written, audit)
    assert found.outcome == "done", "the others are shown all the same"


def test_a_trail_that_was_written_anew_is_found(written: Table, audit: Path) -> None:
    """With every digest right: what the table's run records say does not fit."""
    trail = open_trail(resolve(written, audit), written.uri, SystemClock())
    kept = documents(written, audit)
    for path in audit.rglob("*.jsonl"):
        path.unlink()
    for entry, items in kept:
        trail.append(entry, [item for item in items if item.kind != "generation"])
    report = verify(written, audit)
    assert {found.code for found in report.findings} == {"MW-U03"}
    assert run_audit_verify_place(str(audit), {}).exit_code == 0, "by itself it is whole"


# ---- where


def test_a_trail_outlives_its_table_and_is_one_for_all_spellings(
    tmp_path: Path, audit: Path
) -> None:
    table = laid_out(tmp_path / "t", generations=1)
    collect(table, audit)
    link = tmp_path / "link"
    link.symlink_to(table.uri)
    linked = ResolvedTable(
        name="link", uri=str(link), settings=Settings(audit=str(audit)), storage_options={}
    )
    (report,) = run_audit([linked], AuditRequest()).tables
    assert isinstance(report, AuditTableReport) and report.searched == 2
    shutil.rmtree(table.uri)
    assert search(table, audit).searched == 2


def test_the_command_line(table: Table, tmp_path: Path, audit: Path) -> None:
    config = tmp_path / "memwal.toml"
    config.write_text('[defaults]\naudit = "audit"\n[tables.orders]\nuri = "t"\n')

    def run(*words: str) -> tuple[int, Any]:
        done = command(*words, "--json", config=config)
        return done.exit_code, json.loads(done.stdout)

    assert run("garbage", "orders", *SHORT)[0] == 0
    assert audit.is_dir(), "beside the file"
    code, found = run("audit", "orders")
    assert code == 0 and [d["job"] for d in found["tables"][0]["documents"]] == ["garbage"]
    document = found["tables"][0]["documents"][0]
    assert document["items_in_all"] == len(document["items"]) > 0
    code, found = run("audit", "orders", "--run", document["run_id"], "--limit", "1")
    assert [d["number"] for d in found["tables"][0]["documents"]] == [2]
    code, found = run("audit", "orders", "--run", "another")
    assert code == 0 and found["tables"][0]["documents"] == []
    for words in (("audit", "verify"), ("audit", "verify", "orders"), ("audit", "verify", "--all")):
        code, found = run(*words)
        assert (code, found["tables"][0]["documents"]) == (0, 2)
    assert "garbage  done, version" in command("audit", "orders", config=config).stdout
    (newest,) = audit.rglob("999999999998.jsonl")
    newest.unlink()
    assert run("audit", "verify", "orders")[0] == 8
    for words, says in (
        (("audit", table.uri), "no audit trail is configured"),
        (("audit", "verify"), "no place for audit trails"),
        (("audit", "verify", "--path", "x"), "takes no --path"),
    ):
        done = command(*words, "--json")
        assert done.exit_code == 2 and says in done.stdout
    assert command("audit", "verify", "--audit", audit).exit_code == 0


# ---- keys


def test_a_key_leads_to_its_shard_and_is_written_nowhere(tmp_path: Path, audit: Path) -> None:
    secret, source = 471_147_114_711, tmp_path / "in.jsonl"
    table = make(tmp_path / "t", bucket_column="id", num_buckets=3)
    rows = rows_of([secret, *range(12)]).to_pylist()
    source.write_text("\n".join(map(json.dumps, rows)))
    for words in (
        ("ingest", table.uri, source),
        ("merge", table.uri, "--audit", audit),
        *[("garbage", table.uri, *SHORT, "--audit", audit)] * 2,
    ):
        done = command(*words, "--engine", "local")
        assert done.exit_code == 0, done.output
    assert all(str(secret) not in path.read_text() for path in audit.rglob("*.jsonl"))
    asked = ("--key", f"id={secret}")
    [shard] = memwal.shard_of(table.uri, [{"id": secret}]).to_pylist()
    done = command("audit", table.uri, "--audit", audit, *asked, "--json")
    (found,) = json.loads(done.stdout)["tables"]
    items = [item for document in found["documents"] for item in document["items"]]
    assert {item["shard_id"] for item in items} - {None} == {shard}
    assert {item["action"] for item in items} >= {"merge", "expire", "drop"}


def test_what_was_asked_has_no_texts_and_no_pairs() -> None:
    assert describe_asked(None) == {}
    assert describe_asked(GarbageRequest()) == {}
    assert describe_asked(GarbageRequest(execute=True, grace_seconds=5)) == {
        "execute": True,
        "grace_seconds": 5,
    }
    secret = "given, and not written down"
    assert describe_asked(AuditRequest(run="4711", limit=7)) == {"run": secret, "limit": 7}
    assert describe_asked(EraseRequest(key=(("id", "4711"),))) == {"key": secret}
    assert describe_asked(RescueRequest(shards=["ce5b"])) == {"shards": ["ce5b"]}


def test_a_repair_names_what_it_replaces(table: Table, audit: Path) -> None:
    hint = Path(table.uri) / layout.version_hint_path(table.shards[0])
    hint.write_text('{"version": 99999}')
    opened = memwal.open_table(table.uri, audit=str(audit))
    assert opened.repair(execute=True, yes=True).mended == 1
    *_, (intent, named), (outcome, items) = documents(table, audit)
    assert (intent.phase, intent.job, outcome.phase) == ("intent", "repair", "outcome")
    assert [item.path for item in named] == [item.path for item in items]
    assert items[0].done and items[0].path.startswith(layout.shard_folder(table.shards[0]))
    assert verify(table, audit).findings == ()


@pytest.mark.parametrize("broken", ["hint", "lease"])
def test_a_repair_that_fails_closes_its_intent(table: Table, audit: Path, broken: str) -> None:
    """Of a lease that can't be read, it is mended before another one is taken."""
    kept = {"hint": layout.version_hint_path(table.shards[0]), "lease": layout.lease_claim_path(99)}
    path = Path(table.uri) / kept[broken]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"version": 99999}' if broken == "hint" else "{")
    os.utime(path, (0, 0))

    def fail(step: str) -> None:
        raise StoreUnavailable("away")

    options = RepairOptions(
        tables=[resolve(table, audit)],
        request=RepairRequest(execute=True),
        confirm=lambda name, damages: True,
        find_place=lambda name: resolve(table, audit),
    )
    assert run_repair(options, Quiet(), fail).outcome == "failed"
    (intent, _), (outcome, _) = documents(table, audit)[-2:]
    assert (intent.phase, outcome.phase) == ("intent", "outcome")
    assert (outcome.intents, outcome.outcome) == ((intent.number,), "failed")
    (record,) = table.stores.run_records.newest(1).records
    assert (record.job, record.outcome) == ("repair", "failed")
