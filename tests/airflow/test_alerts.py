"""Failures and late runs are told to the functions that `[airflow]` names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from airflow.sdk.execution_time.callback_supervisor import execute_callback
from memwal_airflow.alerts import build_deadlines, build_failure_callbacks

from memwal.config import AirflowDags
from memwal.errors import Usage
from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import run_shipped
from tests.airflow.stand_in import StandIn

pytestmark = pytest.mark.integration

MODULE = """
import json
FILE = __file__ + ".told"
DEADEND = 3

def tell_failure(context):
    ti = context["ti"]
    found = [ti.task_id, ti.map_index, str(context["exception"])]
    with open(FILE, "a") as file:
        file.write(json.dumps(found) + "\\n")

def tell_late(context):
    with open(FILE, "a") as file:
        file.write(json.dumps(context["dag_run"]["dag_run_id"]) + "\\n")

async def tell_late_soon(context):
    pass
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module of the test's functions writes."""
    folder = tmp_path / "modules"
    folder.mkdir()
    name = "lake_" + "".join(c for c in tmp_path.name if c.isalnum())
    (folder / f"{name}.py").write_text(MODULE)
    (folder / f"{name}_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(folder)
    return folder / f"{name}.py.told"


def name_of(told: Path) -> str:
    return told.name.removesuffix(".py.told")


@pytest.mark.nightly
def test_a_failed_table_is_told_of_and_a_healthy_one_is_not(
    airflow_home: InProcessAirflow, stand_in: StandIn, told: Path
) -> None:
    tables = airflow_home.tables
    tables.set_head(f'[airflow]\non_failure = "{name_of(told)}.tell_failure"\nretries = 0\n')
    tables.name("orders", "events")
    stand_in.answer({}, {"report": None, "code": 8, "log": "error: torn\n"})
    ran = run_shipped(airflow_home, "memwal_merge", {"tables": ["orders", "events"]})
    assert ran.state == "failed"
    (line,) = told.read_text().splitlines()
    task_id, index, text = json.loads(line)
    assert (task_id, ran.states["merge", index]) == ("merge", "failed")
    assert "exit code 8" in text


def test_a_late_run_is_told_of(airflow_home: InProcessAirflow, told: Path) -> None:
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.models.deadline import Deadline
    from airflow.settings import Session
    from airflow.utils.types import DagRunTriggeredByType
    from sqlalchemy import select

    names = f'["{name_of(told)}.tell_late", "{name_of(told)}.tell_late_soon"]'
    airflow_home.tables.set_head(f'[airflow]\ndeadline_seconds = "2h"\non_deadline = {names}\n')
    airflow_home.register(airflow_home.load_dag("memwal_merge"))
    run = trigger_dag("memwal_merge", triggered_by=DagRunTriggeredByType.TEST, run_id="late")
    session = Session()
    by_executor, by_triggerer = session.scalars(
        select(Deadline).where(Deadline.dagrun_id == run.id).order_by(Deadline.callback_id)
    )
    if by_executor.callback.data["path"].endswith("_soon"):
        by_executor, by_triggerer = by_triggerer, by_executor
    assert (by_executor.deadline_time - run.queued_at).total_seconds() == 7200
    assert (by_executor.callback.type, by_triggerer.callback.type) == ("executor", "triggerer")

    by_executor.handle_miss(session)
    data = by_executor.callback.data
    log = structlog.get_logger()
    assert execute_callback(data["path"], data["kwargs"], None, None, log) == (True, None)
    assert told.read_text() == '"late"\n'


def test_the_example_needs_a_provider_only_once_it_is_called() -> None:
    example = "memwal_airflow.example_alerts"
    named = {"on_failure": f"{example}.mail_failure", "on_deadline": [f"{example}.chat_late"]}
    dags = AirflowDags.model_validate({**named, "deadline_seconds": 60})
    (mail,) = build_failure_callbacks(dags)
    (late,) = build_deadlines(dags) or []
    assert (mail.__name__, late.callback.path) == ("mail_failure", f"{example}.chat_late")


@pytest.mark.parametrize(
    ("key", "name", "why"),
    [
        ("on_failure", "no_such_module.tell", "can't be imported: No module named"),
        ("on_failure", "MODULE.tell_falure", "has no attribute 'tell_falure'"),
        ("on_failure", "MODULE_broken.tell", "can't be imported: division by zero"),
        ("on_failure", "MODULE.DEADEND", "can't be called"),
        ("on_failure", "MODULE.tell_late_soon", "is async"),
        ("on_deadline", "MODULE.tell_lat", "has no attribute 'tell_lat'"),
    ],
)
def test_a_wrong_path_names_its_key(
    key: str, name: str, why: str, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__CONFIG_FILE", "/etc/memwal.toml")
    name = name.replace("MODULE", name_of(told))
    more: dict[str, Any] = {"deadline_seconds": 1} if key == "on_deadline" else {}
    dags = AirflowDags.model_validate({key: name, **more})
    with pytest.raises(Usage) as wrong:
        build_failure_callbacks(dags)
        build_deadlines(dags)
    assert str(wrong.value).startswith(f"/etc/memwal.toml: airflow.{key}: {name} ")
    assert why in str(wrong.value)
