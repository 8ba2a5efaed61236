"""Erasures of real tables: nothing of the rows is left in any file, and the proof says so."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.cli import main
from memwal.config import ResolvedTable, Settings
from memwal.format import layout
from memwal.jobs.audit.job import run_audit
from memwal.jobs.audit.request import AuditRequest
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.erase.job import (
    EraseOptions,
    ProofOptions,
    run_erase,
    run_list,
    run_verify,
)
from memwal.jobs.erase.request import EraseRequest, KeysRequest
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.ports import Steps, no_steps
from memwal.read import open_table
from memwal.run.options import RunOptions
from tests.support.progress import Quiet
from tests.support.raw_bytes import find_marks
from tests.support.stopping import Stop

pytestmark = pytest.mark.integration

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False, metadata=KEY),
        pa.field("note", pa.string()),
        pa.field("v", pa.list_(pa.float32(), 4)),
    ]
)
NOW = {"retention_seconds": 0.0, "grace_seconds": 0.0, "allow_short_retention": True}
Rows = dict[str, dict[str, Any]]


def mark_of(key: str, n: int) -> str:
    """A word of a row that is in nothing else."""
    return f"wq{key[-4:]}zx{n:03d}"


def vector_of(key: str, n: int) -> list[float]:
    return [1e9 + 7919.0 * int(key[-4:]), 3e7 + 131.0 * n, 1.0, 0.5]


def marks(*keys: str) -> list[bytes]:
    """Bytes that rows of the keys have, in any of their forms."""
    found = [key.encode() for key in keys]
    for key in keys:
        found += [mark_of(key, n).encode() for n in range(9)]
        found += [struct.pack("<2f", *vector_of(key, n)[:2]) for n in range(9)]
    return found


def rows_of(keys: Sequence[str], n: int) -> pa.Table:
    return pa.table(
        {
            "id": list(keys),
            "note": [f"{mark_of(key, n)} words" for key in keys],
            "v": [vector_of(key, n) for key in keys],
        },
        schema=SCHEMA,
    )


def named(*numbers: int) -> list[str]:
    return [f"person-{n:04d}" for n in numbers]


@dataclass(kw_only=True)
class People:
    """A table of people."""

    uri: str
    shard: str = field(default_factory=lambda: str(uuid.uuid4()))
    settings: Settings = Settings()
    open_writers: list[Any] = field(default_factory=list)

    def write(self, *parts: pa.Table, closes: bool = True) -> None:
        writer = lance.dataset(self.uri).mem_wal_writer(
            self.shard, durable_write=True, max_wal_flush_interval_ms=1
        )
        for part in parts:
            writer.put(part)
        if closes:
            writer.close()
        else:
            self.open_writers.append(writer)

    @property
    def resolved(self) -> ResolvedTable:
        return ResolvedTable(name="t", uri=self.uri, settings=self.settings, storage_options={})

    def run(self, job: Any, kind: Any, **more: Any) -> Any:
        (report,) = job(kind(tables=[self.resolved], engine="local", **more), Quiet()).tables
        assert report.error is None, report
        return report

    def maintain(self) -> None:
        self.run(run_merge, MergeOptions)
        self.run(run_index_catchup, IndexCatchupOptions)

    def rows(self) -> Rows:
        found = open_table(self.uri).read(with_wal=True).read_all().to_pylist()
        return {row["id"]: row for row in found}

    def files(self) -> list[str]:
        root = Path(self.uri)
        return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def make_people(
    folder: Path, *, stable: bool = False, writes: dict[str, Any] | None = None
) -> People:
    """400 people with three indexes: rows merged twice, one pending, one in the WAL only."""
    table = People(uri=str(folder / "t"))
    first = rows_of(named(*range(300)), 0)
    dataset = lance.write_dataset(
        first, table.uri, schema=SCHEMA, max_rows_per_file=100,
        enable_stable_row_ids=stable, **(writes or {}),
    )  # fmt: skip
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    dataset.create_scalar_index("note", "INVERTED", name="note_idx")
    dataset.create_index("v", "IVF_FLAT", num_partitions=2, name="v_idx")
    dataset.initialize_mem_wal()
    table.write(rows_of(named(5, 6, 7), 1))
    table.maintain()
    table.write(rows_of(named(7, 8, 500), 2))
    table.write(rows_of(named(7, 501), 3), closes=False)
    return table


def erase(
    table: People,
    *keys: str,
    execute: bool = True,
    steps: Steps = no_steps,
    lease: bool = True,
    confirm: Any = None,
    **asked: Any,
) -> Any:
    request = EraseRequest(
        key=[f"id={key}" for key in keys],
        execute=execute,
        yes=confirm is None,
        **{**NOW, **asked},
    )
    options = EraseOptions(
        tables=[table.resolved],
        request=request,
        confirm=confirm or (lambda name, shards: True),
        steps=steps,
        lease=lease,
    )
    return run_erase(options, Quiet()).tables[0]


def verify(table: People, erasure_id: str, *keys: str, also: Sequence[str] = ()) -> Any:
    options = ProofOptions(
        tables=[table.resolved],
        erasure_id=erasure_id,
        request=KeysRequest(key=[f"id={key}" for key in keys], also=also),
    )
    return run_verify(options, Quiet()).tables[0]


def held(report: Any) -> dict[str, str]:
    return {o.path: o.why for o in report.objects if o.state in ("held", "unknown")}


def check_gone(table: People, *keys: str) -> None:
    assert find_marks(table.uri, marks(*keys)) == {}


# ---- all of it, at once


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("version", ["2.0", "2.1"])
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


def test_the_text_index_has_no_word_of_it(tmp_path: Path) -> None:
    table = make_people(tmp_path, stable=True)
    erase(table, "person-0007")
    stats = lance.dataset(table.uri).stats.index_stats("note_idx")["indices"]
    words = {w for row in table.rows().values() for w in row["note"].split()}
    assert [part["num_tokens"] for part in stats] == [len(words)]


def test_the_proof_names_every_object_and_no_key(tmp_path: Path) -> None:
    table = make_people(tmp_path)
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


def test_a_dry_run_lists_what_holds_the_keys_and_changes_nothing(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    before = table.files()
    report = erase(table, "person-0007", execute=False)
    assert table.files() == before
    assert report.outcome == "done"
    assert report.erasure is None
    assert report.found is not None
    assert (report.found.rows, report.found.generations, report.found.indexes) == (2, 2, 3)
    assert report.found.wal_entries == 3
    assert len(report.claimed) == 1


def test_keys_that_are_nowhere_are_nothing_to_do(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    dataset = lance.write_dataset(rows_of(named(1, 2), 0), table.uri, schema=SCHEMA)
    dataset.initialize_mem_wal()
    report = erase(table, "person-0009")
    assert (report.outcome, report.erasure) == ("nothing_to_do", None)


# ---- what has to wait


def test_what_has_to_wait_says_why_and_a_later_run_finishes_it(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    report = erase(table, "person-0007", retention_seconds=86_400.0)
    assert (report.outcome, report.erasure.state) == ("done", "open")
    left = held(report)
    assert any("version" in why for path, why in left.items() if path.startswith("data/"))
    untils = {o.until for o in report.objects if o.path.startswith("data/") and o.state == "held"}
    assert untils and None not in untils
    assert "person-0007" not in table.rows()
    shown = verify(table, report.erasure.erasure_id)
    assert (shown.outcome, shown.exit_code) == ("partial", 6)
    assert held(shown).keys() >= {p for p in left if p.startswith("data/")}
    (listed,) = run_list(RunOptions(tables=[table.resolved]), Quiet()).tables
    assert [(e.state, e.left) for e in listed.erasures] == [("open", len(left) - 1)]
    again = erase(table, resume=report.erasure.erasure_id)
    assert (again.erasure.erasure_id, again.erasure.state) == (report.erasure.erasure_id, "done")
    assert again.claimed == ()
    check_gone(table, "person-0007")


def test_the_same_command_goes_on_with_the_open_erasure(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    first = erase(table, "person-0007", retention_seconds=86_400.0)
    second = erase(table, "person-0007")
    assert second.erasure.erasure_id == first.erasure.erasure_id


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


def test_so_it_does_where_the_row_is_gone_from_the_base(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    lance.write_dataset(rows_of(named(1, 2), 0), table.uri, schema=SCHEMA).initialize_mem_wal()
    table.write(rows_of(named(7), 1))
    table.maintain()
    lance.dataset(table.uri).delete("id = 'person-0007'")
    report = erase(table, "person-0007")
    assert report.erasure.state == "done", held(report)
    check_gone(table, "person-0007")


def test_rows_that_were_never_merged(tmp_path: Path) -> None:
    """One in a generation that waits, one in the WAL only."""
    table = make_people(tmp_path)
    rows = table.rows()
    file = tmp_path / "keys.jsonl"
    file.write_text("".join(json.dumps({"id": key}) + "\n" for key in named(500, 501)))
    report = erase(table, keys=str(file))
    assert report.states.keys() == {"absent"}, report.states
    check_gone(table, *named(500, 501))
    assert table.rows() == {key: row for key, row in rows.items() if key not in named(500, 501)}


def test_a_tag_or_a_checkpoint_stops_it(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    lance.dataset(table.uri).tags.create("audit-2026", lance.dataset(table.uri).version)
    before = table.files()
    for execute in (True, False):
        report = erase(table, "person-0007", execute=execute)
        assert (report.outcome, report.exit_code) == ("refused", 5)
        assert "'audit-2026'" in str(report.error)
        assert "MW-Z01" in str(report.error)
    assert report.found.tags == 1 and report.found.rows  # listed all the same
    assert table.files() == before
    report = erase(table, "person-0007", through_tags=True)
    assert report.erasure.state == "done"
    assert lance.dataset(table.uri).tags.list() == {}
    check_gone(table, "person-0007")


def test_a_checkpoint_of_pending_rows_stops_it(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    memwal.open_table(table.uri).checkpoint("monday")
    report = erase(table, "person-0500")
    assert "checkpoint 'monday'" in str(report.error)
    report = erase(table, "person-0500", through_tags=True)
    assert report.erasure.state == "done", held(report)
    assert memwal.open_table(table.uri).checkpoints().checkpoints == ()
    check_gone(table, "person-0500")


def test_staged_rows_of_an_ingest_are_read(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    staged = Path(table.uri) / layout.ingest_round_folder("nightly", 1) / "staged" / "r" / "0.arrow"
    staged.parent.mkdir(parents=True)
    with pa.ipc.new_stream(str(staged), SCHEMA) as stream:
        stream.write_table(rows_of(named(7, 9), 4))
    report = erase(table, "person-0007")
    assert held(report).keys() >= {str(staged.relative_to(table.uri))}
    assert report.erasure.state == "open"
    report = erase(table, "person-0008")
    assert str(staged.relative_to(table.uri)) not in held(report)


def test_a_tag_of_another_moment_stays(tmp_path: Path) -> None:
    table = People(uri=str(tmp_path / "t"))
    lance.write_dataset(rows_of(named(1, 2), 0), table.uri, schema=SCHEMA).initialize_mem_wal()
    lance.dataset(table.uri).tags.create("before", lance.dataset(table.uri).version)
    table.write(rows_of(named(7), 1))
    report = erase(table, "person-0007", through_tags=True)
    assert report.error is None
    assert set(lance.dataset(table.uri).tags.list()) == {"before"}


# ---- written again


def test_a_key_that_is_written_again_is_a_new_row(tmp_path: Path) -> None:
    table = make_people(tmp_path)
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


def test_a_key_written_while_it_runs_is_not_erased(tmp_path: Path) -> None:
    table = make_people(tmp_path)

    def steps(step: str) -> None:
        if step == "written":
            table.write(rows_of(named(7), 8))

    report = erase(table, "person-0007", steps=steps)
    assert report.error is None
    assert "person-0007" in table.rows()
    assert report.states.get("written_again"), report.states


def test_a_tag_that_was_moved_since_is_not_deleted(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    dataset = lance.dataset(table.uri)
    dataset.tags.create("kept", dataset.version)

    def move(step: str) -> None:
        if step == "unpin":
            latest = lance.dataset(table.uri)
            latest.tags.update("kept", latest.version)

    report = erase(table, "person-0007", through_tags=True, steps=move)
    assert "names version" in (report.error or "")
    assert "kept" in lance.dataset(table.uri).tags.list()


def test_the_trail_says_which_shards_were_claimed_and_what_was_dropped(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    table.settings = Settings(audit=str(tmp_path / "trail"))
    dataset = lance.dataset(table.uri)
    dataset.tags.create("kept", dataset.version)
    dry = erase(table, "person-0007", through_tags=True, execute=False)
    assert list(dry.audited()) == []
    report = erase(table, "person-0007", through_tags=True)
    assert [item.path for item in report.dropped] == ["_refs/tags/kept.json"]
    (told,) = run_audit([table.resolved], AuditRequest(path="_refs/tags/kept.json")).tables
    [(state, item)] = [(d.state, i) for d in told.documents for i in d.items]
    assert (state, item.action, item.done) == ("outcome", "drop", True)
    (told,) = run_audit([table.resolved], AuditRequest()).tables
    own = [d for d in told.documents if d.job == "erase"]
    assert {(i.action, i.shard_id) for d in own for i in d.items} == {
        ("drop", None), ("claim", table.shard)
    }  # fmt: skip
    assert "person-0007" not in told.model_dump_json()
    made = memwal.open_table(table.uri, audit=str(tmp_path / "trail"))
    [document] = made.audit(path="_refs/tags/kept.json").documents
    assert [item.action for item in document.items] == ["drop"]
    assert made.audit(key=[("id", "person-0007")]).shards_left_out == ()


# ---- killed


class StopAt:
    """Stops before a step."""

    def __init__(self, step: str) -> None:
        self.step = step

    def __call__(self, step: str) -> None:
        if step == self.step:
            raise Stop(step)


STEPS = ("record", "tombstones", "written", "rebuild", "prove", "forget")


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_run_is_finished_by_the_next(tmp_path: Path, step: str) -> None:
    table = make_people(tmp_path)
    with pytest.raises(Stop):
        erase(table, "person-0007", steps=StopAt(step))
    report = erase(table, "person-0007")
    assert report.error is None
    assert report.erasure.state == "done", held(report)
    check_gone(table, "person-0007")
    (listed,) = run_list(RunOptions(tables=[table.resolved]), Quiet()).tables
    assert [e.state for e in listed.erasures] == ["done"]
    assert len(table.rows()) == 301


def test_killed_at_its_last_word_it_is_done(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    with pytest.raises(Stop):
        erase(table, "person-0007", steps=StopAt("end"))
    (listed,) = run_list(RunOptions(tables=[table.resolved]), Quiet()).tables
    assert [(e.state, e.ended_at) for e in listed.erasures] == [
        ("done", e.looked_at) for e in listed.erasures
    ]
    check_gone(table, "person-0007")


def test_two_runs_of_one_key_are_one_erasure(tmp_path: Path) -> None:
    table = make_people(tmp_path)

    def another(name: str, shards: Sequence[str]) -> bool:
        erase(table, "person-0007", retention_seconds=86_400.0)
        return True

    report = erase(table, "person-0007", confirm=another)
    (listed,) = run_list(RunOptions(tables=[table.resolved]), Quiet()).tables
    assert [e.state for e in listed.erasures] == ["done"]
    assert report.erasure.erasure_id == listed.erasures[0].erasure_id
    check_gone(table, "person-0007")


def test_a_record_without_keys_is_of_a_run_that_did_nothing(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    first = erase(table, "person-0008", retention_seconds=86_400.0).erasure.erasure_id
    folder = Path(table.uri) / layout.erasure_folder(first)
    document = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps({**document, "marks": {}, "planned": []}))
    (folder / "keys.arrow").unlink()
    report = erase(table, "person-0007")
    (listed,) = run_list(RunOptions(tables=[table.resolved]), Quiet()).tables
    assert [e.erasure_id for e in listed.erasures] == [report.erasure.erasure_id]


# ---- other places that rows get into


def test_a_deletes_condition_and_a_runs_error_are_found(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    lance.dataset(table.uri).delete("id = 'person-0009'")
    name = layout.run_record_path(10**18, "0" * 32)
    run = Path(table.uri) / name
    run.write_text(json.dumps({"error": "key {'id': 'person-0009'} can't be written", "rows": 9}))
    report = erase(table, "person-0009", retention_seconds=86_400.0)
    assert not run.exists()
    named_in = {p.partition("/")[0] for p in held(report)}
    assert {"_transactions", "_versions", "data"} <= named_in
    report = erase(table, "person-0009")
    assert report.erasure.state == "done", held(report)
    check_gone(table, "person-0009")


def test_what_cannot_be_read_is_not_called_absent(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    folder = Path(table.uri) / layout.MAINTENANCE
    (folder / "torn").mkdir(parents=True, exist_ok=True)
    (folder / "torn" / "x.arrow").write_bytes(b"\xff" * 100)
    (Path(table.uri) / "notes.bin").write_bytes(b"person-0007")
    report = erase(table, "person-0007")
    assert report.erasure.state == "open"
    states = {o.path: o.state for o in report.objects if o.state != "absent"}
    assert states["_maintenance/torn/x.arrow"] == "unknown"
    assert states["notes.bin"] == "unknown"
    (folder / "torn" / "x.arrow").unlink()
    (Path(table.uri) / "notes.bin").unlink()
    report = erase(table, "person-0007")
    assert report.erasure.state == "done", held(report)


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
    report = erase(table, keys=str(file))
    assert report.erasure.state == "done", held(report)
    check_gone(table, *named(*range(100)))


def test_rows_that_compaction_moved_and_columns_in_files_of_their_own(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    lance.dataset(table.uri).add_columns(pa.field("extra", pa.string()))
    table.run(run_compaction, CompactionOptions)
    file = tmp_path / "keys.jsonl"
    file.write_text("".join(json.dumps({"id": key}) + "\n" for key in named(7, 150)))
    report = erase(table, keys=str(file))
    assert report.erasure.state == "done", held(report)
    check_gone(table, *named(7, 150))


def test_the_proof_can_be_repeated_with_the_keys(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    report = erase(table, "person-0007")
    shown = verify(table, report.erasure.erasure_id, "person-0007")
    assert (shown.outcome, shown.exit_code, held(shown)) == ("done", 0, {})
    assert verify(table, report.erasure.erasure_id).exit_code == 2
    assert verify(table, "00000000", "person-0007").exit_code == 2


def test_an_open_erasure_shows_in_status_and_from_python(tmp_path: Path) -> None:
    made = memwal.open_table(make_people(tmp_path).uri)
    with pytest.raises(memwal.MemWalError, match="MW-Z03"):
        made.erase(key=["id=person-0007"], execute=True)
    done = made.erase(key=["id=person-0007"], execute=True, yes=True)
    assert done.erasure is not None
    assert [e.state for e in made.erasures().erasures] == ["open"]
    [told] = [w for w in made.status().warnings if "erasure" in w]
    assert f"--resume {done.erasure.erasure_id}" in told
    made.erase(resume=done.erasure.erasure_id, execute=True, **NOW)
    assert [e.state for e in made.erasures().erasures] == ["done"]
    assert not [w for w in made.status().warnings if "erasure" in w]


def test_copies_are_looked_at_when_asked(tmp_path: Path) -> None:
    table = make_people(tmp_path)
    copy, backup, elsewhere = (str(tmp_path / name) for name in ("copy", "backup", "elsewhere"))
    lance.dataset(table.uri).deep_clone(copy, None)
    memwal.open_table(table.uri).backup(backup)
    also = [copy, backup, elsewhere]
    first = erase(table, "person-0007", also=also)
    assert first.erasure.state == "done"
    found = {uri: {o.state for o in first.objects if o.path.startswith(uri)} for uri in also}
    assert "held" in found[copy] and "absent" in found[copy]
    assert "held" in found[backup]
    assert found[elsewhere] == {"unknown"}
    shown = verify(table, first.erasure.erasure_id, "person-0007", also=also)
    assert shown.exit_code == 6
    assert not any(held(verify(table, first.erasure.erasure_id, "person-0007")))
    dry = erase(table, "person-0007", also=[copy], execute=False)
    assert dry.found.rows == 0
    assert any(path.startswith(f"{copy}/data/") for path in held(dry))


def test_a_copy_may_be_named_as_tables_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make_people(tmp_path)
    copy = tmp_path / "copies" / "people"
    lance.dataset(table.uri).deep_clone(str(copy), None)
    config = tmp_path / "memwal.toml"
    config.write_text("[tables.people]\nuri = 't'\n[tables.spare]\nuri = 'copies/people'\n")
    monkeypatch.setenv("MEMWAL_CONFIG", str(config))

    def run(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["erase", *words, "--key", "id=person-0007", "--json"])
        return int(ended.value.code or 0), json.loads(capsys.readouterr().out)["tables"]

    code, (report,) = run("people", "--also", "spare", "--execute", "--yes")
    found = {o["path"]: o["state"] for o in report["objects"] if o["path"].startswith(str(copy))}
    assert (code, "held" in found.values()) == (0, True)
    erasure_id = report["erasure"]["erasure_id"]
    code, (report,) = run("verify", "people", erasure_id, "--also", "spare")
    assert (code, any(o["path"] in found for o in report["objects"])) == (6, True)
    code, (report,) = run("people", "--also", "spear")
    assert code == 2
    assert "spear" in report["error"]
