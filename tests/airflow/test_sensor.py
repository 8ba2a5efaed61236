"""The backlog sensor, on real tables, here and in the triggerer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.query import ERROR_CHARACTERS_MAX, NoAnswer
from memwal_airflow.sensors.backlog import (
    MemWalBacklogSensor,
    MemWalBacklogTrigger,
    TableBroken,
    check_progress,
)

from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import Ran, run_tasks


def sense(home: InProcessAirflow, **fields: Any) -> Ran:
    fields = {"poke_interval": 0.2, "timeout": 60, **fields}
    return run_tasks(home, lambda: MemWalBacklogSensor(task_id="wait", **fields))


def later(home: InProcessAirflow, *arguments: str) -> Callable[[], None]:
    """Run a memwal command in a second; the returned function waits for it."""
    command = [
        os.environ["AIRFLOW__MEMWAL__COMMAND"],
        *arguments,
        "--config",
        str(home.config_file),
    ]

    def run() -> None:
        subprocess.run(command, check=True, capture_output=True)

    timer = threading.Timer(1.0, run)
    timer.start()
    return timer.join


@pytest.mark.parametrize("deferrable", [False, True])
def test_until_a_table_is_due(airflow_home: InProcessAirflow, deferrable: bool) -> None:
    settings = {"due_generations_min": 2}
    table = airflow_home.tables.make("orders", generations=1, settings=settings)
    writer = threading.Timer(3.0, table.flush, kwargs={"puts": [1], "deletes": [2]})
    writer.start()
    ran = sense(airflow_home, table="{{ 'orders' }}", deferrable=deferrable)
    writer.join()
    assert ran.state == "success"
    (reason,) = ran.xcom("wait")["due_reasons"]
    assert "2 pending generations >= 2" in reason


@pytest.mark.parametrize("deferrable", [False, True])
def test_until_it_is_merged(airflow_home: InProcessAirflow, deferrable: bool) -> None:
    table = airflow_home.tables.make("orders", shards=2, generations=1)
    join = later(airflow_home, "merge", "orders")
    ran = sense(airflow_home, table="orders", until="merged", deferrable=deferrable)
    join()
    assert ran.state == "success"
    assert ran.xcom("wait") == {"target": table.flushed(), "missing": {}}
    assert table.progress() == table.flushed()


def test_until_a_generation_that_is_named(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", generations=3)
    wanted = {table.shards[0]: 2}
    merge = [os.environ["AIRFLOW__MEMWAL__COMMAND"], "merge", "orders", "--until-generation", "2"]
    subprocess.run([*merge, "--config", str(airflow_home.config_file)], check=True)
    fields = {"table": "orders", "until": "merged", "generations": json.dumps(wanted)}
    assert sense(airflow_home, **fields, mode="reschedule").state == "success"


def test_a_broken_table_fails_it_at_once(airflow_home: InProcessAirflow) -> None:
    airflow_home.tables.make("broken", generations=1).break_shard()
    for until in ("due", "merged"):
        ran = sense(airflow_home, table="broken", until=until, retries=2)
        assert (ran.state, ran.task("wait").try_number) == ("failed", 1)


def test_a_store_that_is_away_is_asked_again(
    airflow_home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow_home.tables.make("orders", generations=1, settings={"due_generations_min": 1})
    # Away at the first look: what `memwal status` says then, and its exit code.
    away = tmp_path / "memwal"
    document = {"outcome": "failed", "tables": [{"outcome": "failed", "error": "gave up"}]}
    away.write_text(
        f"#!/bin/sh\nif mkdir {tmp_path}/asked 2>/dev/null; then echo '{json.dumps(document)}'; "
        f'exit 1; fi\nexec {os.environ["AIRFLOW__MEMWAL__COMMAND"]} "$@"\n'
    )
    away.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(away))
    assert sense(airflow_home, table="orders").state == "success"
    assert (tmp_path / "asked").exists()


@pytest.mark.parametrize(("code", "kind"), [(8, TableBroken), (1, NoAnswer)])
def test_what_is_stored_forges_no_text(tmp_path: Path, code: int, kind: type[Exception]) -> None:
    error = "held by \x1b[31mx\nINFO - forged"
    table = {"table": "orders", "outcome": "failed", "error": error}
    (tmp_path / "said").write_text(json.dumps({"tables": [table]}))
    jobs = command(tmp_path, f"cat {tmp_path}/said; exit {code}")
    with pytest.raises(kind) as caught:
        asyncio.run(check_progress(jobs, "orders", "due", {}))
    assert str(caught.value) == r"orders: held by \x1b[31mx\nINFO - forged"


def test_what_stands_in_for_a_document_is_one_line_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "said").write_text("\x1b[31mhunter2" + "\n" * (ERROR_CHARACTERS_MAX - 3) + "end")
    jobs = command(tmp_path, f"cat {tmp_path}/said >&2; exit 1")
    with pytest.raises(NoAnswer) as caught:
        asyncio.run(check_progress(jobs, "orders", "due", {}))
    assert str(caught.value).isprintable()
    assert str(caught.value).endswith(r"\nend")
    assert "r2" not in str(caught.value)


def command(folder: Path, script: str) -> JobsEnvironment:
    file = folder / "memwal"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return JobsEnvironment(
        command=str(file), storage_options={"key": "hunter2"}, secret_names=frozenset({"key"})
    )


def test_the_wait_has_an_end(airflow_home: InProcessAirflow) -> None:
    airflow_home.tables.make("orders", generations=1)
    ran = sense(airflow_home, table="orders", until="indexed", timeout=2, soft_fail=True)
    assert ran.states == {("wait", -1): "skipped"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"until": "gone"}, "expected one of due, merged, indexed, collected"),
        ({"until": "due", "generations": {"a": 1}}, "not for until='due'"),
        ({"until": "merged", "mode": "reschedule"}, "needs generations"),
    ],
)
def test_wrong_fields_fail_with_what_to_do(
    airflow_home: InProcessAirflow,
    capfd: pytest.CaptureFixture[str],
    fields: dict[str, Any],
    text: str,
) -> None:
    ran = sense(airflow_home, table="orders", retries=1, retry_delay=timedelta(0), **fields)
    assert (ran.state, ran.task("wait").try_number) == ("failed", 1)
    assert text in "".join(capfd.readouterr())


def test_only_the_connections_name_travels() -> None:
    trigger = MemWalBacklogTrigger(
        table="orders", until="due", generations={}, conn_id="memwal_default", poll_seconds=1
    )
    path, fields = trigger.serialize()
    assert path == "memwal_airflow.sensors.backlog.MemWalBacklogTrigger"
    assert set(fields) == {"table", "until", "generations", "conn_id", "poll_seconds"}
    assert MemWalBacklogTrigger(**fields).serialize() == (path, fields)
