"""What a task's run is called in memwal, and where Airflow shows it; needs no Airflow."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from memwal_airflow.operators.task_runs import build_task_paths, describe_task, name_run

from memwal.report import RUN_ID, AirflowTask

TASK = {"dag_id": "merge", "run_id": "manual__2026-11-22T00:00:00+00:00", "task_id": "a.b"}


def instance(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**TASK, "map_index": -1, "try_number": 1, **fields})


def test_a_run_is_named_after_its_task() -> None:
    named = name_run(instance(map_index=3, try_number=2))
    assert named == "merge/manual__2026-11-22T00:00:00+00:00/a.b:3/2"
    odd = name_run(instance(run_id="ü x" * 100, map_index=None))
    assert re.match(RUN_ID, named) and re.match(RUN_ID, odd)


def test_memwal_takes_what_a_task_is_described_by() -> None:
    found = describe_task(instance(map_index=None, try_number=4))
    assert AirflowTask.model_validate(found).model_dump() == found
    assert found == {**TASK, "map_index": -1, "try_number": 4}


def test_the_addresses_are_those_of_airflows_pages() -> None:
    assert build_task_paths(describe_task(instance()), "") == {
        "run_path": "/dags/merge/runs/manual__2026-11-22T00%3A00%3A00%2B00%3A00",
        "log_path": "/dags/merge/runs/manual__2026-11-22T00%3A00%3A00%2B00%3A00/tasks/a.b"
        "?try_number=1",
    }
    mapped = build_task_paths(describe_task(instance(run_id="r", map_index=3)), "/airflow")
    assert mapped["log_path"] == "/airflow/dags/merge/runs/r/tasks/a.b/mapped/3?try_number=1"


@pytest.mark.parametrize(
    "run_id",
    ["//evil.example/", "javascript:alert(1)", "../../x", "a/../../b", "?try_number=9", "#x",
     '"><script>', "\\evil.example", "%2e%2e", "ü"],
)  # fmt: skip
def test_no_id_leads_elsewhere(run_id: str) -> None:
    for path in build_task_paths(describe_task(instance(run_id=run_id)), "").values():
        led = urlsplit(urljoin("https://airflow.example/memwal/", path))
        assert (led.scheme, led.netloc) == ("https", "airflow.example")
        assert led.path.startswith("/dags/merge/runs/") and led.path.count("/") in (4, 6)
        assert led.query in ("", "try_number=1") and led.fragment == ""
        assert not set(path) & set('<>"\\ ')


@pytest.mark.parametrize("name", ["dag_id", "run_id", "task_id"])
@pytest.mark.parametrize("text", [".", ".."])
def test_dots_have_no_address(name: str, text: str) -> None:
    assert build_task_paths(describe_task(instance(**{name: text})), "") == {}
