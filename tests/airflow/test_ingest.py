"""Files become rows: the operator, the group with its event, the example that waits for files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Asset, task
from memwal_airflow.assets.events import INGESTED, build_asset
from memwal_airflow.operators.base import SUMMARY_KEY
from memwal_airflow.operators.jobs import MemWalIngestOperator
from memwal_airflow.task_groups import memwal_ingest_group

from tests.airflow.airflow_server import EXAMPLES, InProcessAirflow
from tests.airflow.dag_runs import Ran, asset_events, run_shipped, run_tasks
from tests.airflow.tables import TestTable

FIELDS: dict[str, Any] = {
    "format": "csv",
    "source_options": {"header": "{{ 'tr' ~ 'ue' }}"},
    "map": {"n": "{{ 'amount' }}"},
    "default": {"text": "a=b", "m": 7},
    "check": "{{ true }}",
    "bad_rows": "/tmp/bad-{{ 1 }}.jsonl",
    "bad_rows_max": 0,
    "resume_corrected": True,
    "delete_column": "gone",
    "shard": "0f",
    "ingest_id": "{{ 'night' }}",
    "again": "{{ 1 < 2 }}",
    "skip_unknown_columns": True,
    "missing_as_null": True,
    "rows_per_chunk": 5,
    "merge": True,
    "backlog_generations_max": 3,
    "backlog_wait": "1m",
    "engine": "local",
}
OPTIONS = {
    "--format=csv",
    "--option=header=true",
    "--map=n=amount",
    "--default=text=a=b",
    "--default=m=7",
    "--check",
    "--bad-rows=/tmp/bad-1.jsonl",
    "--bad-rows-max=0",
    "--resume-corrected",
    "--delete-column=gone",
    "--shard=0f",
    "--id=night",
    "--again",
    "--skip-unknown-columns",
    "--missing-as-null",
    "--rows-per-chunk=5",
    "--merge",
    "--backlog-generations-max=3",
    "--backlog-wait=1m",
    "--engine=local",
}


def ingest(home: InProcessAirflow, **fields: Any) -> Ran:
    return run_tasks(home, lambda: MemWalIngestOperator(task_id="job", table="orders", **fields))


@pytest.fixture
def orders(airflow_home: InProcessAirflow) -> TestTable:
    return airflow_home.tables.make("orders", rows=20)


@pytest.mark.parametrize("deferrable", [False, True])
def test_new_files_of_a_folder_then_nothing_to_do(
    airflow_home: InProcessAirflow, orders: TestTable, tmp_path: Path, deferrable: bool
) -> None:
    fields = {"sources": str(tmp_path / "in"), "deferrable": deferrable, "defer_after_seconds": 0}
    wanted = orders.read()
    for name, keys in (("a", [5, 100]), ("b", [100, 101])):
        wanted |= orders.land(tmp_path / f"in/{name}.parquet", keys)
        ran = ingest(airflow_home, **fields)
        assert ran.states == {("job", -1): "success"}
        [told] = ran.xcom("job")["tables"]
        assert (told["table"], told["rows_written"]) == ("orders", 2)
        assert orders.read() == wanted
    assert ingest(airflow_home, **fields).states == {("job", -1): "skipped"}


def test_bad_rows_fail_a_check_and_are_set_aside(
    airflow_home: InProcessAirflow, orders: TestTable, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("k,amount\n7000,7\n,8\n")
    fields = {"sources": str(tmp_path / "a.csv"), "missing_as_null": True, "map": {"amount": "n"}}
    checked = ingest(airflow_home, check=True, retries=2, **fields)
    assert (checked.state, checked.task("job").try_number) == ("failed", 1)
    assert 7000 not in orders.read()
    ran = ingest(airflow_home, bad_rows=str(tmp_path / "bad.jsonl"), **fields)
    [told] = ran.xcom("job")["tables"]
    assert (told["rows_written"], told["rows_rejected"]) == (1, 1)
    assert orders.read()[7000] == 7
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 1


def test_every_field_becomes_its_option(
    airflow_home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, said = tmp_path / "memwal", tmp_path / "said"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}\nexit 2\n')
    command.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", str(command))
    ran = ingest(airflow_home, sources=["{{ 'b' }}", "a", "orders"], **FIELDS)
    assert ran.state == "failed"
    words = said.read_text().splitlines()
    assert words[0] == "ingest" and set(words) >= OPTIONS
    # In their order, and one that is called like the table is a source all the same.
    assert words[words.index("--") :] == ["--", "orders", "b", "a", "orders"]
    ingest(airflow_home, sources="a")
    assert not OPTIONS & set(said.read_text().splitlines())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sources": []}, "no source is named"),
        ({"sources": ["a.csv", "--merge"]}, "a dash"),
        ({"sources": "{{ '' }}"}, "expected a name"),
        ({"sources": "a.csv", "shard": "../x"}, "expected a UUID"),
        ({"sources": "/no/such/file.csv"}, "no such source"),
        ({"sources": "a.csv", "configured_only": True, "table": "/elsewhere"}, "configuration"),
    ],
)
def test_what_is_wrong_fails_at_once(
    airflow_home: InProcessAirflow,
    orders: TestTable,
    capfd: pytest.CaptureFixture[str],
    fields: dict[str, Any],
    says: str,
) -> None:
    fields = {"table": "orders", "retries": 2, **fields}
    ran = run_tasks(airflow_home, lambda: MemWalIngestOperator(task_id="job", **fields))
    assert (ran.state, ran.task("job").try_number) == ("failed", 1)
    assert says in capfd.readouterr().out


def test_a_dry_run_writes_and_announces_nothing(
    airflow_home: InProcessAirflow, orders: TestTable, tmp_path: Path
) -> None:
    before = orders.read()
    orders.land(tmp_path / "a.parquet", [1, 200])
    ran = run_tasks(
        airflow_home,
        lambda: memwal_ingest_group("orders", str(tmp_path / "a.parquet"), dry_run=True),
    )
    assert ran.state == "success"
    assert ran.xcom("memwal_ingest.ingest", SUMMARY_KEY)["dry_run"] is True
    assert (orders.read(), asset_events()) == (before, [])


def test_files_land_are_ingested_and_merged(
    airflow_home: InProcessAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example, between a DAG that writes files and the shipped one that merges."""
    orders = airflow_home.tables.make("orders", rows=20)
    landing = tmp_path / "landing"
    monkeypatch.setenv("AIRFLOW_VAR_ORDERS_LANDING", str(landing))
    bag = DagBag(dag_folder=EXAMPLES, bundle_path=EXAMPLES)
    assert bag.import_errors == {}
    example = bag.dags["orders_ingest"]
    assert [asset.name for asset in example.schedule] == ["orders_landed"]
    wanted = orders.read()

    @task(outlets=[Asset("orders_landed")])
    def export() -> None:
        wanted.update(orders.land(landing / "1.parquet", [3, 300]))

    assert run_tasks(airflow_home, export, dag_id="export").state == "success"
    airflow_home.register(example)
    ran = Ran(run=example.test())
    assert {name: state for (name, _), state in ran.states.items()} == {
        "memwal_ingest.ingest": "success",
        "memwal_ingest.announce": "success",
    }
    assert orders.read() == wanted
    assert [name for name, _ in asset_events(of_tables=True)] == ["orders_landed"]
    assert [name for name, _ in asset_events()] == ["memwal ingested orders"]
    assert asset_events()[-1][1]["table"] == "orders"

    merge = airflow_home.load_dag("memwal_merge")
    assert build_asset(INGESTED, "orders") in list(merge.schedule.objects)
    assert run_shipped(airflow_home, "memwal_merge").xcom("plan") == ["orders"]
    assert orders.read() == wanted
    assert orders.progress()
    # Files that were ingested once are nothing new, and no event.
    again = Ran(run=example.test())
    assert again.states[("memwal_ingest.ingest", -1)] == "skipped"
    assert [name for name, _ in asset_events()].count("memwal ingested orders") == 1
