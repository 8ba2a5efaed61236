"""Erasures of real tables: nothing of the rows is left in any file, and the proof says so."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import memwal
from memwal.config import Settings
from memwal.errors import PartlyFailed, Usage
from memwal.format import layout
from memwal.ingest import open_writer
from memwal.jobs.audit.job import run_audit
from memwal.jobs.audit.request import AuditRequest
from memwal.jobs.erase.apply import Eraser
from memwal.jobs.erase.job import run_list
from memwal.jobs.erase.keys import read_keys
from memwal.model import ShardId
from memwal.read import open_table
from memwal.report import JobOnTable, TableReport
from memwal.run.options import RunOptions
from tests.jobs.erase.people import (
    SCHEMA,
    People,
    check_gone,
    erase,
    held,
    make_people,
    mark_of,
    marks,
    named,
    rows_of,
    vector_of,
)
from tests.support.ingest_tables import make
from tests.support.ingest_tables import rows_of as numbers_of
from tests.support.policy_tables import Variant, make_policy_table
from tests.support.progress import Quiet
from tests.support.raw_bytes import find_marks
from tests.support.stopping import Stop, StopAt

pytestmark = pytest.mark.integration

LARGE = 0x5A17_C3D9_E281_F7A6

# ---- all of it, at once


@pytest.mark.parametrize(
    ("stable", "version"), [pytest.param(False, "2.0", marks=pytest.mark.nightly), (True, "2.1")]
)
def test_no_byte_of_a_row_is_left(tmp_path: Path, stable: bool, version: str) -> None:
    table = make_people(tmp_path, stable=stable, writes={"data_storage_version": version})
    before = find_marks(table.uri, marks("person-0007"))
    kinds = {path.partition("/")[0] for path in before}
    assert kinds >= {"data", "_indices", "_mem_wal"}, "the search has to find what is there"
    rows = table.rows()
    report = erase(table, "person-0007")
    assert (report.outcome, report.error) == ("done", None), report
    assert report.erasure.state == "done"
    assert report.states.keys() == {"absent"}
    check_gone(table, "person-0007")
    del rows["person-0007"]
    assert table.rows() == rows
    stats = lance.dataset(table.uri).stats.index_stats("note_idx")["indices"]
    words = {w for row in rows.values() for w in row["note"].split()}
    assert [part["num_tokens"] for part in stats] == [len(words)]
    # The proof can be repeated with the key.
    shown = erase(table, "person-0007", execute=False)
    assert {o.kind for o in shown.objects} == {"index"}, "what can't be read is named"


def test_the_proof_names_every_object_and_no_key(table: People) -> None:
    report = erase(table, "person-0007", grace_seconds=3600.0)
    assert report.erasure.state == "open"
    listed = {o.path for o in report.objects}
    since = {p for p in table.files() if p.startswith(layout.MAINTENANCE)}
    assert set(table.files()) - since <= listed
    found = find_marks(table.uri, marks("person-0007"))
    assert set(found) <= held(report).keys(), "what holds a mark has to be said"
    folder = f"{table.uri}/{layout.erasure_folder(report.erasure.erasure_id)}"
    lines = [json.loads(line) for line in Path(f"{folder}/proof.jsonl").read_text().splitlines()]
    assert {line["path"] for line in lines} == listed
    assert b"person-0007" not in Path(f"{folder}/proof.jsonl").read_bytes()
    assert b"person-0007" not in Path(f"{folder}/record.json").read_bytes()


def test_a_dry_run_lists_what_holds_the_keys_and_changes_nothing(table: People) -> None:
    before = table.files()
    report = erase(table, "person-0007", execute=False)
    assert table.files() == before
    assert report.outcome == "done"
    assert report.erasure is None
    found = report.found
    assert (report.rows, found["generation"], found["wal_entry"]) == (2, 2, 3)
    assert found["index"] >= 3
    assert {o.state for o in report.objects} == {"held"}
    assert len(report.claimed) == 1


def test_keys_that_are_nowhere_are_nothing_to_do(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    dataset = lance.write_dataset(rows_of(named(1, 2), 0), table.uri, schema=SCHEMA)
    dataset.initialize_mem_wal()
    report = erase(table, "person-0009")
    assert (report.outcome, report.erasure) == ("nothing_to_do", None)


# ---- what has to wait


def test_what_has_to_wait_says_why_and_a_later_run_finishes_it(table: People) -> None:
    report = erase(table, "person-0007", retention_seconds=86_400.0)
    assert (report.outcome, report.erasure.state) == ("done", "open")
    left = held(report)
    assert any("version" in why for path, why in left.items() if path.startswith("data/"))
    untils = {o.until for o in report.objects if o.path.startswith("data/") and o.state == "held"}
    assert untils and None not in untils
    assert "person-0007" not in table.rows()
    shown = erase(table, "person-0007", execute=False)
    assert held(shown).keys() >= {p for p in left if p.startswith("data/")}
    (listed,) = run_list(RunOptions(tables=[table.resolved]), Quiet()).tables
    assert [(e.state, e.left) for e in listed.erasures] == [("open", len(left) - 1)]
    opened = memwal.open_table(table.uri)
    [told] = [w for w in opened.status().warnings if "erasure" in w]
    assert "memwal erase resume TABLE --execute" in told
    again = erase(table, "person-0007")
    assert (again.erasure.erasure_id, again.erasure.state) == (report.erasure.erasure_id, "done")
    assert again.claimed == ()
    assert [e.state for e in opened.erasures().erasures] == ["done"]
    assert not [w for w in opened.status().warnings if "erasure" in w]
    check_gone(table, "person-0007")


def test_the_highest_wal_entry_goes_too(tmp_path: Path) -> None:
    """It stays for good (invariant 7), unless another is above it."""
    table = People(uri=str(tmp_path / "t"))
    lance.write_dataset(rows_of(named(1, 2), 0), table.uri, schema=SCHEMA).initialize_mem_wal()
    table.write(rows_of(named(1), 1))
    table.write(rows_of(named(7), 1))
    table.maintain()
    erase(table, "person-0007")
    check_gone(table, "person-0007")
    # And no later claim brings an entry into the way of the rest.
    table.write(rows_of(named(3), 1))
    erase(table, "person-0001")
    check_gone(table, "person-0001", "person-0007")
    assert set(table.rows()) == set(named(2, 3))


@pytest.mark.parametrize("puts", [(), ([3],)])
def test_claims_that_left_no_row_hold_no_key(tmp_path: Path, puts: Sequence[Sequence[int]]) -> None:
    """They hold the WAL entries below a newer sentinel, whatever later writers put."""
    table = People(uri=str(tmp_path / "t"))
    lance.write_dataset(rows_of(named(1, 2), 0), table.uri, schema=SCHEMA).initialize_mem_wal()
    table.write(rows_of(named(7, 2), 1), closes=False)
    for parts in ((), (), *puts):
        table.write(*(rows_of(named(n), 2) for n in parts))
    table.maintain()
    report = erase(table, "person-0007")
    assert (report.exit_code, report.erasure.state) == (0, "done"), held(report)
    check_gone(table, "person-0007")
    # No position below the last idle claim is free: a stalled one would take it for the tip.
    positions = sorted(
        layout.parse_wal_entry_name(Path(path).name) for path in table.files() if "/wal/" in path
    )
    assert positions[:3] == [1, 2, 3]
    table.write(rows_of(named(8), 3))
    table.maintain()
    assert set(table.rows()) == set(named(1, 2, 8, *(n for part in puts for n in part)))


def test_an_erasure_that_no_later_run_ends_says_what_is_in_its_way(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    lance.write_dataset(rows_of(named(1, 7), 0), table.uri, schema=SCHEMA).initialize_mem_wal()
    table.write(rows_of(named(7), 1))
    report = erase(table, "person-0007", retention_seconds=None)
    assert (report.outcome, report.exit_code, report.erasure.until) == ("partial", 6, None)
    assert "no retention expires it" in report.error
    report = erase(table, "person-0007", retention_seconds=86_400.0)
    assert (report.outcome, report.exit_code) == ("done", 0)
    assert datetime.fromisoformat(report.erasure.until) > datetime.now(UTC)
    report = erase(table, "person-0007", grace_seconds=3600.0)
    assert (report.outcome, report.exit_code) == ("done", 0)
    # A later one within the grace.
    report = erase(table, "person-0007", grace_seconds=3600.0)
    assert (report.outcome, report.exit_code, report.erasure.state) == ("done", 0, "open")


@pytest.mark.parametrize("branch", [False, True])
def test_on_a_clone_and_a_branch_a_row_of_the_parent_is_erased(
    tmp_path: Path, branch: bool
) -> None:
    parent = str(tmp_path / "t")
    lance.write_dataset(rows_of(named(1, 7), 0), parent, schema=SCHEMA).initialize_mem_wal()
    dataset = lance.dataset(parent)
    table = People(uri=f"{parent}/tree/dev" if branch else str(tmp_path / "clone"))
    if branch:
        dataset.create_branch("dev")
    else:
        dataset.shallow_clone(table.uri, dataset.version)
    dry = erase(table, "person-0007", execute=False)
    assert (dry.outcome, dry.rows) == ("done", 1)
    report = erase(table, "person-0007")
    assert (report.exit_code, report.erasure.state) == (0, "done"), held(report)
    assert set(table.rows()) == {"person-0001"}
    assert any(text.startswith(parent) and "erase there" in text for text in report.not_looked_at)
    assert set(People(uri=parent).rows()) == {"person-0001", "person-0007"}


def test_a_table_without_a_mem_wal_and_a_row_that_is_put_again(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    dataset = lance.write_dataset(rows_of(named(*range(9)), 0), table.uri, schema=SCHEMA)
    dataset.create_scalar_index("note", "INVERTED", name="note_idx")
    report = erase(table, "person-0007", retention_seconds=86_400.0)
    assert (report.outcome, report.erasure.state, report.claimed) == ("done", "open", ())
    assert table.rows().keys() == {*named(*range(9))} - {"person-0007"}
    lance.write_dataset(rows_of(named(7), 1), table.uri, mode="append")
    report = erase(table, "person-0007")
    assert (report.error, report.erasure.state) == (None, "done"), held(report)
    assert report.states["written_again"] == 1
    assert table.rows()["person-0007"]["note"].startswith(mark_of("person-0007", 1))
    assert find_marks(table.uri, [mark_of("person-0007", 0).encode()]) == {}


def test_a_latest_version_that_names_the_key_is_left(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    lance.write_dataset(rows_of(named(1), 0), table.uri, schema=SCHEMA)
    lance.dataset(table.uri).delete("id = 'person-0007'")
    assert find_marks(table.uri, marks("person-0007"))
    assert erase(table, "person-0007").erasure.state == "done"
    check_gone(table, "person-0007")


def test_a_row_that_is_gone_from_the_base_is_erased(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    lance.write_dataset(rows_of(named(1, 2), 0), table.uri, schema=SCHEMA).initialize_mem_wal()
    table.write(rows_of(named(7), 1))
    table.maintain()
    lance.dataset(table.uri).delete("id = 'person-0007'")
    report = erase(table, "person-0007")
    assert report.erasure.state == "done", held(report)
    check_gone(table, "person-0007")


def test_rows_that_were_never_merged(table: People, tmp_path: Path) -> None:
    """One in a generation that waits, one in the WAL only."""
    rows = table.rows()
    file = tmp_path / "keys.csv"
    file.write_text("\n".join(["id", *named(500, 501)]))
    report = erase(table, keys=str(file))
    assert report.states.keys() == {"absent"}, report.states
    check_gone(table, *named(500, 501))
    assert table.rows() == {key: row for key, row in rows.items() if key not in named(500, 501)}


def test_a_tag_or_a_checkpoint_stops_it(table: People) -> None:
    """The checkpoint holds pending rows, too."""
    opened = memwal.open_table(table.uri)
    opened.checkpoint("monday")
    lance.dataset(table.uri).tags.create("audit-2026", lance.dataset(table.uri).version)
    before = table.files()
    for execute in (True, False):
        report = erase(table, "person-0007", execute=execute)
        assert (report.outcome, report.exit_code) == ("refused", 5)
        for text in ("checkpoint 'monday'", "'audit-2026'", "MW-Z01"):
            assert text in str(report.error)
    assert report.rows and report.objects  # listed all the same
    assert table.files() == before
    report = erase(table, "person-0007", through_tags=True)
    assert report.erasure.state == "done", held(report)
    assert lance.dataset(table.uri).tags.list() == {}
    assert opened.checkpoints().checkpoints == ()
    check_gone(table, "person-0007")


def test_a_tag_of_another_moment_stays(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    lance.write_dataset(rows_of(named(1, 2), 0), table.uri, schema=SCHEMA).initialize_mem_wal()
    lance.dataset(table.uri).tags.create("before", lance.dataset(table.uri).version)
    table.write(rows_of(named(7), 1))
    report = erase(table, "person-0007", through_tags=True)
    assert (report.outcome, report.exit_code) == ("partial", 6)
    assert "version 2 is retained" in report.error
    assert set(lance.dataset(table.uri).tags.list()) == {"before"}


# ---- written again


@pytest.mark.nightly
def test_a_key_that_is_written_again_is_a_new_row(table: People) -> None:
    erase(table, "person-0007", retention_seconds=86_400.0)
    table.write(rows_of(named(7), 8))
    second = erase(table, "person-0007")
    assert second.erasure.state == "done", held(second)
    assert second.states["written_again"] >= 1
    again = {o.path for o in second.objects if o.state == "written_again"}
    assert table.rows()["person-0007"]["note"] == f"{mark_of('person-0007', 8)} words"
    old = [m for m in marks("person-0007") if m != b"person-0007" and b"zx008" not in m]
    old.remove(struct.pack("<2f", *vector_of("person-0007", 8)[:2]))
    assert find_marks(table.uri, old) == {}
    where = find_marks(table.uri, [b"person-0007"])
    assert set(where) - {p for p in where if p.startswith("_indices/")} <= again


@pytest.mark.nightly
def test_a_tag_that_was_moved_since_is_not_deleted(table: People) -> None:
    dataset = lance.dataset(table.uri)
    dataset.tags.create("kept", dataset.version)

    def move(step: str) -> None:
        if step == "drop":
            latest = lance.dataset(table.uri)
            latest.tags.update("kept", latest.version)

    report = erase(table, "person-0007", through_tags=True, steps=move)
    assert "names version" in (report.error or "")
    assert "kept" in lance.dataset(table.uri).tags.list()


def test_the_trail_says_what_was_claimed_and_dropped(table: People, tmp_path: Path) -> None:
    table.settings = Settings(audit=str(tmp_path / "trail"))
    dataset = lance.dataset(table.uri)
    dataset.tags.create("kept", dataset.version)
    dry = erase(table, "person-0007", through_tags=True, execute=False)
    assert list(dry.audited()) == []
    report = erase(table, "person-0007", through_tags=True)
    entry = layout.wal_entry_path(table.shard, 7)
    assert [item.path for item in report.dropped] == ["_refs/tags/kept.json", entry]
    (told,) = run_audit([table.resolved], AuditRequest(path="_refs/tags/kept.json")).tables
    [(state, item)] = [(d.state, i) for d in told.documents for i in d.items]
    assert (state, item.action, item.done) == ("outcome", "drop", True)
    (told,) = run_audit([table.resolved], AuditRequest()).tables
    own = [d for d in told.documents if d.job == "erase"]
    assert {(i.action, i.shard_id) for d in own for i in d.items} == {
        ("drop", None), ("claim", table.shard), ("replace", table.shard)
    }  # fmt: skip
    assert "person-0007" not in told.model_dump_json()


# ---- stopped


STEPS = ("record", "tombstones", "deleted", "rebuild", "prove", "forget")


@pytest.mark.parametrize(
    "step", ["written", *(pytest.param(s, marks=pytest.mark.nightly) for s in STEPS)]
)
def test_a_run_that_was_stopped_is_finished_by_the_next(table: People, step: str) -> None:
    with pytest.raises(Stop):
        erase(table, "person-0007", steps=StopAt(step))
    report = erase(table, "person-0007")
    assert report.error is None
    assert report.erasure.state == "done", held(report)
    check_gone(table, "person-0007")
    (listed,) = run_list(RunOptions(tables=[table.resolved]), Quiet()).tables
    assert [e.state for e in listed.erasures] == ["done"]
    assert len(table.rows()) == 301


@pytest.mark.nightly
def test_two_runs_of_one_key_are_one_erasure(table: People) -> None:

    def another(name: str, shards: Sequence[str]) -> bool:
        erase(table, "person-0007", retention_seconds=86_400.0)
        return True

    report = erase(table, "person-0007", confirm=another)
    (listed,) = run_list(RunOptions(tables=[table.resolved]), Quiet()).tables
    assert [e.state for e in listed.erasures] == ["done"]
    assert report.erasure.erasure_id == listed.erasures[0].erasure_id
    check_gone(table, "person-0007")


# ---- other places that rows get into


def test_other_places_and_what_cannot_be_read(table: People) -> None:
    """A delete's condition, a run's error, staged rows; what is unreadable is not called absent."""
    root = Path(table.uri)
    lance.dataset(table.uri).delete("id = 'person-0009'")
    run = root / layout.run_record_path(10**18, "0" * 32)
    run.write_text(json.dumps({"error": "key {'id': 'person-0009'} can't be written", "rows": 9}))
    staged = f"{layout.ingest_round_folder('nightly', 1)}/staged/r/0.arrow"
    (root / staged).parent.mkdir(parents=True)
    with pa.ipc.new_stream(str(root / staged), SCHEMA) as stream:
        stream.write_table(rows_of(named(7, 9), 4))
    unreadable = {f"{layout.MAINTENANCE}/torn.arrow": b"\xff" * 100, "notes.bin": b"person-0009"}
    for name, data in unreadable.items():
        (root / name).write_bytes(data)
    report = erase(table, "person-0009", retention_seconds=86_400.0)
    assert not run.exists()
    assert {o.path for o in report.objects if o.state == "unknown"} >= unreadable.keys()
    left = held(report).keys()
    assert {path.partition("/")[0] for path in left} >= {"_transactions", "_versions", "data"}
    assert staged in left
    assert erase(table, "person-0009").erasure.state == "open"
    for name in (staged, *unreadable):
        (root / name).unlink()
    report = erase(table, "person-0009")
    assert report.erasure.state == "done", held(report)
    check_gone(table, "person-0009")


def test_what_was_killed_before_it_was_in_its_place_is_waited_for(tmp_path: Path) -> None:
    """Garbage takes it once it is a day old, whatever the grace."""
    table = small(tmp_path)
    entry = layout.wal_entry_path(ShardId(table.shard), 9)
    staged = [f"{layout.STAGING}/17-ab", f"{entry}.tmp.{'0a' * 16}", f"{entry}.tmp.{'0b' * 16}#1"]
    for name in staged:
        Path(table.uri, name).parent.mkdir(parents=True, exist_ok=True)
        Path(table.uri, name).write_bytes(b"person-0001")
    report = erase(table, "person-0001")
    assert (report.exit_code, report.erasure.state) == (0, "open")
    left = {o.path: o for o in report.objects if o.is_left}
    assert left.keys() == {*staged}
    assert all("day old" in o.why and o.until == report.erasure.until for o in left.values())
    for name in staged:
        os.utime(Path(table.uri, name), (1e9, 1e9))
    report = erase(table, "person-0001")
    assert (report.exit_code, report.erasure.state) == (0, "done"), held(report)
    check_gone(table, "person-0001")


@pytest.mark.nightly
def test_an_index_that_cannot_be_built_anew_keeps_it_open(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    dataset = lance.write_dataset(rows_of(named(*range(260)), 0), table.uri, schema=SCHEMA)
    dataset.create_index("v", "IVF_PQ", num_partitions=1, num_sub_vectors=2, name="v_idx")
    dataset.initialize_mem_wal()
    report = erase(table, *named(7))
    assert report.erasure.state == "done", held(report)
    file = tmp_path / "keys.csv"
    file.write_text("id\n" + "\n".join(named(*range(100))))
    report = erase(table, keys=str(file))
    assert report.erasure.state == "open"
    assert any("could not be built anew" in why for why in held(report).values()), held(report)
    lance.dataset(table.uri).drop_index("v_idx")
    with pytest.raises(Stop):
        erase(table, keys=str(file), steps=StopAt("leave"))
    report = erase(table, keys=str(file), retention_seconds=86_400.0)
    assert report.erasure.state == "open", "older versions name the index as it was"
    report = erase(table, keys=str(file))
    assert report.erasure.state == "done", held(report)
    check_gone(table, *named(*range(100)))


# ---- what keeps a run from its end


def leave_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let this job of the chain do nothing."""
    run = Eraser.run

    def changed(self: Eraser, view: Any) -> Any:
        run_job, idle = self.run_job, TableReport(table="t", outcome="nothing_to_do")
        self.run_job = lambda job: JobOnTable(job=job, report=idle) if job == name else run_job(job)
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
    leave_out(monkeypatch, "merge")
    report = erase(table, "person-0002")
    assert (report.outcome, report.exit_code) == ("partial", PartlyFailed.exit_code)
    assert "not merged" in report.error
    assert report.erasure.state == "open"
    monkeypatch.undo()
    assert erase(table, "person-0002").erasure.state == "done"
    assert "person-0002" not in table.rows()


