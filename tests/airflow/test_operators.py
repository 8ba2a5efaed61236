"""Operators: what they ask of memwal, and what Airflow is told of the answer."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from local_airflow.home import JOBS_BIN
from memwal_airflow.operators.base import SUMMARY_KEY
from memwal_airflow.operators.jobs import (
    MemWalGarbageOperator,
    MemWalMergeOperator,
)
from memwal_airflow.operators.page_links import MemWalPageLink
from memwal_airflow.operators.plan import MemWalPlanOperator

from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import EACH_PLACE, run_one
from tests.airflow.stand_in import StandIn

pytestmark = pytest.mark.integration

WAITS: dict[str, Any] = {"deferrable": True}
IDLE = {"report": {"job": "merge", "outcome": "nothing_to_do", "tables": []}}


def test_merge_in_the_triggerer_then_nothing_to_do(
    airflow_home: InProcessAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task and its run lead to each other, also for a table that goes by its address."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://lake.example/airflow")
    table = airflow_home.tables.make("orders", shards=2, generations=2)
    ran = run_one(airflow_home, MemWalMergeOperator, tables=[table.uri], **WAITS)
    found = ran.xcom("job")
    assert found["tables"][0]["watermark"] == table.flushed() == table.progress()
    assert ran.xcom("job", SUMMARY_KEY) == found
    table.check()
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

    again = run_one(airflow_home, MemWalMergeOperator, tables="orders", **WAITS)
    assert again.states == {("job", -1): "skipped"}


@pytest.mark.nightly
def test_an_idle_job_is_skipped_or_not_and_so_is_one_that_is_not_asked_for(
    airflow_home: InProcessAirflow, stand_in: StandIn
) -> None:
    stand_in.answer(IDLE)
    for fields, state in (
        ({}, "skipped"),
        ({"skip_when_idle": False}, "success"),
        ({"enabled": "{{ 1 > 2 }}"}, "skipped"),
    ):
        ran = run_one(airflow_home, MemWalMergeOperator, tables="orders", **fields)
        assert ran.states == {("job", -1): state}
    assert len(stand_in.words) == 2


@pytest.mark.nightly
@EACH_PLACE
def test_a_held_lease_is_waited_for_within_one_try_and_then_costs_one(
    airflow_home: InProcessAirflow, stand_in: StandIn, deferrable: bool
) -> None:
    table = {"table": "orders", "outcome": "held", "error": "the lease is held"}
    held = {"report": {"job": "merge", "outcome": "held", "tables": [table]}, "code": 4}
    stand_in.answer(held, held, {})
    fields = {"tables": "orders", **WAITS, "deferrable": deferrable}
    ran = run_one(airflow_home, MemWalMergeOperator, retries=0, **fields)
    assert (ran.tried, len(stand_in.words)) == (("success", 1), 3)
    stand_in.answer(held)
    fields |= {"held_seconds_max": 0}
    assert run_one(airflow_home, MemWalMergeOperator, retries=1, **fields).tried == ("failed", 2)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (MemWalMergeOperator, {"tables": ["orders", "--master=spark://elsewhere"]}, "a dash"),
        (
            MemWalPlanOperator,
            {"tables": ["orders", "s3://elsewhere/x"], "configured_only": True},
            "not in the configuration",
        ),
        # With deploy mode cluster nobody here would see the job's end.
        (MemWalMergeOperator, {"tables": "orders", "spark_conn_id": "yarn"}, "use client mode"),
    ],
)
def test_what_can_not_be_asked_for_starts_nothing(
    airflow_home: InProcessAirflow,
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: type[Any],
    fields: dict[str, Any],
    says: str,
) -> None:
    yarn = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps(yarn))
    airflow_home.tables.name("orders")
    assert run_one(airflow_home, kind, retries=2, **fields).tried == ("failed", 1)
    assert says in "".join(capfd.readouterr())
    assert stand_in.words == []


def test_fields_are_templates(airflow_home: InProcessAirflow, stand_in: StandIn) -> None:
    ran = run_one(
        airflow_home,
        MemWalMergeOperator,
        tables="{{ 'ord' ~ 'ers' }}",
        shards=["{{ 'a' }}1"],
        until_generation="{{ 3 - 2 }}",
        generations_per_commit_max="{{ none }}",
        dry_run="{{ false }}",
    )
    assert ran.state == "success"
    (words,) = stand_in.words
    expected = ["--shard=a1", "--until-generation=1", "--", "orders"]
    assert words == ["merge", "--report", words[2], "--config", words[4], *expected]


@pytest.mark.nightly
@EACH_PLACE
def test_execution_timeout_ends_the_job(
    airflow_home: InProcessAirflow, stand_in: StandIn, tmp_path: Path, deferrable: bool
) -> None:
    stand_in.answer({"program": f"echo $$ > {tmp_path}/pid; exec sleep 600"})
    seconds = 31 if deferrable else 2  # of longer ones, the job itself is told half
    fields = {**WAITS, "deferrable": deferrable, "execution_timeout": timedelta(seconds=seconds)}
    ran = run_one(airflow_home, MemWalMergeOperator, tables="orders", retries=0, **fields)
    assert ran.states == {("job", -1): "failed"}
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.nightly
def test_corruption_guards_and_wrong_requests_fail_at_once(airflow_home: InProcessAirflow) -> None:
    table = airflow_home.tables.make("orders", shards=2, generations=1)
    table.break_shard(1)
    ran = run_one(airflow_home, MemWalMergeOperator, tables="orders", retries=3)
    assert ran.tried == ("failed", 1)
    summary = ran.xcom("job", SUMMARY_KEY)
    assert summary["outcome"] == "partial"
    # The other shard is merged.
    assert summary["tables"][0]["progress"] is True
    assert table.progress() == {table.shards[0]: 1}
    short = {"tables": "orders", "retention": "1h", "execute": True}
    assert run_one(airflow_home, MemWalGarbageOperator, retries=3, **short).tried == ("failed", 1)
    missing = {"tables": "/no/such/table", "retries": 3}
    assert run_one(airflow_home, MemWalMergeOperator, **missing).tried == ("failed", 1)


@pytest.mark.nightly
def test_through_spark_submit(
    airflow_home: InProcessAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = airflow_home.tables.make("orders", shards=2, generations=1)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(JOBS_BIN / "memwal"))
    for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.setenv(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    extra = {"deploy-mode": "client", "conf": {"spark.ui.enabled": "false"}}
    here = {"conn_type": "spark", "host": "local[2]", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", json.dumps(here))
    fields = {"spark_conn_id": "spark_here", "arguments": ["--engine", "spark"], **WAITS}
    ran = run_one(airflow_home, MemWalMergeOperator, tables="orders", **fields)
    assert ran.states == {("job", -1): "success"}
    assert table.progress() == table.flushed()
    table.check()


# ---- the plan


@pytest.mark.nightly
def test_the_plan_names_due_and_broken_tables_only(airflow_home: InProcessAirflow) -> None:
    tables = airflow_home.tables
    due = tables.make("due", generations=1, settings={"due_generations_min": 1})
    late = {"due_generations_min": 9, "due_age_seconds_min": 3600}
    tables.make("early", generations=1, settings=late)
    tables.make("broken", generations=1).break_shard()
    tables.make("held", generations=1)
    tables.name("odd", **{"storage_options.aws_region": "${NOT_SET_ANYWHERE}"})
    names = ["odd", due.uri, "held", "early", "broken", "not-there"]
    tables.maker.ask("hold_lease", uri=tables["held"].uri)
    try:
        ran = run_one(airflow_home, MemWalPlanOperator, tables=names)
    finally:
        tables.maker.ask("release_lease", uri=tables["held"].uri)
    # `odd` spoils the answer for all: they are looked at one by one.
    assert ran.xcom("job") == ["odd", due.uri, "broken", "not-there"]


def test_what_is_stored_forges_no_line_of_a_plans_log(
    airflow_home: InProcessAirflow, stand_in: StandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    forged = {"table": "orders", "outcome": "failed", "error": "held by \x1b[31mx\nINFO - forged"}
    stand_in.answer({"tables": {"orders": forged}})
    assert run_one(airflow_home, MemWalPlanOperator, tables="orders").state == "success"
    said = "".join(capfd.readouterr())
    assert r"held by \x1b[31mx\nINFO - forged" in said.replace("\\\\", "\\")


def test_a_plan_without_tables_is_empty_and_one_without_an_answer_is_tried_again(
    airflow_home: InProcessAirflow, stand_in: StandIn
) -> None:
    assert run_one(airflow_home, MemWalPlanOperator, tables=[]).xcom("job") == []
    assert stand_in.words == []
    stand_in.program.unlink()
    silent = run_one(airflow_home, MemWalPlanOperator, tables=["x"], retries=1)
    assert silent.tried == ("failed", 2)
