"""Failures are told to the functions that `[airflow]` names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from memwal_airflow.alerts import build_failure_callbacks

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

async def tell_soon(context):
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


def test_the_example_needs_a_provider_only_once_it_is_called() -> None:
    path = "memwal_airflow.example_alerts.mail_failure"
    (mail,) = build_failure_callbacks(AirflowDags.model_validate({"on_failure": path}))
    assert mail.__name__ == "mail_failure"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module.tell", "can't be imported: No module named"),
        ("MODULE.tell_falure", "has no attribute 'tell_falure'"),
        ("MODULE_broken.tell", "can't be imported: division by zero"),
        ("MODULE.DEADEND", "can't be called"),
        ("MODULE.tell_soon", "is async"),
    ],
)
def test_a_wrong_path_names_its_key(
    name: str, why: str, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__MEMWAL__CONFIG_FILE", "/etc/memwal.toml")
    name = name.replace("MODULE", name_of(told))
    with pytest.raises(Usage) as wrong:
        build_failure_callbacks(AirflowDags.model_validate({"on_failure": name}))
    assert str(wrong.value).startswith(f"/etc/memwal.toml: airflow.on_failure: {name} ")
    assert why in str(wrong.value)
