"""The connection type, and where its secrets do not go."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
from local_airflow.home import JOBS_BIN
from memwal_airflow.hooks.memwal import MemWalHook, choose_tables, read_environment
from memwal_airflow.operators.jobs import MemWalMergeOperator
from memwal_airflow.page.source import read_order
from memwal_airflow.provider import get_provider_info
from memwal_airflow.settings import read_dag_config, read_settings

from memwal.config import STORAGE_OPTIONS_VARIABLE, Config
from memwal.errors import Usage
from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import EACH_PLACE, run_one
from tests.airflow.stand_in import StandIn

pytestmark = pytest.mark.integration

PASSWORD = "pw-4f1c9d27e8"
TOKEN = "tok-77aa01b3c5"


@EACH_PLACE
def test_secrets_reach_the_job_and_not_the_database(
    airflow_home: InProcessAirflow,
    stand_in: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    deferrable: bool,
) -> None:
    # A job that tells everything it knows.
    tells = f"env > {tmp_path}/known; echo SEEN ${STORAGE_OPTIONS_VARIABLE}"
    stand_in.answer({"first": tells})
    extra = {
        "storage_options": json.dumps({"aws_region": "eu-central-1"}),
        "secret_storage_options": json.dumps({"aws_session_token": TOKEN}),
    }
    store = {"host": "http://127.0.0.1:9", "login": "an-access-key", "password": PASSWORD}
    connection = {"conn_type": "memwal", **store, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
    fields = {"tables": "s3://lake/orders", "conn_id": "store", "deferrable": deferrable}
    assert run_one(airflow_home, MemWalMergeOperator, **fields).state == "success"
    known = dict(
        line.split("=", 1) for line in (tmp_path / "known").read_text().splitlines() if "=" in line
    )
    assert json.loads(known[STORAGE_OPTIONS_VARIABLE]) == {
        "aws_endpoint": "http://127.0.0.1:9",
        "allow_http": "true",
        "aws_access_key_id": "an-access-key",
        "aws_secret_access_key": PASSWORD,
        "aws_session_token": TOKEN,
        "aws_region": "eu-central-1",
    }
    assert not [name for name in known if name.startswith(("AIRFLOW", "_AIRFLOW"))]
    # Masked in a task's log (test_running_airflow.py); this process has no such log.
    assert "SEEN" in "".join(capfd.readouterr())
    assert_secretless(everything_in(airflow_home.folder / "airflow.db"))


def assert_secretless(text: str) -> None:
    for secret in (PASSWORD, TOKEN):
        assert secret not in text


def everything_in(database: Path) -> str:
    """All rows of all tables: XComs, rendered templates, triggers, serialized DAGs."""
    with sqlite3.connect(database) as connection:
        text = "\n".join(connection.iterdump())
    assert "memwal_summary" in text
    return text


def test_the_type_is_known_to_airflow_with_its_form() -> None:
    manager = ProvidersManager()
    behaviour = manager.field_behaviours["memwal"]
    assert behaviour["relabeling"]["password"] == "Secret access key"
    widgets = manager.connection_form_widgets
    fields = {name.rpartition("__")[2] for name in widgets if name.startswith("extra__memwal__")}
    assert fields == {"storage_options", "secret_storage_options"}
    assert get_provider_info()["package-name"] == "airflow-provider-lance-memwal"


@pytest.mark.nightly
def test_the_test_button_reads_a_table(
    airflow_home: InProcessAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "memwal", "host": "http://127.0.0.1:9", "password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({**connection, "login": "an-access-key"}))
    well, text = MemWalHook("store").test_connection()
    assert (well, "no table is configured" in text) == (False, True)

    orders = airflow_home.tables.make("orders")
    well, text = MemWalHook("store").test_connection()
    assert (well, text.startswith("read orders at version ")) == (True, True)
    # Of its store's tables, if it is about one: that is what it is for.
    section = f'[tables.away]\nuri = "s3://lake/{PASSWORD}"\n'
    airflow_home.config_file.write_text(f'[tables.orders]\nuri = "{orders.uri}"\n{section}')
    looked = choose_tables(read_dag_config(), MemWalHook("store").environment())
    assert looked == ["away"]
    # A connection of nobody's store may still be meant for one, with the machine's identity.
    looked = choose_tables(read_dag_config(), MemWalHook().environment())
    assert looked == ["away", "orders"]
    well, text = MemWalHook().test_connection()
    assert (well, text.startswith("read orders at version "), "; but away: " in text) == (True,) * 3
    airflow_home.config_file.write_text(section)
    well, text = MemWalHook("store").test_connection()
    assert not well
    assert text.startswith("away: ")
    assert "connection refused" in text
    assert_secretless(text)

    monkeypatch.setenv("AIRFLOW__MEMWAL__COMMAND", "/no/such/memwal")
    well, text = MemWalHook("store").test_connection()
    assert (well, "can't start /no/such/memwal" in text) == (False, True)


@pytest.mark.parametrize("name", ["command", "config_file"])
def test_a_connection_decides_neither_code_nor_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Whoever may edit a connection, and whoever presses a button on the page, runs nothing."""
    connection = {"conn_type": "memwal", "extra": {name: str(tmp_path / "elsewhere")}}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
    settings = read_settings()
    found = MemWalHook("store").environment()
    assert found.command == settings.command == str(JOBS_BIN / "memwal")
    assert found.config_file == settings.config_file


def test_only_a_file_that_is_named_is_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memwal.toml"
    file.write_text('[airflow]\nany_address = true\n[tables.orders]\nuri = "/data/orders"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIRFLOW__MEMWAL__CONFIG_FILE", "")
    monkeypatch.delenv("MEMWAL_CONFIG", raising=False)
    assert read_dag_config() == Config()
    seen = read_order(read_environment)
    assert seen.tables == {}
    assert seen.problem is None
    assert seen.missing is not None
    assert "config_file = " in seen.missing.lines

    monkeypatch.setenv("MEMWAL_CONFIG", str(file))
    assert list(read_dag_config().tables) == ["orders"]
    monkeypatch.delenv("MEMWAL_CONFIG")
    monkeypatch.setenv("AIRFLOW__MEMWAL__CONFIG_FILE", str(file))
    assert list(read_dag_config().tables) == ["orders"]
    assert list(read_order(read_environment).tables) == ["orders"]


def test_which_options_are_secrets_and_that_no_text_has_them() -> None:
    extra = {
        "storage_options": {"aws_region": "r", "google_service_account_key": "g"},
        "secret_storage_options": {"custom_header": "h"},
    }
    made = {"conn_id": "store", "conn_type": "memwal"}
    login = {"login": "an-id", "password": PASSWORD}
    jobs = read_environment(Connection(**made, **login, extra=json.dumps(extra)))
    assert set(jobs.secrets) == {"g", "h", "an-id", PASSWORD}
    assert PASSWORD not in repr(jobs)
    for text, says in (("{secret", "not valid JSON"), ("[1]", "not a JSON object")):
        with pytest.raises(Usage, match=says) as caught:
            read_environment(Connection(**made, extra=json.dumps({"storage_options": text})))
        assert "secret" not in str(caught.value)