def test_nothing_is_clean_while_a_file_hides_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small(tmp_path)
    leave_out(monkeypatch, "compaction")
    report = erase(table, "person-0001")
    assert report.outcome == "partial"
    assert "still hide" in report.error
    monkeypatch.undo()
    assert erase(table, "person-0001").erasure.state == "done"


def test_fragments_are_rewritten_for_as_long_as_that_leaves_fewer() -> None:
    left = [*range(5000, 0, -256), 0]
    jobs: list[SimpleNamespace] = []

    def compact(job: str) -> None:
        jobs.append(SimpleNamespace(report=SimpleNamespace(tasks_left=left[len(jobs)])))

    search = SimpleNamespace(hides_rows=lambda version: len(jobs) < len(left))
    eraser: Any = SimpleNamespace(
        jobs=jobs, search=search, _run_job=compact, _latest=1, stores=SimpleNamespace(uri="t")
    )
    Eraser._rewrite(eraser)
    jobs.clear()
    left[:] = [9] * 99
    with pytest.raises(PartlyFailed, match="still hide erased rows"):
        Eraser._rewrite(eraser)
    assert len(jobs) == 9


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
    root, other = Path(table.uri, layout.MEM_WAL), "11111111-1111-4111-8111-111111111111"
    shutil.copytree(root / table.shard, root / other)
    shutil.rmtree(root / other / "manifest")
    report = erase(table, "person-0002")
    assert report.erasure.state == "open", report.states
    assert {path.split("/")[1] for path in held(report) if path.startswith("_mem_wal")} == {other}
    shutil.rmtree(root / other)
    assert erase(table, "person-0002").erasure.state == "done"


