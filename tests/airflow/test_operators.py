"""Operators run real jobs on real tables; what Airflow is told of it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from airflow.sdk.exceptions import (
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.triggers.base import TriggerEvent
from local_airflow.home import JOBS_BIN
from local_airflow.rest import wait_until
from memwal_airflow.operators.base import SUMMARY_KEY, MemWalJobOperator, MemWalRetry
from memwal_airflow.operators.jobs import (
    MemWalGarbageOperator,
    MemWalIndexCatchupOperator,
    MemWalMergeOperator,
    MemWalSnapshotOperator,
)
from memwal_airflow.operators.page_links import MemWalPageLink
from memwal_airflow.operators.plan import MemWalPlanOperator
from memwal_airflow.processes.submission import Submission
from memwal_airflow.triggers.jobs import MemWalJobTrigger

from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import Ran, run_tasks


def run_one(home: InProcessAirflow, kind: type[Any], **fields: Any) -> Ran:
    """One task called `job`, without a worker's pause between tries."""
    fields = {"retry_delay": timedelta(0), **fields}
    return run_tasks(home, lambda: kind(task_id="job", **fields))


def tries(ran: Ran) -> int:
    return int(ran.task("job").try_number)


@pytest.mark.parametrize("deferrable", [False, True])
def test_merge_then_nothing_to_do(airflow_home: InProcessAirflow, deferrable: bool) -> None:
    table = airflow_home.tables.make("orders", shards=2, generations=2)
    waits: dict[str, Any] = {"defer_after_seconds": 0, "poll_seconds": 0.2}
    fields = {"tables": "orders", "deferrable": deferrable, **waits}
    ran = run_one(airflow_home, MemWalMergeOperator, **fields)
    assert ran.states == {("job", -1): "success"}
    found = ran.xcom("job")
    assert found["tables"][0]["watermark"] == table.flushed() == table.progress()
    assert ran.xcom("job", SUMMARY_KEY) == found
    table.check()

    again = run_one(airflow_home, MemWalMergeOperator, **fields)
    assert again.states == {("job", -1): "skipped"}
    kept = run_one(airflow_home, MemWalMergeOperator, skip_when_idle=False, **fields)
    assert kept.states == {("job", -1): "success"}
    assert list((airflow_home.tables.config_file.parent / "runs").iterdir()) == []


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_task_and_its_run_lead_to_each_other(
    airflow_home: InProcessAirflow, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://lake.example/airflow")
    table = airflow_home.tables.make("orders", generations=1)
    # By its address, which the page does not know.
    fields = {"tables": [table.uri], "deferrable": deferrable, "poll_seconds": 0.2}
    ran = run_one(airflow_home, MemWalMergeOperator, **fields)
    (file,) = Path(table.uri, "_maintenance/runs").glob("*.json")
    record = json.loads(file.read_text())
    ids = {"dag_id": "own", "run_id": ran.run.run_id, "task_id": "job"}
    assert record["airflow"] == {**ids, "map_index": -1, "try_number": 1}
    link = ran.xcom("job", MemWalPageLink().xcom_key)
    path, _, place = link.partition("#")
    assert path == "/airflow/memwal/"
    table_place, _, run = place.partition("?run=")
    assert table_place == "/table/orders"
    assert unquote(run) == record["run_id"]


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_held_lease_is_waited_for_within_one_try(
    airflow_home: InProcessAirflow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deferrable: bool,
) -> None:
    table = airflow_home.tables.make("orders", generations=1)
    # Twice somebody else is at work on it.
    held = {"outcome": "held", "error": "the lease is held"}
    report = {"job": "merge", "outcome": "held", "tables": [{"table": "orders", **held}]}
    command = tmp_path / "memwal"
    command.write_text(
        f"#!/bin/sh\nmkdir {tmp_path}/first 2>/dev/null || mkdir {tmp_path}/second 2>/dev/null "
        f'|| exec {os.environ["AIRFLOW__MEMWAL__COMMAND"]} "$@"\n'
        'while [ "$1" != --report ]; do shift; done\n'
        f"echo '{json.dumps(report)}' > \"$2\"\nexit 4\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(command))
    waits = {"defer_after_seconds": 0, "poll_seconds": 0.2}
    fields: dict[str, Any] = {"deferrable": deferrable, "retries": 0, **waits}
    ran = run_one(airflow_home, MemWalMergeOperator, tables="orders", **fields)
    assert (tmp_path / "second").exists()
    assert ran.states == {("job", -1): "success"}
    assert tries(ran) == 1
    assert table.progress() == table.flushed()


def test_a_lease_that_is_held_for_long_costs_a_try(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", generations=1)
    fields = {"tables": "orders", "retries": 1, "held_seconds_max": 0}
    table.maker.ask("hold_lease", uri=table.uri)
    try:
        held = run_one(airflow_home, MemWalMergeOperator, **fields)
    finally:
        table.maker.ask("release_lease", uri=table.uri)
    assert held.states == {("job", -1): "failed"}
    assert tries(held) == 2
    assert table.progress() == {}

    free = run_one(airflow_home, MemWalMergeOperator, **fields)
    assert free.states == {("job", -1): "success"}
    assert tries(free) == 1


def test_corruption_fails_at_once_and_the_other_shard_is_merged(
    airflow_home: InProcessAirflow,
) -> None:
    table = airflow_home.tables.make("orders", shards=2, generations=1)
    table.break_shard(1)
    ran = run_one(airflow_home, MemWalMergeOperator, tables="orders", retries=3)
    assert ran.states == {("job", -1): "failed"}
    assert tries(ran) == 1
    summary = ran.xcom("job", SUMMARY_KEY)
    assert summary["outcome"] == "partial"
    assert summary["tables"][0]["progress"] is True
    assert table.progress() == {table.shards[0]: 1}


def test_a_guard_and_a_wrong_request_fail_at_once(airflow_home: InProcessAirflow) -> None:
    airflow_home.tables.make("orders", generations=1)
    refused = run_one(
        airflow_home,
        MemWalGarbageOperator,
        tables="orders",
        retention="1h",
        execute=True,
        retries=3,
    )
    assert (refused.state, tries(refused)) == ("failed", 1)
    missing = run_one(airflow_home, MemWalMergeOperator, tables="/no/such/table", retries=3)
    assert (missing.state, tries(missing)) == ("failed", 1)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (MemWalMergeOperator, {"tables": ["orders", "--master=spark://elsewhere"]}, "a dash"),
        (MemWalMergeOperator, {"tables": "{{ '--dry-run' }}"}, "a dash"),
        (MemWalMergeOperator, {"tables": []}, "no table is named"),
        (MemWalMergeOperator, {"tables": [""]}, "expected a name"),
        (MemWalMergeOperator, {"tables": "or\nders"}, "control characters"),
        (MemWalMergeOperator, {"tables": "orders", "shards": "--no-lease"}, "a dash"),
        (MemWalMergeOperator, {"tables": "orders", "shards": ["../x"]}, "expected a UUID"),
        (MemWalIndexCatchupOperator, {"tables": "orders", "indexes": ["-i"]}, "a dash"),
        (MemWalIndexCatchupOperator, {"tables": "orders", "indexes": ["a\x1b"]}, "control"),
        (
            MemWalMergeOperator,
            {"tables": "/data/other", "configured_only": True},
            "not in the configuration",
        ),
    ],
)
def test_what_can_not_be_asked_for_starts_nothing(
    airflow_home: InProcessAirflow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: type[Any],
    fields: dict[str, Any],
    says: str,
) -> None:
    airflow_home.tables.make("orders")
    command = tmp_path / "memwal"
    command.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    command.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(command))
    ran = run_one(airflow_home, kind, retries=2, **fields)
    assert (ran.state, tries(ran)) == ("failed", 1)
    assert says in capfd.readouterr().out
    assert not (tmp_path / "started").exists()


