"""The backlog sensor, here and in the triggerer."""

from __future__ import annotations

import asyncio
import json
import subprocess
from datetime import timedelta
from typing import Any

import pytest
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.sensors.backlog import (
    MemWalBacklogSensor,
    MemWalBacklogTrigger,
    check_progress,
)

from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import EACH_PLACE, Ran, run_one
from tests.airflow.stand_in import StandIn

pytestmark = pytest.mark.integration

SHARD = "0fd630f1-f29d-4da9-953f-48f1a09f76b5"
AWAY = {"tables": {"orders": {"table": "orders", "outcome": "failed", "error": "away"}}, "code": 1}


def sense(home: InProcessAirflow, **fields: Any) -> Ran:
    fields = {"table": "orders", "poke_interval": 0.05, "timeout": 60, **fields}
    return run_one(home, MemWalBacklogSensor, **fields)


def told(**table: Any) -> dict[str, Any]:
    """A look at the table that went well."""
    return {"tables": {"orders": {"table": "orders", "outcome": "done", **table}}}


def waited(**until: Any) -> dict[str, Any]:
    """A look that waits for something."""
    return told(until=until)


@EACH_PLACE
def test_until_a_table_is_due(
    airflow_home: InProcessAirflow, stand_in: StandIn, deferrable: bool
) -> None:
    """A store that is away is asked again."""
    due = told(due=True, due_reasons=["2 pending generations >= 2"])
    stand_in.answer(AWAY, told(due=False), due)
    ran = sense(airflow_home, table="{{ 'orders' }}", deferrable=deferrable)
    assert ran.state == "success"
    assert ran.xcom("job") == {"due_reasons": ["2 pending generations >= 2"]}
    assert len(stand_in.words) == 3


@EACH_PLACE
def test_until_it_is_merged(
    airflow_home: InProcessAirflow, stand_in: StandIn, deferrable: bool
) -> None:
    """What was there at the first look: later flushes don't move the target away."""
    first = waited(reached=False, target={SHARD: 2}, missing={SHARD: 1})
    stand_in.answer(first, waited(reached=True, target={SHARD: 2}))
    ran = sense(airflow_home, until="merged", deferrable=deferrable)
    assert ran.state == "success"
    assert ran.xcom("job") == {"target": {SHARD: 2}, "missing": {}}
    looks = [words[: words.index("--json")] for words in stand_in.words]
    look = ["status", "--until=merged", "--timeout=0s"]
    assert looks == [look, [*look, f"--generation={SHARD}=2"]]


def test_until_a_generation_that_is_named(
    airflow_home: InProcessAirflow, stand_in: StandIn
) -> None:
    stand_in.answer(waited(reached=True, target={SHARD: 7}))
    named = {"until": "merged", "generations": json.dumps({SHARD: 7}), "mode": "reschedule"}
    assert sense(airflow_home, **named).state == "success"
    assert f"--generation={SHARD}=7" in stand_in.words[0]


@pytest.mark.nightly
def test_what_memwal_says_of_a_real_table(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", shards=2, generations=1)
    found = {"command": str(airflow_home.command), "config_file": str(airflow_home.config_file)}
    jobs = JobsEnvironment(**found)

    def look(until: str, **generations: int) -> dict[str, Any]:
        return asyncio.run(check_progress(jobs, "orders", until, generations))

    found = look("due")
    assert found["is_over"]
    assert "1 pending generations >= 1" in found["seen"]["due_reasons"][0]
    seen = {"target": table.flushed(), "missing": dict.fromkeys(table.shards, 0)}
    assert look("merged") == {"is_over": False, "seen": seen}
    merge = [airflow_home.command, "merge", "orders", "--config", airflow_home.config_file]
    subprocess.run(merge, check=True, capture_output=True)
    found = look("merged")
    assert (found["is_over"], found["seen"]["target"]) == (True, table.flushed())
    assert look("merged", **{table.shards[0]: 9})["is_over"] is False
    table.break_shard()
    assert look("merged")["error"].startswith("orders: ")


def test_a_broken_table_fails_it_at_once(airflow_home: InProcessAirflow, stand_in: StandIn) -> None:
    stand_in.answer({**AWAY, "code": 8})
    for until in ("due", "merged"):
        assert sense(airflow_home, until=until, retries=2).tried == ("failed", 1)


def test_the_wait_has_an_end(airflow_home: InProcessAirflow, stand_in: StandIn) -> None:
    stand_in.answer(waited(reached=False))
    ran = sense(airflow_home, until="indexed", timeout=0, soft_fail=True)
    assert ran.states == {("job", -1): "skipped"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"until": "gone"}, "expected one of due, merged, indexed, collected"),
        pytest.param(
            {"until": "due", "generations": {"a": 1}},
            "not for until='due'",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {"until": "merged", "mode": "reschedule"},
            "needs generations",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_wrong_fields_fail_with_what_to_do(
    airflow_home: InProcessAirflow,
    stand_in: StandIn,
    capfd: pytest.CaptureFixture[str],
    fields: dict[str, Any],
    text: str,
) -> None:
    ran = sense(airflow_home, retries=1, retry_delay=timedelta(0), **fields)
    assert (ran.tried, stand_in.words) == (("failed", 1), [])
    assert text in "".join(capfd.readouterr())


def test_only_the_connections_name_travels() -> None:
    trigger = MemWalBacklogTrigger(
        table="orders", until="due", generations={}, conn_id="memwal_default", poll_seconds=1
    )
    path, fields = trigger.serialize()
    assert path == "memwal_airflow.sensors.backlog.MemWalBacklogTrigger"
    assert set(fields) == {"table", "until", "generations", "conn_id", "poll_seconds"}
    assert MemWalBacklogTrigger(**fields).serialize() == (path, fields)