# ---- other keys


def test_keys_of_several_columns_in_buckets(tmp_path: Path) -> None:
    """A number of another tenant stays, in its own shard."""
    fields = [
        pa.field(name, kind, nullable=False, metadata=metadata)
        for name, kind, metadata in (
            ("tenant", pa.string(), {b"lance-schema:unenforced-primary-key:position": b"1"}),
            ("number", pa.int64(), {b"lance-schema:unenforced-primary-key:position": b"2"}),
        )
    ]
    schema = pa.schema([*fields, pa.field("note", pa.string())])
    uri = str(tmp_path / "t")

    def rows(*keys: tuple[str, int]) -> list[dict[str, Any]]:
        return [{"tenant": t, "number": n, "note": f"of {t}"} for t, n in keys]

    first = pa.Table.from_pylist(rows(("alpha", LARGE), ("beta", LARGE), ("alpha", 1)), schema)
    dataset = lance.write_dataset(first, uri)
    dataset.initialize_mem_wal(bucket_column="tenant", num_buckets=4)
    with open_writer(uri) as writer:
        writer.write(rows(("gamma", LARGE), ("alpha", 2)))
    report = erase(People(uri=uri), key=["tenant=alpha", f"number={LARGE}"])
    assert report.erasure.state == "done", held(report)
    left = open_table(uri).read(with_wal=True).read_all().to_pylist()
    assert {(r["tenant"], r["number"]) for r in left} == {
        ("alpha", 1), ("alpha", 2), ("beta", LARGE), ("gamma", LARGE)
    }  # fmt: skip


