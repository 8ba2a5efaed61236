"""Files become rows: the operator, the group with its event, the example that waits for files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Asset, task
from memwal_airflow.assets.events import INGESTED, build_asset
from memwal_airflow.operators.jobs import MemWalIngestOperator
from memwal_airflow.task_groups import memwal_ingest_group

from tests.airflow.airflow_server import EXAMPLES, InProcessAirflow
from tests.airflow.dag_runs import Ran, asset_events, run_one, run_shipped, run_tasks
from tests.airflow.stand_in import StandIn
from tests.airflow.tables import TestTable

pytestmark = pytest.mark.integration


def ingest(home: InProcessAirflow, **fields: Any) -> Ran:
    return run_one(home, MemWalIngestOperator, **{"table": "orders", **fields})


@pytest.fixture
def orders(airflow_home: InProcessAirflow) -> TestTable:
    return airflow_home.tables.make("orders", rows=20)


def test_sources_follow_the_table_in_their_order(
    airflow_home: InProcessAirflow, stand_in: StandIn
) -> None:
    """One that is called like the table is a source all the same."""
    fields = {"sources": ["{{ 'b' }}", "a", "orders"], "default": {"text": "a=b", "m": 7}}
    assert ingest(airflow_home, **fields).state == "success"
    (words,) = stand_in.words
    assert [w for w in words if "--default" in w] == ["--default=text=a=b", "--default=m=7"]
    assert words[words.index("--") :] == ["--", "orders", "b", "a", "orders"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sources": ["a.csv", "--merge"]}, "a dash"),
        ({"sources": "a.csv", "configured_only": True, "table": "/elsewhere"}, "configuration"),
    ],
)
def test_what_is_wrong_fails_at_once(
    airflow_home: InProcessAirflow,
    stand_in: StandIn,
    capfd: pytest.CaptureFixture[str],
    fields: dict[str, Any],
    says: str,
) -> None:
    assert ingest(airflow_home, retries=2, **fields).tried == ("failed", 1)
    assert says in capfd.readouterr().out
    assert stand_in.words == []


@pytest.mark.nightly
def test_new_files_of_a_folder_then_nothing_to_do(
    airflow_home: InProcessAirflow, orders: TestTable, tmp_path: Path
) -> None:
    fields = {"sources": str(tmp_path / "in"), "deferrable": True}
    wanted = orders.read()
    for name, keys in (("a", [5, 100]), ("b", [100, 101])):
        wanted |= orders.land(tmp_path / f"in/{name}.parquet", keys)
        ran = ingest(airflow_home, **fields)
        assert ran.states == {("job", -1): "success"}
        [told] = ran.xcom("job")["tables"]
        assert (told["table"], told["rows_written"]) == ("orders", 2)
        assert orders.read() == wanted
    assert ingest(airflow_home, **fields).states == {("job", -1): "skipped"}


@pytest.mark.nightly
def test_bad_rows_fail_a_check_and_are_set_aside(
    airflow_home: InProcessAirflow, orders: TestTable, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("k,amount\n7000,7\n,8\n")
    fields = {"sources": str(tmp_path / "a.csv"), "missing_as_null": True, "map": {"amount": "n"}}
    assert ingest(airflow_home, check=True, retries=2, **fields).tried == ("failed", 1)
    assert 7000 not in orders.read()
    ran = ingest(airflow_home, bad_rows=str(tmp_path / "bad.jsonl"), **fields)
    [told] = ran.xcom("job")["tables"]
    assert (told["rows_written"], told["rows_rejected"]) == (1, 1)
    assert orders.read()[7000] == 7
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 1


@pytest.mark.nightly
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
    orders.land(tmp_path / "a.parquet", [1, 200])
    dry = {"table": "orders", "sources": str(tmp_path / "a.parquet"), "dry_run": True}
    assert run_tasks(airflow_home, lambda: memwal_ingest_group(**dry)).state == "success"
    assert (orders.read(), asset_events()) == (wanted, [])

    @task(outlets=[Asset("orders_landed")])
    def export() -> None:
        wanted.update(orders.land(landing / "1.parquet", [3, 300]))

    assert run_tasks(airflow_home, export, dag_id="export").state == "success"
    airflow_home.register(example)
    ran = Ran(run=example.test())
    assert {name: state for (name, _), state in ran.states.items()} == {
        "memwal_ingest.ingest": "success",
        "memwal_ingest.announce_ingested": "success",
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
