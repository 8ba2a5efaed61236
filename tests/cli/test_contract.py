"""What all commands share: documents, storage, dry runs, and what they say of a missing table.

What every command prints with --json is as `memwal schema` says, and nothing beside.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import lance
import pyarrow.parquet as pq
import pytest
import typer

from memwal.cli import main
from memwal.cli.app import app
from memwal.cli.schema import OTHERS, REPORTS, VERSION, make_schema
from memwal.errors import Usage
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.s3server import S3Server

pytestmark = pytest.mark.integration

# In this order, on one table. T is its address, D its folder.
RUNS = [
    "status T D/none --live",
    "status T", "status T D/none", "merge T --dry-run", "merge T D/none", "index-catchup T",
    "snapshot T", "garbage T", "garbage T --execute", "compaction T", "maintain T",
    "backfill T", "backfill T --dry-run", "verify T", "repair T", "runs T",
    "status T --until merged", "status T --until merged --timeout 0s", "doctor T", "init T",
    "init T --spec manual --dry-run",
    "init T --spec unsharded", "checkpoint create T monday", "checkpoint list T",
    "checkpoint drop T monday --audit D/audit", "checkpoint drop T none",
    "backup T D/copies --name a",
    "restore D/copies D/again",
    "backup list D/copies", "backup verify D/copies", "backup drop D/copies a --dry-run",
    "audit T --audit D/audit", "audit verify T --audit D/audit", "audit verify --audit D/audit",
    "lease break T --reason gone",
    "rescue T --yes --dry-run", "quiesce T --yes --dry-run", "ingest T D/rows.parquet --dry-run",
    "ingest T D/rows.parquet", "ingest T D/rows.parquet --check", "status T",
    "maintain T --execute", "read T", "read T --explain", "read T --version 1",
    "read T --limit 1 --output D/out.csv", "changes T --since 1 --before",
    "changes T --cursor mart --commit 1", "changes T --cursor mart --drop",
    "inspect index T", "inspect manifest T", "inspect shard T", "inspect wal T",
    "erase T --key k=1", "erase list T", "erase resume T",
    "schema", "schema T", "schema T --add z:int8 --apply",
    "explain", "explain MW-W01 w02", "demo D/demo",
]  # fmt: skip
FAILING = [
    "status", "merge", "index-catchup", "snapshot", "garbage", "compaction", "maintain", "backfill",
    "verify", "runs", "audit --audit D/audit", "status --until merged", "doctor", "init",
    "checkpoint list", "rescue --yes", "quiesce --yes", "read", "inspect index", "inspect wal",
]  # fmt: skip
LOCAL = {
    "merge",
    "index-catchup",
    "garbage",
    "compaction",
    "maintain",
    "backfill",
    "ingest",
    "demo",
}


# Of these, what reads or writes the store in a way of its own.
ON_S3 = [
    "status T", "merge T", "index-catchup T", "snapshot T", "garbage T --execute", "compaction T",
    "maintain T --execute", "verify T", "repair T", "checkpoint create T monday",
    "checkpoint drop T monday", "backup T D/copies --name a", "restore D/copies D/again",
    "rescue T --yes", "quiesce T --yes", "ingest T D/rows.parquet", "runs T", "read T",
    "changes T --since 1", "inspect wal T", "schema T --add z:int8 --apply",
]  # fmt: skip
CHANGING = [
    "merge T", "index-catchup T", "snapshot T", "compaction T", "maintain T --execute",
    "garbage T --execute --grace 0s --retention 0s --allow-short-retention", "backfill T",
    "init T --spec unsharded", "checkpoint create T x", "backup T D/copies", "repair T --execute",
    "rescue T --yes", "quiesce T --yes", "ingest T D/rows.parquet", "erase T --key k=1",
    "schema T --add z:int8", "restore D/copies D/again",
]  # fmt: skip


def make_table(uri: Path | str, **settings: Any) -> Table:
    made = builders.make_table(
        uri, rows=range(50), shards=2, indexed=True, enable_stable_row_ids=True, **settings
    )
    for i, shard in enumerate(made.shards):
        made.flush(shard, Put([10 * i, 10 * i + 1, 60 + i], 1), Delete([10 * i + 2]))
    return made


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return make_table(tmp_path_factory.mktemp("d") / "t")


def run(
    line: str, table: Table, capfd: pytest.CaptureFixture[str], folder: Path | None = None
) -> str:
    folder = folder or Path(table.uri).parent
    words = [w.replace("D/", f"{folder}/") if w != "T" else table.uri for w in line.split()]
    engine = ["--engine", "local"] if words[0] in LOCAL else []
    with pytest.raises(SystemExit):
        main([*words, *engine, "--json"])
    return capfd.readouterr().out


def name_of(line: str) -> str:
    first, second, *_ = [*line.split(), ""]
    if first == "schema" and second:
        return "schema-table"
    return f"{first}-{second}" if first == "inspect" else first


def close(schema: Any) -> Any:
    """The schema, without room for fields that it does not name."""
    if isinstance(schema, list):
        return [close(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    is_open = "additionalProperties" in schema or schema.get("required") == [
        "job",
        "table",
        "outcome",
    ]
    made = {key: close(part) for key, part in schema.items()}
    return made if is_open or "properties" not in made else {**made, "additionalProperties": False}


def check(document: dict[str, Any], name: str) -> None:
    make_validator(name).validate(document)
    for nested in nested_jobs(document):
        job = {**nested}
        name = job.pop("job")
        make_validator(name, of_table=True).validate(job)


@cache
def make_validator(name: str, *, of_table: bool = False) -> jsonschema.Draft202012Validator:
    """Of a document, or of what one table has of it; a schema is checked once."""
    schema = make_schema(name)
    if of_table:
        schema = {**schema["properties"]["tables"]["items"], "$defs": schema["$defs"]}
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(close(schema))


def nested_jobs(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for told in document.get("tables", ()):
        jobs = told.get("jobs", ())
        yield from (job for job in jobs if isinstance(job, dict))


def test_documents_are_as_the_schemas_say(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t")
    monkeypatch.chdir(tmp_path)
    pq.write_table(lance.dataset(table.uri).head(3), tmp_path / "rows.parquet")
    outcomes = set()
    for line in RUNS:
        document = json.loads(run(line, table, capfd, tmp_path))
        check(document, name_of(line))
        outcomes.add((name_of(line), document.get("outcome")))
    assert {name for name, _ in outcomes} == {*REPORTS, *OTHERS} - {"watch", "watch-event"}
    done = {name for name, outcome in outcomes if outcome not in ("failed", "refused")}
    assert {name for name, _ in outcomes} - done <= {"quiesce"}


def test_on_s3_all_is_done_as_on_disk(
    s3_server: S3Server,
    make_s3_uri: Callable[[], str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MEMWAL_STORAGE_OPTIONS", json.dumps(s3_server.storage_options))
    tables = [
        make_table(tmp_path / "t"),
        make_table(make_s3_uri(), options=s3_server.storage_options),
    ]
    pq.write_table(lance.dataset(tables[0].uri).head(3), tmp_path / "rows.parquet")
    for line in ON_S3:
        outcomes = set()
        for number, table in enumerate(tables):
            (folder := tmp_path / str(number)).mkdir(exist_ok=True)
            shutil.copy(tmp_path / "rows.parquet", folder)
            document = json.loads(run(line, table, capfd, folder))
            check(document, name_of(line))
            outcomes.add(document.get("outcome"))
        assert len(outcomes) == 1, (line, outcomes)
        assert "failed" not in outcomes, line


def test_a_dry_run_changes_nothing(table: Table, capfd: pytest.CaptureFixture[str]) -> None:
    folder = Path(table.uri).parent
    pq.write_table(lance.dataset(table.uri).head(3), folder / "rows.parquet")
    run("backup T D/copies --name a", table, capfd)
    before = files_of(folder)
    for line in CHANGING:
        document = json.loads(run(f"{line} --dry-run", table, capfd))
        assert document.get("outcome") != "failed", line
        assert files_of(folder) == before, line


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    found = {str(file): file.stat() for file in folder.rglob("*") if file.is_file()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def test_documents_of_failures_too(table: Table, capfd: pytest.CaptureFixture[str]) -> None:
    for line in FAILING:
        document = json.loads(run(f"{line} D/none", table, capfd))
        check(document, name_of(line))
        assert "no such table" in json.dumps(document) or line == "doctor"


@pytest.mark.nightly  # its workers are processes
def test_events_of_a_watch(table: Table, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = table.copied(tmp_path / "t")
    report = tmp_path / "report.json"
    lines = run(f"watch T --once --report {report}", copy, capfd).splitlines()
    assert lines
    for line in lines:
        check(json.loads(line), "watch-event")
    check(json.loads(report.read_text()), "watch")


def test_every_command_has_a_schema() -> None:
    group: Any = typer.main.get_command(app)
    names = {"inspect" if n.startswith("inspect-") else n for n in (*REPORTS, *OTHERS)}
    assert names - {"watch-event", "schema-table"} == {*group.commands} - {"help", "submit"}


def test_a_schema_says_which_it_is() -> None:
    for name in (*REPORTS, *OTHERS):
        assert make_schema(name)["$id"] == f"urn:lance-memwal:{name}:{VERSION}"
    with pytest.raises(Usage, match="no document 'mergee': expected merge"):
        make_schema("mergee")


def test_an_unknown_field_is_noticed() -> None:
    schema = close(make_schema("merge"))
    good = {"outcome": "done", "error": None, "job": "merge", "run_id": None, "seconds": 1.0,
            "dry_run": False, "engine": None, "tables": [], "requests": {}}  # fmt: skip
    jsonschema.validate(good, schema)
    for bad in ({**good, "more": 1}, {k: v for k, v in good.items() if k != "seconds"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)