def test_a_shard_that_is_named_after_the_key_keeps_it(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    dataset = lance.write_dataset(rows_of(named(1, 2), 0), table.uri, schema=SCHEMA)
    dataset.initialize_mem_wal(identity_column="id")
    with open_writer(table.uri) as writer:
        writer.write(rows_of(named(1, 7), 1).to_pylist())
    report = erase(table, "person-0007")
    assert (report.exit_code, report.erasure.state) == (6, "open")
    left = {(o.kind, o.path.split("/")[1]) for o in report.objects if o.is_left}
    [(kind, shard)] = left
    assert (kind, shard in report.error) == ("shard_manifest", True)


def test_many_numbers_of_a_file(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    writer = table.writers().open("11111111-1111-4111-8111-111111111111")
    writer.put(numbers_of([LARGE, *range(2000)]))
    writer.close()
    file = tmp_path / "keys.csv"
    file.write_text("id,more\n" + "".join(f"{i},x\n" for i in [LARGE, *range(0, 2000, 2)]))
    report = erase(People(uri=table.uri), keys=str(file))
    assert report.erasure.state == "done", held(report)
    assert report.keys == 1001
    assert set(table.read()) == set(range(1, 2000, 2))
    assert find_marks(table.uri, [struct.pack("<q", LARGE)]) == {}


def test_a_policy_table(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=range(10))
    table.flush((3, table.row(3, 7)), (4, table.row(4, 7)))
    key = table.kind.names[0]
    [value] = table.kind.key(3)
    people = People(uri=table.uri, policy=table.variant.policy)
    report = erase(people, key=[f"{key}={value}"])
    assert report.erasure.state == "done", held(report)
    left = open_table(table.uri).read().read_all().to_pylist()
    assert len(left) == 9
    assert value not in {row[key] for row in left}


def test_keys_as_they_are_given(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("b", pa.binary())])
    file = tmp_path / "k.csv"
    file.write_text("b,id\n0x00ff,1\n0x00ff,1\n")
    found = read_keys((), str(file), ("id", "b"), schema)
    assert found.to_pylist() == [{"id": 1, "b": b"\x00\xff"}]
    for text in ("id\n", "id\nx\n", "n\n1\n"):
        file.write_text(text)
        with pytest.raises(Usage, match="--keys"):
            read_keys((), str(file), ("id",), schema)
    (tmp_path / "k.txt").write_text("1")
    with pytest.raises(Usage, match="expected a name in"):
        read_keys((), str(tmp_path / "k.txt"), ("id",), schema)
    with pytest.raises(Usage, match="either --key or --keys"):
        read_keys((), None, ("id",), schema)
    many = tmp_path / "k.parquet"
    days = pa.schema([pa.field("day", pa.string())])
    pq.write_table(pa.table({"day": pa.nulls(1, pa.string())}), many)
    with pytest.raises(Usage, match="never NULL"):
        read_keys((), str(many), ("day",), days)
    pq.write_table(pa.table({"day": ["2020-01-01"], "more": [1]}), many)
    found = read_keys((), str(many), ("day",), days)
    assert found.to_pylist() == [{"day": "2020-01-01"}]


def test_no_shard_is_claimed_unless_it_is_confirmed(tmp_path: Path) -> None:
    made = make(tmp_path / "t")
    writer = made.writers().open("11111111-1111-4111-8111-111111111111")
    writer.put(numbers_of([1]))
    writer.close()
    asked: list[Any] = []
    report = erase(
        People(uri=made.uri), "1", confirm=lambda name, shards: asked.append((name, list(shards)))
    )
    assert asked == [("t", ["11111111-1111-4111-8111-111111111111"])]
    assert "MW-R01" in str(report.error)
    assert report.exit_code == 5
    assert set(made.read()) == {1}
    assert not (tmp_path / "t" / "_maintenance" / "erasures").exists()