def test_in_a_dag_of_ones_own_an_address_is_the_authors(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", generations=1)
    ran = run_one(airflow_home, MemWalMergeOperator, tables=table.uri)
    assert ran.state == "success"
    assert table.progress() == table.flushed()


def test_fields_are_templates(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", shards=2, generations=2)
    ran = run_one(
        airflow_home,
        MemWalMergeOperator,
        tables="{{ 'ord' ~ 'ers' }}",
        shards=[f"{{{{ '{table.shards[1]}' }}}}"],
        until_generation="{{ 3 - 2 }}",
        generations_per_commit_max="{{ none }}",
        dry_run="{{ false }}",
    )
    assert ran.state == "success"
    assert table.progress() == {table.shards[1]: 1}


def test_a_dry_run_changes_nothing(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", generations=1)
    ran = run_one(airflow_home, MemWalMergeOperator, tables="orders", dry_run=True)
    assert ran.state == "success"
    assert ran.xcom("job")["dry_run"] is True
    assert table.progress() == {}


def test_a_job_that_is_not_asked_for_is_skipped(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", generations=1)
    ran = run_one(airflow_home, MemWalMergeOperator, tables="orders", enabled="{{ 1 > 2 }}")
    assert ran.states == {("job", -1): "skipped"}
    assert table.progress() == {}


def test_catchup_snapshot_and_garbage(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", generations=2)

    def build() -> None:
        merge = MemWalMergeOperator(task_id="merge", tables="orders")
        indexes = MemWalIndexCatchupOperator(
            task_id="indexes", tables=["orders"], indexes="key_idx"
        )
        snapshot = MemWalSnapshotOperator(task_id="snapshot", tables="orders")
        garbage = MemWalGarbageOperator(
            task_id="garbage",
            tables="orders",
            execute=True,
            retention="1s",
            grace="1s",
            wal=True,
            arguments=["--allow-short-retention"],
        )
        merge >> indexes >> snapshot >> garbage

    ran = run_tasks(airflow_home, build)
    assert ran.state == "success", ran.states
    assert ran.xcom("indexes")["tables"][0]["watermark"] == table.flushed()
    table.check()


@pytest.mark.parametrize("deferrable", [False, True])
def test_execution_timeout_ends_the_job(
    airflow_home: InProcessAirflow, tmp_path: Path, deferrable: bool
) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    airflow_home.tables.make("orders", generations=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__MEMWAL__COMMAND", str(slow))
        ran = run_one(
            airflow_home,
            MemWalJobOperator,
            job="merge",
            tables="orders",
            deferrable=deferrable,
            defer_after_seconds=1,
            poll_seconds=0.2,
            execution_timeout=timedelta(seconds=4),
            retries=0,
        )
    assert ran.states == {("job", -1): "failed"}
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_through_spark_submit(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", shards=2, generations=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__MEMWAL__COMMAND", str(JOBS_BIN / "memwal"))
        for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
            patch.setenv(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        patch.setenv(
            "AIRFLOW_CONN_SPARK_HERE",
            '{"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client", '
            '"conf": {"spark.ui.enabled": "false"}}}',
        )
        ran = run_one(
            airflow_home,
            MemWalMergeOperator,
            tables="orders",
            spark_conn_id="spark_here",
            arguments=["--engine", "spark"],
            deferrable=True,
            defer_after_seconds=0,
            poll_seconds=0.2,
        )
    assert ran.states == {("job", -1): "success"}
    assert table.progress() == table.flushed()
    table.check()


def test_cluster_deploy_mode_is_refused_with_advice(
    airflow_home: InProcessAirflow, capfd: pytest.CaptureFixture[str]
) -> None:
    airflow_home.tables.make("orders", generations=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "AIRFLOW_CONN_YARN",
            '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}',
        )
        ran = run_one(
            airflow_home, MemWalMergeOperator, tables="orders", spark_conn_id="yarn", retries=2
        )
    assert (ran.state, tries(ran)) == ("failed", 1)
    assert "use client mode" in "".join(capfd.readouterr())


def test_the_plan_names_due_and_broken_tables_only(airflow_home: InProcessAirflow) -> None:
    tables = airflow_home.tables
    tables.make("due", generations=1, settings={"due_generations_min": 1})
    tables.make("idle")
    tables.make(
        "early", generations=1, settings={"due_generations_min": 9, "due_age_seconds_min": 3600}
    )
    tables.make("broken", generations=1).break_shard()
    names = ["due", "idle", "early", "broken", "not-there"]
    ran = run_one(airflow_home, MemWalPlanOperator, tables=names)
    assert ran.xcom("job") == ["due", "broken", "not-there"]


def test_a_plan_looks_at_no_address_that_is_not_configured(
    airflow_home: InProcessAirflow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = airflow_home.tables.make("orders", generations=1, settings={"due_generations_min": 1})
    fields = {"configured_only": True, "retries": 2}
    assert run_one(airflow_home, MemWalPlanOperator, tables=[table.uri], **fields).xcom("job") == [
        "orders"
    ]
    command = tmp_path / "memwal"
    command.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    command.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(command))
    for due_only in (True, False):
        tables = ["orders", "s3://elsewhere/x"]
        ran = run_one(airflow_home, MemWalPlanOperator, tables=tables, due_only=due_only, **fields)
        assert (ran.state, tries(ran)) == ("failed", 1)
    assert not (tmp_path / "started").exists()


def test_what_is_stored_forges_no_line_of_a_plans_log(
    airflow_home: InProcessAirflow,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    airflow_home.tables.make("orders")
    command = tmp_path / "memwal"
    forged = '"held by \\u001b[31mx\\nINFO - forged"'
    told = f'{{"table": "orders", "outcome": "failed", "error": {forged}}}'
    command.write_text(f"#!/bin/sh\ncat <<'E'\n{{\"tables\": [{told}]}}\nE\n")
    command.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(command))
    assert run_one(airflow_home, MemWalPlanOperator, tables=["orders"]).state == "success"
    said = "".join(capfd.readouterr())
    assert r"held by \x1b[31mx\nINFO - forged" in said.replace("\\\\", "\\")


def test_one_table_does_not_spoil_the_plan_for_others(airflow_home: InProcessAirflow) -> None:
    tables = airflow_home.tables
    tables.make("due", generations=1)
    tables.make("held", generations=1)
    tables.make("odd", settings={"storage_options.aws_region": "${NOT_SET_ANYWHERE}"})
    tables.maker.ask("hold_lease", uri=tables["held"].uri)
    try:
        ran = run_one(airflow_home, MemWalPlanOperator, tables=["odd", "held", "due"])
    finally:
        tables.maker.ask("release_lease", uri=tables["held"].uri)
    assert ran.xcom("job") == ["odd", "due"]


def test_a_plan_without_tables_is_empty(airflow_home: InProcessAirflow) -> None:
    ran = run_one(airflow_home, MemWalPlanOperator, tables=[])
    assert ran.state == "success"
    assert ran.xcom("job") == []


def test_a_plan_that_gets_no_answer_is_tried_again(airflow_home: InProcessAirflow) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__MEMWAL__COMMAND", str(JOBS_BIN / "no-such-command"))
        ran = run_one(airflow_home, MemWalPlanOperator, tables=["x"], retries=1)
    assert (ran.state, tries(ran)) == ("failed", 2)


class LosingAirflow:
    """Calls an operator as a worker does, and loses its tries: no state is heard of them."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}
        names = {"dag_id": "d", "run_id": "r", "task_id": "job", "map_index": -1}
        tries = {"try_number": 0, "max_tries": 3}
        kept: dict[str, Any] = {}
        self.context: Any = {
            "ti": SimpleNamespace(**names, **tries, xcom_push=self._push, stats_tags={}),
            "task_state_store": SimpleNamespace(
                get=kept.get, set=kept.__setitem__, delete=lambda key: kept.pop(key)
            ),
        }

    def _push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def try_once(self, operator: MemWalJobOperator) -> Any:
        self.context["ti"].try_number += 1
        return operator.execute(self.context)


@pytest.fixture
def counted(
    airflow_home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], int]:
    """How often a job was started; while the file `wait` is there, jobs wait before they begin."""
    command = tmp_path / "memwal"
    command.write_text(
        f"#!/bin/sh\necho >> {tmp_path}/started\nwhile [ -e {tmp_path}/wait ]; do sleep 0.1; done\n"
        f'exec {os.environ["AIRFLOW__MEMWAL__COMMAND"]} "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(command))
    return lambda: (tmp_path / "started").read_text().count("\n")


def deferred_merge(**fields: Any) -> MemWalMergeOperator:
    waits: dict[str, Any] = {"deferrable": True, "defer_after_seconds": 0}
    fields = {"tables": "orders", "outlets": [], **waits, **fields}
    return MemWalMergeOperator(task_id="job", **fields)


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_job_of_a_lost_try_is_taken_over(
    airflow_home: InProcessAirflow,
    tmp_path: Path,
    counted: Callable[[], int],
    goes_on: bool,
) -> None:
    table = airflow_home.tables.make("orders", generations=2)
    airflow, folder = LosingAirflow(), tmp_path / "wait"
    folder.touch()
    with pytest.raises(TaskDeferred) as first:
        airflow.try_once(deferred_merge())
    (run,) = (tmp_path / "runs").iterdir()
    if goes_on:
        # Airflow finds its task dead, and this try waits for the job in the triggerer as well.
        with pytest.raises(TaskDeferred) as second:
            airflow.try_once(deferred_merge())
        assert second.value.trigger.folder == first.value.trigger.folder
    folder.unlink()
    wait_until("the job's end", Submission(run).read_end, 60)
    found = airflow.try_once(deferred_merge())
    assert found["tables"][0]["watermark"] == table.flushed() == table.progress()
    assert airflow.pushed[SUMMARY_KEY] == found
    assert counted() == 1
    assert list((tmp_path / "runs").iterdir()) == []
    # The next run of the same task is its own.
    with pytest.raises(AirflowSkipException):
        airflow.try_once(deferred_merge(deferrable=False))


def test_a_lost_try_whose_job_is_not_the_same_or_was_ended_counts_for_nothing(
    airflow_home: InProcessAirflow, tmp_path: Path, counted: Callable[[], int]
) -> None:
    airflow_home.tables.make("orders", generations=2)
    airflow = LosingAirflow()
    (tmp_path / "wait").touch()
    with pytest.raises(TaskDeferred):
        airflow.try_once(deferred_merge())
    (run,) = (tmp_path / "runs").iterdir()
    # The DAG was changed: the job asks for something else.
    with pytest.raises(TaskDeferred):
        airflow.try_once(deferred_merge(until_generation=1))
    assert wait_until("its end", Submission(run).read_end, 60).why == "cancelled"
    (other,) = (folder for folder in (tmp_path / "runs").iterdir() if folder != run)
    Submission(other).cancel()
    wait_until("its end", Submission(other).read_end, 60)
    (tmp_path / "wait").unlink()
    found = airflow.try_once(deferred_merge(deferrable=False, until_generation=1))
    assert found["outcome"] == "done"
    assert not other.exists()


def test_a_try_that_airflow_lost_is_had_back_when_the_job_fails(
    airflow_home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow_home.tables.make("orders", generations=1)
    command = tmp_path / "memwal"
    command.write_text("#!/bin/sh\necho the store is away\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(command))
    airflow = LosingAirflow()
    with pytest.raises(TaskDeferred):
        airflow.try_once(deferred_merge())
    with pytest.raises(AirflowRescheduleException):
        airflow.try_once(deferred_merge(deferrable=False))
    with pytest.raises(MemWalRetry, match="the store is away"):
        airflow.try_once(deferred_merge(deferrable=False))


def test_no_trigger_fires_before_airflow_can_know_of_the_deferral(
    airflow_home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal_airflow.triggers.jobs.SETTLE_SECONDS", 1.5)
    (tmp_path / "exit.json").write_text('{"exit_code": 0, "why": null}')
    trigger = MemWalJobTrigger(folder=str(tmp_path), conn_id="memwal_default")

    async def fire() -> TriggerEvent:
        return await anext(trigger.run())

    began = time.monotonic()
    event = asyncio.run(fire())
    assert time.monotonic() - began >= 1.5
    assert event.payload["exit_code"] == 0
