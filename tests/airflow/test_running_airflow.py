"""The whole of it, in a running Airflow: events start DAGs, jobs wait in the triggerer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from httpx import HTTPStatusError
from local_airflow.rest import AirflowClient, wait_until

from tests.airflow.airflow_server import TestAirflow

pytestmark = pytest.mark.nightly

PASSWORD = "pw-5d08e1bb42"
EVENT_DAGS = ("memwal_index_catchup", "memwal_snapshot", "memwal_garbage")


@pytest.fixture
def admin(airflow_server: TestAirflow) -> Iterator[AirflowClient]:
    client = airflow_server.client("admin")
    client.wait_for_dags("memwal_merge", "memwal_backfill", *EVENT_DAGS)
    yield client
    for dag_id in ("memwal_merge", "memwal_backfill", *EVENT_DAGS):
        client.set_paused(dag_id, True)


WHOLE = {"tables": ["orders"], "jobs": ["merge"], "dry_run": False}


def backfill(admin: AirflowClient, **conf: object) -> str:
    admin.set_paused("memwal_backfill", False)
    return admin.trigger("memwal_backfill", {**WHOLE, **conf})


@pytest.fixture
def own_command(airflow_server: TestAirflow) -> Iterator[None]:
    """The test may change what runs as memwal."""
    yield
    airflow_server.set_command()


@pytest.fixture
def connection(admin: AirflowClient) -> Iterator[None]:
    """The default one, with secrets in it."""
    place, secret = "/api/v2/connections", json.dumps({"aws_session_token": PASSWORD})
    extra = json.dumps({"secret_storage_options": secret})
    body = {"connection_id": "memwal_default", "conn_type": "memwal", "extra": extra}
    admin.http.delete(f"{place}/memwal_default")  # a test that failed may have left it
    admin.post("/connections", {**body, "password": PASSWORD})
    yield
    admin.http.delete(f"{place}/memwal_default").raise_for_status()


def test_a_merge_sets_the_others_going(airflow_server: TestAirflow, admin: AirflowClient) -> None:
    tables = [airflow_server.tables[name] for name in ("orders", "events")]
    known = {dag_id: admin.runs(dag_id) for dag_id in EVENT_DAGS}
    for dag_id in ("memwal_merge", *EVENT_DAGS):
        admin.set_paused(dag_id, False)
    for table in tables:
        for shard in range(len(table.shards)):
            table.fill(2, shard)
    run = admin.trigger("memwal_merge")
    assert admin.wait_for_run("memwal_merge", run) == "success"
    assert admin.xcom("memwal_merge", run, "plan") == ["orders", "events"]
    for table in tables:
        assert table.progress() == table.flushed()

    ended = {dag_id: admin.wait_for_new_run(dag_id, known[dag_id]) for dag_id in EVENT_DAGS}
    assert {state for _, state in ended.values()} == {"success"}
    catchup, _ = ended["memwal_index_catchup"]
    caught_up = set(admin.xcom("memwal_index_catchup", catchup, "tables"))
    assert caught_up <= {"orders", "events", "ledger"}
    names = {event["name"] for event in admin.asset_events()}
    assert names >= {"memwal merged orders", "memwal merged events", "memwal indexed orders"}
    for table in tables:
        table.check()


def test_a_lease_that_is_given_up_lets_the_same_try_through(
    airflow_server: TestAirflow, admin: AirflowClient
) -> None:
    orders = airflow_server.tables["orders"]
    orders.fill(1)
    orders.maker.ask("hold_lease", uri=orders.uri)
    try:
        run = backfill(admin)

        def waits() -> bool:
            states = admin.task_states("memwal_backfill", run)
            return states.get(("backfill", -1)) == "up_for_reschedule"

        wait_until("the merge to wait for the lease", waits, 180)
        assert orders.progress() != orders.flushed()
    finally:
        orders.maker.ask("release_lease", uri=orders.uri)
    assert admin.wait_for_run("memwal_backfill", run) == "success"
    tasks = admin.task_instances("memwal_backfill", run)
    (merge,) = [task for task in tasks if task["task_id"] == "backfill"]
    assert merge["try_number"] == 1
    path = f"/dags/memwal_backfill/dagRuns/{run}/taskInstances/backfill/links"
    links = admin.get(path)["extra_links"]
    named = quote(f"memwal_backfill/{run}/backfill/1", safe="")
    assert links == {"MemWAL page": f"/memwal/#/table/orders?run={named}"}
    assert orders.progress() == orders.flushed()


def test_killing_a_deferred_task_ends_its_job(
    airflow_server: TestAirflow, admin: AirflowClient, tmp_path: Path, own_command: None
) -> None:
    # Says who it is and stays.
    says = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid"
    airflow_server.set_command(f"{says}\nexec sleep 600")
    run = backfill(admin)
    path = f"/dags/memwal_backfill/dagRuns/{run}/taskInstances/backfill"

    wait_until("the job in the triggerer", (tmp_path / "pid").exists, 180)
    assert admin.get(path)["state"] == "deferred"
    job = psutil.Process(int((tmp_path / "pid").read_text()))
    admin.patch(path, {"new_state": "failed"})

    def gone() -> bool:
        return not job.is_running() or job.status() == psutil.STATUS_ZOMBIE

    assert wait_until("the job's end", gone, 120)


def test_no_secret_in_a_log_an_xcom_or_a_template(
    airflow_server: TestAirflow, admin: AirflowClient, connection: None, own_command: None
) -> None:
    airflow_server.set_command(f"echo SEEN $MEMWAL_STORAGE_OPTIONS\necho it is {PASSWORD}")
    run = backfill(admin)

    def tried() -> bool:
        state = admin.task_states("memwal_backfill", run).get(("backfill", -1))
        return state in ("up_for_retry", "failed")

    wait_until("the merge's first try", tried, 180)
    log = admin.log("memwal_backfill", run, "backfill")
    assert "SEEN" in log
    assert PASSWORD not in log
    path = f"/dags/memwal_backfill/dagRuns/{run}/taskInstances/backfill"
    for shown in (path, "/connections/memwal_default"):
        assert PASSWORD not in json.dumps(admin.get(shown))
    admin.patch(f"/dags/memwal_backfill/dagRuns/{run}", {"state": "failed"})
    for file in airflow_server.home.logs.rglob("*.log"):
        assert PASSWORD not in file.read_text(errors="replace"), file


def test_options_in_place_of_tables_get_nowhere(
    airflow_server: TestAirflow, admin: AirflowClient
) -> None:
    """Whoever may start DAGs, and read no connection, chooses among the tables."""
    starter = airflow_server.client("starter")
    assert starter.http.get("/api/v2/connections").status_code == 403
    for dag_id in ("memwal_merge", "memwal_backfill", "memwal_garbage"):
        conf = {"tables": ["orders", "--master=spark://elsewhere"]}
        with pytest.raises(HTTPStatusError, match=r"400 .*Invalid input for param tables"):
            starter.trigger(dag_id, conf)
