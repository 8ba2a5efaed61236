"""What OpenLineage learns of a job's task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from memwal_airflow.assets.lineage import COLUMNS_MAX, convert_asset, outline, split_address
from memwal_airflow.operators.jobs import (
    MemWalIngestOperator,
    MemWalMergeOperator,
)
from openlineage.client.serde import Serde

from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import run_tasks

pytestmark = pytest.mark.integration

HEAD = '[defaults]\nengine = "local"\n[airflow]\nretries = 0\n'


@pytest.fixture
def home(airflow_home: InProcessAirflow) -> InProcessAirflow:
    airflow_home.tables.set_head(HEAD)
    return airflow_home


def lineage_of(home: InProcessAirflow, operator: Callable[..., Any], **fields: Any) -> Any:
    """What the provider's listener is given of a task's end, as the events have it."""
    found: list[Any] = []

    def tell(context: Any) -> None:
        found.append(context["task"].get_openlineage_facets_on_complete(context["ti"]))

    ends = {"on_success_callback": tell, "on_failure_callback": tell}
    ran = run_tasks(home, lambda: operator(task_id="job", retries=0, **ends, **fields))
    (told,) = found
    facets = told.run_facets
    if facets:
        assert facets["externalQuery"].externalQueryId == f"own/{ran.run.run_id}/job/1"
    datasets = {"inputs": told.inputs, "outputs": told.outputs}
    return {kind: [Serde.to_dict(each) for each in some] for kind, some in datasets.items()}


@pytest.mark.nightly
def test_a_merge_of_a_table_that_is_well_and_one_that_is_broken(home: InProcessAirflow) -> None:
    orders = home.tables.make("orders", rows=10)
    home.tables.make("broken", generations=1).break_shard()
    orders.flush([1, 2, 500])
    tables = ["orders", "broken"]
    told = lineage_of(home, MemWalMergeOperator, tables=tables, deferrable=True)
    names = [(i["namespace"], i["name"]) for i in told["inputs"]]
    assert names == [("file", f"{orders.uri}/_mem_wal")]
    (output,) = told["outputs"]
    assert (output["namespace"], output["name"]) == ("file", orders.uri)
    assert int(output["facets"]["version"]["datasetVersion"]) > 1
    columns = {f["name"]: f["type"] for f in output["facets"]["schema"]["fields"]}
    assert columns["k"] == "int64"
    statistics = output["outputFacets"]["outputStatistics"]
    assert statistics["rowCount"] == 3
    assert statistics["size"] > 0
    idle = {"tables": "orders", "skip_when_idle": False}
    told = lineage_of(home, MemWalMergeOperator, **idle)
    assert told == {"inputs": [], "outputs": []}


@pytest.mark.nightly
def test_an_ingest_writes_to_the_mem_wal(home: InProcessAirflow, tmp_path: Path) -> None:
    orders = home.tables.make("orders", rows=20)
    orders.land(tmp_path / "a.parquet", range(5))
    told = lineage_of(
        home, MemWalIngestOperator, table="orders", sources=str(tmp_path / "a.parquet")
    )
    assert told["inputs"][0]["name"] == f"{tmp_path}/a.parquet"
    (output,) = told["outputs"]
    assert output["name"] == f"{orders.uri}/_mem_wal"
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 5


def test_names_of_datasets() -> None:
    assert split_address("s3://AKIA:secret@lake/a/orders/") == ("s3://lake", "a/orders")
    assert split_address("/data/my orders") == ("file", "/data/my orders")
    azure = "abfss://lake@account.dfs.core.windows.net"
    dataset = convert_asset(Asset(f"{azure}/orders"), None)
    assert (dataset.namespace, dataset.name) == (azure, "orders")


def test_an_outline_is_bounded() -> None:
    columns = {f"c{n}": "int64" for n in range(9_999)}
    assert len(outline({"columns": columns})["columns"]) == COLUMNS_MAX
    assert outline({}) == {}
