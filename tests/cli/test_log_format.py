"""`--log-format json`: each line on stderr is one JSON object. One run id wherever a run shows."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memwal.cli import main
from memwal.run.process import logs
from tests.support import builders
from tests.support.builders import Put, Table

FIELDS = {"time", "level", "job", "table", "shard", "run_id", "message"}
GIVEN = "nightly/manual__2026-11-22T00:00:00+00:00/merge.orders/1"
TASK: dict[str, Any] = {
    "dag_id": "nightly",
    "run_id": "manual__2026-11-22T00:00:00+00:00",
    "task_id": "merge.orders",
    "map_index": 3,
    "try_number": 1,
}

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = builders.make_table(tmp_path_factory.mktemp("original") / "t", rows=range(5))
    table.flush(table.shards[0], Put([10, 0], 1))
    return table


@pytest.fixture
def table(original: Table, tmp_path: Path) -> Table:
    return original.copied(tmp_path / "t")


@pytest.fixture(autouse=True)
def stderr_given_back() -> Iterator[None]:
    yield
    assert logs.current() is None


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, Lines, object]:
    """What a command printed, its lines on stderr, and its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in err.splitlines()]
    assert all(line.keys() >= FIELDS for line in lines)
    return out, lines, ended.value.code


def test_a_run_has_one_id_everywhere(
    table: Table, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMWAL_RUN_ID", GIVEN)
    monkeypatch.setenv("MEMWAL_LOG_FORMAT", "json")
    out, lines, code = run("maintain", table.uri, "--engine", "local", "--json", capsys=capsys)
    assert code == 0
    assert json.loads(out)["run_id"] == GIVEN
    assert {line["run_id"] for line in lines} == {GIVEN}
    assert {(line["job"], line["table"]) for line in lines} == {("maintain", table.uri)}
    claims = Path(table.uri, "_maintenance/lease").glob("0*.json")
    assert {json.loads(claim.read_text())["run_id"] for claim in claims} == {GIVEN}

    monkeypatch.delenv("MEMWAL_RUN_ID")
    out, _, _ = run("runs", table.uri, "--json", capsys=capsys)
    found = json.loads(out)
    assert {r["job"]: r["run_id"] for r in found["tables"][0]["runs"]} == {
        "merge": GIVEN,
        "snapshot": GIVEN,
    }
    assert len(found["run_id"]) == 32
    out, _, _ = run("read", table.uri, "--json", capsys=capsys)
    assert len(json.loads(out)["run_id"]) == 32


def test_the_task_of_airflow_shows_wherever_its_run_does(
    table: Table, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMWAL_AIRFLOW_TASK", json.dumps(TASK))
    arguments = ("merge", table.uri, "--engine", "local", "--json")
    _, lines, code = run(*arguments, "--log-format", "json", capsys=capsys)
    assert code == 0
    assert lines and all(line["airflow"] == TASK for line in lines)
    (claim,) = Path(table.uri, "_maintenance/lease").glob("0*.json")
    assert json.loads(claim.read_text())["airflow"] == TASK

    monkeypatch.delenv("MEMWAL_AIRFLOW_TASK")
    out, _, _ = run("runs", table.uri, "--json", capsys=capsys)
    assert json.loads(out)["tables"][0]["runs"][0]["airflow"] == TASK
    out, _, _ = run("status", table.uri, "--json", capsys=capsys)
    assert json.loads(out)["tables"][0]["lease"]["airflow"] == TASK
    held = {**json.loads(claim.read_text()), "released": False, "expires_at_nanos": 2**62}
    claim.write_text(json.dumps(held))
    for command in ("runs", "status"):
        with pytest.raises(SystemExit):
            main([command, table.uri])
        shown = capsys.readouterr().out
        assert "nightly merge.orders[3] try 1," in shown and TASK["run_id"] in shown


@pytest.mark.parametrize(
    "given",
    ["", "{", "[]", '{"dag_id": "a"}', json.dumps({**TASK, "run_id": "a\nb"}),
     json.dumps({**TASK, "run_id": "x" * 251}), json.dumps({**TASK, "try_number": -1})],
)  # fmt: skip
def test_a_task_that_is_none_is_left_out(
    given: str, table: Table, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMWAL_AIRFLOW_TASK", given)
    arguments = ("merge", table.uri, "--engine", "local", "--json")
    _, lines, code = run(*arguments, "--log-format", "json", capsys=capsys)
    assert code == 0
    assert lines and not any("airflow" in line for line in lines)
    out, _, _ = run("runs", table.uri, "--json", capsys=capsys)
    assert json.loads(out)["tables"][0]["runs"][0]["airflow"] is None


def test_a_forged_task_spoils_neither_record_nor_lease(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    run("merge", table.uri, "--engine", "local", "--log-format", "json", capsys=capsys)
    for file in [
        *Path(table.uri, "_maintenance/lease").glob("0*.json"),
        *Path(table.uri, "_maintenance/runs").glob("*.json"),
    ]:
        forged = {**json.loads(file.read_text()), "airflow": {**TASK, "dag_id": ["\x1b"]}}
        file.write_text(json.dumps(forged))
    out, _, _ = run("runs", table.uri, "--json", capsys=capsys)
    (found,) = json.loads(out)["tables"]
    assert (found["unreadable"], [record["airflow"] for record in found["runs"]]) == (0, [None])
    out, _, _ = run("status", table.uri, "--json", capsys=capsys)
    lease = json.loads(out)["tables"][0]["lease"]
    assert (lease["state"], lease["airflow"]) == ("released", None)


@pytest.mark.parametrize("given", ["-x", "a b", "a\n", "a" * 201, "ü", "{}"])
def test_an_id_that_is_none_is_refused(
    given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMWAL_RUN_ID", given)
    _, lines, code = run("merge", "/no/table", "--log-format", "json", capsys=capsys)
    assert code == 2
    assert lines[-1]["message"].startswith("MEMWAL_RUN_ID: ")


def test_each_failed_table_is_named_on_stderr(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gone", "lost"):
        Path(tmp_path / name).mkdir()
    names = [str(tmp_path / name) for name in ("gone", "lost")]
    for shape in ([], ["--json"]):
        arguments = ["status", table.uri, *names, "--log-format", "json", *shape]
        _, lines, code = run(*arguments, capsys=capsys)
        assert code == 6
        assert [(line["level"], line["table"]) for line in lines] == [
            ("error", name) for name in names
        ]
        assert all(line["message"].startswith(line["table"]) for line in lines)


@pytest.mark.parametrize("job", ["garbage", "maintain"])
def test_a_dry_run_wins_and_says_so(
    job: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [job, table.uri, "--execute", "--dry-run", "--log-format", "json", "--json"]
    out, lines, code = run(*arguments, capsys=capsys)
    assert (code, json.loads(out)["dry_run"]) == (0, True)
    (warned,) = [line["message"] for line in lines if line["level"] == "warning"]
    assert warned.startswith("--dry-run wins over --execute")


def test_a_wrong_option_and_a_traceback_are_objects_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, lines, code = run("merge", "x", "--log-format=json", "--dryrun", capsys=capsys)
    assert (code, lines[-1]["level"]) == (2, "error")
    assert "--dry-run" in lines[-1]["message"]
    arguments = ["merge", "x", "--config", "/no/file", "--log-format=json", "--debug"]
    _, (line,), code = run(*arguments, capsys=capsys)
    assert code == 2
    assert line["message"] == "/no/file: no such configuration file"
    assert line["exception"].startswith("Traceback")
    _, (line,), code = run("status", "/no/table", "--log-format=json", "--debug", capsys=capsys)
    assert (code, line["table"]) == (2, "/no/table")
    assert "NotATable" in line["exception"]


def test_a_format_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["merge", "x", "--log-format", "yaml"])
    assert ended.value.code == 2
    assert "--log-format 'yaml': expected text or json" in capsys.readouterr().err


def test_the_configuration_may_ask_for_it(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "memwal.toml"
    file.write_text("[defaults]\nlog_format = 'json'\n")
    _, lines, code = run("merge", table.uri, "--config", str(file), capsys=capsys)
    assert code == 0
    assert lines[0]["run_id"] == lines[-1]["run_id"] is not None


def test_what_libraries_say_is_taken_up(capsys: pytest.CaptureFixture[str]) -> None:
    logs.start()
    try:
        logs.name_table("/lake/orders", "orders")
        with logs.about(table="/lake/orders", shard="s1"):
            logging.getLogger("botocore.x").warning("slow: %s", "a store")
            warnings.warn("an old name", stacklevel=1)
            print("[2026-11-22T00:00:00Z WARN  lance::io] odd", file=sys.stderr)
    finally:
        logs.stop()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["warning"] * 3
    assert {(line["table"], line["shard"]) for line in lines} == {("orders", "s1")}
    assert lines[0]["message"] == "slow: a store"
