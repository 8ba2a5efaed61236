"""A table's data as an asset: who makes it, who is started by it, and what its events tell."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.models.asset import AssetDagRunQueue, AssetModel
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.settings import Session
from memwal_airflow.assets.events import build_asset, build_table_alias, build_table_asset
from memwal_airflow.assets.lineage import find_address
from memwal_airflow.operators.jobs import (
    MemWalGarbageOperator,
    MemWalIndexCatchupOperator,
    MemWalIngestOperator,
    MemWalMergeOperator,
)
from memwal_airflow.task_groups import memwal_ingest_group, memwal_task_group
from sqlalchemy import select

from memwal.config import Config
from memwal.errors import Usage
from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import asset_events, run_one, run_shipped, run_tasks
from tests.airflow.stand_in import DONE, StandIn

pytestmark = pytest.mark.integration

SHARD = "0fd630f1-f29d-4da9-953f-48f1a09f76b5"
HEAD = '[defaults]\nengine = "local"\ndue_generations_min = 1\n[airflow]\nretries = 0\n'


@pytest.fixture
def home(airflow_home: InProcessAirflow) -> InProcessAirflow:
    airflow_home.tables.set_head(HEAD)
    return airflow_home


def merged(**more: Any) -> dict[str, Any]:
    """What a merge of `orders` reports."""
    table = {"table": "orders", "outcome": "done", "version_before": 3, "version_after": 4}
    table |= {"shards": [{"shard_id": SHARD, "to_generation": 2, "rows_updated": 5}]}
    return {"report": {"job": "merge", "outcome": "done", "tables": [table], **more}}


def listen(home: InProcessAirflow, schedule: Any, dag_id: str = "reads_orders") -> None:
    """A DAG of somebody else, switched on."""
    from airflow.models.dag import DagModel

    with DAG(dag_id, schedule=[schedule]) as dag:
        pass
    home.register(dag)
    session = Session()
    session.get(DagModel, dag_id).is_paused = False
    session.commit()


def started() -> set[str]:
    """The DAGs that the scheduler would start next."""
    return {row.target_dag_id for row in Session().scalars(select(AssetDagRunQueue))}


@pytest.mark.nightly
@pytest.mark.parametrize("named", [False, True])
def test_a_merge_starts_who_waits_for_the_table(
    home: InProcessAirflow, stand_in: StandIn, named: bool
) -> None:
    home.tables.name("orders", "idle")
    uri = f"file://{home.tables.folder}/orders"
    listen(home, Asset("our orders", uri) if named else Asset(uri))
    listen(home, Asset.ref(uri=uri), "refers_to_orders")
    stand_in.answer(merged(), {"report": {**DONE, "outcome": "nothing_to_do"}})
    assert run_shipped(home, "memwal_merge", {"tables": ["orders", "idle"]}).state == "success"
    assert started() == {"reads_orders", "refers_to_orders"}
    ((name, extra),) = asset_events(of_tables=True)
    assert name == ("our orders" if named else uri)
    assert extra.pop("at")
    assert extra == {
        "table": "orders",
        "step": "merged",
        "version_before": 3,
        "version": 4,
        "counts": {"rows_updated": 5},
        "generation": 2,
        "watermark": {SHARD: 2},
        "watermark_shards": 1,
    }
    # Whoever waits for the step is told as before.
    assert [name for name, _ in asset_events()] == ["memwal merged orders"]


@pytest.mark.nightly
def test_an_operator_alone_announces_its_table_when_it_moved(
    home: InProcessAirflow, stand_in: StandIn
) -> None:
    home.tables.name("orders")
    idle = {"report": {**DONE, "outcome": "nothing_to_do"}}
    for answer in (merged(dry_run=True), merged(), idle):
        stand_in.answer(answer)
        ran = run_one(home, MemWalMergeOperator, tables="orders", skip_when_idle=False)
        assert ran.state == "success"
    ((name, extra),) = asset_events(of_tables=True)
    assert (name, extra["watermark"]) == (f"file://{home.tables.folder}/orders", {SHARD: 2})


@pytest.mark.nightly
def test_files_that_came_in_are_no_news_to_readers_of_the_base_table(
    home: InProcessAirflow, tmp_path: Path
) -> None:
    orders = home.tables.make("orders", rows=20)
    landing = tmp_path / "landing"
    landing.mkdir()
    orders.land(landing / "a.parquet", range(5))
    run_tasks(home, lambda: memwal_ingest_group("orders", str(landing)))
    assert [name for name, _ in asset_events()] == ["memwal ingested orders"]
    assert asset_events(of_tables=True) == []
    # Unless the ingest merges them.
    orders.land(landing / "b.parquet", range(5, 9))
    run_tasks(home, lambda: memwal_ingest_group("orders", str(landing), merge=True))
    orders.land(landing / "c.parquet", range(9, 12))
    alone = {"task_id": "ingest", "table": "orders", "sources": str(landing), "merge": True}
    run_tasks(home, partial(MemWalIngestOperator, **alone))
    found = [name for name, _ in asset_events(of_tables=True)]
    assert found == [f"file://{orders.uri}"] * 2


def test_tasks_show_what_they_make_and_what_they_go_on_from(home: InProcessAirflow) -> None:
    home.tables.name("orders")
    uri = f"file://{home.tables.folder}/orders"
    assert uri in uris_of(home.load_dag("memwal_merge").get_task("announce").outlets)
    assert uri in uris_of(home.load_dag("memwal_backfill").get_task("announce_merged").outlets)
    with DAG("own", schedule=None) as dag:
        memwal_task_group("orders", group_id="group")
        MemWalMergeOperator(task_id="merge", tables="orders")
        MemWalIndexCatchupOperator(task_id="catchup", tables=["orders"])
        MemWalMergeOperator(task_id="later", tables="{{ params.table }}")
        MemWalGarbageOperator(task_id="named", tables="orders", inlets=[], outlets=[Asset("x")])
    ports = {task.task_id: (uris_of(task.inlets), uris_of(task.outlets)) for task in dag.tasks}
    assert ports["group.announce_merged"] == ([], ["memwal://merged/orders", uri])
    assert build_table_alias("orders") in dag.get_task("group.announce_merged").outlets
    assert ports["group.garbage"] == (["memwal://indexed/orders"], [])
    assert ports["merge"] == (["memwal://ingested/orders"], [uri])
    assert ports["catchup"] == (["memwal://merged/orders"], [])
    assert ports["later"] == ([], [])
    assert ports["named"] == ([], ["x"])


@pytest.mark.nightly
def test_every_steps_assets_are_in_one_group_and_only_what_moved_has_an_event(
    home: InProcessAirflow, stand_in: StandIn
) -> None:
    home.tables.name("orders", "users")
    ran = run_shipped(home, "memwal_garbage", {"tables": ["orders"]})
    announced = [state for (task_id, _), state in ran.states.items() if "announce" in task_id]
    assert announced == ["success"]
    found = Session().execute(select(AssetModel.name, AssetModel.group)).all()
    assert {(f"memwal collected {name}", "memwal") for name in ("orders", "users")} <= {*found}
    assert asset_events() == []


def uris_of(ports: list[Any]) -> list[str]:
    return [port.uri for port in ports if not isinstance(port, AssetAlias)]


ADDRESSES = {
    "s3://lake/orders/": "s3://lake/orders",
    "gs://lake/orders": "gs://lake/orders",
    "az://lake/orders": "az://lake/orders",
    "abfss://lake@account.dfs.core.windows.net/orders": (
        "abfss://lake@account.dfs.core.windows.net/orders"
    ),
    "s3://AKIA:pass/word@lake/orders": "s3://lake/orders",
    "az://lake/orders?sv=1&sig=secret": "az://lake/orders",
    "/data/my orders#1": "file:///data/my%20orders%231",
    "file:///data/orders": "file:///data/orders",
    "glue:sales.orders": None,
    "nobody": None,
}


@pytest.mark.parametrize("table", ADDRESSES)
def test_an_address_is_an_assets_uri_without_secrets(table: str) -> None:
    config = Config.model_validate(
        {
            "namespaces": {"glue": {"impl": "rest", "uri": "http://127.0.0.1:9"}},
            "tables": {"named": {"uri": table}},
        }
    )
    found = ADDRESSES[table]
    assert find_address(table, config) == found
    if table != "nobody":
        assert find_address("named", config) == found
    if found is not None:
        assert Asset(uri=found) == Asset(found)
        assert Asset(found).uri == found
    assert "pass" not in build_asset("merged", table).uri
    assert "secret" not in build_asset("merged", table).uri


def test_an_asset_by_name(home: InProcessAirflow) -> None:
    home.tables.name("orders")
    assert build_table_asset("orders") == Asset(f"file://{home.tables.folder}/orders")
    with pytest.raises(Usage, match="'nobody' has no fixed address"):
        build_table_asset("nobody")
